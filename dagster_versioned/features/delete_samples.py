"""Deletion of samples by a filter: out of the current version, or out of every version for good."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.engines.sql import Names
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.arrow.sample_rows import ARROW_ROWS
from dagster_versioned.features.arrow.samples import matching
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.sample_heads import SampleHead, sample_heads
from dagster_versioned.projects.erase import Condition, UnknownKey
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.upstream import Upstream


@dataclass(frozen=True, slots=True)
class DeletedSamples:
    """What was deleted, or (dry run) would be: ``rows`` of ``of`` that the current version had; if for good, those of
    all partitions.

    ``version`` is the one without them, of the partition that was named; ``versions`` counts those that had any of
    them, 0 of a soft deletion.
    """

    rows: int
    of: int
    version: Version | None = None
    versions: int = 0


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

    Earlier versions keep them, unless ``hard``: then a sample that satisfies it in any version is erased by its ids
    from all of them, however it reads elsewhere and in whatever partition (`projects.erase`), which needs ``why``.
    Samples that still come from an upstream are new to the feature, and are computed by its next run. Raises
    `InvalidInput` where all samples would go and ``everything`` does not say so, for a table that is no feature's or
    that another program changed last, and a condition that cannot be evaluated, and what `VersionedTable.write` and
    `erase` do.
    """
    key = key_text(feature)
    table = project.table(key.split("/"))
    head = _head(table, key, partition)
    loss = _Loss.of_condition(head, where)
    loss.refuse_everything(key, where, confirmed=everything)
    if not hard:
        version = None if dry_run else loss.write(why) if loss.gone.num_rows else head.version
        return DeletedSamples(loss.gone.num_rows, loss.of, version)
    if not (why or "").strip():
        raise InvalidInput("A hard deletion needs a reason, which the log keeps: why='…'. Nothing was deleted.")
    of = sum(each.identity.nrow for each in table.state.history.heads.values())
    # Of a version that lacks a column of the condition nobody knows; the ids that others have go from it, too.
    meant = Condition(where or "true", key=head.record.ids, partition=partition, skip_lacking=True)
    erase = partial(project.erase, meant, [str(table.name)], why=why or "", all_rows=True)
    try:
        erased = erase(dry_run=True).tables[0]
    except UnknownKey:
        return DeletedSamples(0, of, None if dry_run else head.version)
    if erased.current_rows == of and not everything:
        loss.refuse_all(key, where)
    if not dry_run:
        erase(dry_run=False)
    version = None if dry_run else table.version(partition=partition)
    return DeletedSamples(erased.current_rows, of, version, erased.versions)


def _head(table: VersionedTable, key: str, partition: str | None) -> SampleHead:
    """The current version of a partition's samples. Raises `InvalidInput`."""
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
    return heads[partition]


@dataclass(frozen=True)
class _Loss:
    """What a current version loses: of its ``of`` samples those that are ``gone``, with ids and versions."""

    head: SampleHead
    schema: StructType
    gone: pa.Table
    of: int

    @classmethod
    def of_condition(cls, head: SampleHead, where: str | None) -> "_Loss":
        """The samples that a condition is true of; of none, all. Raises `InvalidInput`."""
        files = head.files
        columns: Sequence[str] = [*head.record.ids, DATA_VERSION_BY_FIELD]
        if missing := {*head.record.ids} - {field.name for field in files.schema.fields}:
            raise InvalidInput(f"There are no columns {sorted(missing)} in {files.table.name}. Nothing was deleted.")
        read = frozenset[str]() if where is None else Names({"stored": files.schema}).resolve(where).of("stored")
        rows: pa.Table = files.read(pa.Table, list(dict.fromkeys([*columns, *read])))
        gone = rows if where is None else rows.filter(pa.array(matching(rows, where)))
        return cls(head, files.schema, gone.select(columns), rows.num_rows)

    def refuse_everything(self, key: str, where: str | None, *, confirmed: bool) -> None:
        """Raise `InvalidInput` where all samples would go, unless that was ``confirmed``."""
        if self.gone.num_rows == self.of and self.of and not confirmed:
            self.refuse_all(key, where)

    def refuse_all(self, key: str, where: str | None) -> NoReturn:
        """Raise `InvalidInput`, since all samples would go."""
        which = "The condition is true of" if where else "Without a condition,"
        raise InvalidInput(
            f"{which} all {self.of} samples of feature {key!r}"
            f"{'' if where else ' would go'}. Nothing was deleted. Narrow the condition, or confirm that everything is "
            "meant (everything=True, on the command line --yes)."
        )

    def write(self, why: str | None) -> Version:
        """Commit the version without them."""
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
        written = self.head.table.write(
            update, partition=before.partition, parents=parents, code_version=code, message=why
        )
        return written.version
