"""Writes the store beside this file anew; run with the package of commit c780006 on the path."""

import sys
from pathlib import Path

import pyarrow as pa

from dagster_versioned.identity.version import Run
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.tables.event_history import EventHistory, SnapshotMerge
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.project import Project

FOLDER = Path(sys.argv[1])
APPEND = TableOptions(mode="append")
MERGE = TableOptions(mode="merge", merge_key=("key",), properties={"delta.enableDeletionVectors": "true"})


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": list(values)})


def keyed(keys: range, value: int) -> pa.Table:
    return pa.table({"key": list(keys), "value": [value] * len(keys)})


project = Project.open("NYC", str(FOLDER), author="Ada <ada@example.org>")

plain = project.table("plain")  # 104 commits: a checkpoint and an index of versions at 100
for n in range(12):
    plain.write(numbers(n, n + 1), message=f"version {n}", run=Run(f"run-{n}", "plain", 0))
for n in range(12, 104):
    plain.write(numbers(n % 2))
project.pin("first", "plain", "@0", by="Ada", why="a pin")

days = project.table("days")
for day in range(3):
    for turn in range(2):
        days.write(numbers(day, turn), partition=f"2024-01-0{day + 1}", parents=plain.upstream())
days.revert("@0", partition="2024-01-01", hold=True, why="wrong rows")

log = project.table("log")
for n in range(6):
    log.write(numbers(n), options=APPEND)

merged = project.table("merged")
merged.write(keyed(range(20), 0), options=MERGE)
merged.write(keyed(range(3, 6), 1), options=MERGE)
merged.write(keyed(range(18, 22), 2), options=MERGE)

thinned = project.table("thinned")
for n in range(5):
    thinned.write(numbers(n))
thinned.expire(keep_last=2, dry_run=False)

flights = EventTable(project.table("flights"), EventHistory(merge=SnapshotMerge(primary_key=("id",))))
flights.write(pa.table({"id": [1, 2], "delay": [5, 6]}))
flights.write(pa.table({"id": [1, 3], "delay": [7, 8]}))
for name in project.tables():
    report = project.table(str(name)).verify()
    assert report.ok, report.findings
