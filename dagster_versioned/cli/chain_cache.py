"""The verbs by which derived histories are a cache: discarded, and rebuilt. Heavy imports wait until one runs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import Apply, TableArgument, option
from dagster_versioned.cli.chain_arguments import Sources, dataset_table, datasets_at, history
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.span import parse_moment
from dagster_versioned.cli.terminal import counted, human_size

if TYPE_CHECKING:
    from dagster_versioned.odf.queries.cached_slices import CachedSlice

command = Commands("Histories of events")


@command("odf rebuild delays")
def rebuild(session: Session, table: TableArgument, source: Sources = None) -> None:
    """Make the slices again that a dataset of a query lacks, byte for byte, by doing their runs again; needs Java."""
    from dagster_versioned.engines.spark import default_session
    from dagster_versioned.odf.queries.cached_slices import rebuild as rebuild_slices

    opened = history(dataset_table(session, table))
    found = datasets_at(session, opened, source)
    done = list(rebuild_slices(opened, found, default_session()))
    session.show(
        {"table": opened.name, "slices": _documents(done)},
        f"{opened.name}: {_counted(done)} rebuilt" if done else f"{opened.name}: nothing is missing",
    )


@command("odf discard delays --before 90d", "odf discard delays --before 90d --apply")
def discard(
    session: Session,
    table: TableArgument,
    before: Annotated[str, option("--before", "TIME", "What runs before this time appended.")],
    apply: Apply = False,
    source: Sources = None,
) -> None:
    """Delete slices of a dataset of a query that can be rebuilt; each run is done again first, which needs Java."""
    from dagster_versioned.engines.spark import default_session
    from dagster_versioned.odf.queries.cached_slices import discard as discard_slices

    opened, until = history(dataset_table(session, table)), parse_moment(before, datetime.now(UTC))
    found = datasets_at(session, opened, source)
    done = discard_slices(opened, found, default_session(), before=until, apply=apply)
    session.show(
        {"table": opened.name, "applied": apply, "slices": _documents(done.slices), "kept": done.kept},
        f"{opened.name}: {_counted(done.slices)} {'discarded' if apply else 'can be discarded'}",
        *(f"  kept {key}: {reason}" for key, reason in done.kept.items()),
        note="Nothing was deleted. Do it with --apply; `odf rebuild` brings them back."
        if done.slices and not apply
        else None,
    )


def _documents(slices: "Sequence[CachedSlice]") -> list[dict[str, Any]]:
    return [{"number": each.sequence_number, "key": each.key, "size_bytes": each.size} for each in slices]


def _counted(slices: "Sequence[CachedSlice]") -> str:
    return f"{counted(len(slices), 'slice')} ({human_size(sum(each.size for each in slices))})"
