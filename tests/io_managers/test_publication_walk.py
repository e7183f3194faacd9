"""Whatever is run, checked, published, dropped and written, in whatever order: each reader sees what the oracle says.

Runs, checks and publications are Dagster's own, in this process; what assets yield, and whether steps fail and checks
crash, is set from outside. That drafts grow old is pretended, nothing else. The oracle keeps its own account of tables,
drafts and evaluations. After every step it is compared with the rows (as `deltalake` reads them too), the parents of
each version, how each draft stands, and what was refused.
"""

import random
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import dagster as dg
import deltalake
import pytest

import dagster_versioned as dv
from dagster_versioned.assets.parked import PARKED_TAG
from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import partitions_sha
from dagster_versioned.tables.documents import parked_draft
from support import publication_house
from support.dagster_versions import has_partitioned_checks
from support.publication_house import (
    ABOVE,
    ADDS,
    DEPLOYED,
    INTERRUPTED,
    KEYS,
    PARTED,
    PLANS,
    QUIET,
    RANGE,
    SOURCES,
    STEPS,
    Hand,
    definitions,
    numbers,
    rows,
)
from support.publication_oracle import Foreseen, Oracle, Run, Version

RULES = {
    "run": 34,
    "again": 8,
    "check": 10,
    "publish": 16,
    "publish_by_hand": 4,
    "drop_draft": 4,
    "write": 6,
    "backfill": 3,
    "vacuum": 5,
    "change_table": 7,
    "environment": 1,
    "restart": 1,
}
"""What happens, and how often."""
VERBS = ("drop", "drop_partitions", "rename", "rename_project", "repartition", "purge")
KINDS = {
    *("published", "superseded", "waiting", "given up", "aged", "executed again", "rebased"),
    *("check that sees drafts", "check that sees none", "write in between", "publish in between"),
    *("refused: built from a draft", "refused: rebase", *(f"refused: {verb}" for verb in VERBS)),
}
"""What has to happen on a long walk."""


class Walk:
    """Two projects, two processes that run and publish in the first, and everybody who could come in their way."""

    def __init__(self, place, instance, seed):
        self.place, self.instance = str(place), instance
        self.random, self.oracle, self.hand = random.Random(seed), Oracle(), Hand()
        self.counts, self.value, self.names, self.runs, self.compared = Counter(), 0, {}, [], {}
        self.deployed = [self.deploy(number) for number in range(2)]

    def deploy(self, number, environment=None):
        """A process of its own, which has cached nothing: its definitions, and the project as it has opened it."""
        name = f"{self.place} {number} {time.time_ns()}"
        DEPLOYED[name] = definitions(self.hand, self.place, environment).get_repository_def()
        return name, DEPLOYED[name], self.house(environment)

    def house(self, environment=None):
        return dv.Project.open("HOUSE", f"{self.place}/house", environment=environment)

    def project_of(self, table):
        return dv.Project.open("THERE", f"{self.place}/there") if table == "there" else self.house()

    def happens(self, chance):
        return self.random.random() < chance

    def new(self, table):
        """Rows that a source yields: of what replaces the head often the same ones."""
        self.value += 1
        number = self.value if table in ADDS else self.random.choice([1, 2, 3])
        return (-number if self.happens(0.25) else number,)

    # Runs

    def run(self):
        plan = self.random.choice(PLANS)
        seen = self.random.choice(self.runs[-12:]) if self.runs and self.happens(0.3) else None
        if seen is not None and {*plan} & {*SOURCES}:
            seen = None
        steps = {step for name in plan for step in STEPS[name]}
        if self.happens(0.65):
            steps |= {f"{name}_good" for name in plan if name in SOURCES}
        self.execute(Run(plan, steps, self.some_keys(plan), seen))

    def some_keys(self, plan):
        first, last = sorted(self.random.choices(KEYS, k=2))
        return KEYS[KEYS.index(first) : KEYS.index(last) + 1] if {*plan} & {*PARTED} else ()

    def again(self):
        """A run that failed is executed again from its failure; perhaps the check was put right."""
        failed = [run for run in self.runs[-40:] if run.failed]
        if failed:
            parent = self.random.choice(failed)
            steps = parent.steps - parent.succeeded
            self.counts["executed again"] += 1
            self.execute(Run(parent.plan, steps, parent.keys, None, parent, parent.backfill))

    def check(self):
        """A check alone, by a run that was told to see what another one has parked, or by one that was not."""
        table = self.random.choice(SOURCES)
        waiting = [draft.run for draft in self.oracle.living(table)]
        seen = self.random.choice(waiting) if waiting and self.happens(0.8) else None
        keys = seen.keys if seen is not None and self.happens(0.5) else self.some_keys((table,))
        self.counts["check that sees drafts" if seen else "check that sees none"] += 1
        self.execute(Run((), {f"{table}_good"}, keys if table == "parts" else (), seen))

    def backfill(self):
        """Runs of one backfill: of partitions, one by one, and of what is built from all."""
        name = f"backfill{len(self.runs)}"
        for keys in [(key,) for key in KEYS if self.happens(0.7)]:
            self.execute(Run(("parts",), {"parts", "parts_good"}, keys, backfill=name))
        self.execute(Run(("total",), {"total"}, backfill=name))

    def execute(self, run):
        hand, name = self.hand, self.random.choice(self.deployed)[0]
        hand.given = {one: {key: self.new(one) for key in (KEYS if one in PARTED else [None])} for one in SOURCES}
        hand.fails = {one for one in SOURCES if self.happens(0.06)}
        hand.crashes, hand.is_lenient, hand.read = self.happens(0.06), self.happens(0.2), {}
        event = self.random.choice(["write", "publish"])
        is_interrupted = run.plan and run.plan[-1] in INTERRUPTED and len(run.plan) < 3 and self.happens(0.4)
        given = self.new("single")
        hand.between = (
            {
                "write": lambda _: self.house().table("single").write(rows(*given)),
                "publish": lambda run_id: self.house().publish(run_id, by="ann"),
            }[event]
            if is_interrupted
            else None
        )
        job = "_".join(run.plan) if run.plan else f"check_{next(iter(run.steps)).removesuffix('_good')}"
        first = run
        while first.parent is not None:
            first = first.parent
        if run.plan and any(step.endswith("_good") for step in first.steps):
            job += "_checked"
        tags = {} if run.seen is None else {PARKED_TAG: run.seen.id}
        tags |= {"dagster/backfill": run.backfill} if run.backfill else {}
        tags |= {"dagster/partition": run.keys[0]} if len(run.keys) == 1 else {}
        tags |= dict(zip(RANGE, (run.keys[0], run.keys[-1]), strict=True)) if len(run.keys) > 1 else {}
        again = dg.ReexecutionOptions.from_failure(run.parent.id, self.instance) if run.parent else None
        made = dg.build_reconstructable_job(publication_house.__name__, "job_of", reconstructable_args=(name, job))
        with dg.execute_job(made, self.instance, QUIET, tags=tags, reexecution_options=again) as result:
            run.id = result.run_id
        self.runs.append(run)

        def interrupt():
            if is_interrupted and event == "write":
                self.oracle.commit("single", {None: Version("single", None, given)})
            elif is_interrupted:
                own = [draft for draft in self.oracle.living() if run.id in (draft.run.id, draft.name[1])]
                self.oracle.publish(own, is_judged=False)
            self.counts[f"{event} in between"] += bool(is_interrupted)

        foreseen = Foreseen(self.oracle, hand, run, interrupt)
        self.compare_run(run, result, foreseen)

    def compare_run(self, run, result, foreseen):
        failed = {event.step_key: event for event in result.all_events if event.is_step_failure}
        errors = {step: event.event_specific_data.error.to_string() for step, event in failed.items()}
        assert {event.step_key for event in result.all_events if event.is_step_success} == run.succeeded, errors
        assert failed.keys() == run.failed
        assert {name: sorted(seen) for name, seen in self.hand.read.items()} == {
            name: sorted(seen) for name, seen in foreseen.read.items()
        }
        for step, why in foreseen.refused.items():
            error = failed[step].event_specific_data.error
            assert why in (error.cause or error).message
            self.counts["refused: built from a draft"] += 1
        for event in result.get_asset_materialization_events():
            made = event.event_specific_data.materialization
            version = foreseen.made.pop((made.asset_key.path[-1], made.partition))
            self.know(version, made.metadata["dagster_versioned/metadata_sha"].value)
        assert not foreseen.made

    # What else happens

    def publish(self):
        _, repository, project = self.random.choice(self.deployed)
        with self.aged() if self.happens(0.2) else nullcontext():
            report = dv.publish_checked(project, self.instance, repository)
        self.compare_report(report, self.oracle.publish(self.oracle.living(), is_judged=True))

    def publish_by_hand(self):
        living = self.oracle.living()
        if living:
            run_id = self.random.choice(living).run.id
            own = [draft for draft in living if run_id in (draft.run.id, draft.name[1])]
            report = self.house().publish(run_id, by="ann")
            self.compare_report(report, self.oracle.publish(own, is_judged=False))

    def compare_report(self, report, foreseen):
        told = [one.draft for one in report.published], report.superseded, [draft for draft, _ in report.waiting]
        for what, drafts, expected in zip(("published", "superseded", "waiting"), told, foreseen, strict=True):
            assert {self.named(draft) for draft in drafts} == {draft.name for draft in expected}, what
            self.counts[what] += len(expected)

    def named(self, draft):
        return str(draft.table), draft.first_run_id, draft.run.step_key

    def drop_draft(self):
        living = self.oracle.living()
        if living:
            chosen = self.random.choice(living)
            [draft] = [one for one in self.house().parked() if self.named(one) == chosen.name]
            self.house().drop_parked(draft.id, why="not needed")
            chosen.standing = "superseded"

    def write(self):
        """Somebody writes to a table by hand."""
        table = self.random.choice(SOURCES)
        key, given = self.random.choice(KEYS) if table in PARTED else None, self.new(table)
        options = dv.TableOptions(mode="append") if table in ADDS else None
        self.house().table(table).write(rows(*given), partition=key, options=options)
        made = Version(table, key, given)
        self.oracle.commit(table, {key: self.oracle.added(table, made) if table in ADDS else made})

    @contextmanager
    def aged(self):
        """More than seven days go by, for as long as this lasts."""
        self.counts["aged"] += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parked_draft, "KEPT", timedelta(days=-1))
            yield

    def vacuum(self):
        """What was closed goes, and what has waited for too long: its rows too, that nobody else has."""
        is_old, drafts = self.happens(0.2), self.oracle.drafts
        for table in ABOVE:
            opened = self.project_of(table).table(table)
            if opened.exists():
                with self.aged() if is_old else nullcontext():
                    opened.vacuum(min_age=timedelta(seconds=-5), dry_run=False)
                needed = {name for draft in self.oracle.living() for name in draft.upon}
                for name in [name for name, one in drafts.items() if name[0] == table]:
                    if is_old if drafts[name].is_living else name not in needed:
                        self.counts["given up"] += drafts.pop(name).is_living

    def change_table(self):
        """What would make another table of one is refused while a draft of it waits, however old."""
        name, verb = (
            self.random.choice(["single", "parts", "log", "ledger", "below", "total"]),
            self.random.choice(VERBS),
        )
        project = self.house()
        table = project.table(name)
        if not self.oracle.heads[name]:
            return
        keys = [key for key in self.oracle.heads[name] if self.happens(0.5)] if verb == "drop_partitions" else None
        if keys == [] or (keys and name not in PARTED):
            return
        living = self.oracle.living(*(() if verb == "rename_project" else (name,)))
        waiting = [one for one in living if keys is None or {*keys} & one.versions.keys()]
        is_dry = verb not in ("drop", "drop_partitions") and not waiting
        if is_dry and verb != "rename":
            return
        change = {
            "drop": lambda: table.drop(dry_run=False),
            "drop_partitions": lambda: table.drop_partitions(keys, dry_run=False),
            "rename": lambda: table.rename("other", dry_run=is_dry),
            "rename_project": lambda: project.rename("OTHER"),
            "repartition": lambda: table.repartition("same", dry_run=is_dry),
            "purge": lambda: table.purge(["@0"], why="law", dry_run=is_dry),
        }[verb]
        if not waiting:
            change()
            self.counts[f"{verb} where none waits"] += 1
            if not is_dry:
                left = {key: head for key, head in self.oracle.heads[name].items() if keys and key not in keys}
                self.oracle.heads[name] = {}
                self.oracle.commit(name, left)
            return
        with self.aged() if self.happens(0.5) else nullcontext(), pytest.raises(InvalidInput, match="parked drafts"):
            change()
        self.counts[f"refused: {verb}"] += 1

    def environment(self):
        """In an environment nobody sees a draft of production, nor there one of it, and a rebase is refused."""
        project = self.house()
        if not any(self.oracle.heads.values()):
            return
        create_environment(project, "pr")
        name, _, branch = self.deploy("pr", "pr")
        assert not branch.parked()
        self.value += 1
        self.hand.given, self.hand.fails = {"single": {None: (10_000 + self.value,)}}, set()
        made = dg.build_reconstructable_job(publication_house.__name__, "job_of", reconstructable_args=(name, "single"))
        with dg.DagsterInstance.ephemeral() as own, dg.execute_job(made, own, QUIET) as result:
            assert result.success
        [draft] = branch.parked()
        with self.aged() if self.happens(0.5) else nullcontext(), pytest.raises(InvalidInput, match="parked drafts"):
            rebase_environment(project, "pr", dry_run=False)
        self.counts["refused: rebase"] += 1
        head = self.oracle.heads["single"].get(None)
        expected = None if head is None else head.rows
        if self.happens(0.5):
            assert len(branch.publish(result.run_id, by="ann").published) == 1
            expected = self.hand.given["single"][None]
        else:
            branch.drop_parked(draft.id)
        rebase_environment(project, "pr", dry_run=False)
        table = self.house("pr").table("single")
        assert (numbers(table.read()) if table.exists() and table.state.history.heads else None) == expected
        drop_environment(project, "pr")
        self.counts["rebased"] += 1

    def restart(self):
        number = self.random.randrange(2)
        self.deployed[number] = self.deploy(number)

    # What everybody sees

    def know(self, version, sha):
        """Versions have the same name if they say the same, and no others."""
        assert self.names.setdefault(version, sha) == sha, version
        assert self.names.setdefault(sha, version) == version, sha

    def compare_parents(self, parents, version):
        """Rows of a log that a draft adds to are a version that nobody may have named but who reads it there."""
        stored = {(one.source, one.table, one.partition, one.version) for one in parents}
        assert len(stored) == len(parents)
        for one in version.parents:
            if one.table in ADDS and one not in self.names:
                [sha] = [sha for _, table, _, sha in stored if table == one.table]
                self.know(one, sha)
        assert stored == {
            ("HOUSE", one.table, one.key, self.names[one] if one.rows else self.name_of_all(one))
            for one in version.parents
        }

    def name_of_all(self, whole):
        return partitions_sha({one.key: self.names[one] for one in whole.parents})

    def compare(self):
        for table, heads in self.oracle.heads.items():
            self.compare_table(table, heads)
        stored = {self.named(draft): draft for draft in self.house().parked()}
        assert stored.keys() == self.oracle.drafts.keys()
        for name, draft in self.oracle.drafts.items():
            self.compare_draft(stored[name], draft)

    def compare_table(self, table, heads):
        place = f"{self.place}/{'there' if table == 'there' else 'house'}/datom/{table}"
        log = {one.name for one in Path(place, "_delta_log").glob("*.json")}
        if self.compared.get(table) == (log, heads):  # nothing was committed since
            return
        opened = self.project_of(table).table(table)
        before = self.compared.get(table, (set(), {}))[1]
        stored = opened.state.history.heads if log else {}
        assert stored.keys() == heads.keys(), (table, stored, heads)
        for key, head in heads.items():
            self.know(head, stored[key].metadata_sha)
            self.compare_parents(stored[key].identity.parents, head)
            if before.get(key) != head:
                assert numbers(opened.read(partition=key)) == head.rows
        if log:
            assert numbers(deltalake.DeltaTable(place).to_pyarrow_table()) == tuple(
                sorted(number for head in heads.values() for number in head.rows)
            )
        self.compared[table] = log, dict(heads)

    def compare_draft(self, stored, draft):
        assert (stored.standing, stored.run.run_id) == (draft.standing, draft.run.id), stored.why
        if self.compared.get(stored.sha256):
            return
        self.compared[stored.sha256] = True
        assert {*stored.partitions} == draft.versions.keys()
        for one in stored.versions:
            version = draft.versions[one.partition]
            self.compare_parents(one.entry.identity.parents, version)
            assert one.entry.identity.nrow == len(version.rows)
            if draft.table not in ADDS:
                self.know(version, one.entry.metadata_sha)
                saw = draft.saw[one.partition]
                assert one.saw == (None if saw is None else self.names[saw])

    def go(self, steps):
        began, trace = time.monotonic(), []
        try:
            for _ in range(steps):
                (rule,) = self.random.choices(list(RULES), list(RULES.values()))
                trace.append(rule)
                self.counts[f"step {rule}"] += 1
                getattr(self, rule)()
                self.compare()
        except BaseException:
            print(f"after {len(trace)} steps, the last of which: {', '.join(trace[-30:])}; {dict(self.counts)}")
            raise
        took = (time.monotonic() - began) / steps
        print(f"{steps} steps, {took:.2f} s each, {len(self.runs)} runs: {dict(sorted(self.counts.items()))}")


@has_partitioned_checks
@pytest.mark.parametrize("seed", [1])
def test_a_short_random_walk_of_publication(tmp_path, house, seed):
    Walk(tmp_path, house.instance, seed).go(12)


@has_partitioned_checks
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [11])
def test_a_long_random_walk_of_publication(tmp_path, house, seed):
    walk = Walk(tmp_path, house.instance, seed)
    walk.go(1000)
    assert not [kind for kind in KINDS if not walk.counts[kind]]
