"""The commands that change rows of any Delta table, for every engine: one commit each, or nothing.

A command reads the newest snapshot, has a `RowEngine` write files, and commits them. Commits that came in between and
left valid what it read are passed over; others raise `CommitConflict`. What a failed command wrote is removed, unless
it is not known whether its commit landed: then the files are left for vacuum.
"""
