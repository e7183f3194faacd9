"""The rules that other programs gave a table's columns, which a commit of versions keeps, or is refused for.

NOT NULL, invariants, generated columns and defaults; tables with identity columns hold no versions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta.commit.write_rules import Inside, WriteRules, require_enforceable
from dagster_versioned.delta.features import writer_features
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import StructField, StructType, parse_schema
from dagster_versioned.delta.schema.widening import CHANGES, is_wider
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import constraints_of
from dagster_versioned.tables.write.constraints import require_rows

NullCounts = tuple[StructType, Sequence[int], int]
"""The columns of a version, how many nulls each has, and how many rows there are."""


def with_column_rules(table: Snapshot, schema: StructType, versions: Iterable[NullCounts]) -> StructType:
    """The schema that a table is to have, with what its columns demand now: a column that goes takes its rule along.

    ``versions`` are those that the commit makes current. Raises `InvalidInput` where one has a null in a column that is
    NOT NULL, and `UnsupportedFeature` where a field within a column is.
    """
    # What is inside of lists and maps may be null in every version, and with their types in the table's schema.
    rules = [path for path in WriteRules.of_snapshot(table).not_null if path[0] in schema.names]
    required = [path for path in rules if not any(isinstance(step, Inside) for step in path)]
    if nested := next((path for path in required if len(path) > 1), None):
        raise UnsupportedFeature(
            f"Column {nested[0]!r} of the table holds the NOT NULL field {'.'.join(nested)!r}, by another program, and "
            "versions do not count the nulls within columns. Nothing was written. Take the rule away with that "
            "program."
        )
    _refuse_nulls([name for name, *_ in required], versions)
    known = {member.name: member for member in table.schema.fields}
    return StructType(tuple(_kept(known.get(member.name, member), member) for member in schema.fields))


def _refuse_nulls(names: Sequence[str], versions: Iterable[NullCounts]) -> None:
    for columns, null_counts, nrow in versions:
        counts = dict(zip(columns.names, null_counts, strict=True))
        for name in names:
            if nulls := counts.get(name, nrow):  # who has not the column is null in it
                raise InvalidInput(
                    f"Column {name!r} of the table is NOT NULL, by another program, and is null in {nulls} rows. "
                    "Nothing was written. Correct the rows, or take the rule away with that program."
                )


def require_values(table: Snapshot, schema: StructType, written: Iterable[StructType]) -> None:
    """Raise `InvalidInput` where rows that are written lack a column with a default, which the table keeps.

    A version is what a step gives; rows of other versions do not lack what they were written without.
    """
    defaults = WriteRules.of_snapshot(table).defaults
    for columns in written:
        if lacking := [name for name in defaults if name in schema.names and name not in columns.names]:
            raise InvalidInput(
                f"Column {lacking[0]!r} of the table has the default {defaults[lacking[0]]}, by another program, and "
                "the rows that are written lack the column. Nothing was written. Give it to the rows."
            )


def require_rules(store: ObjectStore, transaction: Transaction) -> None:
    """Raise `InvalidInput` where rows of parts that a commit adds break an invariant, or are not what is generated.

    The parts are read again: few tables have such rules, and a revert or a promotion has no frame. Raises
    `UnsupportedFeature` for rules inside of columns that are not enforced.
    """
    if not writer_features(transaction.protocol) & {"invariants", "generatedColumns"}:
        return
    schema = parse_schema(transaction.metadata.schema_string)
    rules = WriteRules.of(transaction.protocol, transaction.metadata, schema)
    known = constraints_of(transaction.metadata.configuration)
    checks = {name: sql for name, sql in rules.checks.items() if name not in known}
    for name, sql in rules.generated.items():
        checks[f"{name} is generated"] = f"`{name.replace('`', '``')}` <=> ({sql})"
    require_enforceable(transaction.protocol, schema)
    if checks:
        adds = [action for action in transaction.actions if isinstance(action, Add) and action.data_change]
        require_rows(store, schema.all_nullable(), adds, checks)


def _kept(known: StructField, member: StructField) -> StructField:
    """A column, as nullable as it was; where it has its type still, or a wider one, what else is known of it stays."""
    if StructType((known,)).all_nullable() == StructType((member,)).all_nullable():
        member = replace(member, type=known.type)  # with what is known of the fields within it
    elif not is_wider(known.type, member.type):
        return replace(member, nullable=known.nullable)
    noted = {key: value for key, value in known.metadata.items() if key != CHANGES}  # of files that may have gone
    return replace(member, nullable=known.nullable, metadata={**noted, **member.metadata})
