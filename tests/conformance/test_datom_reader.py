"""What datom's reader gives of a store of ours, call by call: the rows, or the code of the refusal.

The cases are those of `support.datom_cases`, which are written in the form of datom's own suite; each is asked on this
machine and on a server of S3, without and with a prefix before the project's folder. The codes are datom's
(`DatomError.code`). docs/reference/datom.md says how its own suite fares, and `test_datom_suite.py` runs it.
"""

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned import Project
from dagster_versioned.storage import Location
from dagster_versioned.tables.documents.manifest import MANIFEST_KEY
from support.datom_cases import CASES, FRAMES, PROJECT, VISIBLE, Place, Study, build
from support.frames import ALL_TYPES, numbered
from support.git_identity import isolated_git
from support.how_to import DOCS
from support.readers import assert_same

datom = pytest.importorskip("datom")

pytestmark = pytest.mark.conformance

Studies = Callable[[str], tuple[Study, Any]]
"""The store of a name as this package has it, and as datom does."""

PLACES = [
    "local",
    pytest.param("local-prefix", marks=pytest.mark.slow),
    pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow]),
    pytest.param("s3-prefix", marks=[pytest.mark.s3, pytest.mark.slow]),
]


@pytest.fixture(scope="module", params=PLACES)
def studies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studies]:
    """Each store is built once, at a place of its own."""
    kind, prefix = request.param.split("-")[0], "team/proj" if "-" in request.param else ""
    server = request.getfixturevalue("s3_server") if kind == "s3" else None

    @cache
    def built(store: str) -> tuple[Study, Any]:
        if server is None:
            place = Place(Location(type="local", root=str(tmp_path_factory.mktemp("datom")), prefix=prefix))
        else:
            place = Place(server.location(server.new_bucket(), prefix), server)
        return build(store, place), place.store()

    with pytest.MonkeyPatch.context() as monkeypatch:
        isolated_git(tmp_path_factory, monkeypatch)
        yield built


def ask(conn: "datom.Conn", call: dict[str, Any]) -> Any:
    """What a call of a case gives: the rows of a table, or of a history or list."""
    if call["op"] == "read_table":
        return datom.read(conn, call["name"], call["version"], as_arrow=True)
    if call["op"] == "read_set":
        return datom.get_set(conn, call["name"], call["version"])
    if call["op"] == "fetch_member":
        return datom.get_set(conn, call["set"], call["set_version"]).members
    if call["op"] == "history":
        return json.loads(datom.history(conn, call["name"], call["n"]).to_json(orient="records"))
    found = datom.list_artifacts(conn, include_versions=True, short_hash=False)
    return json.loads(found.to_json(orient="records"))


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_the_case_says(studies: Studies, name: str) -> None:
    case = CASES[name]
    study, store = studies(case.store)
    call, expected = case.call(study), case.expect(study)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conn = datom.get_conn(store, PROJECT)
        if not expected["ok"]:
            with pytest.raises(datom.DatomError) as error:
                ask(conn, call)
            assert error.value.code == expected["error"]
            return
        found = ask(conn, call)
    codes = [one.message.code for one in caught if isinstance(one.message, datom.GovernanceAttachedWarning)]
    assert codes == expected.get("warnings", [])
    if case.frame is None:
        assert found == expected["rows"]
    else:
        assert_same(found, case.frame)


@pytest.fixture
def study(studies: Studies) -> Study:
    return studies("study")[0]


@pytest.fixture
def conn(studies: Studies) -> "datom.Conn":
    return datom.get_conn(studies("study")[1], PROJECT)


def test_every_type_is_read_with_values_that_are_no_numbers(tmp_path: Path) -> None:
    Project.open(PROJECT, str(tmp_path)).table("types").write(ALL_TYPES)
    assert_same(datom.read(datom.get_conn(datom.store_local(tmp_path), PROJECT), "types", as_arrow=True), ALL_TYPES)


def test_pandas_keeps_numbers_and_lacks(conn: "datom.Conn") -> None:
    frame = datom.read(conn, "dm")
    assert list(frame["n"]) == list(range(6))
    assert frame["amount"].isna().tolist() == [value is None for value in FRAMES[1]["amount"].to_pylist()]


def test_hashes_are_shortened(study: Study, conn: "datom.Conn") -> None:
    first, second, third = study.shas("dm")[:3]
    assert list(datom.history(conn, "dm", short_hash=True)["version"]) == [one[:8] for one in (second, third, first)]
    assert list(datom.list_artifacts(conn, pattern="t*")["name"]) == ["tampered", "torn", "twice"]


def test_the_current_version_is_the_one_that_the_history_records(study: Study) -> None:
    store = study.project.table("dm").store
    current, history = (json.loads(store.get(f".metadata/{name}.json")) for name in ("metadata", "version_history"))
    assert [e["timestamp"] for e in history if e["version"] == current["metadata_sha"]] == [current["created_at"]]


def test_readers_of_the_older_manifest_find_the_same_tables(study: Study, conn: "datom.Conn") -> None:
    """datom 0.1 for R (0.1.1 was tried) lists ``tables``, and sums up by ``summary`` and ``updated_at``."""
    manifest: dict[str, Any] = json.loads(study.project.data.get(MANIFEST_KEY))
    listed = datom.list_artifacts(conn, include_versions=True, short_hash=False).set_index("name")
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


def test_the_page_counts_datoms_rules_as_its_table_does() -> None:
    text = (DOCS / "reference/datom.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| (\d+) \| (\d+) \|", text, re.M)
    there, held = (sum(int(row[at]) for row in rows) for at in (0, 1))
    assert f"{held} of its {there} rules" in text


def test_the_page_counts_the_cases_of_each_group_as_they_are() -> None:
    text = (DOCS / "reference/datom.md").read_text("utf-8")
    groups = Counter(case.group for case in CASES.values())
    assert re.findall(r"^\| ([^|]+) \| (\d+) \|$", text, re.M) == [(name, str(n)) for name, n in groups.items()]
    assert f"{len(CASES)} cases" in text
