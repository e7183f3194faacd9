"""A process that ends at any storage call of any operation leaves the old version or the new one."""

from collections.abc import Iterator

import pytest

from dagster_versioned.storage.wrappers import Fault
from support.crash_matrix import ENDINGS, Case, LocalPlace, failed_at, killed_at, prepared
from support.crashes import OPERATIONS, Undertaker, undertaker
from support.tmpfs import scratch

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def killer() -> Iterator[Undertaker]:
    with undertaker() as one:
        yield one


A_HUNDRED_COMMITS = {"checkpoint": pytest.mark.slow}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=A_HUNDRED_COMMITS.get(name, ())) for name in OPERATIONS]
)
def case(request: pytest.FixtureRequest, killer: Undertaker) -> Iterator[Case]:
    with scratch() as folder:
        yield prepared(request.param, OPERATIONS[request.param], killer, LocalPlace(folder))


def test_ends_at_a_call_that_writes(case: Case, killer: Undertaker) -> None:
    """At another one for each operation, of which every second dies and the others lose an answer."""
    turn = list(OPERATIONS).index(case.name)
    number = [case.changes[turn % len(case.changes)]]
    if turn % 2:
        failed_at(case, Fault.LOST_ANSWER, number)
    else:
        killed_at(case, killer, number)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ENDINGS)
def test_ends_at_every_call(case: Case, killer: Undertaker, how: str) -> None:
    ENDINGS[how](case, killer)
