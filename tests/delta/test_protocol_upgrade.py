import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with
from dagster_versioned.delta.features import reader_features, require_read, writer_features
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType
from dagster_versioned.errors import InvalidInput, UnsupportedFeature

LONG = StructType([StructField("x", "long")])


def lists(*names: str) -> Protocol:
    """A protocol that lists writer features alone."""
    return Protocol(1, 7, None, tuple(sorted(names)))


def both(readers: str, writers: str = "") -> Protocol:
    """A protocol that lists reader features, and more writer features."""
    read, written = readers.split(), writers.split()
    return Protocol(3, 7, tuple(sorted(read)), tuple(sorted([*read, *written])))


def metadata(**members: object) -> StructType:
    return StructType(
        [StructField("x", "long", True, {key.replace("__", "."): value for key, value in members.items()})]
    )


@pytest.mark.parametrize(
    ("old", "properties", "needed"),
    [
        (Protocol(1, 1), {}, Protocol(1, 1)),
        (Protocol(1, 2), {"delta.appendOnly": "true", "delta.logRetentionDuration": "x", "mine": "1"}, Protocol(1, 2)),
        (Protocol(1, 1), {"delta.appendOnly": "true"}, lists("appendOnly")),
        (Protocol(1, 1), {"delta.appendOnly": "false"}, Protocol(1, 1)),
        (Protocol(1, 2), {"delta.constraints.c": "x > 1"}, Protocol(1, 3)),
        (Protocol(1, 3), {"delta.enableChangeDataFeed": "TRUE"},
         lists("appendOnly", "invariants", "checkConstraints", "changeDataFeed")),
        (Protocol(1, 4), {"delta.columnMapping.mode": "name"}, Protocol(2, 5)),
        (Protocol(1, 2), {"delta.columnMapping.mode": "id"},
         Protocol(2, 7, None, ("appendOnly", "columnMapping", "invariants"))),
        (Protocol(1, 2), {"delta.columnMapping.mode": "none"}, Protocol(1, 2)),
        (Protocol(1, 2), {"delta.enableDeletionVectors": "true"}, both("deletionVectors", "appendOnly invariants")),
        (Protocol(2, 5), {"delta.enableDeletionVectors": "true"},
         both("columnMapping deletionVectors",
              "appendOnly invariants checkConstraints changeDataFeed generatedColumns")),
        (lists("a"), {"delta.enableRowTracking": "true"}, lists("a", "domainMetadata", "rowTracking")),
        (lists(), {"delta.enableInCommitTimestamps": "true"}, lists("inCommitTimestamp")),
        (lists(), {"delta.enableTypeWidening": "true"}, both("typeWidening")),
        (both("typeWidening-preview"), {"delta.enableTypeWidening": "true"}, both("typeWidening-preview")),
        (lists(), {"delta.checkpointPolicy": "v2"}, both("v2Checkpoint")),
        (lists(), {"delta.checkpointPolicy": "classic"}, lists()),
        (lists(), {"delta.enableIcebergCompatV1": "true"}, Protocol(2, 7, None, ("columnMapping", "icebergCompatV1"))),
        (both("v2Checkpoint"), {"delta.enableIcebergCompatV2": "true"},
         both("columnMapping v2Checkpoint", "icebergCompatV2")),
        (lists(), {"delta.requireCheckpointProtectionBeforeVersion": "7"}, lists("checkpointProtection")),
        (lists(), {"delta.feature.clustering": "supported"}, lists("clustering", "domainMetadata")),
        (lists(), {"delta.feature.vacuumprotocolcheck": "Enabled"}, both("vacuumProtocolCheck")),
        (Protocol(1, 2), {"delta.minWriterVersion": "4"}, Protocol(1, 4)),
        (Protocol(1, 2), {"delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}, Protocol(2, 5)),
        (Protocol(1, 2), {"delta.minWriterVersion": "7"}, lists("appendOnly", "invariants")),
        (Protocol(1, 2), {"delta.minReaderVersion": "3", "delta.minWriterVersion": "7"},
         both("", "appendOnly invariants")),
        (Protocol(2, 6), {"delta.minReaderVersion": "1", "delta.minWriterVersion": "2"}, Protocol(2, 6)),
        (Protocol(3, 7, ("z", "a"), ("z", "a")), {}, Protocol(3, 7, ("z", "a"), ("z", "a"))),
    ],
)  # fmt: skip
def test_what_properties_need(old: Protocol, properties: dict[str, str], needed: Protocol) -> None:
    assert protocol_with(old, properties, LONG) == needed


@pytest.mark.parametrize(
    ("schema", "features"),
    [
        (LONG, ""),
        (StructType([StructField("x", "long", nullable=False)]), "invariants"),
        (StructType([StructField("s", StructType([StructField("x", "long", nullable=False)]))]), "invariants"),
        (StructType([StructField("l", ArrayType(StructType([StructField("x", "long", nullable=False)])))]), ""),
        (metadata(delta__invariants="{}"), "invariants"),
        (metadata(delta__generationExpression="1"), "generatedColumns"),
        (metadata(delta__identity__start=1, delta__identity__step=1), "identityColumns"),
        (metadata(CURRENT_DEFAULT="1"), "allowColumnDefaults"),
        (metadata(delta__typeChanges=[], comment="x"), "typeWidening"),
        (StructType([StructField("m", MapType("timestamp_ntz", "long"))]), "timestampNtz"),
        (StructType([StructField("l", ArrayType("timestamp_ntz"))]), "timestampNtz"),
    ],
)
def test_what_schemas_need(schema: StructType, features: str) -> None:
    needed = protocol_with(lists(), {}, schema)
    assert writer_features(needed) == set(features.split())
    assert reader_features(needed) == set(features.split()) & {"typeWidening", "timestampNtz"}


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"delta.feature.somethingNew": "supported"}, UnsupportedFeature),
        ({"delta.feature.catalogManaged": "supported"}, UnsupportedFeature),
        ({"delta.feature.clustering": "true"}, InvalidInput),
        ({"delta.minReaderVersion": "4"}, InvalidInput),
        ({"delta.minWriterVersion": "0"}, InvalidInput),
        ({"delta.minWriterVersion": "two"}, InvalidInput),
    ],
)
def test_what_cannot_be_asked_for(properties: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error, match="Nothing was written"):
        protocol_with(Protocol(1, 2), properties, LONG)


PROPERTIES = {
    "delta.appendOnly": "true",
    "delta.constraints.c": "x > 1",
    "delta.enableChangeDataFeed": "true",
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
    "delta.checkpointPolicy": "v2",
    "delta.feature.identityColumns": "supported",
    "delta.feature.generatedColumns": "supported",
}
protocols = st.one_of(
    st.builds(Protocol, st.integers(1, 2), st.integers(1, 6)),
    st.builds(lists, st.sampled_from(["appendOnly", "rowTracking"]), st.just("domainMetadata")),
    st.builds(both, st.sampled_from(["", "deletionVectors", "columnMapping timestampNtz"]), st.just("invariants")),
)
some = st.sets(st.sampled_from(sorted(PROPERTIES))).map(lambda keys: {key: PROPERTIES[key] for key in keys})


@given(protocols, some, some)
def test_nothing_is_lost_and_the_order_does_not_matter(
    old: Protocol, first: dict[str, str], second: dict[str, str]
) -> None:
    step = protocol_with(old, first, LONG)
    both_steps = protocol_with(step, second, LONG)
    assert protocol_with(step, first, LONG) is step
    for before, after in ((old, step), (step, both_steps)):
        assert reader_features(before) <= reader_features(after)
        assert writer_features(before) <= writer_features(after)
        assert before.min_reader_version <= after.min_reader_version
        assert before.min_writer_version <= after.min_writer_version
    at_once = protocol_with(old, {**first, **second}, LONG)
    assert writer_features(at_once) == writer_features(both_steps)
    assert reader_features(at_once) == reader_features(both_steps)
    require_read(both_steps, Metadata("i", LONG.json()))
