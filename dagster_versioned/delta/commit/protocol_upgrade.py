"""Which protocol a table needs for its properties and its schema. Protocol: *Table Features*."""

from collections.abc import Callable, Collection, Iterator, Mapping

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.features import (
    is_reader_feature,
    known_feature,
    legacy_features,
    reader_features,
    writer_features,
)
from dagster_versioned.delta.schema.types import StructType, parts_of
from dagster_versioned.errors import InvalidInput

ASKED = "delta.feature."
"""Properties with this prefix and the value ``supported`` ask for a feature by name; they are not stored."""

MIN_READER, MIN_WRITER = "delta.minReaderVersion", "delta.minWriterVersion"
"""Properties that ask for at least this version of the protocol; they are not stored."""


def _is_true(value: str) -> bool:
    return value.lower() == "true"


_BY_PROPERTY: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "delta.appendOnly": ("appendOnly", _is_true),
    "delta.enableChangeDataFeed": ("changeDataFeed", _is_true),
    "delta.enableDeletionVectors": ("deletionVectors", _is_true),
    "delta.enableIcebergCompatV1": ("icebergCompatV1", _is_true),
    "delta.enableIcebergCompatV2": ("icebergCompatV2", _is_true),
    "delta.enableInCommitTimestamps": ("inCommitTimestamp", _is_true),
    "delta.enableRowTracking": ("rowTracking", _is_true),
    "delta.enableTypeWidening": ("typeWidening", _is_true),
    "delta.enableVariantShredding": ("variantShredding", _is_true),
    "delta.checkpointPolicy": ("v2Checkpoint", lambda value: value.lower() == "v2"),
    "delta.columnMapping.mode": ("columnMapping", lambda value: value.lower() != "none"),
    "delta.requireCheckpointProtectionBeforeVersion": ("checkpointProtection", lambda value: value not in ("", "0")),
}
"""The feature that a property turns on, and with which values."""

_BY_FIELD: Mapping[str, str] = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "delta.identity.step": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
    "delta.typeChanges": "typeWidening",
}
"""The feature that a member of a column's metadata needs."""

_BY_TYPE: Mapping[str, str] = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}

_WITH: Mapping[str, tuple[str, ...]] = {
    "clustering": ("domainMetadata",),
    "icebergCompatV1": ("columnMapping",),
    "icebergCompatV2": ("columnMapping",),
    "rowTracking": ("domainMetadata",),
    "variantShredding": ("variantType",),
}
"""What a feature needs beside itself."""

_PREVIEWS = ("typeWidening", "variantType", "variantShredding")
"""Features that a table may also have under the name with ``-preview``, which is as good."""


def protocol_with(protocol: Protocol, properties: Mapping[str, str], schema: StructType) -> Protocol:
    """The lowest protocol that has all of ``protocol``, and what ``properties`` and ``schema`` need.

    ``properties`` may ask for features and versions (`ASKED`, `MIN_READER`, `MIN_WRITER`). An old version without
    feature lists is taken to have used everything it stands for; where what is needed is again what such a version
    stands for, there are none. The given protocol itself comes back where it is enough. Raises `InvalidInput` for a
    version or a value that is none, and `UnsupportedFeature` for a feature that is not known.
    """
    had = reader_features(protocol) | writer_features(protocol)
    reader, writer = (_asked_version(properties, key, most) for key, most in ((MIN_READER, 3), (MIN_WRITER, 7)))
    reader, writer = max(reader, protocol.min_reader_version), max(writer, protocol.min_writer_version)
    needed = {*_of_properties(properties), *_of_schema(schema)}
    needed |= {other for name in needed for other in _WITH.get(name, ())}
    needed -= {name for name in _PREVIEWS if f"{name}-preview" in had}
    if writer < 7:
        needed |= legacy_features(writer)
    if reader == 2:
        needed.add("columnMapping")
    if needed <= had and (reader, writer) == (protocol.min_reader_version, protocol.min_writer_version):
        return protocol
    return _lowest(had | needed, reader_features(protocol), reader, writer)


def protocol_without(protocol: Protocol, features: Collection[str]) -> Protocol:
    """The lowest protocol that has all features of ``protocol`` but these; the given one where it has none of them."""
    had = reader_features(protocol) | writer_features(protocol)
    if not had & {*features}:
        return protocol
    return _lowest(had - {*features} | legacy_features(2), reader_features(protocol) - {*features}, 1, 2)


def require_one_layout(protocol: Protocol, metadata: Metadata) -> None:
    """Raise `InvalidInput` for a table that is clustered, as its protocol says by the feature, and partitioned."""
    if metadata.partition_columns and "clustering" in writer_features(protocol):
        raise InvalidInput(
            f"The table would be partitioned by {list(metadata.partition_columns)} and have the feature clustering,"
            " and no table is both. Nothing was written. Partition a new table, or leave this one unpartitioned."
        )


def _lowest(features: frozenset[str], readers: frozenset[str], reader: int, writer: int) -> Protocol:
    """The lowest protocol of at least these versions with exactly these features."""
    readers |= {name for name in features if is_reader_feature(name)}
    if readers - {"columnMapping"} or reader == 3:
        return Protocol(3, 7, tuple(sorted(readers)), tuple(sorted(features)))
    reader = max(reader, 2 if readers else 1)
    legacy = next((version for version in range(writer, 7) if legacy_features(version) == features), None)
    if legacy is not None:
        return Protocol(reader, legacy)
    return Protocol(reader, 7, None, tuple(sorted(features)))


def _asked_version(properties: Mapping[str, str], key: str, most: int) -> int:
    text = properties.get(key, "1")
    if text not in {str(version) for version in range(1, most + 1)}:
        raise InvalidInput(f"{key} is {text!r:.50}; versions 1 to {most} are implemented. Nothing was written.")
    return int(text)


def _of_properties(properties: Mapping[str, str]) -> Iterator[str]:
    for key, value in properties.items():
        if key.startswith("delta.constraints."):
            yield "checkConstraints"
        elif key in _BY_PROPERTY:
            feature, turns_on = _BY_PROPERTY[key]
            if turns_on(value):
                yield feature
        elif key.startswith(ASKED):
            if value.lower() not in ("supported", "enabled"):
                raise InvalidInput(f"{key} is {value!r:.50}; it can only be 'supported'. Nothing was written.")
            yield known_feature(key.removeprefix(ASKED))


def _of_schema(schema: StructType) -> Iterator[str]:
    for part in parts_of(schema):
        if not part.nullable and not part.is_inside:  # where a NOT NULL is enforced
            yield "invariants"
        yield from (_BY_FIELD[key] for key in part.metadata if key in _BY_FIELD)
        if isinstance(part.type, str) and part.type in _BY_TYPE:
            yield _BY_TYPE[part.type]
