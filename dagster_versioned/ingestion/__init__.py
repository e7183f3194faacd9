"""Dagster's assets whose data come from elsewhere, as a manifest says."""
