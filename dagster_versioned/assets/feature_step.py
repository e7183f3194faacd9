"""One step that computes features: what is stale of each partition, the function called for it, the rows checked."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, cast

import dagster as dg
from pydantic import Field

from dagster_versioned.assets.graph.partitions import partitions_of_run, upstream_partitions
from dagster_versioned.dagster_internals import StepOutputHandle
from dagster_versioned.engines.samples import SampleHash
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.feature_table import FeatureTable, ResolvedIncrement
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.increment import Increment
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.write.write import WriteResult

Body = Callable[[Increment[Any] | None], Any]
"""What gives the rows of a feature; without an increment, all its samples."""

Files = Mapping[str, UpstreamFiles]

_OURS = "dagster_versioned"


class FeatureConfig(dg.Config):
    """What the run config of a feature may say."""

    full: bool = Field(default=False, description="Compute every sample again, stale or not.")
    dry_run: bool = Field(
        default=False,
        description="Only say what would be computed: nothing is written, and only a function of all samples called.",
    )
    stale_if: str = Field(
        default="",
        description="A condition (SQL) on stored samples that are computed again, whatever they were computed from.",
    )
    where: dict[str, str] = Field(
        default={},
        description="By upstream feature a condition (SQL) on what is computed now; the rest is left for later.",
    )


class Manager(Protocol):
    """An IO manager that stores versioned tables."""

    project: ProjectResource

    def spark(self) -> AbstractContextManager[None]:
        """Within it, frames of Spark are read on the session that was given, if one was."""
        ...

    def write_updates(
        self, context: dg.AssetExecutionContext, updates: Mapping[str | None, SampleUpdate]
    ) -> Sequence[WriteResult]:
        """Commit updates of the asset's table before its output is handled, by partition, described as this will be."""
        ...


@dataclass(frozen=True)
class FeatureStep:
    """How one feature is computed; ``as_type`` is what increments hold, the project's default if it is ``None``."""

    graph: FeatureGraph
    key: str
    hash: SampleHash
    chunk_size: int | None
    as_type: type | None
    output: str = "result"

    def run(
        self, context: dg.AssetExecutionContext, config: FeatureConfig, files: Files, body: Body
    ) -> Generator[dg.Output[Any]]:
        """Compute what is stale; the output is all that is left to be committed. None for a dry run."""
        with ExitStack() as kept:  # until the output was handled
            begun = self.begin(context, config, files, body, kept)
            if config.dry_run:
                begun.observe()
            else:
                yield begun.finish(body)

    def begin(
        self, context: dg.AssetExecutionContext, config: FeatureConfig, files: Files, body: Body, kept: ExitStack
    ) -> "BegunFeature":
        """Find what is stale of each partition of the run; it is kept until a stack is closed."""
        asset_key, manager = context.asset_key_for_output(self.output), self._manager(context)
        feature = FeatureTable(self.graph, self.key, manager.project.project().table(asset_key.path), self.hash)
        with manager.spark():
            resolved = {
                partition: kept.enter_context(each)
                for partition, each in self._resolved(context, asset_key, config, manager, feature, files, body)
            }
        for partition, each in resolved.items():
            place = self.key if partition is None else f"{self.key}[{partition}]"
            context.log.info(f"{place}: {_increment_text(each)}.")
        return BegunFeature(self, context, asset_key, manager, resolved)

    def _resolved(
        self,
        context: dg.AssetExecutionContext,
        asset_key: dg.AssetKey,
        config: FeatureConfig,
        manager: Manager,
        feature: FeatureTable,
        files: Files,
        body: Body,
    ) -> Iterator[tuple[str | None, ResolvedIncrement]]:
        partitions = sorted(partitions_of_run(context), key=str)
        if not feature.plan.upstreams:
            if config.where:
                raise InvalidInput(
                    f"Feature {self.key!r} has no upstream to which {config.where} could apply. Nothing was computed "
                    "or written. Leave `where` out of its run config."
                )
            samples = _by_partition(asset_key, body(None), partitions)
            for key in partitions:
                stale_if = config.stale_if or None
                yield key, feature.resolve_samples(samples[key], partition=key, full=config.full, stale_if=stale_if)
            return
        as_type = self.as_type or manager.project.frame_type()
        for key in partitions:
            given = _narrowed(context, asset_key, files, key, partitions)
            options: dict[str, Any] = {"stale_if": config.stale_if or None, "where": config.where}
            yield key, feature.resolve(given, partition=key, as_type=as_type, full=config.full, **options)

    def _manager(self, context: dg.AssetExecutionContext) -> Manager:
        step = context.get_step_execution_context()
        manager: Any = step.get_io_manager(StepOutputHandle(step.step.key, self.output))
        if not isinstance(getattr(manager, "project", None), ProjectResource) or not hasattr(manager, "write_updates"):
            raise InvalidInput(
                f"The IO manager of feature {self.key!r} is a {type(manager).__name__}, which stores no versioned "
                "tables. Nothing was computed or written. Give it a VersionedParquetIOManager."
            )
        return cast("Manager", manager)


@dataclass(frozen=True)
class BegunFeature:
    """A feature of a step of which is known what is stale, by partition."""

    step: FeatureStep
    context: dg.AssetExecutionContext
    asset_key: dg.AssetKey
    manager: Manager
    resolved: Mapping[str | None, ResolvedIncrement]

    def observe(self) -> None:
        """Say in Dagster what would be computed."""
        for partition, metadata in self._metadata().items():
            self.context.log_event(dg.AssetObservation(self.asset_key, partition=partition, metadata=metadata))

    def finish(self, body: Body) -> dg.Output[Any]:
        """Compute what is stale; the output is all that is left to be committed."""
        with self.manager.spark():
            updates = {partition: self._computed(partition, each, body) for partition, each in self.resolved.items()}
        for partition, metadata in self._metadata().items():
            self.context.add_asset_metadata(metadata, self.asset_key, partition_key=partition)
        return dg.Output(updates.get(None, updates), self.step.output)

    def _metadata(self) -> dict[str | None, dict[str, Any]]:
        step = self.step
        return {partition: increment_metadata(step.graph, step.key, each) for partition, each in self.resolved.items()}

    def _computed(self, partition: str | None, resolved: ResolvedIncrement, body: Body) -> SampleUpdate:
        """The rows of a partition; where they are computed in chunks, all but the last were committed."""
        increment, size = resolved.increment, self.step.chunk_size
        is_root = not resolved.feature.plan.upstreams
        if not increment.todo:
            options = TableOptions.from_metadata(self.context.assets_def.metadata_by_key[self.asset_key])
            return resolved.finish(allow_empty=options.allow_empty)
        parts = increment.chunks(size) if size is not None and not is_root else iter([increment])
        after: Version | None = None
        for part in parts:
            update = resolved.finish(None if is_root else body(part), part, after=after)
            if part.asked.left == increment.asked.left:
                return update
            after = self.manager.write_updates(self.context, {partition: update})[0].version
            self.context.log.info(f"Feature {self.step.key}: wrote {part.todo} samples as version {after.short}.")
        raise AssertionError("The last chunk leaves nothing.")


def _narrowed(
    context: dg.AssetExecutionContext,
    asset_key: dg.AssetKey,
    files: Files,
    partition: str | None,
    partitions: Sequence[str | None],
) -> Files:
    """Of the files that the run was handed, those that one of its partitions is computed from."""
    if len(partitions) == 1:
        return files
    step = context.get_step_execution_context()
    graph = step.job_def.asset_layer.asset_graph.source_asset_graph
    mapped = {
        key: upstream_partitions(graph, asset_key, partition, dg.AssetKey(key.split("/")), step.instance)
        for key in files
    }
    return {key: file if mapped[key] is None else file.of(mapped[key] or ()) for key, file in files.items()}


def _by_partition(asset_key: dg.AssetKey, samples: Any, partitions: Sequence[str | None]) -> Mapping[str | None, Any]:
    asset = asset_key.to_user_string()
    if samples is None:
        raise InvalidInput(
            f"The feature {asset} returned None. Nothing was written. Without an upstream, it returns all its samples."
        )
    if isinstance(samples, Mapping):
        by_partition = cast("Mapping[str | None, Any]", samples)
        if set(by_partition) == set(partitions):
            return by_partition
    elif len(partitions) == 1:
        return {partitions[0]: samples}
    raise InvalidInput(
        f"The run covers the partitions {partitions} of {asset}. Nothing was written. Return a dict with one frame of "
        "samples for each of context.partition_keys."
    )


def _increment_text(resolved: ResolvedIncrement) -> str:
    counts = resolved.increment.counts
    reasons = ", ".join(f"{field} of {count}" for field, count in resolved.increment.reasons.items())
    summary = f"{counts.new} new, {counts.stale} stale, {counts.orphaned} orphaned, {counts.unchanged} unchanged"
    return f"{summary} (stale by {reasons})" if reasons else summary


def increment_metadata(graph: FeatureGraph, key: str, resolved: ResolvedIncrement) -> dict[str, Any]:
    """The counts of an increment as metadata, with a table of its fields: their code versions, what each is computed
    from, and of how many stale samples it would be another, because of the code or of upstream."""
    counts = resolved.increment.counts
    return {
        f"{_OURS}/samples_new": counts.new,
        f"{_OURS}/samples_stale": counts.stale,
        f"{_OURS}/samples_orphaned": counts.orphaned,
        f"{_OURS}/samples_unchanged": counts.unchanged,
        f"{_OURS}/feature_version": graph.versions(key).feature,
        f"{_OURS}/fields": _fields(graph, key, resolved),
    }


def _fields(graph: FeatureGraph, key: str, resolved: ResolvedIncrement) -> dg.TableMetadataValue:
    before = resolved.record
    reasons = resolved.increment.reasons
    records: list[dg.TableRecord] = []
    for field in graph[key].fields:
        was = before.fields.get(field.key) if before is not None else None
        because = ""
        if reasons.get(field.key):
            changed = was is None or was[1] != field.code_version
            because = f"code version {was[1] if was else 'none'} -> {field.code_version}" if changed else "upstream"
        records.append(
            dg.TableRecord(
                {
                    "field": field.key,
                    "code_version": field.code_version,
                    "computed_from": ", ".join(ref.text for ref in graph.parents(key, field.key)),
                    "stale_samples": reasons.get(field.key, 0),
                    "because_of": because,
                }
            )
        )
    columns = [
        dg.TableColumn("field", "string"),
        dg.TableColumn("code_version", "string"),
        dg.TableColumn("computed_from", "string"),
        dg.TableColumn("stale_samples", "int"),
        dg.TableColumn("because_of", "string"),
    ]
    return dg.TableMetadataValue(records, dg.TableSchema(columns))
