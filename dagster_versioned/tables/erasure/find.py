"""Which rows of which parts a condition names, in every version of a table that is kept."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.log.commits import read_commits
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.expression import ResolvedExpression, stored
from dagster_versioned.engines.sql import Names, has_values_of, is_true, table_of
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.erased_parts import ErasedParts, Identity, VersionKey
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.parts import LiveParts, vector_sha_of
from dagster_versioned.tables.read import scan_of
from dagster_versioned.tables.state import TableState

_SIDE = "rows"
_READERS = 4


@dataclass(frozen=True)
class Condition:
    """Which rows are erased: SQL over the columns of a table that is true of them.

    ``former`` gives, for columns of the condition, the name under which older versions have them. Of versions that
    lack a column of it, no row is meant where ``skip_lacking``; else they stop the search. With ``set_null`` the rows
    stay, and lose what they have in these columns.

    With a ``key``, what a row of any of the tables has in these columns names rows of all of them: every row with the
    same is meant, whatever else it says, and in tables that have no column of the condition, too. With a ``partition``
    the condition is one on the rows of this partition of Dagster's alone.
    """

    sql: str
    former: Mapping[str, str] = field(default_factory=dict[str, str])
    skip_lacking: bool = False
    set_null: Sequence[str] = ()
    key: Sequence[str] = ()
    partition: str | None = None

    @staticmethod
    def text_in(file: str | Path) -> str:
        """The condition in a file, with or without a semicolon at its end. Raises `InvalidInput`."""
        try:
            return Path(file).read_text().strip().removesuffix(";")
        except (OSError, ValueError) as error:  # no text, no path
            raise InvalidInput(f"The condition in {file} cannot be read: {error}. Nothing was erased.") from None

    def is_of(self, part: "KeptPart") -> bool:
        """Whether it may be true of rows of a part."""
        return self.partition is None or part.partition in (None, self.partition)


@dataclass
class KeptPart:
    """A part that kept versions have: without regard to deleted rows, and with each set of these that one of them has.

    ``schemas`` are those under which it is read, the first of them the one that it was written with.
    """

    add: Add
    partition: str | None
    schemas: list[StructType] = field(default_factory=list[StructType])
    variants: dict[Identity, Add] = field(default_factory=dict["Identity", Add])
    versions: set[VersionKey] = field(default_factory=set["VersionKey"])


@dataclass(frozen=True)
class FoundRows:
    """The rows of a part that are to be erased: ``found`` says so for each row, deleted ones too.

    Where there are ``nulled`` columns, as the part was written with, they alone are.
    """

    part: KeptPart
    found: NDArray[np.bool_]
    nulled: Sequence[str] = ()

    @property
    def gone(self) -> NDArray[np.bool_]:
        """The rows that are not in what stands for the part."""
        return np.zeros_like(self.found) if self.nulled else self.found

    def rows_of(self, store: ObjectStore, adds: Container[Identity]) -> int:
        """How many of them these have, with the rows that are deleted from the part there."""
        count = 0
        for identity, add in self.part.variants.items():
            if identity in adds:
                vector = add.deletion_vector
                deleted = (
                    () if vector is None else deleted_rows(store, vector, len(self.found), add.key, vector_sha_of(add))
                )
                count += int(self.found.sum() - self.found[np.asarray(deleted, np.int64)].sum())
        return count


def kept_parts(store: ObjectStore, state: TableState, erased: ErasedParts) -> Sequence[KeptPart]:
    """The parts of all versions that are kept; what stands for erased parts in the place of these."""
    found: dict[str, KeptPart] = {}
    known: dict[int, tuple[Add, KeptPart]] = {}
    schemas: dict[str, StructType] = {}
    live = LiveParts()
    for version in sorted(_kept(state.history.versions), key=lambda version: version.log_version):
        live.advance(read_commits(store, live.log_version + 1, version.log_version))
        text = _schema_text(store, version)
        schema = schemas.get(text) or schemas.setdefault(text, parse_schema(text))
        for add in erased.of(live.of(version.partition)):
            _, part = known.get(id(add), (add, None))  # nearly all are of the version before, too
            if part is None:
                part = found.setdefault(add.key, KeptPart(add, version.partition))
                known[id(add)] = add, part
                # As the newest version has it: one that adopted it gave it a number.
                part.add = replace(add, deletion_vector=None)
                part.variants[add.identity] = add
            part.partition = version.partition
            part.versions.add((version.log_version, version.partition))
            if not any(schema is each for each in part.schemas):
                part.schemas.append(schema)
    return list(found.values())


def _kept(versions: Iterable[Version]) -> Iterator[Version]:
    return (version for version in versions if version.gone is None and not version.is_drop)


def _schema_text(store: ObjectStore, version: Version) -> str:
    raw = version.raw
    if raw is None:
        return load_snapshot(store, version.log_version).schema.json()
    return parse_schema(raw["identity"]["schema"]).json()


def find_rows(
    table: TableName,
    store: ObjectStore,
    parts: Sequence[KeptPart],
    condition: Condition,
    keys: pa.Table | None = None,
    without: Mapping[str, Set[str]] | None = None,
) -> Iterator[FoundRows]:
    """The rows of each part of which the condition is true, or that have one of the keys, in any schema under which the
    part is read. Those ``without`` any, as was found in these schemas before, are not read again.

    Of each part the columns of the condition alone are read, deleted rows too, and its bytes are not compared with
    their SHA-256: who takes what is found reads the part whole, and does. Raises `InvalidInput` for a condition
    that cannot be evaluated, and for one that names a column which a version lacks, or by which files are named;
    `IntegrityError`.
    """
    evaluations = _Evaluations(table, condition, [schema for part in parts for schema in part.schemas], keys)
    partition_columns = {column for part in parts for column in part.add.partition_values}
    if named := sorted(evaluations.columns & partition_columns):
        raise InvalidInput(
            f"{table} is partitioned by {named[0]!r}, whose values are in the names of its files and in its log, from"
            " which nothing is erased. Nothing was erased. Name the rows by another column."
        )
    with ThreadPoolExecutor(_READERS, thread_name_prefix="erase") as pool:
        yield from pool.map(partial(_found, evaluations, store, without or {}), parts)


def find_keys(
    table: TableName, store: ObjectStore, parts: Sequence[KeptPart], condition: Condition
) -> tuple[Sequence[pa.Table], InvalidInput | None]:
    """What rows of parts of which the condition is true have in the key columns, without rows that have a null there;
    and why it is true of none, where no version has its columns.

    Integers have 64 bits. Raises as `find_rows`.
    """
    schemas = [schema for part in parts for schema in part.schemas]
    evaluations = _Evaluations(table, replace(condition, set_null=()), schemas)
    found: list[pa.Table] = []
    for part in parts:
        for schema in part.schemas:
            rows = evaluations.of(store, part, schema) if evaluations.has_key(schema) else None
            if rows is not None and rows.any():
                keys = evaluations.read(store, part.add, schema, condition.key).filter(pa.array(rows)).drop_null()
                wide = (pa.int64() if pa.types.is_integer(each) else each for each in keys.schema.types)
                found.append(keys.cast(pa.schema(zip(keys.column_names, wide, strict=True))))
    return found, evaluations.refusal


def _found(
    evaluations: "_Evaluations", store: ObjectStore, without: Mapping[str, Set[str]], part: KeptPart
) -> FoundRows:
    known = without.get(part.add.key, ())
    found = (evaluations.of(store, part, schema) for schema in part.schemas if schema.json() not in known)
    rows = [each for each in found if each is not None]
    found_rows = np.logical_or.reduce(rows) if rows else np.zeros(1, np.bool_)
    return FoundRows(part, found_rows, evaluations.nulled(part.schemas[0]))


class _Evaluations:
    """The condition in each schema that versions have."""

    def __init__(
        self, table: TableName, condition: Condition, schemas: Iterable[StructType], keys: pa.Table | None = None
    ) -> None:
        self._table = table
        self._condition = condition
        self._keys = keys
        self._resolved: dict[str, ResolvedExpression | None] = {}
        distinct = {schema.json(): schema for schema in schemas}
        refusals: dict[str, InvalidInput] = {}
        for text, schema in distinct.items():
            try:
                called = self._called(schema)[0]
                self._resolved[text] = Names({_SIDE: called}).condition(condition.sql)
            except InvalidInput as error:
                refusals[text] = error
        known = next((resolved for resolved in self._resolved.values()), None)
        self.refusal: InvalidInput | None = None
        """Why the condition is true of nothing, where the key alone says what is meant."""
        if known is None and condition.key:
            self.refusal = next(iter(refusals.values()), None)
            self._resolved, refusals = dict.fromkeys(distinct), {}
        for schema in distinct.values():
            if not condition.skip_lacking and not self.has_key(schema):
                raise self._lacks(sorted({*condition.key} - {*self._called(schema)[0].names})[0], schema)
        for text, error in refusals.items():
            columns = set(distinct[text].names) | {*condition.former}
            if known is None or not (lacking := sorted(known.of(_SIDE) - columns)):
                raise error
            if not condition.skip_lacking:
                raise self._lacks(lacking[0], distinct[text]) from error
            self._resolved[text] = None

    def has_key(self, schema: StructType) -> bool:
        """Whether a schema has all columns of the key."""
        return {*self._condition.key} <= {*self._called(schema)[0].names}

    def _lacks(self, column: str, schema: StructType) -> InvalidInput:
        return InvalidInput(
            f"A kept version of {self._table} has no column {column!r}, so nobody can tell which of its rows are meant;"
            f" its columns are {', '.join(map(repr, schema.names))}. Nothing was erased. Say what the column was called"
            f" ({column}=OLD_NAME), or that no row of such versions is meant."
        )

    def nulled(self, schema: StructType) -> Sequence[str]:
        """The columns that are set to null, as a schema calls them. Raises `InvalidInput` for one that is NOT NULL."""
        called, former = self._called(schema)
        columns = [name for name in self._condition.set_null if name in called.names]
        if never := next((name for name in columns if not called.field(name).nullable), None):
            raise InvalidInput(
                f"The column {never!r} of {self._table} is NOT NULL in a kept version. Nothing was erased. Erase the"
                " rows as a whole (without --set-null), or set other columns to null."
            )
        return [former.get(name, name) for name in columns]

    @property
    def columns(self) -> Set[str]:
        """The columns that name rows, in any schema."""
        found = (resolved.of(_SIDE) for resolved in self._resolved.values() if resolved is not None)
        return frozenset(chain(self._condition.key, *found))

    def of(self, store: ObjectStore, part: KeptPart, schema: StructType) -> NDArray[np.bool_] | None:
        """For each row of a part, deleted ones too, whether it is meant, and has something yet in one of the columns
        that are set to null; ``None`` where none is."""
        resolved = self._resolved[schema.json()] if self._condition.is_of(part) else None
        names = self._called(schema)[0].names
        named = resolved.of(_SIDE) if resolved is not None else frozenset[str]()
        key = self._condition.key if self._keys is not None and self.has_key(schema) else ()
        held = [name for name in self._condition.set_null if name in names]
        if (resolved is None and not key) or (self._condition.set_null and not held):
            return None
        rows = self.read(store, part.add, schema, [*{*named, *key, *held}])
        found = np.zeros(rows.num_rows, np.bool_)
        if resolved is not None:
            found |= is_true(table_of({stored(_SIDE, name): rows[name] for name in named}, rows.num_rows), resolved)
        if key and self._keys is not None:
            try:
                found |= has_values_of(rows.select(list(key)), self._keys)
            except InvalidInput as error:
                raise InvalidInput(
                    f"Rows of {self._table} cannot be found by the key: {error} Nothing was erased. Erase from it by a"
                    " condition of its own."
                ) from None
        if held:
            found &= np.logical_or.reduce([rows[name].is_valid().to_numpy() for name in held])
        return found

    def read(self, store: ObjectStore, add: Add, schema: StructType, columns: Sequence[str]) -> pa.Table:
        """Columns of a part, deleted rows too, called as the condition does."""
        former = self._called(schema)[1]
        old = [former.get(name, name) for name in columns]
        scan = scan_of(store, schema, [add], sorted({*old}) or schema.names[:1])
        rows = read_table(replace(scan, files=tuple(replace(file, sha256=None) for file in scan.files)))
        return table_of({name: rows[before] for name, before in zip(columns, old, strict=True)}, rows.num_rows)

    def _called(self, schema: StructType) -> tuple[StructType, Mapping[str, str]]:
        """The schema with columns called as the condition does, and what these are called in it."""
        former = {
            new: old for new, old in self._condition.former.items() if new not in schema.names and old in schema.names
        }
        new_names = {old: new for new, old in former.items()}
        fields = [replace(each, name=new_names.get(each.name, each.name)) for each in schema.fields]
        return StructType(fields), former
