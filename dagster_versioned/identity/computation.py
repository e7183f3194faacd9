"""What a computation is named by: all that its result may depend on, if its function is one of what it is given."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.identity.version import Parent

_FORMAT = 1
"""Changes whenever equal computations get other keys; all are computed once more then."""


@dataclass(frozen=True, slots=True)
class ComputationInput:
    """One input: of which asset, exactly which versions, as what it is read, and what else its definition asks for."""

    asset_key: Sequence[str]
    parents: Sequence[Parent]
    read_as: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """As it is hashed; the order of parents means nothing."""
        parents = [parent.to_json() for parent in self.parents]
        return {
            "asset_key": list(self.asset_key),
            "parents": sorted(parents, key=canonical_json),
            "read_as": self.read_as,
            "metadata": dict(self.metadata),
        }


def computation_key(
    asset_key: Sequence[str],
    partition: str | None,
    code_version: str,
    *,
    config: Any,
    options: Mapping[str, Any],
    message: str | None,
    partitioning: Any,
    inputs: Mapping[str, ComputationInput],
) -> str:
    """SHA-256 of the canonical JSON of all that a computation is given (64 hex); ``inputs`` by parameter.

    Raises `InvalidMetadata`, naming the member, for what is not JSON. FORMAT, "Computations".
    """
    return hashlib.sha256(
        canonical_json(
            {
                "format": _FORMAT,
                "asset_key": list(asset_key),
                "partition": partition,
                "code_version": code_version,
                "config": config,
                "options": dict(options),
                "message": message,
                "partitioning": partitioning,
                "inputs": {name: input_.to_json() for name, input_ in inputs.items()},
            }
        )
    ).hexdigest()
