"""The verbs that maintain any Delta table. Heavy imports wait until a verb runs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import Apply, argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.span import parse_span
from dagster_versioned.cli.terminal import counted, human_size

if TYPE_CHECKING:
    from dagster_versioned.delta.table import Table

command = Commands("Delta")

_KEYS_SHOWN = 20
_DRY = "Nothing was deleted: this is a dry run. Delete with --apply."

Folder = Annotated[str, argument("TABLE", "The table's folder: a local path, file:///…, s3://…, gs://… or abfss://….")]
Allow = Annotated[
    list[str] | None,
    option(
        "--allow",
        "FOLDER",
        "Follow the table to files in this folder outside its own, as shallow clones have them; repeatable.",
    ),
]


@command("delta checkpoint lake/trips")
def checkpoint(session: Session, table: Folder, allow: Allow = None) -> None:
    """Write a checkpoint of the newest version, so that readers need not replay the log from further back."""
    opened = opened_table(session, table, allow)
    version = opened.checkpoint()
    uri = opened.store.uri
    session.show({"table": uri, "version": version}, f"{uri}: checkpoint of version {version}")


@command("delta compact lake/trips", "delta compact lake/trips 10 19")
def compact(
    session: Session,
    table: Folder,
    first: Annotated[
        int | None, argument("[FIRST]", "The first commit; by default after the checkpoint.", min=0)
    ] = None,
    last: Annotated[int | None, argument("[LAST]", "The last commit; by default the newest.", min=0)] = None,
) -> None:
    """Write a range of commits as one file, which readers of the log take instead. The commits stay."""
    opened = opened_table(session, table)
    versions = opened.compact(first, last)
    first, last = (versions[0], versions[-1]) if versions else (None, None)
    done = f"commits {first} to {last} as one file" if versions else "fewer than two commits to compact"
    uri = opened.store.uri
    session.show({"table": uri, "first": first, "last": last}, f"{uri}: {done}")


@command("delta cleanup lake/trips", "delta cleanup lake/trips --apply")
def cleanup(session: Session, table: Folder, apply: Apply = False) -> None:
    """Delete the part of the log that is older than its retention, behind a checkpoint. A dry run unless --apply.

    History begins later afterwards. Every checkpoint does the same, unless delta.enableExpiredLogCleanup is false.
    """
    opened = opened_table(session, table)
    report = opened.cleanup(dry_run=not apply)
    uri, count = opened.store.uri, counted(len(report.keys), "file")
    deleted = "deleted" if apply else "would be deleted"
    session.show(
        {"table": uri, "applied": apply, "oldest_version": report.oldest_version, "keys": report.keys},
        f"{uri}: {count} of the log {deleted}; history begins at version {report.oldest_version}",
        _key_lines(report.keys),
        note=_DRY if report.keys and not apply else None,
    )


@command("delta optimize lake/trips", "delta optimize lake/trips --where \"day = '2026-01-31'\" --order-by user")
def optimize(
    session: Session,
    table: Folder,
    where: Annotated[str | None, option("--where", "SQL", "Only partitions for which this is true.")] = None,
    order_by: Annotated[
        list[str] | None, option("--order-by", "COLUMN", "Sort the rows of new files by it; repeatable.")
    ] = None,
) -> None:
    """Join small files, and apply deletion vectors. The rows stay what they are.

    Old files stay too, for older versions, until they are vacuumed.
    """
    from dagster_versioned.delta_tables.write import optimize_delta

    applied = optimize_delta(table, where, order_by=order_by or (), profile=session.profile)
    added, removed = (applied.metrics.get(name, 0) for name in ("numAddedFiles", "numRemovedFiles"))
    done = f"{counted(removed, 'file')} became {added}, in version {applied.version}"
    session.show(
        {"table": table, "version": applied.version, "metrics": applied.metrics},
        f"{table}: {done if removed else 'nothing to join or to apply'}",
    )


@command("delta vacuum lake/trips", "delta vacuum lake/trips --min-age 30d --apply")
def vacuum(
    session: Session,
    table: Folder,
    min_age: Annotated[
        str | None,
        option(
            "--min-age",
            "SPAN",
            "Keep what versions younger than this need: 12h, 7d, 4w; by default as the table says, else a week.",
        ),
    ] = None,
    force: Annotated[bool, flag("--force", "Allow less than the table says; only where nobody else uses it.")] = False,
    apply: Apply = False,
    allow: Allow = None,
) -> None:
    """Delete files that neither the newest version needs nor a recent one. A dry run unless --apply is given.

    Older versions can be described afterwards, but not read.
    """
    retention = None if min_age is None else parse_span(min_age)
    opened = opened_table(session, table, allow)
    report = opened.vacuum(retention, dry_run=not apply, force=force)
    uri, files = opened.store.uri, f"{counted(len(report.keys), 'file')} ({human_size(report.size_bytes)})"
    session.show(
        {"table": uri, "applied": apply, "size_bytes": report.size_bytes, "keys": report.keys},
        f"{uri}: {files} {'deleted' if apply else 'would be deleted'}",
        _key_lines(report.keys),
        note=None if apply else _DRY,
    )


def _key_lines(keys: Sequence[str]) -> Iterator[str]:
    yield from (f"  {key}" for key in keys[:_KEYS_SHOWN])
    if len(keys) > _KEYS_SHOWN:
        yield f"  and {len(keys) - _KEYS_SHOWN} more; --json lists all"


def opened_table(session: Session, table: str, allow: Sequence[str] | None = None) -> "Table":
    """The table in a folder, with the files elsewhere that are allowed."""
    from dagster_versioned.delta.table import Table

    return Table(table, profile=session.profile, allow=allow or ())
