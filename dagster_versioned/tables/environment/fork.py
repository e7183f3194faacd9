"""A fork: where each log of a project stood when an environment began, and what is seen of the project there."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Self

import orjson

from dagster_versioned.delta.actions import Members
from dagster_versioned.errors import IntegrityError, InvalidName, LogCorrupt
from dagster_versioned.identity.names import TableName, check_environment_name, check_project_name, table_name
from dagster_versioned.storage.overlay import Owner
from dagster_versioned.tables.document import encode, parse_object
from dagster_versioned.tables.documents.head import HeadDocument, head_key
from dagster_versioned.tables.documents.tag import TaggedTable, commit_sha256_in
from dagster_versioned.tables.environment.table_fork import TableFork

_GENERATION = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class ForkedTable(TaggedTable):
    """A table at the fork, with its head then."""

    head: HeadDocument


@dataclass(frozen=True)
class Fork:
    """The tables of a project at one moment, as an environment's stores see them; see `storage.overlay.Fork`.

    Of the base's metadata there are the heads, as they were, and the pins. ``created`` is RFC 3339, UTC.
    """

    environment: str
    generation: str
    project: str
    created: str
    by: str | None
    tables: Mapping[TableName, ForkedTable]
    pins: bytes | None = None

    @property
    def at(self) -> datetime:
        """The moment of the fork, UTC."""
        return datetime.fromisoformat(self.created)

    @property
    def path(self) -> str:
        """Where the environment's own bytes lie, below the base's root; another one each time it is made anew."""
        return f"environments/files/{self.environment}/{self.generation}"

    @property
    def heads(self) -> dict[TableName, HeadDocument]:
        """The head of each table at the fork."""
        return {name: table.head for name, table in self.tables.items()}

    def owner(self, key: str) -> Owner:
        """Who holds what is under a key below the project's data folder."""
        return self.within(key).owner(key)

    def document(self, key: str) -> bytes | None:
        """The head of a table as it was, or the pins."""
        found = self._documents.get(key)
        return found.to_bytes() if isinstance(found, HeadDocument) else found

    def documents(self, prefix: str) -> Iterator[str]:
        """The keys of the heads and the pins that begin with a prefix, sorted."""
        for key in self._keys[bisect_left(self._keys, prefix) :]:
            if not key.startswith(prefix):
                return
            yield key

    def listed(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The logs of the forked tables and their indexes, each up to the fork."""
        forked = [self.within(prefix)] if "/" in prefix else map(self.within, self._in_order)
        for table in forked:
            yield from table.listed(prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """The forked tables, at the root; what is below a table is asked for by name."""
        return iter(sorted(self.tables)) if not prefix else iter(())

    def within(self, folder: str) -> TableFork:
        """The fork of the one table that a folder belongs to, so that a store of a table carries no more."""
        name = folder.partition("/")[0]
        return TableFork(name, self._log_versions.get(name, -1), self.created)

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return encode(
            {
                "schema_version": 1,
                "environment": self.environment,
                "generation": self.generation,
                "project": self.project,
                "created": self.created,
                "by": self.by,
                "pins": None if self.pins is None else self.pins.decode(),
                "tables": {
                    str(name): {
                        "log_version": table.log_version,
                        "commit_sha256": table.commit_sha256,
                        "head": orjson.loads(table.head.to_bytes()),
                    }
                    for name, table in self.tables.items()
                },
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse a stored fork. Raises `IntegrityError` where it is none."""
        try:
            raw = parse_object(data, key, "fork")
            tables = raw.members("tables")
            fork = cls(
                check_environment_name(raw.text("environment")),
                raw.text("generation"),
                check_project_name(raw.text("project")),
                raw.text("created"),
                raw.optional_text("by"),
                {table_name(name): _table(tables.members(name), f"{key}, {name}") for name in tables.value},
                None if (pins := raw.optional_text("pins")) is None else pins.encode(),
            )
            if not _GENERATION.fullmatch(fork.generation) or fork.at.tzinfo is None:
                raise ValueError("its generation or its time is not one")
        except (ValueError, LogCorrupt, InvalidName, IntegrityError) as error:
            raise unreadable(key, error) from error
        return fork

    @cached_property
    def _log_versions(self) -> dict[str, int]:
        return {str(name): table.log_version for name, table in self.tables.items()}

    @cached_property
    def _in_order(self) -> list[str]:
        """The tables in the order of their keys: those of "a b" stand before those of "a"."""
        return sorted(self._log_versions, key=lambda name: f"{name}/")

    @cached_property
    def _documents(self) -> dict[str, HeadDocument | bytes]:
        heads: dict[str, HeadDocument | bytes] = {head_key(name): table.head for name, table in self.tables.items()}
        return heads if self.pins is None else {**heads, ".metadata/pins.json": self.pins}

    @cached_property
    def _keys(self) -> list[str]:
        return sorted(self._documents)


@dataclass(frozen=True)
class EnvironmentDocument:
    """The document of an environment: the fork that it goes on from, and the other one while a rebase is on its way.

    ``next`` is the fork that a rebase goes to, ``previous`` the one that it came from; at most one of them is there.
    It is one document, so that each step of a rebase is one swap by ETag, and whatever else reads or deletes it sees
    the rebase as it is then: before the swap of forks there is ``next``, after it ``previous``, and in the end neither.

    All are of one environment, each of another generation. Raises `ValueError` where they are not.
    """

    fork: Fork
    next: Fork | None = None
    previous: Fork | None = None

    def __post_init__(self) -> None:
        forks = list(self.forks)
        if len(forks) > 2 or len({fork.generation for fork in forks}) < len(forks):
            raise ValueError("its forks are not those of one rebase")
        if {(fork.environment, fork.project) for fork in forks} != {(self.fork.environment, self.fork.project)}:
            raise ValueError("its forks are of several environments")

    @property
    def forks(self) -> Iterator[Fork]:
        """All that production keeps something for."""
        yield from (fork for fork in (self.fork, self.next, self.previous) if fork is not None)

    def is_open(self, generation: str) -> bool:
        """Whether what is written in a generation is the environment's, or will be."""
        return generation in {fork.generation for fork in (self.fork, self.next) if fork is not None}

    def to_bytes(self) -> bytes:
        """That of the fork, with the other one as a member."""
        others = {"next": self.next, "previous": self.previous}
        members = {name: orjson.loads(fork.to_bytes()) for name, fork in others.items() if fork is not None}
        return encode({**orjson.loads(self.fork.to_bytes()), **members}) if members else self.fork.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse a stored document. Raises `IntegrityError` where it is none."""
        fork = Fork.from_bytes(data, key)
        raw: dict[str, Any] = orjson.loads(data)

        def other(name: str) -> Fork | None:
            return Fork.from_bytes(encode(raw[name]), f"{key}, {name},") if name in raw else None

        try:
            return cls(fork, other("next"), other("previous"))
        except ValueError as error:
            raise unreadable(key, error) from error


def unreadable(key: str, error: Exception) -> IntegrityError:
    """What is raised for bytes that are no document of an environment."""
    return IntegrityError(
        f"The environment {key} cannot be read ({error}). Nothing was changed, and production is untouched. "
        "Drop the environment, and create it anew."
    )


def _table(raw: Members, key: str) -> ForkedTable:
    sha = commit_sha256_in(raw)
    head = HeadDocument.from_bytes(encode(raw.members("head").value), key)
    version = raw.integer("log_version")
    if version < 0 or head.log_version != version or head.pending is not None:
        raise ValueError(f"the head of {key} is not that of its log version")
    return ForkedTable(version, sha, head)
