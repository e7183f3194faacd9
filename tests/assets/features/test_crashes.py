"""A process that is killed in the middle of a long increment loses the chunk that it was at, and no other."""

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import Field, versioned_feature
from support.house import changes

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from assets.features.test_crashes import materialize
materialize({location!r}, kill_at=2)
"""


def assets(called, kill_at=None):
    @versioned_feature(id_columns=["id"], fields=[Field("sound", columns=["sound"])])
    def video():
        return pa.table({"id": list(range(7)), "sound": [f"s{n}" for n in range(7)]})

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video], chunk_size=3)
    def words(increment):
        called.append(increment.changed["id"].to_pylist())
        if len(called) == kill_at:
            signal.raise_signal(signal.SIGKILL)
        return increment.changed

    return video, words


def materialize(location, kill_at):
    import dagster as dg

    from dagster_versioned import ProjectResource, VersionedParquetIOManager

    manager = VersionedParquetIOManager(project=ProjectResource(name="HOUSE", location=location))
    dg.materialize(assets([], kill_at), resources={"io_manager": manager})


@pytest.mark.faults
def test_what_a_killed_process_committed_stays_and_the_rest_is_computed_by_the_next(house):
    program = PROGRAM.format(tests=str(Path(__file__).parents[2]), location=house.location)
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    head = house.head("words")
    assert (head.identity.nrow, head.identity.custom["feature"]["left"]) == (3, 4)
    called = []
    assert changes(house.run(*assets(called))) == {"video": "none", "words": "full"}
    assert called == [[3, 4, 5], [6]]
    assert sorted(house.project.table("words").read()["id"].to_pylist()) == list(range(7))
    assert house.project.table("words").verify().ok
