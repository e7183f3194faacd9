"""Dagster's configuration of the package: what a project is called and where its bytes live."""
