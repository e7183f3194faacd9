"""Changes of rows in any Delta table: what is asked for, what an engine answers, and the commands that commit it.

A command is the same for every engine: it finds the files that may be concerned, has a `RowEngine` write new ones, and
commits both as one version. What an engine must do is only what needs rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dagster_versioned.delta.actions import Add, Cdc, Remove
from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.storage.object_store import ObjectStore

# --- what is asked for -----------------------------------------------------------------------------------------------

Assignments = Mapping[str, str]
"""SQL expressions by the column that takes their value (a dotted path for a field of a struct), in Spark's dialect."""

SOURCE, TARGET = "source", "target"
"""What the two sides of a merge are called in its expressions."""


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


# --- what an engine answers ------------------------------------------------------------------------------------------


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
