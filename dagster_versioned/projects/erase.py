"""Erasing rows, such as all that is known of a person, from every version of tables that is kept.

What stands for the parts that had them is written and read back first; then one document says so for all tables, each
table's log names it, the parts are deleted, and the log loses what it told of them. A run that died is finished by the
next one. The condition, and the values in it, are written nowhere.
"""

import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_versioned.engines.samples import SYSTEM_COLUMNS
from dagster_versioned.engines.sql import Names
from dagster_versioned.errors import CommitConflict, IntegrityError, InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.configuration import CHANGE_FEED, constraints_of, is_set
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.parked_draft import forget_bounds
from dagster_versioned.tables.erased_parts import ERASE, Erasure, ErasureName, Identity, TableErasure, VersionKey
from dagster_versioned.tables.erasure.commit import ErasureCommit
from dagster_versioned.tables.erasure.find import Condition, FoundRows, KeptPart, find_keys, find_rows, kept_parts
from dagster_versioned.tables.erasure.forks import (
    forks_of,
    redaction_of_fork,
    refuse_written,
    refuse_written_fork,
    unless_dropped,
)
from dagster_versioned.tables.erasure.redact import Redaction, put_entries, redact_log, redacted_entries
from dagster_versioned.tables.erasure.substitute import Change, substitutes
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.history import is_data_key
from dagster_versioned.tables.maintenance.collect import Collector
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import objects_of, parts_of
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.rename import ended_logs, former_files
from dagster_versioned.tables.table import VersionedTable, open_table
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.drop import refuse_dropped, refuse_held
from dagster_versioned.tables.write.stage import staging_folder
from dagster_versioned.tables.write.table_actions import refuse_left

if TYPE_CHECKING:
    from dagster_versioned.delta.actions import Add
    from dagster_versioned.tables.state import TableState

_PASSES = 20
_AT_ONCE = {4: 8 << 20, 2: 64 << 20, 1: 1 << 62}
"""How many parts are rewritten at once, by the most bytes that each has: their rows are in memory."""

Progress = Callable[[int, int], None]
"""Called with (done, total) parts that were searched."""


class UnknownKey(InvalidInput):
    """The condition is true of no row, so that no key names any."""


@dataclass(frozen=True)
class ErasedTable:
    """What is, or would be, erased from one table: ``rows`` (or columns of them) in ``parts``, and how many versions
    had any of them; ``current_rows`` of the current versions.

    ``unclaimed`` counts files that no version needs, in which nobody looked.
    """

    name: str
    rows: int
    parts: int
    versions: int
    size_bytes: int
    unclaimed: int
    current_rows: int


@dataclass(frozen=True)
class EraseReport:
    """What was, or (dry run) would be, erased; ``epochs`` are the numbers of the erasures that it took.

    ``downstream`` are the other tables of the project with kept versions that were built from these, directly or not:
    nobody looked into them.
    """

    dry_run: bool
    tables: tuple[ErasedTable, ...]
    downstream: tuple[str, ...]
    epochs: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows, in all tables."""
        return sum(table.rows for table in self.tables)


def erase(
    project: ProjectContext,
    condition: Condition,
    names: Sequence[str],
    why: str,
    by: str | None,
    *,
    dry_run: bool,
    all_rows: bool = False,
    downstream: bool = False,
    progress: Progress | None = None,
) -> EraseReport:
    """Erase the rows of which a condition is true from every kept version of tables; the versions keep their names.

    Their heads become new versions. With ``downstream``, of tables too that were computed from these, directly or not,
    and have the columns of the condition. Raises `InvalidInput` for a condition that cannot be evaluated, that is true
    of every row (unless ``all_rows``), or that names a partition column; for a table that an environment wrote, or that
    has a change feed; `UnsupportedFeature` for one that was left; `HeldHead`, `IntegrityError`: nothing was erased
    then. `CommitConflict` where other writers bring the rows again and again.
    """
    if not why.strip():
        raise InvalidInput("An erasure needs a reason, which its record keeps: why='…'. Nothing was erased.")
    names = [names] if isinstance(names, str) else names
    if not names or len({*names}) < len(names):
        raise InvalidInput("Name the tables to erase from, each once. Nothing was erased.")
    tables = [open_table(project, name) for name in names]
    if downstream:
        computed = [open_table(project, name) for name in computed_from(project, names)]
        tables += [table for table in computed if _has_columns(table, condition)]
    if len({*condition.key}) < len(condition.key):
        raise InvalidInput("Name each column of the key once. Nothing was erased.")
    for table in tables:
        _require_free(table, condition.set_null)
    collectors = {table: table.operations.collector() for table in tables}
    for table in tables:
        require("erase", project, table, dry_run=dry_run)
        _require_possible(project, table, collectors[table])
    erasing = _Erasing(project, condition, collectors, why, by, all_rows, progress)
    return erasing.preview() if dry_run else erasing.apply()


def _require_free(table: VersionedTable, columns: Sequence[str]) -> None:
    """Raise where columns cannot be set to null in a table: none of it has one, or a constraint names one."""
    if not columns:
        return
    snapshot = table.state.snapshot
    if lacking := sorted({*columns} - {*snapshot.schema.names}):
        raise InvalidInput(
            f"{table.name} has no column {lacking[0]!r}; its columns are {', '.join(map(repr, snapshot.schema.names))}."
            " Nothing was erased."
        )
    records = (FeatureRecord.of(version.identity.custom) for version in table.state.history.heads.values())
    of_samples = {*SYSTEM_COLUMNS, *chain.from_iterable(record.ids for record in records if record is not None)}
    if meant := sorted(of_samples & {*columns}):
        raise InvalidInput(
            f"The column {meant[0]!r} of {table.name} says which sample a row is, or of which version, and cannot be"
            " null. Nothing was erased. Erase the rows as a whole."
        )
    for name, sql in constraints_of(snapshot.metadata.configuration).items():
        if named := sorted(Names({"rows": snapshot.schema}).condition(sql).of("rows") & {*columns}):
            raise InvalidInput(
                f"The constraint {name} of {table.name} ({sql}) names {named[0]!r}, which would be null. Nothing was"
                " erased. Drop the constraint, or erase the rows as a whole."
            )


def _require_possible(project: ProjectContext, table: VersionedTable, collector: Collector) -> None:
    """Raise where nothing may be erased from a table as it is now."""
    state = table.state
    refuse_left(state)
    refuse_dropped(table.name, state)
    refuse_held(state, [*state.history.heads.values()])
    configuration = state.snapshot.metadata.configuration
    if is_set(configuration, "delta.appendOnly"):
        raise InvalidInput(f"{table.name} is append-only, as its property delta.appendOnly says. Nothing was erased.")
    if state.history.unadopted is not None:
        raise InvalidInput(
            f"Another program committed to {table.name}, and nobody adopted that. Nothing was erased. Adopt it first."
        )
    if is_set(configuration, CHANGE_FEED) or collector.change_files():
        raise InvalidInput(
            f"{table.name} has a change feed, or files of one that it had, with rows of older versions. Nothing was"
            " erased. Purge the versions that had the rows instead, or turn it off and expire the versions that it"
            " tells of."
        )
    refuse_written(project, table)
    former_files(project, state, timedelta(0))  # refuses where an environment reads a name that the table had


def _refuse_copies(collector: Collector, rows: Sequence[FoundRows]) -> None:
    """Raise `InvalidInput` where an environment, which may have been dropped, has a copy of what would go."""
    keys = {each.part.add.key for each in rows}
    if (copy := next(collector.protectors.copies(keys), None)) is not None:
        name = copy.split("/")[2]
        raise InvalidInput(
            f"The environment {name!r} has a copy of a part with the rows: {copy}. Nothing was erased. Drop that"
            f" environment first: `dagster-versioned env drop {name} --apply`."
        )


@dataclass(frozen=True)
class _TableSearch:
    """What a pass found in one table, in this state and these of its parts."""

    table: VersionedTable
    state: "TableState"
    parts: Sequence[KeptPart]
    rows: Sequence[FoundRows]

    @property
    def versions(self) -> tuple[VersionKey, ...]:
        """Those that have any of the rows."""
        found = {*chain.from_iterable(each.part.versions for each in self.rows)}
        return tuple(sorted(found, key=lambda version: (version[0], version[1] or "")))

    def report(self, collector: Collector) -> ErasedTable:
        """What that is, in words of users."""
        current = {add.identity for add in parts_of(self.state.snapshot)}
        known = collector.needed()
        files = (
            info.key for info in self.table.store.list() if info.key.startswith("_staging/") or is_data_key(info.key)
        )
        return ErasedTable(
            name=str(self.table.name),
            rows=sum(int(each.found.sum()) for each in self.rows),
            parts=len(self.rows),
            versions=len(self.versions),
            size_bytes=sum(each.part.add.size for each in self.rows),
            unclaimed=sum(key.endswith(".parquet") and key not in known for key in files),
            current_rows=sum(each.rows_of(self.table.store, current) for each in self.rows),
        )


@dataclass(frozen=True)
class _Erasing:
    """One erasure: what of which tables, and why."""

    project: ProjectContext
    condition: Condition
    collectors: Mapping[VersionedTable, Collector]
    why: str
    by: str | None
    all_rows: bool
    progress: Progress | None
    keys: list[pa.Table] = field(default_factory=list[pa.Table])
    """What rows that were meant had in the key columns, in all passes."""
    without: dict[VersionedTable, dict[str, Set[str]]] = field(
        default_factory=dict["VersionedTable", "dict[str, Set[str]]"]
    )
    """The parts, by key, that have none of the rows, with the schemas in which that was found."""
    changes: dict[tuple[Identity, Identity | None], Change] = field(
        default_factory=dict["tuple[Identity, Identity | None]", Change], repr=False
    )
    """What is known of how files differ from those that stand for them: neither ever changes."""

    def preview(self) -> EraseReport:
        """What would be erased now."""
        found = self._find()
        self._require_key()
        reports = tuple(each.report(self.collectors[each.table]) for each in found)
        return EraseReport(True, reports, self._downstream)

    def apply(self) -> EraseReport:
        """Finish what died, and erase until nothing is found."""
        self._finish_recorded()
        reports: dict[str, ErasedTable] = {}
        epochs: list[int] = []
        for _ in range(_PASSES):
            found = self._find()
            for each in found:
                report = each.report(self.collectors[each.table])
                known = reports.get(report.name)
                reports[report.name] = report if known is None else _together(known, report)
            if not any(each.rows for each in found):
                for table in self.collectors:
                    require("erase", self.project, table)  # a draft may have been parked with the rows meanwhile
                    self._redact(table)
                self._require_key()
                return EraseReport(False, tuple(reports.values()), self._downstream, tuple(epochs))
            if (named := self._record([each for each in found if each.rows])) is not None:
                epochs.append(named.epoch)
            self._finish_recorded()
            self._fence([each.table for each in found if not each.rows])
        raise CommitConflict(
            f"Rows that were to be erased came back {_PASSES} times, from writers that go on. What was erased stays"
            " erased. Stop those writers, and erase once more."
        )

    def _fence(self, tables: Sequence[VersionedTable]) -> None:
        """Commit to the logs of tables that had none of the rows, so that a writer who has read them elsewhere, before
        they were erased there, looks again, see `refuse_erased_since`; what it committed before is found by now."""
        for table in tables:
            for log in (table, *(fork for fork, _ in forks_of(self.project, table))):
                with unless_dropped(log):
                    log.operations.change(lambda _, __: CommitDraft(ERASE, [], {"versions": []}, announces=False))

    def _find(self) -> "list[_TableSearch]":
        kept = [
            (table, state, kept_parts(table.store, state, self.project.erasures.of(state.snapshot)))
            for table, state in ((table, table.state) for table in self.collectors)
        ]
        keys = self._find_keys(kept) if self.condition.key else None
        total, done = sum(len(parts) for _, _, parts in kept), 0
        found: list[_TableSearch] = []
        for table, state, parts in kept:
            rows: list[FoundRows] = []
            # Files never change; which rows a key names does, as more keys are found.
            without = self.without.setdefault(table, {})
            for each in find_rows(table.name, table.store, parts, self.condition, keys, without):
                if each.found.any():
                    rows.append(each)
                elif not self.condition.key:
                    without[each.part.add.key] = {schema.json() for schema in each.part.schemas}
                done += 1
                if self.progress is not None:
                    self.progress(done, total)
            if not self.all_rows and parts and len(rows) == len(parts) and all(each.found.all() for each in rows):
                raise InvalidInput(
                    f"The condition is true of every row of every kept version of {table.name}. Nothing was erased."
                    " Correct the condition; if all rows are meant, say so (--all-rows), or drop the table."
                )
            _refuse_copies(self.collectors[table], rows)
            found.append(_TableSearch(table, state, parts, rows))
        return found

    def _find_keys(self, kept: "Sequence[tuple[VersionedTable, TableState, Sequence[KeptPart]]]") -> pa.Table | None:
        """What names rows in all tables; ``None`` where nothing is found. Raises `InvalidInput`."""
        refusals: list[InvalidInput | None] = []
        for table, _, parts in kept:
            found, refusal = find_keys(table.name, table.store, parts, self.condition)
            self.keys.extend(found)
            refusals.append(refusal)
        if all(refusals):  # of every table: it is the condition that is wrong
            raise next(filter(None, refusals))
        types = [list(map(str, keys.schema.types)) for keys in self.keys]
        if other := next((each for each in types if each != types[0]), None):
            raise InvalidInput(
                f"The tables have the key columns {', '.join(map(repr, self.condition.key))} with other types:"
                f" {', '.join(types[0])} and {', '.join(other)}. Nothing was erased. Erase from one after the other."
            )
        return pa.concat_tables(self.keys) if self.keys else None

    def _require_key(self) -> None:
        """Raise `InvalidInput` where a key is to name rows, and no row says which."""
        if self.condition.key and not self.keys:
            raise UnknownKey(
                "The condition is true of no row of a kept version, so nobody knows which key is meant. Nothing was"
                " erased now; what an erasure that died had found is. Name the rows by their key."
            )

    @property
    def _downstream(self) -> tuple[str, ...]:
        return computed_from(self.project, [str(table.name) for table in self.collectors])

    def _record(self, found: "Sequence[_TableSearch]") -> ErasureName | None:
        """Put what stands for the parts, and the document that says so; ``None`` where another one was first, or what
        was found is there no more. Then nothing of what was put stays."""
        recorded = self.project.erasures.all()
        tables: dict[str, TableErasure] = {}
        named: ErasureName | None = None
        try:
            for each in found:
                tables[each.state.snapshot.metadata.id] = self._substituted(each)
            named = self.project.erasures.put(
                Erasure(
                    epoch=1 + max((name.epoch for name, _ in recorded), default=-1),
                    tables=tables,
                    at=datetime.now(UTC).isoformat(),
                    by=self.by,
                    why=self.why,
                )
            )
        except IntegrityError:
            if all(each.table.state.log_version == each.state.log_version for each in found):
                raise
        finally:
            for each in found if named is None else ():
                if (made := tables.get(each.state.snapshot.metadata.id)) is not None:
                    self._discard(each.table, made.parts)
        return named

    def _substituted(self, found: "_TableSearch") -> TableErasure:
        table, snapshot = found.table, found.state.snapshot
        options = table.with_personal_columns(TableOptions())
        now = time.time_ns() // 1_000_000

        current = {add.identity for add in parts_of(snapshot)}
        parts: dict[Identity, Add | None] = {}

        def write(rows: FoundRows) -> None:
            with staging_folder(table.store) as staging:
                made, changes = substitutes(staging, rows, options.write_options(rows.part.partition), now, current)
            parts.update(made)
            self.changes.update(changes)

        try:
            for count in _AT_ONCE:
                with ThreadPoolExecutor(count, thread_name_prefix="erase") as pool:
                    list(pool.map(write, [rows for rows in found.rows if _at_once(rows.part.add.size) == count]))
            self._refuse_erased_again(found, parts)
        except BaseException:
            self._discard(table, parts)
            raise
        return TableErasure(ErasureName.by(snapshot), parts, found.versions)

    def _discard(self, table: VersionedTable, parts: "Mapping[Identity, Add | None]") -> None:
        """Delete what was put for an erasure that is none, as far as it is known and nobody needs it."""
        keys = objects_of(table.store, (add for add in parts.values() if add is not None))
        if keys:
            self.collectors[table].discard(keys, self.by, self.why)

    def _refuse_erased_again(self, found: "_TableSearch", own: "dict[Identity, Add | None]") -> None:
        """Raise where all that is left of a part are rows that were erased before, and were written again since."""
        erased = self.project.erasures.of(found.state.snapshot)
        if back := next((add.key for add in own.values() if add is not None and add.key in erased.keys), None):
            raise InvalidInput(
                f"What would be left in {found.table.name} are rows that were erased before: the part {back}. Nothing"
                " was erased. Somebody wrote them again; erase these as well, in one condition."
            )

    def _finish_recorded(self) -> None:
        """Have the logs of each table name what is recorded of it, and delete what was erased."""
        for table in self.collectors:
            for name, erasure in self.project.erasures.all():
                self._commit(table, name, erasure, partial(self._check, table))
            if not (named := self.project.erasures.named(table.state.snapshot)):
                continue
            recorded = dict(self.project.erasures.all())
            for fork, _ in forks_of(self.project, table):
                for name in named:
                    with unless_dropped(fork):
                        self._commit(fork, name, recorded[name], partial(refuse_written_fork, fork))
            self._delete(table, recorded[named[-1]])

    def _commit(self, table: VersionedTable, name: ErasureName, erasure: Erasure, check: Callable[[], None]) -> None:
        """Have the log of a table name an erasure, if that is of it and follows what the log names."""
        if (own := erasure.tables.get(table.state.snapshot.metadata.id)) is None:
            return
        with staging_folder(table.store) as staging:
            made = ErasureCommit(staging, name, own, erasure.by, check, self.changes)
            if made.is_open(table.state):
                table.operations.change(made.draft)

    def _check(self, table: VersionedTable) -> None:
        require("erase", self.project, table)
        _require_possible(self.project, table, self.collectors[table])

    def _delete(self, table: VersionedTable, erasure: Erasure) -> None:
        """Delete the parts that were erased, unless somebody began to need them meanwhile."""
        state = table.state
        former = partial(former_files, self.project, state, timedelta(0))
        self.collectors[table].plan_erasure(erasure.by, erasure.why, former).apply()

    def _redact(self, table: VersionedTable) -> None:
        """Take what tells of erased rows out of the table's log, and out of those that it had under other names."""

        def redaction(state: "TableState") -> Redaction:
            return Redaction.of(state, self.project.erasures.of(state.snapshot), self.collectors[table].needed())

        redact_log(table.operations, redaction)
        for fork, at in forks_of(self.project, table):
            with unless_dropped(fork):
                redact_log(fork.operations, partial(redaction_of_fork, fork, at), forked_at=at)
                forget_bounds(
                    fork.project.data, str(table.name), {*self.project.erasures.of(table.state.snapshot).keys}
                )
        gone = redaction(table.state)
        for name, ended in ended_logs(self.project, table.state).items() if gone.keys or gone.versions else ():
            store = self.project.data.subfolder(name)
            put_entries(store, redacted_entries(store, range(ended.log_version + 1), gone))


def _at_once(size: int) -> int:
    return next(count for count, most in _AT_ONCE.items() if size <= most)


def computed_from(project: ProjectContext, names: Sequence[str]) -> tuple[str, ...]:
    """The other tables of a project with kept versions that were built from these, directly or not."""
    tables = {str(name): (_names(project, name), _parents(project, name)) for name in project.tables()}
    found = {*names}
    while True:
        reached = {called for name in found & tables.keys() for called in tables[name][0]}
        new = {name for name, (_, above) in tables.items() if name not in found and above & reached}
        if not new:
            return tuple(sorted(found - {*names}))
        found |= new


def _has_columns(table: VersionedTable, condition: Condition) -> bool:
    """Whether a table has the columns by which rows are named; where it is unknown, others are asked, and say why."""
    schema = table.state.snapshot.schema
    if condition.key:
        return {*condition.key, *condition.set_null} <= {*schema.names}
    try:
        Names({"rows": schema}).condition(condition.sql)
    except InvalidInput:
        return False
    return {*condition.set_null} <= {*schema.names}


def _parents(project: ProjectContext, name: TableName) -> Set[str]:
    """The tables that kept versions of a table were built from, by the names that they had then."""
    found = set[str]()
    for version in open_table(project, name).state.history.versions:
        if version.gone is None and (raw := version.raw) is not None:
            found |= {parent["table"] for parent in raw["identity"].get("parents", ()) if "table" in parent}
    return found


def _names(project: ProjectContext, name: TableName) -> Set[str]:
    former = TableRecord.of(open_table(project, name).state.snapshot).former
    return {str(name), *(former_name for _, former_name in former)}


def _together(first: ErasedTable, later: ErasedTable) -> ErasedTable:
    return ErasedTable(
        first.name,
        first.rows + later.rows,
        first.parts + later.parts,
        first.versions + later.versions,
        first.size_bytes + later.size_bytes,
        later.unclaimed,
        first.current_rows + later.current_rows,
    )
