"""What there is by the documentation, whatever is run, checked, published, dropped and written.

It knows the pages on publication and the graph by heart; where the pages say nothing, what the package does.
"""

from dataclasses import dataclass, field

from support.publication_house import (
    ABOVE,
    ADDS,
    AT_ONCE,
    CANNOT_WAIT,
    INTERRUPTED,
    KEYS,
    PARTED,
    SOURCES,
    STEPS,
    is_good,
)


@dataclass(frozen=True)
class Version:
    """Two are the same if they say the same. Of all partitions as one, ``parents`` are the versions of each."""

    table: str
    key: str | None
    rows: tuple[int, ...]
    parents: frozenset["Version"] = frozenset()


@dataclass(eq=False)
class Run:
    plan: tuple[str, ...]
    steps: set[str]
    keys: tuple[str, ...] = ()
    seen: "Run | None" = None
    parent: "Run | None" = None
    backfill: str | None = None
    id: str = ""
    succeeded: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Draft:
    """``versions`` are what replaces the heads that it ``saw``; of rows that are added, these alone."""

    run: Run
    name: tuple[str, str, str]
    versions: dict[str | None, Version]
    saw: dict[str | None, Version | None]
    upon: frozenset[tuple[str, str, str]]
    standing: str = "parked"

    @property
    def table(self):
        return self.name[0]

    @property
    def is_living(self):
        return self.standing in ("parked", "failed")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a run that executes a check found: nothing where it did not come to an end. ``at`` is the head then."""

    run: Run
    keys: frozenset[str | None]
    of: dict[Draft, set[str | None]]
    passed: bool | None
    at: Version | None


class Oracle:
    """What there is by the documentation, after all that was done."""

    def __init__(self):
        self.heads = {name: {} for name in ABOVE}  # by partition
        self.committed = set()  # every version that was current once
        self.drafts = {}  # by table, first run and step; the one that was parked last comes last
        self.published = {}  # by the names of drafts, whether these are kept or not: what they came to
        self.evaluations = {name: [] for name in SOURCES}

    def commit(self, table, versions):
        self.heads[table].update(versions)
        self.committed |= set(versions.values())
        if table == "parts":
            self.committed.add(Version(table, None, (), frozenset(self.heads[table].values())))

    def living(self, *tables):
        return [draft for draft in self.drafts.values() if draft.is_living and draft.table in (tables or ABOVE)]

    # Who sees what

    def chain(self, run):
        """The runs that one goes on with, each with the steps that were executed again since."""
        current, again = run, frozenset()
        while current is not None:
            yield current, again
            current, again = current.parent, again | current.steps
        if run.seen is not None:
            yield from self.chain(run.seen)

    def goes_on_with(self, run, draft):
        return any(one is draft.run and draft.name[2] not in again for one, again in self.chain(run))

    def view(self, run, table):
        """The versions that a run sees by partition, each with the draft that it is of."""
        seen = {key: (head, None) for key, head in self.heads[table].items()}
        for draft in self.living(table):
            is_mate = run.backfill is not None and draft.run.backfill == run.backfill
            is_before = any(draft.run is one for one, _ in self.chain(run))
            if not (self.goes_on_with(run, draft) if is_before else is_mate):
                continue
            if table in ADDS:
                seen[None] = self.added(table, draft.versions[None]), draft
            elif self.fits(draft):
                news = draft.versions.items() - self.heads[table].items()  # what is current by now is read as that
                seen.update({key: (version, draft) for key, version in news})
        return seen

    def added(self, table, batch):
        head = self.heads[table].get(None)
        return Version(table, None, tuple(sorted((*(head.rows if head else ()), *batch.rows))), batch.parents)

    def fits(self, draft):
        heads = self.heads[draft.table]
        return all(heads.get(key) in (draft.saw[key], version) for key, version in draft.versions.items())

    # What checks say

    def hindrance(self, draft):
        """How a draft stands that its checks do not let pass; ``None`` of others."""
        if draft.name[2] not in draft.run.succeeded:
            return "failed"
        left = set(draft.versions) if draft.table in SOURCES else set()
        for found in reversed(self.evaluations.get(draft.table, ())):
            if not self.goes_on_with(found.run, draft):
                continue
            of = left & (found.keys if found.passed is None else found.of.get(draft, set()))
            if of and not found.passed:
                return "failed"
            if of and draft.table == "ledger" and found.at != self.heads["ledger"].get(None):
                return "parked"
            left -= of
        return "failed" if left else None

    # Publishing

    def publish(self, drafts, is_judged):
        """The drafts that are published, superseded, and that wait."""
        done, was = {"published": [], "superseded": []}, None
        while was != (was := [draft for draft in drafts if draft.is_living]):
            for draft in was:
                hindrance = self.hindrance(draft) if is_judged else None
                if hindrance is not None:
                    draft.standing = hindrance
                elif (standing := self.fate(draft)) == "waits":
                    draft.standing = "parked"
                else:
                    draft.standing = standing
                    done[standing].append(draft)
                    if standing == "published":
                        self.make_current(draft)
        return [*done.values(), [draft for draft in drafts if draft.is_living]]

    def make_current(self, draft):
        versions = draft.versions
        if draft.table in ADDS:
            versions = {None: self.added(draft.table, versions[None])}
        self.published[draft.name] = versions
        self.commit(draft.table, versions)

    def fate(self, draft):
        """What becomes of a draft whose checks have passed: it may be published only as it was built."""
        above = [self.drafts.get(name) for name in draft.upon if name not in self.published]
        parents = {parent for version in draft.versions.values() for parent in version.parents}
        if any(one is None or one.standing == "superseded" for one in above):
            return "superseded"
        if any(one.is_living for one in (self.drafts.get(name) for name in draft.upon) if one is not None):
            return "waits"
        is_sound = parents <= self.committed and (draft.table in ADDS or self.fits(draft))
        return "published" if is_sound else "superseded"


class Foreseen:
    """What a run does by the oracle: what its steps read, make, and cannot do."""

    def __init__(self, oracle, hand, run, interrupt):
        self.oracle, self.hand, self.run, self.interrupt = oracle, hand, run, interrupt
        self.read, self.made, self.refused = {}, {}, {}
        for name in ABOVE:
            if run.steps & {*STEPS[name]} and self.is_ready(ABOVE[name]):
                self.step(name)
            if f"{name}_good" in run.steps:
                self.check(name)

    def is_ready(self, tables):
        before = {step for table in tables for step in (*STEPS[table], f"{table}_good")}
        return before & self.run.steps <= self.run.succeeded

    def fail(self, step, why=""):
        self.run.failed.add(step)
        self.refused |= {step: why} if why else {}

    def note(self, name, versions):
        self.read.setdefault(name, []).extend(version.rows for version in versions)

    def step(self, name):
        if name in SOURCES:
            keys = self.run.keys if name in PARTED else (None,)
            self.store(name, {key: Version(name, key, self.hand.given[name][key]) for key in keys}, frozenset())
            return
        looks = self.looks(name)
        if any(look is None for look in looks):
            self.fail(STEPS[name][0])
            return
        versions = [version for version, _ in looks]
        upon = frozenset(draft.name for _, draft in looks if draft is not None)
        self.note(name, versions)
        if name == "below":
            self.store(name, {one.key: Version(name, one.key, one.rows, frozenset([one])) for one in versions}, upon)
            return
        found = tuple(sorted(number for version in versions for number in version.rows))
        above = frozenset(versions)
        if name == "total":
            found, above = (sum(found),), frozenset([Version("parts", None, (), above)])
        self.store(name, {None: Version(name, None, found, above)}, upon)

    def looks(self, name):
        """Each look at a table that a step takes: what it sees, and the draft that it is of."""
        view = self.oracle.view(self.run, ABOVE[name][0])
        looks = [view.get(key) for key in {"below": self.run.keys, "total": KEYS}.get(name, (None,))]
        if name in INTERRUPTED and looks[0] is not None:
            self.interrupt()
            # What is of a log is read as it was at first; a draft may be another version since, or none.
            looks += looks if looks[0][1] is None else [self.oracle.view(self.run, "single").get(None)]
        if name == "loads":
            looks.append(self.oracle.view(self.run, "log").get(None))
        return looks

    def store(self, name, versions, upon):
        """Park what a step made, or make it current at once."""
        oracle, step = self.oracle, STEPS[name][-1]
        draft, heads = (name, self.first(step), step), oracle.heads[name]
        if upon and name in CANNOT_WAIT:
            self.fail(step, "which is parked as the draft")
            return
        made = {None: oracle.added(name, versions[None])} if name in ADDS else versions
        done = oracle.published.get(draft, {})  # what an earlier attempt at the step came to, which is not done again
        news = {
            key: version
            for key, version in versions.items()
            if name in ADDS or version not in (heads.get(key), done.get(key))
        }
        if name in ADDS and done:
            made = done
        elif name in AT_ONCE and not upon:
            oracle.commit(name, made)
            oracle.published[draft] = made
        elif news:
            for known in (oracle.drafts, oracle.published):
                known.pop(draft, None)  # of an earlier attempt
            oracle.drafts[draft] = Draft(self.run, draft, news, {key: heads.get(key) for key in news}, upon)
        self.made |= {(name, key): version for key, version in made.items()}
        if name in self.hand.fails:
            self.fail(step)
        else:
            self.run.succeeded |= {*STEPS[name]} & self.run.steps

    def first(self, step):
        """The first of the runs that are attempts at one step."""
        first = run = self.run
        while (run := run.parent) is not None and step not in run.succeeded:
            first = run if step in run.failed else first
        return first.id

    def check(self, name):
        step, view, keys = f"{name}_good", self.oracle.view(self.run, name), self.run.keys or (None,)
        keys = keys if name in PARTED else (None,)
        of, passed = {}, None
        if self.is_ready_to_check(name):
            if all(key in view for key in keys):
                for key in keys:
                    of.setdefault(view[key][1], set()).add(key)
                versions = [view[key][0] for key in keys]
                self.note(f"check of {name}", versions)
                if not self.hand.crashes:
                    passed = self.hand.is_lenient or all(is_good(version.rows) for version in versions)
            (self.run.succeeded if passed else self.run.failed).add(step)
        at = self.oracle.heads[name].get(None)
        self.oracle.evaluations[name].append(Evaluation(self.run, frozenset(keys), of, passed, at))

    def is_ready_to_check(self, name):
        return {*STEPS[name]} & self.run.steps <= self.run.succeeded
