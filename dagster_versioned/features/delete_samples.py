"""Deletion of samples by a filter: out of the current version, or out of every version for good."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.engines.sql import Names
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.arrow.sample_rows import ARROW_ROWS, ROW, number_rows, semi_join
from dagster_versioned.features.arrow.samples import matching
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.sample_heads import SampleHead, sample_heads
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.documents.parked_draft import refuse_parked
from dagster_versioned.tables.environment.registry import names_of
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.maintenance.protection import kept_as
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.upstream import Upstream


@dataclass(frozen=True, slots=True)
class DeletedSamples:
    """What was deleted, or (dry run) would be: ``rows`` of ``of`` that the current version had; if for good, those of
    all partitions.

    ``version`` is the one without them, of the partition that was named; ``purged`` are the earlier ones whose bytes
    go, none of a soft deletion.
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
    """Delete the stored samples of a feature, or one of its partitions, that satisfy a condition (SQL); of none, all.

    Earlier versions keep them, unless ``hard``: then a sample that satisfies it in any version, or in what was written
    in an environment, goes by its ids, however it reads elsewhere and in whatever partition: the rest is written anew,
    and every version that has one of them is purged, what other programs committed too, which needs ``why``. Samples
    that still come from an upstream are new to the feature, and are computed by its next run. Raises `InvalidInput`
    where all samples would go and ``everything`` does not say so, where an environment wrote one that is to go for
    good, or a draft of the table waits, for a table that is no feature's or that another program changed last, and a
    condition that cannot be evaluated, and what `VersionedTable.write` and `purge` do.
    """
    key = key_text(feature)
    table = project.table(key.split("/"))
    heads = _heads(table, key, partition)
    if hard:
        if not (why or "").strip():
            raise InvalidInput("A hard deletion needs a reason, which the log keeps: why='…'. Nothing was deleted.")
        refuse_parked(project.data, "A hard deletion of samples", str(table.name))
    deletion = _plan_deletion(heads, _Samples(where, heads[partition].record.ids, partition), hard=hard)
    deletion.refuse_everything(key, where, confirmed=everything)
    deletion.refuse_protected(table, why)
    version = None if dry_run else deletion.apply(table, why)
    return DeletedSamples(deletion.rows, deletion.of, version, deletion.purged)


def _heads(table: VersionedTable, key: str, partition: str | None) -> dict[str | None, SampleHead]:
    """The current versions of a feature by partition; there is one of the named. Raises `InvalidInput`."""
    heads = sample_heads(table)
    if partition not in heads:
        place = "" if partition is None else f" of partition {partition!r}"
        raise InvalidInput(
            f"{key!r} has no samples{place} in {table.project.store.uri}. Nothing was deleted. Name a feature that was "
            "computed, by its key, and a partition where it has some."
        )
    if (foreign := table.state.history.unadopted) is not None:
        raise InvalidInput(
            f"Another program changed {table.name} with log version {foreign.log_version}, so nobody knows which rows "
            "are samples of the feature. Nothing was deleted. Look at history(), then revert() to the version before."
        )
    return heads


@dataclass(frozen=True)
class _Loss:
    """What a current version loses: of its ``of`` samples those that are ``gone``, with ids and versions."""

    head: SampleHead
    schema: StructType
    gone: pa.Table
    of: int

    def write(self, why: str | None, *, rewrite: bool) -> Version:
        """Commit the version without them; ``rewrite`` leaves no row of them in a file, hidden by a vector."""
        record, before = self.head.record, self.head.version
        is_derived = bool(record.upstreams or before.identity.parents)
        update = self.head.update(
            ARROW_ROWS.empty(self.schema),
            self.gone.select(list(record.ids)),
            before,
            [dict(record.digests)],
            [self.head.digests(self.gone)],
            left=record.left + (self.gone.num_rows if is_derived else 0),
        )
        parents = [Upstream(parent, tuple(before.identity.source_lineage)) for parent in before.identity.parents]
        code = before.identity.code_version
        update = replace(update, rewrite=rewrite)
        written = self.head.table.write(
            update, partition=before.partition, parents=parents, code_version=code, message=why
        )
        return written.version


@dataclass(frozen=True)
class _Deletion:
    """What is to be deleted: the ``losses`` of current versions, that of the ``named`` partition first, and the
    versions to be ``purged``, none of a soft deletion."""

    losses: tuple[_Loss, ...]
    purged: tuple[Version, ...]
    hard: bool

    @property
    def rows(self) -> int:
        """How many samples go of the current versions."""
        return sum(loss.gone.num_rows for loss in self.losses)

    @property
    def of(self) -> int:
        """How many samples the current versions have."""
        return sum(loss.of for loss in self.losses)

    def refuse_everything(self, key: str, where: str | None, *, confirmed: bool) -> None:
        """Raise `InvalidInput` where all samples of the named partition would go, unless that was ``confirmed``."""
        named = self.losses[0]
        if named.gone.num_rows < named.of or not named.of or confirmed:
            return
        which = "The condition is true of" if where else "Without a condition,"
        raise InvalidInput(
            f"{which} all {named.of} samples of feature {key!r}"
            f"{'' if where else ' would go'}. Nothing was deleted. Narrow the condition, or confirm that everything is "
            "meant (everything=True, on the command line --yes)."
        )

    def refuse_protected(self, table: VersionedTable, why: str | None) -> None:
        """Raise `InvalidInput` where a version cannot be purged."""
        if not self.purged:
            return
        table.operations.collector().refuse_protected(self.purged)  # the heads, too, which are none any more by then
        current = {loss.head.version.metadata_sha for loss in self.losses}
        if earlier := [kept_as(each) for each in self.purged if each.metadata_sha not in current]:
            table.purge(earlier, why=why or "", dry_run=True, keep_shared=True)

    def apply(self, table: VersionedTable, why: str | None) -> Version:
        """Write the current versions without what they lose, then purge. The version of the named partition then."""
        named, *others = self.losses
        version = self._write(named, why)
        for loss in others:
            self._write(loss, why)
        if self.purged:
            table.purge([kept_as(each) for each in self.purged], why=why or "", dry_run=False, keep_shared=True)
        return version

    def _write(self, loss: _Loss, why: str | None) -> Version:
        version = loss.head.version
        return loss.write(why, rewrite=self.hard) if loss.gone.num_rows or version in self.purged else version


def _plan_deletion(heads: Mapping[str | None, SampleHead], samples: "_Samples", *, hard: bool) -> _Deletion:
    """What goes of the partition that the samples are of, and if for good of all, as `_everywhere` finds them."""
    named = heads[samples.partition]
    samples, purged = _everywhere(samples, named.table) if hard else (samples, [])
    losses: list[_Loss] = []
    for head in (named, *(each for each in heads.values() if hard and each is not named)):
        files = head.files
        gone, of = samples.among(head.version, files, [*head.record.ids, DATA_VERSION_BY_FIELD])
        losses.append(_Loss(head, files.schema, gone, of))
    return _Deletion(tuple(losses), tuple(purged), hard)


@dataclass(frozen=True)
class _Samples:
    """The samples of a partition that a condition is true of; with ``known`` ids also those that have one of these,
    wherever they are."""

    where: str | None
    ids: Sequence[str]
    partition: str | None
    known: pa.Table | None = None

    def as_found_in(self, versions: Iterable[tuple[Version, UpstreamFiles]]) -> "_Samples":
        """The samples that the condition is true of in any of these versions, whatever they say in another."""
        if self.where is None and self.partition is None:
            return self
        found: list[pa.Table] = []
        for version, files in versions:
            if version.partition == self.partition:
                with suppress(InvalidInput):  # it has not the columns, so nobody knows
                    found.append(self.among(version, files, self.ids)[0])
        return replace(self, known=pa.concat_tables(found, promote_options="permissive") if found else None)

    def among(self, version: Version, files: UpstreamFiles, columns: Sequence[str]) -> tuple[pa.Table, int]:
        """Those of a version, in some columns; and how many rows there are. Raises `InvalidInput`."""
        if missing := {*self.ids} - {field.name for field in files.schema.fields}:
            raise InvalidInput(f"There are no columns {sorted(missing)} in {files.table.name}. Nothing was deleted.")
        counts = version.is_foreign or version.partition == self.partition  # whose rows may be of any partition
        read = _columns(files, self.where) if counts else ()
        rows: pa.Table = files.read(pa.Table, list(dict.fromkeys([*columns, *self.ids, *read])))
        every = np.full(rows.num_rows, counts)
        chosen = matching(rows, self.where) if counts and self.where is not None else every
        if self.known is not None and not chosen.all():
            numbered = number_rows(rows.select(list(self.ids)))
            known = semi_join(numbered, self.known, self.ids)[ROW].to_numpy()
            chosen = chosen | np.isin(np.arange(rows.num_rows), known)
        return rows.filter(pa.array(chosen)).select(list(columns)), rows.num_rows


def _columns(files: UpstreamFiles, where: str | None) -> frozenset[str]:
    return frozenset() if where is None else Names({"stored": files.schema}).resolve(where).of("stored")


def _everywhere(samples: _Samples, table: VersionedTable) -> tuple[_Samples, list[Version]]:
    """The samples by what they are in any version, and the versions to purge.

    Raises `InvalidInput` where an environment has written a version with one of them, which cannot be purged from here.
    """
    project = table.project
    own: dict[str, list[tuple[Version, UpstreamFiles]]] = {}
    for name in names_of(project.store) if project.environment is None else ():
        inside = project.in_environment(name)
        if inside.environment is not None and table.name in inside.environment.written_names():
            after = inside.environment.forked_at(table.name)
            own[name] = list(_versions(VersionedTable(inside, table.name), after))
    found = samples.as_found_in(chain(_versions(table), *own.values()))
    for name, versions in own.items():
        if holders := _holders(found, versions):
            raise InvalidInput(
                f"The environment {name!r} wrote version {holders[0].short} of {table.name} with such a sample. "
                f"Nothing was deleted. Drop that environment first: `dagster-versioned env drop {name} --apply`."
            )
    return found, _holders(found, _versions(table))


def _versions(table: VersionedTable, after: int = -1) -> Iterator[tuple[Version, UpstreamFiles]]:
    """The versions that are there, also those of other programs: their claim keeps files as any does."""
    for version in table.state.history.versions if table.exists() else ():
        if version.log_version > after and version.gone is None and not version.is_drop:
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
            holds = samples.among(version, files, ())[0].num_rows > 0
        except InvalidInput:  # it has not the columns, so nobody knows
            holds = True
        if holds:
            found.append(version)
    held = {key for version in found for key in files_of[version]}
    return [version for version in files_of if version in found or hiding[version] & held]
