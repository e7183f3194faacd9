"""What tests take of Dagster's inside, from where its release has it."""

import inspect

import dagster as dg
import pytest

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
    reason="checks of single partitions: from Dagster 1.12 on",
)

__all__ = ["InProcessCodeLocationOrigin", "RemoteJobOrigin", "RemoteRepositoryOrigin", "has_partitioned_checks"]
