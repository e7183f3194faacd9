"""The samples of one feature that a rebase accepts, and what those below it see of them before they are written."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType, schema_from_arrow
from dagster_versioned.engines.samples import (
    DATA_VERSION_BY_FIELD,
    PROVENANCE_BY_FIELD,
    SYSTEM_COLUMNS,
    Counts,
)
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.arrow.sample_rows import ARROW_ROWS, anti_join
from dagster_versioned.features.arrow.samples import member_of
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.feature_table import FeatureTable, ResolvedIncrement, field_versions, hash_of
from dagster_versioned.features.graph import FeatureGraph, FieldRef
from dagster_versioned.features.increment import Increment
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.upstream_files import UpstreamFiles, table_of
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.feature_record import FEATURE_MEMBER, FeatureRecord
from dagster_versioned.tables.history import Version


@dataclass(frozen=True)
class AcceptedSamples:
    """What is to be written of a feature, and what those below it see of it until then.

    ``samples`` of those ``stored`` are accepted, all that ``increment`` asks for (``None``: they get names alone);
    ``left`` are still to be computed. ``head`` is the version that they are of, ``upstreams`` are what it was compared
    with.
    """

    feature: FeatureTable
    head: Version
    samples: int
    left: int
    update: SampleUpdate
    shown: "ShownTable"
    stored: pa.Table
    increment: Increment[Any] | None = None
    upstreams: Mapping[str, UpstreamFiles] = field(default_factory=dict[str, UpstreamFiles])


@dataclass(frozen=True)
class ShownTable(UpstreamFiles):
    """A table whose fields have their old names beside the new ones; ``rows`` stand in the place of files."""

    rows: pa.Table | None = None
    known: Mapping[str, str] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def schema(self) -> StructType:
        return schema_from_arrow(self.rows.schema) if self.rows is not None else super().schema

    def read(self, frame_type: type, columns: Sequence[str] | None = None) -> Any:
        rows: pa.Table
        if self.rows is None:
            rows = super().read(pa.Table, columns)
        else:
            rows = self.rows if columns is None else self.rows.select(list(columns))
        if DATA_VERSION_BY_FIELD in rows.column_names:
            held = ARROW_ROWS.members_of(rows, DATA_VERSION_BY_FIELD)
            missing = {old: new for old, new in self.aliases.items() if old not in held and new in held}
            members = {
                each: member_of(rows, DATA_VERSION_BY_FIELD, missing.get(each, each)) for each in (*held, *missing)
            }
            rows = _with_struct(rows, DATA_VERSION_BY_FIELD, members)
        return rows if frame_type is pa.Table else rows.to_reader()

    def of_none(self) -> UpstreamFiles:
        return replace(super().of_none(), rows=None if self.rows is None else self.rows.slice(0, 0))

    def before(self, head: Version) -> UpstreamFiles | None:
        return None  # files are of the old names

    def digests(self) -> dict[str, str] | None:
        return dict(self.known) if self.known is not None else super().digests() if self.rows is None else None


class FeatureToRebase:
    """One feature of a rebase, with those above it as they will be."""

    def __init__(
        self,
        project: Project,
        graph: FeatureGraph,
        feature: Feature,
        names: Mapping[str, str],
        above: Mapping[str, AcceptedSamples],
        others: Iterable[Project],
    ) -> None:
        self._others = list(others)
        self._project, self._graph, self.feature, self._names, self._above = project, graph, feature, names, above
        self.table = project.table(feature.key.split("/"))
        self.head = self.table.state.history.heads.get(None) if self.table.exists() else None
        if self.head is None and self.table.exists() and self.table.state.history.heads:
            raise InvalidInput(
                f"Feature {feature.key!r} has partitions, which a rebase does not know. Nothing was written. Compute "
                "what is stale of it."
            )
        self.record = FeatureRecord.of(self.head.identity.custom) if self.head is not None else None

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be done: it was never computed, or by these definitions."""
        if self.record is None:
            return True
        if self.record.full and self.record.left:
            raise InvalidInput(
                f"Feature {self.feature.key!r} is being computed again, whatever its samples were computed from: "
                f"{self.record.left} are left. Nothing was written. Let that end first."
            )
        return self.record.fields == field_versions(self._graph, self.feature.key)

    def root(self, before: FeatureGraph) -> AcceptedSamples | None:
        """A feature without upstreams, whose fields get their new names; all else its next run finds by itself."""
        if not any(ref.startswith(f"{self.feature.key}.") for ref in self._names):
            return None
        stored = self._files().read(pa.Table)
        taken = self._members(before)
        held = ARROW_ROWS.members_of(stored, PROVENANCE_BY_FIELD)
        members = [each.member for each in self.feature.fields if taken.get(each.member, each.member) in held]
        if len(members) < len(self.feature.fields):
            return None  # an added field: its versions are those of samples, which the function brings
        given = without_versions(stored)
        for column in (PROVENANCE_BY_FIELD, DATA_VERSION_BY_FIELD):
            found = {each: member_of(stored, column, taken.get(each, each)) for each in sorted(members)}
            given = _with_struct(given, column, found)
        resolved = self._feature_table(self._graph).resolve_samples(given, as_type=pa.Table, full=True)
        return self._plan(resolved, resolved.finish(), stored, resolved.increment.todo, 0)

    def derived(self, before: FeatureGraph) -> AcceptedSamples | None:
        """A feature that is computed from others, with those samples accepted that were current before."""
        keys = dict.fromkeys(dep.feature for graph in (before, self._graph) for dep in graph[self.feature.key].deps)
        known = {each.key: each for graph in (before, self._graph) for each in graph}
        files = {key: shown for key in keys if (shown := self._upstream(known[key])) is not None}
        # By which definitions another project computed them then is no question now.
        unlocked = FeatureGraph([replace(each, project=None) for each in before], before.hash_length)
        old = self._feature_table(unlocked).resolve(files).increment.asked
        resolved = self._feature_table(self._graph).resolve(files)
        asked, plan = resolved.increment.asked, resolved.feature.plan
        changed = pa.concat_tables([each.select(list(plan.units)) for each in (old.stale, old.gone)])
        accepted = anti_join(asked.stale, changed, plan.units)
        count = accepted.num_rows
        if not count:
            return None
        left = asked.counts.new + asked.counts.stale - count + asked.counts.orphaned
        part = resolved.increment.of(
            replace(
                asked,
                new=asked.new.slice(0, 0),
                stale=accepted,
                gone=asked.gone.slice(0, 0),
                counts=Counts(stale=count),
                left=left,
                piece=True,
            )
        )
        everything = self._files().read(pa.Table)
        stored = ARROW_ROWS.within(plan, everything, accepted)
        rows = self._with_old_versions(stored, plan.members, self._members(before))
        made = self._plan(resolved, resolved.finish(rows, part), stored, count, left, everything)
        return replace(made, increment=part, upstreams=files)

    # Inside

    def _with_old_versions(self, stored: pa.Table, members: Iterable[str], taken: Mapping[str, str]) -> pa.Table:
        """The user's columns, and the data versions of members that were called as ``taken`` says, or as they are."""
        held = ARROW_ROWS.members_of(stored, DATA_VERSION_BY_FIELD)
        kept = {each: taken.get(each, each) for each in members if taken.get(each, each) in held}
        found = {new: member_of(stored, DATA_VERSION_BY_FIELD, old) for new, old in kept.items()}
        rows = without_versions(stored)
        return _with_struct(rows, DATA_VERSION_BY_FIELD, found) if found else rows

    def _plan(
        self,
        resolved: ResolvedIncrement,
        update: SampleUpdate,
        stored: pa.Table,
        samples: int,
        left: int,
        everything: pa.Table | None = None,
    ) -> AcceptedSamples:
        assert self.head is not None
        members = resolved.feature.plan.members
        rows = _beside(update.frame, stored, members)
        if everything is not None:
            rest = anti_join(everything, stored, resolved.feature.plan.ids)
            rows = pa.concat_tables([rows, _beside(None, rest, members)], promote_options="permissive")
        digests = cast("Mapping[str, str]", update.custom[FEATURE_MEMBER]["digests"])
        shown = ShownTable(self.table, self.table.files(), rows, digests)
        return AcceptedSamples(resolved.feature, self.head, samples, left, update, shown, stored)

    def _files(self) -> UpstreamFiles:
        return UpstreamFiles(self.table, self.table.files())

    def _feature_table(self, graph: FeatureGraph) -> FeatureTable:
        assert self.record is not None
        return FeatureTable(graph, self.feature.key, self.table, hash_of(self.record))

    def _members(self, before: FeatureGraph) -> dict[str, str]:
        """The old members of the versions by field, by the new ones that are called otherwise."""
        fields = {FieldRef.of(self.feature.key, each.key).text: each.member for each in before[self.feature.key].fields}
        return {self._names[text].replace("/", "_"): old for text, old in fields.items() if text in self._names}

    def _upstream(self, feature: Feature) -> UpstreamFiles | None:
        key = feature.key
        if key in self._above:
            return self._above[key].shown
        files = UpstreamFiles.current(table_of(feature, self._project, self._others))
        prefix = f"{key}."
        aliases = {
            old.removeprefix(prefix).replace("/", "_"): new.replace("/", "_")
            for old, new in self._names.items()
            if old.startswith(prefix)
        }
        return ShownTable(files.table, files.files, aliases=aliases) if files is not None and aliases else files


def _beside(new: pa.Table | None, old: pa.Table, members: Collection[str]) -> pa.Table:
    """Rows with their data versions by the fields of both; new ones are in ``new``, the same rows, if given."""
    held = ARROW_ROWS.members_of(old, DATA_VERSION_BY_FIELD)
    found: dict[str, Any] = {}
    for each in dict.fromkeys((*members, *held)):
        if new is not None and each in members:
            found[each] = member_of(new, DATA_VERSION_BY_FIELD, each)
        else:
            nothing = pa.chunked_array([pa.nulls(old.num_rows, pa.string())])
            found[each] = member_of(old, DATA_VERSION_BY_FIELD, each) if each in held else nothing
    rows = without_versions(old)
    return _with_struct(rows, DATA_VERSION_BY_FIELD, found)


def _with_struct(rows: pa.Table, name: str, members: Mapping[str, Any]) -> pa.Table:
    struct = pa.StructArray.from_arrays([each.combine_chunks() for each in members.values()], list(members))
    if name in rows.column_names:
        return rows.set_column(rows.column_names.index(name), name, struct)
    return rows.append_column(name, struct)


def without_versions(rows: pa.Table) -> pa.Table:
    """The columns that are the user's."""
    return rows.select([name for name in rows.column_names if name not in SYSTEM_COLUMNS])
