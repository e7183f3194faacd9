"""What a table says of itself beside its schema: properties, and constraints that its rows satisfy."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_versioned.delta.properties import CHANGE_FEED, require_values

if TYPE_CHECKING:
    from dagster_versioned.delta.actions import Metadata

CONSTRAINT = "delta.constraints."
"""Prefix of the properties that hold a constraint's SQL. Protocol: *CHECK Constraints*."""

TRANSACTIONS_KEPT = timedelta(days=30)
"""How long a table remembers which steps have committed."""

OWN = {
    "delta.enableInCommitTimestamps": "true",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.setTransactionRetentionDuration": f"interval {TRANSACTIONS_KEPT.days} days",
}
"""Properties from version 0 on: commit times that survive a migration, and no foreign vacuum of history."""

APPEND_ONLY = "delta.appendOnly"
DELETION_VECTORS = "delta.enableDeletionVectors"

SETTABLE = frozenset(
    {
        APPEND_ONLY,
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        DELETION_VECTORS,
        CHANGE_FEED,
    }
)
"""Properties of the protocol that a user may set; those of other prefixes are all the user's."""


def configuration(
    known: "Metadata | None", properties: Mapping[str, str], constraints: Mapping[str, str] | None
) -> dict[str, str]:
    """The table's properties once these are set; constraints of ``None`` are those that the table has.

    Raises `InvalidInput` for a value that means nothing.
    """
    require_values(properties)
    merged = {**OWN, **(known.configuration if known is not None else {}), **properties}
    if constraints is None:
        return merged
    kept = {key: value for key, value in merged.items() if not key.startswith(CONSTRAINT)}
    return kept | {f"{CONSTRAINT}{name}": sql for name, sql in constraints.items()}


def is_set(properties: Mapping[str, str], key: str) -> bool:
    """Whether a boolean property is on."""
    return properties.get(key, "").lower() == "true"


def constraints_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The constraints among a table's properties: SQL by name."""
    return {key.removeprefix(CONSTRAINT): sql for key, sql in properties.items() if key.startswith(CONSTRAINT)}
