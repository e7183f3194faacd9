"""Changes of a table: what a version is made of, and the commit that makes it one."""
