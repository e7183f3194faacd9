"""Tags: a name for all tables of a project at one moment, which keeps what it names."""

import contextlib
import re
import shutil
import threading
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.errors import (
    CommitConflict,
    ExpiredVersion,
    IntegrityError,
    InvalidInput,
    InvalidName,
    InvalidReference,
    ProjectMoved,
    TableNotFound,
    VersionNotFound,
)
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location
from dagster_versioned.tables.documents.tag import Tag
from dagster_versioned.tables.relocation.migration_mark import MigrationMark, clear_mark, put_mark
from support.chain import forked, rows
from support.hooked_store import HookedStore
from support.s3_server import S3Server
from support.stores import contents

KEY = ".metadata/tags/x.json"


def numbers(project: Project, version: str | None = None, table: str = "numbers", **given) -> list[int]:
    return project.table(table).read(version, **given)["n"].to_pylist()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project.open("NYC", str(tmp_path / "lake"), author="Ada")
    for n in range(7):
        made.table("numbers").write(rows(n))
    made.table("others").write(rows(70))
    return made


@pytest.fixture
def mark(project: Project) -> MigrationMark:
    place = Location.parse(project.store.uri)
    return MigrationMark("m1", "leaving", place, place, "2026-11-24T00:00:00+00:00")


def hooked(tmp_path: Path, verb, ending: str, hook) -> Project:
    """The project of somebody to whom something happens right before one call."""
    return Project("NYC", HookedStore(LocalStore(tmp_path / "lake"), verb, ending, hook))


class TestReading:
    def test_every_table_is_as_it_was(self, project):
        made = project.tag("2026-11", why="monthly report")
        project.table("numbers").write(rows(99))
        project.table("others").write(rows(71))
        assert numbers(project, "tag:2026-11") == [6]
        assert numbers(project, "tag:2026-11", table="others") == [70]
        assert numbers(project) == [99]
        table = project.table("numbers")
        assert table.version("tag:2026-11").log_version == 6
        assert table.upstream("tag:2026-11")[0].parent.version == table.version("@6").metadata_sha
        assert table.diff("tag:2026-11", None).after.log_version == 7
        assert table.verify("tag:2026-11").ok
        assert (made.by, made.why, sorted(made.tables)) == ("Ada", "monthly report", ["numbers", "others"])
        assert project.tags() == {"2026-11": made}

    def test_on_s3(self, s3_server: S3Server):
        project = Project("NYC", s3_server.store(s3_server.new_bucket()))
        for n in range(3):
            project.table("numbers").write(rows(n))
        made = project.tag("x")
        project.table("numbers").write(rows(99))
        project.table("numbers").expire(keep_last=1, dry_run=False)
        assert numbers(project, "tag:x") == [2]
        with pytest.raises(InvalidInput, match="There is a tag 'x' already"):
            project.tag("x")
        assert project.tags() == {"x": made}
        project.drop_tag("x")
        assert project.tags() == {}

    def test_partitions(self, project):
        daily = project.table("daily")
        daily.write_partitions({"a": rows(1), "b": rows(2)})
        project.tag("x")
        daily.write(rows(3), partition="b")
        daily.write(rows(4), partition="c")
        assert sorted(numbers(project, "tag:x", table="daily")) == [1, 2]
        assert numbers(project, "tag:x", table="daily", partition="b") == [2]
        assert daily.version("tag:x", partition="b").log_version == 0
        with pytest.raises(VersionNotFound, match="No version of partition 'c'"):
            numbers(project, "tag:x", table="daily", partition="c")

    def test_a_table_that_is_not_in_it(self, project):
        project.tag("x")
        project.table("later").write(rows(1))
        with pytest.raises(VersionNotFound, match=r"The tag 'x' of .* has no table later"):
            numbers(project, "tag:x", table="later")
        with pytest.raises(TableNotFound):
            numbers(project, "tag:x", table="never")

    def test_an_unknown_one(self, project):
        with pytest.raises(VersionNotFound, match=r"no tag 'y' in .* There are: none"):
            numbers(project, "tag:y")
        project.tag("x")
        with pytest.raises(VersionNotFound, match="There are: x"):
            numbers(project, "tag:y")

    def test_one_with_commits_that_make_no_version(self, project):
        project.table("numbers").revert("@2", hold=True, why="w")
        project.table("numbers").release()
        project.tag("x")
        project.table("numbers").write(rows(99))
        assert numbers(project, "tag:x") == [2]

    def test_no_version_without_what_it_was_built_from(self, project, tmp_path):
        """Somebody writes a table and then what is built from it, between the reading of one head and of the other."""

        def write_both() -> None:
            project.table("numbers").write(rows(41))
            project.table("others").write(rows(42), parents=project.table("numbers").upstream())

        hooked(tmp_path, "get", "heads/others.json", write_both).tag("x")
        (parent,) = project.table("others").version("tag:x").entry.identity.parents
        assert parent.version == project.table("numbers").version("tag:x").metadata_sha

    def test_an_external_table_has_none(self, project, tmp_path):
        from dagster_versioned.tables.external import ExternalTable

        uri = project.table("numbers").store.uri
        with pytest.raises(InvalidInput, match="no pins or tags of ours"):
            ExternalTable(f"file://{uri}", name="outside").read("tag:x")


class TestTablesThatChangedSince:
    def test_renamed(self, project):
        project.tag("x")
        project.table("numbers").rename("digits", dry_run=False)
        project.table("digits").rename("figures", dry_run=False)
        project.table("figures").write(rows(99))
        project.table("figures").vacuum(dry_run=False, min_age=timedelta(seconds=-1))
        project.table("figures").expire(keep_last=1, dry_run=False)
        assert numbers(project, "tag:x", table="figures") == [6]
        assert numbers(project, "tag:x", table="numbers") == [6]
        with pytest.raises(InvalidInput, match="what the tag 'x' names"):
            project.table("figures").purge(["@6"], why="erasure request 12", dry_run=False)

    def test_renamed_before(self, project):
        project.table("numbers").rename("digits", dry_run=False)
        assert sorted(project.tag("x").tables) == ["digits", "others"]
        project.table("digits").write(rows(99))
        assert numbers(project, "tag:x", table="numbers") == [6]

    def test_a_rename_of_the_project(self, project):
        project.tag("x")
        renamed = project.rename("LGA")
        renamed.table("numbers").write(rows(99))
        assert numbers(renamed, "tag:x") == [6]

    def test_dropped(self, project):
        project.tag("x")
        project.table("numbers").drop(dry_run=False)
        project.table("numbers").expire(keep_last=1, older_than=None, dry_run=False)
        assert numbers(project, "tag:x") == [6]
        project.tag("y")
        with pytest.raises(VersionNotFound, match=r"The tag 'y' .* has no table numbers: .*dropped"):
            numbers(project, "tag:y")

    @pytest.mark.parametrize("versions", [1, 7, 20])
    def test_deleted_and_made_anew(self, project, versions):
        project.tag("x")
        shutil.rmtree(project.table("numbers").store.uri)
        project.data.delete([".metadata/heads/numbers.json"])
        anew = Project.open("NYC", project.store.uri)
        for n in range(versions):
            anew.table("numbers").write(rows(100 + n))
        with pytest.raises(IntegrityError, match="@6 of numbers is not the one that the tag x names"):
            numbers(anew, "tag:x")
        anew.table("numbers").expire(keep_last=1, dry_run=False)

    def test_a_dropped_partition(self, project):
        project.table("daily").write_partitions({"a": rows(1), "b": rows(2)})
        project.tag("x")
        project.table("daily").drop_partitions(["b"], dry_run=False)
        assert numbers(project, "tag:x", table="daily", partition="b") == [2]


class TestKept:
    def test_expire_keeps_what_a_tag_names_and_what_that_was_built_from(self, project):
        numbers_, others = project.table("numbers"), project.table("others")
        others.write(rows(71), parents=numbers_.upstream("@3"))
        project.tag("x")
        for n in (98, 99):
            numbers_.write(rows(n))
            others.write(rows(n))
        assert set(others.expire(keep_last=1, dry_run=False).kept.values()) == {"what the tag 'x' names"}
        kept = numbers_.expire(keep_last=1, dry_run=False).kept
        assert sorted(kept) == sorted(numbers_.version(at).short for at in ("@3", "@6"))
        assert numbers(project, "tag:x") == [6]
        assert numbers(project, "@3") == [3]
        project.drop_tag("x")
        others.expire(keep_last=1, dry_run=False)
        numbers_.expire(keep_last=1, dry_run=False)
        for at in ("@3", "@6"):
            with pytest.raises(ExpiredVersion):
                numbers(project, at)

    def test_purge_names_the_tag(self, project):
        project.tag("x")
        project.table("numbers").write(rows(99))
        with pytest.raises(InvalidInput, match=r"the tag 'x' names\. Nothing was deleted\. Drop that tag first"):
            project.table("numbers").purge(["@6"], why="erasure request 12", dry_run=False)
        project.drop_tag("x")
        assert project.table("numbers").purge(["@6"], why="erasure request 12", dry_run=False).keys

    def test_partitions(self, project):
        daily = project.table("daily")
        daily.write_partitions({"a": rows(1), "b": rows(2)})
        project.tag("x")
        daily.write_partitions({"a": rows(3), "b": rows(4)})
        daily.expire(keep_last=1, dry_run=False)
        assert sorted(numbers(project, "tag:x", table="daily")) == [1, 2]

    @pytest.mark.parametrize("bad", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"tables": {"other": 1}}'])
    def test_one_that_cannot_be_read_stops_nothing_and_is_named(self, project, bad):
        project.tag("x")
        project.data.put(KEY, bad)
        numbers_table = project.table("numbers")
        numbers_table.write(rows(99))
        for attempt in (lambda: numbers(project, "tag:x"), project.tags):
            with pytest.raises(IntegrityError, match=r"tags/x\.json cannot be read.*tag drop x --apply"):
                attempt()
        purged = numbers_table.purge(["@6"], why="w", dry_run=False)
        expired = numbers_table.expire(keep_last=1, dry_run=False)
        assert (len(purged.versions), purged.unreadable, expired.unreadable) == (1, (KEY,), (KEY,))
        assert numbers(project) == [99]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: data[:-10],
            lambda data: data.replace(b'"schema_version"', b'"version"'),
            lambda data: data.replace(b'"log_version"', b'"log"'),
            lambda data: re.sub(rb'"commit_sha256":\s*"[0-9a-f]+"', b'"commit_sha256":null', data),
            lambda data: re.sub(rb'"numbers":\s*{[^}]*}', b'"numbers":null', data),
            lambda data: b"\xff" + data,
        ],
        ids=["cut", "no schema_version", "no log_version", "no commit", "neither", "no text"],
    )
    def test_of_one_that_cannot_be_read_what_it_names_is_kept(self, project, damage):
        project.tag("x")
        project.data.put(KEY, damage(project.data.get(KEY)))
        table = project.table("numbers")
        table.write(rows(99))
        table.write(rows(100))
        expired = table.expire(keep_last=1, dry_run=False)
        assert "the tag 'x' names" in " ".join(expired.kept.values())
        with pytest.raises(InvalidInput, match="what the tag 'x' names"):
            table.purge(["@6"], why="w", dry_run=False)
        assert numbers(project, "@6") == [6]


class TestRaces:
    def test_versions_that_are_collected_before_the_tag_is_there(self, project, tmp_path):
        def collect() -> None:
            project.table("numbers").write(rows(99))
            project.table("numbers").expire(keep_last=1, dry_run=False)

        with pytest.raises(CommitConflict, match="of numbers was collected while the tag x was made"):
            hooked(tmp_path, "put_if_absent", KEY, collect).tag("x")
        assert project.tags() == {}
        project.tag("x")
        assert numbers(project, "tag:x") == [99]

    @pytest.mark.parametrize("verb", ["expire", "purge"])
    def test_a_collection_that_is_announced_and_deletes(self, project, tmp_path, verb):
        """It has looked for tags for the last time, and the tag is put while it deletes."""
        deleting, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            deleting.set()
            assert go_on.wait(240)

        def collect() -> None:
            table = hooked(tmp_path, "delete", ".parquet", wait).table("numbers")
            if verb == "expire":
                table.expire(keep_last=1, dry_run=False)
            else:
                table.purge(["@6"], why="w", dry_run=False)

        collector = threading.Thread(target=collect)

        def begin() -> None:
            project.table("numbers").write(rows(99))
            collector.start()
            assert deleting.wait(240)

        with pytest.raises(CommitConflict, match="was collected while"):
            hooked(tmp_path, "put_if_absent", KEY, begin).tag("x")
        go_on.set()
        collector.join()
        assert project.tags() == {}
        with pytest.raises(ExpiredVersion):
            numbers(project, "@6")

    def test_a_tag_that_comes_between_the_plan_and_the_announcement_of_a_collection(self, project, tmp_path):
        project.tag("x")
        document = project.data.get(KEY)
        project.drop_tag("x")
        project.table("numbers").write(rows(99))
        late = hooked(tmp_path, "put_if_absent", f"{8:020}.json", lambda: project.data.put(KEY, document))
        late.table("numbers").expire(keep_last=1, dry_run=False)
        assert numbers(project, "tag:x") == [6]

    def test_every_tag_that_was_made_can_be_read(self, project):
        """One writes, one collects, one tags; a tag is there and whole, or its maker was told that it is not."""
        done = threading.Event()

        def write() -> None:
            table = Project.open("NYC", project.store.uri).table("numbers")
            for n in range(60):
                table.write(rows(1000 + n))
            done.set()

        def collect() -> None:
            table = Project.open("NYC", project.store.uri).table("numbers")
            while not done.is_set():
                with contextlib.suppress(CommitConflict):
                    table.expire(keep_last=1, dry_run=False)

        threads = [threading.Thread(target=write), threading.Thread(target=collect)]
        for thread in threads:
            thread.start()
        made: list[str] = []
        while not done.is_set():
            with contextlib.suppress(CommitConflict):
                made.append(project.tag(f"t{len(made)}").name)
        for thread in threads:
            thread.join()
        assert made
        assert sorted(project.tags()) == sorted(made)
        for name in made:
            assert numbers(project, f"tag:{name}")
        assert not project.table("numbers").verify().findings

    def test_two_of_one_name(self, project, tmp_path):
        def other() -> None:
            project.tag("x", by="Grace")

        with pytest.raises(InvalidInput, match=r"There is a tag 'x' already, of .* drop it first"):
            hooked(tmp_path, "put_if_absent", KEY, other).tag("x")
        assert project.tags()["x"].by == "Grace"

    @pytest.mark.parametrize(
        ("verb", "ending"),
        [
            ("put_if_match", "heads/digits.json"),
            ("put_if_absent", f"numbers/_delta_log/{7:020}.json"),
            ("put", "digits/_delta_log/.left"),
            ("put_if_absent", f"digits/_delta_log/{7:020}.json"),
            ("put_if_absent", f"digits/_delta_log/{0:020}.json"),
            ("get", "pins.json"),
            ("delete", "digits/_delta_log/.left"),
            ("put", "numbers/_delta_log/.left"),
            ("put_if_match", "heads/numbers.json"),
        ],
    )
    @pytest.mark.slow
    def test_a_tag_in_the_middle_of_a_rename(self, project, tmp_path, verb, ending):
        """It has the table by the name that it has or had, or is refused while that has neither."""
        said: list[str] = []

        def tag() -> None:
            try:
                project.tag("x")
                said.append("made")
            except CommitConflict as error:
                said.append(str(error))

        hooked(tmp_path, verb, ending, tag).table("numbers").rename("digits", dry_run=False)
        again = Project.open("NYC", project.store.uri)
        if said != ["made"]:
            assert "numbers is being renamed to digits" in said[0]
            again.tag("x")
        again.table("digits").write(rows(99))
        again.table("digits").expire(keep_last=1, dry_run=False)
        assert numbers(again, "tag:x", table="digits") == [6]
        assert numbers(again, "tag:x") == [6]

    def test_a_rename_that_died(self, project, tmp_path):
        """Whoever creates an environment is told, too, rather than that the table would be missing there."""

        def die() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            hooked(tmp_path, "put", "digits/_delta_log/.left", die).table("numbers").rename("digits", dry_run=False)
        for attempt in (lambda: project.tag("x"), lambda: create_environment(project, "pr-1")):
            with pytest.raises(CommitConflict, match="rename numbers digits --apply"):
                attempt()
        project.table("numbers").rename("digits", dry_run=False)
        assert sorted(project.tag("x").tables) == ["digits", "others"]

    def test_a_rename_while_a_tag_is_made(self, project, tmp_path):
        hooked(tmp_path, "put_if_absent", KEY, lambda: project.table("numbers").rename("digits", dry_run=False)).tag(
            "x"
        )
        assert numbers(project, "tag:x", table="digits") == [6]

    def test_a_place_that_a_migration_leaves(self, project, mark):
        project.tag("before")
        put_mark(project.data, mark)
        before = contents(project.data)
        with pytest.raises(ProjectMoved):
            project.tag("x")
        with pytest.raises(ProjectMoved):
            project.drop_tag("before")
        assert contents(project.data) == before
        assert numbers(project, "tag:before") == [6]

    def test_a_migration_that_begins_while_one_is_made_or_dropped(self, project, tmp_path, mark):
        late = hooked(tmp_path, "put_if_absent", KEY, lambda: put_mark(project.data, mark))
        with pytest.raises(ProjectMoved):
            late.tag("x")
        assert project.tags() == {}
        clear_mark(project.data, mark.id)
        project.tag("x")
        late = hooked(tmp_path, "put_if_match", KEY, lambda: put_mark(project.data, mark))
        with pytest.raises(ProjectMoved, match=r"may still be at the new place. Drop it there"):
            late.drop_tag("x")


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", "../x", "a/b", "a\\b", "/x", ".x", "-x", "_x", "ä", "a b", "a\0", "a\n", "x" * 101, "x" * 500],
    )
    def test_tricks_are_refused(self, project, name):
        before = contents(project.store)
        for attempt in (project.tag, project.drop_tag):
            with pytest.raises(InvalidName, match="no name of a tag"):
                attempt(name)
        with pytest.raises(InvalidReference):
            numbers(project, f"tag:{name}")
        assert contents(project.store) == before

    @pytest.mark.parametrize("name", ["2026-11", "v1.0_rc-1", "x" * 100, "a.json", "T", "1"])
    def test_names(self, project, name):
        project.tag(name)
        project.table("numbers").write(rows(99))
        assert list(project.tags()) == [name]
        assert numbers(project, f"tag:{name}") == [6]

    def test_a_taken_name(self, project):
        made = project.tag("x")
        project.table("numbers").write(rows(99))
        with pytest.raises(InvalidInput, match="There is a tag 'x' already"):
            project.tag("x")
        assert project.tags() == {"x": made}

    def test_dropping_one_that_is_not_there(self, project):
        project.tag("x")
        with pytest.raises(VersionNotFound, match="There are: x"):
            project.drop_tag("y")

    def test_a_place_without_tables(self, tmp_path):
        with pytest.raises(InvalidInput, match="would name nothing"):
            Project.open("NYC", str(tmp_path / "elsewhere")).tag("x")
        assert not (tmp_path / "elsewhere").exists()

    def test_another_projects_place(self, project):
        with pytest.raises(InvalidInput, match="holds the project 'NYC'"):
            Project.open("OTHER", project.store.uri).tag("x")
        assert project.tags() == {}


class TestInAnEnvironment:
    def test_none_is_seen_and_none_is_made(self, project):
        project.tag("x")
        branch = forked(project)
        assert branch.tags() == {}
        with pytest.raises(VersionNotFound, match="no tag 'x'"):
            numbers(branch, "tag:x")
        before = contents(project.store)
        for attempt in (lambda: branch.tag("y"), lambda: branch.drop_tag("x")):
            with pytest.raises(InvalidInput, match="in the environment pr-1"):
                attempt()
        assert contents(project.store) == before


class TestForgedDocuments:
    @given(st.data())
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_is_no_tag_is_refused_whole(self, project, data):
        if not project.tags():
            project.tag("x")
        raw = orjson.loads(project.data.get(KEY))
        place = data.draw(st.sampled_from([raw, raw["tables"], raw["tables"]["numbers"]]))
        member = data.draw(st.sampled_from([*sorted(place), "../x", "more"]))
        odd = [None, 0, -1, 2, "", "y", "../x", [], {}, {"../x": {}}, "2026-11-24", "2026-11-24T00:00+14:00", True, 1.5]
        value = data.draw(st.sampled_from([*odd, 2**63, 2**64 - 1, "0" * 64, "A" * 64]) | st.text(max_size=20))
        place[member] = value
        with contextlib.suppress(TypeError, UnicodeError):  # what is no JSON
            self.check(orjson.dumps(raw))

    @given(st.binary(max_size=200))
    def test_any_bytes(self, data):
        self.check(data)

    def check(self, data: bytes) -> None:
        try:
            tag = Tag.from_bytes(data, "x")
        except IntegrityError:
            return
        assert tag.name == "x"
        assert tag.at.utcoffset() == timedelta(0)
        assert all(name and "/" not in name and "." not in name for name in tag.tables)
        for table in tag.tables.values():
            assert 0 <= table.log_version < 2**63
            assert re.fullmatch("[0-9a-f]{64}", table.commit_sha256)
        assert Tag.from_bytes(tag.to_bytes(), "x") == tag

    def test_another_version_of_a_table(self, project):
        """Who forges a log version does not make a reader take other rows for the tag's."""
        project.tag("x")
        raw = orjson.loads(project.data.get(KEY))
        for forged in (5, 7, 2**62):
            raw["tables"]["numbers"]["log_version"] = forged
            project.data.put(KEY, orjson.dumps(raw))
            with pytest.raises(IntegrityError, match="is not the one that the tag x names"):
                numbers(project, "tag:x")

    def test_the_document_of_another_one(self, project):
        project.tag("x")
        project.data.put(".metadata/tags/y.json", project.data.get(KEY))
        with pytest.raises(IntegrityError, match=r"tags/y\.json cannot be read"):
            numbers(project, "tag:y")

    def test_other_files_beside_them_are_passed_over(self, project):
        made = project.tag("x")
        for name in ("notes.txt", "a b.json", ".json", "deeper/y.json"):
            project.data.put(f".metadata/tags/{name}", b"hello")
        assert project.tags() == {"x": made}
