"""An exported environment: a project of its own at another place, which needs nothing of the one that it came from."""

import contextlib
import itertools
import shutil
from datetime import timedelta
from pathlib import Path

import deltalake
import orjson
import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.export import export_environment
from dagster_versioned.errors import (
    EnvironmentNotFound,
    ExpiredVersion,
    IntegrityError,
    InvalidInput,
    StoreUnavailable,
    TableNotFound,
    VersionedError,
)
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.verification.verify import verify as verify_chain
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location, ObjectStore
from dagster_versioned.tables.event_history import EventHistory, SnapshotMerge
from dagster_versioned.tables.options import TableOptions
from support.chain import forked, rows
from support.chain import sorted_numbers as numbers
from support.crashes import BY_VECTORS, append_as_another_program
from support.frames import numbered
from support.hooked_store import HookedStore
from support.interleaving import dying
from support.readers import assert_same, by_datafusion, by_deltalake
from support.s3_server import S3Server
from support.stores import contents

MARK = "datom/.metadata/export.json"


def build(project: Project, table: str, frame: pa.Table, *upstreams: str, **given) -> None:
    parents = [parent for one in upstreams for parent in project.table(one).upstream()]
    project.table(table).write(frame, parents=parents, **given)


@pytest.fixture
def project(tmp_path) -> Project:
    """``raw``, and ``top`` built from it, of which ``pr-1`` has two other versions."""
    made = Project.open("NYC", str(tmp_path / "lake"), author="Ada")
    made.table("raw").write(rows(1, 2))
    build(made, "top", rows(1), "raw")
    build(made, "top", rows(2), "raw")
    branch = forked(made)
    build(branch, "top", rows(3), "raw")
    build(branch, "top", rows(4), "raw")
    return made


@pytest.fixture
def branch(project) -> Project:
    return project.in_environment("pr-1")


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "out"


def opened(place: Path) -> Project:
    return Project.open("NYC", str(place))


def require_sound(exported: Project, expected: Project, *tables: str) -> None:
    """The current versions of these tables and no others, by the same names, with the same history."""
    assert list(map(str, exported.tables())) == sorted(tables)
    for name in tables:
        here, there = exported.table(name), expected.table(name)
        assert {k: v.metadata_sha for k, v in here.state.history.heads.items()} == {
            k: v.metadata_sha for k, v in there.state.history.heads.items()
        }
        assert [v.metadata_sha for v in here.history()] == [v.metadata_sha for v in there.history()]
        assert_same(here.read(), there.read())
        here.verify().require_ok()
        assert not here.vacuum(min_age=timedelta(seconds=-1)).keys


class TestWhatIsThere:
    def test_what_was_written_and_nothing_changes_where_it_came_from(self, project, branch, place):
        before = contents(project.store)
        dry = export_environment(project, "pr-1", str(place), dry_run=True)
        assert not place.exists()
        seen = []
        report = export_environment(
            project, "pr-1", str(place), progress=lambda done, total: seen.append((done, total))
        )
        assert report.tables == dry.tables
        assert [(one.table, one.log_version, one.files) for one in report.tables] == [("top", 3, 1)]
        assert report.left_out == ("raw",)
        assert report.size_bytes > 0
        assert seen[-1] == (1, 1)
        assert contents(project.store) == before
        require_sound(opened(place), branch, "top")
        assert by_deltalake(place / "datom" / "top")["n"].to_pylist() == [4]

    def test_older_versions_are_history_that_cannot_be_read(self, project, place):
        export_environment(project, "pr-1", str(place))
        top = opened(place).table("top")
        assert [version.gone for version in top.history()] == [None, "expire", "expire", "expire"]
        with pytest.raises(ExpiredVersion):
            top.read("@0")
        assert len(top.verify().gaps) == 3

    def test_an_older_version_with_the_same_files_can_be_read(self, project, branch, place):
        build(branch, "top", rows(4), "raw", message="the same rows")
        export_environment(project, "pr-1", str(place))
        top = opened(place).table("top")
        assert [version.gone for version in top.history()[:3]] == [None, None, "expire"]
        assert numbers(opened(place), "top", "@3") == [4]
        top.verify().require_ok()

    def test_nothing_of_production_is_needed(self, project, branch, place, tmp_path):
        expected = branch.table("raw").read()
        export_environment(project, "pr-1", str(place), tables="all")
        shutil.rmtree(tmp_path / "lake")
        exported = opened(place)
        assert_same(exported.table("raw").read(), expected)
        assert numbers(exported, "top") == [4]
        for table in exported.tables():
            exported.table(table).verify().require_ok()

    def test_all_tables_or_those_that_are_named(self, project, branch, place, tmp_path):
        report = export_environment(project, "pr-1", str(place), tables="all")
        assert not report.left_out
        require_sound(opened(place), branch, "raw", "top")
        export_environment(project, "pr-1", str(tmp_path / "raw"), tables=["raw"])
        require_sound(opened(tmp_path / "raw"), branch, "raw")
        with pytest.raises(TableNotFound, match="no version of other"):
            export_environment(project, "pr-1", str(tmp_path / "none"), tables=["other"])
        assert not (tmp_path / "none").exists()

    def test_nothing_to_export(self, project, place):
        create_environment(project, "pr-2")
        with pytest.raises(InvalidInput, match="Nothing was written in the environment pr-2"):
            export_environment(project, "pr-2", str(place))
        with pytest.raises(EnvironmentNotFound):
            export_environment(project, "pr-3", str(place))
        assert not place.exists()

    def test_what_was_dropped_there_is_left_out(self, project, branch, place):
        branch.table("raw").drop(dry_run=False)
        report = export_environment(project, "pr-1", str(place))
        assert [one.table for one in report.tables] == ["top"]

    def test_the_project_goes_on(self, project, branch, place):
        export_environment(project, "pr-1", str(place))
        drop_environment(project, "pr-1")
        exported = opened(place)
        before = contents(exported.data)
        exported.table("top").repair()
        assert contents(exported.data) == before
        for number in range(8):
            build(exported, "top", rows(number, number))
        assert exported.table("top").expire(keep_last=1, dry_run=False).keys
        exported.table("top").verify().require_ok()
        assert numbers(project, "top") == [2]
        with pytest.raises(InvalidInput, match="holds the project 'NYC'"):
            Project.open("OTHER", str(place)).table("top").write(rows(1))

    def test_a_missing_parent_that_was_not_left_out_is_found(self, project, place):
        export_environment(project, "pr-1", str(place))
        mark = orjson.loads((place / MARK).read_bytes())
        (place / MARK).write_bytes(orjson.dumps({**mark, "left_out": []}))
        assert [one.subject for one in opened(place).table("top").verify().findings] == ["parent"]

    def test_what_is_put_at_the_place_names_no_other(self, project, place, tmp_path):
        export_environment(project, "pr-1", str(place), by="Bea")
        mark = orjson.loads((place / MARK).read_bytes())
        assert mark.keys() == {
            "schema_version",
            "project",
            "environment",
            "generation",
            "created",
            "by",
            "tables",
            "left_out",
            "complete",
        }
        assert mark["complete"] is True
        assert mark["by"] == "Bea"
        for key in contents(LocalStore(place)):
            assert str(tmp_path / "lake").encode() not in (place / key).read_bytes()


class TestKindsOfTables:
    def test_partitions(self, project, branch, place):
        for key in ("a", "b", "c"):
            build(branch, "daily", rows(1), "raw", partition=key)
        build(branch, "daily", rows(2), "raw", partition="b")
        branch.table("daily").drop_partitions(["c"], dry_run=False)
        export_environment(project, "pr-1", str(place))
        require_sound(opened(place), branch, "daily", "top")
        daily = opened(place).table("daily")
        assert sorted(daily.partitions()) == ["a", "b"]
        assert {v.partition: v.gone for v in daily.history() if v.gone} == {"b": "expire", "c": "expire"}
        assert by_deltalake(place / "datom" / "daily").num_rows == 2

    def test_partition_columns(self, project, branch, place):
        options = TableOptions(partition_columns=("day",))
        branch.table("days").write(pa.table({"day": ["x", "a b", None], "n": [1, 2, 3]}), options=options)
        export_environment(project, "pr-1", str(place))
        require_sound(opened(place), branch, "days", "top")
        assert by_deltalake(place / "datom" / "days").num_rows == 3

    def test_deletion_vectors_and_files_of_changes(self, project, place):
        table = project.table("merged")
        table.write(numbered(3_000), options=BY_VECTORS)
        branch = forked(project, "pr-2")
        for first in (0, 1):
            some = numbered(3_000).take(list(range(first, 3_000, 5)))
            changed = some.set_column(1, "text", pa.array([f"changed {first}"] * some.num_rows))
            branch.table("merged").write(changed, options=BY_VECTORS)
        adds = branch.table("merged").files().adds
        assert "u" in {add.deletion_vector.storage_type for add in adds if add.deletion_vector}
        export_environment(project, "pr-2", str(place))
        require_sound(opened(place), branch, "merged")
        assert_same(by_datafusion(place / "datom" / "merged"), branch.table("merged").read())
        names = list(contents(opened(place).table("merged").store))
        assert [name for name in names if name.startswith("_change_data/")]
        # The first merge left the part in place, so its version is without its vector alone.
        assert [version.gone for version in opened(place).table("merged").history()] == [None, "expire", None]

    def test_a_history_of_events(self, project, place, tmp_path):
        merge = EventHistory(merge=SnapshotMerge(primary_key=("id",)))
        EventTable(project.table("flights"), merge).write(pa.table({"id": [1, 2], "delay": [3, 4]}))
        branch = forked(project, "pr-2")
        EventTable(branch.table("flights"), merge).write(pa.table({"id": [1, 2], "delay": [3, 9]}))
        EventTable(project.table("flights"), merge).write(pa.table({"id": [7], "delay": [7]}))
        export_environment(project, "pr-2", str(place))
        expected = EventTable(branch.table("flights"), merge)
        shutil.move(tmp_path / "lake", tmp_path / "elsewhere")
        exported = EventTable(opened(place).table("flights"), merge)
        assert exported.current().num_rows == 2
        assert not [version for version in exported.table.history() if version.gone]
        exported.table.verify().require_ok()
        assert verify_chain(RemoteDataset(exported.table.store)).ok
        exported.write(pa.table({"id": [1], "delay": [1]}))
        assert verify_chain(RemoteDataset(exported.table.store)).ok
        shutil.move(tmp_path / "elsewhere", tmp_path / "lake")
        assert expected.current().num_rows == 2

    def test_a_feature(self, project, place):
        options = TableOptions(row_group_bytes=1_500, target_part_bytes=1)
        project.table("samples").write(numbered(90), options=options)
        branch = forked(project, "pr-2")
        some = numbered(90).take([3, 4, 40])
        base = branch.table("samples").version().metadata_sha
        gone = numbered(90).take([50, 70]).select(["n"])
        update = SampleUpdate(some, gone, ("n",), ("n",), base, {"feature": {"left": 0}})
        branch.table("samples").write(update, options=options)
        export_environment(project, "pr-2", str(place))
        require_sound(opened(place), branch, "samples")

    def test_rows_of_another_program(self, project, branch, place):
        append_as_another_program(branch.table("top"), rows(99))
        branch.table("top").resolve()
        export_environment(project, "pr-1", str(place))
        assert numbers(opened(place), "top") == [4, 99]
        opened(place).table("top").verify().require_ok()

    @pytest.mark.slow
    def test_a_long_log(self, project, branch, place):
        for number in range(105):
            build(branch, "top", rows(number), "raw")
        export_environment(project, "pr-1", str(place))
        require_sound(opened(place), branch, "top")
        assert deltalake.DeltaTable(str(place / "datom" / "top")).version() == 109
        assert [version.gone for version in opened(place).table("top").history()] == [None] + ["expire"] * 108


class TestOneState:
    def test_writes_meanwhile_are_not_in_it(self, project, branch, place):
        def write() -> None:
            build(branch, "top", rows(77), "raw")
            build(branch, "new", rows(77), "top")

        store = HookedStore(LocalStore(place), "put_if_absent", "export.json", write)
        export_environment(project, "pr-1", str(place), open_store=lambda _: store)
        assert numbers(branch, "top") == [77]
        assert numbers(opened(place), "top") == [4]
        assert list(opened(place).tables()) == ["top"]
        opened(place).table("top").verify().require_ok()

    def test_what_goes_on_is_the_state_that_it_began_with(self, project, branch, place):
        with pytest.raises(StoreUnavailable):
            export_environment(project, "pr-1", str(place), open_store=lambda at: dying(LocalStore(at.root), 4))
        build(branch, "top", rows(77), "raw")
        build(branch, "new", rows(77), "raw")
        with pytest.raises(InvalidInput, match="an unfinished export of other tables: top"):
            export_environment(project, "pr-1", str(place), tables=["new", "top"])
        with pytest.raises(InvalidInput, match="an unfinished export of other tables: top"):
            export_environment(project, "pr-1", str(place), tables="all")
        report = export_environment(project, "pr-1", str(place))
        assert [one.log_version for one in report.tables] == [3]
        assert numbers(opened(place), "top") == [4]

    def test_an_environment_that_is_dropped_meanwhile(self, project, place):
        def drop() -> None:
            drop_environment(project, "pr-1")

        store = HookedStore(LocalStore(place), "put", "_delta_log/.left", drop)
        with pytest.raises(EnvironmentNotFound, match="was dropped"):
            export_environment(project, "pr-1", str(place), open_store=lambda _: store)
        assert not opened(place).tables()


class TestPlaces:
    @pytest.mark.parametrize("inside", ["", "datom", "datom/top", "x", "environments/files/pr-1", "environments/x/y"])
    def test_inside_of_the_project(self, project, tmp_path, inside):
        before = contents(project.store)
        (tmp_path / "link").symlink_to(tmp_path / "lake")
        for root in ("lake", "link"):
            with pytest.raises(InvalidInput, match=r"lies inside of|is not empty"):
                export_environment(project, "pr-1", str(tmp_path / root / inside))
        assert contents(project.store) == before

    def test_around_the_project_or_beside_other_files(self, project, tmp_path):
        with pytest.raises(InvalidInput, match="is not empty"):
            export_environment(project, "pr-1", str(tmp_path))
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "a.txt").write_text("mine")
        with pytest.raises(InvalidInput, match=r"is not empty: there is 'a.txt'"):
            export_environment(project, "pr-1", str(tmp_path / "notes"))
        assert [path.name for path in (tmp_path / "notes").iterdir() if path.is_file()] == ["a.txt"]

    @pytest.mark.parametrize("inside", ["", "datom", "deep/er"])
    def test_another_project(self, project, tmp_path, inside):
        other = Project.open("OTHER", str(tmp_path / "other"))
        other.table("t").write(rows(1))
        before = contents(other.store)
        with pytest.raises(InvalidInput, match=r"lies inside of|is not empty"):
            export_environment(project, "pr-1", str(tmp_path / "other" / inside))
        assert contents(other.store) == before

    def test_a_finished_export_is_not_written_over(self, project, branch, place):
        export_environment(project, "pr-1", str(place))
        before = contents(LocalStore(place))
        build(branch, "top", rows(5), "raw")
        with pytest.raises(InvalidInput, match="is an export of the environment pr-1 of NYC"):
            export_environment(project, "pr-1", str(place))
        assert contents(LocalStore(place)) == before

    def test_the_unfinished_export_of_another_environment(self, project, place):
        with pytest.raises(StoreUnavailable):
            export_environment(project, "pr-1", str(place), open_store=lambda at: dying(LocalStore(at.root), 4))
        drop_environment(project, "pr-1")
        for name in ("pr-1", "pr-2"):  # made anew, it is another one
            create_environment(project, name)
            build(project.in_environment(name), "top", rows(9), "raw")
            with pytest.raises(InvalidInput, match="is an unfinished export of the environment pr-1"):
                export_environment(project, name, str(place))
        assert not opened(place).tables()


class TestDamage:
    @pytest.fixture
    def begun(self, project, place) -> Path:
        """A place where an export has only put its document."""
        with pytest.raises(StoreUnavailable):
            export_environment(project, "pr-1", str(place), open_store=lambda at: dying(LocalStore(at.root), 2))
        assert (place / MARK).exists()
        return place

    @pytest.mark.parametrize(
        "forged",
        [
            {"top": {"log_version": 10**15, "commit_sha256": "0" * 64}},
            {"top": {"log_version": 2, "commit_sha256": "0" * 64}},
            {"other": {"log_version": 0, "commit_sha256": "0" * 64}},
        ],
    )
    def test_a_document_that_names_what_the_environment_does_not_have(self, project, begun, forged):
        mark = orjson.loads((begun / MARK).read_bytes())
        (begun / MARK).write_bytes(orjson.dumps({**mark, "tables": forged}))
        with pytest.raises(IntegrityError, match="does not have the commit"):
            export_environment(project, "pr-1", str(begun))
        assert not opened(begun).tables()

    @pytest.mark.parametrize(
        "change",
        [{"schema_version": 2}, {"tables": {"../x": {}}}, {"created": "2026-01-01T00:00:00"}, {"complete": "no"}, None],
    )
    def test_a_document_that_is_none(self, project, begun, change):
        mark = orjson.loads((begun / MARK).read_bytes())
        (begun / MARK).write_bytes(b"[]" if change is None else orjson.dumps({**mark, **change}))
        with pytest.raises(IntegrityError, match=r"export.json in .* cannot be read"):
            export_environment(project, "pr-1", str(begun))
        opened(begun).table("other").write(rows(1))
        (finding,) = opened(begun).table("other").verify().findings
        assert finding.where.endswith("export.json")

    def test_wrong_bytes_at_the_place_are_not_taken(self, project, branch, begun):
        (add,) = branch.table("top").files().adds
        target = begun / "datom" / "top" / add.key
        target.parent.mkdir(exist_ok=True, parents=True)
        target.write_bytes(bytes(add.size))
        with pytest.raises(IntegrityError, match="is not what the log of the environment pr-1 says"):
            export_environment(project, "pr-1", str(begun))
        with pytest.raises(deltalake.exceptions.DeltaError):
            by_deltalake(begun / "datom" / "top")
        export_environment(project, "pr-1", str(begun))
        require_sound(opened(begun), branch, "top")

    def test_another_commit_at_the_place(self, project, begun):
        log = begun / "datom" / "top" / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{2:020d}.json").write_bytes(b"{}")
        with pytest.raises(IntegrityError, match="is another commit than the environment pr-1 has"):
            export_environment(project, "pr-1", str(begun))
        assert not opened(begun).tables()

    def test_a_damaged_part_of_the_environment_becomes_no_table(self, project, branch, place):
        (add,) = branch.table("top").files().adds
        part = branch.table("top").store.local_path(add.key)
        good = part.read_bytes()
        part.write_bytes(good[:-9] + b"x" + good[-8:])
        with pytest.raises(IntegrityError, match="verify top` says what is damaged"):
            export_environment(project, "pr-1", str(place))
        assert not opened(place).tables()
        part.write_bytes(good)
        export_environment(project, "pr-1", str(place))
        require_sound(opened(place), branch, "top")

    def test_a_lost_part_of_the_environment(self, project, branch, place):
        (add,) = branch.table("top").files().adds
        branch.table("top").store.delete([add.key])
        with pytest.raises(IntegrityError, match="is not there"):
            export_environment(project, "pr-1", str(place))
        assert not opened(place).tables()


@pytest.mark.s3
@pytest.mark.parametrize(("source", "target"), [("local", "s3"), ("s3", "s3"), ("s3", "local"), ("s3", "another")])
@pytest.mark.slow
def test_buckets(tmp_path, s3_server: S3Server, source, target):
    bucket = s3_server.new_bucket()

    def store_at(location) -> ObjectStore:
        if location.type == "local":
            return LocalStore(Path(location.root, location.prefix))
        return s3_server.store(location.root, location.prefix)

    home = LocalStore(tmp_path / "lake") if source == "local" else s3_server.store(bucket, "lake/")
    project = Project("NYC", home)
    project.table("raw").write(rows(1, 2))
    build(project, "top", rows(1), "raw")
    branch = forked(project)
    for key in ("a", "b"):
        build(branch, "daily", rows(1), "raw", partition=key)
    build(branch, "top", rows(5), "raw")
    place = {
        "local": str(tmp_path / "out"),
        "s3": s3_server.location(bucket, "out/").uri,
        "another": s3_server.location(s3_server.new_bucket()).uri,
    }[target]
    export_environment(project, "pr-1", place, tables="all", open_store=store_at)
    there = store_at(Location.parse(place))
    require_sound(Project("NYC", there), branch, "daily", "raw", "top")
    secrets = [s3_server.access_key.encode(), s3_server.secret_key.encode(), s3_server.endpoint_url.encode()]
    assert not [info.key for info in there.list() if any(one in there.get(info.key) for one in secrets)]
    if source == "s3":
        inside = s3_server.location(bucket, "lake/x/").uri
        with pytest.raises(InvalidInput, match=r"lies inside of s3://.*/lake,"):
            export_environment(project, "pr-1", inside, open_store=store_at)


@pytest.mark.slow
def test_an_export_that_dies_at_any_call_goes_on(project, branch, tmp_path):
    for key in ("a", "b"):
        build(branch, "daily", rows(1), "raw", partition=key)
    for number in range(6):
        build(branch, "daily", rows(number), "raw", partition="a")
    expected = {name: branch.table(name).read() for name in ("daily", "top")}
    calls = 0
    for number in itertools.count(1):
        place = tmp_path / str(number)
        store = dying(LocalStore(place), number)
        with contextlib.suppress(VersionedError):
            export_environment(project, "pr-1", str(place), open_store=lambda _, store=store: store)
        readable_or_not_there(place, expected)
        with contextlib.suppress(InvalidInput):  # where it was finished, and only the answer was lost
            export_environment(project, "pr-1", str(place))
        assert orjson.loads((place / MARK).read_bytes())["complete"]
        require_sound(opened(place), branch, *expected)
        shutil.rmtree(place)
        if not store.shared["dead"]:
            break
        calls = number
    assert calls > 20


def readable_or_not_there(place: Path, expected: dict[str, pa.Table]) -> None:
    """Whoever looks after the death sees a whole table, or none."""
    if (place / "datom").exists():
        for name in map(str, opened(place).tables()):
            assert_same(opened(place).table(name).read(), expected[name])
            opened(place).table(name).verify().require_ok()
    for name, frame in expected.items():
        with contextlib.suppress(deltalake.exceptions.DeltaError):
            assert_same(by_deltalake(place / "datom" / name), frame)
