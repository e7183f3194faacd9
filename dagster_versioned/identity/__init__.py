"""What is "the same"? Canonical JSON, names, the identity of a version, digests of rows, references to versions."""
