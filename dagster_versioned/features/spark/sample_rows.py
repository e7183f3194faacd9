"""The rows of samples in Spark frames, as `features.arrow.sample_rows` has them: lazy plans, hashed in the JVM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import CharType, NullType, StringType, VarcharType
from pyspark.sql.types import StructType as SparkStruct

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.frames import stored_table
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
    SampleChanges,
    SamplePlan,
    UpstreamSamples,
    refuse_other_samples,
    require_texts,
)
from dagster_versioned.engines.spark.assignment import quoted as column
from dagster_versioned.engines.spark.comparison import has_null
from dagster_versioned.engines.spark.engine import SparkEngine
from dagster_versioned.engines.spark.refused_expressions import translate_spark_errors
from dagster_versioned.engines.spark.releases import from_arrow
from dagster_versioned.engines.spark.samples import (
    hashed,
    joined,
    require_ids,
    resolve,
    resolve_samples,
    with_provenance,
)
from dagster_versioned.engines.spark.types import spark_schema
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.sample_rows import SampleRows
from dagster_versioned.features.spark.content_versions import field_digests, with_content_versions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PIECE, _ROWS, _ASKED, _OTHERS = "metaxy_piece", "metaxy_rows", "metaxy_asked", "metaxy_others"
_BEFORE, _NOW = "metaxy_before", "metaxy_now"


class SparkSampleRows(SampleRows["DataFrame"]):
    """The rows of samples in lazy frames: ``pin`` keeps what is looked at several times."""

    def resolve(
        self,
        plan: SamplePlan,
        upstreams: "Mapping[str, DataFrame]",
        current: "DataFrame | None",
        pin: "Callable[[DataFrame], DataFrame]",
    ) -> SampleChanges:
        return resolve(plan, upstreams, current, pin)

    def resolve_samples(
        self,
        plan: SamplePlan,
        samples: "DataFrame",
        current: "DataFrame | None",
        pin: "Callable[[DataFrame], DataFrame]",
    ) -> SampleChanges:
        return resolve_samples(plan, samples, current, pin)

    def own(self, frame: Any, like: "DataFrame | None" = None) -> "DataFrame":
        """As of any engine; times without a zone are those of the session, as Spark takes them everywhere."""
        if isinstance(engine_for(frame), SparkEngine):
            return frame
        assert like is not None  # only a frame of Spark is computed by Spark without another one
        return from_arrow(like.sparkSession, stored_table(frame))

    def as_frame(self, rows: "DataFrame", frame_type: type) -> "DataFrame":
        return rows

    def translated(self, conditions: Sequence[str]) -> AbstractContextManager[None]:
        return translate_spark_errors(conditions, "Nothing was computed or written.")

    def pinned(self, frame: "DataFrame") -> "AbstractContextManager[DataFrame]":
        return SparkEngine().pinned(frame)

    def names(self, frame: "DataFrame") -> list[str]:
        return frame.columns

    def types(self, frame: "DataFrame") -> dict[str, object]:
        return dict(frame.dtypes)

    def select(self, frame: "DataFrame", columns: Sequence[str]) -> "DataFrame":
        return frame.select(*map(column, columns))

    def none_of(self, frame: "DataFrame") -> "DataFrame":
        return frame.limit(0)

    def empty(self, schema: StructType, like: "DataFrame | None" = None) -> "DataFrame":
        assert like is not None  # only of a table in memory is a schema enough
        return like.sparkSession.createDataFrame([], spark_schema(schema))

    def members_of(self, frame: "DataFrame", column: str) -> list[str]:
        kind = frame.schema[column].dataType if column in frame.columns else None
        members = {field.name: field.dataType for field in kind} if isinstance(kind, SparkStruct) else {}
        texts = StringType, CharType, VarcharType, NullType
        others = {name: each.simpleString() for name, each in members.items() if not isinstance(each, texts)}
        require_texts(column, others)
        return list(members)

    def with_contents(self, frame: "DataFrame", columns: Mapping[str, Sequence[str]]) -> "DataFrame":
        """The one place where values go to Python: in batches, to be hashed as their digests are."""
        texts = {each: f"{SUPPLIED}.{each}" for each in self.members_of(frame, DATA_VERSION_BY_FIELD)}
        text_columns = {name: column(DATA_VERSION_BY_FIELD)[each].cast("string") for each, name in texts.items()}
        with_texts = frame.withColumns(text_columns) if texts else frame
        chosen = {each: [*columns[each], *([texts[each]] if each in texts else [])] for each in columns}
        versions = "metaxy_content"
        table = with_content_versions(with_texts, chosen, versions)
        supplied = self.supplied(frame).columns
        table = table.select(*map(column, supplied), column(versions).alias(PROVENANCE_BY_FIELD))
        is_supplied = DATA_VERSION_BY_FIELD in table.columns
        return table if is_supplied else table.withColumn(DATA_VERSION_BY_FIELD, column(PROVENANCE_BY_FIELD))

    def stored(self, plan: SamplePlan, frame: "DataFrame", *, stale: bool) -> "DataFrame":
        def versions(name: str) -> "Column":
            held = [] if stale and name == PROVENANCE_BY_FIELD else self.members_of(frame, name)
            null = sf.lit(None).cast("string")
            found = ((column(name)[each].cast("string") if each in held else null).alias(each) for each in plan.members)
            return sf.struct(*found).alias(name)

        whole = sf.lit("") if stale else column(PROVENANCE)
        return frame.select(
            *map(column, plan.ids),
            versions(PROVENANCE_BY_FIELD),
            versions(DATA_VERSION_BY_FIELD),
            whole.alias(PROVENANCE),
        )

    def marked_stale(self, frame: "DataFrame", condition: str) -> "DataFrame":
        return frame.withColumn(PROVENANCE, sf.when(sf.expr(condition), "").otherwise(column(PROVENANCE)))

    def passing(self, upstream: UpstreamSamples, frame: "DataFrame") -> "DataFrame":
        renamed = zip(frame.columns, upstream.renamed(frame.columns), strict=True)
        return frame.select(*(column(old).alias(new) for old, new in renamed)).where(sf.expr(upstream.filter or "true"))

    def count(self, frame: "DataFrame") -> int:
        return frame.count()

    def rows_of(
        self,
        plan: SamplePlan,
        upstreams: "Mapping[str, Callable[[type], DataFrame]]",
        units: "DataFrame",
        *,
        every: bool,
    ) -> "DataFrame":
        wanted = None if every else units
        frames = {
            each.name: self._read(plan, each, upstreams[each.name](type(units)), wanted) for each in plan.upstreams
        }
        rows = joined(plan, frames)
        return self.within(plan, rows, units) if plan.pairs and not every else rows

    def within(self, plan: SamplePlan, rows: "DataFrame", units: "DataFrame") -> "DataFrame":
        return rows.join(self.select(units, plan.units), list(plan.units), "left_semi")

    def differing(self, plan: SamplePlan, members: Sequence[str], before: "DataFrame", now: "DataFrame") -> "DataFrame":
        def compared(frame: "DataFrame", side: str) -> "DataFrame":
            versions = [column(DATA_VERSION_BY_FIELD)[member].cast("string") for member in members]
            return frame.select(*map(column, plan.units), sf.struct(sf.lit(1), *versions).alias(side))

        sides = compared(before, _BEFORE).join(compared(now, _NOW), list(plan.units), "full")
        return sides.where(~column(_BEFORE).eqNullSafe(column(_NOW))).select(*map(column, plan.units))

    def units_of(self, plan: SamplePlan, rows: "DataFrame") -> "DataFrame":
        units = self.select(rows, [*plan.units, PROVENANCE_BY_FIELD, PROVENANCE])
        return units.dropDuplicates(list(plan.units)) if any(each.grouped for each in plan.upstreams) else units

    def together(self, one: "DataFrame", other: "DataFrame") -> "DataFrame":
        return one.unionByName(other)

    def pieces(self, plan: SamplePlan, units: "DataFrame", size: int) -> "Iterator[tuple[DataFrame, int]]":
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
        self,
        plan: SamplePlan,
        asked: "DataFrame",
        rows: "DataFrame",
        pin: "Callable[[DataFrame], DataFrame]",
    ) -> "DataFrame":
        what = self.require_returned(plan, asked, rows)
        both = rows.select(*_plain(rows), *self._as_asked(rows)).join(asked, list(plan.units), "left")
        found = pin(self._with_data_versions(plan, both))
        _require_asked(what, plan, asked, found)
        return found

    def finished_samples(
        self,
        plan: SamplePlan,
        asked: "DataFrame",
        samples: "DataFrame",
        pin: "Callable[[DataFrame], DataFrame]",
        count: int,
        *,
        every: bool,
    ) -> "DataFrame":
        """They are computed once, with versions of their own, since a source may have changed after they were compared.

        Where they are all that there are, they are joined with nothing.
        """
        what = f"The frame of samples of feature {plan.feature!r}"
        renamed = samples.select(*_plain(samples), column(PROVENANCE_BY_FIELD), *self._as_asked(samples))
        wanted = renamed if every else self.within(plan, renamed, asked)
        found = pin(self._with_data_versions(plan, with_provenance(plan, wanted)))
        require_ids(what, plan.ids, found)
        compared = [*plan.units, PROVENANCE]
        same = found if every else found.join(self.select(asked, compared), compared, "left_semi")
        if (there := same.count()) != count:
            raise InvalidInput(
                f"{what} gave {there} samples as they were compared, of {count}: its source changed meanwhile. Nothing "
                "was written. Run again; give a frame that has the same rows each time it is computed."
            )
        return found

    def digests(self, plan: SamplePlan, rows: "DataFrame") -> dict[str, str]:
        return field_digests(rows, plan.ids, plan.members)

    def _as_asked(self, frame: "DataFrame") -> "list[Column]":
        """The data versions that a frame says itself, by another name."""
        return [column(DATA_VERSION_BY_FIELD).alias(_ASKED)] if self.members_of(frame, DATA_VERSION_BY_FIELD) else []

    def _with_data_versions(self, plan: SamplePlan, rows: "DataFrame") -> "DataFrame":
        """Rows with their data versions: those that they say themselves (`_as_asked`), else the provenance."""
        members = self.members_of(rows, _ASKED)
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

    def _read(
        self, plan: SamplePlan, upstream: UpstreamSamples, rows: "DataFrame", units: "DataFrame | None"
    ) -> "DataFrame":
        """The upstream's columns by their new names, in those rows that are of the units if any are given."""
        known = [name for name in rows.columns if not name.startswith(SYSTEM_PREFIX)]
        renamed = upstream.renamed(known)
        table = rows.select(*(column(old).alias(new) for old, new in zip(known, renamed, strict=True)))
        if upstream.filter is not None:
            table = table.where(sf.expr(upstream.filter))
        table = self.select(table, upstream.selected(table.columns))
        if units is None:
            return table
        keys = [name for name in plan.units if name in upstream.on]
        return table.join(self.select(units, keys), keys, "left_semi")


def _plain(frame: "DataFrame") -> "list[Column]":
    return [column(name) for name in frame.columns if name not in SYSTEM_COLUMNS]


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
        sf.count_if((column(_ROWS) > 1) | has_null(on)).alias("bad"),
    ).collect()[0]
    if alone and counted["bad"]:
        require_ids(what, plan.ids, found)
    lost = asked.count() - counted["asked"]

    def examples(rows: "DataFrame") -> "Callable[[], str]":
        ordered = rows.select(*map(column, on)).distinct().orderBy(*map(column, on)).limit(EXAMPLES)
        return lambda: ", ".join(str(row.asDict()) for row in ordered.collect())

    others = found.where(column(PROVENANCE).isNull())
    refuse_other_samples(
        plan.feature, counted["others"], lost, examples(others), examples(asked.join(found, on, "left_anti"))
    )
