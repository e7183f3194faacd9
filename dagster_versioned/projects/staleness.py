"""Is what a head was built from what is current now? The one judgement that sensors, conditions and checks share.

A *cell* is a table, or one partition of it, and the unit that becomes stale. The judgement is level-triggered: it
compares the parents that a head records with what its upstreams' heads are, so it needs no memory, and nothing that
happened between two looks can escape it.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import orjson

from dagster_versioned.identity.version import On
from dagster_versioned.tables.documents.head import Head, Held, partition_head
from dagster_versioned.tables.feature_record import FeatureRecord, digests_together
from dagster_versioned.tables.partitioning import Partitioning, misread
from dagster_versioned.tables.table_record import TableRecord

if TYPE_CHECKING:
    from dagster_versioned.tables.choose import VersionLike
    from dagster_versioned.tables.table import VersionedTable

Missing = Literal["fails", "allowed", "unread"]
"""What a partition without a version does to the run that maps to it: the input cannot be loaded, it is loaded without
it, or it is a dependency that is not loaded by the IO manager, of which nothing is known."""

TableKey = tuple[str, str]
"""A table as lineage names it: project and table."""

SHORT = 8
"""Characters of a SHA that a person is shown; a prefix of 6 is accepted wherever one is typed."""


@dataclass(frozen=True, slots=True)
class Built:
    """A version that a head was built from."""

    metadata_sha: str
    data_sha: str

    def sha(self, on: On) -> str:
        """What counts of it."""
        return self.metadata_sha if on == "metadata_sha" else self.data_sha


@dataclass(frozen=True, slots=True)
class CellHead:
    """The current version of a cell, as much of it as staleness depends on; ``parents`` by table, then partition."""

    metadata_sha: str
    data_sha: str
    log_version: int
    timestamp: str
    code_version: str | None = None
    parents: Mapping[TableKey, Mapping[str | None, Built]] = field(
        default_factory=dict[TableKey, Mapping[str | None, Built]]
    )
    held: Held | None = None
    feature: FeatureRecord | None = None
    code: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, head: Head) -> Self:
        """From a stored head."""
        return cls(
            head.metadata_sha,
            head.data_sha,
            head.log_version,
            head.timestamp,
            head.code_version,
            built_from(head.parents),
            head.held,
            head.feature,
            head.code,
        )

    def sha(self, on: On) -> str:
        """What counts of it."""
        return self.metadata_sha if on == "metadata_sha" else self.data_sha


def built_from(parents: Iterable[Mapping[str, Any]]) -> Mapping[TableKey, Mapping[str | None, Built]]:
    """What a head or a commit records as its parents; one that is not in a form that is known is passed over."""
    by_table: dict[TableKey, dict[str | None, Built]] = {}
    for parent in parents:
        source, table, version, data = (parent.get(name) for name in ("source", "table", "version", "data_sha"))
        if isinstance(source, str) and isinstance(table, str) and isinstance(version, str) and isinstance(data, str):
            by_table.setdefault((source, table), {})[parent.get("partition")] = Built(version, data)
    return by_table


@dataclass(frozen=True, slots=True)
class TableHeads:
    """What the heads of one table say: the table as a whole, and its partitions, if it has any.

    ``unreadable`` says why nothing can be known of the table now, ``former`` which other names parents may give it.
    ``dropped`` is the log version of the last drop, as far as cells without a version may be so because of it.
    ``partitioning`` is what the table remembers of its partitions.
    """

    whole: CellHead | None = None
    partitions: Mapping[str, CellHead] = field(default_factory=dict[str, CellHead])
    unreadable: str | None = None
    former: tuple[TableKey, ...] = ()
    dropped: int = -1
    partitioning: Partitioning | None = None

    @classmethod
    def at(
        cls, table: "VersionedTable", reference: "VersionLike" = None, partitioning: Partitioning | None = None
    ) -> Self:
        """The heads of a table at a version, from its log, whose partitions are taken for these.

        Raises what `VersionedTable.choose` and `upstream` do.
        """
        chosen, state = table.choose(reference, partitioning=partitioning), table.state
        parents = [upstream.parent for upstream in table.upstream_of(chosen)]
        cells = {
            version.partition: CellHead.of(partition_head(table.name, version, state)) for version in chosen.versions
        }
        whole = cells.pop(None, None)
        if cells and parents[0].partition is None:
            newest = max(cells.values(), key=lambda cell: cell.log_version)
            whole = CellHead(parents[0].version, parents[0].data_sha, newest.log_version, newest.timestamp)
        partitions = {key: cell for key, cell in cells.items() if key is not None}
        return cls(whole, partitions, former=TableRecord.of(state.snapshot).former)

    def read_as(self, name: str, partitioning: Partitioning) -> "TableHeads":
        """The heads, for who takes the table's partitions for these; unreadable where they are others."""
        if self.whole is None:
            return self
        why = misread(name, self.partitioning, partitioning, self.partitions or [None])
        return self if why is None else TableHeads(unreadable=why, former=self.former)

    def cell(self, partition: str | None) -> CellHead | None:
        """The head of a partition, or with ``None`` of the table."""
        return self.whole if partition is None else self.partitions.get(partition)


@dataclass(frozen=True, slots=True)
class Need:
    """What a cell needs of one upstream table.

    ``keys`` are the partitions that it maps to; ``None`` for a table without partitions. With ``is_whole`` they are all
    partitions, and the parent is recorded as one. ``lacking`` are those of them without a version. ``pinned`` is what
    the input is pinned to: a SHA or the beginning of one, or ``""`` where that cannot be known from heads. ``is_own``
    says that the upstream is another output of the very same run.
    """

    upstream: str
    table: TableKey
    heads: TableHeads
    keys: Collection[str] | None = None
    lacking: Sequence[str] = ()
    is_whole: bool = False
    missing: Missing = "fails"
    pinned: str | None = None
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One reason to run: an upstream (or the code, where ``upstream`` is ``None``) went from one version to another.

    Or samples of a feature are left to be computed: then that is the ``upstream``, and ``before`` says how many.
    """

    upstream: str | None
    partition: str | None
    before: str | None
    after: str | None

    def __str__(self) -> str:
        name = cell_text(self.upstream or "code version", self.partition)
        if self.upstream is None:
            return f"{name} {self.before or 'none'} -> {self.after or 'none'}"
        return f"{name} {self.before[:SHORT] if self.before else 'none'} -> {(self.after or '')[:SHORT]}"


@dataclass(frozen=True, slots=True)
class StaleCell:
    """What the heads say of one cell that is not current.

    ``changes`` are the reasons to run, ``is_new`` that there is no version of it yet, ``absent`` says which upstream
    cells do not exist and are needed (``""``: none). ``state`` is the digest of everything that the finding depends on:
    the same state has the same one, a new state never does, because log versions only grow. ``since`` is when the
    newest of the heads that it depends on was written: no run for this state can be older.
    """

    changes: tuple[Change, ...]
    is_new: bool
    absent: str
    held: Held | None
    unreadable: str | None
    state: str
    since: str

    @property
    def why(self) -> str:
        """The reasons in one line."""
        changes = list(dict.fromkeys(map(str, self.changes)))  # several outputs may read one upstream
        shown = "; ".join(changes[:3])
        more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
        return f"first version: {shown}{more}" if self.is_new else shown + more


class MemberCell(NamedTuple):
    """One of the assets that run together, at a partition: the heads of its table, what it needs, and the code version
    that it is to have, which counts in any case where the table is a feature's."""

    heads: TableHeads
    partition: str | None
    needs: Sequence[Need]
    code_version: str | None

    @property
    def head(self) -> CellHead | None:
        """What there is of it."""
        return self.heads.cell(self.partition)

    @property
    def outer_needs(self) -> list[Need]:
        """What it needs of other runs than its own."""
        return [need for need in self.needs if not need.is_own]

    def counts_code(self, on_code_version: bool) -> bool:
        """Whether another code version is a reason to run."""
        is_feature = self.head is not None and self.head.feature is not None
        return on_code_version or (is_feature and self.code_version is not None)


def find(
    unit: str,
    partition: str | None,
    members: Iterable[MemberCell],
    on: On = "metadata_sha",
    *,
    on_code_version: bool = False,
) -> StaleCell | None:
    """The state of one cell of the assets that run together as ``unit``; ``None`` if it is current.

    Without any upstream there is nothing else to compare, and a cell without a version is not found missing.
    """
    members = list(members)
    heads = [member.head for member in members]
    is_new = None in heads
    changes = [change for member in members for change in _reasons(member, on, on_code_version)]
    absent = list(chain.from_iterable(map(_absent, members)))
    unreadable = next(filter(None, map(_unreadable, members)), None)
    if not (changes or unreadable or (absent and is_new)):
        return None
    seen = [unit, partition, *(fact for member in members for fact in _facts(member, on_code_version))]
    state = hashlib.sha256(orjson.dumps(seen)).hexdigest()
    return StaleCell(tuple(changes), is_new, _and_more(absent), _held(heads), unreadable, state, _newest(members))


def _reasons(member: MemberCell, on: On, on_code_version: bool) -> Iterator[Change]:
    """Why a member is to run."""
    head = member.head
    for need in member.needs:
        yield from _changes(need, head, on)
    if head is None:
        return
    if head.feature is not None and head.feature.left:
        yield Change("samples left", member.partition, str(head.feature.left), "0")
    if member.counts_code(on_code_version) and head.code_version != member.code_version:
        yield Change(None, None, head.code_version, member.code_version)


def _held(heads: Iterable[CellHead | None]) -> Held | None:
    return next((head.held for head in heads if head is not None and head.held), None)


def _unreadable(member: MemberCell) -> str | None:
    """Why nothing can be known of a member, or of what it needs."""
    tables = (member.heads, *(need.heads for need in member.outer_needs))
    return next((heads.unreadable for heads in tables if heads.unreadable), None)


def _facts(member: MemberCell, on_code_version: bool) -> Iterator[Any]:
    """What the judgement of a member depends on, in an order that digests of states are taken of."""
    head = member.head
    yield member.heads.dropped if head is None else head.log_version
    for need in member.outer_needs:
        yield [need.table, [(key, cell.metadata_sha, cell.log_version) for key, cell in _cells_of(need)]]
    if member.counts_code(on_code_version):
        yield member.code_version


def _newest(members: Iterable[MemberCell]) -> str:
    """When the newest of the heads that a judgement depends on was written."""
    heads = [member.head for member in members]
    heads += [cell for member in members for need in member.outer_needs for _, cell in _cells_of(need)]
    return max((head.timestamp for head in heads if head is not None), default="")


def _cells_of(need: Need) -> list[tuple[str | None, CellHead]]:
    """The upstream cells that there are, of those that are needed."""
    return [(key, cell) for key in _keys_of(need) if (cell := need.heads.cell(key)) is not None]


def _keys_of(need: Need) -> list[str | None]:
    if need.keys is None or need.is_whole:
        return [None]
    return list[str | None](sorted(need.keys))


def _absent(member: MemberCell) -> Iterator[tuple[str, int]]:
    """Of each need, the first upstream cell that does not exist and that the run cannot do without, and how many."""
    for need in member.outer_needs:
        if need.heads.unreadable is None:
            yield from _lacking(need, member.head is None)


def _lacking(need: Need, is_new: bool) -> Iterator[tuple[str, int]]:
    if need.keys is None:
        # What is not loaded and was not there before may never be: another change need not wait for it.
        if need.heads.whole is None and (is_new or need.missing != "unread"):
            yield need.upstream, 1
    elif need.lacking and (need.missing == "fails" or (is_new and need.missing == "unread")):
        yield cell_text(need.upstream, need.lacking[0]), len(need.lacking)
    elif is_new and need.keys and len(need.lacking) == len(need.keys):
        yield need.upstream, 1


def _and_more(absent: Sequence[tuple[str, int]]) -> str:
    count = sum(number for _, number in absent)
    return "" if not absent else absent[0][0] + (f" and {count - 1} more" if count > 1 else "")


def _changes(need: Need, head: CellHead | None, on: On) -> Iterator[Change]:
    """How the upstream differs from what the head was built from."""
    built = _built(need, head)
    if need.pinned is not None:
        yield from _pin_changes(need, need.pinned, built)
        return
    fields = _fields_used(need, head)
    if fields is not None and _has_same_fields(need, fields):
        return
    counted: On = on if fields is None else "data_sha"  # what else its identity holds has no part in a feature
    for key in _compared_keys(need, built):
        current, recorded = need.heads.cell(key), built.get(key)
        if current is not None and (recorded is None or recorded.sha(counted) != current.sha(counted)):
            yield Change(need.upstream, key, recorded.metadata_sha if recorded else None, current.metadata_sha)


def _pin_changes(need: Need, pinned: str, built: Mapping[str | None, Built]) -> Iterator[Change]:
    """How what an input is pinned to differs from what the head was built from."""
    recorded = built.get(None)
    if pinned and recorded is not None and not recorded.metadata_sha.startswith(pinned):
        yield Change(need.upstream, None, recorded.metadata_sha, pinned)
    elif not built and not need.is_own:
        yield Change(need.upstream, None, None, pinned or "the version it is pinned to")


def _compared_keys(need: Need, built: Mapping[str | None, Built]) -> Iterable[str | None]:
    if need.is_whole and built and None not in built:
        return sorted(need.keys or ())  # all partitions were recorded one by one: the table had others as well
    return _keys_of(need)


def _built(need: Need, head: CellHead | None) -> Mapping[str | None, Built]:
    """What the head was built from of the upstream, by the name that it has or had."""
    for name in (need.table, *reversed(need.heads.former)):
        if head is not None and name in head.parents:
            return head.parents[name]
    return {}


def _fields_used(need: Need, head: CellHead | None) -> Mapping[str, str] | None:
    """What the upstream's fields said that a feature was computed from; ``None`` where the head does not know them."""
    return None if head is None or head.feature is None else head.feature.upstreams.get(need.upstream)


def _has_same_fields(need: Need, used: Mapping[str, str]) -> bool:
    """Whether a feature's upstream, whatever its version is, says the same in all fields that it is computed from.

    Where it is not known by fields, there are none.
    """
    keys: Iterable[str | None] = [None] if need.keys is None else need.keys
    cells = [cell for key in keys if (cell := need.heads.cell(key)) is not None]
    records = [
        cell.feature for cell in cells if cell.feature is not None and used.keys() <= cell.feature.digests.keys()
    ]
    if not used or not cells or len(records) < len(cells):
        return False
    return digests_together({key: record.digests[key] for key in used} for record in records) == used


def cell_text(name: str, partition: str | None) -> str:
    """A cell as a person reads it."""
    return name if partition is None else f"{name}[{partition}]"
