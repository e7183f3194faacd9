"""The mark at a data root that a project is leaving it, or arriving there.

One small document in each of the two places of a migration. The mark at the old place stays for ever, as a signpost: a
table's log says which migration took it away (`MOVED_DOMAIN`), and the log is copied, so it says so at both places;
only at the old place does the mark of that migration lie beside it.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import orjson

from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.errors import GovernanceError, InvalidInput, ProjectMoved
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, read_if_any, update_document

MARK_KEY = ".metadata/migration.json"
"""Where the mark lies, below a project's data folder."""

MOVED_DOMAIN = "dagster_versioned.moved"
"""The metadata domain by which a table's log says that a migration took the table away: ``{id, to}``."""

MOVE, STAY = "MOVE", "STAY"
"""The operations of the commits that end a log, and that say that it goes on after all."""

MarkState = Literal["leaving", "arriving"]


@dataclass(frozen=True)
class MigrationMark:
    """A migration as one of its two places knows it; ``since`` is RFC 3339, UTC."""

    id: str
    state: MarkState
    source: Location
    target: Location
    since: str

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return encode(
            {
                "schema_version": 1,
                "id": self.id,
                "state": self.state,
                "from": self.source.to_json(),
                "to": self.target.to_json(),
                "since": self.since,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Parse a stored mark. Raises `GovernanceError`: a mark that cannot be read stops writes all the same."""
        try:
            raw = cast("dict[str, Any]", orjson.loads(data))
            state, texts = raw["state"], (raw["id"], raw["since"])
            if state not in ("leaving", "arriving") or not all(isinstance(text, str) for text in texts):
                raise ValueError("a member is not what it must be")
            return cls(raw["id"], state, Location.from_json(raw["from"]), Location.from_json(raw["to"]), raw["since"])
        except (ValueError, KeyError, TypeError, InvalidInput) as error:
            raise GovernanceError(
                f"{MARK_KEY} at {where} cannot be read ({type(error).__name__}). Nothing was written: it says whether "
                "the project is being moved. Compare it with the registry (`dagster-versioned gov status`), and delete "
                "it only if no migration of this project was begun."
            ) from error


def read_mark(data: ObjectStore) -> MigrationMark | None:
    """The mark of a project's data folder, or ``None``. Raises `GovernanceError` where it cannot be read."""
    stored = read_if_any(data, MARK_KEY)
    return None if stored is None else MigrationMark.from_bytes(stored, data.uri)


def put_mark(data: ObjectStore, mark: MigrationMark) -> None:
    """Put a mark, or find it there; one of an earlier migration is replaced.

    Raises `GovernanceError` where another migration is arriving here, or where this one has the other end here.
    """

    def change(old: bytes | None) -> bytes | None:
        if old is None:
            return mark.to_bytes()
        known = MigrationMark.from_bytes(old, data.uri)
        if (known.id, known.state) == (mark.id, mark.state):
            return None
        if known.id == mark.id or known.state == "arriving":
            raise GovernanceError(
                f"{data.uri} is the {'source' if known.state == 'leaving' else 'target'} of the migration {known.id}. "
                "Nothing was changed. End that one first: run it again, or abort it."
            )
        return mark.to_bytes()

    update_document(data, MARK_KEY, change)


def clear_mark(data: ObjectStore, migration_id: str) -> bool:
    """Delete the mark of one migration; returns whether it was there."""
    mark = read_mark(data)
    if mark is None or mark.id != migration_id:
        return False
    data.delete([MARK_KEY])
    return True


def migration_of(snapshot: Snapshot) -> str | None:
    """The id of the last migration that a table's log names, or ``None``."""
    configuration = snapshot.domains.get(MOVED_DOMAIN)
    if configuration is None:
        return None
    try:
        return str(orjson.loads(configuration)["id"])
    except (ValueError, KeyError, TypeError):
        return configuration  # no mark has this id, so it stops nobody


def moved(where: str, mark: MigrationMark) -> ProjectMoved:
    """The error of who wanted to write at a marked place."""
    if mark.state == "leaving":
        return ProjectMoved(
            f"The project is being moved, or was moved, from {where} to {mark.target.uri} (migration {mark.id}, since "
            f"{mark.since}). Nothing was committed here. Open it where it is now: `dagster-versioned gov status` says "
            "where, and whether the migration is done."
        )
    return ProjectMoved(
        f"The migration {mark.id} from {mark.source.uri} has not finished arriving at {where}. Nothing was committed "
        "here. Open the project through its governance, or finish the migration: `dagster-versioned gov migrate`."
    )
