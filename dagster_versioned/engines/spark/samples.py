"""Versions of samples in Spark frames: one plan of joins and hashes, all of it in the JVM."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, StructType

from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
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
    Upstream,
    refuse_bad_ids,
    refuse_equal_names,
    refuse_nested_ids,
    require_columns,
    require_equal_types,
    version_column,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns of ours beside the user's; no column of theirs begins like them.
_STATUS, _BEFORE, _ROWS, _COUNT = "metaxy_status", "metaxy_before", "metaxy_rows", "metaxy_count"
_NEW, _STALE, _DIFFERS = "metaxy_new", "metaxy_stale", "metaxy_differs"


def resolve(plan: SamplePlan, upstreams: "Mapping[str, DataFrame]", current: "DataFrame | None") -> SampleChanges:
    """As `engines.arrow_samples.resolve`. The frames of changes are lazy; their counts are computed at once."""
    frames = {each.name: _prepared(plan, each, upstreams[each.name]) for each in plan.upstreams}
    data = {each.name: _names(each, frames[each.name]) for each in plan.upstreams}
    refuse_equal_names(plan, data)
    require_equal_types(plan, {repr(name): dict(frame.dtypes) for name, frame in frames.items()})
    return _compared(plan, frames, current, _expected(plan, frames, data))


def resolve_samples(plan: SamplePlan, samples: "DataFrame", current: "DataFrame | None") -> SampleChanges:
    """As `engines.arrow_samples.resolve_samples`."""
    require_columns("The frame of samples", samples.columns, (*plan.ids, PROVENANCE_BY_FIELD))
    require_ids("the frame", plan.ids, samples)
    given = column(PROVENANCE_BY_FIELD)
    fields = {member: sf.coalesce(given[member].cast("string"), sf.lit("")) for member in plan.members}
    columns = [column(name) for name in samples.columns if name not in SYSTEM_COLUMNS]
    return _compared(plan, {"the frame": samples}, current, samples.select(*columns, *_versions(plan, fields)))


# --- what is expected ------------------------------------------------------------------------------------------------


def _prepared(plan: SamplePlan, upstream: Upstream, frame: "DataFrame") -> "DataFrame":
    """The upstream's columns by their new names, and its data versions by field, each in a column of its own."""
    what = f"Upstream {upstream.name!r}"
    require_columns(what, frame.columns, [*upstream.rename, DATA_VERSION_BY_FIELD])
    own = [name for name in frame.columns if name not in SYSTEM_COLUMNS]
    renamed = upstream.renamed(own)
    require_columns(what, renamed, [*upstream.ids, *upstream.on, *(upstream.select or ())])
    versions = [
        column(DATA_VERSION_BY_FIELD)[member].cast("string").alias(version_column(member, upstream.name))
        for member in upstream.fields
    ]
    table = frame.select(*(column(old).alias(new) for old, new in zip(own, renamed, strict=True)), *versions)
    if upstream.filter is not None:
        table = table.where(sf.expr(upstream.filter))
    require_ids(what, upstream.ids, table)
    if upstream.select is not None:
        kept = dict.fromkeys((*upstream.select, *upstream.ids, *upstream.on))
        table = table.select(
            *map(column, kept), *(column(version_column(member, upstream.name)) for member in upstream.fields)
        )
    return _grouped(plan, upstream, table) if upstream.grouped else table


def _grouped(plan: SamplePlan, upstream: Upstream, table: "DataFrame") -> "DataFrame":
    """The table with each version replaced by that of the group: the hash of all, in the order of the ids."""
    names = [version_column(member, upstream.name) for member in upstream.fields]
    order = [column(name).alias(f"i{i}") for i, name in enumerate(upstream.ids)]
    rows = sf.array_sort(
        sf.collect_list(sf.struct(*order, *(column(name).alias(f"v{i}") for i, name in enumerate(names))))
    )
    groups = table.groupBy(*map(column, upstream.on)).agg(rows.alias(_ROWS))
    versions = [
        hashed(plan.hash, sf.array_join(column(_ROWS)[f"v{i}"], SEPARATOR)).alias(name) for i, name in enumerate(names)
    ]
    groups = groups.select(*map(column, upstream.on), *versions)
    return table.drop(*names).join(groups, list(upstream.on))


def _expected(plan: SamplePlan, frames: "Mapping[str, DataFrame]", data: Mapping[str, Sequence[str]]) -> "DataFrame":
    # Those that every sample has come first: an optional one never decides which samples there are beside them.
    order = sorted(plan.upstreams, key=lambda each: each.optional)
    kind = "full" if all(each.optional for each in order) else "left"
    joined = reduce(
        lambda left, each: left.join(frames[each.name], list(plan.on), kind if each.optional else "inner"),
        order[1:],
        frames[order[0].name],
    )
    columns = dict.fromkeys([*plan.on, *(name for each in order for name in data[each.name])])
    own = [hashed(plan.hash, _text(each)).alias(version_column(each.member)) for each in plan.fields]
    fields = {member: column(version_column(member)) for member in plan.members}
    joined = joined.select(*map(column, columns), *own)
    return joined.select(*map(column, columns), *_versions(plan, fields))


def _text(field: FieldText) -> "Column":
    """The text of a field."""
    pieces = [
        sf.lit(piece) if isinstance(piece, str) else sf.coalesce(column(version_column(piece[1], piece[0])), sf.lit(""))
        for piece in field.pieces
    ]
    return sf.concat_ws(SEPARATOR, *pieces)


def _versions(plan: SamplePlan, fields: "Mapping[str, Column]") -> "list[Column]":
    """The four columns of versions; data versions are as the provenance until somebody sets them."""
    packed = sf.struct(*(fields[member].alias(member) for member in plan.members))
    whole = hashed(plan.hash, sf.concat_ws(SEPARATOR, *(fields[member] for member in plan.members)))
    return [
        packed.alias(PROVENANCE_BY_FIELD),
        whole.alias(PROVENANCE),
        packed.alias(DATA_VERSION_BY_FIELD),
        whole.alias(DATA_VERSION),
    ]


def hashed(how: SampleHash, text: "Column") -> "Column":
    """Each text as a version."""
    if how.algorithm == "xxh32":
        return _xxh32(how.length)(text)
    digits = sf.sha2(text, 256) if how.algorithm == "sha256" else sf.md5(text)
    return sf.substring(digits, 1, how.length)


def _xxh32(length: int) -> "Callable[[Column], Column]":
    # For stores of others only; what we write is hashed by the JVM.
    def digits(text: str | None) -> str | None:
        import xxhash

        return None if text is None else str(xxhash.xxh32_intdigest(text.encode()))[:length]

    return sf.udf(digits, "string")


# --- what is stored --------------------------------------------------------------------------------------------------


def _compared(
    plan: SamplePlan, frames: "Mapping[str, DataFrame]", current: "DataFrame | None", expected: "DataFrame"
) -> SampleChanges:
    on = list(plan.units)
    if current is None:
        new = expected.select(*map(column, on)).distinct().count()
        nothing = expected.limit(0)
        return SampleChanges(expected, nothing, nothing.select(*map(column, on)), Counts(new=new), expected)
    require_columns(f"The table of feature {plan.feature!r}", current.columns, (*plan.ids, PROVENANCE))
    types = {repr(name): dict(frame.dtypes) for name, frame in frames.items()}
    require_equal_types(plan, {**types, "its table": dict(current.dtypes)})
    held: list[str] = current.select(f"{PROVENANCE_BY_FIELD}.*").columns
    known = current.groupBy(*map(column, on)).agg(
        sf.any_value(column(PROVENANCE)).alias(_STATUS), sf.any_value(column(PROVENANCE_BY_FIELD)).alias(_BEFORE)
    )
    differs = [
        ~column(PROVENANCE_BY_FIELD)[member].eqNullSafe(column(_BEFORE)[member]) if member in held else sf.lit(True)
        for member in plan.members
    ]
    is_new, is_stale = column(_STATUS).isNull(), ~column(_STATUS).eqNullSafe(column(PROVENANCE))
    joined = expected.join(known, on, "left")
    units = joined.select(
        *map(column, on),
        is_new.alias(_NEW),
        is_stale.alias(_STALE),
        *(d.alias(f"{_DIFFERS}{i}") for i, d in enumerate(differs)),
    )
    if any(each.grouped for each in plan.upstreams) or set(on) != set(plan.ids):
        units = units.dropDuplicates(on)
    stale = ~column(_NEW) & column(_STALE)
    counted = units.agg(
        sf.count_if(column(_NEW)).alias("new"),
        sf.count_if(stale).alias("stale"),
        sf.count_if(~column(_STALE)).alias("unchanged"),
        *(sf.count_if(stale & column(f"{_DIFFERS}{i}")).alias(f"r{i}") for i in range(len(differs))),
    ).collect()[0]
    orphaned = current.select(*map(column, plan.ids)).join(expected, on, "left_anti")
    gone = orphaned.select(*map(column, on)).distinct().count()
    reasons = {member: counted[f"r{i}"] for i, member in enumerate(plan.members) if counted[f"r{i}"]}
    columns = [column(name) for name in expected.columns]
    # Kept where it is to be looked at again: both are parts of it.
    changed = joined.where(is_new | is_stale)
    return SampleChanges(
        changed.where(is_new).select(*columns),
        changed.where(~is_new).select(*columns),
        orphaned,
        Counts(counted["new"], counted["stale"], gone, counted["unchanged"], reasons),
        changed,
    )


# --- small things ----------------------------------------------------------------------------------------------------


def require_ids(what: str, ids: Sequence[str], table: "DataFrame") -> None:
    """Raise `InvalidInput` unless the columns identify the rows: a job."""
    nested = ArrayType, MapType, StructType
    refuse_nested_ids(what, [name for name in ids if isinstance(table.schema[name].dataType, nested)])
    names = [column(name) for name in ids]
    is_null = reduce(lambda left, right: left | right, (name.isNull() for name in names))
    groups = table.groupBy(*names).agg(sf.count(sf.lit(1)).alias(_COUNT)).where((sf.col(_COUNT) > 1) | is_null)
    counted = groups.agg(
        sf.coalesce(sf.sum(sf.when(is_null, sf.col(_COUNT))), sf.lit(0)).alias("nulls"),
        sf.count_if(~is_null).alias("repeated"),
    ).collect()[0]

    def examples() -> str:
        return ", ".join(str(row.asDict()) for row in groups.select(*names).orderBy(*names).limit(EXAMPLES).collect())

    refuse_bad_ids(what, ids, counted["nulls"], counted["repeated"], examples)


def _names(upstream: Upstream, frame: "DataFrame") -> list[str]:
    versions = {version_column(member, upstream.name) for member in upstream.fields}
    return [name for name in frame.columns if name not in versions]


def column(name: str) -> "Column":
    """The column of exactly this name."""
    return sf.col(f"`{name.replace('`', '``')}`")
