"""The rows of samples in Arrow tables: those that an increment asks for, and those that came of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.frames import in_memory, stream, to_frame
from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
    EXAMPLES,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SEPARATOR,
    SUPPLIED,
    SYSTEM_COLUMNS,
    SYSTEM_PREFIX,
    SamplePlan,
    UpstreamSamples,
    refuse_other_samples,
    require_columns,
    require_plain_columns,
    require_texts,
    require_types,
)
from dagster_versioned.engines.spark.releases import to_arrow
from dagster_versioned.engines.sql import arrow_rows, database, register
from dagster_versioned.features.arrow.samples import filtered, hashed, matching, member_of, quoted, require_ids
from dagster_versioned.features.content_versions import content_versions, field_digests, positional

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROW = "metaxy_row"
"""What `number_rows` calls the number of a row; no column of a user is called so."""


def own(frame: Any, like: pa.Table | None) -> pa.Table:
    """A user's frame as a table, of the types that are stored. Raises `UnsupportedType`."""
    table = in_memory(frame) if isinstance(engine_for(frame), ArrowEngine) else to_arrow(frame)
    schema, batches = stream(frame) if table is None else (table.schema, iter(table.to_batches()))
    stored = stored_schema(schema)
    return pa.Table.from_batches(list(conform_all(batches, stored)), schema_to_arrow(stored))


def as_frame(rows: pa.Table, frame_type: type) -> Any:
    """The table as a type of the family."""
    return to_frame(rows, frame_type)


def translated(conditions: Sequence[str]) -> AbstractContextManager[None]:
    """What evaluates conditions here says it by itself."""
    return nullcontext()


def pinned(frame: pa.Table) -> AbstractContextManager[pa.Table]:
    """The table itself: it is computed already."""
    return nullcontext(frame)


def names(frame: pa.Table) -> list[str]:
    """The columns of a table."""
    return frame.column_names


def select(frame: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The table with these columns alone."""
    return frame.select(list(columns))


def none_of(frame: pa.Table) -> pa.Table:
    """The table without its rows."""
    return frame.slice(0, 0)


def empty(schema: StructType, like: pa.Table | None = None) -> pa.Table:
    """A table of a schema, without rows."""
    return schema_to_arrow(schema).empty_table()


def with_contents(frame: pa.Table, columns: Mapping[str, Sequence[str]]) -> pa.Table:
    """The table with versions by field, each the hash of the values in some ``columns``, and of what it says itself.

    Data versions that it says stay.
    """
    texts = {each: f"{SUPPLIED}.{each}" for each in members_of(frame, DATA_VERSION_BY_FIELD)}
    with_texts = frame
    for each, name in texts.items():
        with_texts = with_texts.append_column(name, member_of(frame, DATA_VERSION_BY_FIELD, each))
    chosen = ([*columns[each], *([texts[each]] if each in texts else [])] for each in columns)
    fields = [content_versions(with_texts, names).combine_chunks() for names in chosen]
    # An array of members knows no length without any.
    versions = pa.StructArray.from_arrays(fields, list(columns)) if fields else pa.nulls(len(frame), pa.struct([]))
    table = _supplied(frame).append_column(PROVENANCE_BY_FIELD, versions)
    is_supplied = DATA_VERSION_BY_FIELD in table.column_names
    return table if is_supplied else table.append_column(DATA_VERSION_BY_FIELD, versions)


def stored(plan: SamplePlan, frame: pa.Table, *, stale: bool) -> pa.Table:
    """The ids and versions of stored samples, with all members of the plan; those of nobody where ``stale``."""
    table = frame.select(list(plan.ids))
    for column in (PROVENANCE_BY_FIELD, DATA_VERSION_BY_FIELD):
        held: Sequence[str] = [] if stale and column == PROVENANCE_BY_FIELD else members_of(frame, column)
        nulls = pa.nulls(frame.num_rows, pa.string())
        fields = [member_of(frame, column, each).combine_chunks() if each in held else nulls for each in plan.members]
        table = table.append_column(column, pa.StructArray.from_arrays(fields, list(plan.members)))
    whole = pa.repeat("", frame.num_rows) if stale else frame[PROVENANCE]
    return table.append_column(PROVENANCE, whole)


def marked_stale(frame: pa.Table, condition: str) -> pa.Table:
    """The table in which rows that satisfy a condition were computed from nothing that is known."""
    is_stale = pa.array(matching(frame, condition))
    marked = pc.call_function("if_else", [is_stale, pa.scalar(""), frame[PROVENANCE].cast(pa.string())])
    return frame.set_column(frame.column_names.index(PROVENANCE), PROVENANCE, marked)


def passing(upstream: UpstreamSamples, frame: pa.Table) -> pa.Table:
    """The rows of an upstream that pass its filter, by their new names."""
    return filtered(upstream, frame.rename_columns(upstream.renamed(frame.column_names)))


def count(frame: pa.Table) -> int:
    """How many rows a table has."""
    return frame.num_rows


def rows_of(
    plan: SamplePlan, upstreams: Mapping[str, Callable[[type], Any]], units: pa.Table, *, every: bool
) -> pa.Table:
    """All that the upstreams, by name, say of some units, in the order of their ids; one batch is read at a time."""
    wanted = None if every else units
    frames = {
        each.name: _read(plan, each, upstreams[each.name](pa.RecordBatchReader), wanted) for each in plan.upstreams
    }
    on = ", ".join(map(quoted, plan.on))
    # As when the expected samples are given (`arrow_samples`).
    order = sorted(plan.upstreams, key=lambda each: each.optional)
    kind = "FULL" if all(each.optional for each in order) else "LEFT"
    with database() as connection:
        for position, each in enumerate(order):
            keys = number_rows(frames[each.name].select(list(plan.on)), f"{ROW}{position}")
            register(connection, f"t{position}", keys)
        joined = "t0"
        for position, each in enumerate(order[1:], 1):
            joined += f" {kind if each.optional else 'INNER'} JOIN t{position} USING ({on})"
        found = arrow_rows(
            connection.execute(
                f"SELECT {', '.join([on, *(f'{ROW}{position}' for position in range(len(order)))])} FROM {joined}"
            )
        )
    columns: dict[str, Any] = {name: found[name] for name in plan.on}
    for position, each in enumerate(order):
        taken = frames[each.name].take(found[f"{ROW}{position}"])
        columns |= {name: taken[name] for name in taken.column_names if name not in plan.on}
    ids = list(dict.fromkeys(name for each in order for name in (*plan.units, *each.ids) if name in columns))
    rows = _ordered(pa.Table.from_pydict(columns), ids)
    return within(plan, rows, units) if plan.pairs and not every else rows


def samples_of(plan: SamplePlan, samples: pa.Table, units: pa.Table, *, every: bool) -> pa.Table:
    """The samples of some units, without versions but for data versions that they say."""
    supplied = _supplied(samples)
    return supplied if every else within(plan, supplied, units)


def within(plan: SamplePlan, rows: pa.Table, units: pa.Table) -> pa.Table:
    """Those of the rows that are of some units."""
    return semi_join(rows, units, plan.units)


def semi_join(rows: pa.Table, others: pa.Table, on: Sequence[str]) -> pa.Table:
    """Those of the rows, in their order, that agree in some columns with one of others."""
    with database() as connection:
        register(connection, "others", others.select(list(on)))
        return _join(connection, rows, "SEMI", on)


def anti_join(rows: pa.Table, others: pa.Table, on: Sequence[str]) -> pa.Table:
    """Those of the rows, in their order, that agree in some columns with none of others."""
    with database() as connection:
        register(connection, "others", others.select(list(on)))
        return _join(connection, rows, "ANTI", on)


def number_rows(rows: pa.Table, name: str = ROW) -> pa.Table:
    """The rows with their numbers in one more column."""
    return rows.append_column(name, pa.array(np.arange(rows.num_rows)))


def differing(plan: SamplePlan, members: Sequence[str], before: pa.Table, now: pa.Table) -> pa.Table:
    """The units that have other data versions of some ``members`` in one table than in another, or none there."""
    with database() as connection:
        for name, frame in (("before", before), ("now", now)):
            table = frame.select(list(plan.units)).append_column(ROW, pa.repeat(True, frame.num_rows))
            for place, member in enumerate(members):
                table = table.append_column(f"{ROW}{place}", member_of(frame, DATA_VERSION_BY_FIELD, member))
            register(connection, name, table)
        compared = [ROW, *(f"{ROW}{place}" for place in range(len(members)))]
        differs = " OR ".join(f"before.{name} IS DISTINCT FROM now.{name}" for name in compared)
        units = ", ".join(map(quoted, plan.units))
        return arrow_rows(
            connection.execute(f"SELECT {units} FROM before FULL JOIN now USING ({units}) WHERE {differs}")
        )


def units_of(plan: SamplePlan, rows: pa.Table) -> pa.Table:
    """The units of rows with their provenance, each once."""
    table = rows.select([*plan.units, PROVENANCE_BY_FIELD, PROVENANCE])
    if not any(each.grouped for each in plan.upstreams):
        return table
    with database() as connection:
        register(connection, "given", number_rows(table.select(list(plan.units))))
        first = arrow_rows(
            connection.execute(f"SELECT min({ROW}) AS {ROW} FROM given GROUP BY {', '.join(map(quoted, plan.units))}")
        )
    return table.take(first[ROW])


def together(one: pa.Table, other: pa.Table) -> pa.Table:
    """The units of both."""
    return pa.concat_tables([one, other])


def pieces(plan: SamplePlan, units: pa.Table, size: int) -> Iterator[tuple[pa.Table, int]]:
    """The units in tables of at most ``size``, in the order of their columns."""
    ordered = _ordered(units, plan.units)
    for start in range(0, len(ordered), size):
        piece = ordered.slice(start, size)
        yield piece, len(piece)


def finished(plan: SamplePlan, asked: pa.Table, rows: pa.Table, pin: object = None) -> pa.Table:
    """The rows that came of units, with their versions; there is nothing to ``pin``.

    They may say data versions of their own, for some fields or rows. Raises `InvalidInput` for rows that were not asked
    for, samples without a row, and ids that are missing, null, of another type, or come twice.
    """
    what = f"What feature {plan.feature!r} returned"
    require_columns(what, rows.column_names, plan.ids)
    require_plain_columns(plan, what, rows.column_names, members_of(rows, DATA_VERSION_BY_FIELD))
    kept = rows.select([name for name in rows.column_names if name not in SYSTEM_COLUMNS])
    require_types(
        what, plan.units, *(dict(zip(each.schema.names, each.schema.types, strict=True)) for each in (kept, asked))
    )
    require_ids(what, plan.ids, kept)
    provenance = asked.take(_places(plan, asked, kept))
    by_field = [_versions(rows, name, member_of(provenance, PROVENANCE_BY_FIELD, name)) for name in plan.members]
    packed = pa.StructArray.from_arrays([each.combine_chunks() for each in by_field], list(plan.members))
    whole = hashed(plan.hash, pc.call_function("binary_join_element_wise", [*by_field, pa.scalar(SEPARATOR)]))
    return (
        kept.append_column(PROVENANCE_BY_FIELD, provenance[PROVENANCE_BY_FIELD])
        .append_column(PROVENANCE, provenance[PROVENANCE])
        .append_column(DATA_VERSION_BY_FIELD, packed)
        .append_column(DATA_VERSION, whole)
    )


def finished_samples(
    plan: SamplePlan, asked: pa.Table, samples: pa.Table, pin: object, count: int, *, every: bool
) -> pa.Table:
    """The samples of ``count`` units, with their versions, as `finished` gives them."""
    return finished(plan, asked, samples_of(plan, samples, asked, every=every))


def _read(plan: SamplePlan, upstream: UpstreamSamples, rows: pa.RecordBatchReader, units: pa.Table | None) -> pa.Table:
    """The upstream's columns by their new names, in those rows that are of the units if any are given."""
    names = [name for name in rows.schema.names if not name.startswith(SYSTEM_PREFIX)]
    renamed = upstream.renamed(names)
    kept = renamed
    if upstream.select is not None:
        chosen = {*upstream.select, *upstream.ids, *upstream.on}
        kept = [name for name in renamed if name in chosen]
    keys = [name for name in plan.units if name in upstream.on]
    found: list[pa.Table] = []
    with database() as connection:
        if units is not None:
            register(connection, "others", units.select(keys))
        for batch in rows if units is None or units.num_rows else ():
            table = pa.Table.from_batches([batch]).select(names).rename_columns(renamed)
            if upstream.filter is not None:
                table = filtered(upstream, table)
            table = table.select(kept)
            found.append(table if units is None else _join(connection, table, "SEMI", keys))
    nothing = rows.schema.empty_table().select(names).rename_columns(renamed).select(kept)
    return pa.concat_tables([nothing, *found])


def _join(connection: "DuckDBPyConnection", rows: pa.Table, kind: str, on: Sequence[str]) -> pa.Table:
    """Those of the rows, in their order, that a join with the table ``others`` leaves."""
    register(connection, "given", number_rows(rows.select(list(on))))
    query = f"SELECT {ROW} FROM given {kind} JOIN others USING ({', '.join(map(quoted, on))}) ORDER BY {ROW}"
    return rows.take(arrow_rows(connection.execute(query))[ROW])


def _ordered(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    keys = positional([rows[name] for name in names])  # a name that begins with a dot would be taken for a path
    order = pc.SortOptions([(name, "ascending") for name in keys.column_names])
    return rows.take(pc.call_function("sort_indices", [keys], order))


def _places(plan: SamplePlan, asked: pa.Table, rows: pa.Table) -> Any:
    """For each row the place of its unit among what was asked. Raises `InvalidInput`."""
    units = ", ".join(map(quoted, plan.units))
    with database() as connection:
        for name, table in (("asked", asked), ("given", rows)):
            register(connection, name, number_rows(table.select(list(plan.units)), f"{ROW}_{name}"))
        places = arrow_rows(
            connection.execute(f"SELECT {ROW}_asked FROM given LEFT JOIN asked USING ({units}) ORDER BY {ROW}_given")
        )[f"{ROW}_asked"]
        dropped = len(asked) - len(pc.call_function("unique", [places.drop_null()]))

        def examples(side: str, other: str) -> Callable[[], str]:
            lonely = f"SELECT DISTINCT {units} FROM {side} ANTI JOIN {other} USING ({units}) ORDER BY ALL"
            found = f"{lonely} LIMIT {EXAMPLES}"
            return lambda: ", ".join(map(str, arrow_rows(connection.execute(found)).to_pylist()))

        refuse_other_samples(
            plan.feature, places.null_count, dropped, examples("given", "asked"), examples("asked", "given")
        )
    return places


def _versions(rows: pa.Table, name: str, provenance: Any) -> Any:
    """The data versions of a field: those that the rows say, else the provenance."""
    if name not in members_of(rows, DATA_VERSION_BY_FIELD):
        return provenance
    return pc.call_function("coalesce", [member_of(rows, DATA_VERSION_BY_FIELD, name), provenance])


def _supplied(frame: pa.Table) -> pa.Table:
    """The columns in which users say something."""
    return frame.select(
        [name for name in frame.column_names if name not in SYSTEM_COLUMNS or name == DATA_VERSION_BY_FIELD]
    )


def members_of(frame: pa.Table, column: str) -> Sequence[str]:
    """The members of a column of versions; none where it is no struct. Raises `InvalidInput` where one is no text."""
    if column not in frame.column_names:
        return []
    kind = cast("Any", frame.schema.field(column).type)
    each: list[Any] = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    members: dict[str, Any] = {member.name: member.type for member in each}
    require_texts(column, {name: str(held) for name, held in members.items() if not _is_text(held)})
    return list(members)


def _is_text(kind: pa.DataType) -> bool:
    texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return pa.types.is_null(kind) or any(test(kind) for test in texts)


def digests(plan: SamplePlan, rows: pa.Table) -> dict[str, str]:
    """By member, the digest of the ids and data versions of rows."""
    return field_digests(rows, plan.ids, plan.members)
