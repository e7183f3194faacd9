"""What a git mirror holds of a table follows from its log alone, whatever the table is made of."""

import json
import subprocess

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned import Project, TableOptions
from dagster_versioned.errors import GovernanceError
from dagster_versioned.governance.version_documents import (
    SeenCommits,
    parse_project_document,
    project_document,
    table_documents,
)
from dagster_versioned.identity.names import partition_key

SHA = st.text("0123456789abcdef", min_size=64, max_size=64)


@pytest.fixture
def project(tmp_path):
    return Project.open("NYC", str(tmp_path / "store"), author="Ada <ada@example.org>")


def documents(table):
    return table_documents(str(table.name), table.state.history)


def parsed(table):
    return {path: json.loads(data) for path, data in documents(table).items() if path.endswith(".json")}


def test_of_a_small_table_they_say_what_datom_readers_are_told(project):
    table = project.table("flights")
    for n in range(3):
        table.write(pa.table({"n": [n]}), message=f"take {n}")
    table.repair()
    found = parsed(table)
    for name in ("metadata", "version_history"):
        assert found[f"flights/{name}.json"] == json.loads(table.store.get(f".metadata/{name}.json"))
    assert set(found) == {"flights/metadata.json", "flights/version_history.json"}


def test_a_table_of_many_parts_has_them_although_datom_cannot_read_it(project):
    table = project.table("big")
    written = table.write(pa.table({"n": range(9)}), options=TableOptions(target_part_bytes=1, row_group_bytes=8))
    assert written.version.facts.part_count > 1
    found = parsed(table)
    assert found["big/metadata.json"]["metadata_sha"] == written.version.metadata_sha
    assert [entry["version"] for entry in found["big/version_history.json"]] == [written.version.metadata_sha]


def test_of_a_partitioned_table_there_is_the_whole_and_each_partition(project):
    table = project.table("monthly")
    table.write_partitions({"2013-01": pa.table({"n": [1]}), "2013-02": pa.table({"n": [2]})}, message="both")
    first = table.state.history.whole
    table.write(pa.table({"n": [3]}), partition="2013-02")
    heads, whole, found = table.partitions(), table.state.history.whole, parsed(table)
    assert found["monthly/metadata.json"]["metadata_sha"] == whole.metadata_sha
    assert found["monthly/metadata.json"]["partitions"] == {key: head.metadata_sha for key, head in heads.items()}
    listed = [(e["version"], e["log_version"], e["partitions"]) for e in found["monthly/version_history.json"]]
    assert listed == [(whole.metadata_sha, 1, ["2013-02"]), (first.metadata_sha, 0, ["2013-01", "2013-02"])]
    for key, head in heads.items():
        folder = f"monthly/partitions/{key}"
        assert found[f"{folder}/metadata.json"]["metadata_sha"] == head.metadata_sha
        assert [entry["log_version"] for entry in found[f"{folder}/version_history.json"]] == [
            version.log_version for version in table.history(partition=key)
        ]


@pytest.mark.parametrize("key", [".git", ".GIT", ".gitmodules", "..", "a/b", "ünï", "x y", ".hidden"])
def test_no_partition_key_is_a_path_that_git_refuses_or_obeys(project, key):
    table = project.table("t")
    table.write(pa.table({"n": [1]}), partition=key)
    folders = {path.split("/")[2] for path in documents(table) if "/partitions/" in path}
    (folder,) = folders
    assert not folder.startswith(".")
    assert partition_key("." + folder[3:] if key.startswith(".") and key != ".." else folder) == key


def test_a_version_that_came_back_stands_once_where_it_came_back(project):
    table = project.table("t")
    a, b = pa.table({"n": [1]}), pa.table({"n": [2]})
    for frame in (a, b, a):
        table.write(frame)
    assert [entry["log_version"] for entry in parsed(table)["t/version_history.json"]] == [2, 1]


def test_a_version_whose_bytes_are_gone_keeps_its_entry_and_says_so(project):
    table = project.table("t")
    for n in range(3):
        table.write(pa.table({"n": [n]}))
    table.expire(keep_last=1, dry_run=False)
    history = parsed(table)["t/version_history.json"]
    assert [entry.get("gone") for entry in history] == [None, "expire", "expire"]


def test_a_foreign_commit_is_known_by_its_commit_alone(project):
    table = project.table("t")
    table.write(pa.table({"n": [1]}))
    before = parsed(table)
    commit = b'{"commitInfo":{"timestamp":1,"inCommitTimestamp":9999999999999,"operation":"OPTIMIZE"}}\n'
    table.store.put_if_absent("_delta_log/00000000000000000001.json", commit)
    assert parsed(project.table("t")) == before
    assert documents(project.table("t"))["t/commits.sha256"].count(b"\n") == 2


def test_sha256sum_checks_the_commits_in_the_table_s_folder(project, tmp_path):
    table = project.table("t")
    for n in range(3):
        table.write(pa.table({"n": [n]}))
    sums = tmp_path / "sums"
    sums.write_bytes(documents(table)["t/commits.sha256"])
    folder = tmp_path / "store" / "datom" / "t"
    assert subprocess.run(["sha256sum", "-c", "--quiet", sums], cwd=folder, check=False).returncode == 0
    (folder / "_delta_log" / f"{1:020d}.json").write_bytes(b"{}")
    assert subprocess.run(["sha256sum", "-c", "--status", sums], cwd=folder, check=False).returncode == 1


def test_they_are_the_same_from_the_index_of_versions_as_from_the_log(project, monkeypatch):
    monkeypatch.setattr("dagster_versioned.tables.documents.publish.CHECKPOINT_INTERVAL", 3)
    monkeypatch.setattr("dagster_versioned.tables.version_index.SEGMENT", 3)
    table = project.table("t")
    for n in range(8):
        table.write(pa.table({"n": [n % 3]}), partition=f"p{n % 2}", message=f"take {n}")
    table.expire(keep_last=2, dry_run=False)
    assert [info.key for info in table.store.list(".metadata/versions/")]
    fresh, replayed = project.table("t"), project.table("t").replay()[0]
    assert documents(fresh) == table_documents("t", replayed.history)


def test_no_document_says_where_the_bytes_are(project, tmp_path):
    table = project.table("t")
    table.write(pa.table({"n": [1]}))
    assert not [path for path, data in documents(table).items() if str(tmp_path).encode() in data]


@given(st.lists(SHA, max_size=20))
def test_seen_commits_survive_their_file(shas):
    seen = SeenCommits(tuple(shas))
    assert SeenCommits.parse(seen.to_bytes(), "t/commits.sha256") == seen


@given(st.lists(SHA, min_size=1, max_size=8, unique=True), st.data())
def test_a_log_continues_what_was_seen_or_it_is_said_where_it_does_not(shas, data):
    seen = SeenCommits(tuple(shas))
    longer = SeenCommits((*shas, "0" * 64))
    assert seen.difference(seen) is None
    assert seen.difference(longer) is None
    cut = data.draw(st.integers(0, len(shas) - 1))
    assert f"ends at @{cut - 1}" in seen.difference(SeenCommits(tuple(shas[:cut])))
    other = SeenCommits((*shas[:cut], "f" * 63 + "0", *shas[cut + 1 :]))
    assert f"at @{cut}" in seen.difference(other)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\n",
        b"\xff\xfe\n",
        b"\n",
        ("0" * 64 + "  _delta_log/00000000000000000001.json\n").encode(),
        ("G" * 64 + "  _delta_log/00000000000000000000.json\n").encode(),
        ("0" * 64 + "  ../../etc/passwd\n").encode(),
    ],
)
def test_a_file_of_commits_that_somebody_edited_is_refused_by_line(data):
    with pytest.raises(GovernanceError, match=r"t/commits\.sha256, line 1"):
        SeenCommits.parse(data, "t/commits.sha256")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"project": 1, "schema_version": 1}', b"[" * 100_000])
def test_a_mirror_of_nobody_is_refused(data):
    with pytest.raises(GovernanceError, match=r"project\.json of origin"):
        parse_project_document(data, "origin")


def test_a_newer_mirror_asks_for_an_upgrade():
    with pytest.raises(GovernanceError, match="Upgrade"):
        parse_project_document(b'{"project": "NYC", "schema_version": 2}', "origin")
    assert parse_project_document(project_document("NYC"), "origin") == "NYC"
