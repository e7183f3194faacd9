"""A process that ends at any storage call of any operation leaves the old version or the new one."""

from collections.abc import Iterator

import pytest

from dagster_versioned.storage.wrappers import Fault
from support.crash_matrix import Case, LocalPlace, failed_at, killed_at, prepared
from support.crashes import OPERATIONS, Undertaker, undertaker
from support.tmpfs import scratch

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def killer() -> Iterator[Undertaker]:
    with undertaker() as one:
        yield one


@pytest.fixture(scope="module", params=list(OPERATIONS))
def case(request: pytest.FixtureRequest, killer: Undertaker) -> Iterator[Case]:
    with scratch() as folder:
        yield prepared(request.param, OPERATIONS[request.param], killer, LocalPlace(folder))


def test_dies_or_loses_an_answer_at_a_call_that_writes(case: Case, killer: Undertaker) -> None:
    """At another one for each operation; `TestAtEveryCall` has all of them."""
    turn = list(OPERATIONS).index(case.name)
    killed_at(case, killer, [case.changes[turn % len(case.changes)]])
    failed_at(case, Fault.LOST_ANSWER, [case.changes[(turn + len(case.changes) // 2) % len(case.changes)]])


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestAtEveryCall:
    def test_killed(self, case: Case, killer: Undertaker) -> None:
        killed_at(case, killer, case.changes)

    def test_failed(self, case: Case) -> None:
        failed_at(case, Fault.BEFORE, case.numbers)

    def test_answer_lost(self, case: Case) -> None:
        failed_at(case, Fault.LOST_ANSWER, case.changes)
