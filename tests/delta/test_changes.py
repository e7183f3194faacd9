"""Which files hold the changes of a range of versions, and which ranges are refused."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_versioned.delta.log.change_feed import ChangedFile, plan_changes
from dagster_versioned.delta.schema.column_mapping import ID, PHYSICAL_NAME
from dagster_versioned.errors import InvalidInput, LogCorrupt, VersionNotFound
from dagster_versioned.storage.local import LocalStore

PutLog = Callable[..., LocalStore]
FEED = {"delta.enableChangeDataFeed": "true"}
START = 1_700_000_000_000


def column(name: str, data_type: Any = "long", nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": nullable, "metadata": metadata}


def metadata(*columns: dict[str, Any], by: list[str] | None = None, **configuration: str) -> dict[str, Any]:
    schema = {"type": "struct", "fields": list(columns or (column("n"),))}
    return {
        "metaData": {
            "id": "1",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": by or [],
            "configuration": FEED | configuration,
        }
    }


PROTOCOL = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["columnMapping", "deletionVectors", "typeWidening"],
        "writerFeatures": ["changeDataFeed", "columnMapping", "deletionVectors", "inCommitTimestamp", "typeWidening"],
    }
}


def vector(name: str) -> dict[str, Any]:
    return {"storageType": "i", "pathOrInlineDv": name, "sizeInBytes": 34, "cardinality": 1}


def add(path: str, dv: str | None = None, *, change: bool = True) -> dict[str, Any]:
    members = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": change}
    return {"add": members | ({"deletionVector": vector(dv), "stats": '{"numRecords":9}'} if dv else {})}


def remove(path: str, dv: str | None = None, *, change: bool = True) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": change} | ({"deletionVector": vector(dv)} if dv else {})}


def cdc(path: str) -> dict[str, Any]:
    return {"cdc": {"path": path, "partitionValues": {}, "size": 1, "dataChange": False}}


def info(**members: Any) -> dict[str, Any]:
    return {"commitInfo": members}


@pytest.fixture
def log(put_log: PutLog) -> Callable[..., LocalStore]:
    def build(*commits: list[dict[str, Any]]) -> LocalStore:
        first = [PROTOCOL, metadata()] if not any("metaData" in action for action in commits[0]) else [PROTOCOL]
        return put_log(
            *("\n".join(map(json.dumps, actions)).encode() for actions in ([*first, *commits[0]], *commits[1:]))
        )

    return build


def told(file: ChangedFile) -> tuple[Any, ...]:
    names = [vector.path_or_inline_dv if vector else None for vector in (file.deletion_vector, file.only)]
    return file.version, file.change, file.key, *names


def plan(store: LocalStore, first: Any = 0, last: Any = None) -> list[tuple[Any, ...]]:
    return [told(file) for file in plan_changes(store, first, last).files]


def test_added_and_removed_files_are_the_changes_of_a_commit_without_change_files(log: Any) -> None:
    store = log([add("a")], [remove("a"), add("b")], [add("c")])
    assert plan(store) == [
        (0, "insert", "a", None, None),
        (1, "delete", "a", None, None),
        (1, "insert", "b", None, None),
        (2, "insert", "c", None, None),
    ]
    assert plan(store, 1, 1) == [(1, "delete", "a", None, None), (1, "insert", "b", None, None)]


def test_change_files_tell_all_of_their_commit(log: Any) -> None:
    store = log([add("a")], [remove("a"), add("b"), cdc("_change_data/c1"), cdc("_change_data/c2")])
    assert plan(store, 1) == [(1, None, "_change_data/c1", None, None), (1, None, "_change_data/c2", None, None)]


def test_what_changes_no_data_is_no_change(log: Any) -> None:
    store = log([add("a")], [remove("a", change=False), add("b", change=False)], [metadata(column("n"))])
    assert plan(store, 1) == []


NONE = dict.fromkeys(["numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"], "0")


@pytest.mark.parametrize(
    ("operation", "metrics", "count"),
    [("MERGE", NONE, 0), ("MERGE", NONE | {"numTargetRowsDeleted": "1"}, 2), ("MERGE", {}, 2), ("WRITE", NONE, 2)],
)
def test_a_merge_that_changed_no_row_is_no_change(log: Any, operation: str, metrics: Any, count: int) -> None:
    store = log([add("a")], [info(operation=operation, operationMetrics=metrics), remove("a"), add("b")])
    assert len(plan(store, 1)) == count


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, "x", [("delete", None, "x")]),
        ("x", "y", [("delete", "x", "y"), ("insert", "y", "x")]),
        ("x", None, [("insert", None, "x")]),
    ],
)
def test_of_a_file_with_another_deletion_vector_the_difference_changed(
    log: Any, before: str | None, after: str | None, expected: list[tuple[Any, ...]]
) -> None:
    store = log([add("a", before)], [remove("a", before), add("a", after)])
    assert plan(store, 1) == [(1, change, "a", gone, only) for change, gone, only in expected]


def test_files_with_vectors_are_added_and_removed_without_their_deleted_rows(log: Any) -> None:
    store = log([add("a", "x")], [remove("a", "x")])
    assert plan(store) == [(0, "insert", "a", "x", None), (1, "delete", "a", "x", None)]


# --- ranges


def test_ranges_that_are_none_are_refused(log: Any) -> None:
    store = log([add("a")], [add("b")], [add("c")])
    for first, last in [(2, 1), (-1, 1)]:
        with pytest.raises(InvalidInput, match="no versions"):
            plan(store, first, last)
    for first, last in [(0, 3), (3, None), (7, 9)]:
        with pytest.raises(VersionNotFound, match="newest is 2"):
            plan(store, first, last)


def test_a_range_of_time_begins_at_or_after_it_and_ends_at_or_before_it(log: Any) -> None:
    stamped = metadata(**{"delta.enableInCommitTimestamps": "true"})
    commits = [[info(inCommitTimestamp=START + 1000 * number), add(f"{number}")] for number in range(3)]
    store = log([commits[0][0], stamped, commits[0][1]], *commits[1:])

    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(START / 1000, UTC) + timedelta(seconds=seconds)

    def versions(first: Any, last: Any = None) -> list[int]:
        found = plan_changes(store, first, last)
        assert [file.timestamp_ms for file in found.files] == [START + 1000 * file.version for file in found.files]
        return [file.version for file in found.files]

    assert versions(at(-9)) == versions(at(0)) == [0, 1, 2]
    assert versions(at(0.5)) == versions(at(1)) == [1, 2]
    assert versions(0, at(1)) == versions(0, at(1.9)) == [0, 1]
    assert versions(0, at(10)) == [0, 1, 2]
    assert versions(at(1), at(1)) == [1]
    with pytest.raises(VersionNotFound):
        versions(at(2.5))
    with pytest.raises(InvalidInput):
        versions(at(0.2), at(0.8))
    with pytest.raises(VersionNotFound):
        versions(0, at(-1))
    with pytest.raises(InvalidInput, match="zone"):
        versions(at(0).replace(tzinfo=None))


def test_commits_that_were_cleaned_up_are_missed(log: Any) -> None:
    store = log([add("a")], [add("b")])
    (store.local_path("_delta_log/00000000000000000000.json")).unlink()
    with pytest.raises((VersionNotFound, LogCorrupt)):
        plan(store, 0)


def test_the_feed_must_have_been_on_at_every_version(log: Any) -> None:
    off = {"delta.enableChangeDataFeed": "false"}
    store = log([metadata(**off), add("a")], [metadata()], [add("b")], [metadata(**off)], [metadata()])
    assert [row[0] for row in plan(store, 1, 2)] == [2]
    assert plan(store, 4) == []
    for first, last in [(0, 1), (0, 0), (2, 3), (1, 4)]:
        with pytest.raises(InvalidInput, match="not recorded"):
            plan(store, first, last)


# --- schemas

STRUCT = {"type": "struct", "fields": [column("a", "integer")]}
WIDER = {"type": "struct", "fields": [column("a", "long"), column("b")]}
MAPPED = {"delta.columnMapping.mode": "name"}


def mapped(name: str, physical: str, number: int, data_type: Any = "long") -> dict[str, Any]:
    return column(name, data_type, **{PHYSICAL_NAME: physical, ID: number})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (metadata(column("n")), metadata(column("n"), column("m"))),
        (metadata(column("n", "integer")), metadata(column("n", "long"))),
        (metadata(column("n", nullable=False)), metadata(column("n"))),
        (metadata(column("o", STRUCT)), metadata(column("o", WIDER))),
        (metadata(column("n")), metadata(mapped("n", "n", 1), **MAPPED)),
        (metadata(mapped("n", "x", 1), **MAPPED), metadata(mapped("n", "x", 1), mapped("m", "y", 2), **MAPPED)),
    ],
)
def test_columns_may_come_and_widen(log: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
    store = log([old, add("a")], [new], [add("b")])
    found = plan_changes(store, 0)
    assert [file.key for file in found.files] == ["a", "b"]
    assert list(found.schema.names) == [
        field["name"] for field in json.loads(new["metaData"]["schemaString"])["fields"]
    ]
    assert plan_changes(store, 0, 0).schema != found.schema


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (metadata(column("n"), column("m")), metadata(column("n")), "'m'"),
        (metadata(column("n", "long")), metadata(column("n", "string")), "another type"),
        (metadata(column("n", "long")), metadata(column("n", "integer")), "another type"),
        (metadata(column("n")), metadata(column("n", nullable=False)), "could be null"),
        (metadata(column("o", WIDER)), metadata(column("o", STRUCT)), "'o.a'|'o.b'"),
        (metadata(mapped("n", "x", 1), **MAPPED), metadata(mapped("m", "x", 1), **MAPPED), "'n'"),
        (metadata(mapped("n", "x", 1), **MAPPED), metadata(mapped("n", "y", 2), **MAPPED), "'n'"),
        (metadata(column("n"), column("m")), metadata(column("n"), column("m"), by=["m"]), "partitioned"),
    ],
)
def test_what_the_last_schema_cannot_show_is_refused(
    log: Any, old: dict[str, Any], new: dict[str, Any], reason: str
) -> None:
    store = log([old], [new])
    with pytest.raises(InvalidInput, match=reason):
        plan_changes(store, 0)
    plan_changes(store, 0, 0)
    plan_changes(store, 1)


def test_columns_of_a_change_must_not_be_the_tables(log: Any) -> None:
    store = log([metadata(column("_Change_Type"))])
    with pytest.raises(InvalidInput, match="_change_type"):
        plan_changes(store, 0)
