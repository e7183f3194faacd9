"""What a table says of itself beside its schema: properties, and constraints that its rows satisfy."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from dagster_versioned.delta.properties import CHANGE_FEED, require_values
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature

if TYPE_CHECKING:
    from dagster_versioned.delta.actions import Metadata

CONSTRAINT = "delta.constraints."
"""Prefix of the properties that hold a constraint's SQL. Protocol: *CHECK Constraints*."""

TRANSACTIONS_KEPT = timedelta(days=30)
"""How long a table remembers which steps have committed."""

RETENTION = "delta.deletedFileRetentionDuration"

OWN = {
    "delta.enableInCommitTimestamps": "true",
    RETENTION: "interval 36500 days",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.setTransactionRetentionDuration": f"interval {TRANSACTIONS_KEPT.days} days",
}
"""Properties from version 0 on: commit times that survive a migration, and no foreign vacuum of history."""

LEFT_PROPERTY = "dagster_versioned.left"
"""The property of a table that was left to other programs, which keep it."""

PERSONAL = "dagster_versioned.personalColumns"
"""The property that names the columns of which nothing is to be found beside their values: a JSON list."""

_STATISTICS = "delta.dataSkippingStatsColumns"
_INDEXED = "delta.dataSkippingNumIndexedCols"
TAKEN_BY_PERSONAL = frozenset({_STATISTICS, _INDEXED})
"""The properties that follow from which columns are personal."""

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
    known: "Metadata | None",
    properties: Mapping[str, str],
    constraints: Mapping[str, str] | None,
    personal: Sequence[str] | None = None,
) -> dict[str, str]:
    """The table's properties once these are set; constraints and personal columns of ``None`` are those that it has.

    Raises `InvalidInput` for a value that means nothing.
    """
    require_values(properties)
    merged = {**OWN, **(known.configuration if known is not None else {}), **properties}
    if personal is not None:
        merged = _without(merged, (PERSONAL,)) | ({PERSONAL: json.dumps(list(personal))} if personal else {})
        if not personal and known is not None and PERSONAL in known.configuration:
            merged = _without(merged, TAKEN_BY_PERSONAL - properties.keys())
    if constraints is None:
        return merged
    kept = {key: value for key, value in merged.items() if not key.startswith(CONSTRAINT)}
    return kept | {f"{CONSTRAINT}{name}": sql for name, sql in constraints.items()}


def personal_columns(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of which nothing is to be found beside their values."""
    try:
        names: object = json.loads(properties.get(PERSONAL, "[]"))
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[object]", names)):
        raise LogCorrupt(
            f"The table's property {PERSONAL} is {properties[PERSONAL]!r:.100}, which is no JSON list of columns. "
            "Nothing was written. Correct it by the program that set it."
        )
    return tuple(cast("list[str]", names))


def with_statistics_of(properties: Mapping[str, str], columns: Iterable[str]) -> dict[str, str]:
    """The properties of a table with these columns, so that other programs take no statistics of personal ones.

    Protocol: *Delta's* ``dataSkippingStatsColumns`` is a list of those that have some.
    """
    if not (personal := personal_columns(properties)):
        return dict(properties)
    others = ["`" + name.replace("`", "``") + "`" for name in columns if name not in personal]
    kept = _without(properties, TAKEN_BY_PERSONAL)
    return kept | ({_STATISTICS: ",".join(others)} if others else {_INDEXED: "0"})


def _without(properties: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    left = set(keys)
    return {key: value for key, value in properties.items() if key not in left}


def is_set(properties: Mapping[str, str], key: str) -> bool:
    """Whether a boolean property is on."""
    return properties.get(key, "").lower() == "true"


def constraints_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The constraints among a table's properties: SQL by name."""
    return {key.removeprefix(CONSTRAINT): sql for key, sql in properties.items() if key.startswith(CONSTRAINT)}
