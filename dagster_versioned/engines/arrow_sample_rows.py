"""The rows of samples in Arrow tables: those that an increment asks for, and those that came of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema import schema_from_arrow, schema_to_arrow
from dagster_versioned.engines.arrow_samples import filtered, hashed, member_of, quoted, require_ids
from dagster_versioned.engines.frames import in_memory, stream
from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
    EXAMPLES,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SEPARATOR,
    SYSTEM_COLUMNS,
    SamplePlan,
    Upstream,
    refuse_other_samples,
    require_columns,
    require_plain_columns,
    require_types,
)
from dagster_versioned.engines.sql import database

_ROW = "metaxy_row"


def rows_of(plan: SamplePlan, upstreams: Mapping[str, pa.RecordBatchReader], units: pa.Table) -> pa.Table:
    """All that the upstreams, by name, say of some units, in the order of their ids; one batch is read at a time."""
    frames = {each.name: _read(plan, each, upstreams[each.name], units) for each in plan.upstreams}
    on = ", ".join(map(quoted, plan.on))
    # As when it is said which samples are expected (`arrow_samples`).
    order = sorted(plan.upstreams, key=lambda each: each.optional)
    kind = "FULL" if all(each.optional for each in order) else "LEFT"
    with database() as connection:
        for position, each in enumerate(order):
            frame = frames[each.name]
            keys = frame.select(list(plan.on)).append_column(f"{_ROW}{position}", pa.array(range(frame.num_rows)))
            connection.register(f"t{position}", keys)
        joined = "t0"
        for position, each in enumerate(order[1:], 1):
            joined += f" {kind if each.optional else 'INNER'} JOIN t{position} USING ({on})"
        found = connection.execute(
            f"SELECT {', '.join([on, *(f'{_ROW}{position}' for position in range(len(order)))])} FROM {joined}"
        ).to_arrow_table()
    columns: dict[str, Any] = {name: found[name] for name in plan.on}
    for position, each in enumerate(order):
        taken = frames[each.name].take(found[f"{_ROW}{position}"])
        columns |= {name: taken[name] for name in taken.column_names if name not in plan.on}
    ids = list(dict.fromkeys(name for each in order for name in (*plan.units, *each.ids) if name in columns))
    return pa.Table.from_pydict(columns).sort_by([(name, "ascending") for name in ids])


def finished(plan: SamplePlan, asked: pa.Table, frame: Any, types: Mapping[str, object]) -> pa.Table:
    """The rows that came of what was asked, with their versions.

    ``asked`` are units with the columns of their provenance, ``types`` those that ids have where they came from. The
    frame may say data versions of its own, for some fields or rows. Raises `InvalidInput` for rows that were not asked
    for, ids that are missing, null or come twice.
    """
    rows = in_memory(frame)
    if rows is None:
        schema, batches = stream(frame)
        rows = pa.Table.from_batches(list(batches), schema)
    what = f"What feature {plan.feature!r} returned"
    require_columns(what, rows.column_names, plan.ids)
    require_plain_columns(plan, what, rows.column_names, members_of(rows, DATA_VERSION_BY_FIELD))
    own = rows.select([name for name in rows.column_names if name not in SYSTEM_COLUMNS])
    own = own.cast(schema_to_arrow(schema_from_arrow(own.schema).all_nullable()))
    require_types(what, plan.units, dict(zip(own.schema.names, own.schema.types, strict=True)), types)
    require_ids(what, plan.ids, own)
    provenance = asked.take(_places(plan, asked, own))
    by_field = [_versions(rows, name, member_of(provenance, PROVENANCE_BY_FIELD, name)) for name in plan.members]
    packed = pa.StructArray.from_arrays([each.combine_chunks() for each in by_field], list(plan.members))
    whole = hashed(plan.hash, pc.call_function("binary_join_element_wise", [*by_field, pa.scalar(SEPARATOR)]))
    return (
        own.append_column(PROVENANCE_BY_FIELD, provenance[PROVENANCE_BY_FIELD])
        .append_column(PROVENANCE, provenance[PROVENANCE])
        .append_column(DATA_VERSION_BY_FIELD, packed)
        .append_column(DATA_VERSION, whole)
    )


def _read(plan: SamplePlan, upstream: Upstream, rows: pa.RecordBatchReader, units: pa.Table) -> pa.Table:
    """The upstream's columns by their new names, in those rows that are of the units."""
    names = [name for name in rows.schema.names if name not in SYSTEM_COLUMNS]
    renamed = [upstream.rename.get(name, name) for name in names]
    kept = renamed
    if upstream.select is not None:
        chosen = {*upstream.select, *upstream.ids, *upstream.on}
        kept = [name for name in renamed if name in chosen]
    keys = [name for name in plan.units if name in upstream.on]
    found: list[pa.Table] = []
    with database() as connection:
        connection.register("units", units.select(keys).group_by(keys).aggregate([]))
        for batch in rows:
            table = pa.Table.from_batches([batch]).select(names).rename_columns(renamed)
            if upstream.filter is not None:
                table = filtered(upstream, table)
            given = table.select(keys).append_column(_ROW, pa.array(range(table.num_rows), pa.int64()))
            connection.register("given", given)
            places = connection.execute(
                f"SELECT {_ROW} FROM given SEMI JOIN units USING ({', '.join(map(quoted, keys))})"
            ).to_arrow_table()
            found.append(table.select(kept).take(places[_ROW]))
    nothing = rows.schema.empty_table().select(names).rename_columns(renamed).select(kept)
    return pa.concat_tables([nothing, *found])


def _places(plan: SamplePlan, asked: pa.Table, rows: pa.Table) -> Any:
    """For each row the place of its unit among what was asked. Raises `InvalidInput`."""
    units = ", ".join(map(quoted, plan.units))
    with database() as connection:
        for name, table in (("asked", asked), ("given", rows)):
            keys = table.select(list(plan.units)).append_column(f"{_ROW}_{name}", pa.array(range(table.num_rows)))
            connection.register(name, keys)
        places = connection.execute(
            f"SELECT {_ROW}_asked FROM given LEFT JOIN asked USING ({units}) ORDER BY {_ROW}_given"
        ).to_arrow_table()[f"{_ROW}_asked"]
        dropped = len(asked) - len(pc.call_function("unique", [places.drop_null()]))

        def examples(one: str, other: str) -> Callable[[], str]:
            return lambda: ", ".join(
                map(
                    str,
                    connection.execute(
                        f"SELECT DISTINCT {units} FROM {one} ANTI JOIN {other} USING ({units}) ORDER BY ALL"
                        f" LIMIT {EXAMPLES}"
                    )
                    .to_arrow_table()
                    .to_pylist(),
                )
            )

        refuse_other_samples(
            plan.feature, places.null_count, dropped, examples("given", "asked"), examples("asked", "given")
        )
    return places


def _versions(rows: pa.Table, name: str, provenance: Any) -> Any:
    """The data versions of a field: those that the rows say, else the provenance."""
    if name not in members_of(rows, DATA_VERSION_BY_FIELD):
        return provenance
    return pc.call_function("coalesce", [member_of(rows, DATA_VERSION_BY_FIELD, name), provenance])


def members_of(frame: pa.Table, column: str) -> Sequence[str]:
    """The members of a column of versions; none where it is no struct."""
    if column not in frame.column_names:
        return []
    kind = cast("Any", frame.schema.field(column).type)
    return [kind.field(position).name for position in range(kind.num_fields)] if pa.types.is_struct(kind) else []
