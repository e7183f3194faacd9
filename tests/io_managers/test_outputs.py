"""What an asset returns becomes a version, and Dagster is told which."""

import time

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import TableOptions
from dagster_versioned.errors import InvalidInput, InvalidName, UnsupportedFrame
from support.house import changes, materializations

ROWS = {"n": [1, 2, 3], "s": ["a", "b|c", None]}
FRAMES = {
    "pyarrow table": lambda: pa.table(ROWS),
    "record batch reader": lambda: pa.table(ROWS).to_reader(),
    "pandas": lambda: pd.DataFrame(ROWS),
    "polars": lambda: pl.DataFrame(ROWS),
    "lazy polars": lambda: pl.LazyFrame(ROWS),
}


def asset_of(make, name="one", **options):
    @dg.asset(name=name, **options)
    def asset():
        return make()

    return asset


@pytest.mark.parametrize("kind", FRAMES)
def test_every_kind_of_frame_is_stored(house, kind):
    assert changes(house.run(asset_of(FRAMES[kind]))) == {"one": "full"}
    assert house.project.table("one").read().to_pydict() == ROWS


def test_the_same_frame_again_is_none_and_still_reports_its_version(house):
    one = asset_of(FRAMES["pandas"])
    first, second = (materializations(house.run(one))["one", None] for _ in range(2))
    assert second.metadata["dagster_versioned/change"].value == "none"
    assert second.metadata["dagster_versioned/metadata_sha"] == first.metadata["dagster_versioned/metadata_sha"]
    assert second.tags["dagster/data_version"] == first.tags["dagster/data_version"]
    assert len(house.project.table("one").history()) == 1


def test_the_data_version_is_the_metadata_sha(house):
    one = materializations(house.run(asset_of(FRAMES["polars"])))["one", None]
    assert one.tags["dagster/data_version"] == house.head("one").metadata_sha


def test_a_data_version_that_the_asset_sets_itself_is_kept(house):
    one = asset_of(lambda: dg.Output(pa.table(ROWS), data_version=dg.DataVersion("mine")))
    assert materializations(house.run(one))["one", None].tags["dagster/data_version"] == "mine"


def test_a_materialization_carries_standard_metadata_and_ours(house):
    one = materializations(house.run(asset_of(FRAMES["pandas"])))["one", None]
    metadata = {key: value.value for key, value in one.metadata.items()}
    head = house.head("one")
    assert metadata["dagster/row_count"] == 3
    assert metadata["dagster/table_name"] == "HOUSE.one"
    assert metadata["dagster/uri"].endswith("/datom/one")
    assert metadata["dagster/storage_kind"] == "deltalake"
    columns = metadata["dagster/column_schema"].columns
    assert [(column.name, column.type) for column in columns] == [("n", "long"), ("s", "string")]
    assert metadata["dagster_versioned/change"] == "full"
    assert metadata["dagster_versioned/metadata_sha"] == head.metadata_sha
    assert metadata["dagster_versioned/data_sha"] == head.data_sha
    assert metadata["dagster_versioned/log_version"] == 0
    assert metadata["dagster_versioned/size_bytes"] == head.facts.size_bytes
    assert isinstance(metadata["dagster_versioned/size_bytes"], float)
    assert head.metadata_sha.startswith(metadata["dagster_versioned/version"])
    assert head.data_sha.startswith(metadata["dagster_versioned/data"])
    assert len(metadata["dagster_versioned/version"]) == len(metadata["dagster_versioned/data"]) == 8
    assert metadata["dagster_versioned/diff"] == "The first version."


def test_the_seconds_of_a_write_are_those_that_it_took(house):
    """A frame that is lazy takes its time in the write, and only there."""

    @dg.asset
    def one() -> pa.RecordBatchReader:
        def batches():
            time.sleep(0.2)
            yield pa.record_batch(ROWS)

        time.sleep(0.5)
        return pa.RecordBatchReader.from_batches(pa.table(ROWS).schema, batches())

    began = time.monotonic()
    seconds = materializations(house.run(one))["one", None].metadata["dagster_versioned/write_seconds"].value
    assert 0.2 <= seconds <= time.monotonic() - began - 0.5


def test_the_commit_sha_in_the_event_log_witnesses_a_log_that_was_cut(house):
    """The chain inside the log cannot see that its end is missing; Dagster's event log can."""
    rows = iter([[1], [2]])
    one = asset_of(lambda: pa.table({"n": next(rows)}))
    found = [materializations(house.run(one))["one", None].metadata for _ in range(2)]
    witnesses = {m["dagster_versioned/log_version"].value: m["dagster_versioned/commit_sha256"].value for m in found}
    table = house.project.table("one")
    assert table.verify(witnesses=witnesses).ok
    table.store.delete(["_delta_log/00000000000000000001.json"])
    assert not table.verify(witnesses=witnesses).ok


def test_the_preview_shows_the_first_rows_and_cannot_break_the_table_it_is_in(house):
    one = materializations(house.run(asset_of(FRAMES["pandas"]), io_manager=house.io_manager(preview_rows=2)))
    preview = one["one", None].metadata["dagster_versioned/preview"].value
    assert preview == "| n | s |\n| --- | --- |\n| 1 | a |\n| 2 | b\\|c |\n\n2 of 3 rows"


def test_the_diff_says_what_changed_against_the_version_before_and_how_to_see_the_rows(house):
    @dg.asset
    def up():
        return pa.table({"n": [len(house.project.tables())]})

    def down(frame, **options):
        return asset_of(lambda: frame, name="down", deps=[up], **options)

    house.run(up, down(pa.table({"n": [1], "s|t": ["a"]}), code_version="1"))
    first, parent = house.head("down"), house.head("up")
    result = house.run(up, down(pa.table({"n": [1.5, 2.0], "x": [{"y": 1}, None]}), code_version="2"))
    second, new_parent = house.head("down"), house.head("up")
    text = materializations(result)["down", None].metadata["dagster_versioned/diff"].value
    head, rule, *lines, blank, command = text.split("\n")
    assert (head, rule, blank) == (f"| | {first.short} | {second.short} |", "| --- | --- | --- |", "")
    assert command == f"`dagster-versioned diff 'down' {first.short} {second.short}`"
    assert lines == [
        "| rows | 1 | 2 (+1) |",
        f"| data | {first.data_sha[:8]} | {second.data_sha[:8]} |",
        f"| bytes | {first.facts.size_bytes} | {second.facts.size_bytes} |",
        "| parts | 1 | 1 |",
        "| column n | long | double |",
        "| column x | none | struct<y: long> |",
        "| column s\\|t | string | none |",
        f"| parent HOUSE.up | {parent.short} | {new_parent.short} |",
        "| code_version | 1 | 2 |",
    ]


def test_the_diff_of_a_partition_is_against_its_own_version_before(house):
    rows = iter([[1], [2], [3], [3]])

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
    def daily():
        return pa.table({"n": next(rows)})

    texts = [
        materializations(house.run(daily, partition_key=key))["daily", key].metadata["dagster_versioned/diff"].value
        for key in ("a", "b", "a", "a")
    ]
    versions = [version.short for version in reversed(house.project.table("daily").history(partition="a"))]
    assert texts[:2] == ["The first version."] * 2
    assert f"diff 'daily' {versions[0]} {versions[1]} --partition 'a'" in texts[2]
    assert texts[3] == f"Nothing changed: it is still version {versions[1]}."


def test_a_long_diff_is_cut(house):
    house.run(asset_of(lambda: pa.table({f"c{i}": [1] for i in range(100)})))
    result = house.run(asset_of(lambda: pa.table({f"d{i}": [1] for i in range(100)})))
    text = materializations(result)["one", None].metadata["dagster_versioned/diff"].value
    assert "164 more differences" in text
    assert len(text) < 4000


def test_a_version_before_that_was_altered_does_not_fail_the_write(house):
    rows = iter([[1], [2]])
    one = asset_of(lambda: pa.table({"n": next(rows)}))
    house.run(one)
    store, key = house.project.table("one").store, f"_delta_log/{0:020d}.json"
    store.put(key, store.get(key).replace(b'"nrow":1', b'"nrow":9'))
    found = materializations(house.run(one))["one", None]
    assert "cannot be compared" in found.metadata["dagster_versioned/diff"].value


def test_a_preview_can_be_left_out_of_the_event_log(house):
    one = materializations(house.run(asset_of(FRAMES["pandas"]), io_manager=house.io_manager(preview_rows=0)))
    assert "dagster_versioned/preview" not in one["one", None].metadata


def test_an_empty_table_has_no_preview(house):
    options = TableOptions(allow_empty=True).as_metadata()
    one = asset_of(lambda: pa.table({"n": pa.array([], pa.int64())}), metadata=options)
    metadata = materializations(house.run(one))["one", None].metadata
    assert metadata["dagster/row_count"].value == 0
    assert "dagster_versioned/preview" not in metadata


def test_options_in_the_assets_metadata_apply(house):
    one = asset_of(lambda: pa.table({"n": [3, 1, 2]}), metadata=TableOptions(sort_rows=("n",)).as_metadata())
    house.run(one)
    assert house.project.table("one").read().to_pydict() == {"n": [1, 2, 3]}


def test_a_wrong_option_is_refused_by_name(house):
    one = asset_of(FRAMES["pandas"], metadata={"dagster_versioned/options": {"sort_row": ["n"]}})
    with pytest.raises(InvalidInput, match="sort_row"):
        house.run(one)


def test_another_code_version_is_metadata_only(house):
    house.run(asset_of(FRAMES["pandas"], code_version="1"))
    assert changes(house.run(asset_of(FRAMES["pandas"], code_version="2"))) == {"one": "metadata_only"}
    assert house.head("one").identity.code_version == "2"


def test_a_message_is_part_of_the_identity_and_absent_unless_the_run_gives_one(house):
    one = asset_of(FRAMES["pandas"])
    house.run(one)
    assert house.head("one").identity.message is None
    assert changes(house.run(one, tags={"dagster_versioned/message": "after the audit"})) == {"one": "metadata_only"}
    assert house.head("one").identity.message == "after the audit"


def test_the_version_records_the_run_that_wrote_it(house):
    result = house.run(asset_of(FRAMES["pandas"]))
    run = house.head("one").facts.run
    assert (run.run_id, run.step_key, run.attempt) == (result.run_id, "one", 0)


def test_an_asset_key_of_several_parts_is_one_table(house):
    house.run(asset_of(FRAMES["pandas"], key_prefix=["raw", "daily"]))
    assert list(house.head("raw__daily__one").identity.asset_key) == ["raw", "daily", "one"]


@pytest.mark.parametrize("key", [["1_flights"], ["_a", "b"], ["input_files"], ["f" * 129]])
def test_an_asset_that_can_have_no_table_is_refused_before_anything_runs(house, key):
    called = []

    @dg.asset
    def other() -> pa.Table:
        called.append("other")
        return pa.table({"n": [1]})

    @dg.asset(key=key)
    def unnamed() -> pa.Table:
        called.append("unnamed")
        return pa.table({"n": [1]})

    @dg.asset(key=[*key, "nothing"] if len(key[0]) < 100 else key)
    def without_a_value() -> None: ...

    with pytest.raises(dg.DagsterResourceFunctionError) as raised:
        house.run(other, unnamed)
    assert "gives no table name" in str(raised.value.__cause__)
    assert not called
    assert house.run(other, without_a_value).success
    assert called == ["other"]


def test_two_asset_keys_that_map_to_one_name_are_refused(house):
    house.run(asset_of(FRAMES["pandas"], key_prefix="raw"))
    with pytest.raises(InvalidName, match=r"already belongs to the asset \['raw', 'one'\]"):
        house.run(asset_of(FRAMES["polars"], name="raw__one"))
    assert len(house.project.table("raw__one").history()) == 1


def test_a_value_that_is_no_frame_is_refused_with_what_is_supported(house):
    with pytest.raises(UnsupportedFrame, match=r"builtins\.int .*pandas\.DataFrame.*pyspark\.sql\.DataFrame"):
        house.run(asset_of(lambda: 1))
    assert not house.project.table("one").exists()


def test_none_is_refused_with_the_annotation_that_is_missing(house):
    with pytest.raises(InvalidInput, match=r"one returned None.*-> None"):
        house.run(asset_of(lambda: None))


def test_assets_without_a_value_pass_by_the_io_manager(house):
    @dg.asset
    def nothing() -> None: ...

    @dg.asset
    def result():
        return dg.MaterializeResult(metadata={"rows": 1})

    assert house.run(nothing, result).success
    assert house.project.tables() == []


def test_a_materialize_result_with_a_value_is_stored(house):
    @dg.asset
    def one():
        return dg.MaterializeResult(value=pa.table(ROWS))

    assert changes(house.run(one)) == {"one": "full"}


def test_a_multi_asset_with_outs_stores_each(house):
    @dg.multi_asset(outs={"left": dg.AssetOut(), "right": dg.AssetOut()})
    def both():
        return pa.table({"n": [1]}), pa.table({"n": [2]})

    assert changes(house.run(both)) == {"left": "full", "right": "full"}


def test_the_io_manager_can_be_called_in_a_unit_test(house):
    with dg.build_output_context(asset_key="one", definition_metadata=TableOptions().as_metadata()) as context:
        house.io_manager().handle_output(context, pa.table(ROWS))
        assert context.get_logged_metadata()["dagster_versioned/change"].value == "full"
    with dg.build_input_context(asset_key="one", dagster_type=dg.PythonObjectDagsterType(pa.Table)) as context:
        assert house.io_manager().load_input(context).to_pydict() == ROWS


OWN = {"dagster/row_count": 99, "dagster/column_schema": dg.TableSchema([dg.TableColumn("n", description="a number")])}


@pytest.mark.parametrize("way", ["output", "result", "context", "asset"])
@pytest.mark.parametrize("is_ranged", [False, True])
def test_what_the_function_says_is_never_overwritten(house, way, is_ranged):
    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["a", "b"]) if is_ranged else None,
        backfill_policy=dg.BackfillPolicy.single_run() if is_ranged else None,
    )
    def numbers(context):
        frame = pa.table({"n": [1]})
        value = {"a": frame, "b": frame} if is_ranged else frame
        match way:
            case "output":
                return dg.Output(value, metadata=OWN)
            case "result":
                return dg.MaterializeResult(value=value, metadata=OWN)
            case "context":
                context.add_output_metadata(OWN)
            case "asset":
                context.add_asset_metadata(OWN)
        return value

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"} if is_ranged else {}
    for made in materializations(house.run(numbers, tags=tags)).values():
        assert made.metadata["dagster/row_count"].value == 99
        assert made.metadata["dagster/column_schema"].value.columns[0].description == "a number"
        assert "dagster_versioned/metadata_sha" in made.metadata
