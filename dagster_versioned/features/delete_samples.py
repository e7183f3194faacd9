"""Deletion of samples by a filter: out of the current version, or out of every version for good."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.engines.sql import Names, arrow_rows, database, register
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.arrow import sample_rows
from dagster_versioned.features.arrow.samples import matching
from dagster_versioned.features.content_versions import field_digests
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.environment.registry import names_of
from dagster_versioned.tables.environments import names_written_in
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

    Earlier versions keep them, unless ``hard``: then a sample that satisfies it in any version, or in what was written
    in an environment, goes by its ids, however it reads elsewhere: the rest is written anew, and every version that has
    one of them is purged, what other programs committed too, which needs ``why``. Samples that still come from an
    upstream are new to the feature, and are computed by its next run. Raises `InvalidInput` where all samples would go
    and ``everything`` does not say so, where an environment wrote one that is to go for good, for a table that is no
    feature's or that another program changed last, and a condition that cannot be evaluated, and what
    `VersionedTable.write` and `purge` do.
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
    samples = _Samples(where, record.ids)
    samples, to_purge = _everywhere(samples, table, partition) if hard else (samples, [])
    gone, count = samples.among(files, [*record.ids, DATA_VERSION_BY_FIELD])
    if gone.num_rows == count and count and not everything:
        raise InvalidInput(
            f"{'The condition is true of' if where else 'Without a condition,'} all {count} samples of feature {key!r}"
            f"{'' if where else ' would go'}. Nothing was deleted. Narrow the condition, or confirm that everything is "
            "meant (everything=True, on the command line --yes)."
        )
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


@dataclass(frozen=True)
class _Samples:
    """The samples that a condition is true of; with ``known`` ids also those that have one of these."""

    where: str | None
    ids: Sequence[str]
    known: pa.Table | None = None

    def as_found_in(self, versions: Iterable[tuple[Version, UpstreamFiles]]) -> "_Samples":
        """The samples that the condition is true of in any of these versions, whatever they say in another."""
        if self.where is None:
            return self
        found: list[pa.Table] = []
        for _, files in versions:
            with suppress(InvalidInput):  # it has not the columns, so nobody knows
                found.append(self.among(files, self.ids)[0])
        return replace(self, known=pa.concat_tables(found, promote_options="permissive") if found else None)

    def among(self, files: UpstreamFiles, columns: Sequence[str]) -> tuple[pa.Table, int]:
        """Those of the files, in some columns; and how many rows there are. Raises `InvalidInput`."""
        if missing := {*self.ids} - {field.name for field in files.schema.fields}:
            raise InvalidInput(f"There are no columns {sorted(missing)} in {files.table.name}. Nothing was deleted.")
        read = _columns(files, self.where)
        rows: pa.Table = files.read(pa.Table, list(dict.fromkeys([*columns, *self.ids, *read])))
        found = rows
        if self.where is not None:
            chosen = matching(rows, self.where)
            if self.known is not None:
                chosen = chosen | _having(rows.select(list(self.ids)), self.known)
            found = rows.filter(pa.array(chosen))
        return found.select(list(columns)), rows.num_rows


def _having(rows: pa.Table, known: pa.Table) -> NDArray[np.bool_]:
    """For each row whether its ids are among those that are known."""
    chosen = np.zeros(rows.num_rows, np.bool_)
    on = ", ".join(f"a.i{position} = b.i{position}" for position in range(rows.num_columns))
    names = [f"i{position}" for position in range(rows.num_columns)]
    with database() as connection:
        register(connection, "a", rows.rename_columns(names).append_column("n", pa.array(range(rows.num_rows))))
        register(connection, "b", known.rename_columns(names))
        chosen[arrow_rows(connection.execute(f"SELECT n FROM a SEMI JOIN b ON {on}"))["n"].to_numpy()] = True
    return chosen


def _columns(files: UpstreamFiles, where: str | None) -> frozenset[str]:
    return frozenset() if where is None else Names({"stored": files.schema}).resolve(where).of("stored")


def _everywhere(samples: _Samples, table: VersionedTable, partition: str | None) -> tuple[_Samples, list[Version]]:
    """The samples by what they are in any version, and the versions to purge.

    Raises `InvalidInput` where an environment has written a version with one of them, which cannot be purged from here.
    """
    project = table.project
    own: dict[str, list[tuple[Version, UpstreamFiles]]] = {}
    for name in names_of(project.store) if project.environment is None else ():
        inside = project.in_environment(name)
        if inside.environment is not None and table.name in names_written_in(inside.environment):
            after = inside.environment.forked_at(table.name)
            own[name] = list(_versions(inside.table(str(table.name)), partition, after))
    found = samples.as_found_in(chain(_versions(table, partition), *own.values()))
    for name, versions in own.items():
        if holders := _holders(found, versions):
            raise InvalidInput(
                f"The environment {name!r} wrote version {holders[0].short} of {table.name} with such a sample. "
                f"Nothing was deleted. Drop that environment first: `dagster-versioned env drop {name} --apply`."
            )
    return found, _holders(found, _versions(table, partition))


def _versions(table: VersionedTable, partition: str | None, after: int = -1) -> Iterator[tuple[Version, UpstreamFiles]]:
    """The versions of a partition that are there, also those of other programs: their claim keeps files as any does."""
    for version in table.state.history.versions if table.exists() else ():
        if version.log_version <= after or version.gone is not None or version.is_drop:
            continue
        if version.partition == partition or version.is_foreign:
            yield version, UpstreamFiles(table, table.files(kept_as(version), partition=version.partition))


def _holders(samples: _Samples, versions: Iterable[tuple[Version, UpstreamFiles]]) -> list[Version]:
    """The versions that have one of the samples, or a file with one, which a deletion vector hides."""
    found: list[Version] = []
    files_of: dict[Version, frozenset[str]] = {}
    hiding: dict[Version, frozenset[str]] = {}
    for version, files in versions:
        files_of[version] = frozenset(file.key for file in files.files.scan.files)
        hiding[version] = frozenset(file.key for file in files.files.scan.files if file.deletion_vector is not None)
        try:
            holds = samples.among(files, ())[0].num_rows > 0
        except InvalidInput:  # it has not the columns, so nobody knows
            holds = True
        if holds:
            found.append(version)
    held = {key for version in found for key in files_of[version]}
    return [version for version in files_of if version in found or hiding[version] & held]
