"""Must show 4 on a real S3 server: a process killed, or a call that failed, at every storage call."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_versioned.storage.wrappers import Fault
from support.crash_matrix import Case, S3Place, failed_at, killed_at, prepared
from support.crashes import OPERATIONS, Undertaker, undertaker
from support.s3_server import S3Server

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(900)]

NAMES = ("create", "full", "metadata_only", "partitions", "revert", "expire", "vacuum", "purge")
"""The operations that differ in their calls of the store; the others are ended on a local one."""


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:
    return s3_server


@pytest.fixture(scope="module")
def killer(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undertaker]:
    with pytest.MonkeyPatch.context() as patch:
        # A pickled store carries no credentials: the processes find theirs in the environment.
        patch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("left by the dead")))
        with undertaker() as one:
            yield one


@pytest.fixture(scope="module", params=NAMES)
def case(
    request: pytest.FixtureRequest, server: S3Server, killer: Undertaker, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    folder: Path = tmp_path_factory.mktemp("copies")
    return prepared(request.param, OPERATIONS[request.param], killer, S3Place(server, folder))


def test_killed_at_every_call(case: Case, killer: Undertaker) -> None:
    killed_at(case, killer, case.numbers)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST_ANSWER])
def test_failed_at_every_call(case: Case, fault: Fault) -> None:
    failed_at(case, fault, case.numbers)
