"""Dagster assets that this package makes: features, SQL assets, polled sources; and the graph of all assets."""
