"""The trigger under ``dagster dev`` as a user starts it: its daemon, its processes, its storage."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project
from support import dev_location
from support.dagster_dev import dagster_dev

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_changes_are_run_once_each_also_those_that_came_while_dagster_was_dead(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("DEV_LOCATION", str(tmp_path / "data"))
    project = Project.open("HOUSE", str(tmp_path / "data"))

    def write(value):
        project.table("flights").write(pa.table({"n": [value]}))

    def settled():
        """Whether the newest tick found everything current, after the newest version."""
        states = [state for state in instance.all_instigator_state() if state.instigator_name == "keep_current"]
        ticks = [t for s in states for t in instance.get_ticks(s.instigator_origin_id, s.selector_id, limit=1)]
        written = max(project.table(name).version().timestamp.timestamp() for name in ("flights", "delays"))
        return bool(ticks) and "All are built from" in (ticks[0].skip_reason or "") and ticks[0].timestamp > written

    def is_current():
        table = project.table("delays")
        if not table.exists() or table.version().identity.parents != (project.table("flights").upstream()[0].parent,):
            return False
        return settled()

    with dg.DagsterInstance.from_config(str(home)) as instance:
        write(0)
        with dagster_dev("-f", dev_location.__file__, log=home / "dev.log") as dagster:
            dagster.wait_for(is_current, "the first version")
            write(0)
            write(1)
            write(2)
            dagster.wait_for(is_current, "a change")
        write(3)
        with dagster_dev("-f", dev_location.__file__, log=home / "dev.log") as dagster:
            dagster.wait_for(is_current, "a change while it was dead")
        runs = instance.get_runs()
        assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
        assert {run.tags["dagster_versioned/target"] for run in runs} == {"delays"}
        # Two changes may have had a tick between them. No run was for nothing, and none for what had been run.
        made = [version.identity.parents[0].version for version in project.table("delays").history()]
        assert len(runs) == len(made) == len(set(made))
        assert len(made) in (3, 4)
