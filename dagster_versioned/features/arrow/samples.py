"""Versions of samples in Arrow tables, computed by DuckDB."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dagster_versioned.delta.schema.types import schema_from_arrow
from dagster_versioned.engines.content_versions import positional
from dagster_versioned.engines.expression import stored
from dagster_versioned.engines.samples import (
    DATA_VERSION_BY_FIELD,
    DECIMAL,
    EXAMPLES,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SEPARATOR,
    SYSTEM_COLUMNS,
    Counts,
    FieldText,
    SampleChanges,
    SampleHash,
    SamplePlan,
    UpstreamSamples,
    decimal_hash,
    refuse_bad_ids,
    refuse_equal_names,
    refuse_nested_ids,
    require_columns,
    require_equal_types,
    require_members,
    version_column,
)
from dagster_versioned.engines.sql import Names, arrow_rows, database, is_true, register, select_rows

_STATUS = "metaxy_status"
_JOINED = f" || '{SEPARATOR}' || "


def resolve(plan: SamplePlan, upstreams: Mapping[str, pa.Table], current: pa.Table | None) -> SampleChanges:
    """See `SampleRows.resolve`."""
    frames = {each.name: _prepared(plan, each, upstreams[each.name]) for each in plan.upstreams}
    return _compared(plan, frames, current, _expected(plan, frames))


def resolve_samples(plan: SamplePlan, samples: pa.Table, current: pa.Table | None) -> SampleChanges:
    """See `SampleRows.resolve_samples`."""
    require_columns("The frame of samples", samples.column_names, (*plan.ids, PROVENANCE_BY_FIELD))
    require_ids("the frame", plan.ids, samples)
    fields = [member_of(samples, PROVENANCE_BY_FIELD, member).fill_null("") for member in plan.members]
    own = [name for name in samples.column_names if name not in SYSTEM_COLUMNS]
    return _compared(plan, {"the frame": samples}, current, _versioned(plan, samples.select(own), fields))


# --- what is expected ------------------------------------------------------------------------------------------------


def _prepared(plan: SamplePlan, upstream: UpstreamSamples, frame: pa.Table) -> pa.Table:
    """The upstream's columns by their new names, and its data versions by field, each in a column of its own."""
    what = f"Upstream {upstream.name!r}"
    require_columns(what, frame.column_names, [*upstream.rename, DATA_VERSION_BY_FIELD])
    versions = {member: member_of(frame, DATA_VERSION_BY_FIELD, member) for member in upstream.fields}
    names = [name for name in frame.column_names if name not in SYSTEM_COLUMNS]
    table = frame.select(names).rename_columns(upstream.renamed(names))
    require_columns(what, table.column_names, [*upstream.ids, *upstream.on, *(upstream.select or ())])
    for member, values in versions.items():
        table = table.append_column(version_column(member, upstream.name), values)
    if upstream.filter is not None:
        table = filtered(upstream, table)
    require_ids(what, upstream.ids, table)
    if upstream.select is not None:
        kept = dict.fromkeys((*upstream.select, *upstream.ids, *upstream.on))
        table = table.select([*kept, *upstream.version_columns])
    return _grouped(plan, upstream, table) if upstream.grouped else table


def filtered(upstream: UpstreamSamples, table: pa.Table) -> pa.Table:
    """The rows of an upstream, by their new names, that pass its filter."""
    return table.filter(cast("Any", pa.array(matching(table, upstream.filter or ""))))


def matching(table: pa.Table, condition: str) -> NDArray[np.bool_]:
    """For each row whether a condition is true. Raises `InvalidInput`."""
    side = "upstream"
    named = table.rename_columns([stored(side, name) for name in table.column_names])
    return is_true(named, Names({side: schema_from_arrow(table.schema)}).resolve(condition))


def _expected(plan: SamplePlan, frames: Mapping[str, pa.Table]) -> pa.Table:
    data = {each.name: each.data_columns(frames[each.name].column_names) for each in plan.upstreams}
    refuse_equal_names(plan, data)
    require_equal_types(plan, {repr(name): _types(frame) for name, frame in frames.items()})
    columns = dict.fromkeys([*plan.on, *(name for each, _ in plan.joins for name in data[each.name])])
    texts = {each.member: _text(each) for each in plan.fields}
    named = [f"{texts[member]} AS f{position}" for position, member in enumerate(plan.members)]
    given = {f"t{position}": frames[each.name] for position, (each, _) in enumerate(plan.joins)}
    rows = select_rows(f"SELECT {', '.join([*map(quoted, columns), *named])} FROM {joined(plan)}", **given)
    fields = [hashed(plan.hash, rows.column(len(columns) + position)) for position in range(len(plan.members))]
    return _versioned(plan, rows.select(list(range(len(columns)))), fields)


def joined(plan: SamplePlan) -> str:
    """The upstreams joined, in SQL: ``t0``, …, in the order of `SamplePlan.joins`."""
    on = ", ".join(map(quoted, plan.on))
    others = enumerate(plan.joins[1:], 1)
    return "".join(["t0", *(f" {kind.upper()} JOIN t{position} USING ({on})" for position, (_, kind) in others)])


def _grouped(plan: SamplePlan, upstream: UpstreamSamples, table: pa.Table) -> pa.Table:
    """The table with each version replaced by that of the group: the hash of all, in the order of the ids."""
    on, order = (", ".join(map(quoted, names)) for names in (upstream.on, upstream.ids))
    names = upstream.version_columns
    # Of nulls alone this would be a null, where Spark has an empty text.
    texts = (
        f"coalesce(string_agg({quoted(name)}, '{SEPARATOR}' ORDER BY {order}), '') AS {quoted(name)}" for name in names
    )
    groups = select_rows(f"SELECT {', '.join([on, *texts])} FROM given GROUP BY {on}", given=table)
    for name in names:
        position = groups.column_names.index(name)
        groups = groups.set_column(position, name, hashed(plan.hash, groups.column(name)))
    rest = ", ".join(quoted(name) for name in table.column_names if name not in names)
    query = f"SELECT {', '.join([rest, *map(quoted, names)])} FROM (SELECT {rest} FROM given) JOIN groups USING ({on})"
    return select_rows(query, given=table, groups=groups)


def _text(field: FieldText) -> str:
    """The text of a field, in SQL."""
    pieces = [
        _literal(piece) if isinstance(piece, str) else f"coalesce({quoted(version_column(piece[1], piece[0]))}, '')"
        for piece in field.pieces
    ]
    return _JOINED.join(pieces)


def _versioned(plan: SamplePlan, rows: pa.Table, fields: Sequence[Any]) -> pa.Table:
    """The rows with their four columns of versions; data versions are as the provenance until somebody sets them."""
    packed = pa.StructArray.from_arrays([each.combine_chunks() for each in fields], list(plan.members))
    whole = hashed(plan.hash, pc.call_function("binary_join_element_wise", [*fields, pa.scalar(SEPARATOR)]))
    for name, values in zip(SYSTEM_COLUMNS, (packed, whole, packed, whole), strict=True):
        rows = rows.append_column(name, values)
    return rows


def hashed(how: SampleHash, texts: Any) -> Any:
    """Each text as a version."""
    if how.algorithm in DECIMAL:
        # For stores of others only; what we write is hashed by the database.
        return pa.chunked_array([pa.array((decimal_hash(how, text) for text in texts.to_pylist()), pa.string())])
    query = f"SELECT left({how.algorithm}(x), {how.length}) AS x FROM given"
    return select_rows(query, given=pa.table({"x": texts}))["x"]


# --- what is stored --------------------------------------------------------------------------------------------------


def _compared(
    plan: SamplePlan, frames: Mapping[str, pa.Table], current: pa.Table | None, expected: pa.Table
) -> SampleChanges:
    if current is None:
        nothing = expected.slice(0, 0)
        return SampleChanges(expected, nothing, nothing.select(list(plan.units)), Counts(new=_units(plan, expected)))
    require_columns(f"The table of feature {plan.feature!r}", current.column_names, (*plan.ids, PROVENANCE))
    types = {**{repr(name): _types(frame) for name, frame in frames.items()}, "its table": _types(current)}
    require_equal_types(plan, types)
    on = ", ".join(map(quoted, plan.units))
    names = {member: f"metaxy_before.{member}" for member in plan.members}
    ids = list(plan.ids)
    # Who does not say what it was computed from was computed from something else.
    status = pc.call_function("coalesce", [current[PROVENANCE], pa.scalar("")])
    stored = current.select(ids).append_column(_STATUS, status)
    for member, name in names.items():
        stored = stored.append_column(name, _before(current, member))
    # The least status: of a unit of several rows, one may be marked as stale, which the empty text does.
    held = ", ".join(
        [f"min({_STATUS}) AS {_STATUS}", *(f"any_value({quoted(name)}) AS {quoted(name)}" for name in names.values())]
    )
    known = f"(SELECT {on}, {held} FROM stored GROUP BY {on})"
    differs = f"{_STATUS} IS DISTINCT FROM {PROVENANCE}"
    changed = select_rows(
        f"SELECT * FROM expected LEFT JOIN {known} USING ({on}) WHERE {differs}", expected=expected, stored=stored
    )
    orphaned = select_rows(
        f"SELECT {', '.join(map(quoted, ids))} FROM stored ANTI JOIN expected USING ({on})",
        expected=expected,
        stored=stored,
    )
    is_new = pc.call_function("is_null", [changed[_STATUS]])
    stale = changed.filter(pc.call_function("invert", [is_new]))
    new = changed.filter(is_new).select(expected.column_names)
    counts = Counts(
        _units(plan, new),
        _units(plan, stale),
        _units(plan, orphaned),
        _units(plan, expected) - _units(plan, changed),
        {
            member: count
            for member, name in names.items()
            if (count := _units(plan, stale.filter(_differs(stale, member, name))))
        },
    )
    return SampleChanges(new, stale.select(expected.column_names), orphaned, counts)


def _units(plan: SamplePlan, rows: pa.Table) -> int:
    """How many samples there are, by the columns that they are matched by."""
    if not rows.num_rows:
        return 0
    keys = positional([rows[name] for name in plan.units])
    return len(keys.group_by(keys.column_names).aggregate([]))


def _before(current: pa.Table, member: str) -> Any:
    """The stored provenance of a field; nulls for one that the feature did not have."""
    if _position(current, PROVENANCE_BY_FIELD, member) < 0:
        return pa.nulls(current.num_rows, pa.string())
    return member_of(current, PROVENANCE_BY_FIELD, member)


def _differs(rows: pa.Table, member: str, before: str) -> Any:
    equal = pc.call_function("equal", [member_of(rows, PROVENANCE_BY_FIELD, member), rows[before]])
    return pc.call_function("invert", [equal.fill_null(False)])


# --- small things ----------------------------------------------------------------------------------------------------


def require_ids(what: str, ids: Sequence[str], table: pa.Table) -> None:
    """Raise `InvalidInput` unless the columns identify the rows."""
    refuse_nested_ids(what, [name for name in ids if pa.types.is_nested(cast("pa.DataType", _types(table)[name]))])
    names = ", ".join(map(quoted, ids))
    is_null = " OR ".join(f"{quoted(name)} IS NULL" for name in ids)
    with database() as connection:
        register(connection, "given", table.select(list(ids)))
        nulls, repeated = connection.execute(
            f"SELECT (SELECT count(*) FROM given WHERE {is_null}),"
            f" (SELECT count(*) FROM (SELECT 1 FROM given WHERE NOT ({is_null}) GROUP BY {names} HAVING count(*) > 1))"
        ).fetchall()[0]

        def examples() -> str:
            found = arrow_rows(
                connection.execute(
                    f"SELECT {names} FROM given GROUP BY {names} HAVING count(*) > 1 OR {is_null} ORDER BY ALL"
                    f" LIMIT {EXAMPLES}"
                )
            )
            return ", ".join(map(str, found.to_pylist()))

        refuse_bad_ids(what, ids, nulls, repeated, examples)


def member_of(frame: pa.Table, column: str, member: str) -> Any:
    """The versions of one field. Raises `InvalidInput` where the column has none."""
    position = _position(frame, column, member)
    require_members(column, _types(frame)[column], [member] if position >= 0 else [], [member])
    text = pc.call_function("struct_field", [frame.column(column)], pc.StructFieldOptions([position]))
    return text.cast(pa.string())


def _position(frame: pa.Table, column: str, member: str) -> int:
    kind = cast("pa.DataType", _types(frame)[column])
    return kind.get_field_index(member) if pa.types.is_struct(kind) else -1


def _types(table: pa.Table) -> dict[str, object]:
    return dict(zip(table.schema.names, table.schema.types, strict=True))


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
