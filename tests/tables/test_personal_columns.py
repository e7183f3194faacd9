"""Columns of which nothing is to be found beside their values: in files, log, documents, errors and reports."""

import re
from pathlib import Path

import deltalake
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.tables.configuration import personal_columns
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from support.spark import spark

__all__ = ["spark"]

PERSONAL = TableOptions(personal_columns=("name", "home"))
NAMES = ("Ada Lovelace", "Grace Hopper", "Zuse Konrad")


def people(*numbers: int, names: tuple[str, ...] = NAMES) -> pa.Table:
    chosen = [names[number % len(names)] for number in numbers]
    homes = [{"street": f"{name} Street", "floors": [f"{name} floor"]} for name in chosen]
    return pa.table({"n": pa.array(numbers, pa.int64()), "name": chosen, "home": homes})


def files_of(project: Project) -> list[Path]:
    root = project.store.local_path("datom/.metadata/manifest.json")
    assert root is not None
    return [path for path in root.parents[2].rglob("*") if path.is_file()]


def beside_values(project: Project) -> bytes:
    """All bytes of a project but the pages of parts: logs, documents, and what footers and page headers may tell."""
    told: list[bytes] = []
    for path in files_of(project):
        if path.suffix == ".parquet" and len(path.stem) == 64:
            metadata = pq.ParquetFile(path).metadata
            told.append(repr(metadata.to_dict()).encode())
            end = int.from_bytes(path.read_bytes()[-8:-4], "little")
            told.append(path.read_bytes()[-8 - end :])
        else:
            told.append(path.read_bytes())
            if path.suffix == ".parquet":
                told.append(repr(pq.read_table(path).to_pylist()).encode())
    return b"\n".join(told)


@pytest.fixture
def table(project: Project) -> VersionedTable:
    table = project.table("people")
    table.write(people(1, 2, 3), options=PERSONAL)
    return table


def part_of(table: VersionedTable) -> Path:
    path = table.store.local_path(table.files().adds[0].key)
    assert path is not None
    return path


class TestNoTrace:
    def test_neither_footers_nor_log_nor_documents_tell_a_value(self, project, table):
        for number in range(4, 12):
            table.write(people(1, 2, number))
        table.repair()
        told = beside_values(project)
        for name in NAMES:
            assert name.encode() not in told
            assert name.split()[1].encode() not in told
        assert b'"maxValues"' in told
        table.verify().require_ok()

    def test_there_is_no_page_index_of_them_and_no_statistic_in_a_page(self, table):
        metadata = pq.ParquetFile(part_of(table)).metadata
        columns = {metadata.row_group(0).column(i).path_in_schema: metadata.row_group(0).column(i) for i in range(4)}
        assert columns["n"].has_column_index
        for path in ("name", "home.street", "home.floors.list.element"):
            assert not columns[path].has_column_index
            assert columns[path].statistics is None
        plain = table.beside("plain")
        plain.write(people(1, 2, 3))
        # Each value is once in a dictionary, and no second time in the header of a page.
        counts = [part_of(each).read_bytes().count(b"Ada Lovelace Street") for each in (table, plain)]
        assert counts[0] <= 1 < counts[1] or counts[0] < counts[1]

    def test_equal_rows_are_other_files_that_nobody_can_guess_and_change_nothing(self, project, table):
        assert table.write(people(1, 2, 3)).change == "none"
        other = project.table("others")
        other.write(people(1, 2, 3), options=PERSONAL)
        assert other.files().adds[0].path != table.files().adds[0].path
        plain = [project.table(name) for name in ("plain", "plainer")]
        for each in plain:
            each.write(people(1, 2, 3))
        assert plain[0].files().adds[0].path == plain[1].files().adds[0].path

    @pytest.mark.parametrize("mode", ["append", "merge"])
    def test_of_rows_that_are_added_and_vectors_and_changes(self, project, mode):
        properties = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
        key = ("n",) if mode == "merge" else ()
        options = TableOptions(mode=mode, merge_key=key, personal_columns=("name", "home"), properties=properties)
        table = project.table("people")
        table.write(people(*range(40)), options=options)
        renamed = people(3, 4, 41, names=NAMES[::-1])
        table.write(renamed, options=TableOptions(mode=mode, merge_key=key))
        told = beside_values(project)
        assert not any(name.encode() in told for name in NAMES)
        changes = [path for path in files_of(project) if "_change_data" in str(path)]
        assert bool(changes) == (mode == "merge")
        for path in changes:
            assert b"Lovelace" not in repr(pq.ParquetFile(path).metadata.to_dict()).encode()

    def test_other_programs_take_no_statistics_of_them(self, project, table):
        table.leave(dry_run=False)
        place = project.data.local_path("people")
        deltalake.write_deltalake(place, people(7, 8), mode="append")
        actions = pa.table(deltalake.DeltaTable(place).get_add_actions(flatten=True)).to_pylist()
        told = [value for each in actions for key, value in each.items() if re.match(r"(min|max)\.(na|ho)", key)]
        assert set(told) <= {None}
        assert table.adopt().version.identity.nrow == 5
        assert personal_columns(table.state.snapshot.metadata.configuration) == ("name", "home")

    def test_in_drafts_environments_and_what_is_promoted(self, project, table):
        park(table, {None: people(1, 2)}, run=Run("r1", "people", 0))
        create_environment(project, "pr-1")
        inside = project.in_environment("pr-1")
        parents = inside.table("people").upstream()
        inside.table("new").write(people(1), options=PERSONAL, parents=parents, code_version="1")
        inside.table("people").write(people(2, 3))
        promote(project, "pr-1", dry_run=False)
        assert project.table("new").read().num_rows == 1
        told = beside_values(project)
        assert not any(name.encode() in told for name in NAMES)
        project.table("new").write(people(2, 3))
        assert not any(name.encode() in beside_values(project) for name in NAMES)

    def test_repartition_and_the_rows_of_readers(self, project, table):
        table.repartition("same", types={"n": "string"}, dry_run=False)
        assert not any(name.encode() in beside_values(project) for name in NAMES)
        place = str(project.data.local_path("people"))
        assert sorted(pl.read_delta(place)["name"].to_list()) == sorted(NAMES)
        assert pl.scan_delta(place).filter(pl.col("name") == "Ada Lovelace").collect().height == 1


class TestBySpark:
    @pytest.mark.parametrize("parts", [1, 4])
    def test_whoever_writes_the_parts(self, project, spark, parts):
        table = project.table("people")
        rows = people(*range(3000))
        options = PERSONAL.model_copy(update={"row_order": "significant" if parts > 1 else "ignored"})
        frame = spark.createDataFrame(rows.to_pandas()).repartitionByRange(parts, "n")
        table.write(frame, options=options)
        merging = TableOptions(mode="merge", merge_key=("n",))
        if parts == 1:
            table.write(spark.createDataFrame(people(2, 4000, names=NAMES[::-1]).to_pandas()), options=merging)
        assert not any(name.encode() in beside_values(project) for name in NAMES)
        table.verify().require_ok()


class TestTheOption:
    def test_it_stays_until_it_is_taken_away(self, table):
        table.write(people(5))
        assert pq.ParquetFile(part_of(table)).metadata.row_group(0).column(1).statistics is None
        table.write(people(6), options=TableOptions(personal_columns=()))
        assert pq.ParquetFile(part_of(table)).metadata.row_group(0).column(1).statistics is not None
        properties = table.state.snapshot.metadata.configuration
        assert not {key for key in properties if "personal" in key or "dataSkipping" in key}

    def test_a_table_gets_it_later(self, project):
        table = project.table("people")
        table.write(people(1))
        assert table.write(people(1), options=PERSONAL).change == "none"
        table.write(people(2))
        assert pq.ParquetFile(part_of(table)).metadata.row_group(0).column(1).statistics is None

    def test_new_columns_have_statistics_in_other_programs(self, table):
        wider = people(1).append_column("score", pa.array([1.5]))
        table.write(wider)
        assert table.state.snapshot.metadata.configuration["delta.dataSkippingStatsColumns"] == "`n`,`score`"

    def test_all_columns_may_be_personal(self, project):
        table = project.table("names")
        table.write(people(1).select(["name"]), options=TableOptions(personal_columns=("name",)))
        assert table.state.snapshot.metadata.configuration["delta.dataSkippingNumIndexedCols"] == "0"
        assert deltalake.DeltaTable(project.data.local_path("names")).to_pandas().shape == (1, 1)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"partition_columns": ("name",)}, "no personal column"),
            ({"cluster_by": ("name",)}, "no personal column"),
            ({"properties": {"delta.dataSkippingNumIndexedCols": "1"}}, "leave that property out"),
            ({"personal_columns": ("name", "name")}, "twice"),
        ],
    )
    def test_what_would_tell_their_values_is_refused(self, options, said):
        with pytest.raises(ValueError, match=said):
            TableOptions(**{"personal_columns": ("name",), **options})

    def test_a_column_that_there_is_not_is_refused(self, project):
        table = project.table("people")
        with pytest.raises(InvalidInput, match=r"no column 'nmae'.*Nothing was written"):
            table.write(people(1), options=TableOptions(personal_columns=("nmae",)))
        assert not table.exists()

    def test_a_column_that_the_table_is_clustered_by_is_refused(self, project):
        table = project.table("people")
        table.write(people(1), options=TableOptions(cluster_by=("name",)))
        with pytest.raises(InvalidInput, match="clustered or partitioned by 'name'"):
            table.write(people(2), options=PERSONAL)

    def test_a_table_is_neither_partitioned_nor_clustered_by_them_later(self, table):
        for layout in ({"partition_columns": ("name",)}, {"cluster_by": ("name",)}):
            with pytest.raises(InvalidInput, match="clustered or partitioned by 'name'"):
                table.write(people(2), options=TableOptions(**layout))
        with pytest.raises(InvalidInput, match="'name' is personal"):
            table.repartition(Partitioning("static"), "name", dry_run=False)

    def test_of_rows_that_are_there_already_the_option_is_checked_as_well(self, project, table):
        with pytest.raises(InvalidInput, match="no column 'nmae'"):
            table.write(people(1, 2, 3), options=TableOptions(personal_columns=("nmae",)))
        clustered = project.table("clustered")
        clustered.write(people(1), options=TableOptions(cluster_by=("name",)))
        with pytest.raises(InvalidInput, match="clustered or partitioned by 'name'"):
            clustered.write(people(1), options=PERSONAL)

    def test_who_remembers_an_older_state_takes_none_away(self, project, table):
        late = Project(project.name, project.store).table("people")
        late.write(people(4))
        table.write(people(5), options=TableOptions(personal_columns=("n", "name", "home")))
        with pytest.raises(CommitConflict, match="personal columns"):
            late.write(people(6))
        late.write(people(6))
        assert personal_columns(late.state.snapshot.metadata.configuration) == ("n", "name", "home")
        assert not any(b'"n":' in entry for entry in _bounds(project, late.state.log_version))

    def test_a_draft_publishes_no_bounds_of_what_became_personal_since(self, project, table):
        added = TableOptions(mode="append")
        park(table, {None: people(7)}, run=Run("r1", "people", 0), options=added)
        everything = added.model_copy(update={"personal_columns": ("n", "name", "home")})
        table.write(people(8), options=everything)
        assert project.publish("r1", by="me").published == []
        assert personal_columns(table.state.snapshot.metadata.configuration) == ("n", "name", "home")

    def test_a_promotion_carries_no_file_that_tells_of_them(self, project):
        table = project.table("people")
        table.write(people(1))
        create_environment(project, "pr-1")
        inside = project.in_environment("pr-1").table("people")
        inside.write(people(2), code_version="1", parents=inside.beside("people").upstream())
        table.write(people(1), options=PERSONAL)
        report = promote(project, "pr-1", accept=("people",), dry_run=False)
        assert report.promoted == ()
        assert not any(name.encode() in entry for name in NAMES for entry in _bounds(project, 1))

    def test_a_new_column_of_a_table_with_some_is_promoted(self, project, table):
        derived = project.table("derived")
        derived.write(people(1), options=PERSONAL, parents=table.upstream(), code_version="1")
        create_environment(project, "pr-1")
        inside = project.in_environment("pr-1").table("derived")
        wider = people(1).append_column("score", pa.array([1.5]))
        inside.write(wider, parents=inside.beside("people").upstream(), code_version="2")
        assert promote(project, "pr-1", dry_run=False).left == ()
        assert "score" in project.table("derived").read().column_names

    def test_a_table_that_gets_it_while_it_is_written_is_not_written(self, project, monkeypatch):
        table = project.table("people")
        table.write(people(1))
        late = Project(project.name, project.store).table("people")
        resolve = late.with_personal_columns

        def meanwhile(options: TableOptions) -> TableOptions:
            resolved = resolve(options)
            table.write(people(2), options=PERSONAL)
            return resolved

        monkeypatch.setattr(late, "with_personal_columns", meanwhile)
        with pytest.raises(CommitConflict, match="personal columns"):
            late.write(people(3))

    def test_a_property_that_is_none_is_named(self, project, table):
        entry = project.data.local_path("people/_delta_log/00000000000000000000.json")
        lines = [orjson.loads(line) for line in entry.read_bytes().splitlines()]
        metadata = next(line["metaData"] for line in lines if "metaData" in line)
        metadata["configuration"]["dagster_versioned.personalColumns"] = "name"
        entry.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n")
        with pytest.raises(Exception, match="no JSON list of columns"):
            Project(project.name, project.store).table("people").write(people(9))


def _bounds(project: Project, log_version: int) -> list[bytes]:
    """What the commits of a table from a version on say of the bounds of its files."""
    lines: list[bytes] = []
    for path in sorted(project.data.local_path("people/_delta_log/x").parent.glob("*.json")):
        if int(path.stem) >= log_version:
            for line in path.read_bytes().splitlines():
                if (add := orjson.loads(line).get("add")) and "stats" in add:
                    stats = orjson.loads(add["stats"])
                    lines.append(orjson.dumps([stats.get("minValues"), stats.get("maxValues")]))
    return lines


class TestShown:
    def test_an_error_about_a_type_shows_no_value(self, table):
        with pytest.raises(InvalidInput, match="a value does not fit"):
            table.repartition("same", types={"name": "long"}, dry_run=False)

    def test_errors_about_keys_show_no_value(self, project):
        options = TableOptions(mode="merge", merge_key=("name",), personal_columns=("name",))
        rows = people(1, 1, 4).select(["n", "name"])
        with pytest.raises(InvalidInput, match="•••") as raised:
            project.table("people").write(rows, options=options)
        assert "Grace" not in str(raised.value)
