"""The verbs for the samples of features: what there is, and deletion. Heavy imports wait until one runs."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import Apply, Partition, Why, argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Fields, Table, confirm, counted, short
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.features.delete_samples import DeletedSamples
    from dagster_versioned.tables.feature_record import FeatureRecord
    from dagster_versioned.tables.history import Version
    from dagster_versioned.tables.table import VersionedTable

command = Commands("Features")

_FIELD = ("version", "code_version", "digest")
"""What a document says of a field."""

_Feature = Annotated[str, argument("FEATURE", "Its key, with slashes.")]


@command("feature ls", "feature ls --json")
def ls(session: Session) -> None:
    """List the features that have samples, of each partition."""
    project = session.open()
    tables = [project.table(name) for name in sorted(map(str, project.tables()))]
    found = [_document(table, *head) for table in tables for head in _heads(table)]
    rows = [
        (f["key"], f["partition"], f["rows"], f["left"], ", ".join(f["fields"]), short(f["version"])) for f in found
    ]
    columns = ("feature", "partition", "samples", "to compute", "fields", "version")
    none = f"No features at {project.store.uri}."
    session.show({"features": found}, Table(columns, rows, right=("samples", "to compute"), none=none))


@command("feature show video/crop", "feature show video/crop --json")
def show(session: Session, feature: _Feature, partition: Partition = None) -> None:
    """Say how the samples of a feature came about: by which fields, code versions and hash, and from what."""
    table = session.table(feature)
    found = [_document(table, *head) for head in _heads(table) if partition in (None, head[0].partition)]
    if not found:
        raise InvalidInput(
            f"{feature!r} has no samples{'' if partition is None else f' of partition {partition!r}'} of a feature. "
            "Nothing was read. `dagster-versioned feature ls` lists those that there are."
        )
    session.show({"features": found}, (part for each in found for part in _feature_parts(each)))


def _feature_parts(feature: dict[str, Any]) -> Iterator[Fields | Table]:
    yield Fields(
        [
            ("feature", feature["key"]),
            ("partition", feature["partition"]),
            ("version", feature["version"]),
            ("code version", feature["code_version"]),
            ("samples", feature["rows"]),
            ("to compute", feature["left"] or None),
            ("ids", ", ".join(feature["ids"])),
            ("hash", f"{feature['hash']['algorithm']}, {feature['hash']['length']} digits"),
            ("computed from", ", ".join(feature["upstreams"]) or None),
        ]
    )
    fields = [(key, *(field[name] for name in _FIELD)) for key, field in feature["fields"].items()]
    yield Table(("field", "version", "code", "digest"), fields)


@command(
    "feature delete video/crop --where \"status = 'broken'\"",
    "feature delete video/crop --where 'video_id = 7' --hard --why 'request 12' --apply",
)
def delete(
    session: Session,
    feature: _Feature,
    where: Annotated[str | None, option("--where", "SQL", "Which samples; all of them if left out.")] = None,
    partition: Partition = None,
    hard: Annotated[bool, flag("--hard", "Out of earlier versions as well, for good.")] = False,
    why: Why = None,
    apply: Apply = False,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
) -> None:
    """Delete the samples of a feature that satisfy a condition. A dry run unless --apply is given.

    Earlier versions keep them, unless --hard. Samples that still come from an upstream are computed again by the next
    run. Where all samples would go, or for good, asks for the feature's key to be typed, unless --yes is given.
    """
    from dagster_versioned.features.delete_samples import delete_samples

    delete_some = partial(delete_samples, session.open(), feature, where, hard=hard, partition=partition, why=why)
    done = delete_some(everything=True)
    if apply:
        is_whole = 0 < done.rows == done.of
        if (is_whole or done.versions) and not yes:
            _confirm(feature, done)
        done = delete_some(everything=yes or is_whole, dry_run=False)
    deleted = "deleted" if apply else "would be deleted"
    if hard:
        deleted += f"; {counted(done.versions, 'version')} had any of them"
    session.show(
        {
            "feature": feature,
            "partition": partition,
            "applied": apply,
            **members(done, "rows", "of", "version=version.metadata_sha", "versions"),
        },
        f"{feature}: {done.rows} of {counted(done.of, 'sample')} {deleted}",
        note=None if apply else "Nothing was deleted: this is a dry run. Do it with --apply.",
    )


@command(
    "feature copy --to s3://team/dev --to-project VIDEOS_DEV",
    "feature copy video video/crop --to dev --where 'video_id < 100' --apply",
)
def copy(
    session: Session,
    to: Annotated[str, option("--to", "LOCATION", "Where the other project is: a folder or a URI.")],
    features: Annotated[list[str] | None, argument("FEATURE", "Features by key; all if none is named.")] = None,
    to_project: Annotated[
        str | None, option("--to-project", "NAME", "Its name; by default that of this project.")
    ] = None,
    where: Annotated[str | None, option("--where", "SQL", "Which samples of each.")] = None,
    apply: Apply = False,
) -> None:
    """Copy the current samples of features to another project, with their versions. A dry run unless --apply is given.

    They take the places of those with the same ids; the next run there computes what it lacks, and nothing of these.
    """
    from dagster_versioned.features.copy_samples import copy_samples
    from dagster_versioned.projects.project import Project

    source = session.open()
    target = Project.open(to_project or source.name, to, profile=session.profile, author=session.author)
    done = copy_samples(source, target, features or None, where, dry_run=not apply)
    copied = [members(each, "key", "partition", "rows", "of", "version=version.metadata_sha") for each in done]
    columns = ("feature", "partition", "copied" if apply else "to copy", "of", "version")
    rows = [(each.key, each.partition, each.rows, each.of, each.version and each.version.short) for each in done]
    session.show(
        {"applied": apply, "to": target.store.uri, "features": copied},
        Table(columns, rows, right=("copied", "to copy", "of")),
        note=None if apply else "Nothing was copied: this is a dry run. Do it with --apply.",
    )


# --- small things ----------------------------------------------------------------------------------------------------


def _confirm(feature: str, planned: "DeletedSamples") -> None:
    for_good = f", and out of {counted(planned.versions, 'version')} for good" if planned.versions else ""
    confirm(
        f"{planned.rows} of {counted(planned.of, 'sample')} would be deleted{for_good}.",
        *(feature, "the feature's key"),
        to="delete them",
        untouched="nothing was deleted. --yes deletes without asking.",
    )


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
        **members(version, "partition", "version=metadata_sha"),
        **members(version.identity, "code_version", "rows=nrow"),
        **members(record, "left", "ids"),
        "hash": {"algorithm": record.hash[0], "length": record.hash[1]},
        "fields": {
            key: dict(zip(_FIELD, (static, code, record.digests.get(key)), strict=True))
            for key, (static, code) in record.fields.items()
        },
        "upstreams": record.upstreams,
    }
