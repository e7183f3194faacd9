"""How a step that changes nothing looks: at what an earlier step of its run left, and no further than it must."""

from collections.abc import Callable

import dagster as dg
import pandas as pd
import pytest

from dagster_versioned import ProjectResource, VersionedParquetIOManager, versioned_asset
from dagster_versioned.process_state import PROCESS
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import StoreWrapper
from dagster_versioned.tables import state as states

asked: list[str] = []


class Asked(StoreWrapper):
    """Notes every call, those included that find nothing."""

    def _around(self, verb, key, size, action):
        asked.append(f"{verb} {key.removeprefix('datom/')}")
        return action()


class AskedProject(ProjectResource):
    def _opened(self):
        return Project(self.name, Asked(LocalStore(self.location)))


def calls_of(table):
    """Those of one table, its part named so."""
    mine = [one for one in asked if f" {table}/" in one or f"/{table}.json" in one]
    return [one.split(" ")[0] + " part" if one.endswith(".parquet") else one for one in mine]


@pytest.fixture
def asking(bench):
    return VersionedParquetIOManager(project=AskedProject(name="HANGAR", location=str(bench.root)))


@pytest.fixture
def chain(bench):
    """Three assets, each made of the one before; the first one reads ``chain.given``."""

    @versioned_asset(code_version="1")
    def first() -> pd.DataFrame:
        bench.calls.append("first")
        return pd.DataFrame({"value": [1]})

    @versioned_asset(code_version="1")
    def second(first: pd.DataFrame) -> pd.DataFrame:
        bench.calls.append("second")
        return first * 2

    @versioned_asset(code_version="1")
    def third(second: pd.DataFrame) -> pd.DataFrame:
        bench.calls.append("third")
        return second * 2

    return [first, second, third]


class TestCalls:
    def test_a_process_that_knows_the_tables_asks_twice_a_step(self, bench, chain, asking):
        bench.run(chain)
        bench.run(chain, io=asking)
        asked.clear()
        assert bench.run(chain, io=asking) == []
        for table in ("first", "second", "third"):
            assert calls_of(table) == [f"list {table}/_delta_log/", "head part"]

    def test_one_that_does_not_reads_head_and_commit(self, bench, chain, asking):
        bench.run(chain)
        PROCESS.forget(states.SharedStates)
        asked.clear()
        assert bench.run(chain, io=asking) == []
        for table in ("first", "second", "third"):
            log = f"{table}/_delta_log/"
            assert calls_of(table) == [
                f"get .metadata/heads/{table}.json",
                f"list {log}",
                f"get {log}{0:020d}.json",
                "head part",
            ]

    def test_a_head_that_is_behind_is_put_right(self, bench, chain, asking):
        bench.run(chain)
        table = bench.table("third")
        table.project.data.delete([".metadata/heads/third.json"])
        PROCESS.forget(states.SharedStates)  # as in another process
        assert bench.run(chain, io=asking) == []
        assert bench.table("third").head().log_version == 0


class Between:
    """A run of others in the middle of a run: after the first of two assets, and before the second."""

    def __init__(self, bench, doing: Callable[[], None]) -> None:
        self.source = 1
        self.is_due = False

        @dg.asset(code_version="1")
        def source() -> pd.DataFrame:
            return pd.DataFrame({"value": [self.source]})

        @versioned_asset(code_version="1")
        def result(source: pd.DataFrame) -> pd.DataFrame:
            bench.calls.append(f"result of {source['value'][0]}")
            return source * 2

        @dg.asset(deps=[source], op_tags={"dagster/priority": "9"})
        def others() -> None:
            if self.is_due:
                self.is_due = False
                doing()

        self.assets = [source, result]
        self.all = [source, others, result]


class TestOthersMeanwhile:
    """What a step remembers of its run is what the run itself made, so it may be old."""

    def run(self, bench, between):
        between.is_due = True
        return bench.run(between.all)

    def materialize(self, bench, between, source):
        between.source = source
        resources = {"io_manager": bench.io()}
        assert dg.materialize(between.assets, instance=bench.instance, resources=resources).success

    def values(self, bench):
        return [bench.table(name).read(as_type=pd.DataFrame)["value"].tolist() for name in ("source", "result")]

    def test_a_result_of_what_is_newer_is_not_put_back(self, bench):
        between = Between(bench, lambda: self.materialize(bench, between, 2))
        bench.run(between.assets)
        assert self.run(bench, between) == ["result of 2"]  # by the others
        assert self.values(bench) == [[2], [4]]

    def test_what_has_to_be_computed_is_of_the_newest(self, bench):
        def write_source():
            bench.table("source").write(pd.DataFrame({"value": [5]}))

        between = Between(bench, write_source)
        assert self.run(bench, between) == ["result of 5"]
        assert self.values(bench) == [[5], [10]]

    def test_a_result_that_stands_for_what_the_run_made_stands(self, bench):
        def write_source():
            bench.table("source").write(pd.DataFrame({"value": [5]}))

        between = Between(bench, write_source)
        bench.run(between.assets)
        assert self.run(bench, between) == []  # as if its step had been first
        assert self.values(bench) == [[5], [2]]
        between.source = 5
        assert bench.run(between.assets) == ["result of 5"]

    def test_a_pin_is_looked_up(self, bench):
        between = Between(bench, lambda: None)
        bench.run(between.assets)
        between.source = 2
        bench.run(between.assets)
        tags = {"dagster_versioned/pin/source": "@0"}
        assert bench.run(between.assets, tags=tags) == []
        assert bench.table("result").read(as_type=pd.DataFrame)["value"].tolist() == [2]


class Closed(StoreWrapper):
    """Lets nobody in."""

    def _around(self, verb, key, size, action):
        raise PermissionError(f"{verb} {key}")


class ClosedProject(ProjectResource):
    def _opened(self):
        return Project(self.name, Closed(LocalStore(self.location)))


class TestSameRun:
    def test_what_a_step_in_between_wrote_by_itself_is_seen(self, bench):
        is_to_write = False

        @dg.asset(code_version="1")
        def source() -> pd.DataFrame:
            return pd.DataFrame({"value": [1]})

        @dg.asset(deps=[source])
        def corrected() -> pd.DataFrame:
            if is_to_write:
                bench.table("source").write(pd.DataFrame({"value": [5]}))
            return pd.DataFrame({"done": [True]})

        @versioned_asset(code_version="1")
        def result(source: pd.DataFrame, corrected: pd.DataFrame) -> pd.DataFrame:
            bench.calls.append(f"result of {source['value'][0]}")
            return source * 2

        bench.run([source, corrected, result])
        is_to_write = True
        assert bench.run([source, corrected, result]) == ["result of 5"]

    def test_an_input_of_another_resource_is_read_with_the_rights_of_that_one(self, bench):
        @dg.asset(code_version="1")
        def source() -> pd.DataFrame:
            return pd.DataFrame({"value": [1]})

        @versioned_asset(code_version="1", ins={"source": dg.AssetIn(input_manager_key="reader")})
        def result(source: pd.DataFrame) -> pd.DataFrame:
            return source * 2

        bench.run([source, result], resources={"reader": bench.io()})
        closed = VersionedParquetIOManager(project=ClosedProject(name="HANGAR", location=str(bench.root)))
        bench.run([source, result], resources={"reader": closed}, fails=True)
        assert "PermissionError" in bench.errors()
