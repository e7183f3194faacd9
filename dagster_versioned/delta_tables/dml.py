"""Changes of rows in any Delta table: what is asked for, what it means for a table, and what an engine answers.

A command is the same for every engine: it finds the files that may be concerned, has a `RowEngine` write new ones, and
commits both as one version. What an engine must do is only what needs rows: expressions and files.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add, Cdc, Remove
from dagster_versioned.delta.commit.write_rules import Path, WriteRules
from dagster_versioned.delta.files.deletion_vectors import with_vector, write_vectors
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.files.predicate import Predicate, parse_predicate
from dagster_versioned.delta.files.skipping import candidates, certain
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore

# --- what is asked for -----------------------------------------------------------------------------------------------

Assignments = Mapping[str, str]
"""SQL expressions by the column that takes their value (a dotted path for a field of a struct), in Spark's dialect."""

SOURCE, TARGET = "source", "target"
"""What the two sides of a merge are called in its expressions."""

Positions = NDArray[np.int64]
"""Which rows of a data file, counted from 0 with those that are deleted."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Rows for which ``where`` is true are to go; ``None``: all rows."""

    where: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Rows for which ``where`` is true (``None``: all) get new values, computed from their old ones."""

    set: Assignments
    where: str | None = None


@dataclass(frozen=True, slots=True)
class WhenMatched:
    """For a row of the table with its row of the source: update, every column (``"all"``), or delete.

    ``"all"`` takes the columns that the source has; those it lacks stay.
    """

    then: Assignments | Literal["all", "delete"]
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class WhenNotMatched:
    """For a row of the source without a row of the table: insert, by expressions over the source or every column."""

    then: Assignments | Literal["all"] = "all"
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class WhenNotMatchedBySource:
    """For a row of the table without a row of the source: update or delete."""

    then: Assignments | Literal["delete"]
    condition: str | None = None


Clause = WhenMatched | WhenNotMatched | WhenNotMatchedBySource


@dataclass(frozen=True, slots=True)
class Merge:
    """Rows of ``source`` (a frame of the engine's) meet rows of the table where ``on`` is true.

    ``on`` and the clauses call the two sides ``source`` and ``target``; a name that only one of them has needs neither.
    For each pair, and for each row alone, the first clause of its kind whose condition is true counts; without one the
    row stays as it is, or is not inserted. A row of the table that two rows of the source would change is refused (not
    where the only clause for matches is an unconditional delete).
    """

    source: Any
    on: str
    clauses: tuple[Clause, ...]

    def of_kind(self, kind: type[Clause]) -> tuple[Clause, ...]:
        """The clauses of one kind, in their order."""
        return tuple(clause for clause in self.clauses if isinstance(clause, kind))


Change = Delete | Update | Merge


def conditions_of(change: Change) -> list[str]:
    """Every condition, as the user gave it."""
    if not isinstance(change, Merge):
        return [] if change.where is None else [change.where]
    return [change.on, *(clause.condition for clause in change.clauses if clause.condition is not None)]


# --- what it means for a table ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """The table that is written to.

    ``snapshot`` is what the command read, but with the protocol, metadata and schema that its commit will leave (its
    version is -1 for a table that does not exist yet); ``rules`` are made from these. ``write_id`` is part of the name
    of every file that this write makes, by which what a failed one left is found; it is not all of the name, as one
    command may call its engine several times.
    """

    store: ObjectStore
    snapshot: Snapshot
    rules: WriteRules
    write_id: str

    @property
    def tracked(self) -> tuple[str, ...]:
        """The columns that keep the ids and commit versions of rows that move, where the table tracks rows."""
        tracking = self.rules.row_tracking
        return () if tracking is None else (tracking.materialized_row_id, tracking.materialized_row_commit_version)


def files_holding(target: Target, files: Sequence[Add], predicate: Predicate) -> list[Add]:
    """The files that may hold a row that the predicate is true for."""
    return _of_keys(files, candidates(adds_table(files), predicate, *_layout(target)))[0]


def files_by_partitions(target: Target, files: Sequence[Add], where: str | None) -> tuple[list[Add], list[Add]]:
    """The files of which every row matches by their partition, and the others."""
    if where is None:
        return list(files), []
    predicate = parse_predicate(where, target.snapshot.schema)
    return _of_keys(files, certain(adds_table(files), predicate, *_layout(target)))


def columns_named(target: Target, names: Sequence[str]) -> list[str]:
    """What the table calls the columns of a frame, whatever their case. Raises `InvalidInput`."""
    schema = target.snapshot.schema
    known = {name.casefold(): name for name in schema.names}
    if unknown := [name for name in names if name.casefold() not in known]:
        raise InvalidInput(
            f"The table has no column {unknown[0]!r} (it has: {', '.join(schema.names):.500}). Nothing was written."
            " Drop the column, or pass schema_mode='merge' to add it to the table."
        )
    found = [known[name.casefold()] for name in names]
    if len(set(found)) < len(found):
        raise InvalidInput(f"Two columns have the same name but for case: {list(names)}. Nothing was written.")
    return found


def assigned_paths(target: Target, given: Assignments, *, new: bool = False) -> dict[Path, str]:
    """SQL by the path of what it gives a value to; those of one column are all of it, or of its fields.

    ``new`` rows may bring identity values. Raises `InvalidInput`.
    """
    found: dict[Path, str] = {}
    for name, sql in given.items():
        path = path_of(target.snapshot.schema, name)
        if any(path[: len(other)] == other or other[: len(path)] == path for other in found):
            raise InvalidInput(f"{'.'.join(path)!r} is assigned twice. Nothing was written.")
        if path[0] in target.rules.identity and not new:
            raise InvalidInput(f"The identity column {path[0]!r} cannot be updated. Nothing was written.")
        found[path] = sql
    return found


def refuse_identity(target: Target, given: Collection[str]) -> None:
    """Raise `InvalidInput` where new rows bring values for an identity column that is always generated."""
    for name, column in target.rules.identity.items():
        if name in given and not column.allow_explicit:
            raise InvalidInput(
                f"The identity column {name!r} is always generated, so rows cannot bring values for it. Nothing"
                " was written. Leave the column out."
            )


def _layout(target: Target) -> Any:
    return target.snapshot.schema, target.rules.mapping, target.snapshot.partition_columns


def _of_keys(files: Sequence[Add], chosen: pa.Table) -> tuple[list[Add], list[Add]]:
    keys = frozenset(chosen["key"].to_pylist())
    return [add for add in files if add.key in keys], [add for add in files if add.key not in keys]


def path_of(schema: StructType, name: str) -> Path:
    """The path of a column or, with dots, of a struct's field, whatever its case. Raises `InvalidInput`."""
    data_type: DataType = schema
    found: list[str] = []
    rest = name
    while rest:
        fields = data_type.fields if isinstance(data_type, StructType) else ()
        known = {field.name.casefold(): field for field in fields}
        # A name may hold dots itself: the longest that is one counts.
        parts = rest.split(".")
        for length in range(len(parts), 0, -1):
            field = known.get(".".join(parts[:length]).strip("`").replace("``", "`").casefold())
            if field is not None:
                break
        else:
            raise InvalidInput(
                f"The table has no column {name!r} (it has: {', '.join(schema.names):.500}). Nothing was written."
            )
        found.append(field.name)
        data_type, rest = field.type, ".".join(parts[length:])
    return tuple(found)


def is_default(sql: str) -> bool:
    """Whether an assignment says that a column gets its default, and a field null."""
    return sql.strip().upper() == "DEFAULT"


@dataclass(frozen=True, slots=True)
class MergeClause:
    """A clause of a merge by the table's own names: its condition, and what it assigns (``None``: it deletes)."""

    kind: type[Clause]
    condition: str | None
    assigned: Mapping[Path, str] | None


@dataclass(frozen=True, slots=True)
class MergeClauses:
    """The clauses of a merge into one table, each kind in its order."""

    matched: tuple[MergeClause, ...]
    not_matched: tuple[MergeClause, ...]
    by_source: tuple[MergeClause, ...]

    @classmethod
    def of(cls, target: Target, source: StructType, change: Merge) -> Self:
        """Raises `InvalidInput`."""
        return cls(
            *(
                tuple(_then(target, source, clause) for clause in change.of_kind(kind))
                for kind in (WhenMatched, WhenNotMatched, WhenNotMatchedBySource)
            )
        )

    @property
    def touch(self) -> bool:
        """Whether rows of the table may change."""
        return bool(self.matched or self.by_source)

    @property
    def delete_alone(self) -> bool:
        """Whether all that rows that match can do is to be deleted, for which it does not matter how many they meet."""
        return len(self.matched) == 1 and self.matched[0].assigned is None and self.matched[0].condition is None


def _then(target: Target, source: StructType, clause: Clause) -> MergeClause:
    new = isinstance(clause, WhenNotMatched)
    if clause.then == "delete" and not new:
        return MergeClause(type(clause), clause.condition, None)
    if clause.then == "all" and not isinstance(clause, WhenNotMatchedBySource):
        assigned = _all_columns(target, source, new=new)
    elif isinstance(clause.then, Mapping):
        assigned = assigned_paths(target, clause.then, new=new)
    else:  # users are not checked
        raise InvalidInput(f"A clause cannot do {clause.then!r}. Nothing was written.")
    if new:
        refuse_identity(target, {path[0] for path in assigned})
    return MergeClause(type(clause), clause.condition, assigned)


def _all_columns(target: Target, source: StructType, *, new: bool) -> dict[Path, str]:
    """What has every column take the source's value, if the source has one."""
    known = {name.casefold(): name.replace("`", "``") for name in source.names}
    return {
        (name,): f"{SOURCE}.`{known[name.casefold()]}`"
        for name in target.snapshot.schema.names
        if name.casefold() in known and (new or name not in target.rules.identity)
    }


def refuse_twice_met(met: Positions, on: str) -> None:
    """Raise `InvalidInput` if a row of the table met several of the source; ``met`` counts them by row."""
    if count := int((met > 1).sum()):
        raise InvalidInput(
            f"{count} rows of the table meet more than one row of the source (at most {met.max()}) by {on}, so what"
            " they are to become is not clear. Nothing was written. Make the source's rows unique by what they are"
            " matched with."
        )


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is said of rows that break a rule, around how many do."""

    before: str
    after: str
    advice: str = ""

    def refusal(self, count: int, of: str, example: str = "") -> InvalidInput:
        such_as = f", such as ({example})" if example else ""
        return InvalidInput(f"{self.before}{count} of {of} {self.after}{such_as}. Nothing was written.{self.advice}")


def of_nulls(path: Sequence[str]) -> Sentence:
    return Sentence(f"Column {'.'.join(path)!r} must not be null (NOT NULL), but ", "are")


def of_check(name: str, sql: str) -> Sentence:
    return Sentence("", f"break the constraint {name!r}: {sql}")


def of_generated(name: str, sql: str) -> Sentence:
    return Sentence(
        f"Column {name!r} is generated as {sql}, but ", "bring another value for it", " Leave the column out."
    )


def of_replaced(within: str) -> Sentence:
    return Sentence("", f"are not in what is replaced: {within}", " Filter the rows, or widen the condition.")


# --- what an engine answers ------------------------------------------------------------------------------------------


def row_metrics(
    change: Change, *, updated: int = 0, deleted: int = 0, copied: int = 0, inserted: int = 0, source: int = 0
) -> dict[str, int]:
    """Counts of rows, as `RowEngine.change` names them."""
    match change:
        case Delete():
            return {"numDeletedRows": deleted, "numCopiedRows": copied}
        case Update():
            return {"numUpdatedRows": updated, "numCopiedRows": copied}
        case Merge():
            return {
                "numSourceRows": source,
                "numTargetRowsInserted": inserted,
                "numTargetRowsUpdated": updated,
                "numTargetRowsDeleted": deleted,
                "numTargetRowsCopied": copied,
            }


@dataclass(frozen=True, slots=True)
class ThinnedFile:
    """A file that stays without the rows at ``gone``, which are all that it has lost, of ``num_records``."""

    add: Add
    gone: Positions
    num_records: int


def thinned_files(store: ObjectStore, files: Sequence[ThinnedFile], now: int) -> tuple[list[Add], list[Remove]]:
    """Write the deletion vectors of files, all in one file."""
    vectors = write_vectors(store, {file.add.key: file.gone for file in files})
    adds = [with_vector(file.add, vectors[file.add.key], file.num_records) for file in files]
    return adds, [file.add.removed(now) for file in files]


@dataclass(frozen=True, slots=True)
class FileChanges:
    """The files that an engine wrote, all durable, and those that are no longer part of the table.

    A file whose deletion vector grew is removed and added. ``identity`` has the new high-water marks of the identity
    columns that values were generated for. ``metrics`` are named as in the reference's ``operationMetrics``; files and
    bytes are counted by the command, so an engine counts rows alone.
    """

    adds: tuple[Add, ...] = ()
    removes: tuple[Remove, ...] = ()
    cdcs: tuple[Cdc, ...] = ()
    metrics: Mapping[str, int] = field(default_factory=dict[str, int])
    identity: Mapping[str, int] = field(default_factory=dict[str, int])


class RowEngine(Protocol):
    """Writes and changes rows of any Delta table; knows nothing of commits.

    Every method obeys ``target.rules``: columns by name without regard to case, values cast to the table's types as far
    as nothing is lost, defaults, generated and identity columns filled in, NOT NULL and checks enforced before a file
    is reported, physical names, statistics. All raise `InvalidInput` (a row that breaks a rule, SQL that cannot be
    evaluated), `UnsupportedType` and `StorageError`; the command removes what was written by then.
    """

    def schema_of(self, rows: Any) -> StructType:
        """The Delta schema of a frame, as `schema_from_arrow` gives it. Raises `UnsupportedFrame`."""
        ...

    def write(self, target: Target, rows: Any, *, within: str | None = None, changes: bool = False) -> FileChanges:
        """Write a frame's rows as new files, with ``data_change`` true.

        ``within`` is a predicate that every row must satisfy (`InvalidInput` otherwise). ``changes`` asks for change
        data files with the rows as ``insert`` as well; without it the added files say it themselves. Metrics:
        ``numOutputRows``.
        """
        ...

    def change(self, target: Target, files: Sequence[Add], change: Change) -> FileChanges:
        """Delete, update or merge the rows of ``files``, which hold every row that the predicates can be true for.

        With ``rules.deletion_vectors`` rows go by a vector, else their files are rewritten; a file that loses all its
        rows is removed. With ``rules.change_feed`` the changed rows go to change data files (``_change_type``: insert,
        delete, update_preimage, update_postimage), unless whole files or nothing but insertions say it. With
        ``rules.row_tracking`` rows that move keep their ids, and those not updated their commit versions. Files that
        lose nothing are in no list. Metrics, by command:

        - delete: ``numDeletedRows``, ``numCopiedRows``
        - update: ``numUpdatedRows``, ``numCopiedRows``
        - merge: ``numSourceRows``, ``numTargetRowsInserted``, ``numTargetRowsUpdated``, ``numTargetRowsDeleted``,
          ``numTargetRowsCopied``
        """
        ...

    def rewrite(self, target: Target, groups: Sequence[Sequence[Add]], order: Sequence[str] = ()) -> FileChanges:
        """Write the rows of each group of files (of one partition each) anew, one group into as few files as it takes.

        ``order`` sorts each group's rows by these columns. Adds and removes have ``data_change`` false, deletion
        vectors are applied, row ids and commit versions stay.
        """
        ...

    def violations(self, target: Target, check: str) -> int:
        """How many of the table's rows do not satisfy a predicate (false or null), for a constraint to be added."""
        ...
