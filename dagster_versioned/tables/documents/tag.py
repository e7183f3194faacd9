"""The document of a tag: a name for where every table of a project was at one moment; FORMAT, "Tags"."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self

from dagster_versioned.delta.actions import Members
from dagster_versioned.errors import IntegrityError, InvalidName, LogCorrupt, ObjectNotFound, VersionNotFound
from dagster_versioned.identity.names import TableName, check_tag_name, is_tag_name, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, is_dropped, parse_object, read_document
from dagster_versioned.tables.history import History

TAGS_FOLDER = ".metadata/tags/"
"""Where tags lie, below a project's data folder."""

_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TaggedTable:
    """A table at one moment: its log up to ``log_version``, whose commit has this SHA-256."""

    log_version: int
    commit_sha256: str

    def is_in(self, history: History) -> bool:
        """Whether the history goes through this commit; that of another table, under the same name, does not."""
        at = self.log_version
        return at <= history.log_version and history.record(at).sha256 == self.commit_sha256


@dataclass(frozen=True)
class Tag:
    """A name for all tables of a project at one moment, ``created``: RFC 3339, UTC. It is never changed."""

    name: str
    created: str
    by: str | None
    why: str | None
    tables: Mapping[TableName, TaggedTable]

    @cached_property
    def at(self) -> datetime:
        """When it was made, UTC."""
        return datetime.fromisoformat(self.created)

    def find(self, history: History, names: Iterable[str]) -> int | None:
        """The log version of a table at the tag, by the first of its names (it has, or had) that fits its history.

        ``None`` where the tag has no table of these names. Raises `IntegrityError` where it has, but another one.
        """
        named = {name: self.tables[table_name(name)] for name in names if name in self.tables}
        for table in named.values():
            if table.is_in(history):
                return table.log_version
        for name, table in named.items():
            raise IntegrityError(
                f"Commit @{table.log_version} of {name} is not the one that the tag {self.name} names: the table was "
                "deleted and made anew since, or its log was altered. Nothing was read. `dagster-versioned verify "
                f"{name}` checks the log; restore the table from a copy."
            )
        return None

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return encode(
            {
                "schema_version": 1,
                "name": self.name,
                "created": self.created,
                "by": self.by,
                "why": self.why,
                "tables": tables_json(self.tables),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Parse the stored document of the tag of a name. Raises `IntegrityError` where it is none."""
        key = tag_key(name)
        try:
            raw = parse_object(data, key, "tag")
            by, why = raw.optional_text("by"), raw.optional_text("why")
            tag = cls(raw.text("name"), raw.text("created"), by, why, parse_tables(raw))
            if raw.integer("schema_version") != 1 or tag.name != name or tag.at.utcoffset() != timedelta(0):
                raise ValueError("its schema_version is not 1, its name another one, or its time not UTC")
        except (ValueError, LogCorrupt, InvalidName) as error:
            raise IntegrityError(
                f"The tag {key} cannot be read ({error}). Nothing was changed, and no more is kept for it than it "
                f"can be read to name. Restore it from a copy, or drop it: `dagster-versioned tag drop {name} --apply`."
            ) from error
        return tag


def tag_key(name: str) -> str:
    """Where the tag of a name lies, below a project's data folder. Raises `InvalidName`."""
    return f"{TAGS_FOLDER}{check_tag_name(name)}.json"


def read_tag(data: ObjectStore, name: str) -> Tag:
    """The tag of a name. Raises `InvalidName`, `VersionNotFound` where there is none, and `IntegrityError`."""
    try:
        return Tag.from_bytes(read_document(data, tag_key(name))[0], name)
    except ObjectNotFound:
        there = list(tag_names(data))
        raise VersionNotFound(
            f"There is no tag {name!r} in {data.uri}. There are: {', '.join(there[-10:]) or 'none'}. Nothing was read; "
            "`dagster-versioned tag ls` lists them."
        ) from None


def find_tagged(data: ObjectStore, name: str, tables: Sequence[str], history: History) -> int:
    """The log version of a table at the tag ``name``, by the first of the names that it has, or had.

    Raises `VersionNotFound` where there is no such tag or it does not have the table, and `IntegrityError` where
    it has another table of that name.
    """
    tag = read_tag(data, name)
    found = tag.find(history, tables)
    if found is None:
        raise VersionNotFound(
            f"The tag {name!r} of {tag.created} has no table {tables[0]}: it had no version then, or was dropped. "
            f"Nothing was read; `dagster-versioned tag show {name}` lists the tables that it has."
        )
    return found


def read_tags(data: ObjectStore) -> dict[str, Tag]:
    """All tags below a project's data folder, by name. Raises `IntegrityError` where one cannot be read."""
    return {name: read_tag(data, name) for name in tag_names(data)}


def tag_names(data: ObjectStore) -> Iterator[str]:
    """The names of all tags below a project's data folder, sorted."""
    for info in data.list(TAGS_FOLDER):
        name, ending = info.key[len(TAGS_FOLDER) : -len(".json")], info.key[-len(".json") :]
        if ending == ".json" and is_tag_name(name) and not is_dropped(info):
            yield name


def tables_json(tables: Mapping[TableName, TaggedTable]) -> dict[str, Any]:
    """The ``tables`` of a stored document."""
    return {str(name): asdict(table) for name, table in tables.items()}


def parse_tables(raw: Members) -> dict[TableName, TaggedTable]:
    """Those of a document. Raises `LogCorrupt`, `InvalidName`, and `ValueError` where the SHA-256 of one is none."""
    tables = raw.members("tables")
    return {table_name(name): _parse_table(tables.members(name)) for name in tables.value}


def _parse_table(raw: Members) -> TaggedTable:
    return TaggedTable(log_version=raw.count("log_version"), commit_sha256=commit_sha256_in(raw))


def commit_sha256_in(raw: Members) -> str:
    """The commit that a table of a document stands at. Raises `LogCorrupt`, `ValueError`."""
    sha = raw.text("commit_sha256")
    if not _SHA.fullmatch(sha):
        raise ValueError("a commit's SHA-256 is not one")
    return sha
