"""What changed between two versions, from what the log says of them; rows are compared in `engines.comparison`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.identity.version import Identity, Parent
from dagster_versioned.tables.code_details import CodeChange
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.parts import data_line


@dataclass(frozen=True)
class ColumnChange:
    """A column that one of two versions has and the other has not, or has with another type (Delta's type JSON)."""

    name: str
    before: Any | None
    after: Any | None


@dataclass(frozen=True)
class ParentChange:
    """An input that was added, dropped (``None``) or read at another version."""

    source: str
    table: str
    partition: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True)
class VersionDiff:
    """What is different between two versions.

    ``columns`` and ``parents`` list only what differs; ``parts_*`` count parts by their SHA and that of their deletion
    vector; ``metadata`` maps a member of the identity (``code_version``, ``message``, ``table_type``, ``custom.…``) to
    its (before, after). ``code`` is what differs of the code that made them, where that is known of both.
    """

    before: Version
    after: Version
    same_data: bool
    rows_before: int
    rows_after: int
    columns: tuple[ColumnChange, ...]
    column_order_changed: bool
    parts_added: int
    parts_removed: int
    parts_shared: int
    parents: tuple[ParentChange, ...]
    metadata: Mapping[str, tuple[Any, Any]]
    code: CodeChange | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the two are the same version."""
        return self.before.metadata_sha == self.after.metadata_sha


def version_diff(
    before: Version, after: Version, parts_before: Sequence[Add], parts_after: Sequence[Add]
) -> VersionDiff:
    """Compare two versions. Raises `IntegrityError` where an identity does not match its SHA."""
    old, new = before.identity, after.identity
    old_parts, new_parts = ({(add.key, data_line(add)) for add in parts} for parts in (parts_before, parts_after))
    return VersionDiff(
        before=before,
        after=after,
        same_data=old.data_sha == new.data_sha,
        rows_before=old.nrow,
        rows_after=new.nrow,
        columns=tuple(_column_changes(_columns(old), _columns(new))),
        column_order_changed=_is_reordered(list(_columns(old)), list(_columns(new))),
        parts_added=len(new_parts - old_parts),
        parts_removed=len(old_parts - new_parts),
        parts_shared=len(old_parts & new_parts),
        parents=tuple(_parent_changes(old.parents, new.parents)),
        metadata=_metadata_changes(old, new),
    )


def _columns(identity: Identity) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in identity.schema["fields"]}


def _column_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ColumnChange]:
    for name in dict.fromkeys((*new, *old)):
        if old.get(name) != new.get(name):
            yield ColumnChange(name, old.get(name), new.get(name))


def _is_reordered(old: Sequence[str], new: Sequence[str]) -> bool:
    common = {*old} & {*new}
    return [name for name in old if name in common] != [name for name in new if name in common]


def _parent_changes(before: Sequence[Parent], after: Sequence[Parent]) -> list[ParentChange]:
    def by_place(parents: Sequence[Parent]) -> dict[tuple[str, str, str | None], str]:
        return {(parent.source, parent.table, parent.partition): parent.version for parent in parents}

    old, new = by_place(before), by_place(after)
    places = sorted(old.keys() | new.keys(), key=lambda place: (place[0], place[1], place[2] or ""))
    return [ParentChange(*p, old.get(p), new.get(p)) for p in places if old.get(p) != new.get(p)]


def _metadata_changes(before: Identity, after: Identity) -> dict[str, tuple[Any, Any]]:
    old, new = _described(before), _described(after)
    return {
        name: (old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }


def _described(identity: Identity) -> dict[str, Any]:
    return {
        "code_version": identity.code_version,
        "message": identity.message,
        "table_type": identity.table_type,
        **{f"custom.{name}": value for name, value in identity.custom.items()},
    }
