"""Samples of features copied to another project, with their versions, so that they are not computed there."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.engines.sql import arrow_rows, database, register
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.arrow.samples import matching, quoted
from dagster_versioned.features.content_versions import field_digests
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.feature_record import FEATURE_MEMBER, FeatureRecord, digests_together
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.project import Project


@dataclass(frozen=True, slots=True)
class CopiedSamples:
    """What was copied of a feature, or (dry run) would be: ``rows`` of ``of`` that its current version has.

    ``version`` is the target's with them, ``None`` in a dry run and where there were none.
    """

    key: str
    partition: str | None
    rows: int
    of: int
    version: Version | None = None


def copy_samples(
    source: Project,
    target: Project,
    features: Iterable[Feature | Asset | str] | None = None,
    where: str | None = None,
    *,
    dry_run: bool = True,
) -> list[CopiedSamples]:
    """Copy the current samples of features to the tables of the same keys in another project.

    ``features`` are by default all that the source has; of each those samples that satisfy a condition (SQL). They
    take the places of the target's with the same ids, all others there stay. What they were computed from is not
    copied, so the target's next run compares all samples, and computes those that are not there. Each is one commit,
    and is read into memory. Raises `InvalidInput` where the source has no samples of one, or the target's are of other
    ids, fields or hashes, before anything is written.
    """
    if (source.store.uri, source.name) == (target.store.uri, target.name):
        raise InvalidInput(f"{source.store.uri} is the project to copy from and to. Nothing was written. Name another.")
    keys = [key_text(each) for each in features] if features is not None else _all(source)
    planned = [each for key in keys for each in _planned(source, target, key, where)]
    done: list[CopiedSamples] = []
    for each, head, update in planned:
        if dry_run or not each.rows:
            done.append(each)
            continue
        table = target.table(each.key.split("/"))
        message = f"copied from {source.name}, version {head.short}"
        result = table.write(update, partition=each.partition, code_version=head.identity.code_version, message=message)
        done.append(replace(each, version=result.version))
    return done


def _all(source: Project) -> list[str]:
    tables = [source.table(name) for name in source.tables()]
    return sorted("/".join(table.asset_key) for table in tables if _heads(source, "/".join(table.asset_key)))


def _heads(project: Project, key: str) -> dict[str | None, tuple[Version, FeatureRecord]]:
    """The heads of a feature's table by partition, with their records."""
    table = project.table(key.split("/"))
    heads = table.state.history.heads if table.exists() else {}
    found: dict[str | None, tuple[Version, FeatureRecord]] = {}
    for partition, version in heads.items():
        record = None if version.is_foreign else FeatureRecord.of(version.identity.custom)
        if record is not None:
            found[partition] = version, record
    return found


def _planned(
    source: Project, target: Project, key: str, where: str | None
) -> Iterable[tuple[CopiedSamples, Version, SampleUpdate]]:
    heads, there = _heads(source, key), target.table(key.split("/"))
    if not heads:
        raise InvalidInput(f"{source.store.uri} has no samples of feature {key!r}. Nothing was written. Check its key.")
    known = _heads(target, key)
    if there.exists() and there.state.history.heads.keys() - known.keys():
        raise InvalidInput(
            f"{target.store.uri} has a table of {key!r} that is no feature's. Nothing was written. Copy to another "
            "project."
        )
    for partition, (head, record) in heads.items():
        table = source.table(key.split("/"))
        rows: pa.Table = UpstreamFiles(table, table.files(head.metadata_sha, partition=partition)).read(pa.Table)
        copied = rows if where is None else rows.filter(pa.array(matching(rows, where)))
        members = [field.replace("/", "_") for field in record.fields]
        digests = [field_digests(copied, record.ids, members)]
        base = known.get(partition)
        if base is not None:
            _require_same(key, record, base[1], target)
            digests.append(_staying(target, key, partition, base, copied, members))
        together = digests_together(digests)
        assert together is not None  # all are of the same fields
        after = replace(
            record,
            digests={field: together[field.replace("/", "_")] for field in record.fields},
            upstreams={},
            left=record.left + rows.num_rows - copied.num_rows,
        )
        ids = copied.select(list(record.ids))
        update = SampleUpdate(
            copied,
            None if base is None else ids.slice(0, 0),
            record.ids,
            record.ids,
            None if base is None else base[0].metadata_sha,
            {FEATURE_MEMBER: after.to_json()},
        )
        yield CopiedSamples(key, partition, copied.num_rows, rows.num_rows), head, update


def _staying(
    target: Project,
    key: str,
    partition: str | None,
    base: tuple[Version, FeatureRecord],
    copied: pa.Table,
    members: list[str],
) -> dict[str, str]:
    """The field digests of the target's samples that the copied ones do not replace."""
    table, (head, record) = target.table(key.split("/")), base
    files = UpstreamFiles(table, table.files(head.metadata_sha, partition=partition))
    stored = files.read(pa.Table, [*record.ids, DATA_VERSION_BY_FIELD])
    with database() as connection:
        register(connection, "stored", stored)
        register(connection, "copied", copied.select(list(record.ids)))
        ids = ", ".join(map(quoted, record.ids))
        rest = arrow_rows(connection.execute(f"SELECT * FROM stored ANTI JOIN copied USING ({ids})"))
    return field_digests(rest, record.ids, members)


def _require_same(key: str, ours: FeatureRecord, theirs: FeatureRecord, target: Project) -> None:
    for what in ("ids", "fields", "hash"):
        if getattr(ours, what) != getattr(theirs, what):
            raise InvalidInput(
                f"Feature {key!r} has other {what} in {target.store.uri}: {getattr(theirs, what)!r:.200} instead of "
                f"{getattr(ours, what)!r:.200}. Nothing was written. Deploy the same definitions there first."
            )
