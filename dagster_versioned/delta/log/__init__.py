"""The log as files: commits, checkpoints, and the snapshots that are replayed from them."""
