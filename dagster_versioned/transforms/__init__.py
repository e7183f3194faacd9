"""Dagster's assets as SQL transforms: queries over histories of events, recorded so that anybody can repeat them."""
