"""Where tables are: places that a migration has ended, names that a rename has left."""
