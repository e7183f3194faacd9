"""What a version is (its identity, which is hashed) and how it came to be (its facts, which are not)."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Self, TypeVar, cast, get_args

import orjson

from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.identity.names import check_partition_key

Change = Literal["full", "metadata_only"]
"""What a version changed against the one before: its data, or only what describes it."""

TableType = Literal["imported", "derived"]

On = Literal["metadata_sha", "data_sha"]
"""What of an upstream counts as a change: all that a version means, or its data alone (early cut-off)."""

Scope = Literal["changed", "all"]
"""What is judged in an environment: what is not current because of it, or also what was not when it began."""

RowOrder = Literal["significant", "ignored"]

_LONGEST = 1e12

HASH_ALGO = "parquet-sha256"
"""How ``data_sha`` is made: SHA-256 over the bytes of Parquet files."""

_SHA = re.compile(r"[0-9a-f]{64}")
_OF_PARENT = {
    **dict.fromkeys(("source", "table", "partition", "version", "data_sha", "environment", "table_id"), str),
    "log_version": int,
}
_OF_SOURCE: dict[str, type] = dict.fromkeys(("project", "table", "version_sha"), str)
_OF_IDENTITY = {
    "asset_key": list,
    **dict.fromkeys(("partition", "table_type", "data_sha", "hash_algo"), str),
    "nrow": int,
    "schema": dict,
    "parents": list,
    "source_lineage": list,
    "code_version": str,
    "message": str,
    "custom": dict,
}
_OF_CODE = {
    "fingerprint": str,
    "details": str,
    "opaque": list,
    "commit": str,
    "remote": str,
    "modified": list,
    "claimed_commit": str,
}
_OF_RUN = {
    "run_id": str,
    "step_key": str,
    "attempt": int,
    **dict.fromkeys(("first_run_id", "code_location", "function"), str),
    "code": dict,
}
_OF_REFRESHED = {"inserted": int, "deleted": int, "unchanged": int, "stored": int, "dead": int}
_OF_FACTS = {
    "created_at": str,
    "writer": dict,
    "run": dict,
    "schema_version": int,
    "kind": str,
    "parquet_sha": str,
    "size_bytes": int,
    "part_count": int,
    "digest": str,
    "previous": str,
    "author": str,
    "null_counts": list,
    "added": dict,
    "refreshed": dict,
    "promoted_from": str,
    "computation": dict,
}
"""The members of what is stored, in this order, and their JSON types."""

_PART = re.compile(r"[0-9a-f]{64}( [0-9a-f]{64})?")
_CREATED_AT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z", re.ASCII)


EXTERNAL = "external:delta"
"""The ``source`` of a parent that is a Delta table of no project; no project can have this name."""


def require_on(on: str, unmade: str) -> None:
    """Raise `InvalidInput` for what is no `On`."""
    if on not in get_args(On):
        raise InvalidInput(f"on is {on!r:.100}; it is 'metadata_sha' or 'data_sha'. No {unmade} was made.")


@dataclass(frozen=True, slots=True)
class Parent:
    """A version that this one was built from.

    ``source`` is the project. ``version`` is the parent's ``metadata_sha``, or, where a whole partitioned table was
    read, its ``partitions_sha``. Of an external Delta table, ``source`` is `EXTERNAL`, ``version`` the SHA-256 of its
    commit, ``table_id`` the table's own id and ``log_version`` the commit's number. ``environment`` is the one in which
    it was read, where that made it and is not the reader's own. ``unknown`` holds members that a newer writer recorded.
    """

    source: str
    table: str
    version: str
    data_sha: str
    partition: str | None = None
    environment: str | None = None
    table_id: str | None = None
    log_version: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        _check_texts("a parent", source=self.source, table=self.table)
        _check_optional_texts("a parent", table_id=self.table_id, environment=self.environment)
        if self.log_version is not None:
            _check_counts("a parent", log_version=self.log_version)
        _check_sha("version of a parent", self.version)
        _check_sha("data_sha of a parent", self.data_sha)
        if self.partition is not None:
            check_partition_key(self.partition)

    def to_json(self) -> dict[str, Any]:
        """The entry of ``parents``; absent, null and empty members are left out."""
        return _stored(self, _OF_PARENT, self.unknown)

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """Parse an entry of ``parents``. Raises `InvalidInput`."""
        known, unknown = _split(members, _OF_PARENT)
        return cls(**known, unknown=unknown)


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """An imported version that the data of this one comes from in the end."""

    project: str
    table: str
    version_sha: str
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        _check_texts("a source", project=self.project, table=self.table)
        _check_sha("version_sha of a source", self.version_sha)

    def to_json(self) -> dict[str, Any]:
        """The entry of ``source_lineage``."""
        return _stored(self, _OF_SOURCE, self.unknown)

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """Parse an entry of ``source_lineage``. Raises `InvalidInput`."""
        known, unknown = _split(members, _OF_SOURCE)
        return cls(**known, unknown=unknown)


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that makes a version this version, and nothing that changes from run to run.

    ``schema`` is a Delta schema as JSON, every field nullable and without field metadata. ``parents`` and
    ``source_lineage`` are sorted by their canonical JSON and free of duplicates, whatever order they were given in.
    ``custom`` is the user's own metadata; whatever has no canonical JSON form raises `InvalidMetadata` by key path.
    ``unknown`` holds members that a newer writer recorded: they are part of the hash. FORMAT, "Identity"; seed 000,
    "Computing metadata_sha".
    """

    asset_key: Sequence[str]
    table_type: TableType
    data_sha: str
    nrow: int
    schema: Mapping[str, Any] = field(hash=False)
    partition: str | None = None
    parents: Sequence[Parent] = ()
    source_lineage: Sequence[SourceVersion] = ()
    code_version: str | None = None
    message: str | None = None
    custom: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    hash_algo: str = HASH_ALGO
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        _check_asset_key(self.asset_key)
        if self.table_type not in ("imported", "derived"):
            raise InvalidInput(f"table_type is 'imported' or 'derived', not {self.table_type!r:.100}.")
        _check_counts("an identity", nrow=self.nrow)
        _check_texts("an identity", hash_algo=self.hash_algo)
        _check_optional_texts("an identity", code_version=self.code_version, message=self.message)
        _check_mappings("an identity", schema=self.schema, custom=self.custom)
        _check_sha("data_sha", self.data_sha)
        if self.partition is not None:
            check_partition_key(self.partition)
        # By way of its canonical text, so that it is what a reader of the log gets, and nobody else's dictionary.
        custom = json.loads(canonical_json({"custom": dict(self.custom)}))["custom"]
        object.__setattr__(self, "custom", custom)
        object.__setattr__(self, "asset_key", tuple(self.asset_key))
        object.__setattr__(self, "parents", _sorted_unique("parents", self.parents, Parent))
        object.__setattr__(self, "source_lineage", _sorted_unique("source_lineage", self.source_lineage, SourceVersion))

    def to_json(self) -> dict[str, Any]:
        """The identity as it is stored and hashed; absent, null and empty members are left out."""
        return _stored(self, _OF_IDENTITY, self.unknown)

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """Parse a stored identity, whatever the order of its members. Raises `InvalidInput`."""
        known, unknown = _split(members, _OF_IDENTITY)
        known["parents"] = [Parent.from_json(entry) for entry in known.get("parents", ())]
        known["source_lineage"] = [SourceVersion.from_json(entry) for entry in known.get("source_lineage", ())]
        return cls(**known, unknown=unknown)

    def metadata_sha(self) -> str:
        """SHA-256 of the canonical JSON: the name of the version (64 hex)."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()


@dataclass(frozen=True, slots=True)
class Writer:
    """The program that wrote a version."""

    name: str
    version: str

    def __post_init__(self) -> None:
        _check_texts("a writer", name=self.name, version=self.version)

    def to_json(self) -> dict[str, str]:
        """The fact ``writer`` as it is stored."""
        return {"name": self.name, "version": self.version}


@dataclass(frozen=True, slots=True)
class Code:
    """The code that made a version: its ``fingerprint``, and what else is known of it.

    ``details`` is the SHA-256 of the document that names its functions, and what it ran on. ``opaque`` says, as
    sentences, what of it could not be followed. ``commit`` is of the git repository at ``remote`` (host and path), and
    ``modified`` are the files that were not as that has them; ``claimed_commit`` is what the environment says it is of,
    where there is no repository.
    """

    fingerprint: str
    details: str | None = None
    opaque: Sequence[str] = ()
    commit: str | None = None
    remote: str | None = None
    modified: Sequence[str] = ()
    claimed_commit: str | None = None

    def __post_init__(self) -> None:
        _check_texts("code", fingerprint=self.fingerprint)
        object.__setattr__(self, "opaque", tuple(self.opaque))
        object.__setattr__(self, "modified", tuple(self.modified))

    def to_json(self) -> dict[str, Any]:
        """The member ``code`` of the fact ``run`` as it is stored."""
        return _stored(self, _OF_CODE)

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """Parse the stored member. Raises `InvalidInput`."""
        known, _ = _split(members, _OF_CODE)
        return cls(**{"fingerprint": "", **known})


@dataclass(frozen=True, slots=True)
class Run:
    """The Dagster step attempt that wrote a version.

    ``first_run_id`` is the run of the first attempt, where a later run made this one; all of them are attempts at one
    computation, which is committed once. ``code_location`` and ``function`` say which definition of the asset it is of,
    and ``code`` what was called, where that is known.
    """

    run_id: str
    step_key: str
    attempt: int
    first_run_id: str | None = None
    code_location: str | None = None
    function: str | None = None
    code: Code | None = None

    def __post_init__(self) -> None:
        _check_texts("a run", run_id=self.run_id, step_key=self.step_key)
        _check_optional_texts("a run", **self._optional())
        _check_counts("a run", attempt=self.attempt)

    def to_json(self) -> dict[str, Any]:
        """The fact ``run`` as it is stored."""
        known: dict[str, Any] = {name: value for name, value in self._optional().items() if value is not None}
        known |= {} if self.code is None else {"code": self.code.to_json()}
        return {"run_id": self.run_id, "step_key": self.step_key, "attempt": self.attempt, **known}

    def _optional(self) -> dict[str, str | None]:
        return {"first_run_id": self.first_run_id, "code_location": self.code_location, "function": self.function}


@dataclass(frozen=True, slots=True)
class AddedRows:
    """How rows came to those of the head: the ``mode``, the ``digest`` of what was given, and what came of it.

    ``inserted``, ``updated`` and ``removed`` count rows; a row that was given but is there already is none of them.
    """

    mode: str
    digest: str
    inserted: int
    updated: int
    removed: int = 0

    def __post_init__(self) -> None:
        _check_texts("added", mode=self.mode, digest=self.digest)
        _check_counts("added", inserted=self.inserted, updated=self.updated, removed=self.removed)

    def to_json(self) -> dict[str, Any]:
        """The fact ``added`` as it is stored."""
        counts = {"inserted": self.inserted, "updated": self.updated}
        return {
            "mode": self.mode,
            "digest": self.digest,
            **counts,
            **({"removed": self.removed} if self.removed else {}),
        }


@dataclass(frozen=True, slots=True)
class RefreshedRows:
    """What a version has of the head that it replaces, where it was not stored whole, in rows.

    ``inserted`` and ``deleted`` are what came and went, ``unchanged`` what both have; ``stored`` what was written, and
    ``dead`` what its files hold besides its rows.
    """

    inserted: int
    deleted: int
    unchanged: int
    stored: int
    dead: int

    def __post_init__(self) -> None:
        _check_counts("refreshed", **self.to_json())

    def to_json(self) -> dict[str, int]:
        """The fact ``refreshed`` as it is stored."""
        return {name: getattr(self, name) for name in _OF_REFRESHED}


@dataclass(frozen=True, slots=True)
class Computation:
    """Which computation made a version: its `computation_key`, and the ``seconds`` that it took, writing included."""

    key: str
    seconds: float

    def __post_init__(self) -> None:
        _check_sha("key of a computation", self.key)
        if type(self.seconds) not in (int, float) or not 0 <= self.seconds < _LONGEST:
            raise InvalidInput(
                f"The seconds of a computation must be a number from 0 on, not {self.seconds!r:.100}. Nothing was "
                "written."
            )

    def to_json(self) -> dict[str, Any]:
        """The fact ``computation`` as it is stored."""
        return {"key": self.key, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a version's making and storage; none of it is hashed.

    ``created_at`` is RFC 3339 in UTC with microseconds and ``Z`` (`created_at_text`), ``size_bytes`` the sum over the
    parts, ``parquet_sha`` the SHA-256 of the only part (absent where there are more), ``digest`` the text of a rows
    digest, ``previous`` the ``metadata_sha`` of the head that was replaced, ``author`` who wrote it, ``null_counts``
    the nulls in each top-level column. ``added`` says how rows came to those of the head, where they did not replace
    them, and ``refreshed`` what was kept of these, where they did; ``promoted_from`` is the environment that made it,
    and ``computation`` which computation did, where that is remembered. FORMAT, "Identity".
    """

    created_at: str
    writer: Writer
    size_bytes: int
    part_count: int
    digest: str
    run: Run | None = None
    parquet_sha: str | None = None
    previous: str | None = None
    author: str | None = None
    null_counts: Sequence[int] = ()
    added: AddedRows | None = None
    refreshed: RefreshedRows | None = None
    promoted_from: str | None = None
    computation: Computation | None = None
    schema_version: int = 3
    kind: str = "table"
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def __post_init__(self) -> None:
        _check_texts("the facts", created_at=self.created_at, digest=self.digest, kind=self.kind)
        _check_optional_texts("the facts", author=self.author, promoted_from=self.promoted_from)
        _check_counts(
            "the facts", size_bytes=self.size_bytes, part_count=self.part_count, schema_version=self.schema_version
        )
        _check_kind("writer", self.writer, Writer)
        kinds = {"run": Run, "added": AddedRows, "refreshed": RefreshedRows, "computation": Computation}
        for name, kind in kinds.items():
            if (value := getattr(self, name)) is not None:
                _check_kind(name, value, kind)
        if isinstance(self.null_counts, str) or any(type(count) is not int for count in self.null_counts):
            raise InvalidInput(f"null_counts are whole numbers, one a column, not {self.null_counts!r:.100}.")
        if not _CREATED_AT.fullmatch(self.created_at):
            raise InvalidInput(f"created_at must look like 2024-05-01T12:00:00.000000Z, not {self.created_at!r:.100}.")
        for name in ("parquet_sha", "previous"):
            if (value := getattr(self, name)) is not None:
                _check_sha(name, value)
        object.__setattr__(self, "null_counts", tuple(self.null_counts))

    def to_json(self) -> dict[str, Any]:
        """The facts as they are stored; absent, null and empty members are left out."""
        return _stored(self, _OF_FACTS, self.unknown)

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """Parse stored facts. Raises `InvalidInput`."""
        known, unknown = _split(members, _OF_FACTS)
        writer, _ = _split(known.get("writer", {}), {"name": str, "version": str})
        known["writer"] = Writer(**writer)
        if "run" in known:
            run, _ = _split(known["run"], _OF_RUN)
            code: dict[str, Any] = {"code": Code.from_json(run["code"])} if "code" in run else {}
            known["run"] = Run(**{**run, **code})
        if "added" in known:
            counts = {"inserted": int, "updated": int, "removed": int}
            added, _ = _split(known["added"], {"mode": str, "digest": str, **counts})
            known["added"] = AddedRows(**added)
        if "refreshed" in known:
            refreshed, _ = _split(known["refreshed"], _OF_REFRESHED)
            known["refreshed"] = RefreshedRows(**refreshed)
        if "computation" in known:
            computation: dict[str, Any] = known["computation"]
            known["computation"] = Computation(computation.get("key", ""), computation.get("seconds", -1))
        return cls(**known, unknown=unknown)


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version as a commit records it.

    Promises that ``metadata_sha`` is that of the identity.
    """

    identity: Identity
    facts: Facts
    metadata_sha: str
    change: Change

    def to_json(self) -> dict[str, Any]:
        """An entry of ``commitInfo.dagsterVersioned.versions``."""
        return {
            "identity": self.identity.to_json(),
            "facts": self.facts.to_json(),
            "metadata_sha": self.metadata_sha,
            "change": self.change,
        }

    @classmethod
    def of(cls, identity: Identity, facts: Facts, change: Change) -> Self:
        """The entry of a new version."""
        return cls(identity, facts, identity.metadata_sha(), change)

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """Parse an entry and recompute its ``metadata_sha`` over what is stored.

        Members that this version of the package does not know are kept and hashed. Raises `IntegrityError` if the
        hash differs, or if the entry is not one.
        """
        try:
            known, _ = _split(members, {"identity": dict, "facts": dict, "metadata_sha": str, "change": str})
            stored: dict[str, Any] = known["identity"]
            entry = cls(
                Identity.from_json(stored), Facts.from_json(known["facts"]), known["metadata_sha"], known["change"]
            )
            recomputed = hashlib.sha256(canonical_json(stored)).hexdigest()
        except (InvalidInput, KeyError, TypeError) as error:
            raise IntegrityError(
                f"An entry of the version log is not one ({error}). Nothing was changed. Run verify on the table."
            ) from error
        if recomputed != entry.metadata_sha or entry.identity.to_json() != stored:
            raise IntegrityError(
                f"The identity stored for version {entry.metadata_sha} has the SHA {recomputed}: it was altered, or it "
                "was not written in its canonical form. Nothing was changed. Run verify on the table."
            )
        if entry.change not in ("full", "metadata_only"):
            raise IntegrityError(f"Version {entry.metadata_sha} has the unknown change {entry.change!r:.100}.")
        return entry


def has_sha(identity: Mapping[str, Any], metadata_sha: str) -> bool:
    """Whether an identity as it is stored certainly has this SHA; much quicker than to parse the entry, which decides
    where it does not.

    Sorted JSON is the canonical text unless there are floats or keys beyond ASCII, so what has the SHA is the identity.
    """
    return hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest() == metadata_sha


def data_sha(part_shas: Sequence[str], row_order: RowOrder) -> str:
    """The SHA of a version's data, from the SHA-256 (64 hex) of its parts in ordinal order.

    That of a part with a deletion vector is followed by a space and the SHA-256 of the vector. One part without one:
    its own. Any others: SHA-256 over each part's text and a newline, in ordinal order where row order is significant,
    sorted where it is ignored; so the data of no part at all (``allow_empty``) has the SHA-256 of nothing. FORMAT,
    "Identity"; seed 000, "Computing data_sha".
    """
    for sha in part_shas:
        if not isinstance(sha, str) or not _PART.fullmatch(sha):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"The SHA of a part must be 64 lowercase hex characters, with as many again after a space where it has "
                f"a deletion vector, not {sha!r:.150}."
            )
    if len(part_shas) == 1 and _SHA.fullmatch(part_shas[0]):
        return part_shas[0]
    lines = sorted(part_shas) if row_order == "ignored" else part_shas
    return hashlib.sha256("".join(f"{sha}\n" for sha in lines).encode()).hexdigest()


def partitions_sha(versions: Mapping[str, str]) -> str:
    """The SHA of a partitioned table as a whole, from each partition's ``metadata_sha``.

    SHA-256 over the sorted lines ``partition NUL metadata_sha NL``. A partition key holds no NUL, so no two tables
    share their lines. FORMAT, "Identity".
    """
    for partition, sha in versions.items():
        check_partition_key(partition)
        _check_sha(f"metadata_sha of partition {partition!r:.100}", sha)
    lines = sorted(f"{partition}\0{sha}\n".encode() for partition, sha in versions.items())
    return hashlib.sha256(b"".join(lines)).hexdigest()


def created_at_text(timestamp_ms: int) -> str:
    """An in-commit timestamp (milliseconds since 1970) as facts record it: RFC 3339 in UTC, microseconds, ``Z``."""
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC).replace(microsecond=timestamp_ms % 1000 * 1000)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# What a caller passes is checked as strictly as what is read back: a version that no reader accepts is never made.


def _check_sha(what: str, sha: object) -> None:
    if not isinstance(sha, str) or not _SHA.fullmatch(sha):
        raise InvalidInput(f"The {what} must be 64 lowercase hex characters, not {sha!r:.100}.")


def _check_asset_key(key: object) -> None:
    parts = cast("Sequence[object]", key) if isinstance(key, list | tuple) else ()
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise InvalidInput(
            f"asset_key must be the parts of a key, such as ['flights', 'daily'], each a text that is not empty, not "
            f"{key!r:.200}. Nothing was written."
        )


def _check_texts(of: str, **members: object) -> None:
    for name, value in members.items():
        if not isinstance(value, str) or not value:
            raise InvalidInput(
                f"The {name} of {of} must be a text that is not empty, not {value!r:.100}. Nothing was written. "
                "Pass a str."
            )


def _check_optional_texts(of: str, **members: object) -> None:
    for name, value in members.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInput(
                f"The {name} of {of} must be a text, not {value!r:.100}. Nothing was written. "
                f"Pass {name}={str(value)!r:.100}."
            )


def _check_counts(of: str, **members: object) -> None:
    for name, value in members.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidInput(
                f"The {name} of {of} must be a whole number from 0 on, not {value!r:.100}. Nothing was written. "
                "Pass an int."
            )


def _check_mappings(of: str, **members: object) -> None:
    for name, value in members.items():
        if not isinstance(value, Mapping):
            raise InvalidInput(f"The {name} of {of} must be a mapping, not {value!r:.100}. Nothing was written.")


def _check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(
            f"{name} must be given as {kind.__name__}, not {value!r:.100}. Nothing was written. Pass a {kind.__name__}."
        )


_Entry = TypeVar("_Entry", Parent, SourceVersion)


def _sorted_unique(name: str, entries: Iterable[_Entry], kind: type[_Entry]) -> tuple[_Entry, ...]:
    entries = tuple(entries)
    for entry in entries:
        _check_kind(f"An entry of {name}", entry, kind)
    unique = {canonical_json(entry.to_json()): entry for entry in entries}
    return tuple(unique[key] for key in sorted(unique))


def _stored(value: object, members: Iterable[str], unknown: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The members, and those that are not known, but for ``None``, ``""``, ``[]`` and ``{}``; zero and false stay."""
    known = {name: _json(getattr(value, name)) for name in members}
    return {
        name: member
        for name, member in (*known.items(), *(unknown or {}).items())
        if member is not None and member != "" and member != [] and member != {}
    }


def _json(value: Any) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, tuple | list):
        entries = cast("Sequence[Any]", value)  # of wide tables, counts of nulls
        return [entry if isinstance(entry, str | int) else _json(entry) for entry in entries]
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value.to_json()


def _split(members: object, types: Mapping[str, type]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The members with known names, checked for their JSON type, and the others; null members are in neither."""
    if not isinstance(members, dict):
        raise InvalidInput(f"An object was expected, not {members!r:.100}.")
    known: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", members).items():
        if value is None:
            continue
        if (expected := types.get(name)) is None:
            unknown[name] = value
        elif not isinstance(value, expected) or isinstance(value, bool):
            raise InvalidInput(f"The member {name!r} must be a {expected.__name__}, not {value!r:.100}.")
        else:
            known[name] = value
    return known, unknown
