"""Must show 4 with the Spark writer: its driver killed at every storage call, tasks that fail, die or come twice."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_versioned.storage import LocalStore
from support.crash_matrix import ENDINGS, Case, LocalPlace, check, prepared
from support.crashes import Undertaker, table_in, undertaker
from support.readers import assert_same
from support.spark import spark
from support.spark_driver import (
    MANY_FILES,
    OPERATIONS,
    die_while_tasks_run,
    failing_once,
    frame,
    gateway_of,
    rows,
)
from support.tmpfs import scratch

__all__ = ["spark"]

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def killer(spark) -> Iterator[Undertaker]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gateway_of(spark).items():
            patch.setenv(name, value)
        with undertaker() as one:
            yield one


@pytest.fixture(scope="module", params=list(OPERATIONS))
def case(request: pytest.FixtureRequest, killer: Undertaker) -> Iterator[Case]:
    with scratch() as folder:
        yield prepared(request.param, OPERATIONS[request.param], killer, LocalPlace(folder))


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDINGS)
def test_ends_at_every_call(case: Case, killer: Undertaker, how: str) -> None:
    ENDINGS[how](case, killer)


@pytest.mark.slow
def test_tasks_that_outlive_their_driver_do_no_harm(killer: Undertaker) -> None:
    with scratch() as folder:
        case = prepared("parts", OPERATIONS["parts"], killer, LocalPlace(folder))
        store = case.place.copy("base", "late")
        assert killer.run(die_while_tasks_run, store).was_killed
        deadline = time.monotonic() + 60
        while not list(case.place.as_folder("late").glob("datom/flights/_staging/*/*/*.parquet")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        check(case, "late")


@pytest.mark.parametrize("by_dying", [False, True])
def test_tasks_that_fail_once_make_one_version(spark, tmp_path: Path, by_dying: bool) -> None:
    marker = tmp_path / "marker"
    marker.mkdir()
    table = table_in(LocalStore(tmp_path / "store"))
    flaky = frame(90).mapInArrow(failing_once(marker, by_dying=by_dying), frame(90).schema)
    assert table.write(flaky, options=MANY_FILES).change == "full"
    assert len(list(marker.iterdir())) == 2
    assert len(table.history()) == 1
    assert table.version().facts.part_count > 2
    assert_same(table.read(), rows(90))
    assert not list(tmp_path.glob("store/datom/flights/_staging/**"))
    assert table.vacuum(min_age=timedelta(0)).keys == ()
    table.verify().require_ok()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a second address of this machine is needed")
@pytest.mark.parametrize("first", ["slow", "twin"])
def test_a_speculative_duplicate_leaves_one_version_and_nothing_staged(tmp_path: Path, first: str) -> None:
    """The attempt that lost is about to stage its part when the write has ended."""
    (tmp_path / "marks").mkdir()
    script = Path(__file__).parents[1] / "support" / "spark_speculation_job.py"
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY_")}
    environment = {**own, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(script), str(tmp_path / "store"), str(tmp_path / "marks"), first]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"
