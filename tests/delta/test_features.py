import re
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with
from dagster_versioned.delta.features import (
    OWN_PROTOCOL,
    column_mapping,
    implemented_features,
    merge_protocol,
    protected_version,
    reader_features,
    require_read,
    require_write,
    row_rules,
    writer_features,
)
from dagster_versioned.delta.log.declared import feature_support
from dagster_versioned.delta.properties import interval_ms
from dagster_versioned.delta.schema.types import ArrayType, StructField, StructType, parse_schema
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import create_delta, delete_from, write_delta
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature, UnsupportedType
from dagster_versioned.projects.project import Project

LONG = StructType([StructField("x", "long")])
NTZ = StructType([StructField("x", ArrayType(StructType([StructField("t", "timestamp_ntz")])))])
OF_NTZ = protocol_with(OWN_PROTOCOL, {}, NTZ)


def metadata(**configuration: str) -> Metadata:
    return Metadata("i", LONG.json(), (), {f"delta.{key}": value for key, value in configuration.items()})


def mapped(mode: str) -> Metadata:
    return metadata(**{"columnMapping.mode": mode})


@pytest.mark.parametrize(
    ("protocol", "table"),
    [
        (Protocol(1, 1), metadata()),
        (Protocol(1, 6), metadata(enableChangeDataFeed="true")),
        (Protocol(1, 7, None, ("anything",)), metadata()),
        (Protocol(2, 5), metadata()),
        (Protocol(2, 5), mapped("none")),
        (Protocol(1, 2), mapped("name")),  # the property counts only where the protocol supports it
        (Protocol(3, 7, ("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"), ("new",)), metadata()),
        (Protocol(3, 7, ("deletionVectors", "columnMapping"), ()), metadata()),
        (Protocol(3, 7, ("typeWidening", "typeWidening-preview"), ()), metadata()),
    ],
)
def test_readable(protocol: Protocol, table: Metadata) -> None:
    require_read(protocol, table)


@pytest.mark.parametrize(
    ("protocol", "table", "name"),
    [
        (Protocol(4, 7, ("x",), ("x",)), metadata(), "reader version 4"),
        (Protocol(0, 1), metadata(), "reader version 0"),
        (Protocol(2, 5), mapped("other"), "columnMapping: the mode 'other'"),
        (Protocol(1, 1), replace(metadata(), format_provider="orc"), "format 'orc'"),
        (Protocol(3, 7, ("somethingNew",), ("somethingNew",)), metadata(), "somethingNew"),
        (Protocol(3, 7, ("somethingNew", "catalogManaged"), ()), metadata(), "catalogManaged, somethingNew"),
    ],
)
def test_refused_by_name_when_read(protocol: Protocol, table: Metadata, name: str) -> None:
    with pytest.raises(UnsupportedFeature, match=name):
        require_read(protocol, table)
    with pytest.raises(UnsupportedFeature, match=name):
        require_write(protocol, table)


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(2, 5),
        Protocol(2, 7, None, ()),
        Protocol(3, 7, ("columnMapping",), ("columnMapping",)),
        Protocol(3, 7, (), ("columnMapping",)),
    ],
)
@pytest.mark.parametrize("mode", ["name", "id", "NAME"])
def test_mapped_columns_are_no_plain_table(protocol: Protocol, mode: str) -> None:
    require_read(protocol, mapped(mode))
    require_write(protocol, mapped(mode))
    assert column_mapping(protocol, mapped(mode)) == mode.lower()
    assert "columnMapping" in row_rules(protocol, mapped(mode))


def test_a_mapping_that_the_protocol_does_not_have_does_not_count() -> None:
    assert column_mapping(Protocol(1, 2), mapped("name")) == "none"
    assert not row_rules(Protocol(1, 2), mapped("name"))


def test_widened_types_are_no_plain_table() -> None:
    protocol = Protocol(3, 7, ("typeWidening",), ("typeWidening",))
    require_write(protocol, metadata())
    assert row_rules(protocol, metadata()) == {"typeWidening"}


def field(**keys: object) -> StructType:
    inner = StructType([StructField("y", "long", True, {key.replace("__", "."): value for key, value in keys.items()})])
    return StructType([StructField("x", ArrayType(inner))])


ALL = Protocol(
    3,
    7,
    ("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    (
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    ),
)


def test_features_that_are_listed_but_not_used_ask_nothing() -> None:
    assert not row_rules(ALL, metadata())
    for version in range(1, 7):
        assert not row_rules(Protocol(1, version), metadata())


@pytest.mark.parametrize(
    ("table", "schema", "name"),
    [
        (metadata(enableChangeDataFeed="true"), LONG, "changeDataFeed"),
        (metadata(enableIcebergCompatV1="true"), LONG, "icebergCompatV1"),
        (metadata(enableIcebergCompatV2="true"), LONG, "icebergCompatV2"),
        (metadata(**{"constraints.c": "x > 1"}), LONG, "checkConstraints"),
        (metadata(), field(delta__invariants="{}"), "invariants"),
        (metadata(), field(delta__generationExpression="1"), "generatedColumns"),
        (metadata(), field(delta__identity__start=1), "identityColumns"),
        (metadata(), field(CURRENT_DEFAULT="1"), "allowColumnDefaults"),
    ],
)
@pytest.mark.parametrize("legacy", [False, True], ids=["listed", "by version"])
def test_rules_for_rows_are_named_to_who_does_not_apply_them(
    table: Metadata, schema: StructType, name: str, legacy: bool
) -> None:
    protocol = Protocol(1, 6) if legacy else ALL
    table = replace(table, schema_string=schema.json())
    require_write(protocol, table)
    assert row_rules(protocol, table) == {name} & writer_features(protocol)


@pytest.mark.parametrize("name", ["rowTracking", "clustering", "checkpointProtection"])
def test_features_that_bind_by_being_listed(name: str) -> None:
    protocol = Protocol(1, 7, None, (name,))
    require_write(protocol, metadata())
    assert row_rules(protocol, metadata()) == {name}


def test_an_unknown_writer_feature_is_refused_by_name() -> None:
    protocol = Protocol(1, 7, None, ("somethingNew", "domainMetadata"))
    require_read(protocol, metadata())
    for check in (require_write, row_rules):
        with pytest.raises(UnsupportedFeature, match="uses somethingNew, which"):
            check(protocol, metadata())


def test_a_newer_writer_version_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="writer version 8"):
        require_write(Protocol(1, 8), metadata())


def test_versions_that_are_protected() -> None:
    listed = Protocol(1, 7, None, ("checkpointProtection",))
    protecting = metadata(requireCheckpointProtectionBeforeVersion="12")
    assert protected_version(listed, protecting) == 12
    assert protected_version(listed, metadata()) == 0
    assert protected_version(Protocol(1, 2), protecting) == 0
    with pytest.raises(LogCorrupt, match="'-1', which is no version"):
        protected_version(listed, metadata(requireCheckpointProtectionBeforeVersion="-1"))


def test_our_own_protocols_ask_readers_for_nothing_but_timestamps_without_zone() -> None:
    assert protocol_with(OWN_PROTOCOL, {}, LONG) is OWN_PROTOCOL
    assert Protocol(3, 7, ("timestampNtz",), ("domainMetadata", "inCommitTimestamp", "timestampNtz")) == OF_NTZ
    for protocol in (OWN_PROTOCOL, OF_NTZ):
        assert not row_rules(protocol, metadata())


@pytest.mark.parametrize(
    ("old", "needed", "merged"),
    [
        (OWN_PROTOCOL, OWN_PROTOCOL, OWN_PROTOCOL),
        (OF_NTZ, OWN_PROTOCOL, OF_NTZ),
        (OWN_PROTOCOL, OF_NTZ, OF_NTZ),
        (Protocol(1, 2), Protocol(1, 1), Protocol(1, 2)),
        (
            Protocol(1, 2),
            OWN_PROTOCOL,
            Protocol(1, 7, None, ("appendOnly", "domainMetadata", "inCommitTimestamp", "invariants")),
        ),
        (
            Protocol(2, 5),
            OF_NTZ,
            Protocol(
                3,
                7,
                ("columnMapping", "timestampNtz"),
                (
                    "appendOnly",
                    "changeDataFeed",
                    "checkConstraints",
                    "columnMapping",
                    "domainMetadata",
                    "generatedColumns",
                    "inCommitTimestamp",
                    "invariants",
                    "timestampNtz",
                ),
            ),
        ),
        (Protocol(3, 7, ("b", "a"), ("b", "a")), Protocol(1, 7, None, ("a",)), Protocol(3, 7, ("b", "a"), ("b", "a"))),
    ],
)
def test_merged_protocols_lose_nothing(old: Protocol, needed: Protocol, merged: Protocol) -> None:
    assert merge_protocol(old, needed) == merged
    for one in (old, needed):
        assert reader_features(one) <= reader_features(merged)
        assert writer_features(one) <= writer_features(merged)
    assert merge_protocol(merged, needed) is merged


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("interval 30 days", 30 * 86_400_000),
        ("Interval 1 week 2 days 3 hours", 9 * 86_400_000 + 3 * 3_600_000),
        ("1 second", 1000),
        ("interval 1500 microseconds", 1),
        ("interval 1 month", None),
        ("30", None),
        ("interval", None),
        ("interval -1 day", None),
        ("", None),
    ],
)
def test_intervals(text: str, milliseconds: int | None) -> None:
    assert interval_ms(metadata(k=text), "delta.k") == milliseconds
    assert interval_ms(metadata(), "delta.k") is None


# --- every name there is ---------------------------------------------------------------------------------------------

NAMES = """
appendOnly invariants checkConstraints generatedColumns allowColumnDefaults changeDataFeed columnMapping
identityColumns deletionVectors rowTracking timestampNtz domainMetadata v2Checkpoint catalogManaged icebergCompatV1
icebergCompatV2 clustering vacuumProtocolCheck inCommitTimestamp typeWidening variantType variantShredding
checkpointProtection collations columnMappingUsageTracking icebergCompatV3 adaptiveMetadata icebergWriterCompatV1
materializePartitionColumns timestampNanos
adaptiveMetadata-preview catalogOwned-preview collations-preview coordinatedCommits-preview geospatial geospatial-dev
icebergWriterCompatV3 redirectReaderWriter-preview redirectWriterOnly-preview typeWidening-preview variantType-preview
variantShredding-preview geospatial-preview
dagsterVersionedErasures
"""
"""Ours, the names in PROTOCOL.md and protocol_rfcs/, and those that the reference and its kernel add (delta-io/delta,
bb1057f, 2026-08-22)."""

OF_READERS = """
adaptiveMetadata catalogManaged catalogOwned columnMapping deletionVectors geospatial redirectReaderWriter
timestampNanos timestampNtz typeWidening v2Checkpoint vacuumProtocolCheck variantShredding variantType
"""
"""Those of them that readers have to know, without the ends of drafts."""


def documented() -> dict[str, tuple[bool, bool]]:
    """By feature, whether the reference page says that it is read, and that it is written."""
    page = (Path(__file__).parents[2] / "docs/reference/delta.md").read_text("utf-8")
    (section,) = re.findall(r"^## Features\n(.*?)^## ", page, re.M | re.S)
    rows = re.findall(r"^\| (`.*?) \| (yes|no) \| (yes|no) \|", section, re.M)
    return {
        name: (read == "yes", write == "yes") for names, read, write in rows for name in re.findall("`(.*?)`", names)
    }


def listed(name: str) -> Protocol:
    readers = re.sub("-preview|-dev", "", name) in OF_READERS.split()
    return Protocol(3, 7, (name,), (name,)) if readers else Protocol(1, 7, None, (name,))


def test_the_reference_page_lists_every_feature() -> None:
    assert documented().keys() == set(NAMES.split())
    assert implemented_features() <= documented().keys()


@pytest.mark.parametrize("name", NAMES.split())
def test_what_the_reference_page_says_of_a_feature_is_so(name: str) -> None:
    protocol, (read, written) = listed(name), documented()[name]
    (support,) = feature_support(protocol)
    assert (support.name, support.can_read, support.can_write) == (name, read, written)
    for check, allowed, operation in ((require_read, read, "read"), (require_write, written, "(read|written)")):
        if allowed:
            check(protocol, metadata())
        else:
            with pytest.raises(UnsupportedFeature, match=rf"uses {name}, which .*Nothing was {operation}\. [A-Z]"):
                check(protocol, metadata())


READ_TYPES = """
string long integer short byte float double decimal(10,2) boolean binary date timestamp timestamp_ntz void variant
"""
OTHER_TYPES = [
    "interval year to month",
    "interval day to second",
    "interval hour to second",
    "geometry(OGC:CRS84)",
    "geography(OGC:CRS84, spherical)",
]
"""The types of PROTOCOL.md, and those of its drafts and of the reference that have a name, at the same commit. Of
intervals no feature tells readers."""


@pytest.mark.parametrize("name", [*READ_TYPES.split(), *OTHER_TYPES])
@pytest.mark.parametrize("nested", [False, True])
def test_a_type_is_read_or_refused_by_name(name: str, nested: bool) -> None:
    kind = {"type": "array", "elementType": name, "containsNull": True} if nested else name
    text = orjson.dumps(
        {"type": "struct", "fields": [{"name": "x", "type": kind, "nullable": True, "metadata": {}}]}
    ).decode()
    if name in READ_TYPES.split():
        assert parse_schema(text).names == ("x",)
        return
    with pytest.raises(UnsupportedType, match=rf"'x.*' has the type '{re.escape(name)}'.*Nothing was read.*cast to"):
        parse_schema(text)


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_a_table_of_a_catalog_is_neither_read_nor_written(tmp_path: Path, feature: str) -> None:
    """Its newest commits may be in the catalog alone, or in a folder that is no log entry's."""
    place = tmp_path / "lake" / "datom" / "theirs"
    create_delta(str(place), LONG, properties={"delta.enableInCommitTimestamps": "true"})
    entry = place / "_delta_log" / f"{0:020d}.json"
    lines = [orjson.loads(line) for line in entry.read_bytes().splitlines()]
    of_catalog = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": [feature], "writerFeatures": [feature, "inCommitTimestamp"]}
    lines = [{"protocol": of_catalog | features} if "protocol" in line else line for line in lines]
    entry.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n")
    for checksum in (place / "_delta_log").glob("*.crc"):
        checksum.unlink()
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    rows, table = pa.table({"x": [1]}), Project.open("P", str(tmp_path / "lake")).table("theirs")
    for use in (
        lambda: read_delta(str(place)),
        lambda: read_changes(str(place), 0),
        lambda: write_delta(str(place), rows),
        lambda: delete_from(str(place), "x = 1"),
        lambda: Table(str(place)).set_properties({"a": "b"}),
        lambda: Table(str(place)).checkpoint(),
        lambda: Table(str(place)).vacuum(dry_run=False),
        table.read,
        lambda: table.write(rows),
        table.adopt,
        lambda: table.vacuum(dry_run=False),
    ):
        with pytest.raises(UnsupportedFeature, match=rf"uses {feature}, which .* connected to the catalog"):
            use()
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_what_to_do_is_named_once_for_several() -> None:
    with pytest.raises(UnsupportedFeature, match=r"copy its rows to another table\.$") as refused:
        require_read(Protocol(3, 7, ("catalogManaged", "catalogOwned-preview"), ()), metadata())
    assert str(refused.value).count("connected to the catalog") == 1
    with pytest.raises(UnsupportedFeature, match="Use a newer release, or a program that implements it"):
        require_read(Protocol(3, 7, ("somethingNew",), ()), metadata())
