"""Environments of a project: made, compared with production, promoted, brought up to date, exported.

`environments.create_environment`, `diff.differences`, `promote.promote`, `rebase.rebase_environment` and
`export.export_environment`. What an environment *is* (its document, its fork, which files are its own) is in
`tables.environment`, for the log of a table needs it. What the room owns: production is changed by a promotion alone,
and by it only to versions that stand on what production has.
"""
