"""Publishing what its checks have passed for: a draft is judged by what Dagster's event log knows of its run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import (
    DRAFT_KEY,
    DRAFT_SHA_KEY,
    METADATA_SHA_KEY,
    STATE_KEY,
    materializations,
    stated,
)
from dagster_versioned.assets.graph.partitions import keys_in_range
from dagster_versioned.assets.graph.places import Places
from dagster_versioned.assets.looks import Looks, blocking_checks
from dagster_versioned.assets.parked import PARKED_TAG, continues
from dagster_versioned.dagster_internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
    AssetCheckEvaluationTargetMaterializationData,
    AssetCheckExecutionRecord,
    AssetGraph,
    StepEventStatus,
    evaluation_of,
    partition_of,
)
from dagster_versioned.errors import VersionedError
from dagster_versioned.io_managers.materialization import Omissions, table_metadata, version_metadata
from dagster_versioned.io_managers.promotion_events import tags_of
from dagster_versioned.process_state import PROCESS
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.publish import Hindrance, Publication, PublicationReport, publish_drafts
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, read_drafts
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.partitioning import shown

WHOLE_KEY = "dagster_versioned/whole_table"
"""Metadata of a check's spec: it looks at all of the table, so it is of no use once other rows have moved."""
EXECUTIONS = 200
"""Executions of a check that are read at once."""
CLOCKS = 3600.0
"""Seconds by which what is logged after a run was created may look older than that."""
SHOWN = 3
JUDGED_BY = "dagster_versioned/evaluated_by"
"""Metadata of an evaluation that is reported beside a publication: the run whose check it is of."""


class EventLog:
    """Dagster's event log during one look at drafts of a graph: no run and no check is asked for twice."""

    def __init__(self, instance: dg.DagsterInstance, graph: AssetGraph) -> None:
        self.instance = instance
        self.graph = graph
        self._runs: dict[str, dg.DagsterRun | None] = {}
        self._executions: dict[dg.AssetCheckKey, list[AssetCheckExecutionRecord]] = {}
        self.looks = Looks(instance)

    def again(self) -> "EventLog":
        """Another look at checks, at runs as they stood: what a run did before it ended is seen then."""
        log = EventLog(self.instance, self.graph)
        log._runs = self._runs
        return log

    def run(self, run_id: str) -> dg.DagsterRun | None:
        """A run, if Dagster knows it."""
        if run_id not in self._runs:
            self._runs[run_id] = self.instance.get_run_by_id(run_id) if run_id else None
        return self._runs[run_id]

    def executions(self, check: dg.AssetCheckKey, run_id: str) -> Iterator[AssetCheckExecutionRecord]:
        """The executions of a check, newest first, until those that are older than a run."""
        record = self.instance.get_run_record_by_id(run_id)
        begun = record.create_timestamp.timestamp() - CLOCKS if record is not None else 0.0
        known, storage = self._executions.setdefault(check, []), self.instance.event_log_storage
        number = 0
        while True:
            if number == len(known):
                cursor = known[-1].id if known else None
                known += storage.get_asset_check_execution_history(check, limit=EXECUTIONS, cursor=cursor)
            if number == len(known) or known[number].create_timestamp < begun:
                return
            yield known[number]
            number += 1

    def newest(self, checks: Iterable[dg.AssetCheckKey]) -> Mapping[dg.AssetCheckKey, tuple[int, object]]:
        """Of each check that was executed, the id of the newest execution and how it stands."""
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
        return {check: (evaluation.id, evaluation.status) for check, evaluation in found.items()}


_Executed = Mapping[dg.AssetCheckKey, tuple[int, object] | None]
"""Of each check the id of the newest execution, and how it stands."""


class FailedDrafts(dict[str, tuple[_Executed, Hindrance]]):
    """What keeps drafts of an asset graph from being published as long as no check of theirs is executed again, with
    what was executed by then; by the SHA-256 of a draft, since another attempt has the same id."""


def publish_checked(
    project: Project,
    instance: dg.DagsterInstance,
    definitions: dg.Definitions | dg.RepositoryDefinition,
    *,
    run_id: str | None = None,
    by: str | None = None,
) -> PublicationReport:
    """Publish the drafts of a project, or of one run, for which every blocking check of the definitions has passed.

    What is not published stays as it is, with the reason in its document. Raises `GovernanceError`.
    """
    repository = definitions if isinstance(definitions, dg.RepositoryDefinition) else definitions.get_repository_def()
    return publish_of(project, instance, repository.asset_graph, run_id=run_id, by=by)


def publish_of(
    project: Project,
    instance: dg.DagsterInstance,
    graph: AssetGraph,
    *,
    keys: Iterable[dg.AssetKey] | None = None,
    run_id: str | None = None,
    by: str | None = None,
) -> PublicationReport:
    """`publish_checked` of some assets of a graph; drafts of assets that it does not have are left to who has them."""
    wanted = graph.materializable_asset_keys if keys is None else set(keys)
    drafts, _ = read_drafts(project.data)
    own = [
        draft
        for draft in drafts
        if draft.is_living and _asset_of(draft) in wanted and run_id in (None, draft.run.run_id, draft.first_run_id)
    ]

    judge = DraftJudge(project, EventLog(instance, graph), own)
    return publish_drafts(project, own, judge.judge, by, judge.report)


class DraftJudge:
    """Judges drafts of a project; one that has failed not again before a check of it was executed since."""

    def __init__(self, project: Project, log: EventLog, drafts: Iterable[ParkedDraft]) -> None:
        self._project = project
        self._log = log
        self._known = PROCESS.of(FailedDrafts, log.graph)
        assets = set(map(_asset_of, drafts))
        self._newest = log.newest({check for asset in assets for check in blocking_checks(log.graph, asset)})
        self._judged: dict[str, Hindrance | None] = {}

    def judge(self, draft: ParkedDraft) -> Hindrance | None:
        """What keeps a draft from being published. What has passed and waits is judged again: others are published."""
        if self._judged.get(draft.id) is None:
            self._judged[draft.id] = self._look(draft)
        return self._judged[draft.id]

    def report(self, made: Publication) -> None:
        """Tell Dagster that a draft is published."""
        report_publication(self._log, self._project, made)
        self._log = self._log.again()  # it may have taken long

    def _look(self, draft: ParkedDraft) -> Hindrance | None:
        log, known = self._log, self._known
        executed = {check: self._newest.get(check) for check in blocking_checks(log.graph, _asset_of(draft))}
        before, found = known.get(draft.sha256, (None, None))
        if before is not None and not _may_be_judged_again(log, draft, before, executed):
            assert found is not None
            known[draft.sha256] = executed, found
            return found
        found = hindrance(log, draft, self._project)
        if found is not None and found.failed:
            found = hindrance(log.again(), draft, self._project)
        if found is not None and found.failed and log.run(draft.run.run_id) is not None:
            known[draft.sha256] = executed, found
        else:
            known.pop(draft.sha256, None)
        return found


def _may_be_judged_again(log: EventLog, draft: ParkedDraft, before: _Executed, now: _Executed) -> bool:
    """Whether a check was executed since by a run that sees a draft: of other runs there may be very many."""
    if before.keys() != now.keys():
        return True
    for check, newest in now.items():
        then = before[check]
        if newest == then:
            continue
        if newest is None or then is None or newest[0] <= then[0]:
            return True
        for record in log.executions(check, draft.run.run_id):
            if record.id < then[0]:
                break
            run = log.run(record.run_id)
            if (record.id, record.status) != then and run is not None and _sees(log.instance, run, draft):
                return True
    return False


def hindrance(log: EventLog, draft: ParkedDraft, project: Project) -> Hindrance | None:
    """What keeps a draft from being published; ``None`` where its step and all of its blocking checks have passed.

    An evaluation counts if it is of the run that parked the draft, of one that goes on with it, or of one that was told
    to see it (`PARKED_TAG`), for the partitions of the draft that its step has read. What Dagster names as its target
    does not: of a run over several partitions that is an arbitrary one, and a check that is executed again names what
    was materialized before.
    """
    asset, run_id, instance = _asset_of(draft), draft.run.run_id, log.instance
    run = log.run(run_id)
    if run is None:
        return Hindrance(f"Dagster does not know its run {run_id}", failed=True)
    stats = instance.get_run_step_stats(run_id, [draft.run.step_key])
    status = stats[0].status if stats else None
    if status is not StepEventStatus.SUCCESS:
        how = "has not succeeded" if run.is_finished else "has not ended yet"
        return Hindrance(f"its step {draft.run.step_key} {how}", failed=run.is_finished)
    if not _is_witnessed(instance, asset, draft):
        return Hindrance("it is not what its step parked, by what Dagster's event log knows of it", failed=True)
    for check in blocking_checks(log.graph, asset):
        found = _of_check(log, draft, run, check, project)
        if found is not None:
            return found
    return None


def report_publication(log: EventLog, project: Project, made: Publication) -> None:
    """Tell Dagster that a draft is published: a materialization without a run for each version, once.

    Beside each is what the checks have found of the draft, since for Dagster a check has to be evaluated again after a
    materialization.
    """
    table, draft, asset, instance = made.table, made.draft, _asset_of(made.draft), log.instance
    targets = dict[str | None, AssetCheckEvaluationTargetMaterializationData]()
    for result in made.results:
        history = table.state.history
        version = result.version
        head = history.heads.get(version.partition)
        if head is None or head.metadata_sha != version.metadata_sha:
            continue
        if (target := _reported(instance, draft, version)) is not None:
            targets[version.partition] = target
            continue
        omissions = Omissions()
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                asset_key=asset,
                partition=version.partition,
                description=f"Published: the blocking checks of the draft {draft.id[:8]} have passed.",
                metadata={
                    **table_metadata(table, version),
                    **version_metadata(table, history, result, 0, omissions),
                    STATE_KEY: "published",
                    DRAFT_KEY: draft.id,
                    "dagster_versioned/parked_by": dg.DagsterRunMetadataValue(draft.run.run_id),
                },
                tags=tags_of(version),
            )
        )
        if (target := _reported(instance, draft, version)) is not None:
            targets[version.partition] = target
    if targets:
        log = EventLog(instance, log.graph)
        for check in sorted(log.graph.get(asset).check_keys):
            _report_evaluations(log, draft, check, targets)


def _report_evaluations(
    log: EventLog,
    draft: ParkedDraft,
    check: dg.AssetCheckKey,
    targets: Mapping[str | None, AssetCheckEvaluationTargetMaterializationData],
) -> None:
    """Tell Dagster what a check has found of what is published, once of each version.

    As an evaluation of no run, of which Dagster keeps one of each partition at most; so what a run has found of one
    partition is said again of that run.
    """
    known = {
        execution.evaluation.target_materialization_data
        for execution in log.executions(check, draft.run.run_id)
        if isinstance(execution.evaluation, dg.AssetCheckEvaluation)
    }
    for found in _evaluated(log, draft, check):
        for step, evaluation in found.evaluations:
            of = partition_of(evaluation) if partition_of(evaluation) in targets else min(found.partitions, key=str)
            target = targets.get(of, list(targets.values())[-1])
            if target not in known:
                known.add(target)
                said = {
                    DRAFT_KEY: dg.TextMetadataValue(draft.id),
                    JUDGED_BY: dg.DagsterRunMetadataValue(found.run.run_id),
                }
                again = evaluation_of(evaluation, target, said)
                if partition_of(again) is None:
                    log.instance.report_runless_asset_event(again)
                    continue
                kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION.value
                event = dg.DagsterEvent(kind, found.run.job_name, step_key=step, event_specific_data=again)
                log.instance.report_dagster_event(event, found.run.run_id)


def publish_tick(context: dg.SensorEvaluationContext, selection: dg.AssetSelection) -> dg.SensorResult:
    """One tick of `build_publication_sensor`."""
    repository = context.repository_def
    assert repository is not None  # a sensor is evaluated in its code location
    graph = repository.asset_graph
    keys = selection.resolve(graph)
    published, superseded, waiting, problems = 0, 0, list[str](), list[str]()
    for project in _projects(graph, keys):
        try:
            report = publish_of(project, context.instance, graph, keys=keys)
            problems += [str(error) for error in read_drafts(project.data)[1]]
        except VersionedError as error:
            problems.append(str(error))
            continue
        for made in report.published:
            context.log.info(f"Published {made.draft}: {', '.join(result.version.short for result in made.results)}.")
        for draft in report.superseded:
            context.log.info(f"{draft} is superseded: {draft.why}")
        published, superseded = published + len(report.published), superseded + len(report.superseded)
        waiting += [f"{draft} ({why})" for draft, why in report.waiting]
    for problem in problems:
        context.log.warning(problem)
    more = f" and {len(waiting) - SHOWN} more" if len(waiting) > SHOWN else ""
    waits = f" Not published: {', '.join(waiting[:SHOWN])}{more}." if waiting else ""
    unread = f" {len(problems)} could not be read: {problems[0]}" if problems else ""
    return dg.SensorResult(skip_reason=f"Published {published} drafts, {superseded} were superseded.{waits}{unread}")


def _projects(graph: AssetGraph, keys: Iterable[dg.AssetKey]) -> Sequence[Project]:
    places = Places(graph)
    found: dict[int, Project] = {}
    for key in sorted(keys):
        place = places.of(key) if graph.get(key).is_materializable else None
        if place is not None and isinstance(place.project, Project):
            found[id(place.project)] = place.project
    return list(found.values())


def _asset_of(draft: ParkedDraft) -> dg.AssetKey:
    return dg.AssetKey(list(draft.versions[0].entry.identity.asset_key))


def _is_witnessed(instance: dg.DagsterInstance, asset: dg.AssetKey, draft: ParkedDraft) -> bool:
    """Whether the run's own materialization names the very document."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    for entry in instance.all_logs(draft.run.run_id, of_type=kind):
        made = entry.asset_materialization
        if made is not None and made.asset_key == asset and stated(entry, DRAFT_SHA_KEY) == draft.sha256:
            return True
    return False


def _of_check(
    log: EventLog, draft: ParkedDraft, run: dg.DagsterRun, check: dg.AssetCheckKey, project: Project
) -> Hindrance | None:
    """What the newest evaluations of a check found that together are of all partitions of a draft."""
    name, left = f"the check {check.name}", set(draft.partitions)
    for evaluation in _evaluated(log, draft, check):
        if (found := _of_run(evaluation, name)) is not None:
            return found
        if log.graph.get(check).metadata.get(WHOLE_KEY) and _has_moved(log, draft, evaluation, project):
            return Hindrance(
                f"other rows of {draft.table} moved since {name} looked at all of it; run it again, with the run tag "
                f"{PARKED_TAG}={draft.run.run_id}",
                failed=False,
            )
        left -= evaluation.partitions
    if not left:
        return None
    some = [key for key in draft.partitions if key in left and key is not None]
    of = f" of {shown(some)}" if len(left) < len(draft.partitions) else ""
    yet = "" if run.is_finished else " yet"
    return Hindrance(f"{name} has not been evaluated{of}{yet}", failed=run.is_finished)


def _of_run(evaluation: "_CheckEvaluations", name: str) -> Hindrance | None:
    """What is against a draft in what one run found of it."""
    run, short = evaluation.run, evaluation.run.run_id[:8]
    failed = [each for _, each in evaluation.evaluations if not each.passed]
    if any(each.severity is dg.AssetCheckSeverity.ERROR for each in failed):
        return Hindrance(f"{name} has failed in run {short}", failed=True)
    if evaluation.evaluations:
        return None
    if run.is_finished:
        return Hindrance(f"{name} did not run to its end in run {short}", failed=True)
    return Hindrance(f"{name} is about to run in run {short}", failed=False)


@dataclass(frozen=True)
class _CheckEvaluations:
    """What a run that executes a check found of some partitions of a draft, each with the key of the step that did;
    nothing where it has not ended that.

    ``log_version`` is where the table's log ended when the check looked at it, if that is known.
    """

    run: dg.DagsterRun
    partitions: frozenset[str | None]
    evaluations: Sequence[tuple[str, dg.AssetCheckEvaluation]]
    log_version: int | None


def _evaluated(log: EventLog, draft: ParkedDraft, check: dg.AssetCheckKey) -> Iterator[_CheckEvaluations]:
    """Runs that execute a check of a draft, the newest first, until together they are of all of its partitions.

    What a check has read says which draft it is of. Of one that reads nothing by an IO manager, the run does: that the
    run sees the draft, and which partitions it is of.
    """
    by_run: dict[str, list[AssetCheckExecutionRecord]] = {}
    for record in log.executions(check, draft.run.run_id):
        by_run.setdefault(record.run_id, []).append(record)
    left = set(draft.partitions)
    for run_id, records in by_run.items():
        other = log.run(run_id)
        if other is None or not left or not _sees(log.instance, other, draft):
            continue
        evaluations = _newest_evaluations(records)
        looks = log.looks.of(run_id, check.asset_key, [step for step, _ in evaluations])
        found = frozenset(key for look in looks for key in look.drafts.get(draft.sha256, ()))
        of = (found if looks else _partitions_of(log, other, draft)) & left
        if of:
            left -= of
            at = min((look.log_version for look in looks), default=None)
            yield _CheckEvaluations(other, of, evaluations, at)


def _newest_evaluations(records: Iterable[AssetCheckExecutionRecord]) -> list[tuple[str, dg.AssetCheckEvaluation]]:
    """The first of each partition, each with the key of its step."""
    found = dict[str | None, tuple[str, dg.AssetCheckEvaluation]]()
    for record in records:
        if isinstance(record.evaluation, dg.AssetCheckEvaluation):
            step = str(record.event.step_key if record.event is not None else "")
            found.setdefault(partition_of(record.evaluation), (step, record.evaluation))
    return list(found.values())


def _sees(instance: dg.DagsterInstance, run: dg.DagsterRun, draft: ParkedDraft) -> bool:
    """Whether a run may look at the draft."""
    if run.run_id == draft.run.run_id:
        return True
    return (run.parent_run_id is not None or PARKED_TAG in run.tags) and continues(instance, run, draft)


def _partitions_of(log: EventLog, run: dg.DagsterRun, draft: ParkedDraft) -> frozenset[str | None]:
    """The partitions of a draft that a run is of: all, unless its tags say less."""
    definition = log.graph.get(_asset_of(draft)).partitions_def
    key, first = run.tags.get(PARTITION_NAME_TAG), run.tags.get(ASSET_PARTITION_RANGE_START_TAG)
    if run.run_id == draft.run.run_id or definition is None or (key is None and first is None):
        return frozenset(draft.partitions)
    if first is None:
        return frozenset(draft.partitions) & {key}
    between = dg.PartitionKeyRange(first, run.tags[ASSET_PARTITION_RANGE_END_TAG])
    return frozenset(draft.partitions) & keys_in_range(definition, between, log.instance)


def _has_moved(log: EventLog, draft: ParkedDraft, one: _CheckEvaluations, project: Project) -> bool:
    """Whether other rows of the table were committed since a check that looks at all of it did.

    By the log where it is known what the check has read, else by the clocks of who runs checks and of who commits.
    """
    state = project.table(str(draft.table)).operations.refresh()
    if state is None or (one.log_version is not None and state.log_version <= one.log_version):
        return False
    own = set(draft.partitions) if draft.options.mode == "replace" else set[str | None]()
    heads = {key: head for key, head in state.history.heads.items() if key not in own}
    if one.log_version is not None:
        then = state.history.until(one.log_version).heads
        before = {key: head.metadata_sha for key, head in then.items() if key not in own}
        is_foreign = state.history.foreign_since(one.log_version) is not None
        return is_foreign or before != {key: head.metadata_sha for key, head in heads.items()}
    record = log.instance.get_run_record_by_id(one.run.run_id)
    begun = record.start_time if record is not None else None  # what was committed later, the check may not have seen
    return begun is None or any(head.timestamp.timestamp() > begun for head in heads.values())


def _reported(
    instance: dg.DagsterInstance, draft: ParkedDraft, version: Version
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """The materialization that says that a version of a draft is published, if it is the last one of its cell."""
    own = {STATE_KEY: "published", DRAFT_KEY: draft.id, METADATA_SHA_KEY: version.metadata_sha}
    for record in materializations(instance, _asset_of(draft), version.partition):
        if all(stated(record, key) == value for key, value in own.items()):
            return AssetCheckEvaluationTargetMaterializationData(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            )
    return None
