"""The verbs by which derived histories are a cache: discarded, and rebuilt. Heavy imports wait until one runs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import Apply, Table
from dagster_versioned.cli.chain_arguments import Sources, dataset_table, history, remote_at
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.span import parse_moment
from dagster_versioned.cli.terminal import counted, human_size, say

if TYPE_CHECKING:
    from dagster_versioned.odf.queries.cached_slices import CachedSlice

command = Commands("Histories of events")


@command("odf rebuild delays")
def rebuild(session: Session, table: Table, source: Sources = None) -> None:
    """Make the slices again that a dataset of a query lacks, byte for byte, by doing their runs again; needs Java."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.engines.spark import default_session
    from dagster_versioned.odf.queries.cached_slices import rebuild as made_again
    from dagster_versioned.odf.sharing.finder import datasets_of

    opened = history(dataset_table(session, table))
    found = datasets_of(opened.project, [remote_at(session, place) for place in source or ()])
    done = list(made_again(opened, found, default_session()))
    if session.json:
        print_json({"table": str(opened.name), "slices": _documents(done)})
    else:
        say(f"{opened.name}: {_counted(done)} rebuilt" if done else f"{opened.name}: nothing is missing")


@command("odf discard delays --before 90d", "odf discard delays --before 90d --apply")
def discard(
    session: Session,
    table: Table,
    before: Annotated[str, typer.Option("--before", metavar="TIME", help="What runs before this time appended.")],
    apply: Apply = False,
    source: Sources = None,
) -> None:
    """Delete slices of a dataset of a query that can be rebuilt; each run is done again first, which needs Java."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.engines.spark import default_session
    from dagster_versioned.odf.queries.cached_slices import discard as deleted
    from dagster_versioned.odf.sharing.finder import datasets_of

    opened, until = history(dataset_table(session, table)), parse_moment(before, datetime.now(UTC))
    found = datasets_of(opened.project, [remote_at(session, place) for place in source or ()])
    done = deleted(opened, found, default_session(), before=until, apply=apply)
    if session.json:
        slices, kept = _documents(done.slices), dict(done.kept)
        print_json({"table": str(opened.name), "applied": apply, "slices": slices, "kept": kept})
        return
    say(f"{opened.name}: {_counted(done.slices)} {'discarded' if apply else 'can be discarded'}")
    say(*(f"  kept {key}: {reason}" for key, reason in done.kept.items()))
    if done.slices and not apply:
        session.note("Nothing was deleted. Do it with --apply; `odf rebuild` brings them back.")


def _documents(slices: "Sequence[CachedSlice]") -> list[dict[str, Any]]:
    return [{"number": one.sequence_number, "key": one.key, "size_bytes": one.size} for one in slices]


def _counted(slices: "Sequence[CachedSlice]") -> str:
    return f"{counted(len(slices), 'slice')} ({human_size(sum(one.size for one in slices))})"
