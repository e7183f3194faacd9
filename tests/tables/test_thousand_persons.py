"""A thousand persons leave eleven tables: nothing below the root of the project has a key, a name or a hash of one."""

import gzip
import logging
import re
import struct
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.engines import refresh as policy
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.feature_tables import graph_of, update_videos, update_words, words

pytestmark = pytest.mark.slow

PERSONS = range(100_000, 101_000)
"""Those that go; those that stay have numbers from 200,000 on."""
OTHERS = range(200_000, 201_000)
ALONE = PERSONS[:20]
"""Each was appended in a version of its own, whose digest is that of one row."""
OF_PERSONS = ("appended", "merged", "replaced", "daily", "by_color", "sealed", "in_order", "visits", "refreshed")
OF_SAMPLES = ("video", "words")
TABLES = (*OF_PERSONS, *OF_SAMPLES)
VECTORS = {"delta.enableDeletionVectors": "true"}
GRAPH = graph_of(words())


def rows(*numbers: int, visit: int = 0) -> pa.Table:
    return pa.table(
        {
            "person_id": pa.array(numbers, pa.int64()),
            "name": [f"person-{number}" for number in numbers],
            "visit": pa.array([visit] * len(numbers), pa.int64()),
            "color": pa.array([("red", "green")[number % 2] for number in numbers]),
        }
    )


def half(numbers: range, which: int) -> tuple[int, ...]:
    return tuple(numbers[which::2])


def write_all(store: ObjectStore) -> tuple[Project, set[bytes]]:
    """A project with all of them in eleven tables, an environment and a draft; also the digests of single rows."""
    project = Project("CLINIC", store)
    everybody = (*PERSONS, *OTHERS)

    def write(name: str, table: pa.Table, partition: str | None = None, **options: Any) -> None:
        project.table(name).write(table, partition=partition, options=TableOptions(**options))

    write("appended", rows(*PERSONS[20:], *OTHERS))
    for number in ALONE:
        write("appended", rows(number), mode="append")
    for visit in range(3):
        some = half(PERSONS, visit % 2) + half(OTHERS, visit % 2)
        table = rows(*(everybody if visit == 0 else some), visit=visit)
        write("merged", table, mode="merge", merge_key=("person_id",), properties=VECTORS)
        write("replaced", rows(*some, visit=visit))
        write("in_order", rows(*reversed(some), visit=visit), row_order="significant")
        write("sealed", rows(*some, visit=visit), personal_columns=("person_id", "name"))
        write("by_color", rows(*some, visit=visit), partition_columns=("color",))
        write("visits", rows(*some, visit=visit), mode="append")
        write("daily", rows(*some), f"2024-01-0{visit + 1}")
        update_videos(project, GRAPH, *((number, f"person-{number}", f"{visit}") for number in some))
        update_words(project, GRAPH)
    for kept in (everybody, everybody[30:], everybody[60:-30]):
        write("refreshed", rows(*kept), refresh="changed_rows")
    refreshed = [version.facts.refreshed for version in project.table("refreshed").history()]
    assert [fact.dead for fact in refreshed if fact is not None] == [90, 30]
    create_environment(project, "dev")
    park(project.table("replaced"), {None: rows(*everybody, visit=9)}, run=Run("r1", "replaced", 0))
    project.drop_parked(project.parked()[0].id)
    facts = (version.facts for version in project.table("appended").history()[: len(ALONE)])
    return project, {max(fact.added.digest.split(":"), key=len).encode() for fact in facts if fact.added is not None}


def texts(data: bytes) -> Iterator[bytes]:
    """What a file says, compressed or not."""
    yield data
    if data[:4] == b"PAR1":
        yield str(pq.read_table(pa.BufferReader(data)).to_pylist()).encode()
        yield repr(pq.read_metadata(pa.BufferReader(data)).metadata).encode()
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)


def persons_in(data: bytes, digests: set[bytes]) -> set[object]:
    """The persons of whom anything is in a file: in text, as a plain number of 64 bits, as a digest."""
    found: set[object] = set()
    for text in texts(data):
        # Not the microseconds of a time.
        numbers = {int(number) for number in re.findall(rb"(?<![0-9a-f.])1[0-9]{5}(?![0-9a-f])", text)}
        found |= numbers & {*PERSONS}
        found |= {int(number) for number in re.findall(rb"person-(\d{6})", text)} & {*PERSONS}
        found |= {digest for digest in digests if digest in text}
    words = [struct.unpack(f"<{len(data[at:]) // 8}q", data[at:][: len(data[at:]) // 8 * 8]) for at in range(8)]
    return found.union(*({*PERSONS} & {*each} for each in words))


def read_all(project: Project) -> dict[tuple[str, int, str | None], list[tuple[object, ...]]]:
    """The rows of every version but those of persons."""
    found: dict[tuple[str, int, str | None], list[tuple[object, ...]]] = {}
    for name in TABLES:
        table = project.table(name)
        key = "id" if name in ("video", "words") else "person_id"
        for version in table.history():
            if version.identity is not None and version.gone is None:
                read = table.read(f"@{version.log_version}", partition=version.partition).sort_by(key)
                found[name, version.log_version, version.partition] = [
                    tuple(row.values()) for row in read.to_pylist() if row[key] not in PERSONS
                ]
    return found


def require_nothing_left(table: VersionedTable) -> None:
    report = table.verify()
    assert report.ok, report.findings


@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_nothing_of_a_thousand_persons_is_left(place, tmp_path, request, caplog, capfd, monkeypatch):
    monkeypatch.setattr(policy, "FEWEST_BYTES", 1)
    if place == "local":
        store: ObjectStore = LocalStore(tmp_path / "clinic")
    else:
        server = request.getfixturevalue("s3_server")
        store = server.store(server.new_bucket())
    project, digests = write_all(store)
    assert len(digests) == len(ALONE)
    before = read_all(project)
    for name in TABLES:
        project.table(name).vacuum(min_age=timedelta(0), dry_run=False)
    seen = set[object]().union(*(persons_in(store.get(info.key), digests) for info in store.list()))
    assert seen == {*PERSONS} | digests, "the scan finds them while they are there"
    with caplog.at_level(logging.DEBUG, logger="dagster_versioned"):
        for names, sql in (OF_PERSONS, "person_id < 200000"), (OF_SAMPLES, "id < 200000"):
            project.erase(sql, names, why="request 2041", dry_run=False)
    left = {info.key: found for info in store.list() if (found := persons_in(store.get(info.key), digests))}
    assert not left
    told = [record.getMessage() for record in caplog.records if record.name == "dagster_versioned"]
    assert not persons_in("".join([*capfd.readouterr(), *told]).encode(), digests)
    after = read_all(Project("CLINIC", store))
    assert {key: after[key] for key in before} == before
    for opened in (project, project.in_environment("dev")):
        for name in TABLES:
            require_nothing_left(opened.table(name))
            assert not {*PERSONS} & {*opened.table(name).read().column(0).to_pylist()}
