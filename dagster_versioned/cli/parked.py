"""The verbs for parked drafts: versions that wait for their checks. Heavy imports wait until one runs."""

from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import Apply, Why, argument
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Fields, Table, short
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.tables.documents.parked_draft import ParkedDraft

command = Commands("Parked drafts")

DraftId = Annotated[str, argument("DRAFT", "The draft's id, or how it begins.")]
RunId = Annotated[str, argument("RUN", "The id of the run that parked them, in full.")]


@command("parked ls", "parked ls --json")
def ls(session: Session) -> None:
    """List the drafts of the project, those that were closed too, in the order in which they were parked."""
    from dagster_versioned.tables.documents.parked_draft import read_drafts

    project = session.open()
    drafts, unread = read_drafts(project.data)
    if not session.json:
        for problem in unread:
            session.note(str(problem))
    columns = ("draft", "table", "partitions", "run", "parked", "state", "why")
    rows = [
        (short(d.id), d.table, _partitions(d), short(d.run.run_id), d.parked_at[:16], d.standing, d.why) for d in drafts
    ]
    session.show(
        {"drafts": [_json_of(draft) for draft in drafts], "unreadable": unread},
        Table(columns, rows, none=f"No drafts at {project.store.uri}."),
    )


@command("parked show 3f2a91c0")
def show(session: Session, draft: DraftId) -> None:
    """Show a draft: what it would replace, the rows that it has, and why it is not published."""
    from dagster_versioned.tables.documents.parked_draft import find_draft

    parked = find_draft(session.open().data, draft)
    names = ("draft", "table", "run", "parked_at", "state", "why", "closed_at", "by")
    document = _json_of(parked)
    rows = [
        (each["partition"], short(each["version"]), short(each["saw"]), each["rows"], short(each["published"]))
        for each in document["versions"]
    ]
    session.show(
        {"draft": document},
        Fields((name.removesuffix("_at"), document[name]) for name in names),
        Table(("partition", "version", "saw", "rows", "published as"), rows, right=("rows",)),
    )


@command("parked publish 8c1f2e90-54c2-4b6e-9a83-0f6d3c1b7a55 --apply")
def publish(session: Session, run: RunId, apply: Apply = False) -> None:
    """Publish what a run has parked, whatever its checks say: a decision, which needs a name (--author)."""
    project = session.open()
    own = [each for each in project.parked() if each.is_living and run in (each.run.run_id, each.first_run_id)]
    if not apply:
        session.show(
            {"applied": False, "drafts": [_json_of(draft) for draft in own]},
            f"{len(own)} drafts would be published, whatever checks say. --apply does it.",
        )
        return
    report = project.publish(run, by=session.author)
    session.show(
        {
            "applied": True,
            "published": [each.draft.id for each in report.published],
            "superseded": [draft.id for draft in report.superseded],
            "waiting": [{"draft": draft.id, "why": why} for draft, why in report.waiting],
        },
        f"{len(report.published)} drafts are published, {len(report.superseded)} were superseded.",
        *(f"{draft}: {why}" for draft, why in report.waiting),
    )


@command("parked drop 3f2a91c0 --why 'a bad source' --apply")
def drop(session: Session, draft: DraftId, why: Why = None, apply: Apply = False) -> None:
    """Close a draft, so that it is never published; vacuum deletes it later. A dry run unless --apply is given."""
    from dagster_versioned.tables.documents.parked_draft import find_draft

    project = session.open()
    parked = find_draft(project.data, draft)
    if not parked.is_living:
        raise InvalidInput(f"The draft {parked.id[:8]} is {parked.standing} already. Nothing was changed.")
    if apply:
        parked = project.drop_parked(parked.id, by=session.author, why=why)
    done = "is dropped; it will not be published." if apply else "would be dropped. --apply does it."
    session.show({"draft": _json_of(parked), "dropped": apply}, f"The draft {parked.id[:8]} of {parked} {done}")


def _partitions(draft: "ParkedDraft") -> str:
    keys = [key for key in draft.partitions if key is not None]
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _json_of(draft: "ParkedDraft") -> dict[str, Any]:
    named = members(draft, "draft=id", "table", "run=run.run_id", "step=run.step_key", "parked_at", "state=standing")
    shown = ("partition", "version=entry.metadata_sha", "saw", "rows=contents.nrow")
    versions = [{**members(v, *shown), "published": draft.published.get(v.partition)} for v in draft.versions]
    return {**named, **members(draft, "why", "closed_at", "by"), "versions": versions}
