"""A definition whose results could depend on what its key does not cover is refused, with what to do."""

import dagster as dg
import pandas as pd
import pytest

from dagster_versioned import EventHistory, TableOptions, versioned_asset
from dagster_versioned.errors import InvalidInput


def frame() -> pd.DataFrame:
    return pd.DataFrame({"value": [1]})


class Clock(dg.ConfigurableResource):
    now: int = 7


class TestAtDefinition:
    @pytest.mark.parametrize(
        "options",
        [
            TableOptions(mode="append"),
            TableOptions(mode="merge", merge_key=("value",)),
            TableOptions(history=EventHistory()),
        ],
    )
    def test_an_asset_whose_rows_are_added_to_others(self, options):
        with pytest.raises(InvalidInput, match=r"rows that are there.*use @dg\.asset"):
            versioned_asset(code_version="1", metadata=options.as_metadata())(frame)

    def test_an_asset_that_stores_nothing(self):
        with pytest.raises(InvalidInput, match="stores nothing"):

            @versioned_asset(code_version="1")
            def nothing() -> None:
                pass

        with pytest.raises(InvalidInput, match="stores nothing"):

            @versioned_asset(code_version="1", check_specs=[dg.AssetCheckSpec("small", asset="result")])
            def result() -> dg.MaterializeResult:
                return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=True)])

    def test_a_dependency_that_is_not_loaded(self):
        with pytest.raises(InvalidInput, match="depends on upstream without loading it"):
            versioned_asset(code_version="1", deps=["upstream"])(frame)
        with pytest.raises(InvalidInput, match="depends on upstream without loading it"):
            versioned_asset(code_version="1", ins={"upstream": dg.AssetIn(dagster_type=dg.Nothing)})(frame)

    def test_a_resource_that_is_not_declared(self):
        with pytest.raises(InvalidInput, match=r"asks for the resource 'clock'.*ignore_resources=\['clock'\]"):

            @versioned_asset(code_version="1")
            def timed(clock: Clock) -> pd.DataFrame:
                return frame()

        with pytest.raises(InvalidInput, match="asks for the resource 'session'"):
            versioned_asset(code_version="1", required_resource_keys={"session"})(frame)
        with pytest.raises(InvalidInput, match="ignores the resource 'clock', which it does not ask for"):
            versioned_asset(code_version="1", ignore_resources=["clock"])(frame)

    def test_a_parameter_that_there_is_not(self):
        with pytest.raises(TypeError, match="'code_versoin'"):
            versioned_asset(code_versoin="1")

    def test_what_dagster_refuses_itself(self):
        with pytest.raises(dg.DagsterInvalidDefinitionError):
            versioned_asset(code_version="1", ins={"nobody": dg.AssetIn()})(frame)


class TestWhenTheStepStarts:
    def test_an_input_of_another_io_manager(self, bench):
        @dg.asset(io_manager_key="other")
        def elsewhere() -> pd.DataFrame:
            return frame()

        @versioned_asset(code_version="1")
        def below(elsewhere: pd.DataFrame) -> pd.DataFrame:
            bench.calls.append("below")
            return elsewhere

        other = {"other": dg.InMemoryIOManager()}
        assert bench.run([elsewhere, below], resources=other, fails=True) == []
        assert "'elsewhere' of below was loaded by another IO manager" in bench.errors()
        assert not bench.table("below").exists()

    def test_an_output_of_another_io_manager(self, bench):
        @versioned_asset(code_version="1", io_manager_key="other")
        def elsewhere() -> pd.DataFrame:
            bench.calls.append("elsewhere")
            return frame()

        assert bench.run([elsewhere], resources={"other": dg.InMemoryIOManager()}, fails=True) == []
        assert "InMemoryIOManager, which remembers nothing" in bench.errors()

    def test_a_config_that_is_not_json(self, bench):
        @versioned_asset(code_version="1", config_schema={"share": float})
        def shared(context) -> pd.DataFrame:
            bench.calls.append("shared")
            return frame()

        config = {"ops": {"shared": {"config": {"share": float("nan")}}}}
        assert bench.run([shared], run_config=config, fails=True) == []
        assert "config.share holds the number nan" in bench.errors()
        assert "was not called" in bench.errors()
        assert not bench.table("shared").exists()
