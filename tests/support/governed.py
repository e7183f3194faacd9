"""A governed project, what it is made of, and what must be the same of it at any place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from dagster_versioned.governance.connect import Governance
from dagster_versioned.governance.migrate import MigrationReport, migrate
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location, ObjectStore, S3Store
from dagster_versioned.tables.history import Version
from support.frames import numbered
from support.s3_server import S3Server

NAME = "STUDY"
WHO = "Ada <ada@example.org>"


@dataclass
class Opener:
    """Opens stores at locations: of S3 servers with their keys. ``around`` may wrap what it opened."""

    servers: Mapping[str, S3Server] = field(default_factory=dict)
    around: Callable[[Location, ObjectStore], ObjectStore] = lambda location, store: store

    def __call__(self, location: Location) -> ObjectStore:
        if location.type == "local":
            return self.around(location, LocalStore(Path(location.root, location.prefix)))
        server = self.servers[location.endpoint_url or ""]
        return self.around(location, S3Store(location, credentials=server.credentials))


@dataclass
class Governed:
    """A registered project in a registry of its own."""

    registry: Registry
    mirror: GovernanceStore
    open: Opener
    home: Location

    @classmethod
    def begin(cls, registry: Registry, mirror: GovernanceStore, home: Location, opener: Opener) -> "Governed":
        registry.register(NAME, home, actor=WHO)
        mirror.publish(registry)
        return cls(registry, mirror, opener, home)

    def at(self, location: Location) -> Project:
        """The project at a place, without governance."""
        return Project(NAME, self.open(location), author=WHO)

    def by_developer(self) -> Project:
        """The project as a developer opens it, with the clone as it is."""
        return self._by(Governance(self.mirror.store, role="developer", registry=self.registry))

    def by_reader(self) -> Project:
        """The project as a reader opens it, without a clone."""
        return self._by(Governance(self.mirror.store))

    def move(self, target: Location, **options: Any) -> MigrationReport:
        return migrate(self.registry, self.mirror, NAME, target, **{"open_store": self.open, "actor": WHO, **options})

    def _by(self, governance: Governance) -> Project:
        server = next(iter(self.open.servers.values()), None)
        return governance.project(NAME, author=WHO, credentials=server.credentials if server else None)


def fill(project: Project) -> None:
    """Two tables with versions of every kind, and a pin."""
    flights, delays = project.table("flights"), project.table("delays")
    for size in (4, 5, 6):
        flights.write(numbered(size), message=f"{size} rows")
    flights.write(numbered(6), code_version="2")
    flights.revert(0)
    project.pin("filed", "flights", flights.history()[2].metadata_sha, why="regulator")
    delays.write_partitions({"a": numbered(2), "b": numbered(3)}, parents=flights.upstream())
    delays.write(numbered(9), partition="b")


def fill_a_little(project: Project) -> None:
    """Two tables, of one version and of two, and a pin: where every request takes its time."""
    flights = project.table("flights")
    for size in (4, 6):
        flights.write(numbered(size))
    project.pin("filed", "flights", flights.history()[1].metadata_sha)
    project.table("delays").write(numbered(2), partition="a", parents=flights.upstream())


def facts(project: Project) -> dict[str, Any]:
    """All that a move must not change: every version with its identity, facts and rows, and the pins."""
    tables = [project.table(str(name)) for name in project.tables()]
    return {
        "pins": project.pins(),
        "tables": {str(table.name): [_version(table, version) for version in table.history()] for table in tables},
    }


def chain(project: Project, table: str) -> list[tuple[int, str, str | None]]:
    """Of every commit its log version, its SHA-256, and the SHA-256 that it names as the one before it."""
    _, commits = project.table(table).replay()
    return [
        (commit.version, commit.sha256, (commit.commit_info or {}).get("dagsterVersioned", {}).get("prev"))
        for commit in commits
    ]


def _version(table: Any, version: Version) -> tuple[Any, ...]:
    rows: pa.Table | None = None
    if version.gone is None:
        rows = table.read(f"@{version.log_version}", partition=version.partition)
    entry = orjson.dumps(version.raw, option=orjson.OPT_SORT_KEYS)
    shas = (version.metadata_sha, version.data_sha)
    return (
        version.log_version,
        version.partition,
        *shas,
        version.change,
        version.gone,
        entry,
        rows and rows.to_pylist(),
    )
