"""A process that ends at any storage call of any operation leaves the old version or the new one."""

from collections.abc import Iterator

import pytest

from dagster_versioned.storage.wrappers import Fault
from support.crash_matrix import Case, LocalPlace, failed_at, killed_at, prepared
from support.crashes import OPERATIONS, Undertaker, undertaker
from support.tmpfs import scratch

pytestmark = pytest.mark.faults

STRIDES = {"create": 5, "full": 5, "checkpoint": 31, "merge by vectors": 21}
"""By default an operation ends at each ninth call only, at others for each way to end; at each third where a version is
made for the first or second time, so that each of these calls is one of some way. `TestAtEveryCall` has all of them."""


@pytest.fixture(scope="module")
def killer() -> Iterator[Undertaker]:
    with undertaker() as one:
        yield one


@pytest.fixture(scope="module", params=list(OPERATIONS))
def case(request: pytest.FixtureRequest, killer: Undertaker) -> Iterator[Case]:
    with scratch() as folder:
        yield prepared(request.param, OPERATIONS[request.param], killer, LocalPlace(folder))


def some(case: Case, which: int) -> range:
    """The calls at which a case ends by default; for ``which`` of 0, 1 and 2 different ones."""
    stride = STRIDES.get(case.name, 15)
    return case.numbers[which * stride // 3 :: stride]


@pytest.mark.every(2)
def test_killed_at_some_calls(case: Case, killer: Undertaker) -> None:
    killed_at(case, killer, some(case, 0))


@pytest.mark.every(3)
@pytest.mark.parametrize("fault", [pytest.param(Fault.BEFORE, marks=pytest.mark.slow), Fault.LOST_ANSWER])
def test_failed_at_some_calls(case: Case, fault: Fault) -> None:
    failed_at(case, fault, some(case, 1 if fault is Fault.BEFORE else 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestAtEveryCall:
    def test_killed(self, case: Case, killer: Undertaker) -> None:
        killed_at(case, killer, case.numbers)

    @pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST_ANSWER])
    def test_failed(self, case: Case, fault: Fault) -> None:
        failed_at(case, fault, case.numbers)
