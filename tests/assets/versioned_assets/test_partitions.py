"""Runs of several partitions compute those alone that are not there, in as few calls as there are gaps."""

import dagster as dg
import pandas as pd
import pytest

from dagster_versioned import versioned_asset

DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-09")
SINGLE = {"partitions_def": DAYS, "backfill_policy": dg.BackfillPolicy.single_run()}


def day(number):
    return f"2026-01-{number:02}"


def span(first, last):
    return {
        "dagster/asset_partition_range_start": day(first),
        "dagster/asset_partition_range_end": day(last),
    }


@pytest.fixture
def values():
    return {day(number): number for number in range(1, 9)}


@pytest.fixture
def source(values):
    @dg.asset(code_version="1", **SINGLE)
    def source(context) -> dict[str, pd.DataFrame]:
        return {key: pd.DataFrame({"value": [values[key]]}) for key in context.partition_keys}

    return source


def doubled(calls, **options):
    @versioned_asset(**{"code_version": "1", **SINGLE, **options})
    def doubled(context: dg.AssetExecutionContext, source: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        keys = list(context.partition_keys)
        calls.append([int(key[-2:]) for key in keys])
        assert sorted(source) == keys
        assert context.asset_partition_keys_for_input("source") == keys
        assert context.has_partition_key is (len(keys) == 1)
        assert context.partition_key_range == dg.PartitionKeyRange(keys[0], keys[-1])
        assert context.partition_time_window.start.day == int(keys[0][-2:])
        assert context.partition_time_window.end.day == int(keys[-1][-2:]) + 1
        return {key: source[key] * 2 for key in keys}

    return doubled


def rows(bench, name):
    table = bench.table(name)
    return {
        key: table.read(partition=key, as_type=pd.DataFrame)["value"].tolist() for key in sorted(table.partitions())
    }


class TestRangedRuns:
    def test_what_is_there_is_kept_and_the_rest_computed_by_contiguous_stretches(self, bench, source, values):
        assets = [source, doubled(bench.calls)]
        assert bench.run(assets, tags=span(1, 6)) == [[1, 2, 3, 4, 5, 6]]
        assert bench.run(assets, tags=span(1, 6)) == []
        values |= {day(2): 20, day(4): 40, day(5): 50}
        assert bench.run(assets, tags=span(1, 7)) == [[2], [4, 5], [7]]
        assert rows(bench, "doubled") == {day(n): [2 * values[day(n)]] for n in range(1, 8)}
        assert len({version.log_version for version in bench.table("doubled").history()}) == 2
        assert bench.metadata("doubled", day(1))["reused"]
        assert "reused" not in bench.metadata("doubled", day(2))
        values[day(2)] = 2
        assert bench.run(assets, tags=span(1, 7)) == []
        assert rows(bench, "doubled")[day(2)] == [4]
        assert bench.metadata("doubled", day(2))["change"] == "full"

    def test_one_partition_of_them_hits_what_a_range_computed(self, bench, source):
        assets = [source, doubled(bench.calls)]
        bench.run(assets, tags=span(1, 4))
        assert bench.run(assets, partition_key=day(2)) == []
        assert bench.run(assets, partition_key=day(5)) == [[5]]
        assert bench.run(assets, tags=span(3, 5)) == []

    def test_one_frame_with_the_key_in_a_column_is_of_the_stretch(self, bench, source, values):
        @versioned_asset(code_version="1", metadata={"partition_expr": "day"}, **SINGLE)
        def flat(context: dg.AssetExecutionContext, source: dict[str, pd.DataFrame]):
            bench.calls.append(len(context.partition_keys))
            frames = [frame.assign(day=pd.Timestamp(key)) for key, frame in source.items()]
            yield dg.AssetObservation("flat")
            yield dg.Output(pd.concat(frames), metadata={"note": "here"})

        assert bench.run([source, flat], tags=span(1, 5)) == [5]
        values |= {day(2): 20, day(5): 50}
        assert bench.run([source, flat], tags=span(1, 5)) == [1, 1]
        assert bench.metadata("flat")["note"] == "here"
        assert rows(bench, "flat") == {day(n): [values[day(n)]] for n in range(1, 6)}

    def test_a_function_without_a_context_computes_the_whole_range(self, bench, source, values):
        @versioned_asset(code_version="1", **SINGLE)
        async def same(source: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
            bench.calls.append(len(source))
            return source

        assert bench.run([source, same], tags=span(1, 3)) == [3]
        values[day(2)] = 20
        assert bench.run([source, same], tags=span(1, 3)) == [3]
        assert bench.run([source, same], tags=span(1, 3)) == []

    def test_a_call_that_gives_no_value_fails_the_step_and_writes_nothing(self, bench, source, values):
        @versioned_asset(code_version="1", output_required=False, **SINGLE)
        def picky(context: dg.AssetExecutionContext, source: dict[str, pd.DataFrame]):
            if len(source) > 1:
                yield dg.Output(source)

        bench.run([source, picky], tags=span(1, 3))
        values[day(2)] = 20
        bench.run([source, picky], tags=span(1, 3), fails=True)
        assert "called for 1 stretches of partitions, and gave 0 values" in bench.errors()
        assert len(bench.table("picky").history(partition=day(2))) == 1

    def test_an_asset_that_reads_its_own_partitions_is_computed_as_a_whole(self, bench):
        previous = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

        @versioned_asset(
            code_version="1",
            ins={"own": dg.AssetIn("own", partition_mapping=previous, metadata={"allow_missing_partitions": True})},
            **SINGLE,
        )
        def own(context: dg.AssetExecutionContext, own: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
            bench.calls.append([int(key[-2:]) for key in context.partition_keys])
            return {key: pd.DataFrame({"value": [int(key[-2:])]}) for key in context.partition_keys}

        assert bench.run([own], tags=span(1, 3)) == [[1, 2, 3]]
        assert bench.run([own], tags=span(1, 3)) == [[1, 2, 3]]
        assert bench.run([own], partition_key=day(4)) == [[4]]
        assert bench.run([own], partition_key=day(4)) == []

    def test_what_the_partitions_are_is_part_of_the_key(self, bench):
        def counted(definition):
            @versioned_asset(code_version="1", partitions_def=definition)
            def counted(context: dg.AssetExecutionContext) -> pd.DataFrame:
                window = context.partition_time_window
                bench.calls.append((window.end - window.start).days)
                return pd.DataFrame({"days": [(window.end - window.start).days]})

            return counted

        weekly = dg.WeeklyPartitionsDefinition("2026-01-01")
        key = weekly.get_first_partition_key()
        assert bench.run([counted(weekly)], partition_key=key) == [7]
        bench.table("counted").drop(dry_run=False)
        assert bench.run([counted(dg.DailyPartitionsDefinition("2026-01-01"))], partition_key=key) == [1]


class TestMappings:
    def test_a_whole_upstream_counts_as_a_whole(self, bench, source, values):
        @versioned_asset(code_version="1")
        def total(source: pd.DataFrame) -> pd.DataFrame:
            bench.calls.append(len(source))
            return source

        bench.run([source], tags=span(1, 8))
        both = [source, total]
        assert bench.run(both, selection=["total"]) == [8]
        assert bench.run(both, selection=["total"]) == []
        values[day(2)] = 20
        bench.run([source], partition_key=day(2))
        assert bench.run(both, selection=["total"]) == [8]
        values[day(2)] = 2
        bench.run([source], partition_key=day(2))
        assert bench.run(both, selection=["total"]) == []
