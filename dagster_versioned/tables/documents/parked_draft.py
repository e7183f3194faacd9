"""The document of a parked draft: all that its publication needs; FORMAT, "Parked drafts"."""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, Self, cast, get_args

import orjson
from pydantic import ValidationError

from dagster_versioned.delta.actions import Members
from dagster_versioned.delta.files import statistics
from dagster_versioned.engines.parts import Part, RowsSummary
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound, VersionedError, VersionNotFound
from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.identity.digest import BagDigest, RowsDigest
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.identity.version import RowOrder, Run, VersionEntry, data_sha
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.tables.document import encode, parse_object, update_document
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.parts import part_key, recorded_rows

PARKED_FOLDER = ".metadata/parked/"
"""Where drafts lie, below a project's data folder: ``{table}/{run}.{backfill}.{id}.json``."""

Standing = Literal["parked", "failed", "published", "superseded"]
"""A draft waits to be judged; a check has failed, and may pass yet; it is current; it never will be."""

KEPT = timedelta(days=7)
"""How long a draft may wait, as vacuum keeps what nothing refers to."""

LIVING: frozenset[Standing] = frozenset({"parked", "failed"})

_SHA = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{16}|-)\.([0-9a-f]{32})\.json")


@dataclass(frozen=True)
class ParkedVersion:
    """One version of a draft.

    ``entry`` describes the rows that were given; its identity is the version's own where they replace the head, which
    was ``saw``. ``parts`` are theirs, ``None`` where an earlier version of the table has the same rows.

    Promises that the identity follows from the parts. Raises `ValueError`.
    """

    entry: VersionEntry
    saw: str | None
    parts: tuple[Part, ...] | None

    def __post_init__(self) -> None:
        identity, facts = self.entry.identity, self.entry.facts
        digest = RowsDigest.parse(facts.digest)
        if digest.nrow != identity.nrow or len(facts.null_counts) != len(self.contents.schema.fields):
            raise ValueError("the digest or the null counts are of other rows")
        if self.parts is None:
            return
        if data_sha([part.sha256 for part in self.parts], self.row_order) != identity.data_sha:
            raise ValueError(f"its parts are not those of data_sha {identity.data_sha}")
        if sum(part.num_records for part in self.parts) != identity.nrow:
            raise ValueError("its parts have another number of rows")

    @property
    def partition(self) -> str | None:
        """The partition that it is of."""
        return self.entry.identity.partition

    @property
    def row_order(self) -> RowOrder:
        """Whether its rows have an order."""
        return "ignored" if RowsDigest.parse(self.entry.facts.digest).kind == BagDigest.kind else "significant"

    @cached_property
    def contents(self) -> RowsSummary:
        """What the rows say."""
        return recorded_rows(self.entry)

    def to_json(self) -> dict[str, Any]:
        """As the document has it."""
        parts = None if self.parts is None else [_part_json(part) for part in self.parts]
        return {"entry": self.entry.to_json(), "saw": self.saw, "parts": parts}


@dataclass(frozen=True)
class ParkedDraft:
    """What a step parked: versions of one table that become current in one commit, or never.

    ``parked_at`` is RFC 3339, UTC; ``options`` are those of the asset. ``upon`` are the ids of the
    drafts that it was built from, ``log_version`` is where the table's log ended when the rows were parked, -1 without
    one; drafts of earlier releases do not say. ``standing`` and ``why`` say what became of it,
    ``closed_at`` and ``by`` when and by whom, ``published`` the names of the versions that it is, by partition.
    """

    table: TableName
    run: Run
    backfill: str | None
    parked_at: str
    author: str | None
    options: TableOptions
    partitioning: Partitioning | None
    versions: tuple[ParkedVersion, ...]
    upon: tuple[str, ...] = ()
    log_version: int | None = None
    standing: Standing = "parked"
    why: str | None = None
    closed_at: str | None = None
    by: str | None = None
    published: Mapping[str | None, str] = field(default_factory=dict[str | None, str])

    @property
    def first_run_id(self) -> str:
        """The run of the first attempt."""
        return self.run.first_run_id or self.run.run_id

    @property
    def partitions(self) -> tuple[str | None, ...]:
        """The partitions that it is of."""
        return tuple(version.partition for version in self.versions)

    @cached_property
    def id(self) -> str:
        """Names the computation: another attempt at it takes the place of this one."""
        of = [str(self.table), self.first_run_id, self.run.step_key]
        return hashlib.sha256(canonical_json({"draft": of})).hexdigest()[:32]

    @property
    def key(self) -> str:
        """Where it lies, below the project's data folder."""
        backfill = "-" if self.backfill is None else hidden(self.backfill)
        return f"{PARKED_FOLDER}{self.table}/{hidden(self.first_run_id)}.{backfill}.{self.id}.json"

    @cached_property
    def sha256(self) -> str:
        """Of all that was parked, whatever became of it: Dagster's event log has it, as a witness."""
        return hashlib.sha256(encode(self._parked_json())).hexdigest()

    @property
    def is_old(self) -> bool:
        """Whether it has waited for so long that its parts may be collected."""
        return datetime.now(UTC) - datetime.fromisoformat(self.parked_at) > KEPT

    @property
    def is_living(self) -> bool:
        """Whether it may still be published."""
        return self.standing in LIVING

    def __str__(self) -> str:
        some = [key for key in self.partitions if key is not None]
        of = f"[{some[0]}{', …' if len(some) > 1 else ''}]" if some else ""
        return f"{self.table}{of} of run {self.run.run_id[:8]}"

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return encode(
            {
                "schema_version": 1,
                "draft": self._parked_json(),
                "standing": self.standing,
                "why": self.why,
                "closed_at": self.closed_at,
                "by": self.by,
                "published": [{"partition": key, "version": sha} for key, sha in self.published.items()],
            }
        )

    def _parked_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "run": self.run.to_json(),
            "backfill": self.backfill,
            "parked_at": self.parked_at,
            "author": self.author,
            "options": self.options.model_dump(mode="json", exclude_defaults=True),
            "partitioning": None if self.partitioning is None else self.partitioning.to_json(),
            "versions": [version.to_json() for version in self.versions],
            "upon": list(self.upon),
            **({} if self.log_version is None else {"log_version": self.log_version}),
        }

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse a stored draft. Raises `IntegrityError` where it is none, or not the one of its name."""
        try:
            raw = parse_object(data, key, "parked")
            draft = cls._parse(raw)
            if draft.key != key or raw.value["draft"] != orjson.loads(encode(draft._parked_json())):
                raise ValueError(f"it is not the one of its name, or has members that are not known: {draft.key}")
        except (ValueError, TypeError, KeyError, ValidationError, VersionedError) as error:
            raise IntegrityError(
                f"The parked draft {key} cannot be read ({error}). It is not published, and the table is as it was. "
                "Run its step again; `dagster-versioned vacuum` of its table takes the document away in time."
            ) from error
        return draft

    @classmethod
    def _parse(cls, raw: Members) -> Self:
        own = raw.members("draft")
        versions = tuple(_version(object_) for object_ in own.objects("versions"))
        run = versions[0].entry.facts.run if versions else None
        standing = raw.text("standing")
        if raw.integer("schema_version") != 1 or run is None or standing not in get_args(Standing):
            raise ValueError("its schema_version is not 1, it is of no run, or stands in no known way")
        options, partitioning = own.members("options").value, own.value.get("partitioning")
        published = {each.optional_text("partition"): each.text("version") for each in raw.objects("published")}
        draft = cls(
            table_name(own.text("table")),
            run,
            own.optional_text("backfill"),
            own.text("parked_at"),
            own.optional_text("author"),
            TableOptions.model_validate(options),
            Partitioning.parse(partitioning),
            versions,
            own.texts("upon"),
            own.optional_integer("log_version"),
            cast("Standing", standing),
            raw.optional_text("why"),
            raw.optional_text("closed_at"),
            raw.optional_text("by"),
            published,
        )
        times = (draft.parked_at, draft.closed_at or draft.parked_at)
        if any(datetime.fromisoformat(time).tzinfo is None for time in times):
            raise ValueError("its time has no zone")
        if not all(map(_SHA.fullmatch, published.values())) or len(set(draft.partitions)) < len(versions):
            raise ValueError("a version has no SHA, or is there twice")
        return draft


def hidden(name: str) -> str:
    """What stands for the id of a run or a backfill in the name of a document, so that one listing finds a run's."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def draft_keys(data: ObjectStore, table: str | None = None) -> Iterator[ObjectInfo]:
    """The documents of drafts: of a table, or all."""
    prefix = PARKED_FOLDER if table is None else f"{PARKED_FOLDER}{table}/"
    return (info for info in data.list(prefix) if _NAME.fullmatch(info.key.rpartition("/")[2]))


def drafts_of(data: ObjectStore, table: str, runs: Sequence[str], backfill: str | None = None) -> list[ParkedDraft]:
    """The drafts of a table that these runs, or runs of a backfill, have parked, in the order in which they were.

    Raises `IntegrityError` where one of them cannot be read.
    """
    wanted, shared = {hidden(run) for run in runs}, None if backfill is None else hidden(backfill)
    names = [(info, info.key.rpartition("/")[2].split(".")) for info in draft_keys(data, table)]
    named = (info for info, (run, other, *_) in names if run in wanted or other == shared)
    return _in_order(_require_drafts(data, named))


def read_drafts(data: ObjectStore, table: str | None = None) -> tuple[list[ParkedDraft], list[IntegrityError]]:
    """All drafts of a project, or of a table, in the order in which they were parked, and what is wrong with those
    that are none."""
    read = [draft for _, draft in _read(data, draft_keys(data, table))]
    found = _in_order(draft for draft in read if isinstance(draft, ParkedDraft))
    return found, [error for error in read if isinstance(error, IntegrityError)]


def awaited(drafts: Iterable[ParkedDraft]) -> list[ParkedDraft]:
    """Those of a project's drafts that wait for their checks, or for others that do.

    Not what was built from one that has failed or was given up, directly or not: somebody would have to decide for it.
    """
    known = {draft.id: draft for draft in drafts}
    waits: dict[str, bool] = {}

    def is_awaited(draft: ParkedDraft) -> bool:
        if draft.id not in waits:
            waits[draft.id] = False  # a forged circle ends here
            above = [known[name] for name in draft.upon if name in known]
            waits[draft.id] = (
                draft.standing == "parked"
                and not draft.is_old
                and all(draft.standing == "published" or is_awaited(draft) for draft in above)
            )
        return waits[draft.id]

    return [draft for draft in known.values() if is_awaited(draft)]


def drafts_by_id(data: ObjectStore, ids: Collection[str]) -> dict[str, ParkedDraft]:
    """Those of these drafts that are there and can be read; no other document is."""
    named = (info for info in draft_keys(data) if info.key.removesuffix(".json")[-32:] in ids)
    return {draft.id: draft for _, draft in _read(data, named if ids else ()) if isinstance(draft, ParkedDraft)}


def find_draft(data: ObjectStore, prefix: str) -> ParkedDraft:
    """The one draft whose id begins so. Raises `VersionNotFound`."""
    found = [info.key for info in draft_keys(data) if info.key.rpartition("/")[2].split(".")[2].startswith(prefix)]
    if len(found) != 1:
        raise VersionNotFound(
            f"{len(found) or 'No'} drafts have an id that begins with {prefix!r:.40}. Nothing was changed. "
            "`dagster-versioned parked ls` lists them."
        )
    return ParkedDraft.from_bytes(data.get(found[0]), found[0])


def living_of(data: ObjectStore, table: str) -> list[ParkedDraft]:
    """The drafts of a table that may still be published, however old.

    Raises `IntegrityError` where one cannot be read.
    """
    return [draft for draft in _require_drafts(data, draft_keys(data, table)) if draft.is_living]


def refuse_parked(
    data: ObjectStore, what: str, table: str | None = None, partitions: Sequence[str] | None = None
) -> None:
    """Raise `InvalidInput` where drafts of a table, or of any, wait to be published; of some partitions, if named."""
    tables = {info.key.split("/")[2] for info in draft_keys(data, table)}
    found = [draft for table in sorted(tables) for draft in living_of(data, table)]
    found = [draft for draft in found if partitions is None or set(partitions) & set(draft.partitions)]
    if found:
        some = ", ".join(f"{draft.id[:8]} of {draft}" for draft in found[:5])
        raise InvalidInput(
            f"{what} would leave parked drafts behind: {some}{' and more' if len(found) > 5 else ''}. Nothing was "
            "changed. Publish them, or drop them with `dagster-versioned parked drop ID --apply`."
        )


def collected_drafts(data: ObjectStore, table: str, before: datetime) -> list[ObjectInfo]:
    """The documents of drafts that nobody needs any more: closed, or never readable, before a moment; or too old.

    One that is closed is needed as long as a draft waits that was built from it.
    """
    upon = {earlier for draft in read_drafts(data)[0] if draft.is_living for earlier in draft.upon}

    def is_needed(info: ObjectInfo, draft: ParkedDraft | IntegrityError) -> bool:
        if isinstance(draft, IntegrityError):
            return info.modified >= before
        if draft.closed_at is None:
            return not draft.is_old
        return draft.id in upon or datetime.fromisoformat(draft.closed_at) >= before

    return [info for info, draft in _read(data, draft_keys(data, table)) if not is_needed(info, draft)]


def forget_bounds(data: ObjectStore, table: str, erased: Set[str]) -> None:
    """Take from drafts what they say of the values in parts that were purged, by their keys; of those that are closed
    all that they say of rows: what became of their parts, nobody knows."""

    def without(part: Part) -> Part:
        kept = {name: value for name, value in part.statistics.items() if name not in ("minValues", "maxValues")}
        return replace(part, statistics=kept)

    for info in draft_keys(data, table):

        def change(known: bytes | None, key: str = info.key) -> bytes | None:
            if known is None:
                return None
            draft = ParkedDraft.from_bytes(known, key)
            versions = tuple(
                version
                if version.parts is None
                else replace(
                    version,
                    parts=tuple(
                        part if draft.is_living and part_key(part) not in erased else without(part)
                        for part in version.parts
                    ),
                )
                for version in draft.versions
            )
            if not draft.is_living:
                versions = tuple(map(_without_digest, versions))
            return None if versions == draft.versions else replace(draft, versions=versions).to_bytes()

        with suppress(IntegrityError):  # what cannot be read is named where it is
            update_document(data, info.key, change)


def _without_digest(version: ParkedVersion) -> ParkedVersion:
    digest = RowsDigest.parse(version.entry.facts.digest)
    told = replace(digest, value="0" * len(digest.value)).text
    return replace(version, entry=replace(version.entry, facts=replace(version.entry.facts, digest=told)))


def settle(data: ObjectStore, draft: ParkedDraft, **changes: Any) -> ParkedDraft:
    """Store what became of a draft, unless another one has taken its place, or it is closed by now.

    Returns the draft as it is stored then; where it was collected, as it was. Raises `IntegrityError`.
    """
    stored = draft

    def change(known: bytes | None) -> bytes | None:
        nonlocal stored
        if known is None:
            return None
        stored = ParkedDraft.from_bytes(known, draft.key)
        if stored.sha256 != draft.sha256 or not stored.is_living:
            return None
        stored = replace(stored, **changes)
        return stored.to_bytes()

    update_document(data, draft.key, change)
    return stored


def _read(
    data: ObjectStore, infos: Iterable[ObjectInfo]
) -> Iterator[tuple[ObjectInfo, "ParkedDraft | IntegrityError"]]:
    """The drafts of a listing, or what is wrong with them, without those that were collected since."""
    for info in infos:
        try:
            yield info, ParkedDraft.from_bytes(data.get(info.key), info.key)
        except ObjectNotFound:
            continue
        except IntegrityError as error:
            yield info, error


def _require_drafts(data: ObjectStore, infos: Iterable[ObjectInfo]) -> Iterator[ParkedDraft]:
    for _, draft in _read(data, infos):
        if isinstance(draft, IntegrityError):
            raise draft
        yield draft


def _in_order(drafts: Iterable[ParkedDraft]) -> list[ParkedDraft]:
    return sorted(drafts, key=lambda draft: (draft.parked_at, draft.id))


def _version(raw: Members) -> ParkedVersion:
    parts = None if raw.value.get("parts") is None else tuple(_part(object_) for object_ in raw.objects("parts"))
    saw = raw.optional_text("saw")
    if saw is not None and not _SHA.fullmatch(saw):
        raise ValueError("the head that it saw has no SHA")
    return ParkedVersion(VersionEntry.from_json(raw.members("entry").value), saw, parts)


def _part_json(part: Part) -> dict[str, Any]:
    return {
        "sha256": part.sha256,
        "size": part.size,
        "num_records": part.num_records,
        "ordinal": part.ordinal,
        "stats": statistics.to_json(part.statistics),
        "partition_values": dict(part.partition_values),
    }


def _part(raw: Members) -> Part:
    sha = raw.text("sha256")
    if not _SHA.fullmatch(sha):
        raise ValueError("a part has no SHA-256")
    stats, values = statistics.parse(raw.text("stats")), raw.text_map("partition_values")
    part = Part(sha, raw.count("size"), raw.count("num_records"), raw.count("ordinal"), stats, sha, values)
    if stats.get("numRecords") != part.num_records:
        raise ValueError(f"the statistics of the part {sha} are of other rows")
    return replace(part, source=part_key(part))
