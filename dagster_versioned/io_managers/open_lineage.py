"""What became of an output, as an event of OpenLineage: the table and the versions that it was built from."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid5

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from dagster_versioned.delta.schema.types import parse_schema, sql_text
from dagster_versioned.extras import requiring
from dagster_versioned.identity.names import table_name_of
from dagster_versioned.identity.version import Parent, partitions_sha
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.write import WriteResult

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

    from dagster_versioned.dagster_internals import StepExecutionContext

PRODUCER = "https://pypi.org/project/dagster-versioned/"
OWN_FACET = "dagsterVersioned_version"
_NO_RUN = UUID(int=0)


class OpenLineageResource(dg.ConfigurableResource[Any]):
    """Sends an event of OpenLineage for each output of a versioned IO manager, ``COMPLETE``, once it is committed.

    Where to is OpenLineage's own configuration: ``openlineage.yml``, or ``OPENLINEAGE_URL`` and the other variables of
    its Python client. What cannot be sent is warned of in the run's log, and fails nothing.
    """

    model_config = ConfigDict(extra="forbid")

    namespace: str = Field(default="dagster", description="The namespace of jobs; a job is named by its asset key.")

    _client: "OpenLineageClient | None" = PrivateAttr(default=None)

    def emit(
        self,
        table: VersionedTable,
        asset_key: dg.AssetKey,
        results: Sequence[WriteResult],
        lineage: dg.TableColumnLineage | None,
        step: "StepExecutionContext | None",
        log: logging.Logger,
    ) -> None:
        """Send the event of one output; whatever fails in it is logged."""
        try:
            with requiring("openlineage", "open_lineage= of the IO manager"):
                from openlineage.client import OpenLineageClient

                self._client = self._client or OpenLineageClient()
                self._client.emit(run_event(self.namespace, table, asset_key, results, lineage, step))
        except Exception as error:  # noqa: BLE001 - the version is committed, so a failed event fails no step
            log.warning(
                f"{table.name}: what was written is committed, but its event did not reach OpenLineage. "
                f"{type(error).__name__}: {error!s:.500}"
            )


def run_event(
    namespace: str,
    table: VersionedTable,
    asset_key: dg.AssetKey,
    results: Sequence[WriteResult],
    lineage: dg.TableColumnLineage | None = None,
    step: "StepExecutionContext | None" = None,
) -> "RunEvent":
    """The event: the run of a job that is named by the asset, with its parents as inputs and the table as output."""
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.parent_run import Job as ParentJob
    from openlineage.client.generated.parent_run import ParentRunFacet
    from openlineage.client.generated.parent_run import Run as ParentRun

    parents = dict.fromkeys(parent for result in results for parent in result.version.identity.parents)
    run = UUID(step.run_id) if step is not None else _NO_RUN
    facets: dict[str, Any] = {}
    if step is not None:
        above = ParentRunFacet(run=ParentRun(runId=str(run)), job=ParentJob(namespace=namespace, name=step.job_name))
        facets["parent"] = above
    place, name = dataset_of(table.store.uri)
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=str(uuid5(run, "/".join(asset_key.path))), facets=facets),
        job=Job(namespace=namespace, name=asset_key.to_user_string()),
        inputs=[
            InputDataset(*_dataset_of(parent, table), facets={"version": DatasetVersionDatasetFacet(parent.version)})
            for parent in parents
        ],
        outputs=[OutputDataset(place, name, facets=_facets(table, results, lineage))],
        producer=PRODUCER,
    )


def dataset_of(uri: str) -> tuple[str, str]:
    """Namespace and name of a dataset, as OpenLineage's naming has them for a place: ``("s3://bucket", "prefix/x")``,
    ``("file", "/folder/x")``."""
    place = uri.partition("?")[0]
    scheme, is_uri, rest = place.partition("://")
    if not is_uri or scheme == "file":
        return "file", (rest if is_uri else place).rstrip("/")
    root, _, key = rest.partition("/")
    return f"{scheme}://{root}", key.strip("/") or "/"


def _dataset_of(parent: Parent, table: VersionedTable) -> tuple[str, str]:
    """A parent's; of another project, whose place is not known here, by its name."""
    if parent.source == table.project.name:
        return dataset_of(table.project.table(parent.table).store.uri)
    return f"dagster-versioned://{parent.source}", parent.table


def _facets(
    table: VersionedTable, results: Sequence[WriteResult], lineage: dg.TableColumnLineage | None
) -> dict[str, Any]:
    from openlineage.client.generated.base import DatasetFacet
    from openlineage.client.generated.column_lineage_dataset import ColumnLineageDatasetFacet, Fields, InputField
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
    from openlineage.client.generated.storage_dataset import StorageDatasetFacet

    versions = [result.version for result in results]
    fields = parse_schema(versions[0].identity.schema).fields
    shas = {version.partition or "": version.entry.metadata_sha for version in versions}
    found: dict[str, Any] = {
        "schema": SchemaDatasetFacet([SchemaDatasetFacetFields(field.name, sql_text(field.type)) for field in fields]),
        "version": DatasetVersionDatasetFacet(partitions_sha(shas) if len(shas) > 1 else shas.popitem()[1]),
        "storage": StorageDatasetFacet(storageLayer="delta", fileFormat="parquet"),
        OWN_FACET: cast("Any", DatasetFacet)(producer=PRODUCER).with_additional_properties(
            project=table.project.name,
            table=str(table.name),
            versions=[_own(result.version, result.change) for result in results],
        ),
    }
    if lineage is not None:
        read = {parent.table for version in versions for parent in version.identity.parents}
        places = {one: dataset_of(table.project.table(one).store.uri) for one in read}
        found["columnLineage"] = ColumnLineageDatasetFacet(
            {
                column: Fields(
                    [
                        InputField(*places[name], one.column_name)
                        for one in deps
                        if (name := str(table_name_of(one.asset_key.path))) in places
                    ]
                )
                for column, deps in lineage.deps_by_column.items()
            }
        )
    return found


def _own(version: Version, change: str) -> dict[str, Any]:
    """What OpenLineage has no facet for."""
    parents = version.identity.parents
    return {
        "partition": version.partition,
        "change": change,
        "metadata_sha": version.metadata_sha,
        "data_sha": version.data_sha,
        "log_version": version.log_version,
        "parents": [
            {"source": one.source, "table": one.table, "partition": one.partition, "version": one.version}
            for one in parents
        ],
    }
