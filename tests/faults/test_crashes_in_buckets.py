"""A process killed, or a call that failed, at every storage call, on servers of S3, Azure and Google."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dagster_versioned.storage import ObjectStore
from support.buckets import BUCKETS, new_bucket
from support.crash_matrix import ENDINGS, BucketPlace, Case, prepared
from support.crashes import OPERATIONS, Undertaker, undertaker

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("create", "full", "metadata_only", "partitions", "revert", "expire", "vacuum", "purge")
"""The operations that differ in their calls of the store; the others are ended on a local one."""

CALLS = {"s3": slice(None), "abfss": slice(0, None, 2), "gs": slice(1, None, 2)}
"""By scheme, those at which an operation ends; half on each of Azure and Google, which have one implementation."""


@pytest.fixture(scope="module", params=BUCKETS)
def bucket(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch:
        yield new_bucket(request, patch)


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


@pytest.mark.parametrize("how", ENDINGS)
def test_ends_at_every_call(case: Case, killer: Undertaker, how: str) -> None:
    ENDINGS[how](case, killer)
