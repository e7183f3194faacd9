"""A versioned asset is a drop-in for `dagster.asset` whose function is not called again for what it has computed."""

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import (
    TableOptions,
    VersionedParquetIOManager,
    build_version_checks,
    versioned_asset,
    versioned_multi_asset,
)
from dagster_versioned.assets.reuse import evaluations
from dagster_versioned.checks.check import Verdict, VersionCheck
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.findings import findings_of
from dagster_versioned.tables.table import VersionedTable


def frame(*values):
    return pd.DataFrame({"value": list(values)})


@pytest.fixture
def loads(monkeypatch):
    """The tables of which rows were loaded."""
    found = []
    read = VersionedTable.read_files

    def noted(self, *args, **kwargs):
        found.append(str(self.name))
        return read(self, *args, **kwargs)

    monkeypatch.setattr(VersionedTable, "read_files", noted)
    return found


class Add(dg.Config):
    amount: int = 1


class Clock(dg.ConfigurableResource):
    now: int = 7


def source(*values, name="source"):
    @dg.asset(name=name, code_version="1")
    def made() -> pd.DataFrame:
        return frame(*values)

    return made


def doubled(calls, code_version="1", **options):
    @versioned_asset(name="doubled", code_version=code_version, **options)
    def made(source: pd.DataFrame) -> pd.DataFrame:
        calls.append("doubled")
        return source * 2

    return made


class TestHits:
    def test_what_is_the_head_is_kept_and_no_input_loaded(self, bench, loads):
        assets = [source(1, 2), doubled(bench.calls)]
        assert bench.run(assets) == ["doubled"]
        assert loads == ["source"]
        loads.clear()
        assert bench.run(assets) == []
        assert loads == []
        shown = bench.metadata("doubled")
        assert shown["change"] == "none"
        assert shown["reused"] == bench.table("doubled").version().short
        assert isinstance(shown["saved_seconds"], float)
        assert shown["saved_bytes"] == float(bench.table("doubled").version().facts.size_bytes)
        assert len(bench.table("doubled").history()) == 1

    def test_what_an_older_version_is_becomes_current_again(self, bench):
        bench.run([source(1), doubled(bench.calls)])
        first = bench.table("doubled").version()
        assert bench.run([source(5), doubled(bench.calls)]) == ["doubled"]
        assert bench.run([source(1), doubled(bench.calls)]) == []
        again = bench.table("doubled").version()
        assert again.metadata_sha == first.metadata_sha
        assert again.log_version == 2
        assert again.facts.computation == first.facts.computation
        assert bench.metadata("doubled")["change"] == "full"
        assert bench.metadata("doubled")["reused"] == first.short
        assert bench.table("doubled").read(as_type=pd.DataFrame)["value"].tolist() == [2]
        assert bench.table("doubled").verify().ok

    def test_rows_of_an_input_that_are_gone_are_not_missed(self, bench):
        io = bench.io()
        pinned = VersionedParquetIOManager(project=io.project, pins={"source": "@0"})
        bench.run([source(1), doubled(bench.calls)])
        bench.run([source(5), doubled(bench.calls)])
        bench.table("source").purge(["@0"], why="erased", dry_run=False)
        assert bench.run([source(5), doubled(bench.calls)], io=pinned) == []
        assert bench.table("doubled").read(as_type=pd.DataFrame)["value"].tolist() == [2]
        bench.run([source(5), doubled(bench.calls, "2")], io=pinned, fails=True)
        assert "was purged" in bench.errors()

    def test_a_revert_of_the_code_calls_nothing(self, bench):
        assets = {version: [source(1), doubled(bench.calls, version)] for version in ("1", "2")}
        assert bench.run(assets["1"]) == ["doubled"]
        assert bench.run(assets["2"]) == ["doubled"]
        assert bench.run(assets["1"]) == []
        assert bench.run(assets["2"]) == []
        assert bench.table("doubled").version().identity.code_version == "2"

    def test_work_ends_within_a_run_where_a_source_is_read_again_and_unchanged(self, bench):
        @versioned_asset(code_version="1")
        def below(doubled: pd.DataFrame) -> pd.DataFrame:
            bench.calls.append("below")
            return doubled + 1

        assert bench.run([source(1), doubled(bench.calls), below]) == ["doubled", "below"]
        assert bench.run([source(1), doubled(bench.calls), below]) == []
        # Other code, but the same rows: what is below has other parents, and is computed again.
        assert bench.run([source(1), doubled(bench.calls, "2"), below]) == ["doubled", "below"]
        assert bench.run([source(1), doubled(bench.calls, "2"), below]) == []

    def test_what_the_table_became_while_the_function_ran_holds_for_what_it_gives(self, bench):
        @versioned_asset(code_version="1")
        def made(config: Add) -> pa.Table:
            if config.amount > 1:
                bench.table("made").write(pa.table({"value": ["a text now"]}))
            return pa.table({"value": pa.nulls(1, pa.null() if config.amount > 1 else pa.int64())})

        for amount in (1, 2):
            bench.run([made], run_config={"ops": {"made": {"config": {"amount": amount}}}})
        assert bench.table("made").read().schema.field("value").type == pa.string()

    def test_an_asset_that_was_there_before_is_called_once(self, bench):
        @dg.asset(name="doubled", code_version="1")
        def before(source: pd.DataFrame) -> pd.DataFrame:
            return source * 2

        bench.run([source(1), before])
        sha = bench.table("doubled").version().metadata_sha
        assert bench.run([source(1), doubled(bench.calls)]) == ["doubled"]
        assert bench.run([source(1), doubled(bench.calls)]) == []
        assert bench.table("doubled").version().metadata_sha == sha

    def test_computations_that_give_equal_rows_are_each_made_once(self, bench):
        @versioned_asset(code_version="1")
        def same(config: Add) -> pd.DataFrame:
            bench.calls.append(config.amount)
            return frame(1)

        def run(amount):
            return bench.run([same], run_config={"ops": {"same": {"config": {"amount": amount}}}})

        assert [run(1), run(2), run(3)] == [[1], [2], [3]]
        assert [run(1), run(2), run(3)] == [[], [], []]

    @pytest.mark.slow
    def test_two_hundred_assets_again_call_and_load_nothing(self, bench, loads):
        def one(number):
            @versioned_asset(name=f"a{number}", code_version="1", ins={"above": dg.AssetIn(f"a{max(number - 10, 0)}")})
            def made(above: pa.Table) -> pa.Table:
                bench.calls.append(number)
                return above

            return made

        @versioned_asset(code_version="1")
        def a0() -> pa.Table:
            bench.calls.append(0)
            return pa.table({"value": [0]})

        assets = [a0, *map(one, range(1, 200))]
        assert len(bench.run(assets)) == 200
        loads.clear()
        assert bench.run(assets) == []
        assert loads == []


class TestTheKey:
    def test_config_is_part_of_it(self, bench):
        @versioned_asset(code_version="1")
        def more(source: pd.DataFrame, config: Add) -> pd.DataFrame:
            bench.calls.append(config.amount)
            return source + config.amount

        def run(**config):
            return bench.run([source(1), more], run_config={"ops": {"more": {"config": config}}} if config else None)

        assert run() == [1]
        assert run(amount=1) == []  # the default, stated
        assert run(amount=2) == [2]
        assert run() == []
        assert bench.table("more").read(as_type=pd.DataFrame)["value"].tolist() == [2]

    def test_options_and_the_message_are_part_of_it(self, bench):
        bench.run([source(1), doubled(bench.calls)])
        sorted_rows = TableOptions(sort_rows=("value",)).as_metadata()
        assert bench.run([source(1), doubled(bench.calls, metadata=sorted_rows)]) == ["doubled"]
        tags = {"dagster_versioned/message": "asked for"}
        assert bench.run([source(1), doubled(bench.calls)], tags=tags) == ["doubled"]
        assert bench.run([source(1), doubled(bench.calls)], tags=tags) == []
        assert bench.table("doubled").version().identity.message == "asked for"

    def test_the_columns_and_the_type_of_an_input_are_part_of_it(self, bench):
        @dg.asset(code_version="1")
        def wide() -> pd.DataFrame:
            return pd.DataFrame({"a": [1], "b": [2]})

        def narrow(columns, kind):
            @versioned_asset(
                code_version="1", ins={"wide": dg.AssetIn("wide", metadata={"dagster_versioned/columns": columns})}
            )
            def narrow(wide: kind) -> pl.DataFrame:
                bench.calls.append(list(wide.columns))
                return pl.DataFrame({"columns": list(wide.columns)})

            return narrow

        assert bench.run([wide, narrow(["a"], pd.DataFrame)]) == [["a"]]
        assert bench.run([wide, narrow(["b"], pd.DataFrame)]) == [["b"]]
        assert bench.run([wide, narrow(["b"], pl.DataFrame)]) == [["b"]]
        assert bench.run([wide, narrow(["a"], pd.DataFrame)]) == []

    def test_a_pinned_input_counts_with_its_version(self, bench):
        bench.run([source(1), doubled(bench.calls)])
        first = bench.table("source").version().metadata_sha
        assert bench.run([source(2), doubled(bench.calls)]) == ["doubled"]
        assert bench.run([source(3), doubled(bench.calls)], tags={"dagster_versioned/pin/source": first}) == []
        assert bench.table("doubled").read(as_type=pd.DataFrame)["value"].tolist() == [2]

    def test_a_resource_that_is_declared_is_no_part_of_it(self, bench):
        @versioned_asset(code_version="1", ignore_resources=["clock"])
        def timed(source: pd.DataFrame, clock: Clock) -> pd.DataFrame:
            bench.calls.append(clock.now)
            return source

        assert bench.run([source(1), timed], resources={"clock": Clock(now=1)}) == [1]
        assert bench.run([source(1), timed], resources={"clock": Clock(now=2)}) == []


class TestFunctionsOfEveryKind:
    def test_each_is_called_once(self, bench):
        calls = bench.calls

        @versioned_asset(code_version="1", ignore_resources=["clock"])
        def plain(context: dg.AssetExecutionContext, source: pd.DataFrame, config: Add, clock: Clock) -> pd.DataFrame:
            calls.append(f"{context.asset_key.to_user_string()} {config.amount} {clock.now}")
            return source + config.amount

        @versioned_asset(code_version="1")
        def generator(plain: pd.DataFrame):
            calls.append("generator")
            yield dg.Output(plain, metadata={"note": "kept"})

        @versioned_asset(code_version="1")
        async def coroutine(generator: pl.DataFrame) -> pl.DataFrame:
            calls.append(f"coroutine {type(generator).__name__}")
            return generator

        @versioned_asset(code_version="1")
        async def async_generator(coroutine: pa.Table):
            calls.append("async generator")
            yield dg.Output(coroutine)

        @versioned_asset(code_version="1")
        def result(async_generator: pd.DataFrame):
            calls.append("result")
            return dg.MaterializeResult(value=async_generator, metadata={"rows": 1})

        @versioned_asset(code_version="1")
        def wrapped(result: pd.DataFrame) -> dg.Output[pd.DataFrame]:
            calls.append("wrapped")
            return dg.Output(result)

        @versioned_asset(code_version="1")
        def untyped(wrapped):
            calls.append(f"untyped {type(wrapped).__name__}")
            return wrapped

        @versioned_asset(code_version="1", ins={"files": dg.AssetIn("untyped")})
        def by_files(files: UpstreamFiles) -> pa.Table:
            calls.append("files")
            return files.read(pa.Table)

        assets = [source(1), plain, generator, coroutine, async_generator, result, wrapped, untyped, by_files]
        clock = {"clock": Clock()}
        assert bench.run(assets, resources=clock) == [
            "plain 1 7",
            "generator",
            "coroutine DataFrame",
            "async generator",
            "result",
            "wrapped",
            "untyped Table",
            "files",
        ]
        assert bench.run(assets, resources=clock) == []
        assert bench.table("by_files").read(as_type=pd.DataFrame)["value"].tolist() == [2]

    def test_in_a_unit_test_the_function_is_called(self, bench):
        made = doubled(bench.calls)
        assert made(frame(3))["value"].tolist() == [6]
        assert made(frame(3))["value"].tolist() == [6]
        assert bench.calls == ["doubled", "doubled"]

    def test_called_by_another_asset_it_is_a_function(self, bench):
        inner = doubled(bench.calls)

        @versioned_asset(code_version="1")
        def outer(source: pd.DataFrame) -> pd.DataFrame:
            return inner(source) + 1

        assert bench.run([source(1), outer]) == ["doubled"]
        assert bench.run([source(1), outer]) == []
        assert bench.table("outer").read(as_type=pd.DataFrame)["value"].tolist() == [3]

    def test_retries_come_before_a_hit(self, bench):
        @versioned_asset(code_version="1", retry_policy=dg.RetryPolicy(max_retries=2))
        def flaky(context: dg.AssetExecutionContext, source: pd.DataFrame) -> pd.DataFrame:
            bench.calls.append(context.retry_number)
            if context.retry_number == 0:
                raise dg.RetryRequested(max_retries=1)
            return source

        assert bench.run([source(1), flaky]) == [0, 1]
        assert bench.run([source(1), flaky]) == []

    def test_a_value_of_the_wrong_type_is_refused_as_dagster_does(self, bench):
        def refuse(_, value):
            return dg.TypeCheck(success=len(value) < 2, description="too many rows")

        short = dg.DagsterType(refuse, name="Short", typing_type=pd.DataFrame)

        @versioned_asset(code_version="1", ins={"source": dg.AssetIn("source", dagster_type=short)})
        def checked(source) -> pd.DataFrame:
            bench.calls.append("checked")
            return source

        assert bench.run([source(1), checked]) == ["checked"]
        assert bench.run([source(1, 2), checked], fails=True) == []
        assert "too many rows" in bench.errors()


class TestMultiAssets:
    def test_all_outputs_are_kept_or_none(self, bench):
        def halves(code="1"):
            @versioned_multi_asset(outs={"low": dg.AssetOut(code_version="1"), "high": dg.AssetOut(code_version=code)})
            def halves(source: pd.DataFrame):
                bench.calls.append("halves")
                return source - 1, source + 1

            return halves

        assert bench.run([source(1), halves()]) == ["halves"]
        assert bench.run([source(1), halves()]) == []
        assert {bench.metadata("halves")["change"]} == {"none"}
        assert bench.run([source(1), halves("2")]) == ["halves"]
        assert bench.run([source(1), halves()]) == []

    def test_a_subset_is_kept_by_itself(self, bench):
        @versioned_multi_asset(
            outs={name: dg.AssetOut(code_version="1", is_required=False) for name in ("one", "two")}, can_subset=True
        )
        def several(context: dg.AssetExecutionContext, source: pd.DataFrame):
            names = sorted(context.op_execution_context.selected_output_names)
            bench.calls.append(names)
            for name in names:
                yield dg.Output(source, output_name=name)

        bench.run([source(1)])
        assert bench.run([source(1), several], selection=["one"]) == [["one"]]
        assert bench.run([source(1), several], selection=["one"]) == []
        assert bench.run([source(1), several]) == [["one", "two"]]
        assert bench.run([source(1), several], selection=["two"]) == []
        assert bench.run([source(1), several]) == []


class TestChecks:
    def test_those_of_the_step_are_replayed(self, bench):
        @versioned_asset(code_version="1", check_specs=[dg.AssetCheckSpec("small", asset="checked")])
        def checked(source: pd.DataFrame):
            bench.calls.append("checked")
            passed = bool(source["value"].max() < 10)
            yield dg.Output(source)
            yield dg.AssetCheckResult(passed=passed, metadata={"largest": int(source["value"].max())})

        def found():
            (one,) = bench.result.get_asset_check_evaluations()
            return one.passed, {key: value.value for key, value in one.metadata.items()}

        assert bench.run([source(11), checked]) == ["checked"]
        assert bench.run([source(11), checked]) == []
        assert found() == (False, {"largest": 11, "dagster_versioned/replayed": True})
        assert bench.run([source(1), checked]) == ["checked"]
        assert bench.run([source(11), checked]) == []
        assert found() == (False, {"largest": 11, "dagster_versioned/replayed": True})

    @pytest.mark.parametrize("first", ["good", "bad"])
    def test_those_of_several_partitions_say_what_was_found_of_each(self, bench, first):
        keys = ["bad", "good"]

        @versioned_asset(
            code_version="1",
            check_specs=[dg.AssetCheckSpec("small", asset="checked")],
            partitions_def=dg.StaticPartitionsDefinition(keys),
            backfill_policy=dg.BackfillPolicy.single_run(),
        )
        def checked(context: dg.AssetExecutionContext):
            bench.calls.append(sorted(context.partition_keys))
            frames = {key: pd.DataFrame({"value": [1]}) for key in context.partition_keys}
            yield dg.Output(frames if len(frames) > 1 else frames[context.partition_keys[0]])
            yield dg.AssetCheckResult(passed="bad" not in context.partition_keys)

        second = "bad" if first == "good" else "good"
        assert bench.run([checked], partition_key=first) == [[first]]
        assert bench.run([checked], partition_key=second) == [[second]]
        tags = {f"dagster/asset_partition_range_{end}": key for end, key in zip(("start", "end"), keys, strict=True)}
        assert bench.run([checked], tags=tags) == []
        (found,) = bench.result.get_asset_check_evaluations()
        assert not found.passed
        assert found.metadata["dagster_versioned/partitions"].value == {"bad": False, "good": True}

    @pytest.mark.parametrize("passes", [True, False])
    def test_that_passed_is_known_of_a_version_however_long_ago_and_in_another_instance(
        self, bench, monkeypatch, passes
    ):
        @dg.asset_check(asset="doubled", blocking=True)
        def small(doubled: pd.DataFrame):
            return dg.AssetCheckResult(passed=bool(doubled["value"].max() < 10))

        def assets(value):
            return [source(value), doubled(bench.calls), small]

        value = 1 if passes else 50
        again = [] if passes else ["doubled"]
        assert bench.run(assets(value), fails=not passes) == ["doubled"]
        assert bench.run(assets(value), fails=not passes) == again  # which notes what the check has found
        monkeypatch.setattr(evaluations, "_MADE", 1)
        bench.run(assets(2))
        assert bench.run(assets(value), fails=not passes) == again
        with dg.DagsterInstance.ephemeral() as other:
            monkeypatch.setattr(bench, "instance", other)
            assert bench.run(assets(value), fails=not passes) == again

    def test_that_nobody_knows_to_have_passed_is_computed_again(self, bench):
        @dg.asset_check(asset="doubled", blocking=True)
        def small(doubled: pd.DataFrame):
            return dg.AssetCheckResult(passed=True)

        assert bench.run([source(1), doubled(bench.calls)]) == ["doubled"]
        assert bench.run([source(1), doubled(bench.calls), small]) == ["doubled"]
        assert bench.run([source(1), doubled(bench.calls), small]) == []

    def test_a_version_that_failed_a_blocking_check_is_not_reused(self, bench):
        @dg.asset_check(asset="doubled", blocking=True)
        def small(doubled: pd.DataFrame):
            return dg.AssetCheckResult(passed=bool(doubled["value"].max() < 10))

        def assets(value):
            return [source(value), doubled(bench.calls), small]

        assert bench.run(assets(1)) == ["doubled"]
        assert bench.run(assets(1)) == []
        assert bench.run(assets(50), fails=True) == ["doubled"]
        assert bench.run(assets(50), fails=True) == ["doubled"]
        assert bench.run(assets(1)) == []
        assert bench.run(assets(50), fails=True) == ["doubled"]  # though an older version now

    @pytest.mark.parametrize("kind", ["a user's", "ours"])
    @pytest.mark.parametrize(("own", "late"), [(50, 1), (1, 50)])
    def test_what_one_found_of_rows_that_somebody_else_wrote_is_not_found_of_the_version(self, bench, kind, own, late):
        between = [late]

        @versioned_asset(code_version="1")
        def result():
            bench.calls.append("result")
            yield dg.Output(frame(own))
            while between:
                bench.table("result").write(frame(between.pop()))

        @dg.asset_check(asset="result", blocking=True)
        def small(result: pd.DataFrame):
            return dg.AssetCheckResult(passed=is_small(result))

        assets = [result, *([small] if kind == "a user's" else build_version_checks([result], [Small(blocking=True)]))]
        table = bench.table("result")
        assert bench.run(assets, fails=late == 50) == ["result"]
        assert bench.run(assets, fails=own == 50) == ["result"]
        assert findings_of(table.store, table.version().metadata_sha) == {}
        assert bench.run(assets, fails=own == 50) == (["result"] if own == 50 else [])
        assert findings_of(table.store, table.version().metadata_sha) == {"small": own == 1}

    def test_what_one_has_read_is_known_of_each_partition(self, bench):
        between = [50]

        @versioned_asset(
            code_version="1",
            partitions_def=dg.StaticPartitionsDefinition(["a", "b"]),
            backfill_policy=dg.BackfillPolicy.single_run(),
        )
        def result(context: dg.AssetExecutionContext):
            bench.calls.append(sorted(context.partition_keys))
            frames = {key: frame(1) for key in context.partition_keys}
            yield dg.Output(frames if len(frames) > 1 else frames[context.partition_keys[0]])
            while between:
                bench.table("result").write(frame(between.pop()), partition="b")

        @dg.asset_check(asset=result, blocking=True)
        def is_there(result: dict[str, pd.DataFrame]):
            return dg.AssetCheckResult(passed=bool(result))

        tags = {f"dagster/asset_partition_range_{end}": key for end, key in (("start", "a"), ("end", "b"))}
        assert bench.run([result, is_there], tags=tags) == [["a", "b"]]
        assert bench.run([result, is_there], tags=tags) == [["b"]]
        assert bench.run([result, is_there], tags=tags) == []


def is_small(rows):
    return bool(rows["value"].max() < 10)


class Small(VersionCheck):
    default_name, description = "small", "All values are below ten."

    def judge(self, checked):
        return Verdict(is_small(checked.table.read_files(checked.files(), pd.DataFrame)), "")
