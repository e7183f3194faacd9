"""Under Dagster's daemon: a source that is made again and unchanged sets runs in motion, and no function is called."""

import subprocess
from collections import Counter

import dagster as dg
import pytest

from dagster_versioned import Project
from support import reuse_location
from support.dagster_dev import dagster_dev, tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_source_that_is_made_again_and_unchanged_has_nothing_computed_below_it(tmp_path, monkeypatch):
    home, calls, value = (tmp_path / name for name in ("home", "calls", "value"))
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("REUSE_LOCATION", str(tmp_path / "lake"))
    monkeypatch.setenv("REUSE_CALLS", str(calls))
    monkeypatch.setenv("REUSE_VALUE", str(value))
    project = Project.open("REUSE", str(tmp_path / "lake"))

    def materialize_the_source(number):
        value.write_text(str(number))
        subprocess.run([tool("dagster"), "job", "launch", "-f", reuse_location.__file__, "-j", "source"], check=True)

    def changes(asset):
        records = instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
        return [one.asset_materialization.metadata["dagster_versioned/change"].value for one in reversed(records)]

    with dg.DagsterInstance.from_config(str(home)) as instance:
        with dagster_dev("-f", reuse_location.__file__, log=home / "dev.log") as dagster:
            materialize_the_source(1)
            dagster.wait_for(lambda: len(changes("total")) == 1, "the first versions")
            materialize_the_source(1)
            dagster.wait_for(lambda: len(changes("total")) == 2, "runs of what is below the unchanged source")
            assert Counter(calls.read_text().split()) == {"numbers": 2, "doubled": 1, "total": 1}
            materialize_the_source(3)
            dagster.wait_for(lambda: len(changes("total")) == 3, "runs of what is below the changed source")
        assert Counter(calls.read_text().split()) == {"numbers": 3, "doubled": 2, "total": 2}
        assert changes("doubled") == changes("total") == ["full", "none", "full"]
    assert project.table("total").read()["n"].to_pylist() == [6]
