"""The current versions of a feature's samples, by partition."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.feature_record import FEATURE_MEMBER, FeatureRecord, digests_together
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable


@dataclass(frozen=True)
class SampleHead:
    """A current version of samples, and what it records of them."""

    table: VersionedTable
    version: Version
    record: FeatureRecord

    @property
    def files(self) -> UpstreamFiles:
        """Its exact files."""
        files = self.table.files(self.version.metadata_sha, partition=self.version.partition)
        return UpstreamFiles(self.table, files)

    def digests(self, rows: pa.Table) -> dict[str, str]:
        """By field, the digest of rows with the ids and data versions of samples."""
        return self.record.digests_of(rows)

    def update(
        self,
        frame: pa.Table,
        gone: pa.Table | None,
        base: Version | None,
        added: Iterable[dict[str, str]],
        removed: Iterable[dict[str, str]] = (),
        **changes: Any,
    ) -> SampleUpdate:
        """Rows for this version's samples, matched by their ids, onto a ``base``; see `SampleUpdate`.

        What it records is this version's record with the ``changes`` and the sum of field digests.
        """
        digests = digests_together(list(added), list(removed))
        assert digests is not None  # all are of the same fields
        record = replace(self.record, digests=digests, **changes)
        sha = None if base is None else base.metadata_sha
        return SampleUpdate(frame, gone, record.ids, record.ids, sha, {FEATURE_MEMBER: record.to_json()})


def sample_heads(table: VersionedTable) -> dict[str | None, SampleHead]:
    """The current versions of a table that are a feature's samples, by partition."""
    heads = table.state.history.heads if table.exists() else {}
    records = {
        partition: FeatureRecord.of(version.identity.custom)
        for partition, version in heads.items()
        if not version.is_foreign
    }
    return {
        partition: SampleHead(table, heads[partition], record)
        for partition, record in records.items()
        if record is not None
    }
