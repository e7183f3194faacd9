"""Whatever happens, in whatever order: it converges, no state is run twice, and none that needs a run is passed over.

What a run does is pretended (its reads, and later its writes), so that hundreds of steps take seconds; the daemon, its
storage and the sensor are real. The oracle below reads the tables' logs, and knows the graph by heart.
"""

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dagster_versioned import build_version_sensor

KEYS = ("a", "b", "c")
PARTS = dg.StaticPartitionsDefinition(list(KEYS))
SAME, NONE, WHOLE = "same", "none", "whole"
GRAPH = {
    "clean": (True, [("raw", SAME), ("rates", NONE)]),
    "daily": (True, [("clean", SAME)]),
    "total": (False, [("daily", WHOLE)]),
    "share": (True, [("total", NONE), ("raw", SAME)]),
    "report": (False, [("total", NONE), ("rates", NONE)]),
}
CELLS = [(name, key) for name, (parted, _) in GRAPH.items() for key in (KEYS if parted else (None,))]


def assets(code):
    made = [dg.AssetSpec("raw", partitions_def=PARTS), dg.AssetSpec("rates")]
    for name, (parted, above) in GRAPH.items():
        policy = dg.BackfillPolicy.single_run() if name == "clean" else None

        @dg.asset(
            name=name,
            ins={one: dg.AssetIn() for one, _ in above},
            partitions_def=PARTS if parted else None,
            backfill_policy=policy if parted else None,
            code_version=str(code[name]),
        )
        def asset(**inputs) -> pa.Table:
            raise NotImplementedError

        made.append(asset)
    return made


class Walk(RuleBasedStateMachine):
    """One project, one daemon, and everybody who could come in their way."""

    def __init__(self, daemons):
        super().__init__()
        self._context = daemons()
        self.daemon = self._context.__enter__()
        self.code = dict.fromkeys(GRAPH, 1)
        self.running = {}  # run id -> (run, what it read by cell, its code version)
        self.states = []
        self.failed = {}  # cell -> the state in which its run failed
        self.runs = self.steps = 0

    def teardown(self):
        try:
            self.converge()
        finally:
            self._context.__exit__(None, None, None)

    @initialize()
    def begin(self):
        self.deploy()
        for key in KEYS:
            self.write_raw(key, 0)
        self.write_rates(0)

    def deploy(self):
        target = dg.AssetSelection.assets(*GRAPH)
        sensor = build_version_sensor("walk", target, on_code_version=True, max_runs_per_tick=100)
        self.daemon.deploy(*assets(self.code), sensors=[sensor])

    # What the oracle knows

    def table(self, name):
        return self.daemon.project.table([name])

    def current(self, name, key):
        """The head of a cell by the log, ``None`` without one."""
        table = self.table(name)
        return table.state.history.heads.get(key) if table.exists() else None

    def needs(self, name, key):
        """(table, partition as recorded, version) of everything a cell is to be built from; ``None`` if one lacks."""
        found = []
        for above, how in GRAPH[name][1]:
            if how == WHOLE:
                if any(self.current(above, one) is None for one in KEYS):
                    return None
                found.append((above, None, self.table(above).state.history.whole.metadata_sha))
            else:
                head = self.current(above, key if how == SAME else None)
                if head is None:
                    return None
                found.append((above, key if how == SAME else None, head.metadata_sha))
        return sorted(found, key=str)

    def state(self, name, key):
        """What a run for a cell would be for, with log versions; and whether it is stale."""
        head = self.current(name, key)
        above = [
            tuple(
                (version.log_version, version.metadata_sha)
                for one in (KEYS if how == WHOLE else (key if how == SAME else None,))
                if (version := self.current(table, one)) is not None
            )
            for table, how in GRAPH[name][1]
        ]
        return (head.log_version if head else -1, tuple(above), self.code[name])

    def is_stale(self, name, key):
        head, needs = self.current(name, key), self.needs(name, key)
        if head is None:
            return needs is not None
        built = sorted([(p.table, p.partition, p.version) for p in head.identity.parents], key=str)
        return needs is not None and (built != needs or head.identity.code_version != str(self.code[name]))

    def is_held(self, name, key):
        domain = "dagster_versioned.held" + (f"/{key}" if key else "")
        return self.table(name).exists() and domain in self.table(name).state.snapshot.domains

    def busy(self):
        return {cell for _, reads, _ in self.running.values() for cell in reads}

    def expected(self):
        """The cells that this tick has to request: by the definition, upstream first."""
        busy, decided, wanted = self.busy(), {}, set()
        for name, key in CELLS:
            above = [
                (table, one)
                for table, how in GRAPH[name][1]
                for one in (KEYS if how == WHOLE else (key if how == SAME else None,))
            ]
            if not self.is_stale(name, key) or self.is_held(name, key):
                decided[name, key] = False
            elif (name, key) in busy or any(decided.get(one) or one in busy for one in above):
                decided[name, key] = True
            else:
                decided[name, key] = self.failed.get((name, key)) != self.state(name, key)
                if decided[name, key]:
                    wanted.add((name, key))
        return wanted

    # What happens

    @rule(key=st.sampled_from(KEYS), value=st.integers(0, 2))
    def write_raw(self, key, value):
        self.daemon.write("raw", pa.table({"n": [value]}), key)

    @rule(value=st.integers(0, 2))
    def write_rates(self, value):
        self.daemon.write("rates", pa.table({"n": [value]}))

    @rule(value=st.integers(0, 2), message=st.sampled_from(["checked", "checked twice"]))
    def write_words(self, value, message):
        self.daemon.write("rates", pa.table({"n": [value]}), message=message)

    @rule(name=st.sampled_from(sorted(GRAPH)))
    def bump_code(self, name):
        self.code[name] += 1
        self.deploy()

    @rule()
    def lose_cursor(self):
        self.daemon.lose_cursor()

    @rule(cell=st.sampled_from(CELLS), hold=st.booleans())
    def revert(self, cell, hold):
        name, key = cell
        if self.current(name, key) is not None:
            oldest = self.table(name).history(partition=key)[-1]
            self.table(name).revert(f"@{oldest.log_version}", partition=key, hold=hold, why="a test")

    @rule()
    def release_all(self):
        for name, key in CELLS:
            if self.is_held(name, key):
                self.table(name).release(partition=key)

    @rule()
    def tick(self):
        expected = self.expected()
        requested = []
        for run in self.daemon.tick():
            ((name, partition),) = self.daemon.asked(run)
            keys = (partition,)
            if isinstance(partition, tuple):
                keys = KEYS[KEYS.index(partition[0]) : KEYS.index(partition[1]) + 1]
            requested += [(name, key) for key in keys]
            self.states += [(name, key, self.state(name, key)) for key in keys]
            self.running[run.run_id] = (run, {(name, key): self.needs(name, key) for key in keys}, self.code[name])
            self.runs += len(keys)
        assert sorted(requested, key=str) == sorted(expected, key=str)
        assert len(self.states) == len(set(self.states)), "one state was run twice"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        self.end(data.draw(st.sampled_from(sorted(self.running))), fails=False)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data):
        self.end(data.draw(st.sampled_from(sorted(self.running))), fails=True)

    def end(self, run_id, fails):
        run, reads, code = self.running.pop(run_id)
        cells = list(reads)
        fails = fails or any(self.is_held(*cell) for cell in cells)

        def write():
            name = cells[0][0]
            frames, parents = {}, {}
            for cell, needs in reads.items():
                read = [one for table, _, sha in needs for one in self.table(table).upstream(sha)]
                parents[cell[1]] = read
                frames[cell[1]] = pa.table({"built": [str([one.parent.data_sha for one in read])]})
            self.table(name).write_partitions(frames, parents=parents, code_version=str(code))

        self.daemon.pretend(run, write, fails=fails)
        if fails:
            self.failed.update({(n, k): s for n, k, s in self.states if (n, k) in cells})

    def converge(self):
        """A last word of everybody, and then ticks alone."""
        if not self.running and self.daemon.place is None:
            return
        for run_id in sorted(self.running):
            self.end(run_id, fails=False)
        self.release_all()
        for key in KEYS:
            self.write_raw(key, 90)
        self.write_rates(91)
        for _ in range(30):
            self.tick()
            if not self.running:
                break
            for run_id in sorted(self.running):
                self.end(run_id, fails=False)
        assert not any(self.is_stale(name, key) for name, key in CELLS)
        print(f"converged after {self.runs} cells were run, for {len(set(self.states))} states")


def walk(daemons, examples, steps):
    run_state_machine_as_test(
        lambda: Walk(daemons),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def test_a_short_random_walk_converges(daemons):
    walk(daemons, examples=2, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_long_random_walk_converges(daemons):
    walk(daemons, examples=3, steps=300)
