"""The document of a project's open promotion: what is about to become production's; FORMAT, "Promotion"."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal, Self, cast, get_args

import orjson

from dagster_versioned.delta.actions import Members
from dagster_versioned.errors import IntegrityError, InvalidInput, InvalidName, LogCorrupt, ObjectNotFound
from dagster_versioned.identity.names import TableName, check_environment_name, check_partition_key, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode

PROMOTION_KEY = ".metadata/promotion.json"
"""Where it lies, below a project's data folder: not where those may write who may only write in environments."""

LIVES = timedelta(hours=1)
"""How long after its last renewal an open promotion is waited for."""

State = Literal["open", "ended", "abandoned"]

_SHA = re.compile(r"[0-9a-f]{64}")
_GENERATION = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class OpenPromotion:
    """The promotion that a project has open, or had last: of which environment, and its versions by their cells.

    ``opened`` and ``renewed`` (when it was changed last) are RFC 3339, UTC. ``cells`` has the ``metadata_sha`` of each
    version that is promoted, by table and partition.
    """

    environment: str
    generation: str
    state: State
    opened: str
    renewed: str
    by: str | None
    cells: Mapping[TableName, Mapping[str | None, str]]

    @cached_property
    def renewed_at(self) -> datetime:
        """When it was changed last, UTC."""
        return datetime.fromisoformat(self.renewed)

    @property
    def is_recent(self) -> bool:
        """Whether it was changed within the last hour; what a clock says will be in more than one does not count."""
        return abs(datetime.now(UTC) - self.renewed_at) < LIVES

    @property
    def is_living(self) -> bool:
        """Whether it is open, and somebody may be at it."""
        return self.state == "open" and self.is_recent

    def covers(self, table: TableName, partition: str | None) -> bool:
        """Whether it promotes a version of a partition; with ``None``, of the table or any of its partitions."""
        cells = self.cells.get(table, {})
        return bool(cells) and (partition is None or partition in cells or None in cells)

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return encode(
            {
                "schema_version": 1,
                "environment": self.environment,
                "generation": self.generation,
                "state": self.state,
                "opened": self.opened,
                "renewed": self.renewed,
                "by": self.by,
                "cells": {
                    str(table): {partition or "": sha for partition, sha in cells.items()}
                    for table, cells in self.cells.items()
                },
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, uri: str) -> Self:
        """Parse what is stored in a data folder. Raises `IntegrityError` where it is none."""
        try:
            raw = Members({"promotion": orjson.loads(data)}, PROMOTION_KEY).members("promotion")
            tables = raw.members("cells")
            promotion = cls(
                check_environment_name(raw.text("environment")),
                raw.text("generation"),
                cast("State", raw.text("state")),
                raw.text("opened"),
                raw.text("renewed"),
                raw.optional_text("by"),
                {table_name(name): _cells(tables.members(name)) for name in tables.value},
            )
            times = promotion.renewed_at, datetime.fromisoformat(promotion.opened)
            if raw.integer("schema_version") != 1 or promotion.state not in get_args(State):
                raise ValueError("its schema_version is not 1, or its state is unknown")
            if not _GENERATION.fullmatch(promotion.generation) or any(
                time.utcoffset() != timedelta(0) for time in times
            ):
                raise ValueError("its generation is not one, or its times are not UTC")
        except (ValueError, LogCorrupt, InvalidName) as error:
            raise IntegrityError(
                f"The open promotion {PROMOTION_KEY} of {uri} cannot be read ({error}). Nothing was promoted, and no "
                "sensor waits for it. Take it away with `dagster-versioned promote NAME --abandon --apply`."
            ) from error
        return promotion


def read_promotion(data: ObjectStore) -> OpenPromotion | None:
    """What is stored below a project's data folder. Raises `IntegrityError` where it cannot be read."""
    try:
        return OpenPromotion.from_bytes(data.get(PROMOTION_KEY), data.uri)
    except ObjectNotFound:
        return None


def refuse_open_promotion(data: ObjectStore, name: str, what: str) -> None:
    """Raise `InvalidInput` where a promotion of an environment is open, of whatever age, before that is ``what``."""
    found = read_promotion(data)
    if found is not None and found.state == "open" and found.environment == name:
        raise InvalidInput(
            f"A promotion of {name} is open since {found.opened} (renewed {found.renewed}). Nothing was {what}. Let "
            f"it end, or end it as far as it is: `dagster-versioned promote {name} --abandon --apply`."
        )


def _cells(raw: Members) -> dict[str | None, str]:
    cells: dict[str | None, str] = {}
    for partition in raw.value:
        sha = raw.text(partition)
        if not _SHA.fullmatch(sha):
            raise ValueError(f"the version {sha!r:.100} is no full metadata_sha")
        cells[check_partition_key(partition) if partition else None] = sha
    return cells
