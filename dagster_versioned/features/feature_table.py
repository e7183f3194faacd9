"""A feature over its versioned table: what is stale of it, and what comes of what was computed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Self, cast

import pyarrow as pa

from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.dispatch import engine_for, engine_for_type
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.samples import (
    DATA_VERSION_BY_FIELD,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SYSTEM_COLUMNS,
    SYSTEM_PREFIX,
    Counts,
    SampleChanges,
    SampleHash,
    SamplePlan,
    UpstreamSamples,
    refuse_equal_names,
    require_columns,
    require_plain_columns,
)
from dagster_versioned.engines.sql import Names
from dagster_versioned.errors import CommitConflict, EmptyTable, InvalidInput, UnsupportedType
from dagster_versioned.features.arrow.sample_rows import ARROW_ROWS
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.increment import Increment, SamplesToCompute
from dagster_versioned.features.resolve import sample_plan
from dagster_versioned.features.sample_rows import SampleRows
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.feature_record import FEATURE_MEMBER, FeatureRecord, digests_together
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.sample_schema import updated_schema
from dagster_versioned.tables.table import VersionedTable


class FeatureTable:
    """A feature of a graph, and the table that holds its samples."""

    def __init__(self, graph: FeatureGraph, key: str, table: VersionedTable, how: SampleHash | None = None) -> None:
        self.graph = graph
        self.feature = graph[key]
        self.table = table
        self.plan = sample_plan(graph, key, how or SampleHash())

    def resolve(
        self,
        upstreams: Mapping[str, UpstreamFiles],
        *,
        partition: str | None = None,
        as_type: type = pa.Table,
        full: bool = False,
        stale_if: str | None = None,
        where: Mapping[str, str] | None = None,
    ) -> "ResolvedIncrement":
        """What the table, or a partition of it, lacks of what the upstreams (by feature) say.

        Reads versions, ids and the columns of filters; of upstreams that are no features, the columns of their fields.
        ``as_type`` is what frames are given as. ``full``: all samples are to be computed, stale or not.
        ``stale_if`` (SQL) are stored samples that are stale whatever they were computed from, ``where`` conditions
        (SQL) on the columns of upstreams, by feature: others are left for later. Raises `InvalidInput`, and
        `CommitConflict` for a table that another program changed.
        """
        self._require_upstreams(upstreams)
        head, full = self._head(partition, full)
        self._check_columns(upstreams)
        given = {each.name: upstreams[each.name] for each in self.plan.upstreams}
        digests = self._upstream_digests(given)
        engine, types = _sample_rows(as_type), _types(self.plan, given)
        comparison = _Comparison(self, engine, as_type, partition, head, full, types, stale_if)
        with engine.translated(self._conditions(stale_if, where)), comparison.pinned:
            narrowed = comparison.narrowed(given, digests)
            given, frames, current = narrowed or (given, comparison.versions(given), comparison.current())
            changes = engine.resolve(_light(self.plan, given), frames, current, comparison.pin)
            if narrowed is not None:
                changes = replace(changes, counts=_of_all(changes.counts, head))
            reads = {name: _reading(files) for name, files in given.items()}

            def rows(units: Any, *, every: bool) -> Any:
                return engine.as_frame(engine.rows_of(self.plan, reads, units, every=every), as_type)

            asked = comparison.of_some(comparison.asked(changes, current), upstreams, where or {})
            return comparison.resolved(asked, current, rows, digests)

    def resolve_samples(
        self,
        samples: Any,
        *,
        partition: str | None = None,
        as_type: type | None = None,
        full: bool = False,
        stale_if: str | None = None,
    ) -> "ResolvedIncrement":
        """As `resolve`, for a feature without upstreams: ``samples`` are all that there are.

        They bring the column ``metaxy_provenance_by_field``; else the versions of each field are those of its
        ``columns``, and without these of all that are no ids. Raises what `resolve` does, and `UnsupportedType` for
        columns that have other types than in the table.
        """
        head, full = self._head(partition, full)
        engine_for(samples)  # which says better than what follows that it is no frame
        engine = _sample_rows(cast("type[Any]", type(samples)))
        samples = engine.own(samples)
        names = engine.names(samples)
        require_columns("The frame of samples", names, self.plan.ids)
        says = engine.members_of(samples, DATA_VERSION_BY_FIELD)
        require_plain_columns(self.plan, "The frame of samples", names, says)
        engine.members_of(samples, PROVENANCE_BY_FIELD)
        if head is not None and not full:
            self._check_types(samples, engine, head)
        if PROVENANCE_BY_FIELD not in names:
            columns = _columns_of(self.feature, names)
            if lost := sorted({*names} - {*self.plan.ids, *SYSTEM_COLUMNS}.union(*columns.values())):
                raise InvalidInput(
                    f"The samples of feature {self.feature.key!r} have the columns {lost}, which belong to no field: "
                    "nobody would see them change. Nothing was written. Add them to the columns of a field."
                )
            samples = engine.with_contents(samples, columns)
        ids = engine_for(samples).schema(engine.select(samples, self.plan.ids), WriteOptions())
        types = {field.name: field.type for field in ids.fields}
        as_type = as_type or engine.frame_type
        comparison = _Comparison(self, engine, as_type, partition, head, full, types, stale_if)
        current = comparison.current()
        light = engine.select(samples, [*self.plan.ids, PROVENANCE_BY_FIELD])

        def rows(units: Any, *, every: bool) -> Any:
            return engine.as_frame(engine.samples_of(self.plan, samples, units, every=every), as_type)

        with engine.translated(self._conditions(stale_if, None)), comparison.pinned:
            changes = engine.resolve_samples(self.plan, light, current, comparison.pin)
            return comparison.resolved(comparison.asked(changes, current), current, rows, {}, samples)

    # Inside

    def _conditions(self, stale_if: str | None, where: Mapping[str, str] | None) -> list[str]:
        filters = (each.filter for each in self.plan.upstreams)
        return [each for each in (stale_if, *(where or {}).values(), *filters) if each is not None]

    def _head(self, partition: str | None, full: bool) -> tuple[UpstreamFiles | None, bool]:
        """The files of the head that the update is to go onto, and whether all samples are to be computed.

        They are, too, where they were to be and somebody died before all were: nobody knows which of them are new.
        Raises `InvalidInput` where it cannot be compared, `CommitConflict` where another program had the last word.
        """
        version = self.table.state.history.heads.get(partition) if self.table.exists() else None
        if version is None:
            return None, full
        record = FeatureRecord.of(version.identity.custom)
        if not full:
            self._require_comparable(version, record)
        full = full or (record is not None and record.full and record.left > 0)
        return UpstreamFiles(self.table, self.table.files(version.metadata_sha, partition=partition)), full

    def _require_comparable(self, version: Version, record: FeatureRecord | None) -> None:
        foreign = self.table.state.history.unadopted
        if foreign is not None:
            raise CommitConflict(
                f"Another program changed the table of feature {self.feature.key!r} with log version "
                f"{foreign.log_version}, so nobody knows which samples it has. Nothing was computed or written. Look "
                "at history(), then adopt() that, or revert(), or compute all samples again (run config full: true)."
            )
        if record is None:
            return
        how = (self.plan.hash.algorithm, self.plan.hash.length)
        for what, was, now in (("hash", record.hash, how), ("id columns", record.ids, self.feature.id_columns)):
            if was != now:
                raise InvalidInput(
                    f"Version {version.short} of feature {self.feature.key!r} has the {what} {list(was)}, and the "
                    f"feature {list(now)}: none of its samples could be compared. Nothing was computed or written. "
                    "Compute all of them again (run config full: true), or take the change back."
                )

    def _require_upstreams(self, upstreams: Mapping[str, UpstreamFiles]) -> None:
        if missing := [dep.feature for dep in self.feature.deps if dep.feature not in upstreams]:
            raise InvalidInput(
                f"Feature {self.feature.key!r} is computed from {missing}, which are not there. Nothing was computed "
                "or written; materialize them first."
            )
        for dep in self.feature.deps:
            upstreams[dep.feature].require_definition(self.graph, dep.feature)

    def _check_columns(self, upstreams: Mapping[str, UpstreamFiles]) -> None:
        """Refuse what would fail once rows are read: before anything is computed."""
        names: dict[str, list[str]] = {}
        for each in self.plan.upstreams:
            known = upstreams[each.name].schema.names
            require_columns(f"Upstream {each.name!r}", known, list(each.rename))
            renamed = each.renamed([name for name in known if not name.startswith(SYSTEM_PREFIX)])
            wanted = [*each.ids, *each.on, *(each.select or ())]
            require_columns(f"Upstream {each.name!r}", renamed, wanted)
            names[each.name] = each.selected(renamed)
        refuse_equal_names(self.plan, names)

    def _check_types(self, samples: Any, engine: SampleRows[Any], head: UpstreamFiles) -> None:
        """Refuse samples of other types than those that are stored: values are compared, whatever their types are."""
        others = {*SYSTEM_COLUMNS, *self.plan.ids}  # which are compared as they are
        both = [name for name in engine.names(samples) if name in head.schema.names and name not in others]
        if not both:
            return  # samples that are ids alone
        given = engine_for(samples).schema(engine.select(samples, both), WriteOptions())
        try:
            updated_schema(StructType(map(head.schema.field, both)), given)
        except UnsupportedType as error:
            raise UnsupportedType(
                f"The samples of feature {self.feature.key!r} have other types than its table. {error} Or compute all "
                "of them again (run config full: true)."
            ) from None

    def _upstream_digests(self, upstreams: Mapping[str, UpstreamFiles]) -> dict[str, dict[str, str]]:
        """By upstream, the digests of the fields that the feature is computed from.

        None where samples are passed over or matched by what else is in their columns, which the digests do not tell,
        and where an upstream has none.
        """
        found: dict[str, dict[str, str]] = {}
        for each in self.plan.upstreams:
            by_ids = each.filter is None and {*each.on} <= {*each.ids}
            found[each.name] = self.used(each, upstreams[each.name].digests() if by_ids else None)
        return found

    def used(self, upstream: UpstreamSamples, digests: Mapping[str, str] | None) -> dict[str, str]:
        """Of an upstream's field digests those that the feature is computed from; none where one is not known."""
        used = {
            ref.field
            for field in self.feature.fields
            for ref in self.graph.parents(self.feature.key, field.key)
            if ref.feature == upstream.name
        }
        known = digests is not None and used <= digests.keys()
        return {key: digests[key] for key in sorted(used)} if digests is not None and known else {}


@dataclass
class _Comparison:
    """What is stored of a feature, as it is compared with what there is to compute; ``types`` are those of its ids.

    Frames are kept until ``pinned`` is closed.
    """

    of: FeatureTable
    engine: SampleRows[Any]
    as_type: type
    partition: str | None
    head: UpstreamFiles | None
    full: bool
    types: Mapping[str, DataType]
    stale_if: str | None
    pinned: ExitStack = field(default_factory=ExitStack)

    def pin(self, frame: Any) -> Any:
        """Keeps a frame."""
        return self.engine.pin(self.pinned)(frame)

    def versions(self, upstreams: Mapping[str, UpstreamFiles]) -> dict[str, Any]:
        """By upstream, the columns that say which samples there are, and of which versions."""
        return {each.name: self._versions(each, upstreams[each.name]) for each in self.of.plan.upstreams}

    def _versions(self, upstream: UpstreamSamples, files: UpstreamFiles) -> Any:
        known, needed = files.schema.names, _needed(upstream, files.schema)
        if DATA_VERSION_BY_FIELD in known:
            return files.read(self.engine.frame_type, [*needed, DATA_VERSION_BY_FIELD])
        columns = _columns_of(self.of.graph[upstream.name], known)
        used = {member: columns[member] for member in upstream.fields}
        wanted = dict.fromkeys([*needed, *(name for names in used.values() for name in names)])
        frame = self.engine.with_contents(files.read(self.engine.frame_type, list(wanted)), used)
        return self.engine.select(frame, [*needed, DATA_VERSION_BY_FIELD])

    def current(self) -> Any:
        """What is compared of the samples that are stored.

        ``None`` where there are none, or where all are to be computed and have other ids, or ids of other types, so
        that all that are stored go.
        """
        if self.head is None or (self.full and not self._has_ids(self.head.schema)):
            return None
        return self._stored(self.head)

    def _has_ids(self, schema: StructType) -> bool:
        known = {column.name: column.type for column in schema.fields}
        return all(name in known and self.types.get(name, known[name]) == known[name] for name in self.of.plan.ids)

    def _stored(self, files: UpstreamFiles, some: Callable[[Any], Any] = lambda frame: frame) -> Any:
        """The ids and versions of ``some`` of the stored samples."""
        plan, engine, names = self.of.plan, self.engine, files.schema.names
        what = f"The table of feature {plan.feature!r}"
        require_columns(what, names, plan.ids if self.full else (*plan.ids, PROVENANCE))
        versions = [name for name in (PROVENANCE_BY_FIELD, PROVENANCE, DATA_VERSION_BY_FIELD) if name in names]
        columns = [*plan.ids, *versions]
        if self.stale_if is None or self.full:
            return engine.stored(plan, some(files.read(engine.frame_type, columns)), stale=self.full)
        read = Names({"stored": files.schema}).resolve(self.stale_if).of("stored")
        frame = files.read(engine.frame_type, list(dict.fromkeys([*columns, *read])))
        return engine.stored(plan, engine.marked_stale(frame, self.stale_if), stale=False)

    def narrowed(
        self, given: Mapping[str, UpstreamFiles], digests: Mapping[str, Mapping[str, str]]
    ) -> tuple[dict[str, UpstreamFiles], dict[str, Any], Any] | None:
        """Of the upstreams, their versions and what is stored that alone which may have changed; ``None``: all may."""
        changed, head = self._changed(given, digests), self.head
        if head is None or changed is None:
            return None
        if not changed:
            nothing = {name: files.of_none() for name, files in given.items()}
            return nothing, self.versions(nothing), self._stored(head.of_none())
        plan = self.of.plan
        narrow = {**given, **{name: now for name, (_, now) in changed.items()}}
        frames = self.versions(narrow)
        differing = [
            self.engine.differing(plan, each.fields, self._versions(each, changed[each.name][0]), frames[each.name])
            for each in plan.upstreams
            if each.name in changed
        ]
        touched = self.pin(reduce(self.engine.together, differing))

        def some(frame: Any) -> Any:
            return self.engine.within(plan, frame, touched)

        frames = {name: some(frame) for name, frame in frames.items()}
        return narrow, frames, self._stored(head, lambda frame: self.pin(some(frame)))

    def _changed(
        self, given: Mapping[str, UpstreamFiles], digests: Mapping[str, Mapping[str, str]]
    ) -> dict[str, tuple[UpstreamFiles, UpstreamFiles]] | None:
        """What lies in no file of both versions of an upstream: that of which the head was computed, and the given one.

        By upstream, without those that say the same of all fields that count. ``None`` where it is not known, so that
        all samples are to be compared.
        """
        if self.head is None or self.full or self.stale_if is not None:
            return None
        version = self.head.files.versions[0]
        record = FeatureRecord.of(version.identity.custom)
        if record is None or not self._tells_all(record, digests):
            return None
        found: dict[str, tuple[UpstreamFiles, UpstreamFiles]] = {}
        for each in self.of.plan.upstreams:
            if digests[each.name] == record.upstreams[each.name]:
                continue
            now = given[each.name]
            before = now.before(version)
            if before is None or self.of.used(each, before.digests()) != record.upstreams[each.name]:
                return None
            found[each.name] = before.without(now), now.without(before)
        return found

    def _tells_all(self, record: FeatureRecord, digests: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether a head has all that it was to have, computed as it would be now from versions whose digests are
        recorded, by units that are matched by their ids."""
        is_complete = not record.left and not record.full
        return (
            is_complete
            and record.fields == field_versions(self.of.graph, self.of.feature.key)
            and all(digests.values())
            and digests.keys() == record.upstreams.keys()
            and all(map(self._matches_by_ids, self.of.plan.upstreams))
        )

    def _matches_by_ids(self, upstream: UpstreamSamples) -> bool:
        """Whether each of its samples is one of the feature, by ids that are called alike."""
        plan, ids = self.of.plan, {*self.of.graph[upstream.name].id_columns}
        return {*plan.ids} == {*plan.units} == {*upstream.on} == {*upstream.ids} == ids and upstream.filter is None

    def asked(self, changes: SampleChanges, current: Any) -> SamplesToCompute:
        """What is to be done."""
        plan, engine = self.of.plan, self.engine
        counts = replace(changes.counts, reasons={}) if self.full else changes.counts

        def some(frame: Any, count: int) -> Any:
            return frame if count else engine.none_of(frame)  # known to be empty, nothing is read for it

        new = some(engine.units_of(plan, changes.new), counts.new)
        stale = some(engine.units_of(plan, changes.stale), counts.stale)
        gone = some(changes.orphaned, counts.orphaned)
        return SamplesToCompute(new, stale, gone, counts, full=self.full, first=current is None)

    def of_some(
        self, asked: SamplesToCompute, upstreams: Mapping[str, UpstreamFiles], where: Mapping[str, str]
    ) -> SamplesToCompute:
        """Of what is asked for, the samples of which the upstreams' rows satisfy conditions; the others are left."""
        plan, engine = self.of.plan, self.engine
        if where and self.full:
            raise InvalidInput(
                f"All samples of feature {plan.feature!r} are to be computed again, and yet only those where "
                f"{dict(where)}. Nothing was computed or written. Leave one of the two out."
            )
        known = {each.name: each for each in plan.upstreams}
        for name, condition in where.items():
            if name not in known:
                raise InvalidInput(
                    f"Feature {plan.feature!r} is not computed from {name!r}, but from {sorted(known)}. Nothing "
                    "was computed or written. Name one of these in the conditions."
                )
            upstream, files = replace(known[name], filter=condition), upstreams[name]
            read = _needed(upstream, files.schema)
            rows = engine.passing(_of_columns(upstream, read), files.read(engine.frame_type, read))
            by_keys = replace(plan, units=tuple(each for each in plan.units if each in engine.names(rows)))
            new, stale = (self.pin(engine.within(by_keys, units, rows)) for units in (asked.new, asked.stale))
            counts = replace(asked.counts, new=engine.count(new), stale=engine.count(stale), reasons={})
            left = asked.left + asked.counts.new + asked.counts.stale - counts.new - counts.stale
            asked = replace(asked, new=new, stale=stale, counts=counts, left=left, piece=True)
        return asked

    def resolved(
        self,
        asked: SamplesToCompute,
        current: Any,
        rows: Any,
        digests: Mapping[str, Mapping[str, str]],
        samples: Any = None,
    ) -> "ResolvedIncrement":
        """The increment of what is asked for, to which the frames that are kept go over."""
        keys = {field.member: field.key for field in self.of.feature.fields}

        def as_frame(frame: Any) -> Any:
            return self.engine.as_frame(frame, self.as_type)

        increment: Increment[Any] = Increment(asked, self.engine, self.of.plan, rows, as_frame, keys, self.partition)
        pinned = self.pinned.pop_all()
        return ResolvedIncrement(self.of, increment, self.engine, self.head, current, digests, pinned, samples)


@dataclass(eq=False, repr=False)
class ResolvedIncrement:
    """An increment of a feature, and how its rows go onto the version that it was computed from.

    Frames of Spark are computed once, and kept until it is closed; it is a context manager.
    """

    feature: FeatureTable
    increment: Increment[Any]
    _engine: SampleRows[Any]
    _head: UpstreamFiles | None
    _current: Any
    _upstreams: Mapping[str, Mapping[str, str]]
    _pinned: ExitStack
    _samples: Any = None
    _part: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._part.close()
        self._pinned.close()

    @property
    def record(self) -> FeatureRecord | None:
        """What the version that it is compared with records of how it came about."""
        return FeatureRecord.of(self._base.identity.custom) if self._base is not None else None

    def finish(
        self,
        rows: Any = None,
        part: Increment[Any] | None = None,
        *,
        after: Version | None = None,
        allow_empty: bool = False,
    ) -> SampleUpdate:
        """The rows that were computed, for the whole increment or a ``part`` of it, as what is to be written.

        Without ``rows`` where there is nothing to compute, and for a feature without upstreams, whose rows are its
        samples. ``after`` is the version that the part before was written as. Where all is computed again and what is
        stored has other ids or columns, the first part replaces the table. What the part before gave is not kept
        any longer. ``allow_empty``: the first version may have no samples.
        Raises `InvalidInput` for rows that were not asked for, samples that are missing, ids that are null or come
        twice, and `EmptyTable` where there never was a sample.
        """
        self._part.close()
        part, plan = part or self.increment, self.feature.plan
        frame, gone, engine = self._stamped(rows, part, allow_empty=allow_empty)
        whole = part.asked.full and (not part.asked.piece or (after is None and not self._can_join(frame)))
        digests = engine.digests(plan, frame) if whole else self._digests(part, frame, after)
        base = after or self._base
        if whole:
            self._current = None  # nothing that is stored stays, so that the parts that follow take none of it away
        return SampleUpdate(
            frame,
            None if whole else gone,
            plan.units,
            plan.ids,
            base.metadata_sha if base is not None else None,
            {FEATURE_MEMBER: self._recorded(digests, part).to_json()},
        )

    @property
    def _base(self) -> Version | None:
        return self._head.files.versions[0] if self._head is not None else None

    def _stamped(self, rows: Any, part: Increment[Any], *, allow_empty: bool) -> tuple[Any, Any, SampleRows[Any]]:
        """The rows of a part with their versions, the units that go, and the engine of both frames."""
        engine, units = self._engine, self.feature.plan.units
        if part.todo:
            frame = self._computed(rows, part)
        elif self._head is None or (self._current is None and part.asked.full):
            if self._head is None and not allow_empty:
                raise self._empty()
            frame = self._no_rows(part)
        elif not part.counts.orphaned:  # whatever engine it was that found nothing to do
            frame = ARROW_ROWS.empty(self._head.schema)
            return frame, ARROW_ROWS.select(frame, units), ARROW_ROWS
        else:
            frame = engine.empty(self._head.schema, part.asked.gone)
        return frame, engine.select(part.asked.gone, units), engine

    def _computed(self, rows: Any, part: Increment[Any]) -> Any:
        """The rows that were returned, or the samples, of what is asked for."""
        if rows is not None:
            engine, plan = self._engine, self.feature.plan
            return engine.finished(plan, part.units, engine.own(rows, part.units), engine.pin(self._part))
        if self._samples is not None:
            return self._finished_samples(part)
        raise InvalidInput(
            f"Feature {self.feature.plan.feature!r} returned None, but {part.todo} samples were asked for. Nothing was "
            "written. Return a frame with a row for each."
        )

    def _recorded(self, digests: Mapping[str, str], part: Increment[Any]) -> FeatureRecord:
        """What the version is to record; ``digests`` are by member."""
        graph, feature, how = self.feature.graph, self.feature.feature, self.feature.plan.hash
        return FeatureRecord(
            feature.id_columns,
            field_versions(graph, feature.key),
            (how.algorithm, how.length),
            {field.key: digests[field.member] for field in feature.fields},
            self._upstreams,
            part.asked.left,
            part.asked.full and part.asked.left > 0,
        )

    def _empty(self) -> EmptyTable:
        key = self.feature.plan.feature
        if self._samples is not None:
            why, fix = "its function returned none", "Return some"
        else:
            why = "its upstreams have none that it could be computed from"
            fix = "Materialize them first, look at the filters of its FeatureDeps"
        return EmptyTable(
            f"Feature {key!r} has no samples: {why}. Nothing was written. {fix}, or allow that with "
            "TableOptions(allow_empty=True)."
        )

    def _no_rows(self, part: Increment[Any]) -> Any:
        """Rows of no sample, where none are stored that would say which columns there are."""
        if self._samples is not None:
            return self._finished_samples(part)
        plan, rows = self.feature.plan, self._engine
        if not {*plan.ids} <= {*plan.units}:
            raise EmptyTable(
                f"Feature {plan.feature!r} has no samples, and nobody knows the types of its ids "
                f"{sorted({*plan.ids} - {*plan.units})}. Nothing was written. Give its upstreams some samples first."
            )
        return rows.finished(plan, part.units, rows.select(part.units, plan.ids), self._engine.pin(self._part))

    def _finished_samples(self, part: Increment[Any]) -> Any:
        every = part.asked.first and not part.asked.piece
        pin = self._engine.pin(self._part)
        return self._engine.finished_samples(self.feature.plan, part.units, self._samples, pin, part.todo, every=every)

    def _digests(self, part: Increment[Any], frame: Any, after: Version | None) -> dict[str, str]:
        """The field digests of the table once the frame is in it, by member."""
        plan, engine, stored = self.feature.plan, self._engine, self._current
        before = after or self._base
        added = [engine.digests(plan, frame)] if part.todo or before is None else []
        if (known := self._stored_digests(before)) is not None:
            added.append(known)
        going = [(part.asked.gone, part.counts.orphaned), (part.asked.stale, part.counts.stale)]
        taken = [
            engine.digests(plan, engine.within(plan, stored, units))
            for units, count in (going if stored is not None else ())
            if count
        ]
        found = digests_together(added, taken)
        assert found is not None  # all are of the feature's fields
        return found

    def _stored_digests(self, version: Version | None) -> dict[str, str] | None:
        """The field digests of what is stored, by member, as the version records them; ``None`` of nothing."""
        plan, keys = self.feature.plan, {field.key: field.member for field in self.feature.feature.fields}
        record = FeatureRecord.of(version.identity.custom) if version is not None else None
        if record is not None and record.digests.keys() == keys.keys() and record.ids == plan.ids:
            return {keys[key]: text for key, text in record.digests.items()}
        return None if self._current is None else self._engine.digests(plan, self._current)

    def _can_join(self, frame: Any) -> bool:
        """Whether rows can stand beside those that are stored, until these are computed again as well."""
        if self._head is None:
            return True
        if self.feature.table.state.history.unadopted is not None:
            return False
        stored, plan, record = self._head.schema, self.feature.plan, self.record
        if not {*plan.ids} <= {*stored.names} or (record is not None and record.ids != plan.ids):
            return False
        try:
            updated_schema(stored, engine_for(frame).schema(frame, WriteOptions()))
        except (InvalidInput, UnsupportedType):
            return False
        return True


def hash_of(record: FeatureRecord) -> SampleHash:
    """How the samples of a version are hashed."""
    algorithm, length = record.hash
    return SampleHash(cast("Any", algorithm), length)


def field_versions(graph: FeatureGraph, key: str) -> dict[str, tuple[str, str]]:
    """By field of a feature, the static version and the code version, as `FeatureRecord` has them."""
    versions = graph.versions(key).fields
    return {field.key: (versions[field.key], field.code_version) for field in graph[key].fields}


def _sample_rows(frame_type: type) -> SampleRows[Any]:
    """The rows of the engine that reads, or wrote, frames of a type. Raises `UnsupportedFrame`."""
    if isinstance(engine_for_type(frame_type), ArrowEngine):
        return ARROW_ROWS
    from dagster_versioned.features.spark.sample_rows import SparkSampleRows

    return SparkSampleRows(frame_type)


def _of_all(counts: Counts, head: UpstreamFiles | None) -> Counts:
    """Counts of the units that may have changed, with all others of a head as unchanged."""
    stored = sum(version.identity.nrow for version in head.files.versions) if head is not None else 0
    return replace(counts, unchanged=stored - counts.stale - counts.orphaned)


def _light(plan: SamplePlan, upstreams: Mapping[str, UpstreamFiles]) -> SamplePlan:
    """The plan for frames of the columns alone that say which samples there are."""

    def light(each: UpstreamSamples) -> UpstreamSamples:
        return replace(_of_columns(each, _needed(each, upstreams[each.name].schema)), select=())

    return replace(plan, upstreams=tuple(map(light, plan.upstreams)))


def _types(plan: SamplePlan, upstreams: Mapping[str, UpstreamFiles]) -> dict[str, DataType]:
    """The types of the upstreams' columns by their new names."""
    schemas = {each: upstreams[each.name].schema for each in plan.upstreams}
    return {
        name: column.type
        for each, schema in schemas.items()
        for name, column in zip(each.renamed(schema.names), schema.fields, strict=True)
    }


def _of_columns(upstream: UpstreamSamples, read: Sequence[str]) -> UpstreamSamples:
    """An upstream of which some columns alone are read."""
    return replace(upstream, rename={old: new for old, new in upstream.rename.items() if old in read})


def _needed(upstream: UpstreamSamples, schema: StructType) -> list[str]:
    """The columns that say which samples of an upstream there are, as they are stored."""
    renamed = upstream.renamed(schema.names)
    wanted = {*upstream.ids, *upstream.on}
    if upstream.filter is not None:
        fields = [replace(field, name=name) for field, name in zip(schema.fields, renamed, strict=True)]
        wanted |= Names({"upstream": StructType(fields)}).resolve(upstream.filter).of("upstream")
    return [old for old, new in zip(schema.names, renamed, strict=True) if new in wanted]


def _columns_of(feature: Feature, known: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """By field of a feature without upstreams, the columns whose values are its version."""
    names = [name for name in known if not name.startswith(SYSTEM_PREFIX)]
    rest = tuple(sorted(name for name in names if name not in feature.id_columns)) or feature.id_columns
    found = {field.member: tuple(sorted(field.columns)) or rest for field in feature.fields}
    for columns in found.values():
        require_columns(f"Feature {feature.key!r}", names, columns)
    return found


def _reading(files: UpstreamFiles) -> Callable[[type], Any]:
    return lambda frame_type: files.read(frame_type)
