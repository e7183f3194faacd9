"""Erasing rows from every kept version: what goes, what stays, and that nothing comes back."""

from contextlib import suppress
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from dagster_versioned import ProjectResource, VersionedParquetIOManager
from dagster_versioned.branches.diff import differences
from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.export import export_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import IntegrityError, InvalidInput, UnsupportedFeature, VersionedError, VersionNotFound
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.erase import Condition
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage.wrappers import Fault, FaultStore, StoreWrapper
from dagster_versioned.tables.options import TableOptions
from support.crashes import append_as_another_program
from support.hooked_store import HookedStore


def people(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"person-{number:04d}-planted" for number in ids]})


@pytest.fixture
def project(tmp_path):
    return Project.open("CLINIC", str(tmp_path / "data"), author="ann")


def append(table, number):
    table.write(people(number), options=TableOptions(mode="append"))


def operations(table):
    return [record.operation for record in table.state.history.records]


def named(table):
    """The files of every version of a table."""
    return {file.key for version in table.history() for file in table.files(f"@{version.log_version}").scan.files}


def ids(table, version=None):
    return table.read(version)["id"].to_pylist()


def erase(project, sql, *tables, **how):
    return project.erase(sql, tables or ("people",), why="request 17", dry_run=False, **how)


def test_rows_leave_every_version_and_the_names_stay(project):
    table = project.table("people")
    first = table.write(people(1, 2, 3)).version
    second = table.write(people(1, 2, 3, 4)).version
    table.write(people(1, 3))
    report = erase(project, "id = 2")
    assert (report.rows, report.epochs) == (2, (0,))
    assert ids(table, first.metadata_sha) == [1, 3]
    assert ids(table, second.metadata_sha) == [1, 3, 4]
    assert ids(table, "@0") == [1, 3]
    assert ids(table) == [1, 3]
    assert table.history()[-1].metadata_sha == first.metadata_sha
    assert table.verify().ok, table.verify().findings


def test_the_head_is_a_new_version_with_the_digest_of_its_rows(project):
    table = project.table("people")
    before = table.write(people(1, 2, 3)).version
    erase(project, "id = 2")
    head = table.version()
    assert head.metadata_sha != before.metadata_sha
    assert head.facts.previous == before.metadata_sha
    assert head.identity.nrow == 2
    assert table.write(people(1, 3)).change == "none"
    assert table.verify().ok


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_parts_with_deleted_rows_keep_what_was_deleted(project, mode):
    table = project.table("people")
    key = ("id",) if mode == "merge" else ()
    options = TableOptions(mode=mode, merge_key=key, properties={"delta.enableDeletionVectors": "true"})
    versions = [table.write(people(*range(10)), options=options).version]
    for number in (3, 5, 7):
        rows = people(number) if mode == "append" else people(number).set_column(1, "name", [[f"new-{number}"]])
        versions.append(table.write(rows, options=options).version)
    before = [sorted(map(tuple, map(dict.values, table.read(v.metadata_sha).to_pylist()))) for v in versions]
    erase(project, "id in (4, 5)")
    for version, rows in zip(versions, before, strict=True):
        now = sorted(map(tuple, map(dict.values, table.read(version.metadata_sha).to_pylist())))
        assert now == [row for row in rows if row[0] not in (4, 5)]
    assert table.verify().ok, table.verify().findings
    again = table.write(people(11), options=options)
    assert 11 in ids(table)
    assert again.version.identity.nrow == len(ids(table))


def test_no_file_has_the_person_any_more(project, tmp_path):
    table = project.table("people")
    options = TableOptions(personal_columns=("id", "name"))
    for count in (5, 6, 7):
        table.write(people(*range(count)), options=options)
    erase(project, "id = 3")
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            assert b"person-0003" not in file.read_bytes(), file
            if file.suffix == ".parquet" and "_delta_log" not in str(file):
                assert 3 not in pq.read_table(file)["id"].to_pylist()


def test_a_dry_run_changes_nothing_and_says_what_would_go(project, tmp_path):
    table = project.table("people")
    table.write(people(1, 2))
    table.write(people(2, 3))
    before = {file: file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()}
    (found,) = project.erase("id = 2", ["people"], why="request 17").tables
    assert (found.rows, found.parts, found.versions) == (2, 2, 2)
    assert before == {file: file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()}


def test_what_was_erased_does_not_come_back(project):
    table = project.table("people")
    first = table.write(people(1, 2)).version
    table.write(people(1, 2, 3))
    erase(project, "id = 2")
    with pytest.raises(InvalidInput, match="were erased from people would be in it again"):
        table.write(people(1, 2, 3))
    with pytest.raises(InvalidInput, match="cannot be current again"):
        table.revert(first.metadata_sha)
    assert ids(table) == [1, 3]
    table.write(people(1, 2, 3, 4))  # other bytes: who writes them anew has them anew
    erase(project, "id = 2")
    assert [ids(table, f"@{version.log_version}") for version in table.history()] == [[1, 3, 4]] * 2 + [
        [1, 3],
        [1, 3],
        [1],
    ]


def test_what_was_adopted_keeps_its_rows_in_their_number(project):
    table = project.table("people")
    table.write(people(1, 2, 3))
    for _ in range(3):  # equal rows, in files that nothing but their names tells apart
        append_as_another_program(table, people(2, 7, 7))
    table.adopt()
    before = {version.log_version: sorted(ids(table, f"@{version.log_version}")) for version in table.history()}
    erase(project, "id = 2")
    for at, numbers in before.items():
        assert sorted(ids(table, f"@{at}")) == [number for number in numbers if number != 2], at
    assert table.verify().ok, table.verify().findings


def test_an_erasure_of_an_erasure(project):
    table = project.table("people")
    first = table.write(people(1, 2, 3, 4)).version
    erase(project, "id = 2")
    middle = table.version()
    erase(project, "id = 3")
    assert ids(table, first.metadata_sha) == ids(table, middle.metadata_sha) == ids(table) == [1, 4]
    assert table.verify().ok
    assert Project.open("CLINIC", project.store.uri).table("people").verify().ok


def test_what_stood_for_a_part_of_old_versions_alone_goes_too(project, tmp_path):
    table = project.table("people")
    first = table.write(people(1, 2, 7)).version
    table.write(people(1))
    erase(project, "id = 2")
    erase(project, "id = 7")
    assert ids(table, first.metadata_sha) == [1]
    for file in (tmp_path / "data" / "datom" / "people").glob("*.parquet"):
        assert pq.read_table(file)["id"].to_pylist() == [1], file
    assert project.erase("id = 1", ["people"], why="asked", all_rows=True).tables[0].unclaimed == 0


def test_vectors_of_what_stood_for_a_part_go_too(project, tmp_path):
    table = project.table("people")
    options = TableOptions(mode="merge", merge_key=("id",), properties={"delta.enableDeletionVectors": "true"})
    table.write(people(*range(10)), options=options)
    table.write(people(5).set_column(1, "name", [["new"]]), options=options)
    table.write(people(1))
    erase(project, "id = 2")
    erase(project, "id = 7")
    assert sorted(ids(table, "@1")) == [0, 1, 3, 4, 5, 6, 8, 9]
    files = {file.name for file in (tmp_path / "data" / "datom" / "people").glob("*") if file.is_file()}
    assert len([name for name in files if name.endswith(".parquet")]) == 3, "the part, what was merged, and the head"
    assert table.verify().ok, table.verify().findings
    table.vacuum(dry_run=False, min_age=timedelta(0))
    assert files == {file.name for file in (tmp_path / "data" / "datom" / "people").glob("*") if file.is_file()}


def test_a_part_that_becomes_empty(project):
    table = project.table("people")
    first = table.write(people(2)).version
    table.write(people(1, 3))
    erase(project, "id = 2")
    assert ids(table, first.metadata_sha) == []
    assert ids(table) == [1, 3]
    assert table.verify().ok


def test_a_condition_of_every_row_asks(project):
    table = project.table("people")
    table.write(people(2))
    with pytest.raises(InvalidInput, match="every row of every kept version"):
        erase(project, "id > 0")
    assert ids(table) == [2]
    erase(project, "id > 0", all_rows=True)
    assert ids(table) == []
    assert table.verify().ok


def test_nothing_found_is_nothing_committed(project):
    table = project.table("people")
    table.write(people(1))
    assert erase(project, "id = 9").rows == 0
    assert table.state.log_version == 0


def test_partitions_of_dagster_and_of_delta(project):
    table = project.table("people")
    options = TableOptions(partition_columns=("city",))

    def rows(*numbers):
        return people(*numbers).append_column("city", pa.array([f"c{number % 2}" for number in numbers]))

    for day in ("2024-01-01", "2024-01-02", "2024-01-01"):
        table.write(rows(1, 2, 3, int(day[-1]) * 10 + table.exists()), partition=day, options=options)
    before = {v.log_version: sorted(table.read(f"@{v.log_version}")["id"].to_pylist()) for v in table.history()}
    erase(project, "id = 3 or id = 20")
    for at, numbers in before.items():
        assert sorted(table.read(f"@{at}")["id"].to_pylist()) == [n for n in numbers if n not in (3, 20)]
    assert table.verify().ok, table.verify().findings
    with pytest.raises(InvalidInput, match="is partitioned by 'city'"):
        erase(project, "city = 'c1'")


def test_a_column_that_an_old_version_called_otherwise(project):
    table = project.table("people")
    old = table.write(people(1, 2).rename_columns(["pid", "name"])).version
    table.write(people(2, 3))
    with pytest.raises(InvalidInput, match=r"has no column 'id'.*id=OLD_NAME"):
        erase(project, "id = 2")
    with pytest.raises(InvalidInput, match="nothing"):
        erase(project, "nothing = 2")
    erase(project, Condition("id = 2", {"id": "pid"}))
    assert table.read(old.metadata_sha)["pid"].to_pylist() == [1]
    assert ids(table) == [3]


def test_versions_without_the_column_may_be_left_out(project):
    table = project.table("people")
    old = table.write(pa.table({"x": [2]})).version
    table.write(people(2, 3))
    erase(project, Condition("id = 2", skip_lacking=True))
    assert table.read(old.metadata_sha)["x"].to_pylist() == [2]


def test_several_tables_have_one_record(project):
    project.table("people").write(people(1, 2))
    project.table("visits").write(people(2, 2, 5))
    report = erase(project, "id = 2", "people", "visits")
    assert report.epochs == (0,)
    assert [table.rows for table in report.tables] == [1, 2]
    assert (ids(project.table("people")), ids(project.table("visits"))) == ([1], [5])


def test_tables_that_were_computed_from_these_are_listed(project):
    table, visits = project.table("people"), project.table("visits")
    table.write(people(1, 2))
    visits.write(people(2, 3), parents=table.upstream())
    project.table("summary").write(pa.table({"n": [2]}), parents=visits.upstream())
    project.table("others").write(pa.table({"n": [2]}))
    assert project.erase("id = 2", ["people"], why="x").downstream == ("summary", "visits")
    assert erase(project, "id = 2", "people", "visits").downstream == ("summary",)


def test_tables_that_were_computed_from_these_are_searched_where_asked(project):
    table, visits = project.table("people"), project.table("visits")
    table.write(people(1, 2))
    visits.write(people(2, 3), parents=table.upstream())
    project.table("summary").write(pa.table({"n": [2]}), parents=visits.upstream())
    project.table("again").write(people(2, 4), parents=project.table("summary").upstream())
    report = erase(project, "id = 2", "people", downstream=True)
    assert {one.name: one.rows for one in report.tables} == {"people": 1, "again": 1, "visits": 1}
    assert (report.downstream, report.epochs) == (("summary",), (0,))  # which has no such column
    assert [ids(project.table(name)) for name in ("people", "visits", "again")] == [[1], [3], [4]]
    with pytest.raises(InvalidInput, match="nme"):  # it is wrong for the table that was named, so nothing is skipped
        erase(project, "nme = 'x'", "people", downstream=True)


def test_columns_are_set_to_null_downstream_where_they_are(project):
    table = project.table("people")
    table.write(people(1, 2))
    project.table("visits").write(people(2, 3), parents=table.upstream())
    project.table("counts").write(pa.table({"id": [2], "n": [7]}), parents=table.upstream())
    meant = Condition("id = 2", set_null=["name"])
    report = project.erase(meant, ["people"], why="x", dry_run=False, downstream=True)
    assert [one.name for one in report.tables] == ["people", "visits"]
    assert report.downstream == ("counts",)
    assert project.table("visits").read()["name"].to_pylist() == [None, "person-0003-planted"]


def test_expiry_and_vacuum_keep_what_stands_for_parts(project):
    table = project.table("people")
    versions = [table.write(people(1, 2, number)).version for number in (3, 4, 5, 6)]
    erase(project, "id = 2")
    table.vacuum(dry_run=False, min_age=timedelta(0))
    assert ids(table, versions[0].metadata_sha) == [1, 3]
    table.expire(keep_last=3, dry_run=False)
    assert ids(table, versions[2].metadata_sha) == [1, 5]
    assert table.verify().ok
    files = {info.key for info in table.store.list() if info.key.endswith(".parquet") and "/" not in info.key}
    assert len(files) == 2


def test_an_environment_made_later_reads_older_versions(project):
    table = project.table("people")
    first = table.write(people(1, 2)).version
    table.write(people(1, 2, 3))
    erase(project, "id = 2")
    create_environment(project, "dev")
    there = project.in_environment("dev").table("people")
    assert ids(there, first.metadata_sha) == [1]
    assert ids(there) == [1, 3]
    with pytest.raises(InvalidInput, match="cannot be current again"):
        there.revert(first.metadata_sha)


def test_a_refused_erasure_leaves_no_file(project):
    """What would be left of a part are rows that were erased before, and written again."""
    table = project.table("people")
    table.write(people(2))
    erase(project, "id = 2", all_rows=True)
    table.write(people(2, 3))
    before = {info.key for info in table.store.list() if info.key.endswith(".parquet") and "/" not in info.key}
    with pytest.raises(InvalidInput, match="rows that were erased before"):
        erase(project, "id = 3")
    assert {info.key for info in table.store.list() if info.key.endswith(".parquet") and "/" not in info.key} == before


class TestInAnEnvironment:
    """One that began before rows were erased."""

    @pytest.fixture
    def there(self, project):
        project.table("people").write(people(1, 2))
        project.table("people").write(people(1, 2, 3))
        project.table("visits").write(people(2, 9))
        create_environment(project, "dev")
        return project.in_environment("dev")

    def test_every_version_is_read_without_them(self, project, there):
        table = there.table("people")
        names = [version.metadata_sha for version in table.history()]
        erase(project, "id = 2")
        for seen in (table, project.in_environment("dev").table("people")):
            assert [ids(seen, name) for name in names] == [[1, 3], [1]]
            assert [version.metadata_sha for version in seen.history()][-2:] == names
            assert seen.version().metadata_sha == project.table("people").version().metadata_sha
        assert ids(there.table("visits")) == [2, 9]
        erase(project, "id = 3")
        assert ids(table) == [1]
        for name in ("people", "visits"):
            assert there.table(name).verify().ok, there.table(name).verify().findings
        assert not promote(project, "dev").promoted

    def test_the_table_goes_on_there(self, project, there, tmp_path):
        project.table("single").write(people(2))
        project.table("single").write(people(7))
        create_environment(project, "warm")
        warm = project.in_environment("warm")
        digest = warm.table("single").history()[-1].facts.digest
        erase(project, "id = 2", "people", "single")
        for opened, name in ((there, "people"), (warm, "single"), (warm, "people")):
            table = opened.table(name)
            before = ids(table)
            for number in range(4, 16):  # past a checkpoint
                append(table, number)
            assert ids(table) == [*before, *range(4, 16)]
            assert table.verify().ok, table.verify().findings
        value = digest.split(":")[1].encode()
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or value not in file.read_bytes(), file
            if file.name.endswith(".checkpoint.parquet"):
                assert value.decode() not in str(pq.read_table(file).to_pylist()), file
        with pytest.raises(InvalidInput, match="environment 'dev' has written people"):
            erase(project, "id = 3")
        for name in ("dev", "warm"):
            drop_environment(project, name)
        erase(project, "id = 3")

    def test_one_that_is_not_told_yet_keeps_what_it_reads(self, project, there):
        def die(call):
            return Fault.BEFORE if call.verb == "put_if_absent" and "environments/" in call.key else None

        with pytest.raises(VersionedError):
            erase(Project("CLINIC", FaultStore(project.store, die)), "id = 2")
        assert operations(project.table("people"))[-1] == "ERASE"
        project.table("people").vacuum(min_age=timedelta(0), dry_run=False)
        assert ids(there.table("people")) == [1, 2, 3]
        erase(project, "id = 2")
        assert ids(there.table("people")) == [1, 3]

    @pytest.mark.parametrize("is_written_before", [False, True])
    def test_what_it_writes_beside_is_promoted_and_rebased(self, project, there, is_written_before):
        for key in "abc":
            project.table("daily").write(people(2, 5), partition=key, code_version="1")
        create_environment(project, "late")
        if is_written_before:
            project.table("daily").write(people(2, 6), partition="a", code_version="2")
        erase(project, "id = 2", "people", "daily")
        late = project.in_environment("late")
        parents = late.table("people").upstream()
        late.table("daily").write(people(5, 7), partition="b", parents=parents, code_version="3")
        assert [each.partition for each in differences(late)] == ["b"]
        assert [cell.partition for cell in rebase_environment(project, "late").kept] == ["b"]
        report = promote(project, "late", dry_run=False)
        assert ([cell.partition for cell in report.promoted], report.left) == (["b"], ())
        assert sorted(project.table("daily").read(partition="b")["id"].to_pylist()) == [5, 7]

    def test_an_export_goes_on_without_the_project(self, project, there, tmp_path):
        project.table("people").write(people(5))
        create_environment(project, "late")
        erase(project, "id = 2")
        for name in ("dev", "late"):
            export_environment(project, name, str(tmp_path / name), tables="all")
            exported = Project.open("CLINIC", str(tmp_path / name)).table("people")
            assert exported.verify().ok, exported.verify().findings
            append(exported, 8)
            assert exported.verify().ok, exported.verify().findings

    def test_one_that_wrote_the_table_is_promoted_or_dropped_first(self, project, there):
        there.table("people").write(people(1, 2, 4))
        with pytest.raises(InvalidInput, match="environment 'dev' has written people"):
            erase(project, "id = 2")
        assert ids(project.table("people")) == [1, 2, 3]
        drop_environment(project, "dev")
        erase(project, "id = 2")
        assert ids(project.table("people")) == [1, 3]

    def test_one_that_has_a_draft_of_the_table_publishes_or_drops_it_first(self, project, there):
        park(there.table("people"), {None: people(1, 2)}, run=Run("r1", "people", 0))
        with pytest.raises(InvalidInput, match="parked draft"):
            erase(project, "id = 2")
        there.drop_parked(there.parked()[0].id)
        erase(project, "id = 2")

    def test_one_that_writes_the_table_meanwhile_keeps_what_it_reads(self, project, there):
        hooked = HookedStore(
            project.store,
            "put_if_absent",
            "_delta_log/00000000000000000002.json",
            lambda: there.table("people").write(people(4), options=TableOptions(mode="append")),
        )
        with pytest.raises(InvalidInput, match="environment 'dev' has written people"):
            erase(Project("CLINIC", hooked), "id = 2")
        assert ids(there.table("people")) == [1, 2, 3, 4]
        drop_environment(project, "dev")
        erase(project, "id = 2")
        assert ids(project.table("people")) == [1, 3]

    @pytest.mark.parametrize("how", ["append", "merge", "vectors", "revert"])
    @pytest.mark.parametrize("call", range(1, 30, 4))
    def test_one_that_began_to_write_before_goes_on_from_what_is_left(self, project, there, tmp_path, how, call):
        class AtCall(StoreWrapper):
            calls = 0

            def _around(self, verb, key, size, action):
                AtCall.calls += 1
                if AtCall.calls == call:
                    with suppress(InvalidInput):  # it has files there by now
                        erase(project, "id = 2")
                return action()

        late = Project("CLINIC", AtCall(project.store)).in_environment("dev").table("people")
        merged = {"mode": "merge", "merge_key": ("id",)}
        vectors = {"properties": {"delta.enableDeletionVectors": "true"}}
        options = {"append": {"mode": "append"}, "merge": merged, "vectors": merged | vectors}
        with suppress(InvalidInput, VersionNotFound):  # what was erased cannot be current again
            late.revert("@0") if how == "revert" else late.write(people(3, 4), options=TableOptions(**options[how]))
        table = project.in_environment("dev").table("people")
        assert table.verify().ok, table.verify().findings
        if 2 not in ids(project.table("people")) and "ERASE" in operations(table):
            assert 2 not in ids(table)
            for file in tmp_path.rglob("*.parquet"):
                if "environments" in file.parts and "_delta_log" not in file.parts:
                    assert 2 not in pq.read_table(file)["id"].to_pylist() or file.name not in named(table), file


class TestWhatIsBuiltFromThem:
    """A step reads rows, they are erased meanwhile, and then it wants to commit what it made of them."""

    @pytest.fixture
    def project(self, project):
        project.table("people").write(people(1, 2))
        project.table("daily").write(people(2), partition="a")
        project.table("daily").write(people(3), partition="b")
        return project

    @pytest.mark.parametrize(("table", "how"), [("people", {}), ("daily", {}), ("daily", {"partition": "a"})])
    def test_is_refused_until_it_is_computed_again(self, project, table, how):
        read = project.table(table).upstream(**how)
        erase(project, "id = 2", "people", "daily")
        with pytest.raises(InvalidInput, match=f"of {table} since it was read for total.*Run it again"):
            project.table("total").write(pa.table({"n": [2]}), parents=read)
        assert not project.table("total").exists()
        project.table("total").write(pa.table({"n": [1]}), parents=project.table(table).upstream(**how))

    def test_goes_on_where_other_rows_were_erased(self, project):
        read = [*project.table("daily").upstream(partition="b"), *project.table("people").upstream()]
        erase(project, "id = 2", "daily")
        project.table("total").write(pa.table({"n": [2]}), parents=read)

    def test_may_be_built_from_what_is_left_of_an_older_version(self, project):
        old = project.table("people").version().metadata_sha
        erase(project, "id = 2")
        project.table("total").write(pa.table({"n": [1]}), parents=project.table("people").upstream(old))

    def test_is_not_parked_either(self, project):
        read = project.table("people").upstream()
        erase(project, "id = 2")
        with pytest.raises(InvalidInput, match="Run it again"):
            park(project.table("total"), {None: people(2)}, parents=read, run=Run("r1", "total", 0))

    def test_is_refused_where_the_upstream_was_renamed_meanwhile(self, project):
        read = project.table("people").upstream()
        project.table("people").rename("persons", dry_run=False)
        erase(project, "id = 2", "persons")
        with pytest.raises(InvalidInput, match="Run it again"):
            project.table("total").write(pa.table({"n": [2]}), parents=read)

    def test_is_refused_where_the_erasure_comes_right_before_its_commit(self, project):
        project.table("total").write(pa.table({"id": [9]}))
        read = project.table("people").upstream()
        hooked = HookedStore(
            project.store,
            "put_if_absent",
            "total/_delta_log/00000000000000000001.json",
            lambda: erase(project, "id = 2", "people", "total"),
        )
        with pytest.raises(InvalidInput, match="Run it again"):
            Project("CLINIC", hooked).table("total").write(people(2), parents=read)
        assert ids(project.table("total")) == [9]

    def test_is_not_published(self, project):
        read = project.table("people").upstream()
        park(project.table("total"), {None: people(2)}, parents=read, run=Run("r1", "total", 0))
        erase(project, "id = 2")
        ((_, why),) = project.publish("r1", by="ann").waiting
        assert "Drop the draft, and run its step again" in why
        assert not project.table("total").exists()

    def test_is_refused_in_an_environment(self, project):
        create_environment(project, "dev")
        there = project.in_environment("dev")
        read = there.table("people").upstream()
        there.table("total").write(pa.table({"n": [2]}), parents=read)
        erase(project, "id = 2")
        with pytest.raises(InvalidInput, match="Run it again"):
            there.table("total").write(pa.table({"n": [3]}), parents=read)
        there.table("total").write(pa.table({"n": [1]}), parents=there.table("people").upstream())

    @pytest.mark.parametrize("is_input", [True, False])
    def test_fails_in_a_step(self, project, is_input):
        def look() -> pa.Table:
            project.erase("id = 2", ["people"], why="asked", dry_run=False)
            return pa.table({"n": [2]})

        if is_input:

            @dg.asset
            def total(people: pa.Table) -> pa.Table:
                return look()
        else:

            @dg.asset(deps=["people"])
            def total() -> pa.Table:
                return look()

        source = dg.AssetSpec("people")
        place = project.store.uri.removeprefix("file://")
        resources = {"io_manager": VersionedParquetIOManager(project=ProjectResource(name="CLINIC", location=place))}
        with pytest.raises(InvalidInput, match=r"since it was read for total.*Run it again"):
            dg.materialize([source, total], resources=resources, selection=[total])
        assert not project.table("total").exists()


def test_an_export_of_an_environment_goes_on_without_the_project(project, tmp_path):
    project.table("people").write(people(1, 2))
    erase(project, "id = 2")
    create_environment(project, "dev")
    project.in_environment("dev").table("people").write(people(1, 5))
    export_environment(project, "dev", str(tmp_path / "there"))
    there = Project.open("CLINIC", str(tmp_path / "there")).table("people")
    assert ids(there) == [1, 5]
    there.write(people(1, 5, 6))
    assert there.verify().ok, there.verify().findings


def test_a_renamed_table_and_project_keep_what_was_erased(project):
    table = project.table("people")
    first = table.write(people(1, 2)).version
    table.write(people(1, 2, 3))
    erase(project, "id = 2")
    table.rename("persons", dry_run=False)
    renamed = project.rename("HOSPITAL")
    there = renamed.table("persons")
    assert (ids(there, first.metadata_sha), ids(there)) == ([1], [1, 3])
    with pytest.raises(InvalidInput, match="would be in it again"):
        there.write(people(1, 2, 3))
    renamed.erase("id = 3", ["persons"], why="asked", dry_run=False)
    assert (ids(there, first.metadata_sha), ids(there)) == ([1], [1])
    assert there.verify().ok, there.verify().findings


@pytest.mark.parametrize("change", ["missing", "altered", "replaced"])
def test_a_record_that_is_not_the_one_that_the_log_names_is_named(project, change):
    table = project.table("people")
    table.write(people(1, 2))
    table.write(people(1, 3))
    erase(project, "id = 2")
    (key,) = [info.key for info in project.data.list(".metadata/erasures/")]
    record = project.data.get(key)
    if change == "missing":
        project.data.delete([key])
    else:
        project.data.put(key, b"{" if change == "altered" else record.replace(b"request 17", b"request 18"))
    again = Project.open("CLINIC", project.store.uri).table("people")
    assert ids(again) == [1, 3]
    with pytest.raises(IntegrityError, match=r"record of an erasure .*No row was returned"):
        ids(again, "@0")
    assert not again.verify().ok
    with pytest.raises(IntegrityError):
        erase(Project.open("CLINIC", project.store.uri), "id = 3")


def test_tables_downstream_are_found_after_a_rename(project):
    table = project.table("people")
    table.write(people(1, 2))
    project.table("visits").write(people(2, 3), parents=table.upstream())
    table.rename("persons", dry_run=False)
    renamed = project.rename("HOSPITAL")
    assert renamed.erase("id = 2", ["persons"], why="x").downstream == ("visits",)
    renamed.erase("id = 2", ["persons"], why="x", dry_run=False)
    assert not [info.key for info in renamed.data.list("people/") if info.key.endswith(".parquet")]


def test_partition_columns_may_have_been_others(project):
    table = project.table("people")
    rows = people(1, 2, 3).append_column("city", pa.array(["a", "b", "a"]))
    table.write(rows, options=TableOptions(partition_columns=("city",)))
    table.write(rows)
    erase(project, "id = 2")
    assert (sorted(ids(table, "@0")), ids(table)) == ([1, 3], [1, 3])
    with pytest.raises(InvalidInput, match="partitioned by 'city'"):
        erase(project, "city = 'a'")
    assert table.verify().ok


def test_numbers_that_are_none_in_a_column_that_became_personal(project):
    table = project.table("people")
    rows = people(1, 2).append_column("x", pa.array([float("nan")] * 2))
    table.write(rows)
    table.write(
        people(1, 5).append_column("x", pa.array([float("nan")] * 2)), options=TableOptions(personal_columns=("x",))
    )
    erase(project, "id = 1")
    assert (ids(table, "@0"), ids(table)) == ([2], [5])


def test_a_feed_that_was_turned_off_is_noticed(project):
    table = project.table("people")
    merge = {"mode": "merge", "merge_key": ("id",)}
    on = {"delta.enableChangeDataFeed": "true"}
    table.write(people(1, 2), options=TableOptions(properties=on, **merge))
    table.write(people(2, 3).set_column(1, "name", [["x", "y"]]), options=TableOptions(properties=on, **merge))
    table.write(people(4), options=TableOptions(properties={"delta.enableChangeDataFeed": "false"}, **merge))
    with pytest.raises(InvalidInput, match="change feed"):
        erase(project, "id = 2")


def test_a_table_with_erased_rows_is_not_left(project):
    project.table("people").write(people(1, 2))
    erase(project, "id = 2")
    with pytest.raises(InvalidInput, match="only this package knows"):
        project.table("people").leave(dry_run=False)


@pytest.mark.parametrize("what", ["leave", "feed", "append-only"])
def test_tables_that_are_refused(project, what):
    table = project.table("people")
    names = {"feed": "delta.enableChangeDataFeed", "append-only": "delta.appendOnly"}
    properties = {names[what]: "true"} if what in names else None
    table.write(people(1, 2), options=TableOptions(properties=properties or {}))
    if what == "leave":
        table.leave(dry_run=False)
    with pytest.raises((InvalidInput, UnsupportedFeature), match=r"Nothing was (erased|written)"):
        project.erase("id = 2", ["people"], why="request 17")


class TestColumnsThatAreSetToNull:
    """The rows stay, in their place, and lose what they have in some columns."""

    @staticmethod
    def erase(project, sql="id = 2", columns=("name",), **how):
        return erase(project, Condition(sql, set_null=columns, **how))

    @pytest.mark.parametrize("mode", ["replace", "append", "merge"])
    def test_in_every_version(self, project, tmp_path, mode):
        table = project.table("people")
        key = ("id",) if mode == "merge" else ()
        options = TableOptions(mode=mode, merge_key=key, properties={"delta.enableDeletionVectors": "true"})
        versions = [table.write(people(*numbers), options=options).version for numbers in ([1, 2, 3], [2, 4], [5])]
        before = [table.read(version.metadata_sha).to_pylist() for version in versions]
        report = self.erase(project)
        assert report.rows == sum(row["id"] == 2 for rows in before for row in rows) or mode != "replace"
        for version, rows in zip(versions, before, strict=True):
            wanted = [row | ({"name": None} if row["id"] == 2 else {}) for row in rows]
            assert table.read(version.metadata_sha).to_pylist() == wanted
        assert table.version().identity.nrow == table.read().num_rows
        assert table.verify().ok, table.verify().findings
        assert b"person-0002" not in b"".join(f.read_bytes() for f in (tmp_path / "data").rglob("*") if f.is_file())
        assert not self.erase(project).epochs, "nothing is left to be set to null"

    def test_under_the_name_that_older_versions_know(self, project):
        table = project.table("people")
        first = table.write(people(1, 2).rename_columns(["id", "called"])).version
        table.write(people(1, 2))
        self.erase(project, former={"name": "called"})
        assert table.read(first.metadata_sha)["called"].to_pylist() == ["person-0001-planted", None]
        assert table.read()["name"].to_pylist() == ["person-0001-planted", None]

    def test_columns_of_any_type(self, project):
        table = project.table("people")
        kinds = pa.table({"id": [1, 2], "s": [{"a": 1}] * 2, "l": [[1]] * 2, "d": pa.array([b"x"] * 2, pa.binary())})
        kinds = kinds.append_column("m", pa.array([[("k", 1)]] * 2, pa.map_(pa.string(), pa.int64())))
        table.write(kinds)
        self.erase(project, columns=("s", "l", "d", "m"))
        row = table.read().to_pylist()[1]
        assert row == {"id": 2, "s": None, "l": None, "d": None, "m": None}
        assert table.verify().ok

    def test_what_cannot_be_null_is_refused(self, project):
        never = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
        adopted = project.table("adopted")
        write_deltalake(str(adopted.store.local_path("x").parent), people(1, 2).cast(never))
        adopted.adopt()
        with pytest.raises(InvalidInput, match="NOT NULL in a kept version"):
            erase(project, Condition("id = 2", set_null=["name"]), "adopted")
        table = project.table("people")
        table.write(people(1, 2), options=TableOptions(constraints={"known": "id > 0"}))
        with pytest.raises(InvalidInput, match="has no column 'nobody'"):
            self.erase(project, columns=("nobody",))
        with pytest.raises(InvalidInput, match="constraint known"):
            self.erase(project, columns=("id",))
        assert table.read()["name"].to_pylist() == people(1, 2)["name"].to_pylist()


class TestRowsThatAKeyNames:
    """The condition is of one table, by a name; the others know the person by a number."""

    @pytest.fixture
    def clinic(self, project):
        project.table("people").write(people(1, 2, 3))
        project.table("people").write(people(1, 2, 3).set_column(1, "name", [["a", "b", "c"]]))
        project.table("visits").write(pa.table({"id": pa.array([2, 2, 5, None], pa.int32()), "ward": list("abcd")}))
        return project

    @staticmethod
    def erase(project, *tables, sql="name = 'person-0002-planted'", key=("id",), **how):
        meant = Condition(sql, key=key, **how)
        return project.erase(meant, tables or ("people", "visits"), why="request 17", dry_run=False)

    def test_go_from_all_tables_and_versions(self, clinic, tmp_path):
        report = self.erase(clinic)
        assert {one.name: one.rows for one in report.tables} == {"people": 2, "visits": 2}
        assert [ids(clinic.table("people"), version) for version in ("@0", "@1")] == [[1, 3], [1, 3]]
        assert ids(clinic.table("visits")) == [5, None]
        assert all(clinic.table(name).verify().ok for name in ("people", "visits"))
        files = [path for path in (tmp_path / "data").rglob("*.parquet") if "_delta_log" not in str(path)]
        assert not any(2 in pq.read_table(path)["id"].to_pylist() for path in files)

    def test_go_by_several_columns_together(self, clinic):
        clinic.table("stays").write(pa.table({"id": [2, 3, 2], "ward": ["x", "y", "z"], "note": ["n", None, ""]}))
        clinic.table("bills").write(pa.table({"id": [2, 3, 2], "ward": ["x", "x", "y"], "sum": [7, 8, 9]}))
        self.erase(clinic, "stays", "bills", sql="note = 'n'", key=("id", "ward"))
        assert ids(clinic.table("stays")) == [3, 2]
        assert clinic.table("bills").read()["sum"].to_pylist() == [8, 9]

    def test_a_null_names_nobody(self, clinic):
        report = self.erase(clinic, sql="ward = 'd'")
        assert {one.name: one.rows for one in report.tables} == {"people": 0, "visits": 1}
        assert ids(clinic.table("visits")) == [2, 2, 5]

    def test_lose_columns_where_these_are_set_to_null(self, clinic):
        with pytest.raises(InvalidInput, match="has no column 'name'"):
            self.erase(clinic, set_null=["name"])
        self.erase(clinic, "people", set_null=["name"])
        assert clinic.table("people").read()["name"].to_pylist() == ["a", None, "c"]
        assert clinic.table("people").read("@0")["name"].to_pylist()[1] is None

    def test_are_found_in_versions_that_called_columns_otherwise(self, clinic):
        clinic.table("old").write(pa.table({"id": [2, 3], "nm": ["person-0002-planted", "x"]}))
        report = self.erase(clinic, "old", "visits", former={"name": "nm"})
        assert {one.name: one.rows for one in report.tables} == {"old": 1, "visits": 2}

    def test_are_found_where_old_versions_lack_the_key(self, clinic):
        clinic.table("old").write(pa.table({"name": ["person-0002-planted"]}))
        clinic.table("old").write(people(2, 3))
        self.erase(clinic, "old", "visits", skip_lacking=True)
        assert ids(clinic.table("old")) == [3]
        assert ids(clinic.table("visits")) == [5, None]

    @pytest.mark.parametrize(
        "others", [["2", "02", "2.0"], [2.0, 2.1, 3.0], [True, False, True], [b"2", b"x", b"y"]], ids=str
    )
    def test_are_of_the_same_type_and_nothing_is_cast(self, clinic, others):
        clinic.table("others").write(pa.table({"id": others}))
        with pytest.raises(InvalidInput, match="which are not compared") as refused:
            self.erase(clinic, "people", "others")
        assert not any(str(value) in str(refused.value) for value in others[1:] if not isinstance(value, bool))
        assert clinic.table("others").read().num_rows == 3
        assert ids(clinic.table("people")) == [1, 2, 3]

    def test_are_not_looked_for_where_nobody_knows_the_key(self, clinic):
        """As after an erasure of the row that has it."""
        erase(clinic, "name = 'person-0002-planted'")
        for dry_run in (True, False):
            with pytest.raises(InvalidInput, match="nobody knows which key is meant"):
                clinic.erase(
                    Condition("name = 'person-0002-planted'", key=["id"]),
                    ["people", "visits"],
                    why="x",
                    dry_run=dry_run,
                )
        assert ids(clinic.table("visits")) == [2, 2, 5, None]

    def test_are_named_by_each_column_once(self, clinic):
        with pytest.raises(InvalidInput, match="once"):
            self.erase(clinic, key=("id", "id"))

    def test_what_cannot_be_told_is_refused(self, clinic):
        clinic.table("texts").write(pa.table({"id": ["x", "2"]}))
        clinic.table("others").write(pa.table({"pid": [2, 3]}))
        for tables, message in (
            (("people", "texts"), "not compared"),
            (("people", "others"), "no column 'id'"),
            (("visits",), "no column 'name'"),
        ):
            with pytest.raises(InvalidInput, match=message):
                self.erase(clinic, *tables)
        with pytest.raises(InvalidInput, match="with other types: int64 and string"):
            self.erase(clinic, "people", "texts", sql="id is not null")
        assert ids(clinic.table("people")) == [1, 2, 3]
        self.erase(clinic, "people", "others", former={"id": "pid"})
        assert clinic.table("others").read()["pid"].to_pylist() == [3]
