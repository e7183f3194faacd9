"""Temporary folders: gone when they are closed, and after a kill when somebody makes the next one."""

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from dagster_versioned.process_state import PROCESS
from dagster_versioned.storage.temporary import LOCK, STALE_AFTER, TemporaryFolder, Tidied


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """A temporary directory of its own, and a process that has made no folder yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    PROCESS.forget(Tidied)


def made_by_a_process_that_is_killed() -> Path:
    def work(pipe):
        folder = TemporaryFolder()
        (folder.path / "part").write_bytes(b"x")
        pipe.send(folder.path)
        os.kill(os.getpid(), signal.SIGKILL)

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    path = ours.recv()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    return path


def age(path: Path) -> None:
    long_ago = time.time() - STALE_AFTER - 1
    os.utime(path / LOCK, (long_ago, long_ago))


def test_it_is_gone_when_it_is_closed(tmp_path):
    with TemporaryFolder() as path:
        (path / "part").write_bytes(b"x")
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    left = made_by_a_process_that_is_killed()
    age(left)
    with TemporaryFolder() as path:
        assert list(tmp_path.iterdir()) == [path]


def test_what_is_young_is_left_alone_for_its_maker_may_not_hold_it_yet():
    left = made_by_a_process_that_is_killed()
    TemporaryFolder().close()
    assert (left / "part").exists()


def test_what_is_in_use_is_left_alone_however_old():
    with TemporaryFolder() as used:
        age(used)
        PROCESS.forget(Tidied)
        TemporaryFolder().close()
        assert used.exists()


def test_only_what_has_a_lock_file_and_is_a_folder_itself_is_touched(tmp_path):
    plain, elsewhere = tmp_path / "dagster-versioned-plain", tmp_path / "elsewhere"
    plain.mkdir()
    elsewhere.mkdir()
    (elsewhere / LOCK).touch()
    age(elsewhere)
    (tmp_path / "dagster-versioned-link").symlink_to(elsewhere)
    (tmp_path / "dagster-versioned-file").touch()
    before = sorted(tmp_path.iterdir())
    TemporaryFolder().close()
    assert sorted(tmp_path.iterdir()) == before
    assert (elsewhere / LOCK).exists()
