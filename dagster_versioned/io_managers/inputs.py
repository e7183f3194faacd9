"""What a step reads: the exact version that its input is to see, as the type that it is annotated with.

Three steps: which table an input is of (`_source`), what it sees of that (`_Source.look`), and its rows (`_Rows.load`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

import dagster as dg
import pyarrow as pa

from dagster_versioned.assets.graph.inputs import (
    ALLOW_MISSING_KEY,
    COLUMNS_KEY,
    IF_SELECTED_KEY,
    PROJECT_KEY,
    URI_KEY,
    VERSION_KEY,
    plain,
)
from dagster_versioned.assets.graph.partitions import keys_in_range, partitioning_of
from dagster_versioned.assets.graph.places import external_table
from dagster_versioned.assets.looks import note_look
from dagster_versioned.assets.parked import Publish, is_parking, table_for
from dagster_versioned.assets.reuse.lazy_input import LazyInput, LazyType, asked_of, type_text
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.dispatch import engine_for_type
from dagster_versioned.engines.frames import to_frame
from dagster_versioned.errors import InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.identity.names import TableName
from dagster_versioned.io_managers.attempt import LeftTables, input_text, note, read_at, step_of
from dagster_versioned.io_managers.column_lineage import as_source
from dagster_versioned.io_managers.event_histories import projected, refuse_times
from dagster_versioned.io_managers.parents import is_read_whole
from dagster_versioned.process_state import PROCESS
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.choose import ChosenVersions
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.partitioning import Partitioning, shown
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.upstream import Upstream

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext

PIN_TAG = "dagster_versioned/pin/"
"""Prefix of a run tag that pins a table, whose name follows, to a version."""


@dataclass(frozen=True)
class _InputType:
    """What an input is to be: its annotation, or without one the project's default type; perhaps a dict of it by
    partition, perhaps ``None`` where there is nothing yet."""

    frame_type: Any
    by_partition: bool
    is_optional: bool
    is_annotated: bool

    def of_nothing(self) -> Any:
        """What it is where there is nothing yet, and no columns are known."""
        if self.is_optional or not (self.by_partition or self.is_annotated):
            return None
        return {} if self.by_partition else _no_columns(self.frame_type)


@dataclass(frozen=True)
class _ResolvedInput:
    """What an input sees: versions, or their columns alone (``of_nothing``). Loading it asks for their files."""

    chosen: ChosenVersions
    columns: Sequence[str] | None
    of_nothing: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of the table to see."""
        return self.of_nothing or not (self.chosen.versions or self.chosen.whole)

    def files(self, table: VersionedTable) -> VersionFiles:
        """The files of the versions; where there is nothing to see, none of them, with the columns of the table."""
        files = table.files_of(self.chosen, columns=self.columns)
        return files.of_no_partition() if self.of_nothing else files


@dataclass(frozen=True)
class _Source:
    """Which table of a project an input is of, as what it is read, and what it is pinned to."""

    context: dg.InputContext
    step: "StepExecutionContext | None"
    table: VersionedTable
    kind: _InputType
    pin: str | int | None

    def look(self, left: TableState | None, *, again: bool = False) -> "_Rows":
        """What the input sees now, or where an earlier step of the run ``left`` the table so, of that state.

        What the step has seen of the table before, it sees again; but not where it looks ``again`` at what was left.
        """
        step, version = self.step, self.pin
        if left is not None:
            self.table.operations.cache.adopt(left)
        elif not again and version is None and step is not None:
            version = read_at(step, self.context.asset_key)
        rows = _Rows(self, _seen(self.context, self.table, step, version, as_last_seen=left is not None))
        upstreams = rows.upstreams  # outside of a step as well: raises for what nobody adopted
        if step is not None:
            self._note(step, rows.seen, upstreams, adds=not again)
        return rows

    def _note(
        self, step: "StepExecutionContext", seen: _ResolvedInput | None, upstreams: Sequence[Upstream], *, adds: bool
    ) -> None:
        """Note what the step reads, for its outputs and its checks."""
        is_head = self.pin is None and not self.table.operations.parked
        log_version = seen.chosen.log_version if seen is not None and is_head else None
        note(step, self.context.asset_key, upstreams, log_version=log_version, adds=adds)
        chosen = seen.chosen.versions if upstreams and seen else ()
        note_look(step, self.context.asset_key, self.table, chosen, input_text(self.context))


@dataclass(frozen=True)
class _Rows:
    """What an input is to see (``seen``; ``None``: nothing), read once it is asked for."""

    source: _Source
    seen: _ResolvedInput | None

    @cached_property
    def upstreams(self) -> Sequence[Upstream]:
        """What an output that is built from it names."""
        return [] if self.seen is None or self.seen.is_empty else self.source.table.upstream_of(self.seen.chosen)

    @cached_property  # for who computes partitions in several stretches
    def files(self) -> VersionFiles | None:
        """The files that hold it."""
        return None if self.seen is None else self.seen.files(self.source.table)

    def load(self, partitions: frozenset[str] | None = None) -> Any:
        """It, or what of it is of these partitions, as the type that the input is annotated with."""
        context, table, kind = self.source.context, self.source.table, self.source.kind
        files = None if self.files is None else _only(table, self.files, partitions)
        if kind.frame_type is UpstreamFiles and files is not None:
            return UpstreamFiles(table, files)
        is_empty = files is None or (not files.versions and not files.whole)
        if files is None or (is_empty and (kind.is_optional or kind.by_partition)):
            return kind.of_nothing()
        if table.state.is_history:
            if kind.by_partition:
                raise InvalidInput(
                    f"The {input_text(context)} wants rows by partition, but {table.name} is a history of events, "
                    "which has none. Nothing was read. Annotate it with a frame."
                )
            return as_source(projected(context, table, files, kind.frame_type), context.asset_key)
        refuse_times(context)
        if not kind.by_partition:
            return as_source(table.read_files(files, kind.frame_type), context.asset_key)
        return {
            partition: as_source(table.read_files(scan, kind.frame_type), context.asset_key)
            for partition, scan in files.by_partition()
        }

    def lazy(self) -> LazyInput:
        """It, to be loaded only if the function that wants it is called."""
        return _lazy(self.source.context, self.upstreams, self.source.kind, self.load)


def load(context: dg.InputContext, project: ProjectResource, pins: Mapping[str, str], publish: Publish) -> Any:
    """The version of the upstream asset that the input is to see, as the type it is annotated with.

    One that is lazy is as an earlier step of the run left it, which is enough to see that nothing is to be done; its
    ``look_again`` is what it is now. Raises what `VersionedTable.read` does; where there is no version, the error says
    what to materialize.
    """
    if (uri := _uri(context)) is not None:
        return _external(context, external_table(uri, context.asset_key, project), project, pins)
    _require_project(context, project.project().name)
    step = step_of(context)
    if step is not None and not _is_needed(context, step):
        return UpstreamFiles(project.project().table(context.asset_key.path), cast("VersionFiles", None))

    def source() -> _Source:
        opened = project.project().table(context.asset_key.path)
        table = opened if step is None else table_for(step, opened, publish)
        return _Source(context, step, table, _kind(context, project), _pin(context, table.name, step, pins))

    first = source()
    if not is_lazy(context):
        return first.look(None).load()
    left = None
    if step is not None and first.pin is None and not is_parking(step, publish):
        left = PROCESS.of(LeftTables, first.table.project).get(step.run_id, first.table)
    lazy = first.look(left).lazy()
    return lazy if left is None else replace(lazy, look_again=lambda: source().look(None, again=True).lazy())


def is_lazy(context: dg.InputContext) -> bool:
    """Whether the input is loaded only where the function that wants it is called."""
    try:
        return isinstance(context.dagster_type, LazyType)
    except dg.DagsterInvariantViolationError:
        return False  # outside of a run


def _lazy(
    context: dg.InputContext,
    versions: Sequence[Upstream],
    kind: _InputType,
    load: Callable[[frozenset[str] | None], Any],
) -> LazyInput:
    read_as = type_text(_annotation(context) if kind.is_annotated else kind.frame_type)
    return LazyInput(context.asset_key, tuple(versions), read_as, asked_of(context.definition_metadata), load)


def _only(table: VersionedTable, files: VersionFiles, partitions: frozenset[str] | None) -> VersionFiles:
    """Of files, those of some partitions (``None``: all), as if these alone had been asked for."""
    if partitions is None or all(version.partition is None for version in files.versions):
        return files
    known = sorted(str(version.partition) for version in files.versions if version.partition in partitions)
    if not known:
        return files.of_no_partition()
    return table.files_of(files.only(known), columns=files.scan.columns)


def _external(context: dg.InputContext, table: ExternalTable, project: ProjectResource, pins: Mapping[str, str]) -> Any:
    step = step_of(context)
    kind = _kind(context, project)
    if kind.by_partition or kind.frame_type is UpstreamFiles:
        raise InvalidInput(
            f"The {input_text(context)} is the Delta table at {table.uri}, which has neither partitions nor "
            "samples here. Nothing was read. Annotate it with a frame."
        )
    columns: Sequence[str] | None = plain(context.definition_metadata, COLUMNS_KEY)
    pin = _pin(context, table.name, step, pins)
    files = table.files(pin if pin is not None or step is None else read_at(step, context.asset_key), columns=columns)
    if step:
        versions = table.upstream_of(files.version)
        note(step, context.asset_key, versions, log_version=None if pin else files.version.log_version, adds=True)

    def value(_: frozenset[str] | None) -> Any:
        return as_source(table.read_files(files, kind.frame_type), context.asset_key)

    return _lazy(context, table.upstream_of(files.version), kind, value) if is_lazy(context) else value(None)


def _is_needed(context: dg.InputContext, step: "StepExecutionContext") -> bool:
    """Whether an input is always needed, or one of the assets that the run selected of the step is computed from it."""
    if not plain(context.definition_metadata, IF_SELECTED_KEY):
        return True
    graph = step.job_def.asset_layer.asset_graph
    selected = step.assets_def.keys if step.assets_def else ()
    return any(context.asset_key in graph.get(key).parent_keys for key in selected)


def _require_project(context: dg.InputContext, name: str) -> None:
    wanted = plain(context.definition_metadata, PROJECT_KEY)
    if wanted not in (None, name):
        key = context.asset_key.to_user_string()
        raise InvalidInput(
            f"The {input_text(context)} is a feature of project {wanted}, and its IO manager is on {name}. Nothing was "
            f"read. Make its source versioned_source({key!r}, io_manager_key=…), with a VersionedParquetIOManager on "
            f"ProjectResource(name={wanted!r}, …) under that key."
        )


def _seen(
    context: dg.InputContext,
    table: VersionedTable,
    step: "StepExecutionContext | None",
    version: str | int | None,
    *,
    as_last_seen: bool,
) -> _ResolvedInput | None:
    """The version and the partitions that the input is to see; ``None`` if it may do without a table."""
    # Dagster gives the keys in no order, and the order of rows is part of what a frame says.
    wanted = sorted(map(str, context.asset_partition_keys)) if context.has_asset_partitions else None
    columns: Sequence[str] | None = plain(context.definition_metadata, COLUMNS_KEY)
    try:
        chosen = table.choose(version, as_last_seen=as_last_seen, partitioning=_partitioning(context))
    except TableNotFound:
        if wanted is not None and _may_lack(context, step, wanted) and _annotation(context) is not UpstreamFiles:
            return None
        raise TableNotFound(_never_materialized(context, table, [])) from None
    if table.last_state.is_history:
        # Events are of no partition, and need all columns to be known.
        return _ResolvedInput(chosen, None, of_nothing=wanted == [])
    if wanted is None:
        return _ResolvedInput(chosen, columns)
    return _seen_partitions(context, table, step, chosen, wanted)


def _seen_partitions(
    context: dg.InputContext,
    table: VersionedTable,
    step: "StepExecutionContext | None",
    chosen: ChosenVersions,
    wanted: Sequence[str],
) -> _ResolvedInput:
    """Those of the versions of a table that are of partitions. Raises `VersionNotFound` for what may not lack."""
    columns: Sequence[str] | None = plain(context.definition_metadata, COLUMNS_KEY)
    if not chosen.versions and table.last_state.history.until(chosen.log_version).unadopted is not None:
        table.upstream_of(chosen)  # raises: what nobody adopted is not missing
    known = {version.partition for version in chosen.versions}
    present = [key for key in wanted if key in known]
    missing = [key for key in wanted if key not in known]
    if missing and not _may_lack(context, step, missing):
        raise VersionNotFound(_never_materialized(context, table, missing))
    if not present:
        return _ResolvedInput(chosen, columns, of_nothing=True)
    if not (known <= set(wanted) and (step is None or is_read_whole(step, context.asset_key))):
        chosen = chosen.only(present)
    return _ResolvedInput(chosen, columns)


def _partitioning(context: dg.InputContext) -> Partitioning | None:
    """What the partitions that the input is to see are; ``None`` where it is to see the whole table."""
    if not context.has_asset_partitions:
        return None
    try:
        return partitioning_of(context.asset_partitions_def)
    except dg.DagsterInvariantViolationError:
        return None  # a test that gives keys alone


def _pin(
    context: dg.InputContext, table: TableName, step: "StepExecutionContext | None", pins: Mapping[str, str]
) -> str | int | None:
    """What the input is pinned to; ``None`` for the head."""
    tagged = step.dagster_run.tags.get(PIN_TAG + table) if step else None
    return tagged or pins.get(table) or plain(context.definition_metadata, VERSION_KEY)


def _kind(context: dg.InputContext, project: ProjectResource) -> _InputType:
    annotation, is_optional = _without_none(_annotation(context))
    by_partition = get_origin(annotation) in (dict, Mapping)
    if by_partition:
        annotation, _ = _without_none(get_args(annotation)[1])  # what is missing is not in the dict
    frame_type = project.frame_type() if annotation is Any else annotation
    return _InputType(frame_type, by_partition, is_optional, annotation is not Any)


def _annotation(context: dg.InputContext) -> Any:
    """As what the input is annotated; anything, where a test or a notebook does not say."""
    try:
        return context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:
        return Any


def _never_materialized(context: dg.InputContext, table: VersionedTable, partitions: Sequence[str]) -> str:
    asset = context.asset_key.to_user_string()
    which = f"Partition {shown(partitions)} of the asset {asset}" if partitions else f"The asset {asset}"
    option = f" --partition '{partitions[0]}'" if partitions else ""
    allow = f", or let the input do without: AssetIn(metadata={{'{ALLOW_MISSING_KEY}': True}})" if partitions else ""
    return (
        f"{which} has no version in project {table.project.name} ({table.store.uri}), so the {input_text(context)} "
        f"cannot be read. Nothing was changed. Materialize it first, in the UI or with `dagster asset materialize "
        f"--select 'key:\"{asset}\"'{option}`{allow}."
    )


def _uri(context: dg.InputContext) -> str | None:
    above = context.upstream_output
    uri = plain(above.definition_metadata, URI_KEY) if above is not None else None
    return None if uri is None else str(uri)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """What an annotation such as ``pl.DataFrame | None`` is of, and whether it allows ``None``."""
    args = get_args(annotation)
    if NoneType not in args or len(args) != 2:
        return annotation, False
    return next(arg for arg in args if arg is not NoneType), True


def _may_lack(context: dg.InputContext, step: "StepExecutionContext | None", partitions: list[str]) -> bool:
    """Whether an input of partitions may do without these, which have no version.

    Where its metadata say so (`ALLOW_MISSING_KEY`), and where these are what the run itself is to make. There are none
    to lack where its partition mapping leads to before the first.
    """
    allowed = bool(plain(context.definition_metadata, ALLOW_MISSING_KEY))
    return allowed or set(partitions) <= _made_by_run(context, step)


def _no_columns(frame_type: Any) -> Any:
    """A frame without rows where not even the columns are known. Raises `UnsupportedFrame`."""
    if isinstance(engine_for_type(frame_type), ArrowEngine):
        return to_frame(pa.table({}), frame_type)
    from dagster_versioned.engines.spark.session import default_session

    return default_session().createDataFrame([], "struct<>")


def _made_by_run(context: dg.InputContext, step: "StepExecutionContext | None") -> frozenset[str]:
    if step is None or step.assets_def is None or context.asset_key not in step.assets_def.keys:
        return frozenset()
    definition = step.run_partitions_def
    if definition is None or not step.has_partition_key_range:
        return frozenset()
    return keys_in_range(definition, step.partition_key_range, step.instance)
