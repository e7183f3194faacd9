"""What became of an output, as events of OpenLineage: the table and the versions that it was built from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4, uuid5

import dagster as dg

from dagster_versioned.__about__ import __version__
from dagster_versioned.assets.graph.places import Places
from dagster_versioned.delta.schema.types import parse_schema, sql_text
from dagster_versioned.identity.names import table_name_of
from dagster_versioned.identity.version import Parent, partitions_sha
from dagster_versioned.io_managers.attempt import started_at
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.write import WriteResult

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent, RunState
    from openlineage.client.generated.base import BaseFacet

    from dagster_versioned.dagster_internals import StepExecutionContext

PRODUCER = f"https://pypi.org/project/dagster-versioned/{__version__}/"
OWN_FACET = "dagsterVersioned_version"
MESSAGE_CHARACTERS = 2000

Dataset = tuple[str, str]
"""Namespace and name."""


@dataclass
class ReportedOutput:
    """An output that is being handled, and what came of it: ``results`` and ``lineage`` once it is committed."""

    table: VersionedTable
    asset_key: dg.AssetKey
    step: "StepExecutionContext | None"
    handled_from: datetime = field(default_factory=lambda: datetime.now(UTC))
    results: Sequence[WriteResult] = ()
    lineage: dg.TableColumnLineage | None = None


def run_events(namespace: str, output: ReportedOutput, failure: Exception | None = None) -> "list[RunEvent]":
    """The run of a job that is named by the asset, with the parents of the versions as inputs and the table as output:
    how it began, and how it ended. Each attempt of a step is a run of its own, whose parent is the run of Dagster."""
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.error_message_run import ErrorMessageRunFacet
    from openlineage.client.generated.parent_run import Job as ParentJob
    from openlineage.client.generated.parent_run import ParentRunFacet
    from openlineage.client.generated.parent_run import Run as ParentRun

    step, asset = output.step, output.asset_key.to_user_string()
    facets: dict[str, Any] = {}
    run_id, began = uuid4(), output.handled_from
    if step is not None:
        run_id = uuid5(UUID(step.run_id), f"{step.step.key}\n{asset}\n{step.previous_attempt_count}")
        began = datetime.fromtimestamp(started_at(step), UTC)
        above = ParentJob(namespace=namespace, name=step.job_name)
        facets["parent"] = _facet(ParentRunFacet, run=ParentRun(runId=step.run_id), job=above)
    job = Job(namespace=namespace, name=asset)

    def event(state: "RunState", time: datetime, more: Mapping[str, Any], **datasets: Any) -> "RunEvent":
        run = Run(runId=str(run_id), facets={**facets, **more})
        return RunEvent(eventType=state, eventTime=time.isoformat(), run=run, job=job, producer=PRODUCER, **datasets)

    place = dataset_of(output.table.store.uri)
    start = event(RunState.START, began, {})
    now = datetime.now(UTC)
    if failure is not None:
        message = f"{type(failure).__name__}: {failure!s:.{MESSAGE_CHARACTERS}}"
        error = _facet(ErrorMessageRunFacet, message=message, programmingLanguage="PYTHON")
        return [start, event(RunState.FAIL, now, {"errorMessage": error}, outputs=[OutputDataset(*place)])]
    read = _read(output)
    inputs = [
        InputDataset(*dataset, facets={"version": _facet(DatasetVersionDatasetFacet, datasetVersion=_version(parents))})
        for dataset, parents in read.items()
    ]
    made = OutputDataset(*place, facets=_facets(output, read))
    return [start, event(RunState.COMPLETE, now, {}, inputs=inputs, outputs=[made])]


def dataset_of(uri: str) -> Dataset:
    """Namespace and name of a dataset, as OpenLineage's naming has them for a place: ``("s3://bucket", "prefix/x")``,
    ``("file", "/folder/x")``."""
    place = uri.partition("?")[0]
    scheme, is_uri, rest = place.partition("://")
    if not is_uri or scheme == "file":
        return "file", (rest if is_uri else place).rstrip("/")
    root, _, key = rest.partition("/")
    return f"{scheme}://{root}", key.strip("/") or "/"


def _read(output: ReportedOutput) -> dict[Dataset, list[Parent]]:
    parents = dict.fromkeys(parent for result in output.results for parent in result.version.identity.parents)
    elsewhere = any(parent.source != output.table.project.name for parent in parents)
    places = _places(output) if elsewhere else {}
    read: dict[Dataset, list[Parent]] = {}
    for parent in parents:
        read.setdefault(_dataset_of(parent, output.table, places), []).append(parent)
    return read


def _places(output: ReportedOutput) -> dict[tuple[str, str], Dataset]:
    """Where what the asset depends on is stored, by project and table, as far as its code location knows."""
    if output.step is None:
        return {}
    graph = output.step.job_def.asset_layer.asset_graph.source_asset_graph
    places = Places(graph)
    found: dict[tuple[str, str], Dataset] = {}
    for key in graph.get(output.asset_key).parent_keys:
        place = places.of(key, output.asset_key)
        if place is not None:
            project = place.project
            uri = project.uri if isinstance(project, ExternalTable) else project.table(place.table).store.uri
            found[place.key] = dataset_of(uri)
    return found


def _dataset_of(parent: Parent, table: VersionedTable, places: Mapping[tuple[str, str], Dataset]) -> Dataset:
    """A parent's; of another project, whose place is not known here, by its name."""
    if parent.source == table.project.name:
        return dataset_of(table.beside(parent.table).store.uri)
    return places.get((parent.source, parent.table), (f"dagster-versioned://{parent.source}", parent.table))


def _version(parents: Iterable[Parent]) -> str:
    """The version of a dataset that was read: of a table, of one partition, or of several together."""
    versions = {parent.partition: parent.version for parent in parents}
    if None in versions or len(versions) == 1:
        return versions.get(None) or next(iter(versions.values()))
    return partitions_sha({str(partition): version for partition, version in versions.items()})


def _facets(output: ReportedOutput, read: Mapping[Dataset, Sequence[Parent]]) -> dict[str, Any]:
    from openlineage.client.generated.base import DatasetFacet
    from openlineage.client.generated.column_lineage_dataset import ColumnLineageDatasetFacet, Fields, InputField
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
    from openlineage.client.generated.storage_dataset import StorageDatasetFacet

    versions = [result.version for result in output.results]
    fields = parse_schema(versions[0].identity.schema).fields
    shas = {version.partition or "": version.entry.metadata_sha for version in versions}
    found: dict[str, Any] = {
        "schema": _facet(
            SchemaDatasetFacet,
            fields=[SchemaDatasetFacetFields(field.name, sql_text(field.type)) for field in fields],
        ),
        "version": _facet(
            DatasetVersionDatasetFacet,
            datasetVersion=partitions_sha(shas) if len(shas) > 1 else next(iter(shas.values())),
        ),
        "storage": _facet(StorageDatasetFacet, storageLayer="delta", fileFormat="parquet"),
        OWN_FACET: _facet(DatasetFacet).with_additional_properties(
            project=output.table.project.name,
            table=str(output.table.name),
            versions=[_own(result.version, result.change) for result in output.results],
        ),
    }
    if output.lineage is not None:
        datasets = {parent.table: dataset for dataset, parents in read.items() for parent in parents}

        def inputs(deps: Sequence[dg.TableColumnDep]) -> list[InputField]:
            named = [(str(table_name_of(dep.asset_key.path)), dep.column_name) for dep in deps]
            return [InputField(*datasets[name], column) for name, column in named if name in datasets]

        columns = {column: Fields(inputs(deps)) for column, deps in output.lineage.deps_by_column.items()}
        found["columnLineage"] = _facet(ColumnLineageDatasetFacet, fields=columns)
    return found


def _facet(kind: "type[BaseFacet]", **members: Any) -> Any:
    """A facet of ours; the client's own producer is the default."""
    return cast("Any", kind)(producer=PRODUCER, **members)


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
            {"source": parent.source, "table": parent.table, "partition": parent.partition, "version": parent.version}
            for parent in parents
        ],
    }
