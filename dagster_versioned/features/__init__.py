"""Dagster's assets as features: only what is stale is computed."""
