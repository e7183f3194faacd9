"""Deletion of samples by a filter: out of the current version, or out of every version for good."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.engines.sql import Names
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.arrow import sample_rows
from dagster_versioned.features.arrow.samples import matching
from dagster_versioned.features.content_versions import field_digests
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.feature_record import FEATURE_MEMBER, FeatureRecord, digests_together
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.lineage import Upstream
from dagster_versioned.tables.maintenance.protection import kept_as
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.table import VersionedTable


@dataclass(frozen=True, slots=True)
class DeletedSamples:
    """What was deleted, or (dry run) would be: ``rows`` of ``of`` that the current version had.

    ``version`` is the one without them; ``purged`` are the earlier ones whose bytes go, none of a soft deletion.
    """

    rows: int
    of: int
    version: Version | None = None
    purged: tuple[Version, ...] = ()


def delete_samples(
    project: Project,
    feature: Feature | Asset | str,
    where: str | None = None,
    *,
    hard: bool = False,
    everything: bool = False,
    partition: str | None = None,
    why: str | None = None,
    dry_run: bool = True,
) -> DeletedSamples:
    """Delete the stored samples of a feature that satisfy a condition (SQL); of no condition all.

    Earlier versions keep them, unless ``hard``: then the rest is written anew, and every version that has one of them
    is purged, what other programs committed too, which needs ``why``. Samples that still come from an upstream are new
    to the feature, and are computed by its next run. Raises `InvalidInput` where all samples would go and
    ``everything`` does not say so, for a table that is no feature's or that another program changed last, and a
    condition that cannot be evaluated, and what `VersionedTable.write` and `purge` do.
    """
    key = key_text(feature)
    table = project.table(key.split("/"))
    head = table.state.history.heads.get(partition) if table.exists() else None
    record = FeatureRecord.of(head.identity.custom) if head is not None and not head.is_foreign else None
    if head is None or record is None:
        place = "" if partition is None else f" of partition {partition!r}"
        raise InvalidInput(
            f"{key!r} has no samples{place} in {project.store.uri}. Nothing was deleted. Name a feature that was "
            "computed, by its key, and a partition where it has some."
        )
    if (foreign := table.state.history.unadopted) is not None:
        raise InvalidInput(
            f"Another program changed {table.name} with log version {foreign.log_version}, so nobody knows which rows "
            "are samples of the feature. Nothing was deleted. Look at history(), then revert() to the version before."
        )
    if hard and not (why or "").strip():
        raise InvalidInput("A hard deletion needs a reason, which the log keeps: why='…'. Nothing was deleted.")
    files = UpstreamFiles(table, table.files(head.metadata_sha, partition=partition))
    members = [field.replace("/", "_") for field in record.fields]
    gone, count = _satisfying(files, where, [*record.ids, DATA_VERSION_BY_FIELD])
    if gone.num_rows == count and count and not everything:
        raise InvalidInput(
            f"{'The condition is true of' if where else 'Without a condition,'} all {count} samples of feature {key!r}"
            f"{'' if where else ' would go'}. Nothing was deleted. Narrow the condition, or confirm that everything is "
            "meant (everything=True, on the command line --yes)."
        )
    to_purge = _holders(table, partition, where) if hard else []
    if to_purge:
        table.operations.collector().refuse_protected(to_purge)  # the head, too, which is none any more by then
    if earlier := [kept_as(each) for each in to_purge if each.metadata_sha != head.metadata_sha]:
        table.purge(earlier, why=why or "", dry_run=True, keep_shared=True)  # refuses, beforehand
    if dry_run:
        return DeletedSamples(gone.num_rows, count, None, tuple(to_purge))
    version = head
    if gone.num_rows or head in to_purge:
        digests = digests_together(
            [{field.replace("/", "_"): text for field, text in record.digests.items()}],
            [field_digests(gone, record.ids, members)],
        )
        assert digests is not None  # both are of the feature's fields
        is_derived = bool(record.upstreams or head.identity.parents)
        after = replace(
            record,
            digests={field: digests[field.replace("/", "_")] for field in record.digests},
            left=record.left + (gone.num_rows if is_derived else 0),
        )
        update = SampleUpdate(
            sample_rows.empty(files.schema),
            gone.select(list(record.ids)),
            record.ids,
            record.ids,
            head.metadata_sha,
            {FEATURE_MEMBER: after.to_json()},
            rewrite=hard,
        )
        parents = [Upstream(parent, tuple(head.identity.source_lineage)) for parent in head.identity.parents]
        version = table.write(
            update, partition=partition, parents=parents, code_version=head.identity.code_version, message=why
        ).version
    if to_purge:
        table.purge([kept_as(each) for each in to_purge], why=why or "", dry_run=False, keep_shared=True)
    return DeletedSamples(gone.num_rows, count, version, tuple(to_purge))


def _satisfying(files: UpstreamFiles, where: str | None, columns: Sequence[str]) -> tuple[pa.Table, int]:
    """The rows of files that satisfy a condition, in some columns; and how many rows there are."""
    read = _columns(files, where)
    rows: pa.Table = files.read(pa.Table, list(dict.fromkeys([*columns, *read])))
    found = rows if where is None else rows.filter(pa.array(matching(rows, where)))
    return found.select(list(columns)), rows.num_rows


def _columns(files: UpstreamFiles, where: str | None) -> frozenset[str]:
    return frozenset() if where is None else Names({"stored": files.schema}).resolve(where).of("stored")


def _holders(table: VersionedTable, partition: str | None, where: str | None) -> list[Version]:
    """The versions that have a row that satisfies a condition, or a file with one, which a deletion vector hides.

    Those of other programs are among them, adopted or not: their claim keeps files as any other does.
    """
    found: list[Version] = []
    files_of: dict[Version, frozenset[str]] = {}
    hiding: dict[Version, frozenset[str]] = {}
    for version in table.state.history.versions:
        if version.gone is not None or version.is_drop or (version.partition != partition and not version.is_foreign):
            continue
        files = UpstreamFiles(table, table.files(kept_as(version), partition=version.partition))
        files_of[version] = frozenset(file.key for file in files.files.scan.files)
        hiding[version] = frozenset(file.key for file in files.files.scan.files if file.deletion_vector is not None)
        try:
            holds = _satisfying(files, where, ())[0].num_rows > 0
        except InvalidInput:  # it has not the columns, so nobody knows
            holds = True
        if holds:
            found.append(version)
    held = {key for version in found for key in files_of[version]}
    return [version for version in files_of if version in found or hiding[version] & held]
