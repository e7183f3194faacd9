"""Publication after checks: a write whose checks have not passed is a draft that no reader sees.

`park.park` puts parts and the commit-to-be beside the log, `view.view` shows drafts to the steps and checks of their
own run, `publish.publish_drafts` commits them once their checks have passed. What the room owns: nothing that a reader
sees was built from a draft that is not published (`guard.PublishedParents`, which every commit of a project passes).
"""
