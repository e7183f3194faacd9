"""`VersionedParquetIOManager`: every materialization a version, every input an exact version.

What is defined here is all that a code location needs to load; what is done is imported when something is.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import table_name_of
from dagster_versioned.io_managers.open_lineage import OpenLineageResource
from dagster_versioned.process_state import PROCESS
from dagster_versioned.resources.project import ProjectResource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_versioned.assets.reuse.lazy_input import LazyInput
    from dagster_versioned.features.sample_update import SampleUpdate
    from dagster_versioned.tables.write.kept import KeptVersion
    from dagster_versioned.tables.write.write import WriteResult


class CheckedPlans(set[str]):
    """The execution plans whose assets were all found to have tables: each process of a run reads its plan once."""


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
    output's metadata ``dagster_versioned/event_time`` says; ``dagster_versioned/watermark`` there sets the watermark,
    for which the output may be ``None``. An input sees the current rows; with ``dagster_versioned/as_at`` or
    ``dagster_versioned/as_of`` in the metadata of the `AssetIn`, those of a time; with
    ``dagster_versioned/projection: events``, the events.

    **After checks.** With ``publish="after_checks"``, here or in an asset's `TableOptions`, a version is parked: the
    run reads it, its continuations and the runs of its backfill do, and everybody else once it is published, which
    `build_publication_sensor` does when every blocking check has passed for it, or `Project.publish`.

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
    publish: Literal["at_once", "after_checks"] = Field(
        default="at_once",
        description="When versions become current: as they are written, or once every blocking check has passed.",
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

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Dagster's; raises `InvalidName` where an asset of the run can have no table, before anything of it runs.

        An IO manager is not told which assets are its own: this is known where all IO managers of the job are of this
        package and the asset is annotated with what it returns. Else the output is refused.
        """
        from dagster_versioned.assets.asset_code import note_loaded_code

        note_loaded_code()
        if self.project.signing_key:
            self.project.project()  # with its key: that it cannot be used is not to be found out after hours of work
        kinds = [
            getattr(def_, "configurable_resource_cls", None)
            for def_ in context.all_resource_defs.values()
            if isinstance(def_, dg.IOManagerDefinition)
        ]
        if context.run is None or not all(
            isinstance(kind, type) and issubclass(kind, VersionedParquetIOManager) for kind in kinds
        ):
            return
        plan, checked = context.run.execution_plan_snapshot_id, PROCESS.of(CheckedPlans)
        if plan is None or plan in checked:
            return
        from dagster_versioned.dagster_internals import typed_assets_of

        for key in typed_assets_of(context.instance, context.run):
            table_name_of(key.path)
        checked.add(plan)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Make the value the current version of the asset's table, or of the run's partitions of it.

        Raises what `VersionedTable.write` does; `InvalidInput` for partitions that are not those of the run.
        """
        from dagster_versioned.io_managers import fallback, outputs

        with self.spark():
            if context.has_asset_key:
                outputs.store(context, obj, self.project, self.open_lineage, self.preview_rows, self.publish)
            else:
                fallback.hand_on(context, obj, self.fallback)

    def write_updates(
        self, context: dg.AssetExecutionContext, updates: "Mapping[str | None, SampleUpdate]"
    ) -> "Sequence[WriteResult]":
        """Commit updates of the asset's table before its output is handled, by partition, described as this will be.

        Raises what `VersionedTable.write` does.
        """
        from dagster_versioned.io_managers import outputs

        with self.spark():
            return outputs.store_updates(context, updates, self.project, self.publish)

    def computed_before(
        self, context: dg.AssetExecutionContext, asset_key: dg.AssetKey, inputs: "Mapping[str, LazyInput]"
    ) -> "Mapping[str | None, KeptVersion]":
        """The versions that the run's partitions of a `versioned_asset` would have, of those that were computed before.

        Remembers what is computed in this step. Raises `InvalidInput`, `StorageError`.
        """
        from dagster_versioned.io_managers import computations

        return computations.computed_before(context, asset_key, inputs, self.project, self.publish)

    def load_input(self, context: dg.InputContext) -> Any:
        """The version of the upstream asset that the input is to see, as the type it is annotated with.

        Raises what `VersionedTable.read` does; where there is no version, the error says what to materialize.
        """
        from dagster_versioned.assets.reuse.lazy_input import LazyInput
        from dagster_versioned.io_managers import fallback, inputs

        with self.spark():
            if context.has_asset_key:
                found = inputs.load(context, self.project, self.pins, self.publish)
                return found.loaded_within(self.spark) if isinstance(found, LazyInput) else found
            return fallback.hand_back(context, self.fallback)

    @contextmanager
    def spark(self) -> Generator[None]:
        """Within it, frames of Spark are read on the session of ``pyspark``, where it is given."""
        if self.pyspark is None:
            yield
            return
        from dagster_versioned.engines.spark.session import session_from

        with session_from(self._session):
            yield

    def _session(self) -> "SparkSession":
        session = getattr(self.pyspark, "spark_session", None)
        if session is None:
            raise InvalidInput(
                f"pyspark= of the IO manager is a {type(self.pyspark).__name__}, which has no spark_session. Nothing "
                "was read or written. Give it dagster-pyspark's LazyPySparkResource or PySparkResource; outside of a "
                "run, where no resource is set up, the lazy one."
            )
        return session
