"""Keys of a materialization's metadata that are looked up again: which version it made, and by which commit."""

URI_KEY = "dagster/uri"
METADATA_SHA_KEY = "dagster_versioned/metadata_sha"
LOG_VERSION_KEY = "dagster_versioned/log_version"
COMMIT_KEY = "dagster_versioned/commit_sha256"
"""The SHA-256 of the bytes of the commit."""
