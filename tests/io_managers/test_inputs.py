"""What an input is handed: which version, of which partitions and columns, as which type."""

import gc

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.errors import InvalidInput, InvalidReference, TableNotFound, UnsupportedFrame, VersionNotFound

ROWS = {"n": [1, 2], "s": ["a", "b"]}


@dg.asset
def up():
    return pa.table(ROWS)


def write(house, *frames, name="up"):
    """The versions of a table that these rows become, one after the other."""
    return [house.project.table(name).write(pa.table(rows)).version for rows in frames]


def reader(annotation=None, metadata=None):
    """An asset that hands what it was handed to the test; and the list it hands it to."""
    seen = []

    def body(up):
        seen.append(up)

    body.__annotations__ = {"return": None, **({"up": annotation} if annotation is not None else {})}
    return dg.asset(name="down", ins={"up": dg.AssetIn(metadata=metadata)})(body), seen


@pytest.mark.parametrize("kind", [pa.Table, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame], ids=str)
def test_an_input_is_read_as_it_is_annotated(house, kind):
    down, seen = reader(kind)
    house.run(up, down)
    assert isinstance(seen[0], kind)


@pytest.mark.parametrize(("engine", "kind"), [("arrow", pa.Table), ("pandas", pd.DataFrame), ("polars", pl.DataFrame)])
def test_an_input_without_annotation_is_read_by_the_default_engine(house, engine, kind):
    down, seen = reader()
    house.run(up, down, io_manager=house.io_manager(default_engine=engine))
    assert isinstance(seen[0], kind)


def test_an_annotation_that_cannot_be_read_is_refused_with_what_can(house):
    down, _ = reader(str)
    with pytest.raises(UnsupportedFrame, match=r"builtins\.str.*pyarrow\.Table"):
        house.run(up, down)


def test_columns_can_be_chosen_in_the_inputs_metadata(house):
    down, seen = reader(metadata={"dagster_versioned/columns": ["s"]})
    house.run(up, down)
    assert seen[0].column_names == ["s"]


def test_an_unknown_column_is_refused_by_name(house):
    down, _ = reader(metadata={"dagster_versioned/columns": ["t"]})
    with pytest.raises(InvalidInput, match="No column 't'"):
        house.run(up, down)


def test_an_input_can_be_pinned_by_the_assets_metadata_the_run_config_and_a_run_tag_which_win_in_that_order(house):
    versions = write(house, {"n": [0]}, {"n": [1]}, {"n": [2]}, {"n": [3]})
    down, seen = reader(metadata={"dagster_versioned/version": versions[0].short})

    def read(**kwargs):
        house.run(down, up.to_source_asset(), selection=[down], **kwargs)
        return seen.pop()["n"].to_pylist()

    configured = {"run_config": {"resources": {"io_manager": {"config": {"pins": {"up": "@1"}}}}}}
    tagged = {"tags": {"dagster_versioned/pin/up": versions[2].metadata_sha}}
    assert read() == [0]
    assert read(**configured) == [1]
    assert read(**configured, **tagged) == [2]


def test_an_input_that_is_not_pinned_is_the_head(house):
    write(house, {"n": [0]}, {"n": [1]})
    down, seen = reader()
    house.run(down, up.to_source_asset(), selection=[down])
    assert seen[0]["n"].to_pylist() == [1]


def test_a_pin_to_no_version_is_refused(house):
    write(house, {"n": [0]})
    down, _ = reader()
    with pytest.raises(VersionNotFound, match="abcdef"):
        house.run(down, up.to_source_asset(), selection=[down], tags={"dagster_versioned/pin/up": "abcdef"})


def test_a_pin_by_name_follows_the_projects_pin(house):
    write(house, {"n": [0]}, {"n": [1]})
    house.project.pin("audit", "up", "@0")
    down, seen = reader(metadata={"dagster_versioned/version": "pin:audit"})
    house.run(down, up.to_source_asset(), selection=[down])
    assert seen[0]["n"].to_pylist() == [0]


def test_a_tag_pins_an_input_in_the_three_ways_that_a_version_does(house):
    write(house, {"n": [0]}, {"n": [1]})
    house.project.tag("2026-11")
    old = house.project.table("up").version().metadata_sha
    write(house, {"n": [2]})
    configured = {"run_config": {"resources": {"io_manager": {"config": {"pins": {"up": "tag:2026-11"}}}}}}
    tagged = {"tags": {"dagster_versioned/pin/up": "tag:2026-11"}}
    for metadata, given in (({"dagster_versioned/version": "tag:2026-11"}, {}), (None, configured), (None, tagged)):
        down, seen = reader(metadata=metadata)
        house.run(down, up.to_source_asset(), selection=[down], **given)
        assert seen[0]["n"].to_pylist() == [1]
    down, _ = reader(metadata={"dagster_versioned/version": "tag:2026-12"})
    with pytest.raises(VersionNotFound, match="no tag '2026-12'"):
        house.run(down, up.to_source_asset(), selection=[down])

    @dg.asset(name="down", ins={"up": dg.AssetIn(metadata={"dagster_versioned/version": "tag:2026-11"})})
    def built(up) -> pa.Table:
        return up

    house.run(built, up.to_source_asset(), selection=[built])
    (parent,) = house.project.table("down").version().entry.identity.parents
    assert parent.version == old


def test_a_missing_upstream_table_names_the_asset_and_what_to_run(house):
    down, _ = reader()
    with pytest.raises(TableNotFound, match=r"asset up has no version in project HOUSE.*dagster asset materialize"):
        house.run(down, up.to_source_asset(), selection=[down])


def test_reading_logs_no_observation(house):
    down, _ = reader()
    result = house.run(up, down)
    assert not [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]


def test_a_value_can_be_loaded_outside_of_a_run(house):
    house.run(up)
    defs = dg.Definitions(assets=[up], resources={"io_manager": house.io_manager()})
    assert defs.load_asset_value("up", python_type=pd.DataFrame)["n"].tolist() == [1, 2]


class TestOutsideOfARun:
    """Tests and notebooks load values without a step, often without a name or a type."""

    @pytest.fixture(autouse=True)
    def _let_go(self, house):
        """Let go of contexts of loads that failed, which Dagster leaves to the garbage collector, in time."""
        yield
        gc.collect()

    def load(self, house, asset=up, **options):
        defs = dg.Definitions(assets=[asset], resources={"io_manager": house.io_manager()})
        return defs.load_asset_value(asset.key, **options)

    def refused(self, house, error, asset=up, **options):
        with pytest.raises(error) as caught:
            self.load(house, asset, **options)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        return str(caught.value)

    def test_a_table_that_is_missing_is_named_with_what_to_run(self, house):
        told = self.refused(house, TableNotFound)
        assert "The asset up has no version in project HOUSE" in told
        assert "so the value cannot be read" in told
        assert "dagster asset materialize" in told

    def test_a_partition_that_is_missing_is_named(self, house):
        @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
        def daily():
            return pa.table(ROWS)

        self.refused(house, TableNotFound, daily, partition_key="a")
        house.run(daily, partition_key="a")
        assert "Partition 'b' of the asset daily" in self.refused(house, VersionNotFound, daily, partition_key="b")
        assert self.load(house, daily, partition_key="a").to_pydict() == ROWS

    @pytest.mark.parametrize(("reference", "named"), [("@77", "No log version @77"), ("abcdef", "'abcdef'")])
    def test_a_version_that_is_missing_is_named(self, house, reference, named):
        house.run(up)
        metadata = {"dagster_versioned/version": reference}
        assert named in self.refused(house, VersionNotFound, metadata=metadata)

    def test_what_is_no_reference_is_refused(self, house):
        house.run(up)
        metadata = {"dagster_versioned/version": "zz"}
        assert "'zz'" in self.refused(house, InvalidReference, metadata=metadata)

    def test_a_type_that_no_table_is_read_as_is_named(self, house):
        house.run(up)
        assert "builtins.int" in self.refused(house, UnsupportedFrame, python_type=int)

    def test_a_type_that_nobody_gave_is_that_of_the_default_engine(self, house):
        house.run(up)
        with dg.build_input_context(asset_key="up") as context:
            assert house.io_manager().load_input(context).to_pydict() == ROWS
