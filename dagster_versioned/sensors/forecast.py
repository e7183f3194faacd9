"""What would run and why, before anything runs: the sensors' own judgement, of all assets and beyond the next tick."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, cast

import dagster as dg

from dagster_versioned.assets.asset_code import made_by
from dagster_versioned.assets.graph.inputs import plain
from dagster_versioned.assets.reuse.foreseen import ForeseenReuse
from dagster_versioned.dagster_internals import AssetGraph, is_in_user_code
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.identity.names import PRODUCTION
from dagster_versioned.identity.version import Code, Scope
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import SHORT, StaleCell
from dagster_versioned.sensors.blocking_checks import BlockingChecks
from dagster_versioned.sensors.condition import VersionChanged
from dagster_versioned.sensors.external import ExternalHeads
from dagster_versioned.sensors.graph import Member, Unit, all_units_of
from dagster_versioned.sensors.judgement import Rules, is_in_scope, judge
from dagster_versioned.sensors.plan import ABOUT_TO_CHANGE, Cell, Decision, Standing
from dagster_versioned.sensors.runs import RunsInProgress, RunsTried
from dagster_versioned.sensors.tick import oldest
from dagster_versioned.sensors.valueless import planned_and_done
from dagster_versioned.sensors.version_sensor import CHECKS_KEY, CODE_KEY, ON_KEY
from dagster_versioned.sensors.watch import Watch
from dagster_versioned.tables.code_details import compare_codes
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.history import Version

Condition = dg.AutomationCondition[Any]

What = Literal["runs", "new", "may run", "waits", "blocked"]
"""What becomes of a table or partition that is not current, or may not stay so: it runs; it runs and has no version
yet; an upstream runs, and may have another version then; it runs once an upstream or a run in progress is done;
something must change first."""


@dataclass(frozen=True, slots=True)
class ForecastEntry:
    """A table, or a partition of one, that is not left as it is.

    ``sensors`` are the names of those that would request it. ``rows`` and ``size_bytes`` are of the version that is
    there now, ``None`` where there is none. ``reused`` is the version that a `versioned_asset` would keep, or make
    current again, instead of being computed, where that is known.
    """

    asset: str
    project: str
    table: str
    partition: str | None
    what: What
    why: str
    sensors: tuple[str, ...]
    rows: int | None
    size_bytes: int | None
    reused: str | None = None


@dataclass(frozen=True)
class Forecast:
    """All that would run or is kept from it, upstream first, and what the rest is.

    ``environment`` is where, ``current`` how many tables and partitions stay as they are, ``left`` how many were not
    current when the environment began, and not because of it, ``uncoded`` the assets without a code version whose code
    nobody can compare, ``changed_code`` what has changed of the code of others, by asset, ``unlisted`` those that have
    partitions of which none is known, ``unasked`` those with a condition of `version_changed` that no sensor evaluates.
    """

    projects: tuple[str, ...]
    environment: str
    cells: tuple[ForecastEntry, ...]
    current: int
    left: int
    uncoded: tuple[str, ...]
    changed_code: Mapping[str, str]
    unlisted: tuple[str, ...]
    unasked: tuple[str, ...]

    @property
    def would_run(self) -> bool:
        """Whether something would run."""
        return any(cell.what != "blocked" for cell in self.cells)


def forecast(
    repositories: Sequence[dg.RepositoryDefinition],
    *,
    instance: dg.DagsterInstance | None = None,
    environment: str | None = None,
    scope: Scope = "changed",
) -> Forecast:
    """What would run of code locations, as their sensors judge it, and what nobody watches; writes nothing.

    ``instance`` knows dynamic partitions, runs and checks; without it, none are looked at. ``environment`` is where
    the definitions are to write; with the ``scope`` "all", what was not current when it began counts as well. Raises
    `InvalidInput` where they write elsewhere or make no versioned table, where two of them have one asset or depend on
    each other in a circle, and what opening a project does.
    """
    with ExitStack() as opened:
        known = instance or opened.enter_context(dg.DagsterInstance.ephemeral())
        units = _units(repositories, known)
        where = {_environment(member.place.project) for unit in units for member in unit.members}
        _require_tables(where, environment)
        requesters = [asks for repository in repositories for asks in _requesters(repository, units, scope)]
        runs = RunsInProgress(known, *repositories)  # before the heads, see there
        ahead = _Ahead(units, requesters, scope, known)
        stands = ahead.stands(runs, None if instance is None else BlockingChecks())
        return _presented(repositories, ahead, stands, where, known)


def _presented(
    repositories: Sequence[dg.RepositoryDefinition],
    ahead: "_Ahead",
    stands: "Sequence[Mapping[str | None, _UnitForecast]]",
    where: Collection[str],
    instance: dg.DagsterInstance,
) -> Forecast:
    reuse: dict[dg.AssetKey, ForeseenReuse] = {}
    for repository in repositories:
        reuse |= dict.fromkeys(_made_by(repository), ForeseenReuse(repository.asset_graph, instance))
    cells = tuple(entry for number in range(len(stands)) for entry in ahead.foreseen(number, stands[number], reuse))
    members = [(unit, member) for unit in ahead.units for member in unit.members]
    codes = ahead.code_changes([repository.asset_graph for repository in repositories])
    return Forecast(
        projects=tuple(sorted({member.place.key[0] for _, member in members})),
        environment=", ".join(sorted(where)),
        cells=cells,
        current=sum(len(_cells(unit)) for unit, _ in members) - len(cells) - ahead.left,
        left=ahead.left,
        uncoded=tuple(name for name, change in codes.items() if change is None),
        changed_code={name: change for name, change in codes.items() if change},
        unlisted=tuple(member.key.to_user_string() for unit, member in members if not _cells(unit)),
        unasked=tuple(key for repository in repositories for key in _unasked(repository)),
    )


def _units(repositories: Sequence[dg.RepositoryDefinition], instance: dg.DagsterInstance) -> list[Unit]:
    units = [
        unit
        for repository in repositories
        for unit in all_units_of(repository.asset_graph, _made_by(repository), instance)
    ]
    return _in_order(units) if len(repositories) > 1 else units


def _require_tables(where: Collection[str], environment: str | None) -> None:
    """Raise `InvalidInput` unless there are tables, written in these environments, and all are in the one asked for."""
    if not where:
        raise InvalidInput(
            "The definitions make no versioned table. Nothing was looked at. Give their assets a "
            "VersionedParquetIOManager, and name the module that Dagster loads."
        )
    if environment is not None and (elsewhere := sorted({*where} - {environment})):
        raise InvalidInput(
            f"The definitions write to {', '.join(elsewhere)}, not to {environment}. Nothing was looked at. State "
            'environment=EnvVar("DAGSTER_VERSIONED_ENVIRONMENT") in their ProjectResource.'
        )


@dataclass(frozen=True)
class _Requester:
    """A sensor: the units that it watches, by number, and what counts to it."""

    name: str
    units: frozenset[int]
    rules: Rules
    wait_for_checks: bool


@dataclass(frozen=True, slots=True)
class _UnitForecast:
    what: What
    why: str


class _Ahead:
    """A look at everything, that writes nothing; and what comes of it once upstreams have run."""

    def __init__(
        self, units: Sequence[Unit], requesters: Sequence[_Requester], scope: Scope, instance: dg.DagsterInstance
    ) -> None:
        self.units = units
        self._requesters = requesters
        self._instance = instance
        self._strict = {number for asks in requesters if asks.rules.on_code_version for number in asks.units}
        self._unit_of = {key: number for number, unit in enumerate(units) for key in unit.keys}
        self._by = cache(self._judged_by)
        self._watch = Watch(units, Rules(on_code_version=True, scope=scope), brings_heads_up=False)
        self._seen = self._watch.seen
        self._watch.look(instance, all_promotions=True)
        self.left = 0
        """How many tables and partitions were not current when their environment began, and are not in scope."""
        self._stale = dict(self._findings())
        self._moving: dict[dg.AssetKey, set[str | None]] = {}

    def _judged_by(self, number: int, rules: Rules) -> Mapping[str | None, StaleCell]:
        return judge(self._seen, self.units[number], None, rules)[0]

    def _findings(self) -> Iterator[tuple[Cell, StaleCell]]:
        """What is not current, upstream first, and what has no version and no upstream."""
        for number, unit in enumerate(self.units):
            known, left = self._watch.findings_of(number), self._watch.left[number]
            for cell in _cells(unit):
                found = known.get(cell) or left.get(cell)
                stale = self._first(unit, cell) if found is None else self._counted(number, found)
                if stale is None:
                    continue
                if cell in known or (found is None and is_in_scope(self._seen, unit, cell, self._watch.rules.scope)):
                    yield (unit.name, cell), stale
                else:
                    self.left += len(unit.members)

    def stands(self, runs: RunsInProgress, checks: BlockingChecks | None) -> list[dict[str | None, _UnitForecast]]:
        """For each unit what becomes of its partitions; those that stay as they are are left out."""
        ended = RunsTried()
        ended.begin(oldest(self._stale))

        def tried(cell: Cell, finding: StaleCell) -> Decision | None:
            return ended.tried(self._instance, cell[0], finding.state)

        decisions = self._watch.decide(self._stale, runs, tried, checks)
        for asks in self._requesters:
            decided = self._watch.decide(
                dict(self._seen_by(asks)), runs, tried, checks if asks.wait_for_checks else None
            )
            own = {self.units[number].name for number in asks.units}
            # A sensor that does not watch the upstream does not wait for it.
            decisions |= {
                cell: decision
                for cell, decision in decided.items()
                if decision.standing == "ready" and cell[0] in own and cell in decisions
            }
        return [self._of_unit(number, decisions) for number in range(len(self.units))]

    def foreseen(
        self, number: int, stands: Mapping[str | None, _UnitForecast], reuse: Mapping[dg.AssetKey, ForeseenReuse]
    ) -> Iterator[ForecastEntry]:
        """The tables of a unit with what becomes of them."""
        unit = self.units[number]
        reused = {cell: _kept(unit, cell, reuse) for cell, stand in stands.items() if stand.what in ("runs", "new")}
        for member in unit.members if stands else ():
            versions = self._versions(member)
            for cell in _cells(unit):
                if (stand := stands.get(cell)) is not None:
                    version = versions.get(member.own_cell(cell))
                    raw = version.raw if version is not None else None
                    kept = reused.get(cell, {}).get(member.key)
                    yield ForecastEntry(
                        asset=member.key.to_user_string(),
                        project=member.place.key[0],
                        table=str(member.place.table),
                        partition=cell,
                        what=stand.what,
                        why=stand.why if kept is None else f"{stand.why}; reused from version {kept[:SHORT]}",
                        reused=kept,
                        sensors=tuple(self._sensors(number, cell, stand)),
                        rows=None if raw is None else raw["identity"]["nrow"],
                        size_bytes=None if raw is None else raw["facts"]["size_bytes"],
                    )

    def _sensors(self, number: int, cell: str | None, stand: _UnitForecast) -> Iterator[str]:
        for asks in self._requesters:
            if number in asks.units and (stand.what == "may run" or cell in self._by(number, asks.rules)):
                yield asks.name

    def code_changes(self, graphs: Sequence[AssetGraph]) -> dict[str, str | None]:
        """What has changed of the code of assets without a code version since their newest versions; empty where
        nothing has, or there is none, ``None`` where nobody knows."""
        members = [member for unit in self.units for member in unit.members if member.code_version is None]
        return {member.key.to_user_string(): self._code_change(member, graphs) for member in members}

    def _code_change(self, member: Member, graphs: Sequence[AssetGraph]) -> str | None:
        (assets,) = [graph.get(member.key).assets_def for graph in graphs if graph.has(member.key)]
        made = made_by(assets)
        if made is None or made[0].opaque:
            return None
        heads = self._seen.table(member.place, None)
        newest = heads.whole or max(heads.partitions.values(), key=lambda head: head.log_version, default=None)
        if newest is None:
            return ""
        if newest.code is None or isinstance(member.place.project, ExternalTable):
            return None
        store = member.place.project.table(member.place.table).store
        change = compare_codes(store, Code.from_json(newest.code), *made)
        return "" if change is None else str(change)

    def _seen_by(self, asks: _Requester) -> Iterator[tuple[Cell, StaleCell]]:
        numbers = set(asks.units)
        for number in reversed(range(len(self.units))):
            if number in numbers:  # as are those that make the values which it is built from
                values = [value.upstream for member in self.units[number].members for value in member.values]
                numbers |= {self._unit_of[key] for key in values if key in self._unit_of}
        for number in sorted(numbers):
            for cell, finding in self._by(number, asks.rules).items():
                yield (self.units[number].name, cell), finding

    def _versions(self, member: Member) -> Mapping[str | None, Version]:
        heads, source = self._seen.table(member.place, None), self._seen.heads[id(member.place.project)]
        if isinstance(source, ExternalHeads) or (heads.whole is None and not heads.partitions):
            return {}
        try:
            return source.table(member.place.table).state.history.heads
        except VersionedError:
            return {}  # its heads were read, so what is there was judged

    def _counted(self, number: int, finding: StaleCell) -> StaleCell | None:
        """A finding without what says nothing: code that states no version, unless a sensor counts it."""
        changes = tuple(each for each in finding.changes if each.upstream is not None or each.after is not None)
        if number in self._strict or changes == finding.changes:
            return finding
        return replace(finding, changes=changes) if changes or finding.is_new or finding.unreadable else None

    def _first(self, unit: Unit, cell: str | None) -> StaleCell | None:
        for member in unit.members:
            if member.key in unit.skippable and planned_and_done(self._instance, member.key, cell) is not None:
                continue
            heads = self._seen.table(member.place, None)
            # A table without partitions, whatever its asset has, is that of a history of events.
            is_whole = heads.whole is not None and not heads.partitions
            if not is_whole and heads.cell(member.own_cell(cell)) is None:
                return StaleCell((), True, "", None, None, "", "")
        return None

    def _of_unit(self, number: int, decisions: Mapping[Cell, Decision]) -> dict[str | None, _UnitForecast]:
        unit = self.units[number]
        cells = frozenset(_cells(unit))
        decided = {cell: decisions[unit.name, cell] for cell in _cells(unit) if (unit.name, cell) in decisions}
        stands = {cell: _stand(self._stale[unit.name, cell], decision) for cell, decision in decided.items()}
        moving = {cell for cell, decision in decided.items() if decision.standing in ABOUT_TO_CHANGE}
        self._moving |= dict.fromkeys(unit.keys, moving)
        touched = self._below(unit, cells, self._moving)
        while touched := {cell: name for cell, name in touched.items() if cell not in moving}:
            changed = self._once_moved(unit, touched, decided)
            moved = {cell for cell, stand in changed.items() if stand.what != "blocked"}
            stands |= changed
            moving |= moved
            touched = self._below(unit, cells, dict.fromkeys(unit.keys, moved)) if moved else {}
        return stands

    def _once_moved(
        self, unit: Unit, touched: Mapping[str | None, str], decided: Mapping[str | None, Decision]
    ) -> dict[str | None, _UnitForecast]:
        """What becomes of partitions once the upstreams that touch them have run, where that is something else."""
        absent = {cell for cell in touched if cell in decided and decided[cell].standing == "absent"}
        # What they still lack when everything above that is about to be made is there.
        found = judge(self._seen, unit, absent, self._watch.rules, self._moving)[0] if absent else {}
        stands: dict[str | None, _UnitForecast] = {}
        for cell, name in touched.items():
            if cell not in decided:
                stands[cell] = _UnitForecast("may run", f"unknown until {name} has run")
                continue
            finding = self._stale[unit.name, cell]
            if cell in found and found[cell].absent:
                stands[cell] = _stand(finding, replace(decided[cell], because=found[cell].absent))
            elif decided[cell].standing in ("absent", "tried", "made", "behind", "unchecked"):
                stands[cell] = _stand(finding, Decision("waiting", name))
        return stands

    def _below(
        self, unit: Unit, cells: frozenset[str | None], moving: Mapping[dg.AssetKey, set[str | None]]
    ) -> dict[str | None, str]:
        """Of the cells of a unit those that are built from any that are about to change, with the name of the first."""
        found: dict[str | None, str] = {}
        for member in unit.members:
            for edge in member.edges:
                above = None if edge.is_elsewhere else moving.get(edge.upstream)
                if above and edge.pinned is None and not edge.is_own:
                    touched = self._seen.touched(member, edge, {cell for cell in above if cell is not None})
                    for cell in cells if touched is None else cells & touched:
                        found.setdefault(cell, edge.upstream.to_user_string())
        return found


def _cells(unit: Unit) -> Sequence[str | None]:
    """The partitions of a unit, in order."""
    return [None] if unit.partitions is None else list(unit.partitions.order)


_STANDINGS: Mapping[Standing, tuple[What, str]] = {
    "waiting": ("waits", "after {}"),
    "running": ("waits", "{} is under way"),
    "absent": ("blocked", "no version of {}"),
    "tried": ("blocked", "{}, was for just this"),
    "made": ("blocked", "{}, was for just this"),
    "behind": ("blocked", "reads a value that is not current, {}"),
    "unchecked": ("blocked", "{}"),
    "held": ("blocked", "{}"),
    "unreadable": ("blocked", "{}"),
}
"""What becomes of what does not run, and how what keeps it from that is said."""


def _stand(finding: StaleCell, decision: Decision) -> _UnitForecast:
    """What becomes of a cell that is not current, in the words of the finding and what keeps it from running."""
    own = finding.why if finding.changes else "no version" if finding.is_new else ""
    if decision.standing == "ready":
        return _UnitForecast("new" if finding.is_new else "runs", own)
    what, said = _STANDINGS[decision.standing]
    kept = said.format(decision.because)
    return _UnitForecast(what, f"{own}; {kept}" if own else kept)


def _kept(unit: Unit, cell: str | None, reuse: Mapping[dg.AssetKey, ForeseenReuse]) -> Mapping[dg.AssetKey, str | None]:
    """The versions that a step would keep or make current again; none unless that is all of its outputs."""
    found = {key: reuse[key].version(key, cell) if key in reuse else None for key in unit.keys}
    if any(version is None for version in found.values()):
        return {}
    return {key: version.metadata_sha for key, version in found.items() if version is not None}


def _made_by(repository: dg.RepositoryDefinition) -> Collection[dg.AssetKey]:
    return repository.asset_graph.materializable_asset_keys


def _by_key(units: Iterable[Unit]) -> dict[dg.AssetKey, Unit]:
    found: dict[dg.AssetKey, Unit] = {}
    for unit in units:
        for key in unit.keys:
            if key in found:
                raise InvalidInput(
                    f"Two code locations define the asset {key.to_user_string()}. Nothing was looked at. Name those "
                    "that Dagster loads, each once."
                )
            found[key] = unit
    return found


def _in_order(units: Iterable[Unit]) -> list[Unit]:
    by_key = _by_key(units)
    above = {
        unit: [by_key[edge.upstream] for member in unit.members for edge in member.edges if edge.upstream in by_key]
        for unit in by_key.values()
    }
    try:
        return list(TopologicalSorter({unit: {*some} - {unit} for unit, some in above.items()}).static_order())
    except CycleError as error:
        circle: list[Unit] = error.args[1]
        raise InvalidInput(
            f"Assets of several modules depend on each other in a circle: {', '.join(unit.name for unit in circle)}. "
            "Nothing was looked at. Ask for one module at a time."
        ) from error


def _requesters(repository: dg.RepositoryDefinition, units: Sequence[Unit], scope: Scope) -> Iterator[_Requester]:
    """The sensors of a code location that request what is not current, by themselves or as conditions say."""
    graph = repository.asset_graph
    own = {key: number for number, unit in enumerate(units) if unit.is_watched for key in unit.keys if graph.has(key)}
    for sensor in repository.sensor_defs:
        if sensor.asset_selection is None:
            continue
        keys = [key for key in sensor.asset_selection.resolve(graph) if key in own and graph.get(key).is_materializable]
        by_rules: dict[tuple[Rules, bool], set[int]] = {}
        for key in keys:
            for rules, waits in _rules_of(sensor, graph, key, scope):
                by_rules.setdefault((rules, waits), set()).add(own[key])
        for (rules, waits), numbers in by_rules.items():
            yield _Requester(sensor.name, frozenset(numbers), rules, waits)


def _rules_of(
    sensor: dg.SensorDefinition, graph: AssetGraph, key: dg.AssetKey, scope: Scope
) -> Iterator[tuple[Rules, bool]]:
    """What counts to a sensor of one asset, and whether it waits for checks: as the asset's conditions say, or it."""
    if isinstance(sensor, dg.AutomationConditionSensorDefinition):
        for condition in _conditions(graph, key) if is_in_user_code(sensor) else ():
            yield Rules(condition.on, condition.on_code_version, scope), condition.wait_for_checks
    elif (on := plain(sensor.metadata, ON_KEY)) is not None:
        codes, checks = (bool(plain(sensor.metadata, name)) for name in (CODE_KEY, CHECKS_KEY))
        yield Rules(on, codes, scope), checks


def _unasked(repository: dg.RepositoryDefinition) -> list[str]:
    """The assets with a condition of ours that no sensor in user code evaluates; Dagster's daemon cannot."""
    graph = repository.asset_graph
    selections = [
        sensor.asset_selection
        for sensor in repository.sensor_defs
        if isinstance(sensor, dg.AutomationConditionSensorDefinition) and is_in_user_code(sensor)
    ]
    asked = {key for selection in selections for key in selection.resolve(graph)}
    unasked = sorted(graph.materializable_asset_keys - asked)
    return [key.to_user_string() for key in unasked if _conditions(graph, key)]


def _conditions(graph: AssetGraph, key: dg.AssetKey) -> list[VersionChanged]:
    """Ours among those that the condition of an asset is made of."""
    found: list[VersionChanged] = []
    conditions = [cast("Condition | None", graph.get(key).automation_condition)]
    for condition in conditions:  # which grows by what they are made of
        if isinstance(condition, VersionChanged):
            found.append(condition)
        conditions += cast("Sequence[Condition]", condition.children) if condition is not None else ()
    return found


def _environment(project: Project | ExternalTable) -> str:
    environment = None if isinstance(project, ExternalTable) else project.environment
    return PRODUCTION if environment is None else environment.name
