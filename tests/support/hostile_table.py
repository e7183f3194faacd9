"""A small healthy Delta table as plain files, to be damaged: its log is written by hand, not by the code under test."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "name", "type": "string", "nullable": True, "metadata": {}},
        {"name": "p", "type": "integer", "nullable": True, "metadata": {}},
    ],
}
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
METADATA = {
    "metaData": {
        "id": "0b3c5b5e-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": ["p"],
        "configuration": {},
    }
}
ROWS = {
    "p=1/a.parquet": [(1, "one"), (2, "two"), (3, None)],
    "p=2/b.parquet": [(10, "ten"), (None, "none")],
    "p=1/c.parquet": [(4, "four")],
    "p=__HIVE_DEFAULT_PARTITION__/d.parquet": [(7, "seven"), (8, "eight")],
}
"""The rows of every data file: ``id`` and ``name``; the partition is the log's to say."""

PARTITIONS = {path: None if "HIVE" in path else path[2] for path in ROWS}

Action = dict[str, Any]


class HostileTable:
    """A table folder whose files a test rewrites: five versions, with a file removed in the third."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def uri(self) -> str:
        return str(self.root)

    def commit(self, version: int) -> Path:
        return self.root / "_delta_log" / f"{version:020d}.json"

    def lines(self, version: int) -> list[Action]:
        return [json.loads(line) for line in self.commit(version).read_bytes().splitlines()]

    def put(self, version: int, *actions: Action) -> None:
        self.put_bytes(version, b"".join(json.dumps(action).encode() + b"\n" for action in actions))

    def put_bytes(self, version: int, data: bytes) -> None:
        self.commit(version).write_bytes(data)

    def change(self, version: int, name: str, change: Callable[[Action], object]) -> None:
        """Rewrite the first action called ``name`` of a commit, in place or by what ``change`` returns."""
        lines = self.lines(version)
        line = next(line for line in lines if name in line)
        changed = change(line[name])
        if isinstance(changed, dict):
            line[name] = changed
        self.put(version, *lines)

    def set(self, version: int, name: str, **members: Any) -> None:
        """Give the first action called ``name`` of a commit other members."""
        self.change(version, name, lambda action: action | members)

    def metadata(self, **members: Any) -> None:
        self.set(0, "metaData", **members)

    def protocol(self, reader: int, writer: int, *features: str, readers: tuple[str, ...] | None = None) -> None:
        """The protocol of the table; ``readers`` are the reader features where they are not the writer's."""
        lists: Action = {"writerFeatures": list(features)} if writer >= 7 else {}
        if reader >= 3:
            lists["readerFeatures"] = list(features if readers is None else readers)
        self.put(0, {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **lists}}, *self.lines(0)[1:])

    def checkpoint_from_us(self, version: int) -> Path:
        """Have the package write the checkpoint of a version, healthy."""
        from dagster_versioned.delta.commit.checkpoint import write_checkpoint
        from dagster_versioned.delta.log.snapshot import load_snapshot
        from dagster_versioned.storage import LocalStore

        store = LocalStore(self.root)
        write_checkpoint(store, load_snapshot(store, version))
        return self.root / "_delta_log" / f"{version:020d}.checkpoint.parquet"

    def copy(self, root: Path) -> "HostileTable":
        return HostileTable(shutil.copytree(self.root, root))


def add(root: Path, path: str, **members: Any) -> Action:
    file = root / path
    return {
        "add": {
            "path": path,
            "partitionValues": {"p": PARTITIONS.get(path, "1")},
            "size": file.stat().st_size if file.exists() else 1,
            "modificationTime": 1_700_000_000_000,
            "dataChange": True,
            **members,
        }
    }


def write_data(root: Path, path: str, rows: list[tuple[int | None, str | None]], **options: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    columns = [pa.array([row[i] for row in rows], schema.types[i]) for i in range(2)]
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), root / path, **options)


def build(root: Path, **options: Any) -> HostileTable:
    """Write the healthy table; ``options`` are those of its Parquet files."""
    table = HostileTable(root)
    (root / "_delta_log").mkdir(parents=True)
    for path, rows in ROWS.items():
        write_data(root, path, rows, **options)
    a, b, c, d = ROWS
    info = {"commitInfo": {"operation": "WRITE", "timestamp": 1_700_000_000_000}}
    remove = {"path": a, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}
    table.put(0, PROTOCOL, METADATA, info, add(root, a))
    table.put(1, info, add(root, b))
    table.put(2, info, {"remove": remove}, add(root, c))
    table.put(3, info, {"txn": {"appId": "app", "version": 3}})
    table.put(4, info, add(root, d))
    return table


VERSIONS = 5


def rows_at(version: int) -> list[tuple[int | None, str | None, int | None]]:
    """The sorted rows of the healthy table at a version."""
    a, b, c, d = ROWS
    live = {0: [a], 1: [a, b], 2: [b, c], 3: [b, c], 4: [b, c, d]}[version]
    return in_order((*row, PARTITIONS[path] and int(PARTITIONS[path] or 0)) for path in live for row in ROWS[path])


def in_order(rows: Any) -> list[Any]:
    """Rows as a sorted list, nulls first."""
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def told(error: BaseException) -> str:
    """All that a person sees of an error: its message and its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])
