"""The rows of samples in Spark frames, as `features.arrow.sample_rows` has them: lazy plans, hashed in the JVM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import CharType, NullType, StringType, VarcharType
from pyspark.sql.types import StructType as SparkStruct

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.frames import in_memory, stream
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
from dagster_versioned.engines.spark.engine import SparkEngine
from dagster_versioned.engines.spark.refused_expressions import translate_spark_errors
from dagster_versioned.engines.spark.releases import from_arrow
from dagster_versioned.engines.spark.samples import any_null, column, hashed, require_ids, with_provenance
from dagster_versioned.engines.spark.types import spark_schema
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.spark.content_versions import field_digests, with_content_versions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PIECE, _ROWS, _ASKED, _OTHERS = "metaxy_piece", "metaxy_rows", "metaxy_asked", "metaxy_others"
_BEFORE, _NOW = "metaxy_before", "metaxy_now"


def own(frame: Any, like: "DataFrame | None") -> "DataFrame":
    """A user's frame as one of Spark; times without a zone are those of the session, as Spark takes them everywhere.

    Raises `UnsupportedType`.
    """
    if isinstance(engine_for(frame), SparkEngine):
        return frame
    import pyarrow as pa

    assert like is not None  # only a frame of Spark is computed by Spark without another one
    table = in_memory(frame)
    schema, batches = stream(frame) if table is None else (table.schema, iter(table.to_batches()))
    kept = stored_schema(schema)
    return from_arrow(like.sparkSession, pa.Table.from_batches(list(conform_all(batches, kept)), schema_to_arrow(kept)))


def as_frame(rows: "DataFrame", frame_type: type) -> "DataFrame":
    """The frame itself."""
    return rows


def translated(conditions: Sequence[str]) -> AbstractContextManager[None]:
    """What Spark raises about conditions and values is `InvalidInput`."""
    return translate_spark_errors(conditions, "Nothing was computed or written.")


def pinned(frame: "DataFrame") -> "AbstractContextManager[DataFrame]":
    """The frame, computed once and kept until the block ends."""
    return SparkEngine().pinned(frame)


def names(frame: "DataFrame") -> list[str]:
    """The columns of a frame."""
    return frame.columns


def select(frame: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """A frame with these columns alone."""
    return frame.select(*map(column, columns))


def none_of(frame: "DataFrame") -> "DataFrame":
    """The frame without its rows."""
    return frame.limit(0)


def empty(schema: StructType, like: "DataFrame") -> "DataFrame":
    """A frame of a schema, without rows."""
    return like.sparkSession.createDataFrame([], spark_schema(schema))


def with_contents(frame: "DataFrame", columns: Mapping[str, Sequence[str]]) -> "DataFrame":
    """The frame with versions by field, each the hash of the values in some ``columns``, and of what it says itself.

    Data versions that it says stay. The one place where values go to Python: in batches, to be hashed as their digests
    are.
    """
    texts = {each: f"{SUPPLIED}.{each}" for each in members_of(frame, DATA_VERSION_BY_FIELD)}
    text_columns = {name: column(DATA_VERSION_BY_FIELD)[each].cast("string") for each, name in texts.items()}
    with_texts = frame.withColumns(text_columns) if texts else frame
    chosen = {each: [*columns[each], *([texts[each]] if each in texts else [])] for each in columns}
    versions = "metaxy_content"
    table = with_content_versions(with_texts, chosen, versions)
    table = table.select(*map(column, _supplied(frame)), column(versions).alias(PROVENANCE_BY_FIELD))
    is_supplied = DATA_VERSION_BY_FIELD in table.columns
    return table if is_supplied else table.withColumn(DATA_VERSION_BY_FIELD, column(PROVENANCE_BY_FIELD))


def stored(plan: SamplePlan, frame: "DataFrame", *, stale: bool) -> "DataFrame":
    """The ids and versions of stored samples, with all members of the plan; those of nobody where ``stale``."""

    def versions(name: str) -> "Column":
        held = [] if stale and name == PROVENANCE_BY_FIELD else members_of(frame, name)
        null = sf.lit(None).cast("string")
        found = (column(name)[each].cast("string") if each in held else null for each in plan.members)
        return sf.struct(*(each.alias(member) for each, member in zip(found, plan.members, strict=True))).alias(name)

    whole = sf.lit("") if stale else column(PROVENANCE)
    return frame.select(
        *map(column, plan.ids),
        versions(PROVENANCE_BY_FIELD),
        versions(DATA_VERSION_BY_FIELD),
        whole.alias(PROVENANCE),
    )


def marked_stale(frame: "DataFrame", condition: str) -> "DataFrame":
    """The frame in which rows that satisfy a condition were computed from nothing that is known."""
    return frame.withColumn(PROVENANCE, sf.when(sf.expr(condition), "").otherwise(column(PROVENANCE)))


def passing(upstream: UpstreamSamples, frame: "DataFrame") -> "DataFrame":
    """The rows of an upstream that pass its filter, by their new names."""
    renamed = zip(frame.columns, upstream.renamed(frame.columns), strict=True)
    return frame.select(*(column(old).alias(new) for old, new in renamed)).where(sf.expr(upstream.filter or "true"))


def count(frame: "DataFrame") -> int:
    """How many rows a frame has: a job."""
    return frame.count()


def rows_of(
    plan: SamplePlan, upstreams: "Mapping[str, Callable[[type], DataFrame]]", units: "DataFrame", *, every: bool
) -> "DataFrame":
    """All that the upstreams, by name, say of some units: joined with these before with each other."""
    wanted = None if every else units
    frames = {each.name: _read(plan, each, upstreams[each.name](type(units)), wanted) for each in plan.upstreams}
    # As when the expected samples are given (`samples`).
    order = sorted(plan.upstreams, key=lambda each: each.optional)
    kind = "full" if all(each.optional for each in order) else "left"
    rows = reduce(
        lambda left, each: left.join(frames[each.name], list(plan.on), kind if each.optional else "inner"),
        order[1:],
        frames[order[0].name],
    )
    return within(plan, rows, units) if plan.pairs and not every else rows


def samples_of(plan: SamplePlan, samples: "DataFrame", units: "DataFrame", *, every: bool) -> "DataFrame":
    """The samples of some units, without versions but for data versions that they say."""
    supplied = select(samples, _supplied(samples))
    return supplied if every else within(plan, supplied, units)


def within(plan: SamplePlan, rows: "DataFrame", units: "DataFrame") -> "DataFrame":
    """Those of the rows that are of some units."""
    return rows.join(select(units, plan.units), list(plan.units), "left_semi")


def differing(plan: SamplePlan, members: Sequence[str], before: "DataFrame", now: "DataFrame") -> "DataFrame":
    """The units that have other data versions of some ``members`` in one frame than in another, or none there."""

    def compared(frame: "DataFrame", side: str) -> "DataFrame":
        versions = [column(DATA_VERSION_BY_FIELD)[member].cast("string") for member in members]
        return frame.select(*map(column, plan.units), sf.struct(sf.lit(1), *versions).alias(side))

    sides = compared(before, _BEFORE).join(compared(now, _NOW), list(plan.units), "full")
    return sides.where(~column(_BEFORE).eqNullSafe(column(_NOW))).select(*map(column, plan.units))


def units_of(plan: SamplePlan, rows: "DataFrame") -> "DataFrame":
    """The units of rows with their provenance, each once."""
    units = select(rows, [*plan.units, PROVENANCE_BY_FIELD, PROVENANCE])
    return units.dropDuplicates(list(plan.units)) if any(each.grouped for each in plan.upstreams) else units


def together(one: "DataFrame", other: "DataFrame") -> "DataFrame":
    """The units of both."""
    return one.unionByName(other)


def pieces(plan: SamplePlan, units: "DataFrame", size: int) -> "Iterator[tuple[DataFrame, int]]":
    """The units in frames of at most ``size``, split by a hash of their columns."""
    count = -(-units.count() // size)
    counts: dict[int, int] = {}
    while count and (not counts or max(counts.values()) > size):
        piece = sf.pmod(sf.xxhash64(*map(column, plan.units)), sf.lit(count)).alias(_PIECE)
        found = units.groupBy(piece).agg(sf.count(sf.lit(1)).alias(_ROWS)).collect()
        counts = {row[_PIECE]: row[_ROWS] for row in found}
        if max(counts.values()) > size:
            count += 1 + count // 4
    for number in sorted(counts):
        chosen = sf.pmod(sf.xxhash64(*map(column, plan.units)), sf.lit(count)) == number
        yield units.where(chosen), counts[number]


def finished(
    plan: SamplePlan, asked: "DataFrame", rows: "DataFrame", pin: "Callable[[DataFrame], DataFrame]"
) -> "DataFrame":
    """The rows that came of units, with their versions; see `features.arrow.sample_rows.finished`.

    They are computed once, since they are looked at several times: ``pin`` keeps what comes of them.
    """
    what = f"What feature {plan.feature!r} returned"
    require_columns(what, rows.columns, plan.ids)
    require_plain_columns(plan, what, rows.columns, members_of(rows, DATA_VERSION_BY_FIELD))
    require_types(what, plan.units, dict(rows.dtypes), dict(asked.dtypes))
    joined = rows.select(*_plain(rows), *_as_asked(rows)).join(asked, list(plan.units), "left")
    found = pin(_with_data_versions(plan, joined))
    _require_asked(what, plan, asked, found)
    return found


def finished_samples(
    plan: SamplePlan,
    asked: "DataFrame",
    samples: "DataFrame",
    pin: "Callable[[DataFrame], DataFrame]",
    count: int,
    *,
    every: bool,
) -> "DataFrame":
    """The samples of units, with their versions; see `features.arrow.sample_rows.finished_samples`.

    They are computed once, with versions of their own, since a source may have changed after they were compared; where
    they are all that there are, they are joined with nothing.
    """
    what = f"The frame of samples of feature {plan.feature!r}"
    renamed = samples.select(*_plain(samples), column(PROVENANCE_BY_FIELD), *_as_asked(samples))
    wanted = renamed if every else within(plan, renamed, asked)
    found = pin(_with_data_versions(plan, with_provenance(plan, wanted)))
    require_ids(what, plan.ids, found)
    same = (
        found if every else found.join(select(asked, [*plan.units, PROVENANCE]), [*plan.units, PROVENANCE], "left_semi")
    )
    if (there := same.count()) != count:
        raise InvalidInput(
            f"{what} gave {there} samples as they were compared, of {count}: its source changed meanwhile. Nothing was "
            "written. Run again; give a frame that has the same rows each time it is computed."
        )
    return found


def _plain(frame: "DataFrame") -> "list[Column]":
    return [column(name) for name in frame.columns if name not in SYSTEM_COLUMNS]


def _as_asked(frame: "DataFrame") -> "list[Column]":
    """The data versions that a frame says itself, by another name."""
    return [column(DATA_VERSION_BY_FIELD).alias(_ASKED)] if members_of(frame, DATA_VERSION_BY_FIELD) else []


def _with_data_versions(plan: SamplePlan, rows: "DataFrame") -> "DataFrame":
    """Rows with their data versions: those that they say themselves (`_as_asked`), else those of their provenance."""
    members = members_of(rows, _ASKED)
    fields = [
        sf.coalesce(column(_ASKED)[each].cast("string"), column(PROVENANCE_BY_FIELD)[each]).alias(each)
        if each in members
        else column(PROVENANCE_BY_FIELD)[each].alias(each)
        for each in plan.members
    ]
    table = rows.select(
        *_plain(rows.drop(_ASKED)),
        column(PROVENANCE_BY_FIELD),
        column(PROVENANCE),
        sf.struct(*fields).alias(DATA_VERSION_BY_FIELD),
    )
    whole = sf.concat_ws(SEPARATOR, *(column(DATA_VERSION_BY_FIELD)[each] for each in plan.members))
    return table.withColumn(DATA_VERSION, hashed(plan.hash, whole))


def digests(plan: SamplePlan, rows: "DataFrame") -> dict[str, str]:
    """By member, the digest of the ids and data versions of rows."""
    return field_digests(rows, plan.ids, plan.members)


def _supplied(frame: "DataFrame") -> list[str]:
    """The columns in which users say something."""
    return [name for name in frame.columns if name not in SYSTEM_COLUMNS or name == DATA_VERSION_BY_FIELD]


def members_of(frame: "DataFrame", column: str) -> list[str]:
    """The members of a column of versions; none where it is no struct. Raises `InvalidInput` where one is no text."""
    kind = frame.schema[column].dataType if column in frame.columns else None
    members = {field.name: field.dataType for field in kind} if isinstance(kind, SparkStruct) else {}
    texts = StringType, CharType, VarcharType, NullType
    others = {name: each.simpleString() for name, each in members.items() if not isinstance(each, texts)}
    require_texts(column, others)
    return list(members)


def _read(plan: SamplePlan, upstream: UpstreamSamples, rows: "DataFrame", units: "DataFrame | None") -> "DataFrame":
    """The upstream's columns by their new names, in those rows that are of the units if any are given."""
    known = [name for name in rows.columns if not name.startswith(SYSTEM_PREFIX)]
    renamed = upstream.renamed(known)
    table = rows.select(*(column(old).alias(new) for old, new in zip(known, renamed, strict=True)))
    if upstream.filter is not None:
        table = table.where(sf.expr(upstream.filter))
    if upstream.select is not None:
        chosen = {*upstream.select, *upstream.ids, *upstream.on}
        table = select(table, [name for name in table.columns if name in chosen])
    if units is None:
        return table
    keys = [name for name in plan.units if name in upstream.on]
    return table.join(select(units, keys), keys, "left_semi")


def _require_asked(what: str, plan: SamplePlan, asked: "DataFrame", found: "DataFrame") -> None:
    """Raise `InvalidInput` unless ids identify the rows, joined with what was asked for, and they are of those units.

    One job where ids tell units apart.
    """
    on = list(plan.units)
    alone = {*on} == {*plan.ids}
    if not alone:
        require_ids(what, plan.ids, found)
    units = found.groupBy(*map(column, on)).agg(
        sf.count(sf.lit(1)).alias(_ROWS), sf.count_if(column(PROVENANCE).isNull()).alias(_OTHERS)
    )
    counted = units.agg(
        sf.coalesce(sf.sum(column(_OTHERS)), sf.lit(0)).alias("others"),
        sf.count_if(column(_OTHERS) == 0).alias("asked"),
        sf.count_if((column(_ROWS) > 1) | any_null(on)).alias("bad"),
    ).collect()[0]
    if alone and counted["bad"]:
        require_ids(what, plan.ids, found)
    lost = asked.count() - counted["asked"]

    def examples(rows: "DataFrame") -> "Callable[[], str]":
        ordered = select(rows, on).distinct().orderBy(*map(column, on)).limit(EXAMPLES)
        return lambda: ", ".join(str(row.asDict()) for row in ordered.collect())

    others = found.where(column(PROVENANCE).isNull())
    refuse_other_samples(
        plan.feature, counted["others"], lost, examples(others), examples(asked.join(found, on, "left_anti"))
    )
