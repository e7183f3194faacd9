"""Whatever happens, in whatever order: every update is handed on exactly once, and nothing is requested needlessly.

What a run does is pretended (its reads, and later its writes and its events), so that hundreds of steps take seconds;
the daemon, its storage and the sensor are real. The oracle below reads the tables' logs, knows the graph by heart, and
keeps its own account of what checks found. Each tick is to request exactly what the oracle expects.
"""

import json
import random
from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluation,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.test_utils import create_run_for_test

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, build_version_sensor
from dagster_versioned.identity.version import partitions_sha
from dagster_versioned.sensors import blocking_checks, heads
from support.dagster_versions import has_partitioned_checks
from support.died_writers import die_at

KEYS = ("a", "b", "c")
PARTS = dg.StaticPartitionsDefinition(list(KEYS))
SAME, NONE, WHOLE = "same", "none", "whole"
SOURCES = {"raw": True, "rates": False, "far": False}
"""Tables that are written by hand; ``far`` is the table ``rates`` of another project, loaded by its IO manager."""
GRAPH = {
    "clean": (True, [("raw", SAME), ("rates", NONE)]),
    "daily": (True, [("clean", SAME)]),
    "total": (False, [("daily", WHOLE)]),
    "share": (True, [("total", NONE), ("raw", SAME)]),
    "report": (False, [("total", NONE), ("far", NONE)]),
}
VALUES = {"report": "total"}
"""Who loads a value that is pickled by the step which makes a table, and no table itself."""
DEPENDS_ON_FILES = "daily"
"""Depends, by partition, on files that are made without a value."""
RERUNS = 1
IS_PARTED = {**SOURCES, **{name: parted for name, (parted, _) in GRAPH.items()}}
CHECKED = {"rates": None, "clean": None, "daily": PARTS, "total": None}
"""Tables with a blocking check, and the partitions of the check itself."""
CELLS = [(name, key) for name, (parted, _) in GRAPH.items() for key in (KEYS if parted else (None,))]
MOMENTS = ("marked", "committed", "published")
PATIENCE = timedelta(hours=1)
"""How long a young tick leaves a mark alone; another looks at the log of every table that is marked."""
RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


def definitions(code):
    assets = [dg.AssetSpec("raw", partitions_def=PARTS), dg.AssetSpec("rates")]

    @dg.asset(partitions_def=PARTS)
    def files() -> dg.MaterializeResult:
        raise NotImplementedError

    assets.append(files)
    for name, (parted, above) in GRAPH.items():
        policy = dg.BackfillPolicy.single_run() if name == "clean" else None
        ins = {one: dg.AssetIn() if one != "far" else dg.AssetIn("rates", input_manager_key="far") for one, _ in above}
        if name in VALUES:
            ins["model"] = dg.AssetIn()
        if name in VALUES.values():
            outs = {name: dg.AssetOut(code_version=str(code[name])), "model": dg.AssetOut(io_manager_key="pickled")}

            @dg.multi_asset(name=f"make_{name}", ins=ins, outs=outs)
            def asset(**inputs):
                raise NotImplementedError

        else:

            @dg.asset(
                name=name,
                ins=ins,
                deps=["files"] if name == DEPENDS_ON_FILES else [],
                partitions_def=PARTS if parted else None,
                backfill_policy=policy if parted else None,
                code_version=str(code[name]),
            )
            def asset(**inputs) -> pa.Table:
                raise NotImplementedError

        assets.append(asset)
    checks = []
    for name, partitions in CHECKED.items():
        options = {"partitions_def": partitions} if partitions is not None else {}

        @dg.asset_check(asset=name, name="sound", blocking=True, **options)
        def check():
            raise NotImplementedError

        checks.append(check)
    return assets, checks


RULES = {
    "tick": 14,
    "finish": 16,
    "write": 7,
    "die": 4,
    "check": 9,
    "restart": 2,
    "reexecute": 2,
    "delete": 1,
    "make_files": 3,
    "forget_files": 0.3,
    "revert": 1,
    "release_all": 1,
    "bump_code": 1,
    "lose_cursor": 1,
    "age": 1,
}
"""What happens, and how often."""


class Walk:
    """One project, one daemon, and everybody who could come in their way."""

    def __init__(self, daemon, seed, set_patience):
        self.daemon = daemon
        self.set_patience = set_patience
        self.random = random.Random(seed)
        self.code = dict.fromkeys(GRAPH, 1)
        self.running = {}  # run id -> (run, what it read by cell, its code version)
        self.asked = {}  # run id -> the states that it was asked for, by cell
        self.tried = {}  # state -> its runs that ended, by id: (root id, whether it was successful)
        self.ended = []  # runs that failed, as (name, keys, tags, partition, states, run id)
        self.files = set()  # partitions that were made, without a value
        self.launched = 0  # runs, in order: of two verdicts about a version, that of the later one counts
        self.order = {}  # run id -> its number
        self.verdicts = {}  # (table, key, version), as the run that made it found, or (table, key, log version)
        self.states = []
        self.trace = []
        counted = ["cells", "died", "restarts", "unjudged", "reexecuted", "young", "late", "blocked", "hidden"]
        counted += ["cancelled", "deleted", "rerun", "behind", "without files", "undeclared"]
        self.counts = dict.fromkeys(counted, 0)
        self.value = 0
        self.far = Project.open("FAR", f"{self.daemon.location}-far")
        self.tables = {name: self.daemon.project.table([name]) for name in IS_PARTED if name != "far"}
        self.tables["far"] = self.far.table("rates")
        self.deploy()
        for key in KEYS:
            self.daemon.write("raw", self.frame(), key)
        self.daemon.write("rates", self.frame())
        self.far.table("rates").write(self.frame())

    def frame(self):
        self.value += 1
        return pa.table({"n": [self.random.choice([self.value, self.value % 3])]})

    def deploy(self):
        """Load the code location: the sensor is a new one, which remembers nothing."""
        target = dg.AssetSelection.assets(*GRAPH)
        sensor = build_version_sensor("walk", target, on_code_version=True, max_runs_per_tick=100, max_reruns=RERUNS)
        assets, checks = definitions(self.code)
        far = VersionedParquetIOManager(project=ProjectResource(name="FAR", location=f"{self.daemon.location}-far"))
        resources = {"far": far, "pickled": dg.mem_io_manager}
        self.daemon.deploy(*assets, checks=checks, sensors=[sensor], resources=resources)

    # What the oracle knows. A view is the log version up to which each table is seen.

    def table(self, name):
        return self.tables[name]

    def view(self, is_young):
        """What a tick sees: each log to its end; but of a table with a young mark, what its head was derived from."""
        found = {}
        for name in IS_PARTED:
            table = self.table(name)
            end = table.state.log_version if table.exists() else -1
            document = table.head()
            is_left = is_young and document.pending is not None and document.pending.age(datetime.now(UTC)) < PATIENCE
            found[name] = document.log_version if is_left else end
            if found[name] < end:
                self.counts["hidden"] += 1
        return found

    def heads(self, name, view):
        """The head of each partition of a table, ``None`` for one without partitions."""
        table, found = self.table(name), {}
        for version in table.state.history.versions if table.exists() else ():
            if version.log_version <= view[name]:
                found[version.partition] = version
        return found

    def above(self, name, key):
        for table, how in GRAPH[name][1]:
            for one in KEYS if how == WHOLE else (key if how == SAME else None,):
                yield table, one

    def needs(self, name, key, heads):
        """(table, partition as recorded, version) of everything a cell is to be built from; ``None`` if one lacks."""
        found = []
        for table, how in GRAPH[name][1]:
            if how == WHOLE:
                if heads[table].keys() != set(KEYS):
                    return None
                shas = {one: version.metadata_sha for one, version in heads[table].items()}
                found.append((table, None, partitions_sha(shas)))
            else:
                one = key if how == SAME else None
                if one not in heads[table]:
                    return None
                found.append((table, one, heads[table][one].metadata_sha))
        return sorted(found, key=str)

    def state(self, name, key, heads):
        """What a run for a cell would be for, down to log versions."""
        head = heads[name].get(key)
        above = [
            (table, one, version.log_version, version.metadata_sha)
            for table, one in self.above(name, key)
            if (version := heads[table].get(one)) is not None
        ]
        return (name, key, head.log_version if head else -1, tuple(above), self.code[name])

    def is_stale(self, name, key, heads):
        head, needs = heads[name].get(key), self.needs(name, key, heads)
        if head is None:
            if needs is not None and self.lacks_files(name, key):
                self.counts["without files"] += 1
            return needs is not None and not self.lacks_files(name, key)
        declared = {table for table, _ in GRAPH[name][1]}
        found = [("far" if p.source == "FAR" else p.table, p.partition, p.version) for p in head.identity.parents]
        built = sorted([one for one in found if one[0] in declared], key=str)
        return needs is not None and (built != needs or head.identity.code_version != str(self.code[name]))

    def lacks_files(self, name, key):
        return name == DEPENDS_ON_FILES and key not in self.files

    def failures(self, state):
        """How many runs for a state failed, executions of them once more not counted; ``None`` once one succeeded."""
        ended = self.tried.get(state, {}).values()
        return None if any(good for _, good in ended) else len({root for root, _ in ended})

    def is_behind(self, name, heads):
        """Whether a value that a table is built from is not current."""
        maker = VALUES.get(name)
        is_old = maker is not None and self.is_stale(maker, None, heads)
        return is_old and self.failures(self.state(maker, None, heads)) is not None

    def is_held(self, name, key):
        domain = "dagster_versioned.held" + (f"/{key}" if key else "")
        return self.table(name).exists() and domain in self.table(name).state.snapshot.domains

    def is_sound(self, name, key, heads):
        """Whether the checks of everything that a cell would read have passed."""
        return all(
            self.verdict(table, one, heads[table][one]) is True
            for table, one in self.above(name, key)
            if table in CHECKED
        )

    def verdict(self, name, key, head):
        """What was found last of a version: by a run that made it, or by a check alone since it is the head."""
        names = (head.metadata_sha, head.log_version)
        found = [self.verdicts[name, key, one] for one in names if (name, key, one) in self.verdicts]
        return max(found)[1] if found else None

    def expected(self, heads):
        """The cells that a tick has to request: by the definition, upstream first."""
        busy = {cell for _, reads, _ in self.running.values() for cell in reads}
        about_to_change, wanted = set(busy), []
        for name, key in CELLS:
            if not self.is_stale(name, key, heads) or self.is_held(name, key) or (name, key) in busy:
                continue
            if any(one in about_to_change for one in self.above(name, key)):
                about_to_change.add((name, key))
            elif self.is_behind(name, heads):
                self.counts["behind"] += 1
            elif (failures := self.failures(self.state(name, key, heads))) is not None and failures <= RERUNS:
                if self.is_sound(name, key, heads):
                    wanted.append((name, key))
                    self.counts["rerun"] += failures > 0
                    about_to_change.add((name, key))
                else:
                    self.counts["blocked"] += 1
        return wanted

    # What happens

    def write(self):
        name, key = self.source("far")
        message = self.random.choice([None, None, "checked", "checked twice"])
        self.table(name).write(self.frame(), partition=key, message=message)

    def source(self, *others):
        name = self.random.choice(["raw", "raw", "rates", *others])
        return name, self.random.choice(KEYS) if IS_PARTED[name] else None

    def die(self):
        """A writer of a source is killed."""
        name, key = self.source()
        frame, moment = self.frame(), self.random.choice(MOMENTS)
        self.killed(moment, lambda project: project.table(name).write(frame, partition=key))

    def killed(self, moment, write):
        self.counts["died"] += 1
        die_at(moment, self.daemon.project, self.daemon.location, write)

    def age(self):
        """Hours pass for the marks: writers use them no longer, and after a day they are taken away."""
        data = self.daemon.project.data
        for name in IS_PARTED.keys() - {"far"}:
            key = f".metadata/heads/{name}.json"
            if self.table(name).head().pending is not None:
                document = json.loads(data.get(key))
                since = datetime.fromisoformat(document["pending"]["since"])
                since -= timedelta(hours=self.random.choice([5, 13, 25]))
                document["pending"]["since"] = since.isoformat()
                data.put(key, json.dumps(document).encode())

    def bump_code(self):
        self.code[self.random.choice(sorted(GRAPH))] += 1
        self.deploy()

    def restart(self):
        self.counts["restarts"] += 1
        self.deploy()

    def lose_cursor(self):
        self.daemon.lose_cursor()
        self.deploy()

    def revert(self):
        name, key = self.random.choice([*CELLS, ("rates", None)])
        if self.table(name).exists() and key in self.table(name).state.history.heads:
            oldest = self.table(name).history(partition=key)[-1]
            is_held = name in GRAPH and self.random.random() < 0.5
            self.table(name).revert(
                f"@{oldest.log_version}", partition=key, hold=is_held, why="a test" if is_held else None
            )

    def release_all(self):
        for name, key in CELLS:
            if self.is_held(name, key):
                self.table(name).release(partition=key)

    def tick(self, is_young=None):
        if self.random.random() < 0.3:
            self.restart()
        is_young = self.random.random() < 0.4 if is_young is None else is_young
        self.counts["young" if is_young else "late"] += 1
        self.set_patience(PATIENCE if is_young else timedelta(0))
        view = self.view(is_young)
        seen = {name: self.heads(name, view) for name in IS_PARTED}
        expected, requested = self.expected(seen), []
        for run in self.daemon.tick():
            ((name, partition),) = [one for one in self.daemon.asked(run) if one[0] in GRAPH]
            keys = self.keys_of(partition)
            requested += [(name, key) for key in keys]
            self.begin(run, name, keys)
            self.asked[run.run_id] = {self.state(name, key, seen) for key in keys}
            self.states += self.asked[run.run_id]
            self.counts["cells"] += len(keys)
        if sorted(requested, key=str) != sorted(expected, key=str):
            self.daemon.tick()
            raise AssertionError(
                f"requested {requested}, expected {expected}, seen {'young' if is_young else 'late'}: {view}; the next "
                f"tick: {self.daemon.last_tick().skip_reason}"
            )
        assert all(self.states.count(state) <= 1 + RERUNS or self.counts["deleted"] for state in self.states)

    def keys_of(self, partition):
        if isinstance(partition, tuple):
            return KEYS[KEYS.index(partition[0]) : KEYS.index(partition[1]) + 1]
        return (partition,)

    def begin(self, run, name, keys):
        """A run reads what is current when it begins, whatever is seen of it."""
        latest = {one: self.heads(one, self.view(is_young=False)) for one in IS_PARTED}
        self.launched += 1
        self.order[run.run_id] = self.launched
        self.running[run.run_id] = (run, {(name, key): self.needs(name, key, latest) for key in keys}, self.code[name])

    def reexecute(self):
        """Somebody executes a run that failed once more, with all its tags, as Dagster's UI does."""
        if not self.ended:
            return
        name, keys, tags, partition, states, _ = self.random.choice(self.ended)
        latest = {one: self.heads(one, self.view(is_young=False)) for one in IS_PARTED}
        if any(self.needs(name, key, latest) is None for key in keys):
            return
        self.counts["reexecuted"] += 1
        beside = ["model"] if name in VALUES.values() else []
        run = self.daemon.begin_by_hand(name, partition, tags=tags, and_with=beside)
        self.begin(run, name, keys)
        self.asked[run.run_id] = states

    def delete(self):
        """Somebody deletes a run that failed."""
        if self.ended:
            self.counts["deleted"] += 1
            *_, states, run_id = self.ended.pop(self.random.randrange(len(self.ended)))
            self.daemon.instance.delete_run(run_id)
            for state in states:
                self.tried[state].pop(run_id)

    def make_files(self):
        key = self.random.choice(KEYS)
        self.files.add(key)
        run = create_run_for_test(self.daemon.instance, job_name="__ASSET_JOB", asset_selection=set())
        made = dg.AssetMaterialization("files", partition=key, metadata={"files": 3})
        self.report(dg.DagsterEventType.ASSET_MATERIALIZATION, run, StepMaterializationData(made))
        self.report(dg.DagsterEventType.RUN_SUCCESS, run, None)

    def forget_files(self):
        """Somebody wipes the asset in Dagster's UI."""
        self.files.clear()
        self.daemon.instance.wipe_assets([dg.AssetKey("files")])

    def finish(self):
        if self.running:
            run_id = self.random.choice(list(self.running))  # in the order of their launch: ids are random
            self.end(run_id, self.random.choice(["good"] * 4 + ["bad", "crashed", "fails", "cancelled", *MOMENTS]))

    def end(self, run_id, outcome):
        """A run ends: its check passes, fails or raises; it fails before it wrote anything; it is killed as it does."""
        run, reads, code = self.running.pop(run_id)
        cells = list(reads)
        name = cells[0][0]
        if outcome != "cancelled" and any(self.is_held(*cell) for cell in cells):
            outcome = "fails"
        frames, parents = {}, {}
        for (_, key), needs in reads.items():
            parents[key] = [one for table, _, sha in needs for one in self.table(table).upstream(sha)]
            if self.random.random() < 0.2:  # the function loads something that the asset does not depend on
                self.counts["undeclared"] += 1
                other = self.table("raw" if name in ("total", "report") else "far")
                parents[key] += other.upstream(partition="a" if name in ("total", "report") else None)
            frames[key] = pa.table({"built": [str([one.parent.data_sha for one in parents[key]])]})

        def write(project):
            return project.table([name]).write_partitions(frames, parents=parents, code_version=str(code))

        made = []
        if outcome in MOMENTS:
            self.killed(outcome, write)
        elif outcome not in ("fails", "cancelled"):
            made = write(self.daemon.project)
        for result in made:
            self.report_made(run, name, result)
        if name in CHECKED and made:
            if outcome == "crashed":
                self.counts["unjudged"] += 1
            else:
                versions = {result.version.partition: result.version.metadata_sha for result in made}
                self.report_checked(run, name, versions, outcome == "good")
        fails = outcome in ("fails", "cancelled", *MOMENTS) or (outcome != "good" and name in CHECKED)
        self.close(run, cells, fails, is_cancelled=outcome == "cancelled")

    def close(self, run, cells, fails, is_cancelled):
        """A run has ended, which whoever looks at Dagster's runs may see."""
        if is_cancelled:
            self.counts["cancelled"] += 1
            self.daemon.launcher.waiting.remove(run)
            self.daemon.instance.report_run_canceled(run)
        else:
            self.daemon.pretend(run, fails=fails)
        states = self.asked.pop(run.run_id)
        for state in states:
            root = run.tags.get("dagster/root_run_id", run.run_id)
            self.tried.setdefault(state, {})[run.run_id] = (root, not fails)
        if fails:
            kept = {key: value for key, value in run.tags.items() if key.startswith((".dagster/ver", "dagster_vers"))}
            kept |= {tag: run.tags[tag] for tag in RANGE if tag in run.tags}
            kept |= {"dagster/parent_run_id": run.run_id, "dagster/root_run_id": run.run_id}
            keys = [key for _, key in cells]
            partition = None if RANGE[0] in run.tags else keys[0]
            self.ended.append((cells[0][0], keys, kept, partition, states, run.run_id))

    def report(self, kind, run, data):
        event = DagsterEvent(kind.value, run.job_name, event_specific_data=data)
        self.daemon.instance.report_dagster_event(event, run.run_id)

    def report_made(self, run, name, result):
        sha, key = result.version.metadata_sha, result.version.partition
        metadata = {"dagster_versioned/metadata_sha": sha, "dagster_versioned/log_version": result.version.log_version}
        made = dg.AssetMaterialization(name, partition=key, metadata=metadata)
        self.report(dg.DagsterEventType.ASSET_MATERIALIZATION, run, StepMaterializationData(made))

    def report_checked(self, run, name, versions, passed, is_whole=False):
        """An evaluation, about the version that Dagster finds to be its target, and what the oracle makes of it."""
        wanted = {key for key in versions if key is not None}
        of = dg.AssetRecordsFilter(dg.AssetKey(name), asset_partitions=sorted(wanted) if len(wanted) == 1 else None)
        records = self.daemon.instance.fetch_materializations(of, limit=1).records
        target = None
        if records:
            target = AssetCheckEvaluationTargetMaterializationData(
                storage_id=records[0].storage_id, run_id=records[0].run_id, timestamp=records[0].timestamp
            )
        partition = next(iter(versions)) if CHECKED[name] is not None and not is_whole else None
        evaluation = AssetCheckEvaluation(
            asset_key=dg.AssetKey(name),
            check_name="sound",
            passed=passed,
            target_materialization_data=target,
            partition=partition,
            blocking=True,
        )
        self.report(dg.DagsterEventType.ASSET_CHECK_EVALUATION, run, evaluation)
        for key, version in versions.items():
            found = (self.order[run.run_id], passed)
            self.verdicts[name, key, version] = max(found, self.verdicts.get((name, key, version), found))

    def check(self, name=None, passed=None):
        """A check is executed by itself: of one partition, or of the whole table."""
        if name is None:
            latest = {one: self.heads(one, self.view(is_young=False)) for one in CHECKED}
            unsound = [n for n in CHECKED for k, v in latest[n].items() if not self.verdict(n, k, v)]
            name = self.random.choice([*CHECKED, *3 * unsound])
        if not self.table(name).exists():
            return
        versions = {key: version.log_version for key, version in self.table(name).state.history.heads.items()}
        if not versions:
            return
        is_whole = not IS_PARTED[name] or self.random.random() < 0.6
        if not is_whole:
            key = self.random.choice(sorted(versions))
            versions = {key: versions[key]}
        tags = {} if is_whole else {"dagster/partition": next(iter(versions))}
        run = create_run_for_test(self.daemon.instance, job_name="__ASSET_JOB", tags=tags, asset_selection=set())
        self.launched += 1
        self.order[run.run_id] = self.launched
        self.report(dg.DagsterEventType.RUN_START, run, None)
        passed = self.random.random() < 0.85 if passed is None else passed
        seen = self.heads(name, self.view(is_young=True))
        self.report_checked(run, name, versions, passed, is_whole)
        # While a mark is young, the verdict is taken for what is seen. A run would read what was checked.
        for key in versions.keys() & seen.keys():
            self.verdicts[name, key, seen[key].log_version] = (self.order[run.run_id], passed)
        self.report(dg.DagsterEventType.RUN_SUCCESS, run, None)

    def go(self, steps):
        try:
            for _ in range(steps):
                (rule,) = self.random.choices(list(RULES), list(RULES.values()))
                self.trace.append(rule)
                getattr(self, rule)()
            self.converge()
        except BaseException:
            print(f"after {len(self.trace)} steps, the last of which: {', '.join(self.trace[-40:])}")
            raise

    def converge(self):
        """A last word of everybody, and then ticks alone."""
        for run_id in list(self.running):
            self.end(run_id, "good")
        self.release_all()
        for key in KEYS:
            self.daemon.write("raw", pa.table({"n": [-1]}), key)
        self.daemon.write("rates", pa.table({"n": [-2]}))
        self.far.table("rates").write(pa.table({"n": [-3]}))
        while self.files != set(KEYS):
            self.make_files()
        for _ in range(30):
            heads = {name: self.heads(name, self.view(is_young=False)) for name in IS_PARTED}
            for name in CHECKED:
                known = {self.verdict(name, key, head) for key, head in heads[name].items()}
                if known - {True}:
                    self.check(name, passed=True)
            self.tick(is_young=False)
            for run_id in list(self.running):
                self.end(run_id, "good")
            if not any(self.is_stale(name, key, heads) for name, key in CELLS):
                break
        assert not any(self.is_stale(name, key, heads) for name, key in CELLS)
        counted = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        print(f"{len(self.trace)} steps, {len(set(self.states))} states were run once each: {counted}")


@pytest.fixture
def set_patience(monkeypatch):
    """Sets how long a tick leaves a mark alone."""
    monkeypatch.setattr(blocking_checks, "MADE_AGAIN", 10_000)
    return lambda patience: monkeypatch.setattr(heads, "RESOLVE_AFTER", patience)


@has_partitioned_checks
@pytest.mark.parametrize("seed", [1])
def test_a_short_random_walk_converges(daemon, set_patience, seed):
    Walk(daemon, seed, set_patience).go(40)


@has_partitioned_checks
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [11])
def test_a_long_random_walk_converges(daemon, set_patience, seed):
    Walk(daemon, seed, set_patience).go(1000)
