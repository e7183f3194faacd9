"""Changes of what a table says about itself: properties, columns, constraints, protocol. No data file is touched.

Each function makes the transaction that changes a snapshot, for `transaction.commit` to commit. All raise
`InvalidInput` for what cannot be done, and `UnsupportedFeature` for a table that is not written to. Operations have the
reference's names.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dagster_versioned.delta.actions import Action, Metadata, is_on, unlike
from dagster_versioned.delta.commit.column_path import (
    Path,
    column_path,
    field_above,
    field_at,
    found_path,
    type_at,
    with_fields,
    with_type,
)
from dagster_versioned.delta.commit.conflicts import NOTHING, WHOLE_TABLE, Reads
from dagster_versioned.delta.commit.iceberg import iceberg_compat
from dagster_versioned.delta.commit.protocol_upgrade import ASKED, MIN_READER, MIN_WRITER, protocol_with
from dagster_versioned.delta.commit.row_tracking import ENABLED as ROW_TRACKING
from dagster_versioned.delta.commit.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN, backfill, new_columns
from dagster_versioned.delta.commit.stored_expressions import check_default
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta.commit.write_rules import WriteRules, parse_columns, references
from dagster_versioned.delta.files.statistics import null_count, num_records
from dagster_versioned.delta.files.statistics import parse as parse_statistics
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.properties import CHANGE_FEED, require_values
from dagster_versioned.delta.schema.clustering import clustering_columns
from dagster_versioned.delta.schema.column_mapping import physical_path
from dagster_versioned.delta.schema.identity_columns import START as IDENTITY_START
from dagster_versioned.delta.schema.mapped_columns import MAX_ID, MODE, with_mapped_columns
from dagster_versioned.delta.schema.types import DataType, StructField, StructType, schema_from_arrow
from dagster_versioned.delta.schema.widening import ENABLED as WIDENING
from dagster_versioned.delta.schema.widening import is_wider, is_wider_for_iceberg, with_change
from dagster_versioned.errors import InvalidInput, LogCorrupt

Column = str | Sequence[str]
"""A column by its dotted name, or by the names on its path."""

DEFAULT = "CURRENT_DEFAULT"
GENERATED = "delta.generationExpression"
CHANGE_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
CONSTRAINT = "delta.constraints."
ICEBERG_V1 = "delta.enableIcebergCompatV1"

_NOT_STORED = (ASKED, MIN_READER, MIN_WRITER)

_OWN = (
    CONSTRAINT,
    MAX_ID,
    ROW_ID_COLUMN,
    ROW_COMMIT_VERSION_COLUMN,
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
)
_INDEXED = "delta.dataSkippingStatsColumns"
_SPECIAL = " ,;{}()\n\t="


def altered(
    read: Snapshot,
    operation: str,
    parameters: Mapping[str, str],
    *,
    schema: StructType | None = None,
    properties: Mapping[str, str] | None = None,
    asked: Mapping[str, str] | None = None,
    partition_columns: tuple[str, ...] | None = None,
    also: Iterable[Action] = (),
    reads: Reads = NOTHING,
) -> Transaction:
    """The transaction that leaves schema and properties so; ``asked`` are properties that concern the protocol."""
    schema, properties = with_mapped_columns(
        schema or read.schema, read.metadata.configuration if properties is None else properties
    )
    protocol = protocol_with(read.protocol, {**properties, **(asked or {})}, schema)
    metadata = replace(
        read.metadata,
        schema_string=read.metadata.schema_string if schema == read.schema else schema.json(),
        configuration=properties,
        partition_columns=partition_columns or read.partition_columns,
    )
    actions = [*unlike(protocol, read.protocol), metadata, *also]
    return Transaction(read, actions, operation, reads, parameters)


# --- properties ------------------------------------------------------------------------------------------------------


def set_properties(read: Snapshot, properties: Mapping[str, str]) -> Transaction:
    """Set table properties, with what each of them brings: features in the protocol, ids of columns, ids of rows."""
    # Whoever has no type checker gives a list, or numbers, and would get an error of this code's own.
    if not isinstance(properties, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            f"{properties!r:.100} are no properties. Nothing was written. Give values by name: {{'name': 'value'}}."
        )
    _refuse_own(properties)
    for key, value in properties.items():
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"The property {key!r} is {value!r:.50}; properties are text. Nothing was written.")
    require_values(properties)
    for path in _indexed(properties):
        found_path(read.schema, path)
    kept = {key: value for key, value in properties.items() if not key.startswith(_NOT_STORED)}
    configuration = {**read.metadata.configuration, **kept}
    _refuse_late_iceberg(read, configuration)
    schema, configuration = _with_mapping(read, configuration)
    also: list[Action] = []
    if is_on(configuration, CHANGE_FEED):
        _refuse_change_feed_columns(schema.names)
    if is_on(configuration, ROW_TRACKING) and not read.metadata.is_set(ROW_TRACKING):
        configuration = {**new_columns(), **configuration}
        also = list(backfill(read))
    parameters = {"properties": json.dumps(dict(properties), ensure_ascii=False)}
    return altered(
        read,
        "SET TBLPROPERTIES",
        parameters,
        schema=schema,
        properties=configuration,
        asked=properties,
        also=also,
    )


def unset_properties(read: Snapshot, keys: Collection[str], *, if_exists: bool = False) -> Transaction:
    """Take table properties away. What they brought into the protocol stays there."""
    _refuse_own(keys)
    configuration = read.metadata.configuration
    if not if_exists and (unknown := sorted(set(keys) - configuration.keys())):
        raise InvalidInput(f"The table has no properties {unknown}. Nothing was written.")
    if MODE in keys and read.column_mapping != "none":
        raise _no_way_back(read.column_mapping)
    left = {key: value for key, value in configuration.items() if key not in keys}
    parameters = {"properties": json.dumps(sorted(keys), ensure_ascii=False), "ifExists": json.dumps(if_exists)}
    return altered(read, "UNSET TBLPROPERTIES", parameters, properties=left)


def upgrade_protocol(read: Snapshot, features: Collection[str]) -> Transaction:
    """List features in the protocol, by the protocol's own names, without using them yet."""
    asked = {f"{ASKED}{name}": "supported" for name in features}
    protocol = protocol_with(read.protocol, {**read.metadata.configuration, **asked}, read.schema)
    if protocol == read.protocol:
        raise InvalidInput(f"The table's protocol has {', '.join(sorted(features))} already. Nothing was written.")
    parameters = {"newProtocol": json.dumps(protocol.to_json())}
    return Transaction(read, [protocol], "UPGRADE PROTOCOL", NOTHING, parameters)


def _indexed(properties: Mapping[str, str]) -> list[Path]:
    try:
        return parse_columns(properties.get(_INDEXED, ""))
    except LogCorrupt as error:
        raise InvalidInput(f"{_INDEXED}: {error} Nothing was written.") from error


def _refuse_own(keys: Collection[str]) -> None:
    for key in keys:
        # A list of names in the place of names: as above.
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"{key!r:.100} is no name of a property, which is text. Nothing was written. Give each name by itself."
            )
        if key.startswith(CONSTRAINT):
            raise InvalidInput(
                f"{key!r} is a constraint, which is added and dropped by its own commands (add_constraint,"
                " drop_constraint). Nothing was written."
            )
    require_settable(keys)


def require_settable(keys: Iterable[str]) -> None:
    """Raise `InvalidInput` for a property that the table keeps itself."""
    for key in keys:
        if key in _OWN:
            raise InvalidInput(f"{key!r} is kept by the table itself, and cannot be set. Nothing was written.")


def _with_mapping(read: Snapshot, configuration: dict[str, str]) -> tuple[StructType, dict[str, str]]:
    """The schema with mapped columns, where ``configuration`` turns mapping on; files of before have their names."""
    before = (read.metadata.configuration.get(MODE) or "none").lower()
    after = (configuration.get(MODE) or "none").lower()
    if before == after:
        return read.schema, configuration
    if before != "none":
        raise _no_way_back(before)
    if after != "name":
        raise InvalidInput(
            f"{MODE} cannot become {after!r} in a table that exists: its files have no ids. Nothing was written. Use"
            " 'name'."
        )
    return with_mapped_columns(read.schema, configuration, keep_names=True)


def _refuse_late_iceberg(read: Snapshot, configuration: Mapping[str, str]) -> None:
    """Version 1 of the compatibility promises something of every file, and not only of those to come."""
    if not is_on(configuration, ICEBERG_V1) or 1 in iceberg_compat(read.protocol, read.metadata):
        return
    if read.partition_columns and read.num_files:
        raise InvalidInput(
            f"{ICEBERG_V1} needs the partition columns {list(read.partition_columns)} in every data file, and the"
            f" {read.num_files} files of the table were written without them. Nothing was written. Write the rows to a"
            " new table that has the property from the start, or set delta.enableIcebergCompatV2."
        )
    files = read.files.select(["path", "stats"]).to_pylist()
    if unknown := [file["path"] for file in files if num_records(file["stats"]) is None]:
        raise InvalidInput(
            f"{ICEBERG_V1} needs the number of rows of every file, and the statistics of {len(unknown)} files, such as"
            f" {unknown[0]!r}, lack it. Nothing was written. Write the rows to a new table."
        )


def _no_way_back(mode: str) -> InvalidInput:
    return InvalidInput(
        f"The table maps its columns by {mode}, and its files can only be read so. Nothing was written. Copy its rows"
        " to a new table to be rid of it."
    )


# --- columns ---------------------------------------------------------------------------------------------------------


def add_columns(read: Snapshot, columns: Mapping[str, pa.DataType | DataType]) -> Transaction:
    """Add columns, null in all rows so far, at the end of the table or of the structs that their names lead into."""
    schema, added = read.schema, list[dict[str, Any]]()
    for name, kind in columns.items():
        path = column_path(name)
        field = StructField(path[-1], _delta_type(path[-1], kind))
        parent = found_path(schema, path[:-1]) if path[:-1] else ()
        _refuse_name(read, parent, type_at(schema, parent), field.name)
        schema = with_type(schema, parent, lambda struct, field=field: _with_last(struct, field))
        added.append({"column": {**field.to_json(), "name": ".".join((*parent, field.name))}})
    parameters = {"columns": json.dumps(added, ensure_ascii=False)}
    return altered(read, "ADD COLUMNS", parameters, schema=schema)


def rename_column(read: Snapshot, column: Column, name: str) -> Transaction:
    """Give a column, or a field of a struct, another name."""
    _require_mapping(read, "rename")
    path = found_path(read.schema, column)
    if not isinstance(parent := type_at(read.schema, path[:-1]), StructType):
        raise InvalidInput(f"{'.'.join(path)!r} is no column but part of one. Nothing was written.")
    _refuse_name(read, path[:-1], parent.drop([path[-1]]), name)
    _refuse_referenced(read, path, "renamed")
    schema = with_fields(read.schema, path, lambda field: [replace(field, name=name)])
    renamed = (*path[:-1], name)
    partition_columns = tuple(name if (column,) == path else column for column in read.partition_columns)
    properties = _with_indexed(read.metadata, path, renamed)
    parameters = {"oldColumnPath": ".".join(path), "newColumnPath": ".".join(renamed)}
    return altered(
        read, "RENAME COLUMN", parameters, schema=schema, properties=properties, partition_columns=partition_columns
    )


def drop_column(read: Snapshot, column: Column) -> Transaction:
    """Take a column, or a field of a struct, out of the table; files keep its values until they are rewritten."""
    _require_mapping(read, "drop")
    path = found_path(read.schema, column)
    dotted = ".".join(path)
    field_at(read.schema, path)
    if path[0] in read.partition_columns:
        raise InvalidInput(f"The table is partitioned by {dotted!r}, which cannot be dropped. Nothing was written.")
    clustered = clustering_columns(read.domains, read.schema, read.column_mapping)
    if any(column[: len(path)] == path for column in clustered):
        raise InvalidInput(
            f"The table is clustered by {dotted!r}. Nothing was written. Cluster it by other columns first."
        )
    _refuse_referenced(read, path, "dropped")
    schema = with_fields(read.schema, path, lambda _: [])
    parent = type_at(schema, path[:-1])
    if isinstance(parent, StructType) and not parent.fields:
        raise InvalidInput(f"{dotted!r} is the last column there, and no struct is empty. Nothing was written.")
    if not schema.drop(read.partition_columns).fields:
        raise InvalidInput(
            f"{dotted!r} is the last column beside those that the table is partitioned by. Nothing was written."
        )
    properties = _with_indexed(read.metadata, path, None)
    parameters = {"columns": json.dumps([dotted], ensure_ascii=False)}
    return altered(read, "DROP COLUMNS", parameters, schema=schema, properties=properties)


def change_type(read: Snapshot, column: Column, kind: pa.DataType | DataType) -> Transaction:
    """Widen the type of a column, of a field, or of a list's or map's ``element``, ``key`` or ``value``."""
    path = found_path(read.schema, column)
    dotted, old = ".".join(path), type_at(read.schema, path)
    new = _delta_type(dotted, kind)
    if not read.metadata.is_set(WIDENING):
        raise InvalidInput(
            f"The type of {dotted!r} can only be changed where the property {WIDENING} is 'true'. Nothing was written."
        )
    if not is_wider(old, new):
        raise InvalidInput(
            f"{dotted!r} is {_named(old)}, and not all of its values can be read as {_named(new)}. Nothing was written."
        )
    if iceberg_compat(read.protocol, read.metadata) and not is_wider_for_iceberg(old, new):
        raise InvalidInput(f"Iceberg cannot follow {_named(old)} to {_named(new)} of {dotted!r}. Nothing was written.")
    field_path, inside = field_above(read.schema, path)
    _refuse_referenced(read, field_path, "changed")
    return _with_changed(
        read,
        field_path,
        lambda field: replace(field, metadata=with_change(dict(field.metadata), str(old), str(new), inside)),
        schema=with_type(read.schema, path, lambda _: new),
    )


def set_not_null(read: Snapshot, column: Column) -> Transaction:
    """Let a column take no more nulls. The files' statistics must show that it has none."""
    path = found_path(read.schema, column)
    dotted = ".".join(path)
    if any(not isinstance(type_at(read.schema, path[:end]), StructType) for end in range(len(path))):
        raise InvalidInput(
            f"{dotted!r} is inside of a list or map, and no statistics show whether it is null. Nothing was written."
        )
    _require_no_null(read, path)
    return _with_nullable(read, path, False, WHOLE_TABLE)


def drop_not_null(read: Snapshot, column: Column) -> Transaction:
    """Let a column take nulls again."""
    return _with_nullable(read, found_path(read.schema, column), True, NOTHING)


def _with_nullable(read: Snapshot, path: Path, nullable: bool, reads: Reads) -> Transaction:
    field_at(read.schema, path)
    return _with_changed(read, path, lambda field: replace(field, nullable=nullable), reads)


def _with_changed(
    read: Snapshot,
    path: Path,
    change: Callable[[StructField], StructField],
    reads: Reads = NOTHING,
    schema: StructType | None = None,
) -> Transaction:
    schema = with_fields(schema or read.schema, path, lambda field: [change(field)])
    parameters = {"column": json.dumps(field_at(schema, path).to_json(), ensure_ascii=False)}
    return altered(read, "CHANGE COLUMN", parameters, schema=schema, reads=reads)


def set_default(read: Snapshot, column: Column, sql: str) -> Transaction:
    """Have rows to come that bring no value for a column get the value of a SQL expression; rows so far stay."""
    path = found_path(read.schema, column)
    name = ".".join(path)
    if len(path) != 1:
        raise InvalidInput(f"{name!r} is part of a column, and only columns have defaults. Nothing was written.")
    field = field_at(read.schema, path)
    if taken := field.metadata.keys() & {GENERATED, IDENTITY_START}:
        raise InvalidInput(f"The values of {name!r} are made by the table ({min(taken)}). Nothing was written.")
    check_default(name, sql, field.type)
    return _with_metadata(read, path, {DEFAULT: sql})


def drop_default(read: Snapshot, column: Column) -> Transaction:
    """Have rows to come that bring no value for a column get null."""
    return _with_metadata(read, found_path(read.schema, column), {})


def _with_metadata(read: Snapshot, path: Path, new: Mapping[str, str]) -> Transaction:
    def changed(field: StructField) -> StructField:
        kept = {key: value for key, value in field.metadata.items() if key != DEFAULT}
        return replace(field, metadata={**kept, **new})

    return _with_changed(read, path, changed)


def _require_no_null(read: Snapshot, path: Path) -> None:
    physical, dotted = physical_path(read.schema, path, read.column_mapping), ".".join(path)
    if path[0] in read.partition_columns:
        counts: list[Any] = [int(add.partition_values[physical[0]] is None) for add in read.adds()]
    else:
        counts = [text and null_count(parse_statistics(text), physical) for text in read.files["stats"].to_pylist()]
    if None in counts:
        raise InvalidInput(
            f"{counts.count(None)} of {len(counts)} files do not tell how many nulls {dotted!r} has. Nothing was"
            " written. Add a CHECK constraint instead, which reads the rows."
        )
    if any(counts):
        raise InvalidInput(
            f"{dotted!r} may be null in {sum(map(bool, counts))} of {len(counts)} files. Nothing was written. Update or"
            " delete those rows, then optimize the table where it has deletion vectors."
        )


def _delta_type(name: str, kind: pa.DataType | DataType) -> DataType:
    if not isinstance(kind, pa.DataType):
        return kind
    return schema_from_arrow(pa.schema([pa.field(name, kind)])).fields[0].type


def _named(kind: DataType) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind.to_json())[:200]


def _with_last(struct: DataType, field: StructField) -> DataType:
    return StructType([*struct.fields, field]) if isinstance(struct, StructType) else struct


def _refuse_name(read: Snapshot, parent: Path, struct: DataType, name: str) -> None:
    if not isinstance(struct, StructType):
        raise InvalidInput(f"{'.'.join(parent)!r} is no struct, so {name!r} cannot be in it. Nothing was written.")
    if not name:
        raise InvalidInput("The name of a column is empty. Nothing was written.")
    if any(field.name.casefold() == name.casefold() for field in struct.fields):
        raise InvalidInput(f"There is a column {'.'.join((*parent, name))!r} already. Nothing was written.")
    if read.column_mapping == "none" and any(character in name for character in _SPECIAL):
        raise InvalidInput(
            f"The name {name!r} has one of the characters {_SPECIAL!r} in it, which only tables that map their columns"
            f" can have. Nothing was written. Set {MODE} to 'name' first."
        )
    if not parent and read.metadata.is_set(CHANGE_FEED):
        _refuse_change_feed_columns([name])


def _refuse_change_feed_columns(names: Iterable[str]) -> None:
    if taken := [name for name in names if name.casefold() in CHANGE_FEED_COLUMNS]:
        raise InvalidInput(f"The change data feed has columns {taken} of its own. Nothing was written. Rename them.")


def _require_mapping(read: Snapshot, verb: str) -> None:
    if read.column_mapping == "none":
        raise InvalidInput(
            f"To {verb} a column, the table must map its columns. Nothing was written. Set the property {MODE} to"
            " 'name' first."
        )


def _refuse_referenced(read: Snapshot, path: Path, done: str) -> None:
    if names := references(WriteRules.of_snapshot(read), path):
        raise InvalidInput(
            f"{'.'.join(path)!r} cannot be {done}: {' and '.join(names)} depends on it. Nothing was written. Drop the"
            " constraint first; a generated column keeps what it is made of."
        )


def _with_indexed(metadata: Metadata, old: Path, new: Path | None) -> dict[str, str]:
    """The properties in which the list of columns with statistics follows a column that is renamed or dropped."""
    text = metadata.configuration.get(_INDEXED)
    if text is None:
        return dict(metadata.configuration)
    length = len(old)
    followed: list[Path] = []
    for path in parse_columns(text):
        if path[:length] != old:
            followed.append(path)
        elif new is not None:
            followed.append((*new, *path[length:]))
    if not followed:
        return {key: value for key, value in metadata.configuration.items() if key != _INDEXED}
    quoted = [".".join(f"`{part.replace('`', '``')}`" for part in path) for path in followed]
    return {**metadata.configuration, _INDEXED: ",".join(quoted)}


# --- constraints -----------------------------------------------------------------------------------------------------


def drop_constraint(read: Snapshot, name: str, *, if_exists: bool = False) -> Transaction:
    """Take a CHECK constraint away."""
    configuration = read.metadata.configuration
    key = next((key for key in configuration if key.casefold() == f"{CONSTRAINT}{name}".casefold()), None)
    if key is None and not if_exists:
        names = sorted(key.removeprefix(CONSTRAINT) for key in configuration if key.startswith(CONSTRAINT))
        raise InvalidInput(f"The table has no constraint {name!r}; there are {names}. Nothing was written.")
    left = {other: value for other, value in configuration.items() if other != key}
    parameters = {"name": name, "existed": json.dumps(key is not None)}
    if key is not None:
        parameters["expr"] = configuration[key]
    return altered(read, "DROP CONSTRAINT", parameters, properties=left)
