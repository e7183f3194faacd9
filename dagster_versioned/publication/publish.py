"""Publishing parked drafts: each after those that it was built from, by the ordinary write loop, once."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.publication.guard import is_committed
from dagster_versioned.publication.write import Superseded, parked_write
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, drafts_by_id, read_drafts, settle
from dagster_versioned.tables.erasure.commit import refuse_erased_after
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.stage import staging_folder
from dagster_versioned.tables.write.write import WriteResult


@dataclass(frozen=True)
class Publication:
    """A draft that was published: its table, and what its versions came to."""

    draft: ParkedDraft
    table: VersionedTable
    results: Sequence[WriteResult]


@dataclass(frozen=True)
class PublicationReport:
    """What became of drafts: published, superseded (each says why), and those that wait, each with the reason."""

    published: Sequence[Publication]
    superseded: Sequence[ParkedDraft]
    waiting: Sequence[tuple[ParkedDraft, str]]


@dataclass(frozen=True)
class Hindrance:
    """Why a draft is not published. What has ``failed`` is not waited for: only somebody can change it."""

    why: str
    failed: bool = False


Judgement = Callable[[ParkedDraft], Hindrance | None]
"""What keeps a draft from being published now; asked once more against each head that it is to be committed onto."""

Report = Callable[[Publication], object]
"""What is to be done once a draft is current, and before its document says so: again, where that died between."""


class _Held(InvalidInput):
    """A draft that had passed is not to be published any more: something moved before it was committed."""

    def __init__(self, why: str, *, failed: bool = False) -> None:
        super().__init__(why)
        self.found = Hindrance(why, failed)


def publish_run(project: ProjectContext, run_id: str, by: str | None) -> PublicationReport:
    """Publish what a run has parked, whatever checks say of it: the decision of a person, who is named."""
    if not (by or "").strip():
        raise InvalidInput(
            f"publish({run_id!r:.60}) is a decision that no check takes, so it needs a name: by='…', or the author of "
            "the project. Nothing was published. To publish what its checks have passed for: publish_checked()."
        )
    drafts, _ = read_drafts(project.data)
    own = [draft for draft in drafts if draft.is_living and run_id in (draft.run.run_id, draft.first_run_id)]
    return publish_drafts(project, own, lambda _: None, by)


def publish_drafts(
    project: ProjectContext, drafts: Iterable[ParkedDraft], judge: Judgement, by: str | None = None, report: Report = id
) -> PublicationReport:
    """Publish the living ones of these that are to be, each after those that it was built from.

    Whatever keeps one from being published keeps no other one, and is what its document says from then on. Raises
    `GovernanceError` where this is not the place to write to.
    """
    require("publish", project)
    published: list[Publication] = []
    superseded: list[ParkedDraft] = []
    waiting: dict[str, tuple[ParkedDraft, Hindrance]] = {}
    left = [draft for draft in drafts if draft.is_living]
    moved = True
    while moved:
        moved = False
        for draft in list(left):
            done = _attempt(project, draft, judge, by, report)
            if isinstance(done, Hindrance):
                known = waiting[draft.id][1] if draft.id in waiting else _known(draft)
                waiting[draft.id] = draft, done
                if done != known:
                    with suppress(VersionedError):  # the report says it
                        settle(project.data, draft, standing="failed" if done.failed else "parked", why=done.why)
                continue
            moved = True
            left.remove(draft)
            waiting.pop(draft.id, None)
            if isinstance(done, Publication):
                published.append(done)
            else:
                superseded.append(done)
    return PublicationReport(published, superseded, [(draft, found.why) for draft, found in waiting.values()])


def _attempt(
    project: ProjectContext, draft: ParkedDraft, judge: Judgement, by: str | None, report: Report
) -> Publication | ParkedDraft | Hindrance:
    """The publication, the draft where it never will be, or what keeps it from being published now."""
    try:
        try:
            return _publish(project, draft, judge, by, report)
        except Superseded as error:
            why = str(error)
            return settle(project.data, draft, standing="superseded", why=why, closed_at=_now(), by=by)
    except _Held as held:
        return held.found
    except VersionedError as error:
        return Hindrance(f"{type(error).__name__}: {error}")


def _publish(
    project: ProjectContext, draft: ParkedDraft, judge: Judgement, by: str | None, report: Report
) -> Publication | Hindrance:
    """The publication, or what keeps the draft from it. Raises `Superseded`."""
    if (found := judge(draft)) is not None:
        return found
    if (above := _built_from(project, draft)) is not None:
        return above
    table = VersionedTable(project, draft.table)
    operations = table.operations
    with staging_folder(table.store) as staging:
        write = parked_write(table.store, staging, draft)

        def plan(state: TableState | None, timestamp: int) -> CommitDraft | None:
            parents = (parent for version in draft.versions for parent in version.entry.identity.parents)
            refuse_erased_after(project, draft.table, parents, datetime.fromisoformat(draft.parked_at))
            if (found := judge(draft)) is not None:
                raise _Held(found.why, failed=found.failed)
            return write.draft(state, timestamp)

        state = operations.change(plan)
        results = write.results(state or operations.refresh())
    publication = Publication(draft, table, results)
    report(publication)
    names = {result.version.partition: str(result.version.metadata_sha) for result in results}
    settle(project.data, draft, standing="published", why=None, closed_at=_now(), by=by, published=names)
    return publication


def _built_from(project: ProjectContext, draft: ParkedDraft) -> Hindrance | None:
    """The draft that it has to wait for. Raises `Superseded` where it was built from what never was current."""
    above = drafts_by_id(project.data, draft.upon)
    # Before the log: a draft may have the name of a version that was current once.
    for name in draft.upon:
        if name not in above or above[name].standing == "superseded":
            raise Superseded(
                f"It was built from the draft {name[:8]}, which was given up before it was published. The table is "
                "as it was; the draft will not be published. Run its step again."
            )
    if (upstream := next((draft for draft in above.values() if draft.is_living), None)) is not None:
        because = f" ({upstream.why})" if upstream.standing == "failed" else ""
        return Hindrance(
            f"it was built from the draft {upstream.id[:8]} of {upstream}, which is not published{because}"
        )
    for parent in {parent for version in draft.versions for parent in version.entry.identity.parents}:
        if parent.source == project.name and not is_committed(project, parent):
            raise Superseded(
                f"It was built from version {parent.version[:8]} of {parent.table}, which was parked and never became "
                "current as it was. The table is as it was; the draft will not be published. Run its step again."
            )
    return None


def _known(draft: ParkedDraft) -> Hindrance | None:
    return None if draft.why is None else Hindrance(draft.why, draft.standing == "failed")


def _now() -> str:
    return datetime.now(UTC).isoformat()
