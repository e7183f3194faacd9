"""What datom's reader gives of a store of ours, call by call: the rows, or the code of the refusal.

The calls are those of datom 0.1's own reader cases, each without and with a prefix before the project's folder. The
codes are datom's (`DatomError.code`). docs/reference/datom.md says how its own rules fare.
"""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned import Project, TableOptions
from dagster_versioned.tables.documents.manifest import MANIFEST_KEY
from support.frames import ALL_TYPES, numbered
from support.how_to import DOCS
from support.readers import assert_same

datom = pytest.importorskip("datom")

pytestmark = pytest.mark.conformance

PROJECT = "STUDY_001"
LAB = "Lab results (v2)"
HIDDEN = ("parted", "many", "vectors", "empty", "dropped")
FRAMES = [numbered(rows) for rows in (6, 7, 8)]


@dataclass(frozen=True)
class Store:
    """A store of ours, and the versions of each table, oldest first."""

    root: Path
    prefix: str | None
    versions: dict[str, list[str]]

    def connect(self) -> "datom.Conn":
        return datom.get_conn(datom.store_local(self.root, self.prefix), PROJECT)

    @property
    def data(self) -> Path:
        return self.root.joinpath(self.prefix or "", "datom")


@pytest.fixture(scope="module", params=[None, "team/proj"], ids=["root", "prefix"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("datom")
    project = Project.open(PROJECT, str(root.joinpath(request.param or "")), author="Ada <ada@example.org>")
    dm = project.table("dm")
    for at, frame in enumerate(FRAMES):
        dm.write(frame, message=f"take {at}", options=TableOptions(custom={"study": "001"}))
    dm.revert(1)
    project.table(LAB).write(ALL_TYPES, parents=dm.upstream())
    twice = project.table("twice")
    for code_version in ("1", "2"):
        twice.write(FRAMES[0], code_version=code_version)
    project.table("empty").write(FRAMES[0].slice(0, 0), options=TableOptions(allow_empty=True))
    for number in range(17):  # of 17 versions, two begin with the same digit
        project.table("often").write(pa.table({"n": [number]}))
    for name in ("tampered", "lost", "expired"):
        project.table(name).write(FRAMES[0])
        project.table(name).write(FRAMES[1])
    project.table("expired").expire(keep_last=1, dry_run=False)
    project.table("parted").write(FRAMES[0], partition="2013-01")
    project.table("many").write(numbered(900), options=TableOptions(target_part_bytes=1, row_group_bytes=4_000))
    vectors = TableOptions(mode="merge", merge_key=("n",), properties={"delta.enableDeletionVectors": "true"})
    for start in (0, 3):
        project.table("vectors").write(numbered(6, start), options=vectors)
    project.table("dropped").write(FRAMES[0])
    project.table("dropped").drop(dry_run=False)
    versions: dict[str, list[str]] = {}
    for name in map(str, project.tables()):
        table = project.table(name)
        table.repair()  # what is put now and then is as new as the log
        versions[name] = [one.metadata_sha for one in reversed(table.history()) if one.metadata_sha is not None]
    made = Store(root, request.param, versions)
    for name, change in (("tampered", lambda data: data[:-9] + b"x" + data[-8:]), ("lost", None)):
        part = made.data / name / f"{project.table(name).version().data_sha}.parquet"
        if change is None:
            part.unlink()
        else:
            part.write_bytes(change(part.read_bytes()))
    return made


READ: dict[str, tuple[str, Callable[[Store], str | None], pa.Table]] = {
    "current-after-a-revert": ("dm", lambda store: None, FRAMES[1]),
    "full-version": ("dm", lambda store: store.versions["dm"][2], FRAMES[2]),
    "prefix-of-8": ("dm", lambda store: store.versions["dm"][0][:8], FRAMES[0]),
    "prefix-that-is-unique": ("dm", lambda store: shortest(store.versions["dm"], 0), FRAMES[0]),
    "version-that-a-revert-repeats": ("dm", lambda store: store.versions["dm"][1], FRAMES[1]),
    "name-with-spaces-and-all-types": (LAB, lambda store: None, ALL_TYPES),
    "derived-by-version": (LAB, lambda store: store.versions[LAB][0], ALL_TYPES),
    "same-data-as-the-version-before": ("twice", lambda store: store.versions["twice"][1], FRAMES[0]),
    "same-data-as-the-version-after": ("twice", lambda store: store.versions["twice"][0], FRAMES[0]),
    "one-of-many-versions": ("often", lambda store: store.versions["often"][3], pa.table({"n": [3]})),
    "kept-by-an-expiry": ("expired", lambda store: None, FRAMES[1]),
    "whole-beside-a-tampered-one": ("tampered", lambda store: store.versions["tampered"][0], FRAMES[0]),
    "whole-beside-a-lost-one": ("lost", lambda store: store.versions["lost"][0], FRAMES[0]),
}

REFUSED: dict[str, tuple[str, str, Callable[[Store], str | None]]] = {
    "no-such-table": ("not_found", "nothing", lambda store: None),
    **{f"{name}-current": ("not_found", name, lambda store: None) for name in HIDDEN},
    **{f"{name}-by-version": ("not_found", name, lambda store, name=name: store.versions[name][0]) for name in HIDDEN},
    "no-such-version": ("version_not_found", "dm", lambda store: "f" * 64),
    "gone-version": ("version_not_found", "expired", lambda store: store.versions["expired"][0]),
    "ambiguous": ("version_ambiguous", "often", lambda store: shared_digit(store.versions["often"])),
    "empty-version": ("invalid_argument", "dm", lambda store: ""),
    "tampered": ("integrity_mismatch", "tampered", lambda store: None),
    "lost": ("not_found", "lost", lambda store: None),
    **{f"name-{name}": ("invalid_name", name, lambda store: None) for name in ("../dm", ".metadata", "Datom", "1dm")},
}


def shortest(versions: list[str], at: int) -> str:
    others = versions[:at] + versions[at + 1 :]
    return next(versions[at][:n] for n in range(1, 65) if not any(one.startswith(versions[at][:n]) for one in others))


def shared_digit(versions: list[str]) -> str:
    digits = [version[0] for version in versions]
    return next(digit for digit in digits if digits.count(digit) > 1)


@pytest.mark.parametrize("case", READ)
def test_it_reads(store: Store, case: str) -> None:
    name, version, expected = READ[case]
    assert_same(datom.read(store.connect(), name, version(store), as_arrow=True), expected)


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(store: Store, case: str) -> None:
    code, name, version = REFUSED[case]
    with pytest.raises(datom.DatomError) as error:
        datom.read(store.connect(), name, version(store))
    assert error.value.code == code


def test_pandas_keeps_numbers_and_lacks(store: Store) -> None:
    frame = datom.read(store.connect(), "dm")
    assert list(frame["n"]) == list(range(7))
    assert frame["amount"].isna().tolist() == [value is None for value in FRAMES[1]["amount"].to_pylist()]


@pytest.mark.parametrize("name", ["dm", *HIDDEN, "nothing"])
def test_nothing_of_ours_is_a_set(store: Store, name: str) -> None:
    with pytest.raises(datom.DatomError) as error:
        datom.get_set(store.connect(), name)
    assert error.value.code == ("kind_mismatch" if name == "dm" else "not_found")


def test_the_history_is_newest_first_each_version_once_with_author_and_message(store: Store) -> None:
    found = datom.history(store.connect(), "dm")
    first, second, third = store.versions["dm"][:3]
    assert list(found["version"]) == [second, third, first]
    assert list(found["commit_message"]) == ["take 1", "take 2", "take 0"]
    assert set(found["author"]) == {"Ada <ada@example.org>"}
    assert set(found["commit_sha"]) == {None}, "there is no git mirror"
    assert list(datom.history(store.connect(), "dm", n=2, short_hash=True)["version"]) == [second[:8], third[:8]]


@pytest.mark.parametrize("name", [*HIDDEN, "nothing"])
def test_there_is_no_history_of_what_it_cannot_read(store: Store, name: str) -> None:
    with pytest.raises(datom.NotFound):
        datom.history(store.connect(), name)


def test_the_current_version_is_the_one_that_the_history_records(store: Store) -> None:
    folder = store.data / "dm" / ".metadata"
    current, history = (json.loads((folder / f"{name}.json").read_bytes()) for name in ("metadata", "version_history"))
    assert [e["timestamp"] for e in history if e["version"] == current["metadata_sha"]] == [current["created_at"]]


VISIBLE = ["Lab results (v2)", "dm", "expired", "lost", "often", "tampered", "twice"]


def test_the_list_has_what_it_can_read_and_nothing_else(store: Store) -> None:
    found = datom.list_artifacts(store.connect(), include_versions=True, short_hash=False).set_index("name")
    assert sorted(found.index) == sorted(VISIBLE)
    assert set(found["kind"]) == {"table"}
    assert (found["current_version"]["dm"], found["version_count"]["dm"]) == (store.versions["dm"][1], 3)
    assert list(datom.list_artifacts(store.connect(), pattern="t*")["name"]) == ["tampered", "twice"]


def test_readers_of_the_older_manifest_find_the_same_tables(store: Store) -> None:
    """datom 0.1 for R (0.1.1 was tried) lists ``tables``, and sums up by ``summary`` and ``updated_at``."""
    manifest: dict[str, Any] = json.loads(store.data.joinpath(MANIFEST_KEY).read_bytes())
    listed = datom.list_artifacts(store.connect(), include_versions=True, short_hash=False).set_index("name")
    columns = ("current_version", "current_data_sha", "last_updated", "version_count")
    assert {name: [entry[column] for column in columns] for name, entry in manifest["tables"].items()} == {
        name: [listed[column][name] for column in columns] for name in listed.index
    }
    assert manifest["summary"] == {"total_tables": len(VISIBLE), "total_versions": sum(listed["version_count"])}
    assert manifest["updated_at"] == max(listed["last_updated"])
    assert manifest["project_name"] == PROJECT


def test_a_project_of_hidden_tables_alone_is_listed_as_empty(tmp_path: Path) -> None:
    Project.open(PROJECT, str(tmp_path)).table("parted").write(numbered(1), partition="a")
    conn = datom.get_conn(datom.store_local(tmp_path), PROJECT)
    assert datom.list_artifacts(conn).empty
    manifest = json.loads((tmp_path / "datom" / MANIFEST_KEY).read_bytes())
    assert (manifest["tables"], manifest["updated_at"]) == ({}, None)


def test_a_manifest_of_an_earlier_release_gets_what_older_readers_need(tmp_path: Path) -> None:
    table = Project.open(PROJECT, str(tmp_path)).table("dm")
    table.write(numbered(1))
    path = tmp_path / "datom" / MANIFEST_KEY
    whole = json.loads(path.read_bytes())
    path.write_text(json.dumps({key: whole[key] for key in ("artifacts", "project_name", "schema_version")}))
    table.repair()
    assert json.loads(path.read_bytes()) == whole


def test_a_connection_to_a_place_that_nobody_governs_is_silent(store: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.connect()


def test_the_page_counts_datoms_rules_as_its_table_does() -> None:
    text = (DOCS / "reference/datom.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| (\d+) \|", text, re.M)
    there, held = (sum(int(row[at]) for row in rows) for at in (0, 1))
    assert f"{held} of its {there} rules" in text
