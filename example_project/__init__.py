"""A Dagster project whose assets are versioned tables: the flights that left New York City in 2013."""

import warnings

import dagster as dg

# backfill_policy is beta in Dagster; the example is not the place for a warning at every import.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
