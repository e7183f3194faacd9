"""The rows of samples in Arrow tables: those that an increment asks for, and those that came of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.content_versions import content_versions, field_digests, positional
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.frames import stored_table, to_frame
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
from dagster_versioned.engines.spark.releases import to_arrow
from dagster_versioned.engines.sql import arrow_rows, database, register, select_rows
from dagster_versioned.features.arrow.samples import (
    filtered,
    hashed,
    joined,
    matching,
    member_of,
    quoted,
    require_ids,
    resolve,
    resolve_samples,
)
from dagster_versioned.features.sample_rows import SampleRows

ROW = "metaxy_row"
"""What `number_rows` calls the number of a row; no column of a user is called so."""


class ArrowSampleRows(SampleRows[pa.Table]):
    """The rows of samples in tables in memory, computed by DuckDB."""

    def resolve(
        self, plan: SamplePlan, upstreams: Mapping[str, pa.Table], current: pa.Table | None, pin: object = None
    ) -> SampleChanges:
        return resolve(plan, upstreams, current)

    def resolve_samples(
        self, plan: SamplePlan, samples: pa.Table, current: pa.Table | None, pin: object = None
    ) -> SampleChanges:
        return resolve_samples(plan, samples, current)

    def own(self, frame: Any, like: pa.Table | None = None) -> pa.Table:
        return stored_table(frame if isinstance(engine_for(frame), ArrowEngine) else to_arrow(frame))

    def as_frame(self, rows: pa.Table, frame_type: type) -> Any:
        return to_frame(rows, frame_type)

    def translated(self, conditions: Sequence[str]) -> AbstractContextManager[None]:
        return nullcontext()

    def pinned(self, frame: pa.Table) -> AbstractContextManager[pa.Table]:
        return nullcontext(frame)

    def names(self, frame: pa.Table) -> list[str]:
        return frame.column_names

    def types(self, frame: pa.Table) -> dict[str, object]:
        return dict(zip(frame.schema.names, frame.schema.types, strict=True))

    def select(self, frame: pa.Table, columns: Sequence[str]) -> pa.Table:
        return frame.select(list(columns))

    def none_of(self, frame: pa.Table) -> pa.Table:
        return frame.slice(0, 0)

    def empty(self, schema: StructType, like: pa.Table | None = None) -> pa.Table:
        return schema_to_arrow(schema).empty_table()

    def members_of(self, frame: pa.Table, column: str) -> Sequence[str]:
        if column not in frame.column_names:
            return []
        kind = cast("Any", frame.schema.field(column).type)
        each: list[Any] = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        members: dict[str, Any] = {member.name: member.type for member in each}
        require_texts(column, {name: str(held) for name, held in members.items() if not _is_text(held)})
        return list(members)

    def with_contents(self, frame: pa.Table, columns: Mapping[str, Sequence[str]]) -> pa.Table:
        texts = {each: f"{SUPPLIED}.{each}" for each in self.members_of(frame, DATA_VERSION_BY_FIELD)}
        with_texts = frame
        for each, name in texts.items():
            with_texts = with_texts.append_column(name, member_of(frame, DATA_VERSION_BY_FIELD, each))
        chosen = ([*columns[each], *([texts[each]] if each in texts else [])] for each in columns)
        fields = [content_versions(with_texts, names).combine_chunks() for names in chosen]
        # An array of members knows no length without any.
        versions = pa.StructArray.from_arrays(fields, list(columns)) if fields else pa.nulls(len(frame), pa.struct([]))
        table = self.supplied(frame).append_column(PROVENANCE_BY_FIELD, versions)
        is_supplied = DATA_VERSION_BY_FIELD in table.column_names
        return table if is_supplied else table.append_column(DATA_VERSION_BY_FIELD, versions)

    def stored(self, plan: SamplePlan, frame: pa.Table, *, stale: bool) -> pa.Table:
        table = frame.select(list(plan.ids))
        for column in (PROVENANCE_BY_FIELD, DATA_VERSION_BY_FIELD):
            held: Sequence[str] = [] if stale and column == PROVENANCE_BY_FIELD else self.members_of(frame, column)
            nulls = pa.nulls(frame.num_rows, pa.string())
            fields = [
                member_of(frame, column, each).combine_chunks() if each in held else nulls for each in plan.members
            ]
            table = table.append_column(column, pa.StructArray.from_arrays(fields, list(plan.members)))
        whole = pa.repeat("", frame.num_rows) if stale else frame[PROVENANCE]
        return table.append_column(PROVENANCE, whole)

    def marked_stale(self, frame: pa.Table, condition: str) -> pa.Table:
        is_stale = pa.array(matching(frame, condition))
        marked = pc.call_function("if_else", [is_stale, pa.scalar(""), frame[PROVENANCE].cast(pa.string())])
        return frame.set_column(frame.column_names.index(PROVENANCE), PROVENANCE, marked)

    def passing(self, upstream: UpstreamSamples, frame: pa.Table) -> pa.Table:
        return filtered(upstream, frame.rename_columns(upstream.renamed(frame.column_names)))

    def count(self, frame: pa.Table) -> int:
        return frame.num_rows

    def rows_of(
        self, plan: SamplePlan, upstreams: Mapping[str, Callable[[type], Any]], units: pa.Table, *, every: bool
    ) -> pa.Table:
        """In the order of their ids; one batch is read at a time."""
        wanted = None if every else units
        frames = {
            each.name: _read(plan, each, upstreams[each.name](pa.RecordBatchReader), wanted) for each in plan.upstreams
        }
        rows = [f"{ROW}{position}" for position in range(len(plan.joins))]
        keys = {
            f"t{position}": number_rows(frames[each.name].select(list(plan.on)), row)
            for position, (row, (each, _)) in enumerate(zip(rows, plan.joins, strict=True))
        }
        found = select_rows(f"SELECT {', '.join([*map(quoted, plan.on), *rows])} FROM {joined(plan)}", **keys)
        columns: dict[str, Any] = {name: found[name] for name in plan.on}
        for row, (each, _) in zip(rows, plan.joins, strict=True):
            taken = frames[each.name].take(found[row])
            columns |= {name: taken[name] for name in taken.column_names if name not in plan.on}
        ids = dict.fromkeys(name for each, _ in plan.joins for name in (*plan.units, *each.ids) if name in columns)
        ordered = _ordered(pa.Table.from_pydict(columns), list(ids))
        return self.within(plan, ordered, units) if plan.pairs and not every else ordered

    def within(self, plan: SamplePlan, rows: pa.Table, units: pa.Table) -> pa.Table:
        return semi_join(rows, units, plan.units)

    def differing(self, plan: SamplePlan, members: Sequence[str], before: pa.Table, now: pa.Table) -> pa.Table:
        def compared(frame: pa.Table) -> pa.Table:
            table = frame.select(list(plan.units)).append_column(ROW, pa.repeat(True, frame.num_rows))
            for place, member in enumerate(members):
                table = table.append_column(f"{ROW}{place}", member_of(frame, DATA_VERSION_BY_FIELD, member))
            return table

        names = [ROW, *(f"{ROW}{place}" for place in range(len(members)))]
        differs = " OR ".join(f"before.{name} IS DISTINCT FROM now.{name}" for name in names)
        units = ", ".join(map(quoted, plan.units))
        query = f"SELECT {units} FROM before FULL JOIN now USING ({units}) WHERE {differs}"
        return select_rows(query, before=compared(before), now=compared(now))

    def units_of(self, plan: SamplePlan, rows: pa.Table) -> pa.Table:
        table = rows.select([*plan.units, PROVENANCE_BY_FIELD, PROVENANCE])
        if not any(each.grouped for each in plan.upstreams):
            return table
        query = f"SELECT min({ROW}) AS {ROW} FROM given GROUP BY {', '.join(map(quoted, plan.units))}"
        first = select_rows(query, given=number_rows(table.select(list(plan.units))))
        return table.take(first[ROW])

    def together(self, one: pa.Table, other: pa.Table) -> pa.Table:
        return pa.concat_tables([one, other])

    def pieces(self, plan: SamplePlan, units: pa.Table, size: int) -> Iterator[tuple[pa.Table, int]]:
        ordered = _ordered(units, plan.units)
        for start in range(0, len(ordered), size):
            piece = ordered.slice(start, size)
            yield piece, len(piece)

    def finished(self, plan: SamplePlan, asked: pa.Table, rows: pa.Table, pin: object = None) -> pa.Table:
        what = self.require_returned(plan, asked, rows)
        kept = rows.select([name for name in rows.column_names if name not in SYSTEM_COLUMNS])
        require_ids(what, plan.ids, kept)
        provenance = asked.take(_places(plan, asked, kept))
        by_field = [
            self._versions(rows, name, member_of(provenance, PROVENANCE_BY_FIELD, name)) for name in plan.members
        ]
        packed = pa.StructArray.from_arrays([each.combine_chunks() for each in by_field], list(plan.members))
        whole = hashed(plan.hash, pc.call_function("binary_join_element_wise", [*by_field, pa.scalar(SEPARATOR)]))
        return (
            kept.append_column(PROVENANCE_BY_FIELD, provenance[PROVENANCE_BY_FIELD])
            .append_column(PROVENANCE, provenance[PROVENANCE])
            .append_column(DATA_VERSION_BY_FIELD, packed)
            .append_column(DATA_VERSION, whole)
        )

    def finished_samples(
        self, plan: SamplePlan, asked: pa.Table, samples: pa.Table, pin: object, count: int, *, every: bool
    ) -> pa.Table:
        return self.finished(plan, asked, self.samples_of(plan, samples, asked, every=every))

    def digests(self, plan: SamplePlan, rows: pa.Table) -> dict[str, str]:
        return field_digests(rows, plan.ids, plan.members)

    def _versions(self, rows: pa.Table, name: str, provenance: Any) -> Any:
        """The data versions of a field: those that the rows say, else the provenance."""
        if name not in self.members_of(rows, DATA_VERSION_BY_FIELD):
            return provenance
        return pc.call_function("coalesce", [member_of(rows, DATA_VERSION_BY_FIELD, name), provenance])


ARROW_ROWS = ArrowSampleRows(pa.Table)


def semi_join(rows: pa.Table, others: pa.Table, on: Sequence[str]) -> pa.Table:
    """Those of the rows, in their order, that agree in some columns with one of others."""
    return _join(rows, "SEMI", on, others=others.select(list(on)))


def anti_join(rows: pa.Table, others: pa.Table, on: Sequence[str]) -> pa.Table:
    """Those of the rows, in their order, that agree in some columns with none of others."""
    return _join(rows, "ANTI", on, others=others.select(list(on)))


def number_rows(rows: pa.Table, name: str = ROW) -> pa.Table:
    """The rows with their numbers in one more column."""
    return rows.append_column(name, pa.array(np.arange(rows.num_rows)))


def _read(plan: SamplePlan, upstream: UpstreamSamples, rows: pa.RecordBatchReader, units: pa.Table | None) -> pa.Table:
    """The upstream's columns by their new names, in those rows that are of the units if any are given."""
    names = [name for name in rows.schema.names if not name.startswith(SYSTEM_PREFIX)]
    renamed = upstream.renamed(names)
    kept = upstream.selected(renamed)
    keys = [name for name in plan.units if name in upstream.on]
    found = [rows.schema.empty_table().select(names).rename_columns(renamed).select(kept)]
    for batch in rows if units is None or units.num_rows else ():
        table = pa.Table.from_batches([batch]).select(names).rename_columns(renamed)
        if upstream.filter is not None:
            table = filtered(upstream, table)
        table = table.select(kept)
        found.append(table if units is None else semi_join(table, units, keys))
    return pa.concat_tables(found)


def _join(rows: pa.Table, kind: str, on: Sequence[str], others: pa.Table) -> pa.Table:
    """Those of the rows, in their order, that a join with others leaves."""
    query = f"SELECT {ROW} FROM given {kind} JOIN others USING ({', '.join(map(quoted, on))}) ORDER BY {ROW}"
    return rows.take(select_rows(query, given=number_rows(rows.select(list(on))), others=others)[ROW])


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


def _is_text(kind: pa.DataType) -> bool:
    texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return pa.types.is_null(kind) or any(test(kind) for test in texts)
