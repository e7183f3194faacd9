"""What tests take of Dagster's inside, from where its release has it."""

try:
    from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
except ImportError:  # the first releases of 1.11
    from dagster._core.remote_representation.origin import (
        InProcessCodeLocationOrigin,
        RemoteJobOrigin,
        RemoteRepositoryOrigin,
    )

__all__ = ["InProcessCodeLocationOrigin", "RemoteJobOrigin", "RemoteRepositoryOrigin"]
