"""Where a project's bytes belong, who may move them, and how they are read (seed 003).

A *registry* is a git repository with three documents per project; its *mirror* in governance storage is what writers
and readers ask. Importing this package imports neither git nor boto3.
"""
