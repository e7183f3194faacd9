"""Many tables: a project with its pins and tags, all heads at one moment, what is stale, and what is downstream.

`project.Project` opens one, `moment.heads_at_one_moment` reads all tables at one moment, `staleness.find` compares what
heads were built from with what their upstreams are, `downstream` follows lineage the other way. What the room owns:
every commit of a project's tables passes the guards that `Project.guards` lists.
"""
