"""Bad input: full disks, folders that may not be written, and an S3 that says no, at every step of an operation."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.errors import AccessDenied, CommitConflict, StorageError, VersionedError
from dagster_versioned.storage import LocalStore, S3Options
from dagster_versioned.tables.write import commit
from support.crashes import OPERATIONS, table_in
from support.faulty_proxy import CUT, DROP_AFTER, DROP_BEFORE, FAIL_AFTER, HANG, FaultyProxy, answer, faulty_proxy
from support.frames import numbered
from support.readers import assert_same
from support.s3_server import S3Server
from support.stores import contents

pytestmark = pytest.mark.faults

SUPPORT = Path(__file__).parents[1] / "support"


def run(script: str, *arguments: object, mount: str | None = None) -> str:
    """Run a script of `support`, after a mount that only it sees; returns what it prints."""
    command = [sys.executable, str(SUPPORT / script), *map(str, arguments)]
    if mount is not None:
        namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
        if shutil.which("unshare") is None or subprocess.run([*namespace, mount], capture_output=True).returncode:
            pytest.skip("this machine lets no test mount a file system")
        command = [*namespace, f'{mount} && exec "$@"', "sh", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_step_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    said = run("small_disk.py", tmp_path, mount=f"mount -t tmpfs -o size=2m none '{tmp_path}'")
    refused, written = map(int, said.split())
    assert refused >= 5
    assert written >= 5


class TestWithoutRights:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        table = table_in(LocalStore(tmp_path / "store"))
        table.write(pa.table({"n": [1, 2]}))
        table.write(pa.table({"n": [1, 2, 3]}))
        return tmp_path / "store"

    def test_a_folder_that_may_only_be_read_refuses_changes(self, root: Path) -> None:
        if os.getuid() == 0 and sys.platform != "linux":
            pytest.skip("root may write anywhere here")
        before = contents(LocalStore(root))
        paths = [root, *root.rglob("*")]
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            run("no_rights.py", root)
        finally:
            for path in paths:
                path.chmod(0o755 if path.is_dir() else 0o644)
        assert contents(LocalStore(root)) == before

    def test_a_read_only_file_system_refuses_changes(self, root: Path) -> None:
        before = contents(LocalStore(root))
        run("no_rights.py", root, mount=f"mount --bind '{root}' '{root}' && mount -o remount,bind,ro '{root}'")
        assert contents(LocalStore(root)) == before


FAULTS = {
    "403": answer(403, "AccessDenied"),
    "404": answer(404, "NoSuchBucket"),
    "412": answer(412, "PreconditionFailed"),
    "503": answer(503, "SlowDown"),
    "drop before": DROP_BEFORE,
    "drop after": DROP_AFTER,
    "fail after": FAIL_AFTER,
    "cut": CUT,
    "hang": HANG,
}
ERRORS = {"403": AccessDenied, "412": (CommitConflict, StorageError)}
NOTHING_DONE = ("403", "404", "412", "503", "drop before")
"""Faults after which a write that raised an error has committed nothing."""

# One attempt: what a retry does about a fault is the storage tests' matter. Only who hangs is given up.
PATIENT = S3Options(attempts=1)
HASTY = replace(PATIENT, read_timeout=1)


class Refusing:
    """A store on an S3 server, reached directly and through a proxy that says no."""

    def __init__(self, server: S3Server, proxy: FaultyProxy) -> None:
        bucket = server.new_bucket()
        self.proxy = proxy
        self.direct = server.store(bucket)
        through = replace(server, endpoint_url=proxy.endpoint_url)
        self.hasty, self.patient = (through.store(bucket, options=options) for options in (HASTY, PATIENT))
        self._places = itertools.count()

    def write(self, fault: str, number: int, *, lasting: bool) -> int:
        """Write a version while request ``number`` (0: none) meets a fault; returns how many requests there were."""
        place = f"place-{next(self._places)}"
        direct = self.direct.subfolder(place)
        through = (self.hasty if fault == "hang" else self.patient).subfolder(place)
        OPERATIONS["full"].prepare(table_in(direct))
        before = table_in(direct).version()
        seen = itertools.count(1)

        def is_met(method: str, path: str) -> bool:
            now = next(seen)
            return 0 < number <= now if lasting else now == number

        self.proxy.set(FAULTS[fault], for_ever=lasting, on=is_met)
        failure: VersionedError | None = None
        try:
            OPERATIONS["full"].act(table_in(through))
        except VersionedError as error:
            failure = error
        requests = len(self.proxy.seen)
        table = table_in(direct)
        history = table.history()
        assert_same(table.read(before.metadata_sha), numbered(20))
        assert_same(table.read(), numbered(20 if len(history) == 1 else 30))
        if failure is None:
            assert len(history) == 2
        else:
            assert isinstance(failure, ERRORS.get(fault, StorageError))
            assert len(history) == 1 or fault not in NOTHING_DONE, failure
        table_in(direct).resolve()
        table_in(direct).write(numbered(13, 1_000))
        table_in(direct).verify().require_ok()
        return requests


@pytest.fixture(scope="module")
def refusing() -> Iterator[Refusing]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    reached = S3Server(f"http://{host}:{port}", "moto-access-key", "moto-secret-key")
    with faulty_proxy(reached.endpoint_url) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "RACES", 3)
        yield Refusing(reached, proxy)
    server.stop()


@pytest.mark.slow
def test_an_s3_that_says_no_at_some_request_of_a_write(refusing: Refusing) -> None:
    """Every request meets a fault, another one each time, and every fault is met, once or from then on."""
    requests = refusing.write("403", 0, lasting=False)
    faults = list(FAULTS)
    for turn in range(max(requests, len(faults))):
        refusing.write(faults[turn % len(faults)], turn % requests + 1, lasting=turn % 2 == 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_an_s3_that_says_no_at_every_request_of_a_write(refusing: Refusing, fault: str, lasting: bool) -> None:
    number = 1
    while refusing.write(fault, number, lasting=lasting) >= number:
        number += 1
    assert number > 8
