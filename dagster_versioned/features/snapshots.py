"""The definitions of a project's features as they were pushed, kept with the project.

A snapshot is named by the SHA-256 of its bytes, and never changes. Each push of other definitions than the last is an
entry of its own, put if absent, so of two who push at once one comes after the other.
Source: seed 004 ("Graph Level", `push`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic import Field as Member

from dagster_versioned.delta.log.history import require_limit
from dagster_versioned.errors import (
    AlreadyExists,
    AmbiguousVersion,
    CommitConflict,
    GovernanceError,
    IntegrityError,
    InvalidInput,
    InvalidReference,
    ObjectNotFound,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import LONGEST, SHORTEST, FeatureGraph
from dagster_versioned.features.graph_diff import GraphDiff, graph_diff
from dagster_versioned.governance.documents import Instant
from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.identity.reference import (
    AsOf,
    HeadReference,
    LogVersion,
    PinName,
    Reference,
    ShaPrefix,
    TagName,
    parse_reference,
)
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.backoff import RACE, RACES
from dagster_versioned.tables.preconditions import require

FOLDER = ".metadata/feature-graphs"
"""Where snapshots and pushes lie, below a project's data folder."""

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Push:
    """One entry of the history; pushes are numbered from 0. ``rebase`` is what `features.rebase` did with it."""

    number: int
    snapshot: str
    project_version: str
    at: datetime
    by: str | None
    why: str | None
    rebase: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON; the time is RFC 3339 in UTC. A push without a rebase has none."""
        members = asdict(self) | {"at": self.at.isoformat().replace("+00:00", "Z")}
        return {name: value for name, value in members.items() if name != "rebase" or value is not None}


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a push did: ``push`` is the entry that it made, ``None`` where nothing changed, or nothing was to be done.

    ``before`` is the last push before it, and ``diff`` what changed since; ``snapshot`` names the definitions.
    """

    push: Push | None
    before: Push | None
    snapshot: str
    diff: GraphDiff

    @property
    def is_same(self) -> bool:
        """Whether the last push had these very definitions."""
        return self.before is not None and self.before.snapshot == self.snapshot


class GraphHistory:
    """The definitions that were pushed to a project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._store = project.data.subfolder(FOLDER)

    def push(
        self,
        graph: FeatureGraph,
        *,
        why: str | None = None,
        rebase: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> PushReport:
        """Record definitions, unless they are those of the last push and there is no ``rebase`` to record with them.

        Raises `ProjectMoved` where the project is being moved, `GovernanceError`, `CommitConflict`; nothing is recorded
        then.
        """
        data = snapshot_bytes(graph)
        snapshot = hashlib.sha256(data).hexdigest()
        for attempt in range(RACES):
            before = self._last()
            same = before is not None and before.snapshot == snapshot
            known = FeatureGraph([]) if before is None else self.graph(before)
            diff = graph_diff(known, graph)
            if (same and rebase is None) or dry_run:
                return PushReport(None, before, snapshot, diff)
            require("push definitions", self._project)
            number = 0 if before is None else before.number + 1
            push = Push(number, snapshot, graph.project_version, datetime.now(UTC), self._project.author, why, rebase)
            self._put_snapshot(snapshot, data)
            try:
                self._store.put_if_absent(_push_key(number), canonical_json({**_VERSION, **push.to_json()}))
            except AlreadyExists:
                RACE.pause(attempt)
                continue
            self._check_not_left(push)
            return PushReport(push, before, snapshot, diff)
        raise CommitConflict(
            f"{RACES} pushes to {self._store.uri} lost the race against others. Nothing was pushed; try again."
        )

    def pushes(self, limit: int | None = None) -> list[Push]:
        """The pushes, newest first. Raises `IntegrityError` for one that cannot be read, `InvalidInput`."""
        require_limit(limit)
        keys = sorted((info.key for info in self._store.list("pushes/")), reverse=True)
        return [self._read_push(key) for key in keys[:limit]]

    def find(self, reference: str | int | datetime | None) -> Push:
        """The push that a reference names: ``@3`` by its number, a time as of then, ``None`` the last one.

        6 to 64 hexadecimal digits are the start of a snapshot's SHA-256 or of a project version; the newest push of
        that is meant. Raises `VersionNotFound`, `AmbiguousVersion`, `InvalidReference`.
        """
        wanted = parse_reference(reference)
        pushes = self.pushes(1 if wanted == HeadReference() else None)
        found = _named(wanted, pushes, reference)
        if not pushes:
            raise VersionNotFound(
                f"No definitions were pushed to {self._project.store.uri}: `dagster-versioned graph push -m MODULE`."
            )
        if not found:
            raise VersionNotFound(
                f"None of the {len(pushes)} pushes to {self._project.store.uri} answers to {reference!r:.100}."
                " `dagster-versioned graph history` lists them."
            )
        if len({push.snapshot for push in found}) > 1:
            candidates = ", ".join(f"@{push.number} ({push.snapshot[:12]})" for push in found)
            raise AmbiguousVersion(f"{reference!r:.100} may be any of {candidates}. Give more digits, or the number.")
        return found[0]

    def graph(self, push: Push) -> FeatureGraph:
        """The definitions of a push. Raises `IntegrityError` where they are not what was pushed."""
        where = f"{self._store.uri}/{_snapshot_key(push.snapshot)}"
        try:
            data = self._store.get(_snapshot_key(push.snapshot))
        except ObjectNotFound:
            raise IntegrityError(
                f"{where} is missing, though push {push.number} names it. Nothing was changed. Restore it from a backup"
                " or from the store's own versioning."
            ) from None
        if hashlib.sha256(data).hexdigest() != push.snapshot:
            raise IntegrityError(
                f"{where} is not what was pushed: its SHA-256 is another. Nothing was changed. Restore it from a backup"
                " or from the store's own versioning."
            )
        return parse_snapshot(data, where)

    def _last(self) -> Push | None:
        return next(iter(self.pushes(1)), None)

    def _read_push(self, key: str) -> Push:
        where = f"{self._store.uri}/{key}"
        found = parse_document(_PushDocument, self._store.get(key), where)
        if _push_key(found.number) != key:
            raise _unreadable(where, f"it says that it is push {found.number}", _RESTORE)
        return Push(found.number, found.snapshot, found.project_version, found.at, found.by, found.why, found.rebase)

    def _put_snapshot(self, name: str, data: bytes) -> None:
        key = _snapshot_key(name)
        try:
            self._store.put_if_absent(key, data)
        except AlreadyExists:
            if self._store.get(key) != data:
                raise IntegrityError(
                    f"{self._store.uri}/{key} is not what its name says. Nothing was pushed. Delete it, and push again."
                ) from None

    def _check_not_left(self, push: Push) -> None:
        """Take the push back where the project is being moved: a migration copies what was there before its mark."""
        try:
            self._project.check_unmarked()
        except GovernanceError:
            self._store.delete([_push_key(push.number)])
            raise


def _named(wanted: Reference, pushes: list[Push], reference: object) -> list[Push]:
    """Those of the pushes, newest first, that a reference may mean. Raises `InvalidReference`."""
    match wanted:
        case HeadReference():
            return pushes
        case LogVersion(number):
            return [push for push in pushes if push.number == number]
        case AsOf(moment):
            return [push for push in pushes if push.at <= moment][:1]
        case ShaPrefix(prefix):
            return _named_by_sha(prefix, pushes)
        case PinName() | TagName():
            raise InvalidReference(
                f"Pins and tags name versions of tables; {reference!r:.100} names no push. Give @3, the start of a"
                " SHA, or a time."
            )


def _named_by_sha(prefix: str, pushes: list[Push]) -> list[Push]:
    """The pushes of a snapshot, or else of a version of the project, whose SHA begins like this."""
    found = [push for push in pushes if push.snapshot.startswith(prefix)]
    return found or [push for push in pushes if push.project_version.startswith(prefix)]


def snapshot_bytes(graph: FeatureGraph) -> bytes:
    """The definitions as they are stored: canonical JSON, the same whatever order they were written in."""
    features = sorted(map(_canonical, graph), key=lambda members: members["key"])
    return canonical_json({**_VERSION, "hash_length": graph.hash_length, "features": features})


def parse_snapshot(data: bytes, where: str, fix: str | None = None) -> FeatureGraph:
    """The definitions that `snapshot_bytes` gave; ``where`` and ``fix`` are as for `parse_document`.

    Raises `IntegrityError` for what is no such document, and `UnsupportedFeature` for one of a newer format.
    """
    document = parse_document(_SnapshotDocument, data, where, fix or _RESTORE)
    features = [members.model_dump(exclude_none=True) for members in document.features]
    try:
        return FeatureGraph(map(Feature.from_json, features), document.hash_length)
    except InvalidInput as error:
        raise _unreadable(where, str(error), fix or _RESTORE) from error


def _canonical(feature: Feature) -> dict[str, Any]:
    """The definition as JSON, its fields and dependencies sorted; a field without dependencies states none."""
    fields = [field.to_json() for field in sorted(feature.fields, key=lambda field: field.key)]
    for field in fields:
        if deps := field.pop("deps", None):
            field["deps"] = sorted(deps, key=canonical_json)
    deps = [dep.to_json() for dep in sorted(feature.deps, key=lambda dep: dep.feature)]
    return feature.to_json() | {"fields": fields} | ({"deps": deps} if deps else {})


def _snapshot_key(name: str) -> str:
    return f"snapshots/{name}.json"


def _push_key(number: int) -> str:
    return f"pushes/{number:020d}.json"


# --- what is stored, parsed: whoever may write to the store may have written anything --------------------------------

_VERSION: Mapping[str, int] = {"schema_version": SCHEMA_VERSION}

_Name = Annotated[str, StringConstraints(min_length=1)]
_Names = Annotated[list[_Name], Member(min_length=1)]
Sha = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class Members(BaseModel):
    """A document, or a part of one: no other members than these, each of its type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class _FieldDep(Members):
    feature: str
    fields: list[str] | None = None


class _Field(Members):
    key: str
    code_version: str
    deps: list[_FieldDep] | None = None
    columns: list[_Name] = []


class _FieldsMapping(Members):
    kind: Literal["default", "specific", "all", "none"] = "default"
    match_suffix: bool = False
    excluded: list[str] = []
    mapping: dict[str, list[str]] = {}


class _Lineage(Members):
    kind: Literal["identity", "aggregation", "expansion"]
    on: _Names | None = None


class _FeatureDep(Members):
    feature: str
    rename: dict[_Name, _Name] = {}
    select: list[_Name] | None = None
    filter: str | None = None
    optional: bool = False
    lineage: _Lineage | None = None
    fields_mapping: _FieldsMapping = _FieldsMapping()


class _Feature(Members):
    key: str
    id_columns: _Names
    fields: list[_Field]
    deps: list[_FeatureDep] = []
    project: str | None = None


class _SnapshotDocument(Members):
    schema_version: Literal[1]
    hash_length: Annotated[int, Member(ge=SHORTEST, le=LONGEST)]
    features: list[_Feature]


class _PushDocument(Members):
    schema_version: Literal[1]
    number: Annotated[int, Member(ge=0)]
    snapshot: Sha
    project_version: Annotated[str, StringConstraints(pattern="^[0-9a-f]{8,64}$")]
    at: Instant
    by: str | None
    why: str | None
    rebase: dict[str, Any] | None = None


_RESTORE = "Nothing was changed. Restore it from a backup or from the store's own versioning."

_Document = TypeVar("_Document", bound=Members)


def parse_document(kind: type[_Document], data: bytes, where: str, fix: str = _RESTORE) -> _Document:
    """A JSON document of a kind; ``where`` names it in messages, ``fix`` says what to do where it is damaged.

    Raises `IntegrityError` for what is no such document, and `UnsupportedFeature` for one of a newer format.
    """
    try:
        members: Any = orjson.loads(data)
        version = members["schema_version"]
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise UnsupportedFeature(
                f"{where} was written by a newer dagster-versioned (schema_version {min(version, 10**6)}; this one"
                f" knows {SCHEMA_VERSION}). Nothing was changed. Upgrade: `pip install --upgrade dagster-versioned`."
            )
        return kind.model_validate_json(data)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)[:5]
        described = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        raise _unreadable(where, described, fix) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(where, f"it is no JSON object with a schema_version ({type(error).__name__})", fix) from error


def _unreadable(where: str, what: str, fix: str) -> IntegrityError:
    return IntegrityError(f"{where} cannot be read: {what.rstrip('.')}. {fix}")
