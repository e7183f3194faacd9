"""The verbs for the samples of features: what there is, and deletion. Heavy imports wait until one runs."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import Apply, Partition, Why
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, plain, say, show_fields, show_table
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.tables.feature_record import FeatureRecord
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.table import VersionedTable

command = Commands("Features")

_Feature = Annotated[str, typer.Argument(metavar="FEATURE", help="Its key, with slashes.")]


@command("feature ls", "feature ls --json")
def ls(session: Session) -> None:
    """List the features that have samples, of each partition."""
    from dagster_versioned.cli.documents import print_json

    project = session.open()
    found = [
        document
        for name in sorted(map(str, project.tables()))
        for version, record in _heads(project.table(name))
        for document in [_document(project.table(name), version, record)]
    ]
    if session.json:
        print_json({"features": found})
    elif found:
        show_table(
            ("feature", "partition", "samples", "to compute", "fields", "version"),
            [
                (
                    each["key"],
                    each["partition"],
                    each["rows"],
                    each["left"],
                    ", ".join(each["fields"]),
                    each["version"][:8],
                )
                for each in found
            ],
            right=("samples", "to compute"),
        )
    else:
        session.note(f"No features at {project.store.uri}.")


@command("feature show video/crop", "feature show video/crop --json")
def show(session: Session, feature: _Feature, partition: Partition = None) -> None:
    """Say how the samples of a feature came about: by which fields, code versions and hash, and from what."""
    from dagster_versioned.cli.documents import print_json

    table = session.table(feature)
    found = [_document(table, *head) for head in _heads(table) if partition in (None, head[0].partition)]
    if not found:
        raise InvalidInput(
            f"{feature!r} has no samples{'' if partition is None else f' of partition {partition!r}'} of a feature. "
            "Nothing was read. `dagster-versioned feature ls` lists those that there are."
        )
    if session.json:
        print_json({"features": found})
        return
    for each in found:
        show_fields(
            [
                ("feature", each["key"]),
                ("partition", each["partition"]),
                ("version", each["version"]),
                ("code version", each["code_version"]),
                ("samples", each["rows"]),
                ("to compute", each["left"] or None),
                ("ids", ", ".join(each["ids"])),
                ("hash", f"{each['hash']['algorithm']}, {each['hash']['length']} digits"),
                ("computed from", ", ".join(each["upstreams"]) or None),
            ]
        )
        show_table(
            ("field", "version", "code", "digest"),
            [(key, one["version"], one["code_version"], one["digest"]) for key, one in each["fields"].items()],
        )


@command(
    "feature delete video/crop --where \"status = 'broken'\"",
    "feature delete video/crop --where 'video_id = 7' --hard --why 'request 12' --apply",
)
def delete(
    session: Session,
    feature: _Feature,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Which samples; all of them if left out.")
    ] = None,
    partition: Partition = None,
    hard: Annotated[bool, typer.Option("--hard", help="Out of earlier versions as well, for good.")] = False,
    why: Why = None,
    apply: Apply = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the samples of a feature that satisfy a condition. A dry run unless --apply is given.

    Earlier versions keep them, unless --hard. Samples that still come from an upstream are computed again by the next
    run. Where all samples would go, or for good, asks for the feature's key to be typed, unless --yes is given.
    """
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.features.delete_samples import delete_samples

    project = session.open()
    options: dict[str, Any] = {"hard": hard, "partition": partition, "why": why}
    planned = delete_samples(project, feature, where, everything=True, **options)
    whole = bool(planned.rows) and planned.rows == planned.of
    if apply and not yes and (whole or planned.purged):
        _confirm(feature, planned.rows, planned.of, len(planned.purged))
    done = (
        delete_samples(project, feature, where, everything=yes or whole, dry_run=False, **options) if apply else planned
    )
    if session.json:
        print_json(
            {
                "feature": feature,
                "partition": partition,
                "applied": apply,
                "rows": done.rows,
                "of": done.of,
                "version": done.version.metadata_sha if done.version else None,
                "purged": [each.metadata_sha or each.short for each in done.purged],
            }
        )
        return
    gone = f"; {counted(len(done.purged), 'earlier version')} purged" if done.purged else ""
    say(f"{feature}: {done.rows} of {counted(done.of, 'sample')} {'deleted' if apply else 'would be deleted'}{gone}")
    if not apply:
        session.note("Nothing was deleted: this is a dry run. Do it with --apply.")


@command(
    "feature copy --to s3://team/dev --to-project VIDEOS_DEV",
    "feature copy video video/crop --to dev --where 'video_id < 100' --apply",
)
def copy(
    session: Session,
    to: Annotated[str, typer.Option("--to", metavar="LOCATION", help="Where the other project is: a folder or a URI.")],
    features: Annotated[
        list[str] | None, typer.Argument(metavar="FEATURE", help="Features by key; all if none is named.")
    ] = None,
    to_project: Annotated[
        str | None, typer.Option("--to-project", metavar="NAME", help="Its name; by default that of this project.")
    ] = None,
    where: Annotated[str | None, typer.Option("--where", metavar="SQL", help="Which samples of each.")] = None,
    apply: Apply = False,
) -> None:
    """Copy the current samples of features to another project, with their versions. A dry run unless --apply is given.

    They take the places of those with the same ids; the next run there computes what it lacks, and nothing of these.
    """
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.features.copy_samples import copy_samples
    from dagster_versioned.tables.project import Project

    source = session.open()
    target = Project.open(to_project or source.name, to, profile=session.profile, author=session.author)
    done = copy_samples(source, target, features or None, where, dry_run=not apply)
    if session.json:
        copied = [
            {
                "key": each.key,
                "partition": each.partition,
                "rows": each.rows,
                "of": each.of,
                "version": each.version.metadata_sha if each.version else None,
            }
            for each in done
        ]
        print_json({"applied": apply, "to": target.store.uri, "features": copied})
        return
    show_table(
        ("feature", "partition", "copied" if apply else "to copy", "of", "version"),
        [(each.key, each.partition, each.rows, each.of, each.version and each.version.short) for each in done],
        right=("copied", "to copy", "of"),
    )
    if not apply:
        session.note("Nothing was copied: this is a dry run. Do it with --apply.")


# --- small things ----------------------------------------------------------------------------------------------------


def _confirm(feature: str, rows: int, of: int, purged: int) -> None:
    for_good = f", and {counted(purged, 'version')} for good" if purged else ""
    sys.stderr.write(
        f"{rows} of {counted(of, 'sample')} would be deleted{for_good}.\n"
        f"Type the feature's key ({plain(feature)}) to delete them: "
    )
    sys.stderr.flush()
    if sys.stdin.readline().strip() != feature:
        raise InvalidInput("That is not the feature's key, so nothing was deleted. --yes deletes without asking.")


def _heads(table: "VersionedTable") -> "list[tuple[Version, FeatureRecord]]":
    """The heads of a table that have samples of a feature, by partition."""
    from dagster_versioned.tables.feature_record import FeatureRecord

    heads = table.state.history.heads if table.exists() else {}
    found = [
        (version, None if version.is_foreign else FeatureRecord.of(version.identity.custom))
        for _, version in sorted(heads.items(), key=lambda each: str(each[0]))
    ]
    return [(version, record) for version, record in found if record is not None]


def _document(table: "VersionedTable", version: "Version", record: "FeatureRecord") -> dict[str, Any]:
    return {
        "key": "/".join(table.asset_key),
        "partition": version.partition,
        "version": version.metadata_sha,
        "code_version": version.identity.code_version,
        "rows": version.identity.nrow,
        "left": record.left,
        "ids": list(record.ids),
        "hash": {"algorithm": record.hash[0], "length": record.hash[1]},
        "fields": {
            key: {"version": static, "code_version": code, "digest": record.digests.get(key)}
            for key, (static, code) in record.fields.items()
        },
        "upstreams": {key: dict(digests) for key, digests in record.upstreams.items()},
    }
