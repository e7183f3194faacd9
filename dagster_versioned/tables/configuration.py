"""What a table says of itself beside its schema: properties, and constraints that its rows satisfy."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_versioned.delta.properties import CHANGE_FEED, require_values
from dagster_versioned.errors import UnsupportedFeature

if TYPE_CHECKING:
    from dagster_versioned.delta.actions import Metadata

CONSTRAINT = "delta.constraints."
"""Prefix of the properties that hold a constraint's SQL. Protocol: *CHECK Constraints*."""

TRANSACTIONS_KEPT = timedelta(days=30)
"""How long a table remembers which steps have committed."""

RETENTION = "delta.deletedFileRetentionDuration"
LOG_RETENTION = "delta.logRetentionDuration"

OWN = {
    "delta.enableInCommitTimestamps": "true",
    RETENTION: "interval 36500 days",
    LOG_RETENTION: "interval 36500 days",
    "delta.setTransactionRetentionDuration": f"interval {TRANSACTIONS_KEPT.days} days",
}
"""Properties from version 0 on: commit times that survive a migration, and no foreign vacuum of history."""

APPEND_ONLY = "delta.appendOnly"
DELETION_VECTORS = "delta.enableDeletionVectors"

SETTABLE = frozenset(
    {
        APPEND_ONLY,
        "delta.checkpointPolicy",
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        DELETION_VECTORS,
        CHANGE_FEED,
    }
)
"""Properties of the protocol that a user may set; those of other prefixes are all the user's."""


_ANOTHER = "Write it under another asset key, or take the feature away with the program that added it."

_WIDENS = "columns of versions widen without it, for readers who do not know it"
_VARIANT = "the digest of rows has no canonical form of a variant"

WITHOUT_VERSIONS = {
    "checkpointProtection": "versions have checkpoints wherever they are due, also where it forbids them",
    "columnMapping": "parts hold columns by their names in the table, for readers who open them alone, and are what a "
    "version is; a write renames columns and drops them",
    "rowTracking": "a row that is moved would keep its id in its part, and equal rows would be other versions",
    "typeWidening": _WIDENS,
    "typeWidening-preview": _WIDENS,
    "icebergCompatV1": "it asks for columnMapping",
    "icebergCompatV2": "it asks for columnMapping",
    "identityColumns": "numbers that a table gives its rows are part of them, and equal rows would be other versions",
    "materializePartitionColumns": "parts hold no partition columns",
    "variantType": _VARIANT,
    "variantType-preview": _VARIANT,
}
"""Features of Delta that no versioned table has, and why."""

_TURNED_ON_BY = {
    "delta.columnMapping.mode": "columnMapping",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableTypeWidening": "typeWidening",
}


def why_not_settable(key: str) -> str:
    """Why a property of the protocol cannot be set on a versioned table, and which can."""
    feature = _TURNED_ON_BY.get(key)
    why = f" ({feature}: {WITHOUT_VERSIONS[feature]})" if feature is not None else ""
    return f"{key} cannot be set on a versioned table{why}; of Delta's can {', '.join(sorted(SETTABLE))}"


def refuse_features(features: Collection[str]) -> None:
    """Raise `UnsupportedFeature` for features, if there are any, that a table with versions cannot have."""
    if features:
        whys = [f" {name}: {WITHOUT_VERSIONS[name]}." for name in sorted(features) if name in WITHOUT_VERSIONS]
        raise UnsupportedFeature(
            f"The table uses {', '.join(sorted(features))}, by another program, with which it takes no versions."
            f"{''.join(whys)} Nothing was read or written. {_ANOTHER}"
        )


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
