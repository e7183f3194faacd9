"""Rules for rows that another program gave to a versioned table: obeyed, or refused by name."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.delta.commit.row_tracking import backfill, new_columns
from dagster_versioned.delta.features import implemented_features
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import create_delta, write_delta
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.configuration import WITHOUT_VERSIONS, refuse_features
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.commit import OBEYED
from support.one_table import altered

IDENTITY = {"delta.identity.start": 1, "delta.identity.step": 1}


@pytest.mark.parametrize(
    ("feature", "properties", "of_column"),
    [
        ("identityColumns", {}, IDENTITY),
        ("rowTracking", {"delta.enableRowTracking": "true", **new_columns()}, {}),
        ("typeWidening", {}, {}),
        ("checkpointProtection", {}, {}),
    ],
)
def test_rules_are_refused_by_name(
    table: VersionedTable,
    rows: pa.Table,
    more: pa.Table,
    feature: str,
    properties: dict[str, str],
    of_column: dict[str, object],
) -> None:
    table.write(rows)
    snapshot = table.state.snapshot
    schema = snapshot.schema.to_json()
    schema["fields"][1]["metadata"] = of_column
    readers = (feature,) if feature == "typeWidening" else None
    again = backfill(snapshot) if feature == "rowTracking" else []
    fresh = altered(table, feature, readers=readers, schema=schema, properties=properties, also=again)
    for change in (
        lambda: fresh.write(more),
        lambda: fresh.write(pa.table({"carrier": ["AA"]})),  # in which no column has the rule
    ):
        with pytest.raises(UnsupportedFeature, match=rf"uses {feature}, by another program, with which it takes no"):
            change()
    assert fresh.state.log_version == 1
    assert fresh.read().num_rows == 3


def test_a_change_feed_that_another_program_asked_for_is_written(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    fresh = altered(table, "changeDataFeed", properties={"delta.enableChangeDataFeed": "true"})
    merge = TableOptions(mode="merge", merge_key=("carrier",))
    fresh.write(pa.table({"carrier": ["AA"], "delay": [9]}), options=merge)
    folder = table.project.data.local_path("flights")
    told = read_changes(str(folder), 2)
    kinds = dict(zip(told["_change_type"].to_pylist(), told["delay"].to_pylist(), strict=True))
    assert kinds == {"update_preimage": 1, "update_postimage": 9}


def test_a_constraint_of_another_program_is_obeyed(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    table.write(rows)
    fresh = altered(table, "checkConstraints", properties={"delta.constraints.c": "delay > -3"})
    late = pa.table({"carrier": ["B6"], "delay": [-5]})
    with pytest.raises(InvalidInput, match=r"'c' \(delay > -3\) is false or null for 1 rows"):
        fresh.write(late)
    assert fresh.write(more).change == "full"


WHYS = {
    "columnMapping": ({"delta.columnMapping.mode": "name"}, "readers who open them alone"),
    "rowTracking": ({"delta.enableRowTracking": "true"}, "equal rows would be other versions"),
    "typeWidening": ({"delta.enableTypeWidening": "true"}, "widen without it"),
}


@pytest.mark.parametrize("feature", WHYS)
def test_what_no_versioned_table_has_is_refused_with_the_reason(project: Project, feature: str) -> None:
    properties, why = WHYS[feature]
    with pytest.raises(
        ValueError, match=rf"cannot be set on a versioned table \({feature}: .*{why}.*\); of Delta's can"
    ):
        TableOptions(properties=properties)
    place = project.data.local_path("theirs")
    schema = StructType([StructField("n", "long")])
    stamped = {"delta.enableInCommitTimestamps": "true"}
    create_delta(str(place), schema, properties={**properties, **stamped})
    write_delta(str(place), pa.table({"n": [1]}))
    theirs = project.table("theirs")
    with pytest.raises(UnsupportedFeature, match=rf"uses {feature}, by another.* {why}.*read or written\. Write it"):
        theirs.adopt()
    assert read_delta(str(place)).num_rows == 1
    for file in place.glob("*.parquet"):
        file.unlink()
    with pytest.raises(UnsupportedFeature, match=feature):  # for which no row need be read
        theirs.adopt()


def test_the_page_says_what_versioned_tables_have() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/delta.md").read_text("utf-8")
    (section,) = re.findall(r"^## Versioned tables\n(.*?)^## ", page, re.M | re.S)
    lines = re.findall(r"^\| (.*?) \| yes \| (yes|obeyed|no) \| (.*?) ?\|$", section, re.M)
    said = {name: (how, why) for names, how, why in lines for name in re.findall("`(.*?)`", names)}
    assert {name for name, (how, why) in said.items() if how == "no" and why} == WITHOUT_VERSIONS.keys()
    assert {name for name, (how, _) in said.items() if how != "no"} >= OBEYED
    assert said.keys() <= implemented_features()


@pytest.mark.parametrize("name", sorted(WITHOUT_VERSIONS))
def test_none_of_them_is_obeyed(name: str) -> None:
    assert name not in OBEYED
    with pytest.raises(UnsupportedFeature, match=re.escape(f"{name}: {WITHOUT_VERSIONS[name]}")):
        refuse_features({name})
