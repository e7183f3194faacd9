"""The exact files that a feature is computed from, and in which of them two versions differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.scan import ScanFile
from dagster_versioned.errors import ExpiredVersion, InvalidInput, VersionNotFound
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import FeatureGraph, FeatureVersions
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.feature_record import FeatureRecord, digests_together
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.table import VersionedTable


@dataclass(frozen=True)
class UpstreamFiles:
    """The exact files of a table that a feature is computed from; none of them is read yet."""

    table: VersionedTable
    files: VersionFiles

    @classmethod
    def current(cls, table: VersionedTable) -> "UpstreamFiles | None":
        """Those of a table as it is now; ``None`` where it was never written."""
        return UpstreamFiles(table, table.files()) if table.exists() and table.state.history.heads else None

    @property
    def schema(self) -> StructType:
        """The columns of the files."""
        return self.files.scan.schema

    def read(self, frame_type: type, columns: Sequence[str] | None = None) -> Any:
        """The rows as a frame."""
        scan = self.files.scan if columns is None else replace(self.files.scan, columns=tuple(columns))
        return self.table.read_files(replace(self.files, scan=scan), frame_type)

    def require_definition(self, graph: FeatureGraph, key: str) -> None:
        """Raise `InvalidInput` where a feature of another project was computed by other definitions than the graph's.

        Those of the project itself may be: its own tables follow its definitions.
        """
        feature = graph[key]
        if feature.project is None:
            return
        wanted = graph.versions(key)
        for version in self.files.versions:
            record = None if version.is_foreign else FeatureRecord.of(version.identity.custom)
            if record is None and not feature.deps:
                continue  # an ordinary table, whose definition names columns
            what = "is no feature's" if record is None else _difference(record, feature, wanted, graph.hash_length)
            if what is None:
                continue
            raise InvalidInput(
                f"Feature {key!r} of project {feature.project} in version {version.short} {what}. Nothing was computed "
                "or written. Lock it again with `dagster-versioned graph lock` and deploy; or, where the lock has what "
                "was pushed last, wait until that project has computed it."
            )

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


def _difference(record: FeatureRecord, feature: Feature, wanted: FeatureVersions, length: int) -> str | None:
    """By what a version was computed that is not as the locked definition has it; ``None`` where all is."""
    if record.ids != feature.id_columns:
        return f"has the id columns {list(record.ids)}, and the locked definition {list(feature.id_columns)}"
    stored = {name: static for name, (static, _) in record.fields.items()}
    different = sorted(name for name in {*stored, *wanted.fields} if stored.get(name) != wanted.fields.get(name))
    if not different:
        return None
    pairs = ", ".join(f"{name} {stored.get(name)} instead of {wanted.fields.get(name)}" for name in different)
    what = f"was computed by other definitions than the locked {wanted.feature}: {pairs}"
    lengths = {len(static) for static in stored.values()} - {length}
    return f"{what} (state version_length={min(lengths)}, which is theirs)" if lengths else what


def table_of(feature: Feature, project: Project, others: Iterable[Project]) -> VersionedTable:
    """The table of a feature of a graph: in the project, or in that of the ``others`` that computes it.

    Raises `InvalidInput` where that one is not among them.
    """
    if is_own(feature, project):
        return project.table(feature.key.split("/"))
    known = list(others)
    for other in known:
        if other.name == feature.project:
            return other.table(feature.key.split("/"))
    raise InvalidInput(
        f"Feature {feature.key!r} is of project {feature.project}, which is not among the upstream projects "
        f"{[other.name for other in known]}. Nothing was computed or written. Give it: "
        f"upstreams=[Project.open({feature.project!r}, …)], on the command line --upstream LOCATION or --governance."
    )


def is_own(feature: Feature, project: Project) -> bool:
    """Whether a project computes a feature itself."""
    return feature.project in (None, project.name)
