"""The git mirror: one commit for each update that changes something, what the log says, and a witness to it."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.errors import (
    GovernanceError,
    IntegrityError,
    InvalidInput,
    RegistryConflict,
    RegistryUnavailable,
    TableNotFound,
)
from dagster_versioned.governance import git_repository
from dagster_versioned.governance.git_repository import GitRepository
from dagster_versioned.governance.version_documents import table_documents
from dagster_versioned.governance.version_mirror import VersionMirror
from dagster_versioned.storage.wrappers import Fault, FaultStore


@pytest.fixture
def remote(tmp_path):
    path = tmp_path / "mirror.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", path], check=True)
    return path


@pytest.fixture
def project(tmp_path):
    return Project.open("NYC", str(tmp_path / "store"))


@pytest.fixture
def mirror(project, remote, tmp_path):
    return VersionMirror.open(project, str(remote), tmp_path / "clone.git")


def git(remote, *arguments):
    return subprocess.run(["git", "-C", remote, *arguments], check=True, capture_output=True, text=True).stdout


def log(remote):
    """The first lines of the commits' messages, newest first."""
    return git(remote, "log", "--format=%s", "main").splitlines() if git(remote, "branch") else []


def files(remote):
    listed = git(remote, "ls-tree", "-r", "--name-only", "main").splitlines()
    return {path: git(remote, "show", f"main:{path}").encode() for path in listed}


def write(project, name, *numbers, **options):
    for n in numbers:
        project.table(name).write(pa.table({"n": [n]}), **options)
    return project.table(name)


def cut(table, *versions):
    """Take commits out of a log, and what was derived from it."""
    table.store.delete([f"_delta_log/{n:020d}.json" for n in versions])


def test_an_update_is_one_commit_that_holds_every_document_of_every_table(project, mirror, remote):
    write(project, "flights", 1, 2)
    project.table("monthly").write_partitions({"2013-01": pa.table({"n": [1]}), "2013-02": pa.table({"n": [2]})})
    report = mirror.update()
    assert [(one.table, one.before, one.log_version) for one in report.changed] == [
        ("flights", -1, 1),
        ("monthly", -1, 0),
    ]
    assert git(remote, "rev-parse", "main").strip() == report.commit
    assert log(remote) == ["Mirror: 2 tables"]
    expected = {"project.json": b'{\n  "project": "NYC",\n  "schema_version": 1\n}\n'}
    for name in ("flights", "monthly"):
        expected |= table_documents(name, project.table(name).state.history)
    assert files(remote) == expected


def test_identical_documents_are_no_new_commit(project, mirror, remote):
    write(project, "flights", 1)
    first = mirror.update()
    again = mirror.update()
    assert (again.commit, again.changed, again.unchanged) == (None, (), 1)
    write(project, "flights", 1)  # none: the log is as it was
    assert mirror.update(["flights"]).commit is None
    assert git(remote, "rev-parse", "main").strip() == first.commit


def test_a_project_without_tables_is_no_commit(mirror, remote):
    assert mirror.update().commit is None
    assert log(remote) == []


def test_each_update_is_one_commit_with_what_changed_since(project, mirror, remote):
    write(project, "flights", 1)
    write(project, "weather", 1)
    mirror.update(title="Run a")
    table = write(project, "flights", 2, 3)
    mirror.update(title="Run b")
    assert log(remote) == ["Run b: 1 table", "Run a: 2 tables"]
    body = git(remote, "log", "-1", "--format=%b", "main").strip().splitlines()
    assert body[0] == f"flights @2 {table.version().short}"
    assert body[-1] == "Signed-off-by: Ada Lovelace <ada@example.org>"
    assert sorted(git(remote, "show", "--name-only", "--format=", "main").split()) == [
        "flights/commits.sha256",
        "flights/metadata.json",
        "flights/version_history.json",
    ]


def test_a_partition_s_change_touches_the_partition_and_the_whole_alone(project, mirror, remote):
    table = project.table("monthly")
    table.write_partitions({"2013-01": pa.table({"n": [1]}), "2013-02": pa.table({"n": [2]})})
    mirror.update()
    table.write(pa.table({"n": [3]}), partition="2013-02")
    mirror.update()
    assert sorted(git(remote, "show", "--name-only", "--format=", "main").split()) == [
        "monthly/commits.sha256",
        "monthly/metadata.json",
        "monthly/partitions/2013-02/metadata.json",
        "monthly/partitions/2013-02/version_history.json",
        "monthly/version_history.json",
    ]


def test_a_dry_run_says_what_it_would_do_and_does_not(project, mirror, remote):
    write(project, "flights", 1)
    report = mirror.update(dry_run=True)
    assert (report.commit, [one.table for one in report.changed]) == (None, ["flights"])
    assert log(remote) == []


def test_only_named_tables_are_mirrored_and_one_that_nobody_knows_is_refused(project, mirror, remote):
    write(project, "flights", 1)
    write(project, "weather", 1)
    mirror.update(["flights"])
    assert mirror.tables() == ["flights"]
    with pytest.raises(TableNotFound):
        mirror.update(["fligths"])
    assert len(log(remote)) == 1


def test_a_mirror_that_was_down_is_caught_up_from_the_log(project, mirror, remote):
    write(project, "flights", 1)
    mirror.update()
    away = remote.rename(remote.with_name("away"))
    for n in (2, 3):
        write(project, "flights", n)
        with pytest.raises(RegistryUnavailable):
            mirror.update()
    assert project.table("flights").version().log_version == 2  # a write asks nobody
    away.rename(remote)
    assert [(one.before, one.log_version) for one in mirror.update().changed] == [(0, 2)]
    assert len(log(remote)) == 2


def test_a_push_that_another_mirror_was_first_with_is_computed_again(project, mirror, remote, tmp_path):
    write(project, "flights", 1)
    write(project, "weather", 1)
    mirrors = [VersionMirror.open(project, str(remote), tmp_path / f"clone{n}.git") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda one: one.update(), mirrors))
    # Within one second, equal commits are one and the same.
    assert {report.commit for report in reports} - {None} == {git(remote, "rev-parse", "main").strip()}
    assert log(remote) == ["Mirror: 2 tables"]
    with ThreadPoolExecutor(4) as pool:
        for n in range(3):
            write(project, "flights", 10 + n)
            write(project, "weather", 10 + n)
            list(pool.map(lambda one, name: one.update([name]), mirrors, ["flights", "weather"] * 2))
    expected = {
        path
        for name in ("flights", "weather")
        for path in table_documents(name, project.table(name).state.history).items()
    }
    assert expected <= set(files(remote).items())
    assert len(log(remote)) == 1 + 6


def test_the_mirror_is_a_witness_to_a_log_that_was_cut(project, mirror):
    table = write(project, "flights", 1, 2, 3)
    mirror.update()
    witnesses = mirror.witnesses("flights")
    assert sorted(witnesses) == [0, 1, 2]
    assert table.verify(witnesses=witnesses).ok
    cut(table, 2)
    table.repair()
    assert project.table("flights").verify().ok  # the log alone cannot tell
    report = project.table("flights").verify(witnesses=witnesses)
    assert [(f.subject, f.where) for f in report.findings] == [("chain", "@2")]
    assert "the log ends before it" in report.findings[0].problem


def test_a_log_that_was_cut_does_not_overwrite_its_witness(project, mirror, remote):
    table = write(project, "flights", 1, 2, 3)
    write(project, "weather", 1)
    mirror.update()
    before = files(remote)
    cut(table, 2)
    table.repair()
    write(project, "weather", 2)
    report = mirror.update()
    assert "ends at @1" in report.refused["flights"]
    assert [one.table for one in report.changed] == ["weather"]  # the others are mirrored all the same
    assert {p: d for p, d in files(remote).items() if p.startswith("flights")} == {
        p: d for p, d in before.items() if p.startswith("flights")
    }
    with pytest.raises(IntegrityError, match="flights: the mirror saw the log up to @2"):
        report.require_ok()
    write(project, "flights", 4)  # as long as it was, but another
    assert "at @2" in mirror.update().refused["flights"]


def test_a_table_that_was_deleted_stays_in_git(project, mirror, remote, tmp_path):
    write(project, "flights", 1)
    mirror.update()
    (tmp_path / "store" / "datom" / "flights").rename(tmp_path / "gone")
    assert "is gone" in mirror.update().refused["flights"]
    assert mirror.witnesses("flights").keys() == {0}


def test_a_log_that_is_right_all_the_same_is_accepted_by_name(project, mirror, remote, tmp_path):
    project.table("flights").write(pa.table({"n": [1]}), partition="a")
    write(project, "weather", 1)
    mirror.update()
    for name in ("flights", "weather"):
        (tmp_path / "store" / "datom" / name).rename(tmp_path / f"old-{name}")
    fresh = Project(project.name, project.store)
    (tmp_path / "store" / "datom" / ".metadata").rename(tmp_path / "old-metadata")
    write(fresh, "flights", 2)
    assert set(mirror.update().refused) == {"flights", "weather"}
    report = mirror.update(accept=["flights", "weather"])
    assert [(one.table, one.log_version) for one in report.changed] == [("flights", 0), ("weather", -1)]
    assert set(files(remote)) == {
        "project.json",
        *(f"flights/{name}" for name in ("commits.sha256", "metadata.json", "version_history.json")),
    }
    assert mirror.update().refused == {}


def test_a_table_that_cannot_be_read_is_refused_and_the_others_are_mirrored(project, mirror):
    table = write(project, "flights", 1)
    write(project, "weather", 1)
    (key,) = [info.key for info in table.store.list("_delta_log/") if info.key.endswith(".json")]
    table.store.put(key, b"nonsense\n")
    report = mirror.update()
    assert [one.table for one in report.changed] == ["weather"]
    assert set(report.refused) == {"flights"}


def test_what_else_is_in_the_repository_is_left_alone(project, mirror, remote):
    GitRepository.open(mirror._repository.path).change(
        lambda tree: [tree.write("README.md", b"hello\n"), tree.write("flights/notes.txt", b"mine\n"), "Say hello"][-1]
    )
    write(project, "flights", 1)
    mirror.update()
    assert {path: files(remote)[path] for path in ("README.md", "flights/notes.txt")} == {
        "README.md": b"hello\n",
        "flights/notes.txt": b"mine\n",
    }


def test_a_document_that_somebody_edited_is_written_again(project, mirror, remote):
    write(project, "flights", 1)
    mirror.update()
    right = files(remote)
    mirror._repository.change(lambda tree: [tree.write("flights/metadata.json", b"{}\n"), "Meddle"][-1])
    assert [one.table for one in mirror.update().changed] == ["flights"]
    assert files(remote) == right


def test_witnesses_that_somebody_edited_are_refused(project, mirror):
    write(project, "flights", 1)
    mirror.update()
    mirror._repository.change(lambda tree: [tree.write("flights/commits.sha256", b"nonsense\n"), "Meddle"][-1])
    assert "line 1" in mirror.update().refused["flights"]
    with pytest.raises(GovernanceError, match="line 1"):
        mirror.witnesses("flights")


def test_another_project_s_repository_is_refused(project, mirror, remote, tmp_path):
    write(project, "flights", 1)
    mirror.update()
    other = Project.open("LAX", str(tmp_path / "other"))
    write(other, "flights", 1)
    theirs = VersionMirror.open(other, str(remote), tmp_path / "theirs.git")
    for refused in (theirs.update, lambda: theirs.witnesses("flights")):
        with pytest.raises(GovernanceError, match="is the mirror of the project 'NYC', not of 'LAX'"):
            refused()
    assert len(log(remote)) == 1


def test_the_registry_is_no_place_for_a_mirror(project, registry, tmp_path):
    write(project, "flights", 1)
    mirror = VersionMirror.open(project, registry.remote, tmp_path / "mine.git")
    with pytest.raises(GovernanceError, match="is a registry"):
        mirror.update()


class Killed(BaseException):
    """What nobody catches."""


@pytest.mark.slow
@pytest.mark.faults
def test_an_update_that_dies_at_any_command_of_git_is_finished_by_the_next(project, mirror, remote, monkeypatch):
    """As a process would that is killed before the command, or after it; never half a commit, and never two."""
    run = git_repository.run_git

    def dies_at(number, *, after):
        calls = iter(range(1, number + 1))

        def dying(*arguments, **options):
            is_last = next(calls, None) == number
            if is_last and not after:
                raise Killed
            done = run(*arguments, **options)
            if is_last:
                raise Killed
            return done

        return dying

    updates = 0
    for after in (False, True):
        for number in range(1, 50):
            updates += 1
            write(project, "flights", updates)
            with monkeypatch.context() as patch, suppress(Killed):
                patch.setattr(git_repository, "run_git", dies_at(number, after=after))
                mirror.update(title=f"Update {updates}")
                break  # it has fewer commands than that
            mirror.update(title=f"Update {updates}")
            assert log(remote)[0] == f"Update {updates}: 1 table"
            assert len(log(remote)) == updates
            assert mirror.witnesses("flights").keys() == set(range(updates))
        assert number > 8


def test_a_mirror_whose_history_was_rewritten_is_reported(project, mirror, remote):
    write(project, "flights", 1, 2)
    mirror.update()
    empty = git(remote, "commit-tree", "-m", "forged", "4b825dc642cb6eb9a060e54bf8d69288fbee4904").strip()
    git(remote, "update-ref", "refs/heads/main", empty)
    with pytest.raises(RegistryConflict, match="rewritten"):
        mirror.update()
    assert sorted(mirror.witnesses("flights")) == [0, 1]  # the clone still knows


def test_a_remote_that_git_would_execute_is_refused(project, tmp_path):
    with pytest.raises(InvalidInput):
        VersionMirror.open(project, f"ext::touch {tmp_path}/owned", tmp_path / "clone.git")
    assert not (tmp_path / "owned").exists()


def test_git_s_history_of_a_project_does_not_know_its_buckets(project, mirror, remote, tmp_path):
    write(project, "flights", 1)
    mirror.update()
    assert not [path for path, data in files(remote).items() if str(tmp_path).encode() in data]


def test_the_documents_go_on_where_the_project_moved_to(project, mirror, remote, tmp_path):
    """The mirror does not know where the bytes are, so a move is nothing to it."""
    write(project, "flights", 1)
    mirror.update()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    moved = VersionMirror.open(Project.open("NYC", str(tmp_path / "elsewhere")), str(remote), tmp_path / "clone.git")
    assert moved.update().commit is None
    write(moved._project, "flights", 2)
    assert [(one.before, one.log_version) for one in moved.update().changed] == [(0, 1)]
    assert json.loads(files(remote)["flights/metadata.json"])["log_version"] == 1


def test_progress_counts_tables(project, mirror):
    write(project, "flights", 1)
    write(project, "weather", 1)
    seen = []
    mirror.update(dry_run=True, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


# Commits that datom's readers show


def named_commits(project, name):
    """What datom's reader shows, oldest first."""
    datom = pytest.importorskip("datom")
    conn = datom.get_conn(datom.store_local(project.store.uri), "NYC")
    return list(datom.history(conn, name, n=100)["commit_sha"])[::-1]


def test_datom_shows_the_commit_that_recorded_a_version_first(project, mirror):
    table = write(project, "daily (v2) delays", 1)
    first = mirror.update().commit
    assert named_commits(project, "daily (v2) delays") == [first]
    write(project, "daily (v2) delays", 2, 1)  # the third is the first again, and its entry the newest
    second = mirror.update().commit
    assert named_commits(project, "daily (v2) delays") == [second, first]
    write(project, "daily (v2) delays", 3)
    third = mirror.update().commit
    table.repair()
    mirror.update()
    assert named_commits(project, "daily (v2) delays") == [second, first, None]
    write(project, "daily (v2) delays", 4)
    mirror.update()
    assert named_commits(project, "daily (v2) delays") == [second, first, third]
    assert table.verify().ok


@pytest.mark.parametrize("step", ["write", "repair", "expire"])
def test_what_is_known_of_a_commit_is_kept_by_whatever_puts_the_documents_anew(project, mirror, step):
    table = write(project, "flights", *range(12))
    table.repair()
    commit = mirror.update().commit
    if step == "write":
        write(project, "flights", *range(20, 32))
    elif step == "repair":
        table.repair()
    else:
        table.expire(keep_last=2, dry_run=False)
    found = named_commits(project, "flights")
    assert set(found) == ({commit, None} if step == "write" else {commit})
    assert table.verify().ok


def test_a_commit_that_was_not_noted_is_with_the_next_update(project, mirror):
    write(project, "flights", 1)
    first = mirror.update().commit
    project.table("flights").store.delete([".metadata/version_history.json"])
    project.table("flights").repair()
    assert named_commits(project, "flights") == [None]
    write(project, "flights", 2)
    mirror.update()
    assert named_commits(project, "flights")[0] == first


def test_of_a_table_that_was_made_anew_the_new_commits_are_shown(project, mirror, remote, tmp_path):
    write(project, "flights", 1, 2)
    mirror.update()
    project.table("flights").store.delete([info.key for info in project.table("flights").store.list()])
    fresh = Project.open("NYC", project.store.uri)
    write(fresh, "flights", 1, 5, 6)
    anew = VersionMirror.open(fresh, str(remote), tmp_path / "clone.git")
    commit = anew.update(accept=["flights"]).commit
    assert named_commits(fresh, "flights") == [commit] * 3


def test_verify_finds_a_commit_that_is_none(project, mirror):
    table = write(project, "flights", 1)
    mirror.update()
    key = ".metadata/version_history.json"
    entries = json.loads(table.store.get(key))
    entries[0]["commit_sha"] = "not a commit"
    table.store.put(key, json.dumps(entries, sort_keys=True, separators=(",", ":")).encode())
    assert [finding.where for finding in table.verify().findings] == [key]


def test_a_store_that_takes_no_writes_is_mirrored_all_the_same(project, remote, tmp_path, caplog):
    write(project, "flights", 1)
    closed = FaultStore(project.store, lambda call: Fault.BEFORE if call.verb.startswith("put") else None)
    report = VersionMirror.open(Project("NYC", closed), str(remote), tmp_path / "clone.git").update()
    assert report.commit is not None
    assert any("does not name its commits" in message for message in caplog.messages)
