"""`versioned_asset` is called again when its code has changed, and only then; versions say which code made them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.tables.code_details import CodeDetails, code_of
from support.code_project import loaded, write_project

FILES: Mapping[str, str] = {
    "store/__init__.py": "",
    "store/assets.py": """
        import dagster as dg
        import pyarrow as pa

        from dagster_versioned import versioned_asset
        from store.helpers import scaled

        CALLS = []


        @dg.asset
        def raw() -> pa.Table:
            return pa.table({"x": [1, 2, 3]})


        @versioned_asset
        def doubled(raw: pa.Table) -> pa.Table:
            called("doubled")
            return pa.table({"y": scaled(raw["x"].to_pylist())})


        @versioned_asset
        def total(doubled: pa.Table) -> pa.Table:
            called("total")
            return pa.table({"z": [sum(doubled["y"].to_pylist())]})


        def called(name):
            CALLS.append(name)


        defs = dg.Definitions([raw, doubled, total])
    """,
    "store/helpers.py": """
        FACTOR = 2


        def scaled(values):
            return [FACTOR * value for value in values]
    """,
}


def run(folder: Path, warehouse: Path, files: Mapping[str, str], instance: dg.DagsterInstance) -> list[str]:
    """The functions that are called where all assets of a project are materialized."""
    write_project(folder, files)
    manager = VersionedParquetIOManager(project=ProjectResource(name="P", location=str(warehouse)))
    with loaded(folder, "store.assets") as module:
        result = dg.materialize(
            [module.raw, module.doubled, module.total], resources={"io_manager": manager}, instance=instance
        )
        assert result.success
        return list(module.CALLS)


def with_text(name: str, old: str, new: str) -> dict[str, str]:
    assert old in FILES[name]
    return {**FILES, name: FILES[name].replace(old, new)}


def test_a_helper_that_changes_is_seen_and_equal_rows_end_the_work(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(tmp_path / "1", warehouse, FILES, instance) == ["doubled", "total"]
        assert run(tmp_path / "2", warehouse, FILES, instance) == []
        refactored = with_text("store/helpers.py", "FACTOR * value", "value * FACTOR")
        # The rows are equal, so nothing changes for what is below.
        assert run(tmp_path / "3", warehouse, refactored, instance) == ["doubled"]
        assert run(tmp_path / "4", warehouse, refactored, instance) == []
        tripled = with_text("store/helpers.py", "FACTOR = 2", "FACTOR = 3")
        assert run(tmp_path / "5", warehouse, tripled, instance) == ["doubled", "total"]
        # Back to code that was called before.
        assert run(tmp_path / "6", warehouse, FILES, instance) == []
    table = Project.open("P", str(warehouse)).table("total")
    assert table.read()["z"].to_pylist() == [12]


def test_a_version_says_which_code_made_it(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with dg.DagsterInstance.ephemeral() as instance:
        run(tmp_path / "1", warehouse, FILES, instance)
        run(tmp_path / "2", warehouse, with_text("store/helpers.py", "FACTOR * value", "FACTOR * value + 1"), instance)
    table = Project.open("P", str(warehouse)).table("doubled")
    history = table.state.history
    first, second = history.versions
    before, after = code_of(first), code_of(second)
    assert before is not None
    assert after is not None
    assert before.fingerprint != after.fingerprint
    details = CodeDetails.read(table.store, after.details)
    assert details is not None
    assert {"store.assets:doubled", "store.helpers:scaled", "store.assets:called"} <= details.functions.keys()
    assert "dagster" in details.runtime["distributions"]
    assert first.identity.code_version is None


def test_the_materialization_names_the_functions_that_changed(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with dg.DagsterInstance.ephemeral() as instance:
        run(tmp_path / "1", warehouse, FILES, instance)
        run(tmp_path / "2", warehouse, with_text("store/helpers.py", "FACTOR * value", "FACTOR * value + 1"), instance)
        event = instance.get_latest_materialization_event(dg.AssetKey("doubled"))
        assert event is not None
        assert event.asset_materialization is not None
        metadata: Mapping[str, Any] = event.asset_materialization.metadata
        assert metadata["dagster_versioned/code_change"].value == "changed: store.helpers:scaled"


def test_code_that_cannot_be_followed_is_never_reused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = with_text("store/helpers.py", "FACTOR * value for", "eval('2') * value for")
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(tmp_path / "1", tmp_path / "warehouse", files, instance) == ["doubled", "total"]
        assert run(tmp_path / "2", tmp_path / "warehouse", files, instance) == ["doubled"]
    said = capfd.readouterr().err.count("store.helpers:scaled calls eval, which may run any code")
    assert said == 2  # once in each run
