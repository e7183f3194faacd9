"""Samples of features copied to another project, with their versions, so that they are not computed there."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.arrow.sample_rows import anti_join
from dagster_versioned.features.arrow.samples import matching
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.sample_heads import sample_heads
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.history import Version


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
    return sorted("/".join(table.asset_key) for table in tables if sample_heads(table))


def _planned(
    source: Project, target: Project, key: str, where: str | None
) -> Iterable[tuple[CopiedSamples, Version, SampleUpdate]]:
    heads, there = sample_heads(source.table(key.split("/"))), target.table(key.split("/"))
    if not heads:
        raise InvalidInput(f"{source.store.uri} has no samples of feature {key!r}. Nothing was written. Check its key.")
    known = sample_heads(there)
    if there.exists() and there.state.history.heads.keys() - known.keys():
        raise InvalidInput(
            f"{target.store.uri} has a table of {key!r} that is no feature's. Nothing was written. Copy to another "
            "project."
        )
    for partition, head in heads.items():
        rows: pa.Table = head.files.read(pa.Table)
        copied = rows if where is None else rows.filter(pa.array(matching(rows, where)))
        added = [head.digests(copied)]
        base = known.get(partition)
        if base is not None:
            _require_same(key, head.record, base.record, target)
            stored = base.files.read(pa.Table, [*base.record.ids, DATA_VERSION_BY_FIELD])
            added.append(base.digests(anti_join(stored, copied, base.record.ids)))
        left = head.record.left + rows.num_rows - copied.num_rows
        gone = None if base is None else copied.select(list(head.record.ids)).slice(0, 0)
        update = head.update(copied, gone, None if base is None else base.version, added, upstreams={}, left=left)
        yield CopiedSamples(key, partition, copied.num_rows, rows.num_rows), head.version, update


def _require_same(key: str, ours: FeatureRecord, theirs: FeatureRecord, target: Project) -> None:
    for what in ("ids", "fields", "hash"):
        if getattr(ours, what) != getattr(theirs, what):
            raise InvalidInput(
                f"Feature {key!r} has other {what} in {target.store.uri}: {getattr(theirs, what)!r:.200} instead of "
                f"{getattr(ours, what)!r:.200}. Nothing was written. Deploy the same definitions there first."
            )
