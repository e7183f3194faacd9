"""Must show 4: nothing that a version needs is ever collected, whatever happens in whatever order.

Three processes, each with a memory of its own, write a few frames again and again (so that parts are used again),
revert, pin, expire, vacuum and purge; any of them may fail, die, or be stopped at any call while another runs. What
they are compared with is a plain list of what they were told.
"""

from collections.abc import Callable
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Call
from dagster_versioned.tables.table import VersionedTable
from support.crashes import project_in, table_in
from support.interleaving import (
    POOL,
    REFUSALS,
    Died,
    Injected,
    Step,
    Stepped,
    WouldWait,
    assert_head_hides_nothing,
    assert_nothing_lost,
    expires,
    identities,
    impatient,
    purges,
    reverts_to,
    vacuums,
    writes,
)
from support.tmpfs import scratch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

PARTITIONS = ("x", "y")
IDENTITIES = identities((None, *PARTITIONS))
ROWS = {sha: POOL[name] for (name, _), sha in IDENTITIES.items()}

CALLS = st.integers(1, 45)
"""Of an operation; where it makes fewer, nothing happens to it."""


class Collecting(RuleBasedStateMachine):
    """The table, its three processes, and what they were told."""

    def __init__(self) -> None:
        super().__init__()
        self.context = scratch()
        self.root = self.context.__enter__()
        self.patience = impatient()
        self.patience.__enter__()
        self.store = LocalStore(self.root)
        self.told: set[tuple[int, str]] = set()
        self.pinned: set[str] = set()
        self.partitions: tuple[str | None, ...] = (None,)
        self.handles: list[tuple[Stepped, VersionedTable]] = []

    @initialize(is_partitioned=st.booleans(), names=st.lists(st.sampled_from(list(POOL)), min_size=1, max_size=4))
    def begin(self, is_partitioned: bool, names: list[str]) -> None:
        self.partitions = PARTITIONS if is_partitioned else (None,)
        self.handles = [self.process() for _ in range(3)]
        for name in names:
            self.operate(self.handles[0], writes(name, self.partitions[0]))

    def process(self) -> tuple[Stepped, VersionedTable]:
        store = Stepped(self.store)
        return store, table_in(store)

    def operate(self, handle: tuple[Stepped, VersionedTable], step: Step) -> None:
        try:
            result = step(handle[1])
        except (Injected, Died, WouldWait, *REFUSALS):
            return
        if hasattr(result, "change"):
            self.told.add((result.version.log_version, result.version.metadata_sha))

    # What happens

    steps = st.one_of(
        st.tuples(st.just("write"), st.sampled_from(list(POOL)), st.integers(0, 1)),
        st.tuples(st.just("write"), st.sampled_from(list(POOL)), st.integers(0, 1)),
        st.tuples(st.just("revert"), st.sampled_from(list(POOL)), st.integers(0, 1)),
        st.tuples(st.just("purge"), st.sampled_from(list(POOL)), st.integers(0, 1)),
        st.tuples(st.just("pin"), st.sampled_from(list(POOL)), st.integers(0, 1)),
        st.tuples(st.just("expire"), st.sampled_from([1, 2]), st.just(0)),
        st.tuples(st.just("vacuum"), st.none(), st.just(0)),
        st.tuples(st.just("resolve"), st.none(), st.just(0)),
        st.tuples(st.just("repair"), st.none(), st.just(0)),
    )

    def step(self, chosen: tuple[str, object, int]) -> Step:
        kind, what, at = chosen
        partition = self.partitions[at % len(self.partitions)]
        match kind, what:
            case "write", str(name):
                return writes(name, partition)
            case "revert", str(name):
                return reverts_to(IDENTITIES[name, partition], partition)
            case "purge", str(name):
                return purges(IDENTITIES[name, partition])
            case "pin", str(name):
                return self.pins(IDENTITIES[name, partition])
            case "expire", int(keep_last):
                return expires(keep_last)
            case "vacuum", _:
                return vacuums
            case "resolve", _:
                return lambda table: table.resolve()
            case _:
                return lambda table: table.repair()

    def pins(self, sha: str) -> Step:
        def pin(table: VersionedTable) -> None:
            table.project.pin(sha[:8], str(table.name), sha)
            self.pinned.add(sha)

        return pin

    @rule(who=st.integers(0, 2), chosen=steps)
    def runs(self, who: int, chosen: tuple[str, object, int]) -> None:
        self.operate(self.handles[who], self.step(chosen))

    @rule(who=st.integers(0, 2), chosen=steps, at=CALLS, lost=st.booleans())
    def runs_and_one_call_fails(self, who: int, chosen: tuple[str, object, int], at: int, lost: bool) -> None:
        def fail(call: Call) -> None:
            raise Injected(f"injected failure of {call}")

        if lost:
            self.handles[who][0].shared["lose"] = self.handles[who][0].shared["number"] + at
            self.operate(self.handles[who], self.step(chosen))
            self.handles[who][0].shared["lose"] = 0
        else:
            self.stopped(who, chosen, at, fail)

    @rule(who=st.integers(0, 2), chosen=steps, at=CALLS, after=st.booleans())
    def runs_and_dies(self, who: int, chosen: tuple[str, object, int], at: int, after: bool) -> None:
        store = self.handles[who][0]
        self.stopped(who, chosen, at, lambda call: store.die(after=after))
        self.handles[who] = self.process()

    @rule(who=st.integers(0, 2), chosen=steps, at=CALLS, other=steps, dies=st.booleans(), then=CALLS)
    def runs_and_another_in_between(
        self,
        who: int,
        chosen: tuple[str, object, int],
        at: int,
        other: tuple[str, object, int],
        dies: bool,
        then: int,
    ) -> None:
        second = (who + 1) % 3

        def run_other(call: Call) -> None:
            if dies:
                self.runs_and_dies(second, other, then, False)
            else:
                self.operate(self.handles[second], self.step(other))

        self.stopped(who, chosen, at, run_other)

    @rule()
    @precondition(lambda self: self.pinned)
    def unpins(self) -> None:
        sha = min(self.pinned)
        self.pinned.discard(sha)
        project_in(self.store).unpin(sha[:8])

    def stopped(self, who: int, chosen: tuple[str, object, int], at: int, then: Callable[[Call], None]) -> None:
        """Run a step, and ``then`` before its call number ``at``."""
        store = self.handles[who][0]
        wanted = store.shared["number"] + at

        def look(call: Call) -> None:
            if call.number == wanted:
                then(call)

        store.shared["before"] = look
        self.operate(self.handles[who], self.step(chosen))
        store.shared["before"] = lambda call: None

    # What holds

    @invariant()
    def nothing_is_lost(self) -> None:
        if not table_in(self.store).exists():
            assert not self.told
            return
        assert_nothing_lost(self.store, ROWS, self.told)
        assert_head_hides_nothing(self.store)
        kept = {version.metadata_sha for version in table_in(self.store).history() if version.gone is None}
        assert self.pinned <= kept

    def teardown(self) -> None:
        try:
            self.ends_well()
        finally:
            self.patience.__exit__(None, None, None)
            self.context.__exit__(None, None, None)

    def ends_well(self) -> None:
        """Somebody writes, with nothing mended by hand: everything verifies, and a vacuum takes nothing needed."""
        partition = self.partitions[0]
        rows = POOL["c"].slice(1)
        table_in(self.store).write(rows, partition=partition)
        table_in(self.store).verify().require_ok()
        vacuums(table_in(self.store))
        table = table_in(self.store)
        table.verify().require_ok()
        assert table.state.history.open_collections == ()
        assert table.vacuum(min_age=timedelta(0)).keys == ()


TestCollecting = Collecting.TestCase
TestCollecting.settings = settings(max_examples=6, stateful_step_count=12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestCollectingAtLength(Collecting.TestCase):
    settings = settings(max_examples=200, stateful_step_count=20)
