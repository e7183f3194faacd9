"""What a table is, besides its versions: the record that its log keeps in one domain (FORMAT.md, What a table is).

What its partitions are, whether it was dropped, what it was called before, and since when all that is so. A write that
began before is one to another table than it set out for, so it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import orjson

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.delta.snapshot import Snapshot
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.partitioning import Partitioning

TABLE_DOMAIN = "dagster_versioned.table"
"""The metadata domain that holds the record."""


@dataclass(frozen=True)
class Dropped:
    """Who dropped the table, when (RFC 3339, UTC) and why."""

    at: str
    by: str | None
    why: str | None

    def __str__(self) -> str:
        return f"was dropped{f' by {self.by}' if self.by else ''} at {self.at}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class TableRecord:
    """What a log says of its table. ``since`` is the log version of the last commit that made another table of it."""

    partitioning: Partitioning | None = None
    since: int = 0
    dropped: Dropped | None = None

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
        since, dropped = members.get("since"), members.get("dropped")
        return cls(
            Partitioning.parse(members.get("partitions")),
            since if isinstance(since, int) else 0,
            _dropped(cast("Mapping[str, Any]", dropped)) if isinstance(dropped, Mapping) else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Without what is as by default."""
        dropped = self.dropped
        return {
            **({"partitions": self.partitioning.to_json()} if self.partitioning else {}),
            **({"since": self.since} if self.since else {}),
            **({"dropped": {"at": dropped.at, "by": dropped.by, "why": dropped.why}} if dropped else {}),
        }

    def actions(self, before: "TableRecord") -> list[DomainMetadata]:
        """What a commit says to make this the record; nothing where it is."""
        if self.to_json() == before.to_json():
            return []
        return [DomainMetadata(TABLE_DOMAIN, encode(self.to_json()).decode(), False)]

    def with_partitioning(self, partitioning: Partitioning | None) -> Self:
        """The record of a table that has these partitions and is there; those that are known, where none are given."""
        return replace(self, partitioning=partitioning or self.partitioning, dropped=None)


def _dropped(raw: Mapping[str, Any]) -> Dropped:
    def text(name: str) -> str | None:
        value = raw.get(name)
        return value if isinstance(value, str) else None

    return Dropped(text("at") or "an unknown time", text("by"), text("why"))
