"""A process killed, or a call that failed, at every storage call, on servers of S3, Azure and Google."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.wrappers import Fault
from support.azurite import AzureServer
from support.crash_matrix import BucketPlace, Case, failed_at, killed_at, prepared
from support.crashes import OPERATIONS, Undertaker, undertaker
from support.gcs_server import GcsServer
from support.s3_server import S3Server

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("create", "full", "metadata_only", "partitions", "revert", "expire", "vacuum", "purge")
"""The operations that differ in their calls of the store; the others are ended on a local one."""

CALLS = {"s3": slice(None), "abfss": slice(0, None, 2), "gs": slice(1, None, 2)}
"""By scheme, those at which an operation ends; half on each of Azure and Google, which have one implementation."""


@pytest.fixture(
    scope="module",
    params=[pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure), "gcs"],
)
def bucket(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    # A pickled store carries no credentials: the processes find theirs in the environment.
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            server: S3Server = request.getfixturevalue("s3_server")
            patch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
            patch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
            yield server.store(server.new_bucket())
        elif request.param == "gcs":
            google: GcsServer = request.getfixturevalue("gcs_server")
            yield google.store(google.new_bucket())
        else:
            azurite: AzureServer = request.getfixturevalue("azurite")
            yield azurite.store(azurite.new_container())


@pytest.fixture(scope="module")
def killer(bucket: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undertaker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("left by the dead")))
        with undertaker() as one:
            yield one


@pytest.fixture(scope="module", params=NAMES)
def case(
    request: pytest.FixtureRequest, bucket: ObjectStore, killer: Undertaker, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    place = BucketPlace(bucket.subfolder(request.param), tmp_path_factory.mktemp("copies"))
    whole = prepared(request.param, OPERATIONS[request.param], killer, place)
    calls = CALLS[bucket.uri.partition(":")[0]]
    return replace(whole, numbers=whole.numbers[calls], changes=whole.changes[calls])


def test_killed_at_every_call(case: Case, killer: Undertaker) -> None:
    killed_at(case, killer, case.changes)


def test_failed_at_every_call(case: Case) -> None:
    failed_at(case, Fault.BEFORE, case.numbers)


def test_lost_the_answer_of_every_call(case: Case) -> None:
    failed_at(case, Fault.LOST_ANSWER, case.changes)
