"""The document of an export: which environment's tables are at a place, each as of which commit; FORMAT, "Exports"."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dagster_versioned.errors import AccessDenied, IntegrityError, InvalidInput, InvalidName, LogCorrupt, ObjectNotFound
from dagster_versioned.identity.names import DATA_FOLDER, TableName, table_name
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, parse_object, read_if_any
from dagster_versioned.tables.documents.manifest import MANIFEST_KEY
from dagster_versioned.tables.documents.tag import TaggedTable, parse_tables, tables_json

EXPORT_KEY = ".metadata/export.json"
"""Where it lies, below the data folder of the project that was made by the export."""


@dataclass(frozen=True)
class Export:
    """What an export puts at a place: the ``tables``, as of one moment; ``left_out`` are the environment's other ones.

    ``is_complete`` once all of them are there.
    """

    project: str
    environment: str
    generation: str
    created: str
    by: str | None
    tables: Mapping[TableName, TaggedTable]
    left_out: tuple[TableName, ...]
    is_complete: bool = False

    @property
    def at(self) -> datetime:
        """When it began, UTC."""
        return datetime.fromisoformat(self.created).astimezone(UTC)

    @property
    def absent(self) -> tuple[TableName, ...]:
        """The environment's tables that need not be there."""
        return self.left_out if self.is_complete else (*self.left_out, *self.tables)

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return encode(
            {
                "schema_version": 1,
                "project": self.project,
                "environment": self.environment,
                "generation": self.generation,
                "created": self.created,
                "by": self.by,
                "tables": tables_json(self.tables),
                "left_out": [str(name) for name in self.left_out],
                "complete": self.is_complete,
            }
        )


def read_export(data: ObjectStore) -> Export | None:
    """The document of the export that made a project, by its data folder; ``None`` where none did.

    Raises `IntegrityError` where it cannot be read.
    """
    if (stored := read_if_any(data, EXPORT_KEY)) is None:
        return None
    try:
        raw = parse_object(stored, EXPORT_KEY, "export")
        export = Export(
            raw.text("project"),
            raw.text("environment"),
            raw.text("generation"),
            raw.text("created"),
            raw.optional_text("by"),
            parse_tables(raw),
            tuple(table_name(text) for text in raw.texts("left_out")),
            raw.flag("complete"),
        )
        if raw.integer("schema_version") != 1 or datetime.fromisoformat(export.created).tzinfo is None:
            raise ValueError("its schema_version is not 1, or its time has no zone")
    except (ValueError, LogCorrupt, InvalidName) as error:
        raise IntegrityError(
            f"{EXPORT_KEY} in {data.uri} cannot be read ({error}). Nothing was changed. Export to an empty place."
        ) from error
    return export


def refuse_inside_project(
    location: Location, open_store: Callable[[Location], ObjectStore], also: Iterable[str] = ()
) -> None:
    """Refuse a place inside of a project, by its manifest or one of the keys ``also``. Raises `InvalidInput`."""
    for outer in _around(location):
        store = open_store(outer)
        for key in (f"{DATA_FOLDER}/{MANIFEST_KEY}", *also):
            try:
                store.head(key)
            except (ObjectNotFound, AccessDenied):  # whoever may write below need not see what is above
                continue
            raise InvalidInput(
                f"{location.bare_uri} lies inside of {outer.bare_uri}, where a project is. Nothing was written. Name "
                "an empty place that is outside of every project."
            )


def _around(location: Location) -> Iterator[Location]:
    """The places that a place lies in, the nearest first."""
    if location.type == "local":
        path = Path(location.root, location.prefix).resolve()
        yield from (Location(type="local", root=str(folder)) for folder in path.parents)
        return
    folders = location.prefix.split("/")[:-1]
    for depth in range(len(folders) - 1, -1, -1):
        yield location.model_copy(update={"prefix": "".join(f"{folder}/" for folder in folders[:depth])})
