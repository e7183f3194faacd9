"""Dagster's trigger: sensors that request what depends on a changed version."""
