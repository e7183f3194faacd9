"""What tests take of Dagster's inside, from where its release has it."""

import inspect

import dagster as dg
import pytest

from dagster_versioned.bounds import release_of

try:
    from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
except ImportError:  # the first releases of 1.11
    from dagster._core.remote_representation.origin import (
        InProcessCodeLocationOrigin,
        RemoteJobOrigin,
        RemoteRepositoryOrigin,
    )

has_partitioned_checks = pytest.mark.skipif(
    "partitions_def" not in inspect.signature(dg.asset_check).parameters,
    reason="checks of single partitions: from Dagster 1.12.13 on",
)
keeps_what_runs_may_configure = pytest.mark.skipif(
    release_of(dg.__version__) < (1, 12, 4),
    reason="values of resources that runs may configure, where a run says nothing: from Dagster 1.12.4 on",
)
counts_minutes_of_zones = pytest.mark.skipif(
    release_of(dg.__version__) < (1, 12, 21),
    reason="whole hours in zones that are half an hour off: from Dagster 1.12.21 on",
)

__all__ = [
    "InProcessCodeLocationOrigin",
    "RemoteJobOrigin",
    "RemoteRepositoryOrigin",
    "counts_minutes_of_zones",
    "has_partitioned_checks",
    "keeps_what_runs_may_configure",
]
