"""Which features of the protocol are implemented, asked per operation: read a snapshot, write a commit.

What is missing is refused by the protocol's own name for it (*Valid Feature Names in Table Features*) before a row is
returned or a byte written: a wrong answer is the one thing that must never happen.
"""

import re
from collections.abc import Callable, Collection

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.schema.column_mapping import ColumnMapping
from dagster_versioned.delta.schema.types import StructType, parse_schema, parts_of
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature

_READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Understood when reading. A shredded variant that an engine cannot put together is refused where it is read."""

ERASURES = "dagsterVersionedErasures"
"""A feature of this package's: of older versions rows were erased, and what stands for their files is in no snapshot.
A writer that does not know it would take such files for garbage."""

_WRITER_FEATURES = _READER_FEATURES | {
    ERASURES,
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "checkpointProtection",
    "clustering",
    "domainMetadata",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "invariants",
    "materializePartitionColumns",
    "rowTracking",
}
"""Understood when writing. What they ask of rows is in `write_rules`, what they ask of a commit in `transaction`."""

_FIELD_KEYS = {
    "invariants": ("delta.invariants",),
    "generatedColumns": ("delta.generationExpression",),
    "identityColumns": ("delta.identity.start", "delta.identity.step", "delta.identity.highWaterMark"),
    "allowColumnDefaults": ("CURRENT_DEFAULT",),
}

_CATALOG = (
    "A catalog decides which of its commits count, and its folder alone may show an older state: use it by an engine"
    " that is connected to the catalog, or have one copy its rows to another table."
)
_REDIRECTED = "It stands for a table in another place: use that one."
_ICEBERG = "Write to it by an engine that keeps Iceberg's metadata in step."
_TYPE = "Have a program that knows the type copy the table with the column cast to another type."

ADVICE = {
    "adaptiveMetadata": "Have a program that knows Iceberg's metadata tree copy its rows to another table.",
    "catalogManaged": _CATALOG,
    "collations": "Write to it by an engine that orders text by collations, or copy its rows to a table without them.",
    "coordinatedCommits": _CATALOG,
    "columnMappingUsageTracking": "Drop the feature, which no reader depends on, or write by another engine.",
    "geospatial": _TYPE,
    "icebergCompatV3": _ICEBERG,
    "icebergWriterCompatV1": _ICEBERG,
    "icebergWriterCompatV3": _ICEBERG,
    "redirectReaderWriter": _REDIRECTED,
    "redirectWriterOnly": _REDIRECTED,
    "timestampNanos": _TYPE,
}
"""What to do about a table that uses a feature that is not implemented, by its name without the end that its draft had.

Source: the protocol's text and drafts, and the features of the reference, as they are in August 2026.
"""

EARLIER_NAMES = {"catalogOwned": "catalogManaged"}
"""What a feature was called in a draft."""

_ANOTHER = "Use a newer release, or a program that implements it."


def _in_fields(feature: str) -> Callable[[Metadata, StructType], bool]:
    keys = _FIELD_KEYS[feature]
    return lambda _, schema: any(key in keys for part in parts_of(schema) for key in part.metadata)


def _property(key: str) -> Callable[[Metadata, StructType], bool]:
    return lambda metadata, _: metadata.is_set(key)


def _always(_metadata: Metadata, _schema: StructType) -> bool:
    return True


def column_mapping(protocol: Protocol, metadata: Metadata) -> ColumnMapping:
    """How columns of files are found; the property counts only where the protocol has the feature.

    Raises `UnsupportedFeature` for a mode that is not known.
    """
    if "columnMapping" not in reader_features(protocol) | writer_features(protocol):
        return "none"
    match (metadata.configuration.get("delta.columnMapping.mode") or "none").lower():
        case "none" | "name" | "id" as mode:
            return mode
        case other:
            raise UnsupportedFeature(f"columnMapping: the mode {other!r:.50} is not known. Nothing was read.")


_ROW_RULES: dict[str, Callable[[Metadata, StructType], bool]] = {
    "invariants": _in_fields("invariants"),
    "checkConstraints": lambda metadata, _: any(key.startswith("delta.constraints.") for key in metadata.configuration),
    "generatedColumns": _in_fields("generatedColumns"),
    "identityColumns": _in_fields("identityColumns"),
    "allowColumnDefaults": _in_fields("allowColumnDefaults"),
    "changeDataFeed": _property("delta.enableChangeDataFeed"),
    "icebergCompatV1": _property("delta.enableIcebergCompatV1"),
    "icebergCompatV2": _property("delta.enableIcebergCompatV2"),
    "materializePartitionColumns": _always,
    "rowTracking": _always,
    "clustering": _always,
    "checkpointProtection": _always,
    "typeWidening": _always,
    "typeWidening-preview": _always,
    "variantType": _always,
    "variantType-preview": _always,
}
"""What asks something of a writer's rows or files -> whether the table uses it."""

_LEGACY_WRITER = [
    (2, ("appendOnly", "invariants")),
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (5, ("columnMapping",)),
    (6, ("identityColumns",)),
]
"""What each writer version below 7 stands for (*Writer Version Requirements*)."""


def reader_features(protocol: Protocol) -> frozenset[str]:
    """The features a reader must implement, whichever way the protocol says so."""
    if protocol.min_reader_version == 3:
        return frozenset(protocol.reader_features or ())
    return frozenset({"columnMapping"} if protocol.min_reader_version == 2 else ())


def writer_features(protocol: Protocol) -> frozenset[str]:
    """The features a writer must implement, whichever way the protocol says so."""
    if protocol.min_writer_version == 7:
        return frozenset(protocol.writer_features or ())
    stands_for = legacy_features(protocol.min_writer_version)
    # What readers need as well is no part of a version whose readers do not have it.
    return stands_for - _READER_FEATURES if protocol.min_reader_version == 1 else stands_for


def implemented_features() -> frozenset[str]:
    """The names of all features that are understood, when reading or when writing."""
    return _WRITER_FEATURES


def known_feature(name: str) -> str:
    """The protocol's own spelling of a feature that tables here may have. Raises `UnsupportedFeature`."""
    for feature in implemented_features():
        if feature.casefold() == name.casefold():
            return feature
    raise UnsupportedFeature(f"{name!r:.100} is no feature that is supported here. Nothing was written.")


def is_reader_feature(name: str) -> bool:
    """Whether readers must implement the feature, too."""
    return name in _READER_FEATURES


def legacy_features(writer_version: int) -> frozenset[str]:
    """What a writer version below 7 stands for."""
    return frozenset(name for version, names in _LEGACY_WRITER if version <= writer_version for name in names)


def require_protocol_read(protocol: Protocol) -> None:
    """Check what the protocol alone says. Raises `UnsupportedFeature` naming version or features."""
    if not 1 <= protocol.min_reader_version <= 3:
        raise UnsupportedFeature(
            f"The table needs reader version {protocol.min_reader_version}; versions 1 to 3 are implemented."
            " Nothing was read; use a newer program."
        )
    refuse(reader_features(protocol) - _READER_FEATURES, "read")


def require_read(protocol: Protocol, metadata: Metadata) -> None:
    """Check that a snapshot with this protocol and metadata can be read. Raises `UnsupportedFeature` by name.

    A column mapping that is listed but off needs nothing.
    """
    require_protocol_read(protocol)
    column_mapping(protocol, metadata)
    if metadata.format_provider.lower() != "parquet":
        refuse({f"format {metadata.format_provider!r}"}, "read")


def require_write(protocol: Protocol, metadata: Metadata) -> None:
    """Check that commits with this protocol and metadata can be written. Raises `UnsupportedFeature` by name.

    What the features then ask of the rows is for who writes them: see `write_rules.WriteRules`.
    """
    require_read(protocol, metadata)
    if not 1 <= protocol.min_writer_version <= 7:
        raise UnsupportedFeature(
            f"The table needs writer version {protocol.min_writer_version}; versions 1 to 7 are implemented."
            " Nothing was written; use a newer program."
        )
    refuse(writer_features(protocol) - _WRITER_FEATURES, "written")


def row_rules(protocol: Protocol, metadata: Metadata) -> set[str]:
    """The features by which a table asks more of a writer than to add and remove plain files.

    For writers that do not apply all of `write_rules.WriteRules`; deletion vectors are theirs to judge, by the files.
    Raises `UnsupportedFeature` as `require_write`.
    """
    require_write(protocol, metadata)
    schema = parse_schema(metadata.schema_string)
    used = {name for name in writer_features(protocol) & _ROW_RULES.keys() if _ROW_RULES[name](metadata, schema)}
    if column_mapping(protocol, metadata) != "none":
        used.add("columnMapping")
    return used


def protected_version(protocol: Protocol, metadata: Metadata) -> int:
    """The version below which the log is cleaned up in one go or not at all, and gets no new checkpoints; 0 for none.

    Below it commits may need features that the table has no more, which checkpoints hide from programs without them.
    Raises `LogCorrupt` for a version that is none. Protocol: *Checkpoint Protection*.
    """
    text = metadata.configuration.get("delta.requireCheckpointProtectionBeforeVersion", "0")
    if "checkpointProtection" not in writer_features(protocol):
        return 0
    if not re.fullmatch("[0-9]{1,19}", text):
        raise LogCorrupt(f"delta.requireCheckpointProtectionBeforeVersion is {text!r:.50}, which is no version.")
    return int(text)


def refuse(features: Collection[str], operation: str) -> None:
    """Raise `UnsupportedFeature` naming the features, if there are any; ``operation``: ``read`` or ``written``."""
    if features:
        raise UnsupportedFeature(
            f"The table uses {', '.join(sorted(features))}, which is not supported yet, so it cannot be {operation}."
            f" Nothing was {operation}.{_advice(features, operation)}"
        )


def _advice(features: Collection[str], operation: str) -> str:
    missing = sorted(set(features) - (_READER_FEATURES if operation == "read" else _WRITER_FEATURES))
    return "".join(f" {text}" for text in dict.fromkeys(map(advice, missing)))


# --- protocols of our own --------------------------------------------------------------------------------------------


OWN_PROTOCOL = Protocol(1, 7, None, ("domainMetadata", "inCommitTimestamp"))
"""What every table of ours needs at least. Both features bind writers alone, so any reader of version 1 reads it."""


def merge_protocol(old: Protocol, needed: Protocol) -> Protocol:
    """The lowest protocol that has everything ``old`` and ``needed`` have; ``old`` itself where that is enough.

    An old version without feature lists is taken to have used everything it stands for (*Table Features for New and
    Existing Tables*).
    """
    readers = reader_features(old) | reader_features(needed)
    writers = writer_features(old) | writer_features(needed)
    reader = max(old.min_reader_version, needed.min_reader_version)
    writer = max(old.min_writer_version, needed.min_writer_version)
    if reader == 3:
        writer = 7
    listed = writers | readers
    merged = Protocol(
        reader,
        writer,
        tuple(sorted(readers)) if reader == 3 else None,
        tuple(sorted(listed)) if writer == 7 else None,
    )
    same = reader_features(merged) == reader_features(old) and writer_features(merged) == writer_features(old)
    return old if same and (reader, writer) == (old.min_reader_version, old.min_writer_version) else merged


def advice(feature: str) -> str:
    """What to do about a table that uses a feature which is not implemented."""
    name = feature.removesuffix("-preview").removesuffix("-dev")
    return ADVICE.get(EARLIER_NAMES.get(name, name), _ANOTHER)
