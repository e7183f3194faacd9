"""Dagster's door in and out: assets as versions of tables, and versions as inputs."""
