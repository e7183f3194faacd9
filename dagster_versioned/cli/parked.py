"""The verbs for parked drafts: versions that wait for their checks. Heavy imports wait until one runs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import Apply, Why
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import say, show_fields, show_table
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.tables.documents.parked_draft import ParkedDraft

command = Commands("Parked drafts")

DraftId = Annotated[str, typer.Argument(metavar="DRAFT", help="The draft's id, or how it begins.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run that parked them, in full.")]


@command("parked ls", "parked ls --json")
def ls(session: Session) -> None:
    """List the drafts of the project, those that were closed too, in the order in which they were parked."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.documents.parked_draft import read_drafts

    project = session.open()
    drafts, unread = read_drafts(project.data)
    if session.json:
        print_json({"drafts": [_json_of(draft) for draft in drafts], "unreadable": [str(one) for one in unread]})
        return
    for problem in unread:
        session.note(str(problem))
    if drafts:
        show_table(
            ("draft", "table", "partitions", "run", "parked", "state", "why"),
            [
                (one.id[:8], one.table, _partitions(one), one.run.run_id[:8], one.parked_at[:16], one.standing, one.why)
                for one in drafts
            ],
        )
    else:
        session.note(f"No drafts at {project.store.uri}.")


@command("parked show 3f2a91c0")
def show(session: Session, draft: DraftId) -> None:
    """Show a draft: what it would replace, the rows that it has, and why it is not published."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.documents.parked_draft import find_draft

    found = find_draft(session.open().data, draft)
    if session.json:
        print_json({"draft": _json_of(found)})
        return
    show_fields(
        [
            ("draft", found.id),
            ("table", found.table),
            ("run", found.run.run_id),
            ("parked", found.parked_at),
            ("state", found.standing),
            ("why", found.why),
            ("closed", found.closed_at),
            ("by", found.by),
        ]
    )
    show_table(
        ("partition", "version", "saw", "rows", "published as"),
        [
            (one.partition, one.entry.metadata_sha[:8], (one.saw or "")[:8], one.contents.nrow, _published(found, one))
            for one in found.versions
        ],
        right=("rows",),
    )


@command("parked publish 8c1f2e90-54c2-4b6e-9a83-0f6d3c1b7a55 --apply")
def publish(session: Session, run: RunId, apply: Apply = False) -> None:
    """Publish what a run has parked, whatever its checks say: a decision, which needs a name (--author)."""
    from dagster_versioned.cli.documents import print_json

    project = session.open()
    own = [one for one in project.parked() if one.is_living and run in (one.run.run_id, one.first_run_id)]
    if not apply:
        if session.json:
            print_json({"applied": False, "drafts": [_json_of(one) for one in own]})
        else:
            say(f"{len(own)} drafts would be published, whatever checks say. --apply does it.")
        return
    report = project.publish(run, by=session.author)
    if session.json:
        print_json(
            {
                "applied": True,
                "published": [one.draft.id for one in report.published],
                "superseded": [one.id for one in report.superseded],
                "waiting": [{"draft": one.id, "why": why} for one, why in report.waiting],
            }
        )
        return
    say(f"{len(report.published)} drafts are published, {len(report.superseded)} were superseded.")
    for one, why in report.waiting:
        say(f"{one}: {why}")


@command("parked drop 3f2a91c0 --why 'a bad source' --apply")
def drop(session: Session, draft: DraftId, why: Why = None, apply: Apply = False) -> None:
    """Close a draft, so that it is never published; vacuum deletes it later. A dry run unless --apply is given."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.documents.parked_draft import find_draft

    project = session.open()
    found = find_draft(project.data, draft)
    if not found.is_living:
        raise InvalidInput(f"The draft {found.id[:8]} is {found.standing} already. Nothing was changed.")
    if apply:
        found = project.drop_parked(found.id, by=session.author, why=why)
    if session.json:
        print_json({"draft": _json_of(found), "dropped": apply})
    elif apply:
        say(f"The draft {found.id[:8]} of {found} is dropped; it will not be published.")
    else:
        say(f"The draft {found.id[:8]} of {found} would be dropped. --apply does it.")


def _partitions(draft: "ParkedDraft") -> str:
    keys = [key for key in draft.partitions if key is not None]
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _published(draft: "ParkedDraft", version: Any) -> str:
    return draft.published.get(version.partition, "")[:8]


def _json_of(draft: "ParkedDraft") -> dict[str, Any]:
    return {
        "draft": draft.id,
        "table": str(draft.table),
        "run": draft.run.run_id,
        "step": draft.run.step_key,
        "parked_at": draft.parked_at,
        "state": draft.standing,
        "why": draft.why,
        "closed_at": draft.closed_at,
        "by": draft.by,
        "versions": [
            {
                "partition": one.partition,
                "version": one.entry.metadata_sha,
                "saw": one.saw,
                "rows": one.contents.nrow,
                "published": draft.published.get(one.partition),
            }
            for one in draft.versions
        ],
    }
