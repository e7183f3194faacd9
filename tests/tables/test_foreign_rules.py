"""Rules for rows that another program gave to a versioned table: obeyed, or refused by name."""

from dataclasses import replace

import orjson
import pyarrow as pa
import pytest

from dagster_versioned.delta.actions import Protocol
from dagster_versioned.delta.commit.conflicts import NOTHING
from dagster_versioned.delta.commit.row_tracking import backfill, new_columns
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.features import merge_protocol
from dagster_versioned.delta_tables.arrow import read_changes
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable

IDENTITY = {"delta.identity.start": 1, "delta.identity.step": 1}


@pytest.mark.parametrize(
    ("feature", "properties", "of_column"),
    [
        ("invariants", {}, {"delta.invariants": '{"expression":{"expression":"delay > 0"}}'}),
        ("generatedColumns", {}, {"delta.generationExpression": "1"}),
        ("identityColumns", {}, IDENTITY),
        ("allowColumnDefaults", {}, {"CURRENT_DEFAULT": "1"}),
        ("rowTracking", {"delta.enableRowTracking": "true", **new_columns()}, {}),
        ("clustering", {}, {}),
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
    metadata = replace(
        snapshot.metadata,
        schema_string=orjson.dumps(schema).decode(),
        configuration={**snapshot.metadata.configuration, **properties},
    )
    readers = (feature,) if feature == "typeWidening" else None
    protocol = merge_protocol(snapshot.protocol, Protocol(3 if readers else 1, 7, readers, (feature,)))
    again = backfill(snapshot) if feature == "rowTracking" else []
    commit(table.store, snapshot, lambda read: Transaction(read, [protocol, metadata, *again], "SET", NOTHING))
    fresh = table.project.table("flights")
    with pytest.raises(UnsupportedFeature, match=feature):
        fresh.write(more)
    assert fresh.state.log_version == 1
    assert fresh.read().num_rows == 3


def test_a_change_feed_that_another_program_asked_for_is_written(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    snapshot = table.state.snapshot
    asked = {**snapshot.metadata.configuration, "delta.enableChangeDataFeed": "true"}
    protocol = merge_protocol(snapshot.protocol, Protocol(1, 7, None, ("changeDataFeed",)))
    metadata = replace(snapshot.metadata, configuration=asked)
    commit(table.store, snapshot, lambda read: Transaction(read, [protocol, metadata], "SET", NOTHING))
    fresh = table.project.table("flights")
    merge = TableOptions(mode="merge", merge_key=("carrier",))
    fresh.write(pa.table({"carrier": ["AA"], "delay": [9]}), options=merge)
    folder = table.project.data.local_path("flights")
    told = read_changes(str(folder), 2)
    kinds = dict(zip(told["_change_type"].to_pylist(), told["delay"].to_pylist(), strict=True))
    assert kinds == {"update_preimage": 1, "update_postimage": 9}


def test_a_constraint_of_another_program_is_obeyed(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    table.write(rows)
    snapshot = table.state.snapshot
    metadata = replace(
        snapshot.metadata, configuration={**snapshot.metadata.configuration, "delta.constraints.c": "delay > -3"}
    )
    protocol = merge_protocol(snapshot.protocol, Protocol(1, 7, None, ("checkConstraints",)))
    commit(table.store, snapshot, lambda read: Transaction(read, [protocol, metadata], "SET", NOTHING))
    fresh = table.project.table("flights")
    late = pa.table({"carrier": ["B6"], "delay": [-5]})
    with pytest.raises(InvalidInput, match=r"'c' \(delay > -3\) is false or null for 1 rows"):
        fresh.write(late)
    assert fresh.write(more).change == "full"
