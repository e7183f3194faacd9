"""Versions of samples in Spark frames: one plan of joins and hashes, all of it in the JVM."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, MapType, StructType

from dagster_versioned.engines.comparison import as_examples
from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
    DECIMAL,
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
from dagster_versioned.engines.spark.assignment import quoted as column
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.comparison import bad_keys, has_null

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

# Columns of ours beside the user's; no column of theirs begins like them.
_STATUS, _BEFORE, _ROWS, _COUNT = "metaxy_status", "metaxy_before", "metaxy_rows", "metaxy_count"
_KIND, _DIFFERS = "metaxy_kind", "metaxy_differs"

_NEW, _STALE, _GONE = range(3)


def resolve(
    plan: SamplePlan,
    upstreams: "Mapping[str, DataFrame]",
    current: "DataFrame | None",
    pin: "Callable[[DataFrame], DataFrame]" = lambda frame: frame,
) -> SampleChanges:
    """See `SampleRows.resolve`. The frames of changes are lazy; their counts are computed at once."""
    frames = {each.name: _prepared(plan, each, upstreams[each.name]) for each in plan.upstreams}
    data = {each.name: each.data_columns(frames[each.name].columns) for each in plan.upstreams}
    refuse_equal_names(plan, data)
    require_equal_types(plan, {repr(name): dict(frame.dtypes) for name, frame in frames.items()})
    return _compared(plan, frames, current, _expected(plan, frames, data), pin)


def resolve_samples(
    plan: SamplePlan,
    samples: "DataFrame",
    current: "DataFrame | None",
    pin: "Callable[[DataFrame], DataFrame]" = lambda frame: frame,
) -> SampleChanges:
    """See `SampleRows.resolve_samples`."""
    require_columns("The frame of samples", samples.columns, (*plan.ids, PROVENANCE_BY_FIELD))
    _require_members(samples, PROVENANCE_BY_FIELD, plan.members)
    _require_flat("the frame", plan.ids, samples)
    return _compared(plan, {"the frame": samples}, current, with_provenance(plan, samples), pin)


def with_provenance(plan: SamplePlan, samples: "DataFrame") -> "DataFrame":
    """Samples that bring their provenance by field, with all of it, and with what users say of them."""
    given = column(PROVENANCE_BY_FIELD)
    fields = {member: sf.coalesce(given[member].cast("string"), sf.lit("")) for member in plan.members}
    columns = [column(name) for name in samples.columns if name not in SYSTEM_COLUMNS]
    return samples.select(*columns, *_provenance(plan, fields))


# --- what is expected ------------------------------------------------------------------------------------------------


def _prepared(plan: SamplePlan, upstream: UpstreamSamples, frame: "DataFrame") -> "DataFrame":
    """The upstream's columns by their new names, and its data versions by field, each in a column of its own."""
    what = f"Upstream {upstream.name!r}"
    require_columns(what, frame.columns, [*upstream.rename, DATA_VERSION_BY_FIELD])
    own = [name for name in frame.columns if name not in SYSTEM_COLUMNS]
    renamed = upstream.renamed(own)
    require_columns(what, renamed, [*upstream.ids, *upstream.on, *(upstream.select or ())])
    _require_members(frame, DATA_VERSION_BY_FIELD, upstream.fields)
    versions = [
        column(DATA_VERSION_BY_FIELD)[member].cast("string").alias(version_column(member, upstream.name))
        for member in upstream.fields
    ]
    table = frame.select(*(column(old).alias(new) for old, new in zip(own, renamed, strict=True)), *versions)
    if upstream.filter is not None:
        table = table.where(sf.expr(upstream.filter))
    _require_flat(what, upstream.ids, table)
    if not _is_plain(plan):
        require_ids(what, upstream.ids, table)
    if upstream.select is not None:
        kept = dict.fromkeys((*upstream.select, *upstream.ids, *upstream.on))
        table = table.select(*map(column, (*kept, *upstream.version_columns)))
    return _grouped(plan, upstream, table) if upstream.grouped else table


def _grouped(plan: SamplePlan, upstream: UpstreamSamples, table: "DataFrame") -> "DataFrame":
    """The table with each version replaced by that of the group: the hash of all, in the order of the ids."""
    names = upstream.version_columns
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
    columns = dict.fromkeys([*plan.on, *(name for each, _ in plan.joins for name in data[each.name])])
    own = [hashed(plan.hash, _text(each)).alias(version_column(each.member)) for each in plan.fields]
    fields = {member: column(version_column(member)) for member in plan.members}
    rows = joined(plan, frames).select(*map(column, columns), *own)
    return rows.select(*map(column, columns), *_provenance(plan, fields))


def joined(plan: SamplePlan, frames: "Mapping[str, DataFrame]") -> "DataFrame":
    """The rows of the upstreams, by name, that belong together."""
    (first, _), *others = plan.joins
    return reduce(
        lambda left, join: left.join(frames[join[0].name], list(plan.on), join[1]), others, frames[first.name]
    )


def _text(field: FieldText) -> "Column":
    """The text of a field."""
    pieces = [
        sf.lit(piece) if isinstance(piece, str) else sf.coalesce(column(version_column(piece[1], piece[0])), sf.lit(""))
        for piece in field.pieces
    ]
    return sf.concat_ws(SEPARATOR, *pieces)


def _provenance(plan: SamplePlan, fields: "Mapping[str, Column]") -> "list[Column]":
    """The two columns that say what samples were computed from."""
    packed = sf.struct(*(fields[member].alias(member) for member in plan.members))
    whole = hashed(plan.hash, sf.concat_ws(SEPARATOR, *(fields[member] for member in plan.members)))
    return [packed.alias(PROVENANCE_BY_FIELD), whole.alias(PROVENANCE)]


def hashed(how: SampleHash, text: "Column") -> "Column":
    """Each text as a version."""
    if how.algorithm in DECIMAL:
        # For stores of others only; what we write is hashed by the JVM.
        return sf.udf(self_contained(partial(decimal_hash, how)), "string")(text)
    digits, there_are = (sf.sha2(text, 256), 64) if how.algorithm == "sha256" else (sf.md5(text), 32)
    return digits if how.length == there_are else sf.substring(digits, 1, how.length)


# --- what is stored --------------------------------------------------------------------------------------------------


def _compared(
    plan: SamplePlan,
    frames: "Mapping[str, DataFrame]",
    current: "DataFrame | None",
    expected: "DataFrame",
    pin: "Callable[[DataFrame], DataFrame]",
) -> SampleChanges:
    """What differs between the expected and the stored, by one join of the two."""
    known = None
    changed = expected.withColumn(_KIND, sf.lit(_NEW))
    if current is not None:
        require_columns(f"The table of feature {plan.feature!r}", current.columns, (*plan.ids, PROVENANCE))
        types = {repr(name): dict(frame.dtypes) for name, frame in frames.items()}
        require_equal_types(plan, {**types, "its table": dict(current.dtypes)})
        known = _known(plan, current)
        changed = pin(_changed(plan, expected, known))
    # Of a first version, which is most of the work, only ids are looked at more than once.
    names = [] if known is None else _flags(plan)
    counted = _counted(plan, changed, names)
    new, old, gone = (counted[f"k{kind}"] for kind in (_NEW, _STALE, _GONE))
    unchanged = known.count() - old - gone if known is not None else 0
    if _is_plain(plan) and (
        counted["nulls"]
        or counted["repeated"]
        # Of two rows of a sample, none or one may differ from what is stored.
        or (known is not None and expected.count() != new + old + unchanged)
    ):
        ((name, frame),) = frames.items()
        require_ids(f"Upstream {name!r}" if plan.upstreams else name, plan.ids, frame)

    def rows(kind: int) -> "DataFrame":
        # Data versions are as the provenance until somebody sets them.
        supplied = column(PROVENANCE_BY_FIELD).alias(DATA_VERSION_BY_FIELD), column(PROVENANCE).alias(DATA_VERSION)
        return changed.where(column(_KIND) == kind).select(*map(column, expected.columns), *supplied)

    orphaned = _orphaned(plan, changed, current)
    reasons = {member: counted[name] for member, name in zip(plan.members, names, strict=False) if counted[name]}
    return SampleChanges(rows(_NEW), rows(_STALE), orphaned, Counts(new, old, gone, unchanged, reasons))


def _orphaned(plan: SamplePlan, changed: "DataFrame", current: "DataFrame | None") -> "DataFrame":
    """The ids of stored samples whose units are expected no more."""
    units = changed.where(column(_KIND) == _GONE).select(*map(column, plan.units))
    if current is None:
        return units
    if {*plan.units} == {*plan.ids}:
        return units.select(*map(column, plan.ids))
    return current.select(*map(column, plan.ids)).join(units, list(plan.units), "left_semi")


def _flags(plan: SamplePlan) -> list[str]:
    """What the columns are called that say whether a member is of another provenance."""
    return [f"{_DIFFERS}{i}" for i in range(len(plan.members))]


def _changed(plan: SamplePlan, expected: "DataFrame", known: "DataFrame") -> "DataFrame":
    """The expected rows that differ from what is stored, and the stored units that are expected no more."""
    held: list[str] = known.select(f"{_BEFORE}.*").columns
    joined = expected.join(known, list(plan.units), "full").where(~column(_STATUS).eqNullSafe(column(PROVENANCE)))
    differs = [
        ~column(PROVENANCE_BY_FIELD)[member].eqNullSafe(column(_BEFORE)[member]) if member in held else sf.lit(True)
        for member in plan.members
    ]
    kind = sf.when(column(PROVENANCE).isNull(), _GONE).when(column(_STATUS).isNull(), _NEW).otherwise(_STALE)
    flags = [differing.alias(name) for differing, name in zip(differs, _flags(plan), strict=True)]
    return joined.select(*map(column, expected.columns), kind.alias(_KIND), *flags)


def _counted(plan: SamplePlan, changed: "DataFrame", flags: Sequence[str]) -> "Row":
    """How many units there are of each kind, and of stale ones with each flag; and what is wrong with them."""
    units = changed.groupBy(*map(column, plan.units)).agg(
        sf.count(sf.lit(1)).alias(_COUNT), *(sf.max(column(name)).alias(name) for name in (_KIND, *flags))
    )
    return units.agg(
        *(sf.count_if(column(_KIND) == kind).alias(f"k{kind}") for kind in (_NEW, _STALE, _GONE)),
        *(sf.count_if((column(_KIND) == _STALE) & column(name)).alias(name) for name in flags),
        sf.count_if(has_null(plan.units)).alias("nulls"),
        sf.count_if(column(_COUNT) > 1).alias("repeated"),
    ).collect()[0]


def _known(plan: SamplePlan, current: "DataFrame") -> "DataFrame":
    """The stored units, each once, with what they were computed from; of one that does not say it, something else."""
    status = sf.coalesce(column(PROVENANCE), sf.lit("")).alias(_STATUS)
    stored = current.select(*map(column, plan.units), status, column(PROVENANCE_BY_FIELD).alias(_BEFORE))
    if set(plan.units) == set(plan.ids):
        return stored
    # The least status: of a unit of several rows, one may be marked as stale, which the empty text does.
    held = sf.min(column(_STATUS)).alias(_STATUS), sf.any_value(column(_BEFORE)).alias(_BEFORE)
    return stored.groupBy(*map(column, plan.units)).agg(*held)


def _is_plain(plan: SamplePlan) -> bool:
    """Whether each sample comes from exactly one, so that comparing them shows whether the ids identify them."""
    if not plan.upstreams:
        return True
    first, *others = plan.upstreams
    return not others and not first.grouped and {*first.ids} == {*plan.units} == {*plan.ids}


# --- small things ----------------------------------------------------------------------------------------------------


def require_ids(what: str, ids: Sequence[str], table: "DataFrame") -> None:
    """Raise `InvalidInput` unless the columns identify the rows: a job."""
    _require_flat(what, ids, table)
    nulls, repeated, examples = bad_keys(table, ids, ids)
    refuse_bad_ids(what, ids, nulls, repeated, lambda: as_examples(examples()))


def _require_members(frame: "DataFrame", name: str, wanted: Sequence[str]) -> None:
    kind = frame.schema[name].dataType
    require_members(name, kind.simpleString(), kind.fieldNames() if isinstance(kind, StructType) else [], wanted)


def _require_flat(what: str, ids: Sequence[str], table: "DataFrame") -> None:
    nested = ArrayType, MapType, StructType
    refuse_nested_ids(what, [name for name in ids if isinstance(table.schema[name].dataType, nested)])
