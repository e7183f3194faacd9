"""Tables in other processes: forked children, and pickles."""

import os
import pickle
import signal

import pyarrow as pa
import pytest

from dagster_versioned.projects.project import Project
from dagster_versioned.tables.table import VersionedTable


def status_of_a_child(table: VersionedTable) -> int:
    """The exit status of a forked child that reads and writes the table; killed after two minutes."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(120)
            table.read()
            table.write(pa.table({"n": [7]}))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_reads_the_log_does_not_hang(table: VersionedTable) -> None:
    table.write(pa.table({"n": [1]}))
    with table.operations.cache._lock:  # as another thread of the parent may hold it at the moment of the fork
        assert status_of_a_child(table) == 0
    assert table.read().to_pydict() == {"n": [7]}


def test_a_table_and_its_project_survive_a_pickle(project: Project, table: VersionedTable) -> None:
    version = table.write(pa.table({"n": [1]})).version
    there: VersionedTable = pickle.loads(pickle.dumps(table))
    assert there.version() == version
    assert there.project.author == project.author
    assert there.write(pa.table({"n": [2]})).version.log_version == 1
    assert pickle.loads(pickle.dumps(project)).table("flights").read().to_pydict() == {"n": [2]}


def test_a_table_in_a_pickle_keeps_its_asset_key(project: Project) -> None:
    table = pickle.loads(pickle.dumps(project.table(["flights", "daily"])))
    assert table.write(pa.table({"n": [1]})).version.identity.asset_key == ("flights", "daily")
