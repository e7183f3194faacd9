"""Bad input in the log: never a wrong snapshot, and an error that names file, version and reason.

Where each kind of it is tested:

| kind | test |
|---|---|
| gaps | here; `test_log.py`: while a tail is followed and a segment is made; `faults/test_damaged_files.py`: of ours |
| duplicate versions | here, `test_one_version_is_one_commit`, `test_two_checkpoints_of_one_version` |
| truncated and concatenated JSON lines | here; `fuzz/`: at every byte |
| not UTF-8 | here; in checkpoints, too |
| a line of 1 GB | here, `test_a_line_of_a_gigabyte` |
| deeply nested JSON | here, in commits, schemas, statistics and ``_last_checkpoint`` |
| wrong types in known fields | here; `test_actions.py`: every member of every action |
| no protocol, no metadata, two of one | here; in checkpoints, `test_checkpoint.py` |
| a checkpoint without parts, a corrupt footer | here; what a checkpoint holds, `test_checkpoint.py` |
| a ``_last_checkpoint`` that lies | here; `test_log.py`: its checksum and its JSON |
| paths that leave the folder | here; every spelling, `test_paths.py`; of vectors, `test_deletion_vectors.py` |
| vectors: magic, CRC, cardinality, rows | `test_deletion_vectors.py`; both engines: `engines/test_hostile_files.py` |
| statistics that lie | `engines/test_hostile_files.py` |
| negative sizes | here; in checkpoints, too |
| protocol versions of the future | here; by feature name, `test_features.py` |
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.log.commits import commit_key, json_checksum, last_checkpoint_version
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.table import Table
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature, VersionedError
from dagster_versioned.storage import LocalStore
from support.hostile_table import METADATA, PROTOCOL, SCHEMA, VERSIONS, HostileTable, add, build, told

Damage = Callable[[HostileTable], object]

DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> HostileTable:
    return build(tmp_path_factory.mktemp("hostile") / "healthy")


@pytest.fixture
def table(healthy: HostileTable, tmp_path: Path) -> HostileTable:
    return healthy.copy(tmp_path / "table")


def state(table: HostileTable, version: int | None = None) -> dict[str, object]:
    """What matters of a snapshot, to be compared."""
    snapshot = load_snapshot(LocalStore(table.root), version)
    return {
        "version": snapshot.version,
        "protocol": snapshot.protocol,
        "metadata": snapshot.metadata,
        "schema": snapshot.schema,
        "txns": dict(snapshot.txns),
        "files": sorted(map(repr, snapshot.adds())),
    }


def states(table: HostileTable) -> list[dict[str, object]]:
    return [state(table, version) for version in range(VERSIONS)]


def schema(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(table: HostileTable) -> None:
        members = json.loads(json.dumps(SCHEMA))
        change(members)
        table.metadata(schemaString=json.dumps(members))

    return damage


def deep_schema(depth: int, kind: str, inner: str) -> str:
    """As text, because `json` cannot write what is so deep."""
    deep = f'{{"type":"{kind}","{inner}":' * depth + '"long"' + "}" * depth
    return json.dumps(SCHEMA).replace('"long"', deep)


def cut(version: int, keep: int) -> Damage:
    return lambda table: table.put_bytes(version, table.commit(version).read_bytes()[:keep])


def joined(table: HostileTable) -> None:
    table.put_bytes(2, table.commit(2).read_bytes().replace(b"\n", b""))


def last(version: int, line: bytes) -> Damage:
    return lambda table: table.put_bytes(version, table.commit(version).read_bytes() + line)


def moved(path: str) -> Damage:
    return lambda table: table.set(1, "add", path=path)


def no(name: str) -> Damage:
    return lambda table: table.put(0, *(line for line in table.lines(0) if name not in line))


def widened(*changes: object) -> Damage:
    """The table says that the type of a column was changed so."""
    metadata = {"delta.typeChanges": list(changes)}

    def damage(table: HostileTable) -> None:
        features = ["typeWidening"]
        table.set(
            0, "protocol", minReaderVersion=3, minWriterVersion=7, readerFeatures=features, writerFeatures=features
        )
        schema(lambda members: members["fields"][0].update(metadata=metadata))(table)

    return damage


def added(**members: object) -> Damage:
    return lambda table: table.set(1, "add", **members)


def described(**members: object) -> Damage:
    return lambda table: table.metadata(**members)


def versions(**members: object) -> Damage:
    return lambda table: table.set(0, "protocol", **members)


def needing(reader: int, writer: int, *features: str) -> Damage:
    return lambda table: table.protocol(reader, writer, *features)


def first_field(**members: object) -> Damage:
    return schema(lambda schema: schema["fields"][0].update(members))


FIRST, SECOND, THIRD = (commit_key(version) for version in range(3))

CASES: dict[str, tuple[Damage, type[VersionedError], str, str]] = {
    # name: damage, error, the file that is named, the reason
    "type that was narrowed": (
        widened({"fromType": "integer", "toType": "long"}, {"fromType": "long", "toType": "integer"}),
        UnsupportedFeature,
        "version 4",
        "typeWidening: the type of column 'id' was changed from 'long' to 'integer'",
    ),
    "change to a type that is none": (
        widened({"fromType": "byte", "toType": "longer"}),
        UnsupportedFeature,
        "version 4",
        "'byte' to 'longer'",
    ),
    "decimal with too few digits": (
        widened({"fromType": "byte", "toType": "decimal(4,1)"}),
        UnsupportedFeature,
        "version 4",
        "'byte' to 'decimal",
    ),
    "change of type that is a text": (widened("wider"), UnsupportedFeature, "version 4", "None to 'wider'"),
    "gap": (lambda table: table.commit(2).unlink(), LogCorrupt, THIRD, "missing"),
    "version far beyond": (
        lambda table: table.commit(10**20 - 1).write_bytes(b"{}"),
        LogCorrupt,
        commit_key(5),
        "missing",
    ),
    "gap at the start": (lambda table: table.commit(0).unlink(), LogCorrupt, FIRST, "missing"),
    "truncated line": (cut(1, 100), LogCorrupt, f"{SECOND}, line 2", "not JSON"),
    "truncated to half a word": (last(1, b"nul"), LogCorrupt, f"{SECOND}, line 3", "not JSON"),
    "concatenated lines": (joined, LogCorrupt, f"{THIRD}, line 1", "not JSON"),
    "half an action behind one": (last(1, b'{"txn":{"appId":"a","version":1}}"rem'), LogCorrupt, SECOND, "not JSON"),
    "two actions on a line": (
        last(1, b'{"txn":{"appId":"a","version":1}}{"remove":{}}'),
        LogCorrupt,
        f"{SECOND}, line 3",
        "not JSON",
    ),
    "not UTF-8": (last(1, b'{"txn":{"appId":"\xff","version":1}}'), LogCorrupt, f"{SECOND}, line 3", "not JSON"),
    "UTF-16": (
        lambda table: table.put_bytes(1, table.commit(1).read_text().encode("utf-16")),
        LogCorrupt,
        f"{SECOND}, line 1",
        "not JSON",
    ),
    "half a surrogate pair": (
        last(1, b'{"txn":{"appId":"\\ud800","version":1}}'),
        LogCorrupt,
        f"{SECOND}, line 3",
        "not JSON",
    ),
    "NUL bytes": (lambda table: table.put_bytes(1, bytes(4096)), LogCorrupt, f"{SECOND}, line 1", "not JSON"),
    "NaN": (last(1, b'{"txn":{"appId":"a","version":NaN}}'), LogCorrupt, f"{SECOND}, line 3", "not JSON"),
    "deep array": (last(1, DEEP.encode()), LogCorrupt, f"{SECOND}, line 3", "not JSON"),
    "deep object": (last(1, b'{"unknown":' * 100_000), LogCorrupt, f"{SECOND}, line 3", "not JSON"),
    "line that is a list": (last(1, b"[]"), LogCorrupt, f"{SECOND}, line 3", "not a JSON object"),
    "action that is a text": (last(1, b'{"add":"p=2/b.parquet"}'), LogCorrupt, f"{SECOND}, line 3", "not an object"),
    "size that is a text": (added(size="1"), LogCorrupt, f"{SECOND}, line 2", "size is '1' where a 64-bit integer"),
    "size that is a fraction": (added(size=1.5), LogCorrupt, SECOND, "size is 1.5"),
    "size that is true": (added(size=True), LogCorrupt, SECOND, "size is True"),
    "size of 64 bits and more": (added(size=2**63), LogCorrupt, SECOND, "size is 9223372036854775808"),
    "negative size": (added(size=-1), LogCorrupt, SECOND, "not negative"),
    "negative size of a vector": (
        added(deletionVector={"storageType": "i", "pathOrInlineDv": "", "sizeInBytes": -1, "cardinality": 0}),
        LogCorrupt,
        SECOND,
        "sizeInBytes is -1",
    ),
    "negative cardinality": (
        added(deletionVector={"storageType": "i", "pathOrInlineDv": "", "sizeInBytes": 1, "cardinality": -1}),
        LogCorrupt,
        SECOND,
        "cardinality is -1",
    ),
    "partition value that is a number": (added(partitionValues={"p": 2}), LogCorrupt, SECOND, "partitionValues"),
    "configuration that is a list": (described(configuration=[]), LogCorrupt, FIRST, "configuration is []"),
    "partition columns that are a text": (
        described(partitionColumns="p"),
        LogCorrupt,
        FIRST,
        "partitionColumns is 'p'",
    ),
    "features that are a text": (
        versions(minReaderVersion=3, minWriterVersion=7, readerFeatures="v2Checkpoint"),
        LogCorrupt,
        FIRST,
        "readerFeatures is 'v2Checkpoint'",
    ),
    "reader version 3 without features": (versions(minReaderVersion=3), LogCorrupt, FIRST, "readerFeatures is missing"),
    "reader version 3 with an older writer version": (
        versions(minReaderVersion=3, minWriterVersion=2, readerFeatures=[]),
        LogCorrupt,
        FIRST,
        "minWriterVersion is 2 although minReaderVersion is 3",
    ),
    "feature of readers alone": (
        versions(minReaderVersion=3, minWriterVersion=7, readerFeatures=["v2Checkpoint"], writerFeatures=[]
        ),
        LogCorrupt,
        FIRST,
        "readerFeatures has 'v2Checkpoint', which writerFeatures has not",
    ),
    "no protocol": (no("protocol"), LogCorrupt, "version 4", "no protocol"),
    "no metadata": (no("metaData"), LogCorrupt, "version 4", "no metaData"),
    "two metadata": (last(0, json.dumps(METADATA).encode()), LogCorrupt, FIRST, "metaData occurs twice"),
    "two protocols": (last(0, json.dumps(PROTOCOL).encode()), LogCorrupt, FIRST, "protocol occurs twice"),
    "one file added twice": (
        lambda table: table.put(1, *table.lines(1), *table.lines(1)[1:]),
        LogCorrupt,
        SECOND,
        "occurs twice",
    ),
    "one file in two spellings": (
        lambda table: table.put(1, *table.lines(1), add(table.root, "p%3D2/./b.parquet")),
        LogCorrupt,
        SECOND,
        "occurs twice",
    ),
    "one file added and removed": (
        lambda table: table.put(1, *table.lines(1), {"remove": {"path": "p=2/b.parquet", "dataChange": True}}),
        LogCorrupt,
        SECOND,
        "both added and removed",
    ),
    "path out of the root": (moved("../b.parquet"), LogCorrupt, "'../b.parquet'", "leaves the table's folder"),
    "encoded path out of the root": (moved("x/%2E%2e/%2e./b.parquet"), LogCorrupt, "%2E%2e", "leaves the table's"),
    "path to the log's parent": (moved("p=2/../../b.parquet"), LogCorrupt, "../../", "leaves the table's folder"),
    "empty path": (moved(""), LogCorrupt, "''", "names no file"),
    "path with a NUL": (moved("a%00b"), LogCorrupt, "a%00b", "leaves the table's folder"),
    "path with a backslash": (moved("..\\b.parquet"), LogCorrupt, "b.parquet", "leaves the table's folder"),
    "absolute path": (moved("/etc/passwd"), UnsupportedFeature, "/etc/passwd", "outside its own folder"),
    "path of a host": (moved("//host/share/b.parquet"), UnsupportedFeature, "//host", "outside its own folder"),
    "path of another scheme": (moved("s3://bucket/b.parquet"), UnsupportedFeature, "s3://", "outside its own folder"),
    "path on the web": (moved("https://host/b.parquet"), UnsupportedFeature, "https:", "outside its own folder"),
    "path of a file URI": (moved("file:///etc/passwd"), UnsupportedFeature, "file:///etc", "outside its own folder"),
    "path with a bad escape": (moved("b%zz.parquet"), LogCorrupt, SECOND, "not a URI"),
    "path with escapes that are no UTF-8": (moved("b%ff.parquet"), LogCorrupt, SECOND, "not a URI"),
    "schema that is no JSON": (described(schemaString="{"), LogCorrupt, "version 4", "not JSON"),
    "schema that is a number": (described(schemaString="1"), LogCorrupt, "version 4", "type"),
    "schema that is no text": (described(schemaString=SCHEMA), LogCorrupt, FIRST, "schemaString is"),
    "schema of deep JSON": (described(schemaString=DEEP), LogCorrupt, "version 4", "not JSON"),
    **{
        f"schema {depth} {kind} deep": (
            described(
                schemaString=deep_schema(depth, kind, link)
            ),
            LogCorrupt,
            "version 4",
            "nests deeper|not JSON",
        )
        for kind, link in [("array", "elementType"), ("udt", "sqlType")]
        for depth in (150, 900, 5_000)
    },
    "schema with one name twice": (
        schema(lambda members: members["fields"].append(members["fields"][0])),
        LogCorrupt,
        "version 4",
        "twice",
    ),
    "schema without columns": (schema(lambda members: members["fields"].clear()), LogCorrupt, "version 4", "columns"),
    "name that is no text": (first_field(name=7), LogCorrupt, "version 4", "no name"),
    "name that is half a surrogate pair": (first_field(name="\ud800"), LogCorrupt, "version 4", "not UTF-8"),
    "unknown type": (first_field(type="complex"), VersionedError, "version 4", "'complex'"),
    "partition column that is a struct": (
        schema(lambda members: members["fields"][2].update(type={"type": "struct", "fields": []})),
        LogCorrupt,
        "version 4",
        "'p'",
    ),
    "partition column that is not there": (described(partitionColumns=["q"]), LogCorrupt, "version 4", "'q'"),
    "partition column twice": (described(partitionColumns=["p", "p"]), LogCorrupt, "version 4", "'p'"),
    "reader version of the future": (needing(4, 8), UnsupportedFeature, "version 4", "reader version 4"),
    "reader version far in the future": (
        needing(2**31 - 1, 7),
        UnsupportedFeature,
        "version 4",
        "reader version 2147483647",
    ),
    "reader version of no time": (needing(0, 0), UnsupportedFeature, "version 4", "reader version 0"),
    "reader feature of the future": (needing(3, 7, "telepathy"), UnsupportedFeature, "version 4", "telepathy"),
    "in-commit time of no calendar": (
        lambda table: table.set(1, "commitInfo", inCommitTimestamp=2**62),
        LogCorrupt,
        SECOND,
        "inCommitTimestamp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_log_that_is_wrong_is_refused_by_file_version_and_reason(table: HostileTable, name: str) -> None:
    damage, error, file, reason = CASES[name]
    damage(table)
    with pytest.raises(error) as caught:
        load_snapshot(LocalStore(table.root))
    message = told(caught.value)
    assert re.search(reason.replace("[]", r"\[\]"), message), message
    assert file in message, message
    assert re.search(r"\d{20}\.json|version \d", message), message
    assert len(message) < 1_000


def test_versions_before_the_damage_are_what_they_were(table: HostileTable, healthy: HostileTable) -> None:
    expected = states(healthy)
    cut(3, 40)(table)
    assert [state(table, version) for version in range(3)] == expected[:3]
    for version in (3, 4, None):
        with pytest.raises(LogCorrupt, match=r"0{19}3\.json"):
            load_snapshot(LocalStore(table.root), version)


@pytest.mark.parametrize("stray", [b"x", b" ,;", b"\x0c 7"])
def test_stray_text_behind_an_action_is_passed_over(table: HostileTable, healthy: HostileTable, stray: bytes) -> None:
    expected = states(healthy)
    for version in range(VERSIONS):
        table.put_bytes(version, table.commit(version).read_bytes().replace(b"\n", stray + b"\n"))
    assert states(table) == expected


# --- one version, one commit


@pytest.mark.parametrize(
    "name",
    [
        "{:019d}.json",
        "{:021d}.json",
        "{}.json",
        "{:020d}.json.tmp",
        ".{:020d}.json.crc",
        "{:020d}.JSON",
        "{:020d}.2fb9b1a0-3c1c-4dfc-9b7f-2e9e30b1b1b1.json",
        "_staged_commits/{:020d}.2fb9b1a0-3c1c-4dfc-9b7f-2e9e30b1b1b1.json",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٢.json",
        "{:020d} (1).json",
    ],
)
@pytest.mark.parametrize("version", [2, 5])
def test_one_version_is_one_commit(table: HostileTable, healthy: HostileTable, name: str, version: int) -> None:
    """What only looks like a commit is none, so no version can be there twice, and none can be made up."""
    expected = states(healthy)
    path = table.root / "_delta_log" / name.format(version)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"remove": {"path": "p=2/b.parquet", "dataChange": True}}))
    assert states(table) == expected
    assert state(table) == expected[-1]


class Stuttering(LocalStore):
    """Lists everything twice."""

    def list(self, prefix="", *, start_after=""):
        for info in super().list(prefix, start_after=start_after):
            yield from (info, info)


def test_a_listing_that_repeats_itself_repeats_no_commit(table: HostileTable) -> None:
    table.checkpoint_from_us(2)
    assert load_snapshot(Stuttering(table.root)).adds() == load_snapshot(LocalStore(table.root)).adds()


def test_two_checkpoints_of_one_version(table: HostileTable, healthy: HostileTable) -> None:
    """The whole one counts where the other has lost its parts."""
    expected = states(healthy)
    written = table.checkpoint_from_us(2)
    log = table.root / "_delta_log"
    (log / f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet").write_bytes(written.read_bytes())
    assert states(table) == expected
    for version in range(3):
        table.commit(version).unlink()
    assert [state(table, version) for version in (2, 3, 4)] == expected[2:]


# --- checkpoints


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def with_bad_footer(data: bytes) -> bytes:
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data[:start] + bytes(64) + data[start + 64 :]


def with_bad_text(path: Path) -> None:
    """A path that is no UTF-8, in a Parquet file that is whole otherwise."""
    sink = path.read_bytes()
    plain = pq.read_table(path)
    pq.write_table(plain, path, compression="none", use_dictionary=False, write_statistics=False)
    data = path.read_bytes()
    assert b"p=2/b.parquet" in data
    path.write_bytes(data.replace(b"p=2/b.parquet", b"p=2/\xff.parquet"))
    assert path.read_bytes() != sink


CHECKPOINTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty file": (lambda path: path.write_bytes(b""), "cannot be read"),
    "no Parquet": (lambda path: path.write_bytes(b"PAR1 nothing PAR1"), "cannot be read"),
    "corrupt footer": (
        lambda path: path.write_bytes(with_bad_footer(path.read_bytes())),
        "cannot be read",
    ),
    "footer that is longer than the file": (
        lambda path: path.write_bytes(path.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1"),
        "cannot be read",
    ),
    "corrupt pages": (
        lambda path: path.write_bytes(b"PAR1" + bytes(2_000) + path.read_bytes()[2_004:]),
        "cannot be read|has no|exactly one",
    ),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cannot be read"),
    "not UTF-8": (with_bad_text, "cannot be read"),
    "no rows": (lambda path: rewritten(path, lambda table: table.slice(0, 0)), "exactly one"),
    "no columns": (lambda path: pq.write_table(pa.table({"a": [1]}), path), "exactly one"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_is_wrong_is_refused_by_file_and_reason(table: HostileTable, name: str) -> None:
    damage, reason = CHECKPOINTS[name]
    expected = state(table, 4)
    path = table.checkpoint_from_us(2)
    damage(path)
    assert state(table) == expected, "the log is still whole, and is replayed instead"
    table.commit(0).unlink()
    with pytest.raises(LogCorrupt) as caught:
        load_snapshot(LocalStore(table.root))
    message = told(caught.value)
    assert path.name in message
    assert re.search(reason, message), message


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_checkpoint_that_lacks_a_part_is_none(table: HostileTable, healthy: HostileTable, lost: int) -> None:
    expected = states(healthy)
    written = table.checkpoint_from_us(2)
    rows = pq.read_table(written)
    for part in range(1, 4):
        path = written.with_name(f"{2:020d}.checkpoint.{part:010d}.{3:010d}.parquet")
        pq.write_table(rows.slice((part - 1) * 2, 2 if part < 3 else None), path)
    written.unlink()
    assert states(table) == expected
    written.with_name(f"{2:020d}.checkpoint.{lost:010d}.{3:010d}.parquet").unlink()
    assert states(table) == expected
    table.commit(1).unlink()
    with pytest.raises(LogCorrupt, match=r"0{19}1\.json is missing.*version 1"):
        load_snapshot(LocalStore(table.root))


def test_a_part_that_is_corrupt_is_named(table: HostileTable) -> None:
    written = table.checkpoint_from_us(2)
    rows = pq.read_table(written)
    parts = [written.with_name(f"{2:020d}.checkpoint.{part:010d}.{2:010d}.parquet") for part in (1, 2)]
    pq.write_table(rows.slice(0, 3), parts[0])
    parts[1].write_bytes(b"PAR1")
    written.unlink()
    table.commit(0).unlink()
    with pytest.raises(LogCorrupt, match=rf"{re.escape(parts[1].name)}: .*cannot be read"):
        load_snapshot(LocalStore(table.root))


# --- _last_checkpoint

LIES = {
    "too far": {"version": 4},
    "beyond the log": {"version": 9},
    "far beyond the log": {"version": 10**19},
    "beyond any version": {"version": 10**30},
    "before the checkpoint": {"version": 1},
    "a bad checksum": {"version": 2, "checksum": "0" * 32},
    "too far, with a good checksum": {"version": 4, "checksum": json_checksum({"version": 4})},
    "other counts": {"version": 2, "size": 10**9, "sizeInBytes": -5, "numOfAddFiles": 77, "parts": 3},
    "half a surrogate pair": {"version": 2, "checksum": "0", "tag": "\ud800"},
    "half a surrogate pair as a key": {"version": 2, "checksum": "0", "\ud800": 1},
    "a number of thousand digits": {"version": 2, "checksum": "0", "n": 10**1_000},
    "another schema": {"version": 2, "checkpointSchema": {"type": "struct", "fields": "none"}},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("at", [None, 2])
def test_a_last_checkpoint_that_lies_changes_nothing(
    table: HostileTable, healthy: HostileTable, lie: str, at: int | None
) -> None:
    expected = states(healthy)
    if at is not None:
        table.checkpoint_from_us(at)
    (table.root / "_delta_log" / "_last_checkpoint").write_text(json.dumps(LIES[lie]))
    assert state(table) == expected[-1]
    assert states(table) == expected


@pytest.mark.parametrize(("opening", "closing"), ["[]", ('{"a":', "}")], ids=["arrays", "objects"])
def test_a_last_checkpoint_that_nests_deeply_changes_nothing(table: HostileTable, opening: str, closing: str) -> None:
    """With a checksum, so that its canonical form is needed, at every depth around the limits of a JSON parser."""
    store = LocalStore(table.root)
    for depth in (*range(100, 1_000, 20), 5_000, 50_000, 100_000):
        deep = opening * depth + "1" + closing * depth
        (table.root / "_delta_log" / "_last_checkpoint").write_text(f'{{"version":2,"checksum":"0","deep":{deep}}}')
        assert last_checkpoint_version(store) is None
    assert state(table)["version"] == VERSIONS - 1


@pytest.mark.parametrize("data", [bytes(4096), b"\xff\xfe\x00", "\ufeff{}".encode(), b"{}" * 100_000])
def test_a_last_checkpoint_that_is_garbage_changes_nothing(table: HostileTable, data: bytes) -> None:
    expected = state(table)
    (table.root / "_delta_log" / "_last_checkpoint").write_bytes(data)
    assert state(table) == expected


# --- what nobody has to understand

ANYTHING = [None, True, -1, 2**62, 1e308, "x", "", [], {}, [1], {"a": None}, "2020-01-01", {"a": {"b": []}}]
PROVENANCE = [
    "timestamp",
    "operation",
    "operationParameters",
    "operationMetrics",
    "engineInfo",
    "txnId",
    "readVersion",
    "isolationLevel",
    "isBlindAppend",
    "userMetadata",
    "tags",
    "userName",
    "job",
    "notebook",
    "clusterId",
]


@pytest.mark.parametrize("value", ANYTHING, ids=repr)
def test_provenance_of_any_kind_is_no_reason_to_fail(table: HostileTable, healthy: HostileTable, value: Any) -> None:
    expected = states(healthy)
    table.set(2, "commitInfo", **dict.fromkeys(PROVENANCE, value))
    assert states(table) == expected
    assert [entry.version for entry in Table(table.uri).history()] == [4, 3, 2, 1, 0]
    assert Table(table.uri).restore(1) == 5


@pytest.mark.parametrize("value", ANYTHING, ids=repr)
def test_provenance_that_is_no_object_is_passed_over(table: HostileTable, healthy: HostileTable, value: Any) -> None:
    expected = states(healthy)
    table.put(2, *({"commitInfo": value} if "commitInfo" in line else line for line in table.lines(2)))
    assert states(table) == expected
    assert [entry.version for entry in Table(table.uri).history()] == [4, 3, 2, 1, 0]
    assert Table(table.uri).restore(1) == 5


PROPERTIES = [
    "delta.checkpointInterval",
    "delta.dataSkippingNumIndexedCols",
    "delta.dataSkippingStatsColumns",
    "delta.logRetentionDuration",
    "delta.checkpointPolicy",
    "delta.deletedFileRetentionDuration",
    "delta.appendOnly",
    "delta.targetFileSize",
    "delta.columnMapping.maxColumnId",
    "delta.isolationLevel",
    "delta.checkpoint.writeStatsAsStruct",
    "delta.enableExpiredLogCleanup",
    "delta.setTransactionRetentionDuration",
    "delta.requireCheckpointProtectionBeforeVersion",
]


@pytest.mark.parametrize(
    "value", ["", "x", "-1", "9" * 30, "1e9", "`", "a.b", "\0", "interval 5 lightyears", "9" * 12 + " gb"], ids=repr
)
def test_properties_of_any_kind_are_followed_or_refused(table: HostileTable, healthy: HostileTable, value: str) -> None:
    expected = states(healthy)
    table.metadata(configuration=dict.fromkeys(PROPERTIES, value))
    for verb in (Table.checkpoint, Table.cleanup, Table.vacuum, Table.history):
        with suppress(VersionedError):
            verb(Table(table.uri))
    assert [one["files"] for one in states(table)] == [one["files"] for one in expected]


# --- what else is derived


@pytest.mark.parametrize(
    ("first", "last"), [(0, 10**20 - 1), (3, 1), (0, 9), (4, 4), (4, 5), (2**63, 2**63 + 1), (10**20 - 2, 10**20 - 1)]
)
def test_a_compaction_of_versions_that_are_not_there_changes_nothing(
    table: HostileTable, healthy: HostileTable, first: int, last: int
) -> None:
    expected = states(healthy)
    name = f"{first:020d}.{last:020d}.compacted.json"
    (table.root / "_delta_log" / name).write_text('{"remove":{"path":"p=2/b.parquet","dataChange":true}}')
    assert state(table) == expected[-1]
    assert states(table) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"\xff",
        bytes(4096),
        b"[]",
        DEEP.encode(),
        b'{"add":{"path":"../x"}}',
        b'{"add":{"path":1}}',
        json.dumps(METADATA).encode() + b"\n" + json.dumps(METADATA).encode(),
    ],
    ids=["cut", "not UTF-8", "NUL bytes", "a list", "deep", "members missing", "wrong types", "two metadata"],
)
def test_a_compaction_that_cannot_be_read_is_passed_over(
    table: HostileTable, healthy: HostileTable, data: bytes
) -> None:
    expected = states(healthy)
    (table.root / "_delta_log" / f"{0:020d}.{2:020d}.compacted.json").write_bytes(data)
    assert states(table) == expected


CHECKSUMS: dict[str, tuple[bytes, str | None]] = {
    # name: bytes, what disagrees; what cannot be read says nothing
    "cut": (b"{", None),
    "not UTF-8": (b'{"numFiles":3,"\xff":1}', None),
    "deep": (DEEP.encode(), None),
    "a list": (b"[]", None),
    "negative": (b'{"numFiles":-3,"tableSizeBytes":0}', None),
    "wrong types": (b'{"numFiles":"3","tableSizeBytes":0}', None),
    "another count": (b'{"numFiles":4,"tableSizeBytes":0}', "num_files is 4"),
    "another size": (b'{"numFiles":3,"tableSizeBytes":1}', "table_size_bytes is 1"),
    "vectors": (b'{"numFiles":3,"tableSizeBytes":SIZE,"numDeletionVectorsOpt":1}', "num_deletion_vectors is 1"),
    "another protocol": (
        b'{"numFiles":3,"tableSizeBytes":SIZE,"protocol":{"minReaderVersion":1,"minWriterVersion":3}}',
        "protocol is",
    ),
}


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_checksum_that_disagrees_is_named_and_one_that_cannot_be_read_says_nothing(
    table: HostileTable, healthy: HostileTable, name: str
) -> None:
    expected = states(healthy)
    data, reason = CHECKSUMS[name]
    size = load_snapshot(LocalStore(table.root)).size_bytes
    path = table.root / "_delta_log" / f"{4:020d}.crc"
    path.write_bytes(data.replace(b"SIZE", b"%d" % size))
    if reason is None:
        assert states(table) == expected
        return
    assert [state(table, version) for version in range(4)] == expected[:4]
    with pytest.raises(LogCorrupt) as caught:
        load_snapshot(LocalStore(table.root))
    message = told(caught.value)
    assert path.name in message
    assert reason in message, message


# --- properties


def test_a_property_that_is_null_is_not_set(table: HostileTable) -> None:
    table.metadata(configuration={"delta.setTransactionRetentionDuration": None, "delta.appendOnly": None, "a": "b"})
    assert load_snapshot(LocalStore(table.root)).metadata.configuration == {"a": "b"}


@pytest.mark.parametrize(
    "text",
    ["interval 999999999 weeks", "interval -1 days", "forever", "", "interval 1 month", "interval " + "9" * 5_000],
)
@pytest.mark.parametrize("key", ["delta.setTransactionRetentionDuration", "delta.deletedFileRetentionDuration"])
def test_a_duration_that_is_none_is_no_reason_to_fail(table: HostileTable, key: str, text: str) -> None:
    table.metadata(configuration={key: text})
    table.checkpoint_from_us(3)
    assert load_snapshot(LocalStore(table.root)).num_files == 3


# --- size

_BOUNDED = """
import sys
from pathlib import Path
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.storage import LocalStore
try:
    load_snapshot(LocalStore(sys.argv[1]))
except LogCorrupt as error:
    print(error)
    # Not by getrusage(), which counts what the parent had when it forked.
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(int(line.split()[1]) // 1024)
"""


@pytest.mark.parametrize("megabytes", [257, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_line_of_a_gigabyte(table: HostileTable, megabytes: int) -> None:
    """Sparse: its size costs no disk. It is refused, and is in memory once at the most."""
    with table.commit(1).open("wb") as file:
        file.write(b'{"add":{"path":"')
        file.truncate(megabytes << 20)
    done = subprocess.run(
        [sys.executable, "-c", _BOUNDED, table.uri], capture_output=True, text=True, timeout=240, check=True
    )
    message, peak = done.stdout.strip().rsplit("\n", 1)
    assert f"{SECOND}, line 1" in message
    assert len(message) < 1_000
    assert f"{megabytes << 20} bytes long" in message
    assert int(peak) < megabytes + 200
