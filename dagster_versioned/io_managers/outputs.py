"""What a step writes: the versions that its output becomes, and what Dagster shows of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_versioned.assets.asset_code import stated_code_version
from dagster_versioned.assets.graph.materialization_keys import COMMIT_KEY, LOG_VERSION_KEY, OUTLINE_KEY
from dagster_versioned.assets.graph.partitions import partitioning_of
from dagster_versioned.assets.parked import Publish, draft_metadata, parked_text, refuse_early_conditions
from dagster_versioned.assets.reuse.reuse_step import KeptOutput
from dagster_versioned.dagster_internals import BACKFILL_ID_TAG, set_data_version
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.identity.version import partitions_sha
from dagster_versioned.io_managers.attempt import MESSAGE_TAG, LeftTables, made_by, note, run_of, step_of
from dagster_versioned.io_managers.column_lineage import column_lineage
from dagster_versioned.io_managers.computations import computing, opened_before
from dagster_versioned.io_managers.environment import settle_environment
from dagster_versioned.io_managers.event_histories import WATERMARK_KEY, event_time_of, watermark_of
from dagster_versioned.io_managers.materialization import (
    OTHER_DEFINITION_KEY,
    OURS,
    PREVIEWED_PARTITIONS,
    Omissions,
    other_writer,
    outcome_text,
    replay_text,
    table_metadata,
    version_metadata,
)
from dagster_versioned.io_managers.open_lineage import OpenLineageResource
from dagster_versioned.io_managers.output_partitions import frames_by_partition
from dagster_versioned.io_managers.parents import parents_of
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.queries.transform import Derivation, DerivationReport
from dagster_versioned.process_state import PROCESS
from dagster_versioned.publication.park import ParkedWrite, park
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.code_details import code_of, compare_codes
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.lineage import upstream_of_version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.write import WriteResult

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext


_CODE_SHOWN = len("1:") + 12
"""Characters of a fingerprint that are shown."""


def store(
    context: dg.OutputContext,
    obj: Any,
    project: ProjectResource,
    open_lineage: OpenLineageResource | None,
    preview_rows: int,
    publish: Publish,
) -> None:
    """Make the value the current version of the asset's table, or of the run's partitions of it.

    Raises what `VersionedTable.write` does; `InvalidInput` for partitions that are not those of the run.
    """
    step = step_of(context)
    # Where the function was called hours may have gone by, so the table is opened anew and shows what others did.
    is_kept = isinstance(obj, KeptOutput) and not obj.computed
    if not is_kept:
        PROCESS.forget(LeftTables)
    opened = opened_before(step, context.asset_key) if is_kept else None
    table = opened or project.project().table(context.asset_key.path)
    if step is not None:
        settle_environment(step, table.project, context.asset_key)
        refuse_early_conditions(step, context.asset_key, publish)
    if open_lineage is None:
        _store(context, step, table, obj, preview_rows, publish)
        return
    with open_lineage.reporting(table, context.asset_key, step, context.log) as output:
        output.results, output.lineage = _store(context, step, table, obj, preview_rows, publish)


def _store(
    context: dg.OutputContext,
    step: "StepExecutionContext | None",
    table: VersionedTable,
    obj: Any,
    preview_rows: int,
    publish: Publish,
) -> tuple[Sequence[WriteResult], dg.TableColumnLineage | None]:
    """Store the value, and show in Dagster what was written, and where its columns come from."""
    asset_key = context.asset_key
    options = TableOptions.from_metadata(context.definition_metadata)
    lineage, derivation = None, None
    if isinstance(obj, Derivation) or options.history is not None:
        _refuse_parking(table, publish, options)
    if isinstance(obj, Derivation):
        parents = parents_of(step, asset_key, [None], table.project)[None] if step else ()
        run = run_of(step) if step else None
        derived = obj.write(table, options=options, parents=parents, run=run, **_described(step, asset_key))
        written, derivation = ParkedWrite(table, [derived.result], None), (obj, derived)
    elif options.history is not None:
        lineage = None if obj is None else column_lineage(obj)
        written = ParkedWrite(table, [_append_events(context, step, table, obj, options)], None)
    else:
        with frames_by_partition(context, obj, allow_empty=options.allow_empty) as frames:
            lineage = column_lineage(next(iter(frames.values()))) if frames else None
            partitioning = partitioning_of(context.asset_partitions_def) if context.has_asset_partitions else None
            written = _write(step, table, asset_key, frames, options, partitioning, publish)
    _Report(context, step, written).tell(lineage, derivation, preview_rows)
    return written.results, lineage


def store_updates(
    context: dg.AssetExecutionContext,
    updates: Mapping[str | None, SampleUpdate],
    project: ProjectResource,
    publish: Publish,
) -> Sequence[WriteResult]:
    """Commit updates of the asset's table before its output is handled, by partition, described as this will be.

    Raises what `VersionedTable.write` does.
    """
    asset_key = context.asset_key
    options = TableOptions.from_metadata(context.assets_def.metadata_by_key[asset_key])
    table = project.project().table(asset_key.path)
    settle_environment(context.get_step_execution_context(), table.project, asset_key)
    definition = context.assets_def.partitions_def if context.has_partition_key_range else None
    partitioning = partitioning_of(definition) if definition is not None else None
    step = context.get_step_execution_context()
    return _write(step, table, asset_key, updates, options, partitioning, publish).results


@dataclass(frozen=True)
class _Report:
    """What Dagster is told of what was written; what cannot be read is left out."""

    context: dg.OutputContext
    step: "StepExecutionContext | None"
    written: ParkedWrite
    omissions: Omissions = field(default_factory=Omissions)

    def tell(
        self,
        lineage: dg.TableColumnLineage | None,
        derivation: tuple[Derivation, DerivationReport] | None,
        preview_rows: int,
    ) -> None:
        """Tell Dagster, and later outputs of the same step."""
        table, results = self.written.seen, self.written.results
        if self.step is not None:
            self._note(self.step)
        self._log()
        with self.omissions.leave_out("what is known of the table"):
            self._show(table_metadata(table, results[0].version, lineage))
        if derivation is not None:
            with self.omissions.leave_out("how it was computed"):
                self._show(run_metadata(*derivation))
        self._show_versions(preview_rows)
        self.omissions.log(self.context.log, table.name)

    def _note(self, step: "StepExecutionContext") -> None:
        """Note the versions, for Dagster's own judgement and for later outputs and steps."""
        table, draft, asset_key = self.written.seen, self.written.draft, self.context.asset_key
        versions = [result.version for result in self.written.results]
        shas = {version.partition: version.entry.metadata_sha for version in versions}
        by_key = {key: sha for key, sha in shas.items() if key is not None}
        set_data_version(asset_key, partitions_sha(by_key) if len(shas) > 1 else next(iter(shas.values())))
        if draft is None:
            PROCESS.of(LeftTables, table.project).put(step.run_id, table)
        if len(self.context.step_context.op_def.output_defs) > 1:
            drafts = () if draft is None else (draft.id,)
            made = [upstream_of_version(table.project, table.name, version, drafts) for version in versions]
            note(step, asset_key, made)

    def _log(self) -> None:
        log, name, results = self.context.log, self.written.seen.name, self.written.results
        if self.written.draft is not None:
            log.info(parked_text(self.written.draft))
        elif not all(result.reused and result.change == "none" for result in results):
            # Where nothing was to be done, Dagster's own events are enough, and one more takes as long as each of them.
            log.info(outcome_text(name, results))
        if (text := replay_text(name, results)) is not None:
            log.warning(text)

    def _show_versions(self, preview_rows: int) -> None:
        """Show each version that was written, and warn where another definition of the asset wrote the one before."""
        table, results, draft = self.written.seen, self.written.results, self.written.draft
        history, before, other = None, None, None
        with self.omissions.leave_out("the history"):
            history = table.last_state.history
            before = history.before([result.version for result in results])
        with self.omissions.leave_out("which definition wrote before"):
            other = other_writer(history, results)
        if other is not None:
            self.context.log.warning(f"{table.name} has two definitions: {other}. Give one of the assets another key.")
            self._show({OTHER_DEFINITION_KEY: other})
        if self.step is not None:
            with self.omissions.leave_out("the code that was called"):
                self._show_code(self.step, before or {})
        for number, result in enumerate(results):
            with self.omissions.leave_out("what is known of the version"):
                rows = preview_rows if number < PREVIEWED_PARTITIONS else 0
                metadata = version_metadata(table, history, result, rows, self.omissions, before)
                if draft is not None:  # it is in no log yet
                    metadata = {
                        k: v for k, v in metadata.items() if k not in (COMMIT_KEY, LOG_VERSION_KEY, OUTLINE_KEY)
                    }
                    metadata |= draft_metadata(draft)
                if len(results) == 1 or self.step is not None:
                    self._show(metadata, result.version.partition if len(results) > 1 else None)

    def _show_code(self, step: "StepExecutionContext", before: Mapping[str | None, Version]) -> None:
        """Show the code that was called, and what of it is other than that of the versions before; keep its details."""
        made, store = made_by(step), self.written.seen.store
        if made is None:
            return
        code, details = made
        called = [result for result in self.written.results if not result.reused]
        versions = [each.version if each.change == "none" else before.get(each.version.partition) for each in called]
        then = [code_of(version) for version in versions if version]
        shown = {f"{OURS}/code": code.fingerprint[:_CODE_SHOWN]}
        if code.opaque:
            shown[f"{OURS}/code_opaque"] = "; ".join(code.opaque)
        others = {each.fingerprint: each for each in then if each is not None and each.fingerprint != code.fingerprint}
        changes = (compare_codes(store, each, code, details) for each in others.values())
        if (change := next(filter(None, changes), None)) is not None:
            shown[f"{OURS}/code_change"] = str(change)
        self._show(shown)
        kept = [each for each in then if each is not None and each.details == code.details]
        if len(kept) < len(called):
            details.put(store)

    def _show(self, metadata: Mapping[str, Any], partition: str | None = None) -> None:
        """Metadata of a materialization; that of an output is in Dagster's event log twice, which takes milliseconds.

        What the function says of its asset or its output under the same key stays.
        """
        context, step = self.context, self.step
        if step is None:
            context.add_output_metadata(metadata)
            return
        given = {
            **context.output_metadata,
            **(step.get_output_metadata(context.name, context.mapping_key) or {}),
            **(step.get_asset_metadata(context.asset_key) or {}),
        }
        step.add_asset_metadata({k: v for k, v in metadata.items() if k not in given}, context.asset_key, partition)


def _write(
    step: "StepExecutionContext | None",
    table: VersionedTable,
    asset_key: dg.AssetKey,
    frames: Mapping[str | None, Any],
    options: TableOptions,
    partitioning: Partitioning | None,
    publish: Publish,
) -> ParkedWrite:
    """Make the frames current, or park them, with all that the step knows of how they came about.

    What was built from a parked version is parked as well: nobody else knows of its parent.
    """
    parents = parents_of(step, asset_key, list(frames), table.project, publish) if step else {}
    run = run_of(step, adds_rows=options.mode == "append") if step else None
    described: dict[str, Any] = {
        **_described(step, asset_key),
        "parents": parents,
        "options": options,
        "partitioning": partitioning,
    }
    is_upon_drafts = any(parent.drafts for some in parents.values() for parent in some)
    if not is_upon_drafts and (options.publish or publish) == "at_once":
        with computing(step, asset_key) as computations:
            # A step that calls no function is done when it has found what to keep: what others commit comes after it.
            results = table.write_partitions(frames, run=run, computations=computations, as_found=True, **described)
        return ParkedWrite(table, results, None)
    if step is None or run is None:
        raise InvalidInput(
            f'{table.name} is published after checks (publish="after_checks"), and this is no step of a run, so '
            "nothing would ever check it. Nothing was written. Materialize it in a run."
        )
    backfill = step.dagster_run.tags.get(BACKFILL_ID_TAG)
    return park(table, frames, run=run, backfill=backfill, **described)


def _refuse_parking(table: VersionedTable, publish: Publish, options: TableOptions) -> None:
    if (options.publish or publish) == "after_checks":
        raise InvalidInput(
            f'publish="after_checks" cannot hold back {table.name}: it is a history of events, and what is added to it '
            'stays. Nothing was written. Give the asset TableOptions(publish="at_once", …).'
        )


def _described(step: "StepExecutionContext | None", asset_key: dg.AssetKey) -> dict[str, Any]:
    """What a step says of its versions, whatever they are built from.

    The code version is what the definition states; what is found of the code is no part of what a version is.
    """
    code_version = None if step is None else step.job_def.asset_layer.get(asset_key).code_version
    return {
        "asset_key": list(asset_key.path),
        "code_version": stated_code_version(code_version),
        "message": step.dagster_run.tags.get(MESSAGE_TAG) if step else None,
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
    watermark = watermark_of(context)
    if frame is None and watermark is None:
        raise InvalidInput(
            f"The asset {asset_key.to_user_string()} returned None, which is no table. Nothing was written. Return a "
            "frame, or annotate the function with -> None, so that it is not asked for one; or, to move the watermark "
            f'alone, return dg.Output(None, metadata={{"{WATERMARK_KEY}": …}}).'
        )
    partitions = sorted(map(str, context.asset_partition_keys)) if context.has_asset_partitions else [None]
    event_time = event_time_of(context)
    parents = parents_of(step, asset_key, partitions, table.project) if step else {}
    described: dict[str, Any] = {
        **_described(step, asset_key),
        "parents": [parent for of_one in parents.values() for parent in of_one],
        "options": options,
        "run": run_of(step, adds_rows=True) if step else None,
    }
    events = EventTable(table, options.history)
    if frame is None:
        assert watermark is not None
        return events.set_watermark(watermark, **described)
    return events.write(frame, event_time=event_time, watermark=watermark, **described)


def run_metadata(derivation: Derivation, derived: DerivationReport) -> dict[str, Any]:
    """The intervals of the inputs, as they are recorded, by what the query calls them.

    ``run`` is ``map`` (over new events alone), ``whole`` (computed and compared), or ``none`` where nothing was new.
    """
    records = [
        dg.TableRecord(
            {
                "input": name,
                "dataset": str(taken.dataset_id),
                "after_offset": "" if taken.prev_offset is None else str(taken.prev_offset),
                "until_offset": "" if taken.new_offset is None else str(taken.new_offset),
                "until_block": "" if taken.new_block_hash is None else str(taken.new_block_hash),
            }
        )
        for name, taken in zip(derivation.query.inputs, derived.inputs, strict=True)
    ]
    names = ("input", "dataset", "after_offset", "until_offset", "until_block")
    schema = dg.TableSchema([dg.TableColumn(name, "string") for name in names])
    return {
        f"{OURS}/run": derived.kind.value if derived.kind is not None else "none",
        f"{OURS}/inputs": dg.TableMetadataValue(records, schema),
    }
