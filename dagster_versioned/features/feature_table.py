"""A feature over its versioned table: what is stale of it, and what comes of what was computed."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
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
        if missing := [dep.feature for dep in self.feature.deps if dep.feature not in upstreams]:
            raise InvalidInput(
                f"Feature {self.feature.key!r} is computed from {missing}, which are not there. Nothing was computed "
                "or written; materialize them first."
            )
        for name in (dep.feature for dep in self.feature.deps):
            upstreams[name].require_definition(self.graph, name)
        head, full = self._head(partition, full)
        self._check_columns(upstreams)
        given = {each.name: upstreams[each.name] for each in self.plan.upstreams}
        engine = _sample_rows(as_type)
        digests = self._upstream_digests(given)
        types = {
            new: field.type
            for each in self.plan.upstreams
            for new, field in zip(
                each.renamed(given[each.name].schema.names), given[each.name].schema.fields, strict=True
            )
        }
        with engine.translated(self._conditions(stale_if, where)), ExitStack() as pinned:
            pin = engine.pin(pinned)
            all_of_them = full or head is None or stale_if is not None
            narrowed = None if head is None or all_of_them else self._narrowed(head, given, digests, engine, pin, types)
            if narrowed is not None:
                given, frames, current = narrowed
            else:
                frames = {each.name: self._versions(each, given[each.name], engine) for each in self.plan.upstreams}
                current = self._current(head, engine, full, types, stale_if=stale_if)
            changes = engine.resolve(_light(self.plan, given), frames, current, pin)
            if narrowed is not None:
                changes = replace(changes, counts=_of_all(changes.counts, head))
            reads = {name: _reading(files) for name, files in given.items()}

            def rows(units: Any, *, every: bool) -> Any:
                return engine.as_frame(engine.rows_of(self.plan, reads, units, every=every), as_type)

            some = partial(self._of_some, upstreams, where or {}, engine, pin, full)
            return self._resolved(
                changes, engine, head, current, rows, as_type, digests, partition, full, pinned.pop_all(), some
            )

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
        samples = engine.own(samples, None)
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
        current = self._current(head, engine, full, types, stale_if=stale_if)
        light = engine.select(samples, [*self.plan.ids, PROVENANCE_BY_FIELD])

        def rows(units: Any, *, every: bool) -> Any:
            found = engine.samples_of(self.plan, samples, units, every=every)
            return engine.as_frame(found, as_type or engine.frame_type)

        frame_type = as_type or engine.frame_type
        with engine.translated(self._conditions(stale_if, None)), ExitStack() as pinned:
            changes = engine.resolve_samples(self.plan, light, current, engine.pin(pinned))
            return self._resolved(
                changes, engine, head, current, rows, frame_type, {}, partition, full, pinned.pop_all(), None, samples
            )

    # Inside

    def _conditions(self, stale_if: str | None, where: Mapping[str, str] | None) -> list[str]:
        filters = (each.filter for each in self.plan.upstreams)
        return [each for each in (stale_if, *(where or {}).values(), *filters) if each is not None]

    def _resolved(
        self,
        changes: SampleChanges,
        engine: SampleRows[Any],
        head: UpstreamFiles | None,
        current: Any,
        rows: Any,
        as_type: type,
        upstreams: Mapping[str, Mapping[str, str]],
        partition: str | None,
        full: bool,
        pinned: ExitStack,
        part: Callable[[SamplesToCompute], SamplesToCompute] | None = None,
        samples: Any = None,
    ) -> "ResolvedIncrement":
        counts = replace(changes.counts, reasons={}) if full else changes.counts

        def some(frame: Any, count: int) -> Any:
            return frame if count else engine.none_of(frame)  # known to be empty, nothing is read for it

        new = some(engine.units_of(self.plan, changes.new), counts.new)
        stale = some(engine.units_of(self.plan, changes.stale), counts.stale)
        gone = some(changes.orphaned, counts.orphaned)
        asked = SamplesToCompute(new, stale, gone, counts, full=full, first=current is None)
        if part is not None:
            asked = part(asked)
        keys = {field.member: field.key for field in self.feature.fields}
        increment: Increment[Any] = Increment(
            asked, engine, self.plan, rows, lambda frame: engine.as_frame(frame, as_type), keys, partition
        )
        return ResolvedIncrement(self, increment, engine, head, current, upstreams, pinned, samples)

    def _of_some(
        self,
        upstreams: Mapping[str, UpstreamFiles],
        where: Mapping[str, str],
        engine: SampleRows[Any],
        pin: Callable[[Any], Any],
        full: bool,
        asked: SamplesToCompute,
    ) -> SamplesToCompute:
        """Of what is asked for, the samples of which the upstreams' rows satisfy conditions; the others are left."""
        if where and full:
            raise InvalidInput(
                f"All samples of feature {self.feature.key!r} are to be computed again, and yet only those where "
                f"{dict(where)}. Nothing was computed or written. Leave one of the two out."
            )
        known = {each.name: each for each in self.plan.upstreams}
        for name, condition in where.items():
            if name not in known:
                raise InvalidInput(
                    f"Feature {self.feature.key!r} is not computed from {name!r}, but from {sorted(known)}. Nothing "
                    "was computed or written. Name one of these in the conditions."
                )
            upstream, files = replace(known[name], filter=condition), upstreams[name]
            read = _needed(upstream, files.schema)
            upstream = replace(upstream, rename={old: new for old, new in upstream.rename.items() if old in read})
            rows = engine.passing(upstream, files.read(engine.frame_type, read))
            keys = tuple(each for each in self.plan.units if each in engine.names(rows))
            by_keys = replace(self.plan, units=keys)
            new, stale = (pin(engine.within(by_keys, units, rows)) for units in (asked.new, asked.stale))
            counts = replace(asked.counts, new=engine.count(new), stale=engine.count(stale), reasons={})
            left = asked.left + asked.counts.new + asked.counts.stale - counts.new - counts.stale
            asked = replace(asked, new=new, stale=stale, counts=counts, left=left, piece=True)
        return asked

    def _head(self, partition: str | None, full: bool) -> tuple[UpstreamFiles | None, bool]:
        """The files of the head that the update is to go onto, and whether all samples are to be computed.

        They are, too, where they were to be and somebody died before all were: nobody knows which of them are new.
        Raises `InvalidInput` where it cannot be compared, `CommitConflict` where another program had the last word.
        """
        if not self.table.exists():
            return None, full
        version = self.table.state.history.heads.get(partition)
        if version is None:
            return None, full
        foreign = self.table.state.history.unadopted
        if foreign is not None and not full:
            raise CommitConflict(
                f"Another program changed the table of feature {self.feature.key!r} with log version "
                f"{foreign.log_version}, so nobody knows which samples it has. Nothing was computed or written. Look "
                "at history(), then adopt() that, or revert(), or compute all samples again (run config full: true)."
            )
        record = FeatureRecord.of(version.identity.custom)
        how = (self.plan.hash.algorithm, self.plan.hash.length)
        if not full and record is not None:
            for what, was, now in (("hash", record.hash, how), ("id columns", record.ids, self.feature.id_columns)):
                if was != now:
                    raise InvalidInput(
                        f"Version {version.short} of feature {self.feature.key!r} has the {what} {list(was)}, and the "
                        f"feature {list(now)}: none of its samples could be compared. Nothing was computed or written. "
                        "Compute all of them again (run config full: true), or take the change back."
                    )
        full = full or (record is not None and record.full and record.left > 0)
        return UpstreamFiles(self.table, self.table.files(version.metadata_sha, partition=partition)), full

    def _changed(
        self, head: UpstreamFiles, given: Mapping[str, UpstreamFiles], digests: Mapping[str, Mapping[str, str]]
    ) -> dict[str, tuple[UpstreamFiles, UpstreamFiles]] | None:
        """What lies in no file of both versions of an upstream: that of which the head was computed, and the given one.

        By upstream, without those that say the same of all fields that count. ``None`` where it is not known, so that
        all samples are to be compared: the head has not all that it was to have, was computed in another engine, from
        versions that are gone or that nobody recorded; or units are matched by other columns than their ids.
        """
        version = head.files.versions[0]
        record = FeatureRecord.of(version.identity.custom)
        if (
            record is None
            or record.left
            or record.full
            or record.fields != field_versions(self.graph, self.feature.key)
        ):
            return None
        if not all(digests.values()) or digests.keys() != record.upstreams.keys():
            return None
        found: dict[str, tuple[UpstreamFiles, UpstreamFiles]] = {}
        for each in self.plan.upstreams:
            ids = {*self.graph[each.name].id_columns}
            if (
                not {*self.plan.ids} == {*self.plan.units} == {*each.on} == {*each.ids} == ids
                or each.filter is not None
            ):
                return None
            if digests[each.name] == record.upstreams[each.name]:
                continue
            now = given[each.name]
            before = now.before(version)
            if before is None or self._used(each, before.digests()) != record.upstreams[each.name]:
                return None
            found[each.name] = before.without(now), now.without(before)
        return found

    def _narrowed(
        self,
        head: UpstreamFiles,
        given: Mapping[str, UpstreamFiles],
        digests: Mapping[str, Mapping[str, str]],
        engine: SampleRows[Any],
        pin: Callable[[Any], Any],
        types: Mapping[str, DataType],
    ) -> tuple[dict[str, UpstreamFiles], dict[str, Any], Any] | None:
        """Of the upstreams, their versions and what is stored that alone which may have changed; ``None``: all may."""
        changed = self._changed(head, given, digests)
        if changed is None:
            return None
        if not changed:
            nothing = {name: files.of_none() for name, files in given.items()}
            frames = {each.name: self._versions(each, nothing[each.name], engine) for each in self.plan.upstreams}
            return nothing, frames, self._current(head.of_none(), engine, False, types)
        frames: dict[str, Any] = {}
        touched: Any = None
        for each in self.plan.upstreams:
            if each.name in changed:
                before, now = (self._versions(each, files, engine) for files in changed[each.name])
                units = engine.differing(self.plan, each.fields, before, now)
                touched = units if touched is None else engine.together(touched, units)
                frames[each.name] = now
            else:
                frames[each.name] = self._versions(each, given[each.name], engine)
        touched = pin(touched)
        given = {name: changed[name][1] if name in changed else files for name, files in given.items()}
        frames = {name: engine.within(self.plan, frame, touched) for name, frame in frames.items()}

        def some(frame: Any) -> Any:
            return pin(engine.within(self.plan, frame, touched))

        return given, frames, self._current(head, engine, False, types, some)

    def _current(
        self,
        head: UpstreamFiles | None,
        engine: SampleRows[Any],
        full: bool,
        types: Mapping[str, DataType],
        some: Callable[[Any], Any] = lambda frame: frame,
        stale_if: str | None = None,
    ) -> Any:
        """What is compared of ``some`` of the samples that are stored.

        ``None`` where there are none, or where all are to be computed and have other ids, or ids of other ``types`` (by
        column), so that all that are stored go.
        """
        if head is None:
            return None
        names = head.schema.names
        if full and any(
            name not in names or types.get(name, head.schema.field(name).type) != head.schema.field(name).type
            for name in self.plan.ids
        ):
            return None
        what = f"The table of feature {self.feature.key!r}"
        require_columns(what, names, self.plan.ids if full else (*self.plan.ids, PROVENANCE))
        columns = [
            *self.plan.ids,
            *(name for name in (PROVENANCE_BY_FIELD, PROVENANCE, DATA_VERSION_BY_FIELD) if name in names),
        ]
        if stale_if is not None and not full:
            read = Names({"stored": head.schema}).resolve(stale_if).of("stored")
            frame = head.read(engine.frame_type, list(dict.fromkeys([*columns, *read])))
            return engine.stored(self.plan, engine.marked_stale(frame, stale_if), stale=False)
        return engine.stored(self.plan, some(head.read(engine.frame_type, columns)), stale=full)

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

    def _versions(self, upstream: UpstreamSamples, files: UpstreamFiles, engine: SampleRows[Any]) -> Any:
        """The columns of an upstream that say which samples there are, and of which versions."""
        known, needed = files.schema.names, _needed(upstream, files.schema)
        if DATA_VERSION_BY_FIELD in known:
            return files.read(engine.frame_type, [*needed, DATA_VERSION_BY_FIELD])
        columns = _columns_of(self.graph[upstream.name], known)
        used = {member: columns[member] for member in upstream.fields}
        wanted = dict.fromkeys([*needed, *(name for names in used.values() for name in names)])
        frame = engine.with_contents(files.read(engine.frame_type, list(wanted)), used)
        return engine.select(frame, [*needed, DATA_VERSION_BY_FIELD])

    def _upstream_digests(self, upstreams: Mapping[str, UpstreamFiles]) -> dict[str, dict[str, str]]:
        """By upstream, the digests of the fields that the feature is computed from.

        None where samples are passed over or matched by what else is in their columns, which the digests do not tell,
        and where an upstream has none.
        """
        found: dict[str, dict[str, str]] = {}
        for each in self.plan.upstreams:
            by_ids = each.filter is None and {*each.on} <= {*each.ids}
            found[each.name] = self._used(each, upstreams[each.name].digests() if by_ids else None)
        return found

    def _used(self, upstream: UpstreamSamples, digests: Mapping[str, str] | None) -> dict[str, str]:
        """Of an upstream's field digests those that the feature is computed from; none where one is not known."""
        used = {
            ref.field
            for field in self.feature.fields
            for ref in self.graph.parents(self.feature.key, field.key)
            if ref.feature == upstream.name
        }
        known = digests is not None and used <= digests.keys()
        return {key: digests[key] for key in sorted(used)} if digests is not None and known else {}


class ResolvedIncrement:
    """An increment of a feature, and how its rows go onto the version that it was computed from.

    Frames of Spark are computed once, and kept until it is closed; it is a context manager.
    """

    def __init__(
        self,
        feature: FeatureTable,
        increment: Increment[Any],
        engine: SampleRows[Any],
        head: UpstreamFiles | None,
        current: Any,
        upstreams: Mapping[str, Mapping[str, str]],
        pinned: ExitStack,
        samples: Any = None,
    ) -> None:
        self._samples = samples
        self.increment = increment
        self._pinned = pinned
        self._part = ExitStack()
        self.feature = feature
        self._engine = engine
        self._head = head
        self._current = current
        self._upstreams = upstreams

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
        plan, rows = self.feature.plan, self._engine
        keys = {field.key: field.member for field in self.feature.feature.fields}
        before = after or self._base
        record = FeatureRecord.of(before.identity.custom) if before is not None else None
        added = [rows.digests(plan, frame)] if part.todo or before is None else []
        if record is not None and record.digests.keys() == keys.keys() and record.ids == plan.ids:
            added.append({keys[key]: text for key, text in record.digests.items()})
        elif self._current is not None:
            added.append(rows.digests(plan, self._current))
        going = [(part.asked.gone, part.counts.orphaned), (part.asked.stale, part.counts.stale)]
        stored = self._current
        taken = [
            rows.digests(plan, rows.within(plan, stored, units))
            for units, count in going
            if count and stored is not None
        ]
        found = digests_together(added, taken)
        assert found is not None  # all are of the feature's fields
        return found

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
        read = _needed(each, upstreams[each.name].schema)
        return replace(each, rename={old: new for old, new in each.rename.items() if old in read}, select=())

    return replace(plan, upstreams=tuple(map(light, plan.upstreams)))


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
