"""What a table asks of whoever writes rows to it, in one place. Protocol: the writer requirements of each feature."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.commit.iceberg import iceberg_compat
from dagster_versioned.delta.commit.row_tracking import ENABLED as ROW_TRACKING_ENABLED
from dagster_versioned.delta.commit.row_tracking import RowTracking
from dagster_versioned.delta.features import column_mapping, writer_features
from dagster_versioned.delta.files.statistics import INDEXED_COLUMNS
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.clustering import clustering_columns
from dagster_versioned.delta.schema.column_mapping import ColumnMapping, physical_path, physical_schema
from dagster_versioned.delta.schema.identity_columns import IdentityColumn, identity_columns
from dagster_versioned.delta.schema.types import Inside, StructType, parts_of
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature

__all__ = ["Inside", "Path", "WriteRules", "named_columns", "parse_columns", "references", "require_enforceable"]

Path = tuple[str, ...]


_CHECK = "delta.constraints."
_INVARIANT = "delta.invariants"
_GENERATED = "delta.generationExpression"
_DEFAULT = "CURRENT_DEFAULT"


@dataclass(frozen=True, slots=True)
class WriteRules:
    """What a writer of rows must obey; a feature that the protocol lists, but the table does not use, asks nothing.

    SQL is in Spark's dialect, over the names of the table. A row is refused where a field of ``not_null`` is null (one
    inside of another value: while that is not), and where one of ``checks`` is false or null.

    - ``not_null``: paths of what is never null: fields, those inside of structs, arrays and maps among them, and
      elements and values (`Inside`).
    - ``checks``: CHECK constraints and column invariants, by name.
    - ``generated``: by column, what its value is; a row that brings another one is refused.
    - ``defaults``: by column, what is written where a row has no value for it (null is a value).
    - ``identity``: the columns whose numbers the writer makes.
    - ``change_feed``: whether updates and deletes of rows are also written as change data files.
    - ``deletion_vectors``: whether new deletion vectors may be written. Those that a table has are always obeyed.
    - ``append_only``: whether no row may go.
    - ``row_tracking``: where rows are tracked, the columns that keep ids and commit versions of rows that are moved.
    - ``clustering``: the columns that rows should lie together by.
    - ``statistics``: paths, by physical names, of the leaf columns that get statistics, in the schema's order.
    - ``physical_schema``: the columns of data files by their physical names, with field ids in the metadata
      (``delta.columnMapping.id``, and ``delta.columnMapping.nested.ids`` for elements, keys and values). Partition
      columns are not in them, unless Iceberg needs them or the table asks for them: then they come last.
    """

    not_null: tuple[Path, ...]
    checks: Mapping[str, str] = field(hash=False)
    generated: Mapping[str, str] = field(hash=False)
    defaults: Mapping[str, str] = field(hash=False)
    identity: Mapping[str, IdentityColumn] = field(hash=False)
    change_feed: bool
    deletion_vectors: bool
    append_only: bool
    row_tracking: RowTracking | None
    clustering: tuple[Path, ...]
    statistics: tuple[Path, ...]
    mapping: ColumnMapping
    physical_schema: StructType

    @classmethod
    def of(
        cls, protocol: Protocol, metadata: Metadata, schema: StructType, domains: Mapping[str, str] | None = None
    ) -> Self:
        """The rules of a table; ``domains`` are its snapshot's, which hold the clustering columns.

        Raises `LogCorrupt` where a rule makes no sense.
        """
        features = writer_features(protocol)
        mapping = column_mapping(protocol, metadata)
        data = schema.drop(metadata.partition_columns)
        clustering = clustering_columns(domains or {}, schema, mapping) if "clustering" in features else ()
        held = data
        if iceberg_compat(protocol, metadata) or _stores_partitions(features, metadata):
            held = StructType((*data.fields, *schema.select(metadata.partition_columns).fields))
        tracked = _uses(features, metadata, "rowTracking", ROW_TRACKING_ENABLED)
        return cls(
            not_null=tuple(part.path for part in parts_of(schema) if not part.nullable),
            checks=_checks(features, metadata, schema),
            generated=_generated(features, schema),
            defaults=_expressions(schema, _DEFAULT) if "allowColumnDefaults" in features else {},
            identity=identity_columns(schema) if "identityColumns" in features else {},
            change_feed=_uses(features, metadata, "changeDataFeed", "delta.enableChangeDataFeed"),
            deletion_vectors=_uses(features, metadata, "deletionVectors", "delta.enableDeletionVectors"),
            append_only=metadata.is_set("delta.appendOnly"),
            row_tracking=RowTracking.of(metadata) if tracked else None,
            clustering=clustering,
            statistics=_statistics(metadata, data, clustering, mapping),
            mapping=mapping,
            physical_schema=physical_schema(held, mapping),
        )

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> Self:
        """The rules of a table at one version. Raises as `of`."""
        return cls.of(snapshot.protocol, snapshot.metadata, snapshot.schema, snapshot.domains)


def _uses(features: frozenset[str], metadata: Metadata, feature: str, switch: str) -> bool:
    """Whether a feature is listed and, by the property ``switch``, on."""
    return feature in features and metadata.is_set(switch)


def _checks(features: frozenset[str], metadata: Metadata, schema: StructType) -> dict[str, str]:
    constraints = _constraints(metadata) if "checkConstraints" in features else {}
    return constraints | (_invariants(schema) if "invariants" in features else {})


def _generated(features: frozenset[str], schema: StructType) -> dict[str, str]:
    return _expressions(schema, _GENERATED) if "generatedColumns" in features else {}


def _stores_partitions(features: frozenset[str], metadata: Metadata) -> bool:
    """Whether data files hold the partition columns. Draft of the protocol: *Materialize Partition Columns*."""
    return "materializePartitionColumns" in features or metadata.is_set("delta.writePartitionColumnsToParquet")


def require_enforceable(protocol: Protocol, schema: StructType) -> None:
    """Raise `UnsupportedFeature` for rules in places where they are not enforced, and no row may pass them over.

    These are invariants inside of lists and maps, generated values of fields inside of columns, and values that are
    generated from generated ones.
    """
    features = writer_features(protocol)
    for part in parts_of(schema):
        for feature, broken, where in (
            ("invariants", part.is_inside and _INVARIANT in part.metadata, "a list or map"),
            ("generatedColumns", len(part.path) > 1 and part.metadata.get(_GENERATED) is not None, "a column"),
        ):
            if broken and feature in features:
                raise UnsupportedFeature(
                    f"{'.'.join(part.path)!r} has a rule of the feature {feature} inside of {where}, where it is not"
                    " enforced yet, so the table cannot be written. Nothing was written. Use a program that does."
                )
    _refuse_chained(_generated(features, schema))


def _refuse_chained(generated: Mapping[str, str]) -> None:
    for name, sql in generated.items():
        named = {part.casefold() for path in named_columns(sql) for part in path[:1]}
        for other in generated:
            if other.casefold() in named:
                raise UnsupportedFeature(
                    f"{name!r} is generated from {other!r}, which is generated itself, so the table cannot be written."
                    " Nothing was written. Have it generated from columns that rows bring."
                )


def named_columns(sql: str) -> Iterator[Path]:
    """The columns that an expression names, and what it takes of them; an empty path if it cannot be parsed."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except SqlglotError:
        yield ()
        return
    for column in tree.find_all(exp.Column):
        path = [part.name for part in column.parts]
        above = column.parent
        while isinstance(above, exp.Dot) and isinstance(above.expression, exp.Identifier):
            path.append(above.expression.name)
            above = above.parent
        yield tuple(path)


def references(rules: WriteRules, path: Path) -> list[str]:
    """The CHECK constraints, invariants and generated columns whose SQL names the column, a part of it, or its whole.

    An expression that cannot be parsed is taken to name every column.
    """
    expressions: Mapping[str, str] = {
        **{f"the constraint {name!r}": sql for name, sql in rules.checks.items()},
        **{f"the generated column {name!r}": sql for name, sql in rules.generated.items()},
    }
    wanted = _folded(path)
    return [
        name for name, sql in expressions.items() if any(_touch(wanted, _folded(other)) for other in named_columns(sql))
    ]


def _folded(path: Path) -> Path:
    return tuple(part.casefold() for part in path)


def _touch(one: Path, other: Path) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _constraints(metadata: Metadata) -> dict[str, str]:
    properties = metadata.configuration.items()
    return {key.removeprefix(_CHECK): sql for key, sql in properties if key.startswith(_CHECK)}


def _invariants(schema: StructType) -> dict[str, str]:
    """Protocol: *Column Invariants*."""
    return {
        f"invariant of {'.'.join(part.path)}": _invariant(part.metadata[_INVARIANT], part.path)
        for part in parts_of(schema)
        if _INVARIANT in part.metadata and not part.is_inside
    }


def _invariant(text: Any, path: Path) -> str:
    try:
        sql = json.loads(text)["expression"]["expression"]
    except (ValueError, TypeError, KeyError, RecursionError):
        sql = None
    if not isinstance(sql, str):
        raise LogCorrupt(f"The invariant of column {'.'.join(path)!r} holds no expression: {text!r:.100}.")
    return sql


def _expressions(schema: StructType, key: str) -> dict[str, str]:
    found = {member.name: member.metadata[key] for member in schema.fields if member.metadata.get(key) is not None}
    for name, sql in found.items():
        if not isinstance(sql, str):
            raise LogCorrupt(f"{key} of column {name!r} is no SQL: {sql!r:.100}.")
    return found


# --- statistics ------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-1|[0-9]{1,9}", re.ASCII)
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([^`.,\s][^`.,]*?))\s*([.,]|$)")


def _statistics(
    metadata: Metadata, schema: StructType, clustering: tuple[Path, ...], mapping: ColumnMapping
) -> tuple[Path, ...]:
    leaves = [part.path for part in parts_of(schema) if not (part.is_inside or isinstance(part.type, StructType))]
    named = metadata.configuration.get("delta.dataSkippingStatsColumns")
    number = metadata.configuration.get("delta.dataSkippingNumIndexedCols", "")
    count = int(number) if _NUMBER.fullmatch(number) else INDEXED_COLUMNS
    first = leaves if count < 0 else leaves[:count]
    wanted = set(map(_folded, (*(first if named is None else parse_columns(named)), *clustering)))
    return tuple(
        physical_path(schema, leaf, mapping)
        for leaf in leaves
        if any(_folded(leaf[:length]) in wanted for length in range(1, len(leaf) + 1))
    )


def parse_columns(text: str) -> list[Path]:
    """The paths in a list such as ``a, b.c, `d.e```, in which backticks quote. Raises `LogCorrupt`."""
    text = text.strip()
    paths, path, position = list[Path](), list[str](), 0
    while position < len(text) or path:
        match = _NAME.match(text, position)
        if match is None:
            raise LogCorrupt(f"The list of columns {text!r:.200} cannot be read from character {position} on.")
        quoted, plain, end = match.groups()
        path.append(plain if quoted is None else quoted.replace("``", "`"))
        position = match.end()
        if end != ".":
            paths.append(tuple(path))
            path = []
            if end == "," and position >= len(text):
                raise LogCorrupt(f"The list of columns {text!r:.200} ends with a comma.")
    return paths
