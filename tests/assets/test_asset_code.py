"""`versioned_asset` is called again when its code has changed, and only then; versions say which code made them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from git import Repo

from dagster_versioned import (
    CodeVersionIsCurrent,
    Project,
    ProjectResource,
    VersionedParquetIOManager,
    build_version_checks,
    with_code_versions,
)
from dagster_versioned.sensors.forecast import forecast
from dagster_versioned.tables.code_details import CodeDetails, code_of
from dagster_versioned.tables.computations import contradicted
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


STATED = {
    **FILES,
    "store/assets.py": FILES["store/assets.py"].replace("@versioned_asset\n", '@versioned_asset(code_version="1")\n'),
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


def test_a_version_says_which_code_made_it_and_the_materialization_what_changed(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with dg.DagsterInstance.ephemeral() as instance:
        run(tmp_path / "1", warehouse, FILES, instance)
        run(tmp_path / "2", warehouse, with_text("store/helpers.py", "FACTOR * value", "FACTOR * value + 1"), instance)
        event = instance.get_latest_materialization_event(dg.AssetKey("doubled"))
    assert event is not None
    assert event.asset_materialization is not None
    metadata: Mapping[str, Any] = event.asset_materialization.metadata
    assert metadata["dagster_versioned/code_change"].value == "changed: store.helpers:scaled"
    table = Project.open("P", str(warehouse)).table("doubled")
    first, second = table.state.history.versions
    before, after = code_of(first), code_of(second)
    assert before is not None
    assert after is not None
    assert before.fingerprint != after.fingerprint
    details = CodeDetails.read(table.store, after.details)
    assert details is not None
    assert {"store.assets:doubled", "store.helpers:scaled", "store.assets:called"} <= details.functions.keys()
    assert "dagster" in details.runtime["distributions"]
    assert first.identity.code_version is None


def test_code_that_cannot_be_followed_is_never_reused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = with_text("store/helpers.py", "FACTOR * value for", "eval('2') * value for")
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(tmp_path / "1", tmp_path / "warehouse", files, instance) == ["doubled", "total"]
        assert run(tmp_path / "2", tmp_path / "warehouse", files, instance) == ["doubled"]
    said = capfd.readouterr().err.count("store.helpers:scaled calls eval, which may run any code")
    assert said == 2  # once in each run


def defined(folder: Path, warehouse: Path, files: Mapping[str, str]) -> Any:
    """The module of a project, with an IO manager among its definitions."""
    write_project(folder, files)
    return loaded(folder, "store.assets")


def manager_at(warehouse: Path) -> VersionedParquetIOManager:
    return VersionedParquetIOManager(project=ProjectResource(name="P", location=str(warehouse)))


def test_code_versions_for_dagster_are_no_part_of_a_version(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    found: list[dict[str, str | None]] = []
    shas: list[str | None] = []
    for number, files in enumerate((FILES, with_text("store/helpers.py", "FACTOR * value", "value * FACTOR"))):
        with defined(tmp_path / str(number), warehouse, files) as module, dg.DagsterInstance.ephemeral() as instance:
            plain = dg.Definitions(
                [module.raw, module.doubled, module.total], resources={"io_manager": manager_at(warehouse)}
            )
            definitions = with_code_versions(plain)
            specs = {spec.key.to_user_string(): spec.code_version for spec in definitions.resolve_all_asset_specs()}
            found.append(specs)
            assert definitions.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance).success
        version = Project.open("P", str(warehouse)).table("doubled").version()
        shas.append(version.metadata_sha)
        assert version.identity.code_version is None
    first, second = found
    assert first["doubled"] != second["doubled"]
    assert (first["raw"], first["total"]) == (second["raw"], second["total"])
    assert all(str(each).startswith("code:1:") for each in first.values())
    assert shas[0] == shas[1]


def test_a_stated_code_version_that_stays_is_found(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    stated, changed = STATED, {**STATED, "store/helpers.py": FILES["store/helpers.py"].replace("= 2", "= 3")}
    verdicts: list[tuple[bool, str]] = []
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(tmp_path / "1", warehouse, stated, instance) == ["doubled", "total"]
        assert run(tmp_path / "2", warehouse, changed, instance) == []  # as it was stated
        for number, files in enumerate((stated, changed)):
            with defined(tmp_path / f"checked{number}", warehouse, files) as module:
                checks = build_version_checks([module.doubled], [CodeVersionIsCurrent()])
                result = dg.materialize(
                    [module.raw, module.doubled, *checks],
                    selection=dg.AssetSelection.checks(*checks),
                    resources={"io_manager": manager_at(warehouse)},
                    instance=instance,
                )
                (evaluation,) = result.get_asset_check_evaluations()
                verdicts.append((evaluation.passed, evaluation.description or ""))
    assert verdicts[0][0]
    assert not verdicts[1][0]
    assert "The code version is still '1'" in verdicts[1][1]


def test_other_rows_of_other_code_contradict_nothing(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    stated, changed = STATED, {**STATED, "store/helpers.py": FILES["store/helpers.py"].replace("= 2", "= 3")}
    with dg.DagsterInstance.ephemeral() as instance:
        run(tmp_path / "1", warehouse, stated, instance)
        with defined(tmp_path / "2", warehouse, changed) as module:
            dg.materialize(
                [module.raw, module.doubled, module.total],
                resources={"io_manager": manager_at(warehouse)},
                instance=instance,
                tags={"dagster_versioned/recompute": "true"},
            )
            assert module.CALLS == ["doubled", "total"]
        assert run(tmp_path / "3", warehouse, changed, instance) == []
    table = Project.open("P", str(warehouse)).table("doubled")
    assert contradicted(table.state.snapshot) == []
    assert table.read()["y"].to_pylist() == [3, 6, 9]


def test_what_is_named_counts(tmp_path: Path) -> None:
    named = FILES["store/assets.py"].replace(
        "@versioned_asset\ndef doubled".replace("\n", "\n        "),
        '@versioned_asset(code_files=["*.txt"], libraries=["pyarrow"], code_also=[other])\n        def doubled',
    )
    assert "code_files" in named
    named = named.replace("CALLS = []", "CALLS = []\n\n\n        def other():\n            return 1\n")
    files = {**FILES, "store/assets.py": named, "store/rules.txt": "a\n"}
    warehouse = tmp_path / "warehouse"
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(tmp_path / "1", warehouse, files, instance) == ["doubled", "total"]
        assert run(tmp_path / "2", warehouse, files, instance) == []
        assert run(tmp_path / "3", warehouse, {**files, "store/rules.txt": "b\n"}, instance) == ["doubled"]
        other = {**files, "store/assets.py": named.replace("return 1", "return 2")}
        assert run(tmp_path / "4", warehouse, other, instance) == ["doubled"]


def test_the_commit_of_the_code_is_recorded_without_credentials(tmp_path: Path) -> None:
    folder, warehouse = tmp_path / "code", tmp_path / "warehouse"
    write_project(folder, FILES)
    with Repo.init(folder) as repository:
        repository.create_remote("origin", "https://user:canary-password@example.com/acme/store.git?token=canary")
        repository.index.add(["store"])
        with repository.config_writer() as settings:
            settings.set_value("user", "name", "n").set_value("user", "email", "e@example.com")
        sha = repository.index.commit("first").hexsha
    with dg.DagsterInstance.ephemeral() as instance:
        run(folder, warehouse, FILES, instance)
        table = Project.open("P", str(warehouse)).table("doubled")
        code = code_of(table.version())
        assert code is not None
        assert (code.commit, code.remote, code.modified) == (sha, "example.com/acme/store.git", ())
        # Of another length: Python would take what it compiled of a file that is as long, in the same second.
        run(folder, warehouse, with_text("store/helpers.py", "FACTOR = 2", "FACTOR = 30"), instance)
        code = code_of(table.version())
        assert code is not None
        assert (code.commit, code.modified) == (sha, ("store/helpers.py",))
    stored = b"".join(path.read_bytes() for path in warehouse.rglob("*") if path.is_file())
    assert b"canary" not in stored


def test_plan_names_what_has_changed(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    with dg.DagsterInstance.ephemeral() as instance:
        run(tmp_path / "1", warehouse, FILES, instance)
    changed = with_text("store/helpers.py", "FACTOR * value", "value * FACTOR")
    with defined(tmp_path / "2", warehouse, changed) as module:
        defs = dg.Definitions(
            [module.raw, module.doubled, module.total], resources={"io_manager": manager_at(warehouse)}
        )
        found = forecast([defs.get_repository_def()])
    assert found.changed_code == {"doubled": "changed: store.helpers:scaled"}
    assert found.uncoded == ()
