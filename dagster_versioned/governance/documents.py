"""The documents of a governed project: where its bytes are, how they are read, and how they came to be there.

Code alone writes them. Where the bytes are follows from the history of events (`MigrationHistory.ref`), so a hand that
edits ref.json is found out (`check_agreement`). Events stand in the order in which they were recorded; nothing
relies on their times, because clocks jump.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NoReturn, Self, TypeVar, cast
from uuid import uuid4

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    model_validator,
)

from dagster_versioned.errors import GovernanceError, InvalidInput, InvalidName
from dagster_versioned.storage.location import Location

SCHEMA_VERSION = 1
MAX_DOCUMENT_BYTES = 1 << 20
"""A document beyond this is refused unread."""

Verify = Literal["structural", "content"]
RegistrationKind = Literal["registered", "attached"]
EventKind = Literal[RegistrationKind, "migrated", "decommissioned"]

_PROJECT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_ADVICE = (
    "Nothing was changed. Code alone writes these documents: `dagster-versioned gov status` compares them, and "
    "`git log` of the registry shows who changed what."
)


def project_name(text: str) -> str:
    """The text, if it can name a governed project: an ASCII letter, then up to 127 of letters, digits, ``_`` and ``-``.

    So it is one plain segment of a path. Raises `InvalidName`.
    """
    if not _PROJECT_NAME.fullmatch(text):
        raise InvalidName(
            f"{text!a:.200} is not a project name: it must be an ASCII letter followed by up to 127 ASCII letters, "
            "digits, _ or -. Nothing was changed. Choose another name."
        )
    return text


def _parse_time(value: object) -> object:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("it is a time without a zone")
        return value.astimezone(UTC)
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise ValueError("it is no RFC 3339 time")
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except OverflowError:
        raise ValueError("it is no RFC 3339 time") from None


def _rfc3339(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


Instant = Annotated[datetime, BeforeValidator(_parse_time), PlainSerializer(_rfc3339, return_type=str)]
"""A time; RFC 3339 in UTC where it is stored."""

_Line = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
_Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]
_Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
_DottedName = Annotated[
    str, StringConstraints(max_length=255, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*(::[A-Za-z_.][A-Za-z0-9_.]*)?$")
]
_Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
_Methods = Mapping[_Word, Mapping[_Word, _DottedName]]


class _Document(BaseModel):
    """What is stored under one key: a JSON object of known members, with the version of its shape."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        populate_by_name=True,  # from 2.11 on also called validate_by_name
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    schema_version: Literal[1] = SCHEMA_VERSION

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Read a stored document; ``where`` names it in messages.

        Raises `GovernanceError` for whatever is not exactly such a document, without repeating what is in it.
        """
        check_json(data, where)
        try:
            return cls.model_validate_json(data, strict=True)
        except ValidationError as error:
            faults = _faults(error)
        # Outside the handler: the validation error holds the input, which may hold a secret.
        raise _refusal(where, faults)

    def to_bytes(self) -> bytes:
        """JSON with sorted keys, indented by two, with a newline at the end: equal documents are equal bytes."""
        document = self.model_dump(mode="json", exclude_none=True)
        return (json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


class Previous(Location):
    """A place where a project's bytes were, ``until`` a time (seed 003, "Anatomy")."""

    until: Instant

    @classmethod
    def of(cls, location: Location, until: datetime) -> Self:
        """The place that was left at a time (with a zone)."""
        return cls.model_validate({**location.to_json(), "until": until})

    @property
    def location(self) -> Location:
        """The place alone."""
        return Location.model_validate(self.model_dump(exclude={"until"}))


class Ref(_Document):
    """ref.json: the only place that new bytes go to, and the places before it, oldest first (seed 003, "Anatomy").

    ``aborted`` is the id of the migration that was called off last, if one was since the last move: it makes ref.json
    another document, so that the switch of whoever still runs that migration fails.
    """

    current: Location
    previous: tuple[Previous, ...] = ()
    aborted: _Id | None = None

    def says_the_same_as(self, other: "Ref | None") -> bool:
        """Whether both name the same places."""
        return other is not None and (self.current, self.previous) == (other.current, other.previous)


class Dispatch(_Document):
    """dispatch.json: per language, which method reads in which context; each has a ``default``."""

    methods: _Methods

    @model_validator(mode="after")
    def _has_defaults(self) -> Self:
        if not self.methods:
            raise ValueError("it names no language")
        for language, contexts in self.methods.items():
            if "default" not in contexts:
                raise ValueError(f"the language {language} has no context 'default'")
        return self

    def method(self, language: str = "python", context: str | None = None) -> str:
        """The method's name, as it stands; whether it may be called is asked elsewhere.

        Raises `GovernanceError`, listing what there is.
        """
        contexts = self.methods.get(language)
        if contexts is None:
            raise GovernanceError(
                f"dispatch.json has no methods for the language {language!a:.100}; it has {', '.join(self.methods)}. "
                "Nothing was read. Add one: `dagster-versioned gov dispatch`."
            )
        method = contexts.get(context or "default")
        if method is None:
            raise GovernanceError(
                f"dispatch.json has no context {context!a:.100} for {language}; it has {', '.join(sorted(contexts))}. "
                "Nothing was read. Ask for one of these, or add it: `dagster-versioned gov dispatch`."
            )
        return method


DEFAULT_DISPATCH = Dispatch(
    methods={
        "python": {"default": "dagster_versioned.read", "cached": "dagster_versioned.read_cached"},
        "r": {"default": "datom::datom_read"},
    }
)
"""What a project is registered with: our own readers, and datom's in R."""


class Event(BaseModel):
    """One entry of migration_history.json: bytes got a place, moved, or were given up.

    In JSON, ``source`` is ``from`` and ``target`` is ``to``. ``bytes_copied`` is in bytes; the counts and ``verified``
    belong to migrations.
    """

    model_config = _Document.model_config

    id: _Id = Field(default_factory=lambda: uuid4().hex)
    kind: EventKind
    timestamp: Instant
    actor: _Line
    source: Annotated[Location | None, Field(alias="from")] = None
    target: Annotated[Location | None, Field(alias="to")] = None
    reason: _Line | None = None
    objects_copied: _Count | None = None
    bytes_copied: _Count | None = None
    verified: Verify | None = None

    @model_validator(mode="after")
    def _places_of_its_kind(self) -> Self:
        ends = (self.source is not None, self.target is not None)
        expected = {"migrated": (True, True), "decommissioned": (True, False)}.get(self.kind, (False, True))
        if ends != expected:
            raise ValueError(f"an event {self.kind!r} has other places ('from', 'to')")
        if self.kind == "migrated" and self.source == self.target:
            raise ValueError("a migration ends where it began")
        return self


class MigrationHistory(_Document):
    """migration_history.json, append-only.

    Promises that the events follow from one another: each begins where the one before it ended, and no id occurs twice.
    """

    events: tuple[Event, ...] = ()

    @model_validator(mode="after")
    def _is_a_chain(self) -> Self:
        place: Location | None = None
        ids: set[str] = set()
        for number, event in enumerate(self.events):
            if event.id in ids:
                raise ValueError(f"events.{number} has the id of an earlier event")
            ids.add(event.id)
            if event.source != place:
                raise ValueError(f"events.{number} does not begin where the project was")
            place = event.target
        return self

    def with_event(self, event: Event) -> "MigrationHistory":
        """The history with one more event. Raises `GovernanceError` where it does not follow."""
        try:
            return MigrationHistory(events=(*self.events, event))
        except ValidationError as error:
            faults = _faults(error)
        raise _refusal("The event for migration_history.json", faults)

    def without_last(self) -> "MigrationHistory":
        """The history before its last event."""
        return MigrationHistory(events=self.events[:-1])

    def event(self, event_id: str) -> Event | None:
        """The event of an id, such as a migration's."""
        return next((event for event in self.events if event.id == event_id), None)

    def continues(self, other: "MigrationHistory") -> bool:
        """Whether this is the other history, or that and later events."""
        return self.events[: len(other.events)] == other.events

    def ref(self) -> Ref | None:
        """The ref.json that follows from the events; ``None`` before the first, and after a decommission."""
        previous = tuple(
            Previous.of(event.source, event.timestamp) for event in self.events if event.source is not None
        )
        current = self.events[-1].target if self.events else None
        return Ref(current=current, previous=previous) if current is not None else None


class PendingMigration(_Document):
    """migration.json, which lies beside ref.json from when a migration is prepared until it is recorded or aborted.

    In JSON, ``source`` is ``from`` and ``target`` is ``to``.
    """

    id: _Id = Field(default_factory=lambda: uuid4().hex)
    source: Annotated[Location, Field(alias="from")]
    target: Annotated[Location, Field(alias="to")]
    actor: _Line
    started_at: Instant
    reason: _Line | None = None
    verify: Verify = "structural"
    delete_source: bool = False


_KeyId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Pem = Annotated[str, StringConstraints(max_length=4096, pattern=r"^-----BEGIN PUBLIC KEY-----\n")]
KeyRole = Literal["sign", "approve"]


class KeyRevocation(BaseModel):
    """Since when a key is not trusted any more, by whose word, and why.

    ``witness`` is the commit of the project's git mirror that says what it had signed by then.
    """

    model_config = _Document.model_config

    at: Instant
    by: _Line
    reason: _Line | None = None
    witness: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40,64}$")] | None = None


class RegisteredKey(BaseModel):
    """A public key that is, or was, trusted for a project: whose it is (``name``), and what for."""

    model_config = _Document.model_config

    id: _KeyId
    name: _Line
    public_key: _Pem
    roles: tuple[KeyRole, ...]
    added_at: Instant
    added_by: _Line
    revoked: KeyRevocation | None = None


class Keys(_Document):
    """keys.json: the keys that are trusted for a project, and what is required of its versions."""

    keys: tuple[RegisteredKey, ...] = ()
    required_approvals: Annotated[int, Field(ge=0, le=100)] = 0
    signatures_required: bool = False

    @model_validator(mode="after")
    def _are_named_once(self) -> Self:
        living = [key.name for key in self.keys if key.revoked is None]
        for what, values in (("id", [key.id for key in self.keys]), ("name", living)):
            if len(set(values)) < len(values):
                raise ValueError(f"two keys have the same {what}")
        return self

    def living(self, name: str) -> RegisteredKey | None:
        """The key of a name that is trusted."""
        return next((key for key in self.keys if key.name == name and key.revoked is None), None)

    def key(self, name: str) -> RegisteredKey:
        """The key of a name, or of the beginning of an id. Raises `InvalidInput` where not just one has it."""
        if (living := self.living(name)) is not None:
            return living
        named = [key for key in self.keys if key.name == name]
        found = named or [key for key in self.keys if len(name) >= 8 and key.id.startswith(name)]
        if len(found) != 1:
            known = ", ".join(f"{key.name} ({key.id[:16]})" for key in self.keys) or "none"
            raise InvalidInput(
                f"{'No key' if not found else 'More than one key'} is {name!a:.100}. Nothing was changed. There are: "
                f"{known}."
            )
        return found[0]

    def with_key(self, key: RegisteredKey) -> "Keys":
        """The keys with one more, or with this one in the place of that of its id. Raises `GovernanceError`."""
        others = [other for other in self.keys if other.id != key.id]
        place = next((number for number, other in enumerate(self.keys) if other.id == key.id), len(others))
        return self.replaced(keys=(*others[:place], key, *others[place:]))

    def replaced(self, **members: Any) -> "Keys":
        """The same document with other members. Raises `GovernanceError` where it is none then."""
        try:
            # Not dict(self): what has a member ``keys`` looks like a mapping.
            return Keys(**{name: getattr(self, name) for name in Keys.model_fields} | members)
        except ValidationError as error:
            faults = _faults(error)
        raise _refusal("keys.json", faults)


Document = TypeVar("Document", Ref, Dispatch, MigrationHistory, PendingMigration, Keys)

REF, DISPATCH, HISTORY, PENDING = "ref.json", "dispatch.json", "migration_history.json", "migration.json"
IN_ORDER = (HISTORY, REF, DISPATCH, PENDING)
"""A history that runs ahead is expected, a ref.json that does is not; so the history goes first to the mirror."""


@dataclass(frozen=True)
class ProjectDocuments:
    """All that governance knows of one project, read together."""

    ref: Ref
    dispatch: Dispatch
    history: MigrationHistory
    pending: PendingMigration | None = None


def check_agreement(project: str, ref: Ref | None, history: MigrationHistory, where: str) -> None:
    """Check that ref.json is what the history implies, as it always is in the registry: one commit writes both.

    Raises `GovernanceError` with the repair.
    """
    if not _agree(ref, history):
        raise GovernanceError(
            f"ref.json of {project} at {where} was edited by hand: it does not say what migration_history.json implies "
            f"(current: {_place(history.ref())}). Nothing was changed. Write it anew from the history: "
            f"`dagster-versioned gov ref {project} --repair`."
        )


def check_mirrored_agreement(project: str, ref: Ref | None, history: MigrationHistory, where: str) -> None:
    """As `check_agreement`, for two documents that are put one after the other: the history may be an event ahead."""
    if not (history.events and _agree(ref, history.without_last())):
        check_agreement(project, ref, history, where)


def _agree(ref: Ref | None, history: MigrationHistory) -> bool:
    implied = history.ref()
    return implied is None if ref is None else ref.says_the_same_as(implied)


def _place(ref: Ref | None) -> str:
    return ref.current.uri if ref is not None else "none"


def check_json(data: bytes, where: str) -> dict[str, Any]:
    """Check what a strict parser of members would pass over: size, members that occur twice, a newer shape.

    Returns the document. Raises `GovernanceError`.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise _refusal(where, f"it has more than {MAX_DOCUMENT_BYTES} bytes")
    try:
        document: object = json.loads(data.decode(), object_pairs_hook=_members_once, parse_constant=_no_constant)
    except _TwiceError:
        raise _refusal(where, "a member occurs twice in one object") from None
    except (ValueError, RecursionError) as error:
        raise _refusal(where, f"it is no JSON text in UTF-8 ({type(error).__name__})") from None
    if not isinstance(document, dict):
        raise _refusal(where, "it is no JSON object")
    members = cast("dict[str, Any]", document)
    version = members.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version < 1:
        raise _refusal(where, "its schema_version is no whole number from 1")
    if version > SCHEMA_VERSION:
        raise GovernanceError(
            f"{where} was written by a newer dagster-versioned (schema_version {min(version, 10**6)}; this one "
            f"knows {SCHEMA_VERSION}). Nothing was changed. Upgrade: `pip install --upgrade dagster-versioned`."
        )
    return members


class _TwiceError(ValueError):
    pass


def _members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _TwiceError
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _faults(error: ValidationError) -> str:
    """What is wrong, by the names of members and never by their values."""
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    shown = [
        f"{'.'.join(map(str, fault['loc']))[:100] or 'document'}: {fault['msg'].removeprefix('Value error, ')}"
        for fault in faults[:5]
    ]
    text = "; ".join(shown) + ("; …" if len(faults) > len(shown) else "")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _refusal(where: str, reason: str) -> GovernanceError:
    return GovernanceError(f"{where} cannot be used: {reason}. {_ADVICE}")


def as_line(text: str, what: str) -> str:
    """The text, if it can stand in a document as an actor or a reason: one line of 1 to 1000 characters.

    Raises `InvalidInput`.
    """
    if not 0 < len(text) <= 1000 or re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text):
        raise InvalidInput(f"The {what} is not one line of 1 to 1000 characters. Nothing was changed.")
    return text
