"""The exact files that a feature is computed from, and in which of them two versions differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.scan import ScanFile
from dagster_versioned.errors import ExpiredVersion, VersionNotFound
from dagster_versioned.tables.feature_record import FeatureRecord, digests_together
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.table import VersionedTable


@dataclass(frozen=True)
class UpstreamFiles:
    """The exact files of a table that a feature is computed from; none of them is read yet."""

    table: VersionedTable
    files: VersionFiles

    @property
    def schema(self) -> StructType:
        """The columns of the files."""
        return self.files.scan.schema

    def read(self, frame_type: type, columns: Sequence[str] | None = None) -> Any:
        """The rows as a frame."""
        scan = self.files.scan if columns is None else replace(self.files.scan, columns=tuple(columns))
        return self.table.read_files(replace(self.files, scan=scan), frame_type)

    def of(self, partitions: Iterable[str]) -> "UpstreamFiles":
        """The same version of some of the partitions; of those that it has."""
        known = {version.partition for version in self.files.versions}
        wanted = sorted(key for key in partitions if key in known)
        if not wanted:
            return self.of_none()
        return UpstreamFiles(self.table, self.table.files(self.files.log_version, partitions=wanted))

    def of_none(self) -> "UpstreamFiles":
        """None of the files, of the same columns."""
        return replace(self, files=self.files.of_no_partition())

    def before(self, head: Version) -> "UpstreamFiles | None":
        """The files of the version that a head was computed from; ``None`` where it is not one, or they are gone."""
        if len(self.files.versions) != 1:
            return None
        partition = self.files.versions[0].partition
        place = (self.table.project.name, str(self.table.name), partition)
        found = [
            parent.version
            for parent in head.identity.parents
            if (parent.source, parent.table, parent.partition) == place
        ]
        if len(found) != 1:
            return None
        try:
            return replace(self, files=self.table.files(found[0], partition=partition))
        except (ExpiredVersion, VersionNotFound):
            return None

    def without(self, other: "UpstreamFiles") -> "UpstreamFiles":
        """The files that another version has not, and of those whose rows it deleted the deleted rows alone."""
        known = {(file.key, file.sha256): file for file in other.files.scan.files}
        found: list[tuple[ScanFile, Add]] = []
        for file, add in zip(self.files.scan.files, self.files.adds, strict=True):
            same = known.get((file.key, file.sha256))
            if same is None:
                found.append((file, add))
            elif same.deletion_vector is not None and same.deletion_vector != file.deletion_vector:
                found.append((replace(file, kept=same.deletion_vector), add))
        scan = replace(self.files.scan, files=tuple(file for file, _ in found))
        return replace(self, files=replace(self.files, scan=scan, adds=tuple(add for _, add in found)))

    def digests(self) -> dict[str, str] | None:
        """The field digests of the rows; ``None`` where a version does not record them."""
        records = [
            None if version.is_foreign else FeatureRecord.of(version.identity.custom) for version in self.files.versions
        ]
        known = [record.digests for record in records if record is not None]
        return digests_together(known) if known and len(known) == len(records) else None
