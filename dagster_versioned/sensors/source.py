"""Tables that this code location does not write: as external assets, and the sensor that reports their versions."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.inputs import URI_KEY
from dagster_versioned.assets.graph.materialization_keys import LOG_VERSION_KEY, METADATA_SHA_KEY
from dagster_versioned.assets.graph.places import Place, Places
from dagster_versioned.dagster_internals import DATA_VERSION_TAG, CoercibleToAssetKey, CoercibleToAssetSelection
from dagster_versioned.errors import InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import CellHead
from dagster_versioned.sensors.external import ExternalHeads, heads_of
from dagster_versioned.sensors.graph import SOURCE_KEY
from dagster_versioned.sensors.heads import ProjectHeads
from dagster_versioned.tables.external import ExternalTable, external_location

MOST_EVENTS = 500
"""Observations of one tick; the rest follows on later ticks."""


def versioned_source(
    key: CoercibleToAssetKey,
    *,
    uri: str | None = None,
    io_manager_key: str = "io_manager",
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    group_name: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    owners: Sequence[str] | None = None,
) -> dg.AssetSpec:
    """An external asset that is a versioned table: of another project or code location, or written without Dagster.

    Its key is the table's asset key there. ``io_manager_key`` names a `VersionedParquetIOManager` on the project that
    the table is in: it loads the table where an asset depends on it, and says where its head is. A target waits until a
    source has a version, and is stale when it has another one than the target was built from. That holds too for an
    asset that only lists it in ``deps``: it counts as built from the version that was current when its step started.

    With ``uri`` it is a Delta table of no project, which any program writes: ``s3://bucket/prefix``, ``file:///…`` or
    an absolute path, without credentials; the IO manager's project says with which keys S3 is reached. Its version is
    the newest commit of its log, and its data that of the newest commit that changed data, which no compaction does.
    It has no partitions here. Raises `InvalidInput`.
    """
    if uri is not None:
        uri = external_location(uri).uri
        if partitions_def is not None:
            raise InvalidInput(
                f"The source {key!r} is a Delta table at a URI, whose versions are of the whole table, and has a"
                " partitions_def. No source was made. Leave one of the two out."
            )
    spec = dg.AssetSpec(
        key,
        partitions_def=partitions_def,
        group_name=group_name,
        description=description,
        metadata={**(metadata or {}), SOURCE_KEY: True, **({URI_KEY: uri} if uri is not None else {})},
        tags=tags,
        owners=owners,
        kinds={"deltalake"},
    )
    return spec.with_io_manager_key(io_manager_key)


def build_source_sensor(
    name: str,
    target: CoercibleToAssetSelection | None = None,
    *,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """A sensor that reports each new version of versioned sources as an observation, once, with its data version.

    ``target``: sources, made with `versioned_source`; by default all that the definitions hold. Dagster then shows
    which version is current, and what was built from older ones. What was reported is read from Dagster's event log, so
    nothing is reported twice; a version that came and went between two ticks is not reported. A source with partitions
    is reported by partition.
    """
    every = dg.AssetSelection.all(include_sources=True)
    reporter = _Reporter(every if target is None else dg.AssetSelection.from_coercible(target))
    return dg.SensorDefinition(
        name=name,
        evaluation_fn=reporter.tick,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or "Reports the versions of tables that are written elsewhere.",
    )


class _Reporter:
    """The sensor's evaluation, and what it knows to be reported: a cache of Dagster's event log."""

    def __init__(self, selection: dg.AssetSelection) -> None:
        self._selection = selection
        self._repository: dg.RepositoryDefinition | None = None
        self._sources: dict[dg.AssetKey, Place] = {}
        self._heads: dict[Project | ExternalTable, ProjectHeads | ExternalHeads] = {}
        self._reported: dict[dg.AssetKey, dict[str | None, str]] = {}
        self._lock = threading.Lock()

    def tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """One evaluation."""
        if context.repository_def is None:
            raise InvalidInput(
                "The sensor needs the definitions: build_sensor_context(definitions=…). Nothing was reported."
            )
        with self._lock:
            self._watch(context.repository_def)
            for project, heads in self._heads.items():
                tables = {place.table for place in self._sources.values() if place.project is project}
                heads.look(heads.listing(), tables)
            events: list[Any] = list(self._observations(context.instance))[:MOST_EVENTS]
        if events:
            return dg.SensorResult(asset_events=events)
        return dg.SensorResult(
            skip_reason=f"Checked the heads of {len(self._sources)} sources: every version is known."
        )

    def _watch(self, repository: dg.RepositoryDefinition) -> None:
        if self._repository is repository:
            return
        graph = repository.asset_graph
        places = Places(graph)
        chosen = [key for key in self._selection.resolve(graph) if SOURCE_KEY in graph.get(key).metadata]
        self._sources = {key: place for key in sorted(chosen) if (place := places.of(key)) is not None}
        self._heads = {place.project: heads_of(place.project) for place in self._sources.values()}
        self._reported = {}
        self._repository = repository

    def _observations(self, instance: dg.DagsterInstance) -> Iterator[dg.AssetObservation]:
        for key, place in self._sources.items():
            heads = self._heads[place.project].heads(place.table)
            whole = {None: heads.whole} if heads.whole is not None and not heads.partitions else {}
            current: dict[str | None, CellHead] = {**whole, **heads.partitions}
            if _missing(current, self._reported.get(key, {})):
                self._reported[key] = _reported(instance, key, list(current))
                for partition in _missing(current, self._reported[key]):
                    self._reported[key].pop(partition, None)  # the last one is another now, or will be asked for again
                    yield _observation(key, partition, current[partition])


def _missing(current: Mapping[str | None, CellHead], reported: Mapping[str | None, str]) -> list[str | None]:
    return [partition for partition, head in current.items() if reported.get(partition) != head.metadata_sha]


def _observation(key: dg.AssetKey, partition: str | None, head: CellHead) -> dg.AssetObservation:
    return dg.AssetObservation(
        key,
        partition=partition,
        tags={DATA_VERSION_TAG: head.metadata_sha},
        metadata={
            METADATA_SHA_KEY: head.metadata_sha,
            "dagster_versioned/data_sha": head.data_sha,
            LOG_VERSION_KEY: head.log_version,
            "dagster_versioned/created_at": head.timestamp,
        },
    )


def _reported(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str | None]
) -> dict[str | None, str]:
    """The data version of the last observation of each partition, as Dagster's event log has it."""
    keys = [partition for partition in partitions if partition is not None]
    if keys:
        found = instance.event_log_storage.get_latest_tags_by_partition(
            key, dg.DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION_TAG], asset_partitions=keys
        )
        return {partition: tags[DATA_VERSION_TAG] for partition, tags in found.items()}
    records = instance.fetch_observations(key, limit=1).records
    last = records[0].asset_observation if records else None
    version = last.data_version if last is not None else None
    return {None: version} if version is not None else {}
