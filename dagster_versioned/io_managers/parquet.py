"""`VersionedParquetIOManager`: every materialization a version, every input an exact version."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, get_args, get_origin

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_versioned.assets.graph.inputs import ALLOW_MISSING_KEY, COLUMNS_KEY, URI_KEY, VERSION_KEY, plain
from dagster_versioned.assets.graph.partitions import partitioning_of
from dagster_versioned.assets.graph.places import external_table
from dagster_versioned.dagster_internals import set_data_version
from dagster_versioned.engines.dispatch import is_spark_frame
from dagster_versioned.engines.spark.session import session_from
from dagster_versioned.errors import InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.features.feature_table import UpstreamFiles
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import partitions_sha
from dagster_versioned.io_managers.attempt import note, run_of
from dagster_versioned.io_managers.column_lineage import as_source, column_lineage
from dagster_versioned.io_managers.event_histories import event_time_of, projected, refuse_times
from dagster_versioned.io_managers.materialization import (
    OTHER_DEFINITION_KEY,
    PREVIEWED_PARTITIONS,
    other_writer,
    outcome_text,
    replay_text,
    table_metadata,
    version_metadata,
)
from dagster_versioned.io_managers.nothing_yet import may_lack, no_columns, without_none
from dagster_versioned.io_managers.omissions import Omissions
from dagster_versioned.io_managers.open_lineage import OpenLineageResource
from dagster_versioned.io_managers.output_partitions import frames_by_partition, some
from dagster_versioned.io_managers.parents import is_read_whole, parents_of
from dagster_versioned.io_managers.transform_run import run_metadata
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.queries.transform import Derivation
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.lineage import upstream_of_version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.write import WriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_versioned.dagster_internals import StepExecutionContext

PIN_TAG = "dagster_versioned/pin/"
"""Prefix of a run tag that pins a table, whose name follows, to a version."""
MESSAGE_TAG = "dagster_versioned/message"
"""Run tag with a message that becomes part of the identity of what the run writes."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _on_its_spark(
    method: "Callable[Concatenate[VersionedParquetIOManager, _P], _R]",
) -> "Callable[Concatenate[VersionedParquetIOManager, _P], _R]":
    """The method, within the `spark` of its IO manager."""

    @wraps(method)
    def within(self: "VersionedParquetIOManager", *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.spark():
            return method(self, *args, **kwargs)

    return within


class VersionedParquetIOManager(dg.ConfigurableIOManager):
    """Stores assets as versioned tables of a project, and loads exact versions of them.

    **Out.** What an asset returns decides how it is written: a PySpark (classic or Connect), pandas or Polars (eager or
    lazy) frame, a pyarrow Table or RecordBatchReader. The output's metadata may hold `TableOptions`. Equal data with
    equal parents, code version and message is the version that is there already: nothing is written, and the
    materialization says ``change: none``. A run over several partitions returns a dict of frames by partition key, or
    one frame with the key in a column that the asset's metadata names (``partition_expr``, as for Dagster's database IO
    managers; for partitions of several dimensions a dict by dimension); all of them become current in one commit.

    **In.** An input is read as its annotation says, ``dict[str, …]`` of it by partition key, else as the project's
    default engine says; several partitions without a dict come as one frame,
    in the order of their keys. It is the head, or the version that it is
    pinned to: by the run tag ``dagster_versioned/pin/<table>``, else by ``pins`` in the run config of this resource,
    else by ``dagster_versioned/version`` in the metadata of the `AssetIn`. ``dagster_versioned/columns`` there limits
    the columns. Partitions follow the input's partition mapping.

    **Histories.** An asset whose options have a `history` returns rows, as any other, and what becomes of them is
    appended as events. Rows without an event time are of the beginning of the partition, or of the time that the
    output's metadata ``dagster_versioned/event_time`` says. An input sees the current rows; with
    ``dagster_versioned/as_at`` or ``dagster_versioned/as_of`` in the metadata of the `AssetIn`, those of a time; with
    ``dagster_versioned/projection: events``, the events.

    **Lineage.** The exact versions that were handed to a step are the parents of what it writes (`parents_of`).

    Dagster passes by the IO manager, so that nothing is stored, where an asset is annotated ``-> None``, returns a
    `MaterializeResult` without a value, or is a ``multi_asset(specs=…)``: give the latter ``outs={…: AssetOut()}``.

    **What is no asset** has no table: the outputs of a job's ops, and what passes between the ops of a graph-backed
    asset. They go to the ``fallback`` IO manager, and inputs come from there.
    """

    model_config = ConfigDict(extra="forbid")

    project: ProjectResource
    pins: dict[str, str] = Field(default={}, description="Versions to read instead of heads, by table name.")
    preview_rows: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Rows that a materialization shows in Dagster; they go into its event log, where they stay.",
    )
    fallback: dg.ResourceDependency[dg.IOManager] = Field(
        default=cast("Any", dg.FilesystemIOManager()),
        description="Where values go that are no assets: an IO manager, by default Dagster's own, of pickled files.",
    )
    pyspark: dg.ResourceDependency[Any] = Field(
        default=cast("Any", None),
        description="Whose session of Spark reads and writes, such as dagster-pyspark's LazyPySparkResource.",
    )

    open_lineage: OpenLineageResource | None = Field(
        default=None,
        description="Sends an event of OpenLineage for each output, by the client's own configuration.",
    )

    @_on_its_spark
    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Make the value the current version of the asset's table, or of the run's partitions of it.

        Raises what `VersionedTable.write` does; `InvalidInput` for partitions that are not those of the run.
        """
        if not context.has_asset_key:
            return self._hand_on(context, obj)
        table = self.project.project().table(context.asset_key.path)
        step = _step(context)
        if self.open_lineage is None:
            self._store(context, step, table, obj)
        else:
            with self.open_lineage.reporting(table, context.asset_key, step, context.log) as output:
                output.results, output.lineage = self._store(context, step, table, obj)
        return None

    def _store(
        self, context: dg.OutputContext, step: "StepExecutionContext | None", table: VersionedTable, obj: Any
    ) -> tuple[Sequence[WriteResult], dg.TableColumnLineage | None]:
        """Commit the value, and show in Dagster what was written, and where its columns come from."""
        asset_key = context.asset_key
        options = TableOptions.from_metadata(context.definition_metadata)
        if isinstance(obj, Derivation):
            derived = obj.write(table, options=options, **_described(step, table, asset_key))
            self._report(context, step, table, [derived.result], None, lambda: run_metadata(obj, derived))
            return [derived.result], None
        if options.history is not None:
            lineage = column_lineage(obj)
            result = _append_events(context, step, table, obj, options)
            self._report(context, step, table, [result], lineage)
            return [result], lineage
        with frames_by_partition(context, obj, allow_empty=options.allow_empty) as frames:
            lineage = column_lineage(next(iter(frames.values()))) if frames else None
            partitioning = partitioning_of(context.asset_partitions_def) if context.has_asset_partitions else None
            results = _write(step, table, asset_key, frames, options, partitioning)
        self._report(context, step, table, results, lineage)
        return results, lineage

    @_on_its_spark
    def write_updates(
        self, context: dg.AssetExecutionContext, updates: Mapping[str | None, SampleUpdate]
    ) -> Sequence[WriteResult]:
        """Commit updates of the asset's table before its output is handled, by partition, described as this will be.

        Raises what `VersionedTable.write` does.
        """
        asset_key = context.asset_key
        options = TableOptions.from_metadata(context.assets_def.metadata_by_key[asset_key])
        table = self.project.project().table(asset_key.path)
        definition = context.assets_def.partitions_def if context.has_partition_key_range else None
        partitioning = partitioning_of(definition) if definition is not None else None
        return _write(context.get_step_execution_context(), table, asset_key, updates, options, partitioning)

    @_on_its_spark
    def load_input(self, context: dg.InputContext) -> Any:
        """The version of the upstream asset that the input is to see, as the type it is annotated with.

        Raises what `VersionedTable.read` does; where there is no version, the error says what to materialize.
        """
        if not context.has_asset_key:
            return self._fallback(_reader(context)).load_input(context)
        if (uri := _uri(context)) is not None:
            return self._external(context, external_table(uri, context.asset_key, self.project))
        table = self.project.project().table(context.asset_key.path)
        step = _step(context)
        wish = self._wish(context)
        files = self._files(context, table, step)
        is_empty = files is None or (not files.versions and not files.whole)
        if step:
            note(step, context.asset_key, [] if files is None or is_empty else table.upstream_of(files))
        if wish.frame_type is UpstreamFiles and files is not None:
            return UpstreamFiles(table, files)
        if files is None or (is_empty and (wish.is_optional or wish.by_partition)):
            return wish.of_nothing()
        if table.state.is_history:
            if wish.by_partition:
                raise InvalidInput(
                    f"The {_reader(context)} wants rows by partition, but {table.name} is a history of events, "
                    "which has none. Nothing was read. Annotate it with a frame."
                )
            return as_source(projected(context, table, files, wish.frame_type), context.asset_key)
        refuse_times(context)
        if not wish.by_partition:
            return as_source(table.read_files(files, wish.frame_type), context.asset_key)
        return {
            partition: as_source(table.read_files(one, wish.frame_type), context.asset_key)
            for partition, one in files.by_partition()
        }

    def spark(self) -> AbstractContextManager[None]:
        """Within it, frames of Spark are read on the session of ``pyspark``, where it is given."""
        return nullcontext() if self.pyspark is None else session_from(self._session)

    def _session(self) -> "SparkSession":
        session = getattr(self.pyspark, "spark_session", None)
        if session is None:
            raise InvalidInput(
                f"pyspark= of the IO manager is a {type(self.pyspark).__name__}, which has no spark_session. Nothing "
                "was read or written. Give it dagster-pyspark's LazyPySparkResource or PySparkResource; outside of a "
                "run, where no resource is set up, the lazy one."
            )
        return session

    def _hand_on(self, context: dg.OutputContext, obj: Any) -> Any:
        """Give the fallback what is no asset. Raises what that does, `InvalidInput` for a frame of Spark."""
        fallback = self._fallback(f"output {context.name!r}")
        try:
            return _with_events(context, fallback.handle_output(context, obj))
        except Exception as error:
            if not is_spark_frame(obj):
                raise
            raise InvalidInput(
                f"The output {context.name!r} is no asset, so it goes to the fallback of this IO manager, a "
                f"{type(fallback).__name__}, which cannot keep a frame of Spark ({type(error).__name__}). It was not "
                "stored. Return a frame of pyarrow, pandas or Polars, or make an asset of it; where all steps are one "
                "process, fallback=dg.mem_io_manager keeps it."
            ) from error

    def _fallback(self, value: str) -> dg.IOManager:
        """The IO manager of what is no asset, for ``value``: a factory has made it by now, if Dagster started this."""
        fallback: Any = self.fallback
        if not isinstance(fallback, dg.IOManager):
            raise InvalidInput(
                f"The {value} is no asset, and the fallback of this IO manager, {type(fallback).__name__}, is no "
                "IO manager. Nothing was read or written. Give fallback= an IO manager or a factory of one; outside "
                "of a run, where no factory is asked, an IO manager."
            )
        return fallback

    def _external(self, context: dg.InputContext, table: ExternalTable) -> Any:
        """The rows of a Delta table of no project, at the version that the input is to see."""
        step = _step(context)
        wish = self._wish(context)
        if wish.by_partition or wish.frame_type is UpstreamFiles:
            raise InvalidInput(
                f"The {_reader(context)} is the Delta table at {table.uri}, which has neither partitions nor "
                "samples here. Nothing was read. Annotate it with a frame."
            )
        columns: Sequence[str] | None = plain(context.definition_metadata, COLUMNS_KEY)
        files = table.files(self._pin(context, table.name, step), columns=columns)
        if step:
            note(step, context.asset_key, table.upstream_of(files.version))
        return as_source(table.read_files(files, wish.frame_type), context.asset_key)

    def _files(
        self, context: dg.InputContext, table: VersionedTable, step: "StepExecutionContext | None"
    ) -> VersionFiles | None:
        """The files of the version and the partitions that the input is to see; ``None`` if it may do without a table.

        Those of no partition have the columns that the table has.
        """
        # Dagster gives the keys in no order, and the order of rows is part of what a frame says.
        wanted = sorted(map(str, context.asset_partition_keys)) if context.has_asset_partitions else None
        version = self._pin(context, table.name, step)
        columns: Sequence[str] | None = plain(context.definition_metadata, COLUMNS_KEY)
        try:
            if table.state.is_history:
                events = table.files(version)  # which are those of no partition, and need all columns to be known
                return events.of_no_partition() if wanted == [] else events
            chosen = table.choose(version)
        except TableNotFound:
            if wanted is not None and may_lack(context, step, wanted) and _annotation(context) is not UpstreamFiles:
                return None
            raise TableNotFound(_never_materialized(context, table, [])) from None
        if wanted is None:
            return table.files_of(chosen, columns=columns)
        known = {one.partition for one in chosen.versions}
        present = [key for key in wanted if key in known]
        missing = [key for key in wanted if key not in known]
        if missing and not may_lack(context, step, missing):
            raise VersionNotFound(_never_materialized(context, table, missing))
        if not present:
            return table.files_of(chosen, columns=columns).of_no_partition()
        if not (known <= set(wanted) and (step is None or is_read_whole(step, context.asset_key))):
            chosen = chosen.only(present)
        return table.files_of(chosen, columns=columns)

    def _pin(self, context: dg.InputContext, table: TableName, step: "StepExecutionContext | None") -> str | int | None:
        """What the input is pinned to; ``None`` for the head."""
        tagged = step.dagster_run.tags.get(PIN_TAG + table) if step else None
        return tagged or self.pins.get(table) or plain(context.definition_metadata, VERSION_KEY)

    def _wish(self, context: dg.InputContext) -> "_Wish":
        annotation, is_optional = without_none(_annotation(context))
        by_partition = get_origin(annotation) in (dict, Mapping)
        if by_partition:
            annotation = get_args(annotation)[1]
        frame_type = self.project.frame_type() if annotation is Any else annotation
        return _Wish(frame_type, by_partition, is_optional, annotation is not Any)

    def _report(
        self,
        context: dg.OutputContext,
        step: "StepExecutionContext | None",
        table: VersionedTable,
        results: Sequence[WriteResult],
        lineage: dg.TableColumnLineage | None,
        more: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Tell Dagster what was written, and later outputs of the same step; what cannot be read is left out."""
        asset_key = context.asset_key
        if step is not None:
            versions = [result.version for result in results]
            shas = {one.partition: one.entry.metadata_sha for one in versions}
            by_key = {key: sha for key, sha in shas.items() if key is not None}
            set_data_version(asset_key, partitions_sha(by_key) if len(shas) > 1 else next(iter(shas.values())))
            if len(context.step_context.op_def.output_defs) > 1:
                note(step, asset_key, [upstream_of_version(table.project.name, table.name, one) for one in versions])
        context.log.info(outcome_text(table.name, results))
        if (text := replay_text(table.name, results)) is not None:
            context.log.warning(text)
        omissions = Omissions()
        with omissions.leave_out("what is known of the table"):
            context.add_output_metadata(table_metadata(table, results[0].version, lineage))
        if more is not None:
            with omissions.leave_out("how it was computed"):
                context.add_output_metadata(more())
        history, before = None, None
        with omissions.leave_out("the history"):
            history = table.state.history
            before = history.before([result.version for result in results])
        other = None
        with omissions.leave_out("which definition wrote before"):
            other = other_writer(history, results)
        if other is not None:
            context.log.warning(f"{table.name} has two definitions: {other}. Give one of the assets another key.")
            context.add_output_metadata({OTHER_DEFINITION_KEY: other})
        for number, result in enumerate(results):
            with omissions.leave_out("what is known of the version"):
                rows = self.preview_rows if number < PREVIEWED_PARTITIONS else 0
                metadata = version_metadata(table, history, result, rows, omissions, before)
                if len(results) == 1:
                    context.add_output_metadata(metadata)
                elif step:
                    step.add_asset_metadata(metadata, asset_key, result.version.partition)
        omissions.log(context.log, table.name)


@dataclass(frozen=True)
class _Wish:
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
        return {} if self.by_partition else no_columns(self.frame_type)


def _write(
    step: "StepExecutionContext | None",
    table: VersionedTable,
    asset_key: dg.AssetKey,
    frames: Mapping[str | None, Any],
    options: TableOptions,
    partitioning: Partitioning | None,
) -> list[WriteResult]:
    """Make the frames current, with all that the step knows of how they came about."""
    return table.write_partitions(
        frames,
        asset_key=list(asset_key.path),
        parents=parents_of(step, asset_key, list(frames), table.project) if step else (),
        code_version=step.job_def.asset_layer.get(asset_key).code_version if step else None,
        message=step.dagster_run.tags.get(MESSAGE_TAG) if step else None,
        options=options,
        run=run_of(step, adds_rows=options.mode == "append") if step else None,
        partitioning=partitioning,
    )


def _described(step: "StepExecutionContext | None", table: VersionedTable, asset_key: dg.AssetKey) -> dict[str, Any]:
    """What the step knows of how the table came about, for one that has no partitions."""
    return {
        "asset_key": list(asset_key.path),
        "parents": parents_of(step, asset_key, [None], table.project).get(None, ()) if step else (),
        "code_version": step.job_def.asset_layer.get(asset_key).code_version if step else None,
        "message": step.dagster_run.tags.get(MESSAGE_TAG) if step else None,
        "run": run_of(step) if step else None,
    }


def _append_events(
    context: dg.OutputContext,
    step: "StepExecutionContext | None",
    table: VersionedTable,
    frame: Any,
    options: TableOptions,
) -> WriteResult:
    """Append what became of the frame to the asset's history, with all that the step knows of how it came about."""
    asset_key = context.asset_key
    if frame is None:
        raise InvalidInput(
            f"The asset {asset_key.to_user_string()} returned None, which is no table. Nothing was written. Return a "
            "frame, or annotate the function with -> None, so that it is not asked for one."
        )
    partitions = sorted(map(str, context.asset_partition_keys)) if context.has_asset_partitions else [None]
    event_time = event_time_of(context)
    parents = parents_of(step, asset_key, partitions, table.project) if step else {}
    return EventTable(table, options.history).write(
        frame,
        event_time=event_time,
        asset_key=list(asset_key.path),
        parents=[parent for of_one in parents.values() for parent in of_one],
        code_version=step.job_def.asset_layer.get(asset_key).code_version if step else None,
        message=step.dagster_run.tags.get(MESSAGE_TAG) if step else None,
        options=options,
        run=run_of(step, adds_rows=True) if step else None,
    )


def _with_events(context: dg.OutputContext, handled: Any) -> Any:
    """What another IO manager returned of an output, for Dagster, which takes what is yielded of generators alone."""
    if not isinstance(handled, Generator):
        return handled
    for event in cast("Generator[Any]", handled):
        if isinstance(event, Mapping):
            context.add_output_metadata(event)
        else:
            context.log_event(event)
    return None


def _annotation(context: dg.InputContext) -> Any:
    """As what the input is annotated; anything, where a test or a notebook does not say."""
    try:
        return context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:
        return Any


def _reader(context: dg.InputContext) -> str:
    """What is to be read; it has no name outside of a run."""
    try:
        return f"input {context.name!r}"
    except dg.DagsterInvariantViolationError:
        return "value"


def _never_materialized(context: dg.InputContext, table: VersionedTable, partitions: Sequence[str]) -> str:
    asset = context.asset_key.to_user_string()
    which = f"Partition {some(partitions)} of the asset {asset}" if partitions else f"The asset {asset}"
    option = f" --partition '{partitions[0]}'" if partitions else ""
    allow = f", or let the input do without: AssetIn(metadata={{'{ALLOW_MISSING_KEY}': True}})" if partitions else ""
    return (
        f"{which} has no version in project {table.project.name} ({table.store.uri}), so the {_reader(context)} "
        f"cannot be read. Nothing was changed. Materialize it first, in the UI or with `dagster asset materialize "
        f"--select 'key:\"{asset}\"'{option}`{allow}."
    )


def _uri(context: dg.InputContext) -> str | None:
    """Where the Delta table is that an input loads, if it is one of no project."""
    above = context.upstream_output
    uri = plain(above.definition_metadata, URI_KEY) if above is not None else None
    return None if uri is None else str(uri)


def _step(context: dg.OutputContext | dg.InputContext) -> "StepExecutionContext | None":
    """The running step; there is none in unit tests and where an asset's value is loaded outside of a run."""
    try:
        return context.step_context
    except dg.DagsterInvariantViolationError:
        return None
