"""What a table is, besides its versions: the record that its log keeps in one domain (FORMAT.md, What a table is).

What its partitions are, whether it was dropped, what it was called before, and since when all that is so. A write that
began before is one to another table than it set out for, so it is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, cast

import orjson

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.state import TableState

TABLE_DOMAIN = "dagster_versioned.table"
"""The metadata domain that holds the record."""


@dataclass(frozen=True)
class DropRecord:
    """Who dropped the table, when (RFC 3339, UTC) and why."""

    at: str
    by: str | None
    why: str | None

    def __str__(self) -> str:
        return f"was dropped{f' by {self.by}' if self.by else ''} at {self.at}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class RenameRecord:
    """The last rename of a table: from and to which name, and the asset that it belongs to since.

    The log is copied with it. So where ``target`` names the folder the table has arrived, and elsewhere it left.
    """

    source: str
    target: str
    asset_key: tuple[str, ...]
    at: str
    by: str | None

    def to_json(self) -> dict[str, Any]:
        """As the record has it."""
        key = list(self.asset_key)
        return {"from": self.source, "to": self.target, "asset_key": key, "at": self.at, "by": self.by}

    def __str__(self) -> str:
        return f"was renamed to {self.target}{f' by {self.by}' if self.by else ''} at {self.at}"


@dataclass(frozen=True)
class TableRecord:
    """What a log says of its table. ``since`` is the log version of the last commit that made another table of it.

    ``former`` are the names that lineage may still give it: projects and tables.
    """

    partitioning: Partitioning | None = None
    since: int = 0
    dropped: DropRecord | None = None
    renamed: RenameRecord | None = None
    former: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """The record in a table's log; the default where there is none, or none in a form that is known."""
        text = snapshot.domains.get(TABLE_DOMAIN)
        if text is None:
            return cls()
        try:
            raw: object = orjson.loads(text)
        except ValueError:
            raw = None
        members: Mapping[str, Any] = cast("Mapping[str, Any]", raw) if isinstance(raw, Mapping) else {}
        since = members.get("since")
        return cls(
            Partitioning.parse(members.get("partitions")),
            since if isinstance(since, int) else 0,
            _dropped(members.get("dropped")),
            _renamed(members.get("renamed")),
            parse_former(members.get("former")),
        )

    def to_json(self) -> dict[str, Any]:
        """Without what is as by default."""
        members: dict[str, Any] = {
            "partitions": self.partitioning and self.partitioning.to_json(),
            "since": self.since,
            "dropped": self.dropped and asdict(self.dropped),
            "renamed": self.renamed and self.renamed.to_json(),
            "former": [list(name) for name in self.former],
        }
        return {name: value for name, value in members.items() if value}

    def actions(self, before: "TableRecord") -> list[DomainMetadata]:
        """What a commit says to make this the record; nothing where it is."""
        if self.to_json() == before.to_json():
            return []
        return [DomainMetadata(TABLE_DOMAIN, encode(self.to_json()).decode(), False)]

    def left_for(self, table: str) -> str | None:
        """The name that the table of this name was given; ``None`` where it has it still."""
        return self.renamed.target if self.renamed is not None and self.renamed.target != table else None

    def with_partitioning(self, partitioning: Partitioning | None) -> Self:
        """The record of a table that has these partitions and is there; those that are known, where none are given."""
        return replace(self, partitioning=partitioning or self.partitioning, dropped=None)


def _dropped(raw: object) -> DropRecord | None:
    if not isinstance(raw, Mapping):
        return None
    texts = {name: text for name, text in cast("Mapping[str, Any]", raw).items() if isinstance(text, str)}
    return DropRecord(texts.get("at") or "an unknown time", texts.get("by"), texts.get("why"))


def _renamed(raw: object) -> RenameRecord | None:
    if not isinstance(raw, Mapping):
        return None
    members = cast("Mapping[str, Any]", raw)
    match [members.get(name) for name in ("from", "to", "at", "by")]:
        case [str(source), str(target), str(at), by] if isinstance(members.get("asset_key"), list):
            return RenameRecord(source, target, tuple(map(str, members["asset_key"])), at, str(by) if by else None)
        case _:
            return None


def parse_former(raw: object) -> tuple[tuple[str, str], ...]:
    """Former names as JSON has them; those that are in no known form are passed over."""
    found: list[tuple[str, str]] = []
    for entry in cast("list[object]", raw) if isinstance(raw, list) else ():
        match entry:
            case [str(project), str(table)]:
                found.append((project, table))
            case _:
                continue
    return tuple(found)


def asset_key_of(state: TableState) -> tuple[str, ...] | None:
    """The asset that a table belongs to, by its last rename or else by its versions; ``None`` before the first."""
    renamed = TableRecord.of(state.snapshot).renamed
    return renamed.asset_key if renamed is not None and state.history.heads else state.history.asset_key
