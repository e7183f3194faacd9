"""Features: tables that know, row by row and field by field, what is stale."""
