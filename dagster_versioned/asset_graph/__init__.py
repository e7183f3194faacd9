"""What the definitions of a code location say of its assets: where they are stored, and how partitions map."""
