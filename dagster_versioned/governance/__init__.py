"""Where a project's bytes are and who may move them: the registry, its documents and mirror, migration, the git mirror."""
