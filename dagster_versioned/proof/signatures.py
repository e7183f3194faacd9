"""What attestations prove, given the keys that are trusted: by whom commits are signed, and what is approved."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from dagster_versioned.errors import GovernanceError, IntegrityError, InvalidInput, VersionedError
from dagster_versioned.governance.documents import Keys, RegisteredKey
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.attest import store_of
from dagster_versioned.proof.envelope import MAX_BYTES, Envelope
from dagster_versioned.proof.keys import PublicKey
from dagster_versioned.proof.statement import (
    ACTIONS,
    APPROVAL,
    Place,
    approved_until,
    carried_versions,
    outcome_of,
    provenance,
    versions_of,
)
from dagster_versioned.tables.attestations import list_attestations
from dagster_versioned.tables.documents.export import read_export
from dagster_versioned.tables.history import REDACTION, CommitRecord, History, Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.table_record import TableRecord

Role = Literal["sign", "approve"]

Standing = Literal["signed", "unsigned", "stranger", "revoked", "elsewhere", "other"]
"""``signed``: by a trusted key, of just this commit here; ``stranger``: by keys that nobody trusts; ``revoked``: by one
that is not trusted any more; ``elsewhere``: by a trusted key, for the environment, name or project that it came from,
and nothing after it is signed here; ``other``: what is signed there is of something else."""


@dataclass(frozen=True)
class Revocation:
    """Since when a key is not trusted any more, and why.

    ``witnessed`` are the SHA-256 of the attestations that a witness had seen by then, which hold; without a witness,
    nothing that the key signed does: whoever has it can date a statement back.
    """

    at: datetime
    reason: str | None = None
    witnessed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TrustedKey:
    """A key that is, or was, trusted for a project, with the name of who has it."""

    key: PublicKey
    name: str
    roles: frozenset[Role] = frozenset({"sign"})
    revoked: Revocation | None = None
    is_named: bool = True
    """Whether the name is that of who has it: a person with two keys is one person."""

    @property
    def owner(self) -> str:
        """Who has it, as far as that is known."""
        return self.name if self.is_named else self.key.key_id

    def __str__(self) -> str:
        return f"{self.name} ({self.key.key_id[:16]})"


@dataclass(frozen=True)
class TrustedKeys:
    """The keys of a project, and what it requires of promotions."""

    keys: tuple[TrustedKey, ...] = ()
    required_approvals: int = 0
    signatures_required: bool = False

    @classmethod
    def of(cls, keys: Iterable[PublicKey]) -> "TrustedKeys":
        """Keys that somebody brought along, trusted to sign and to approve."""
        roles: frozenset[Role] = frozenset({"sign", "approve"})
        return cls(tuple(TrustedKey(key, "a key that was named", roles, is_named=False) for key in keys))

    def who_signed(self, envelope: Envelope, role: Role | None = None) -> list[TrustedKey]:
        """Those of the keys, with a role if one is named, that signed an envelope; revoked ones too."""
        signed = set(envelope.signers(each.key for each in self.keys))
        return [each for each in self.keys if each.key.key_id in signed and (role is None or role in each.roles)]

    def who_held(self, sha: str, envelope: Envelope, role: Role) -> list[TrustedKey]:
        """The same, of those whose signature is believed; ``sha`` names the attestation."""
        return [each for each in self.who_signed(envelope, role) if _holds(each, sha)]

    def among(self, keys: "TrustedKeys") -> "TrustedKeys":
        """The same requirements, and of the keys those that are among others."""
        ids = {each.key.key_id for each in keys.keys}
        return replace(self, keys=tuple(each for each in self.keys if each.key.key_id in ids))


@dataclass(frozen=True)
class CommitSignatures:
    """What the attestations of one commit prove: the ``standing``, the names of who signed, and a sentence.

    ``notes`` say who approves of it and who has computed it again.
    """

    log_version: int
    standing: Standing
    by: tuple[str, ...] = ()
    text: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_signatures(
    project: Project, table: str, keys: TrustedKeys, versions: Sequence[Version] | None = None
) -> list[CommitSignatures]:
    """What is proved of each commit of a table that makes versions, or of those of ``versions`` alone.

    Raises `TableNotFound`, `StorageError`.
    """
    opened = project.table(table)
    history = opened.state.history
    found = _Attestations(project, opened)
    if versions is not None:
        records = [history.record(at) for at in sorted({version.log_version for version in versions})]
        return [_judge(record, found, keys) for record in records]
    judged = [_judge(record, found, keys) for record in history.records if record.stored]
    return [*judged, *_unsigned_end(history, found, keys)]


def _unsigned_end(history: History, found: "_Attestations", keys: TrustedKeys) -> Iterator[CommitSignatures]:
    """What other programs changed, and what was dropped, since the last signed commit, which covers what is before."""
    for record in _backwards(history):
        dropped = record.member("dropped")
        if not record.is_foreign and _is_signed_here(record, found, keys):
            return
        if record.is_foreign or dropped:
            what = "was dropped" if dropped else f"was changed by another program ({record.operation})"
            yield CommitSignatures(record.log_version, "unsigned", (), f"{what}, and nobody has signed it")


def missing_approvals(
    project: Project, table: str, version: Version, keys: TrustedKeys, count: int, action: str = "promote"
) -> str | None:
    """Why a version is not approved by so many people; ``None`` where it is.

    Who signed the version itself does not count: nobody approves of their own. Raises `StorageError`.
    """
    opened = project.table(table)
    record = opened.state.history.record(version.log_version)
    found, now = _Attestations(project, opened), datetime.now(UTC)
    places, heard = found.places(record), list(found.of(record))
    if not found.is_as_signed(record, keys) or not _is_signed(heard, places[0], record, keys):
        return "no trusted key has signed it, so whose it is, and who may not approve of it, is not known"
    approvals = [
        (until, sha, envelope)
        for sha, envelope in heard
        if (until := approved_until(envelope.statement(), places[0], record, action)) is not None
    ]
    living = [(sha, envelope) for until, sha, envelope in approvals if until > now]
    approvers = {key.owner for sha, envelope in living for key in keys.who_held(sha, envelope, "approve")}
    authors = {key.owner for key in _authors(heard, places, record, keys)}
    given, expired = approvers - authors, len(approvals) - len(living)
    if len(given) >= count:
        return None
    of = f", of {count} that are required" if count > 1 else ""
    more = f"; {expired} expired" if expired else ""
    own = "; who made it does not count" if approvers & authors else ""
    return f"{len(given)} trusted keys have approved it{of}{more}{own}"


_Heard = tuple[str, Envelope]
"""An attestation, by the SHA-256 of what is stored."""


class _Attestations:
    """The attestations of a table's commits."""

    def __init__(self, project: Project, table: VersionedTable) -> None:
        self._project = project
        self._table = table
        self._record = TableRecord.of(table.state.snapshot)
        self._export = read_export(project.data)
        self._signed_here: dict[int, bool] = {}
        self._newest: int | None = None
        self.history = table.state.history

    def of(self, record: CommitRecord) -> "Iterator[_Heard]":
        """Those of a commit that can be read, with the SHA-256 of each. Raises `StorageError`."""
        store = store_of(self._project, str(self._table.name), record.log_version)
        for key in list_attestations(store, record.sha256).get(record.sha256, ()):
            try:
                envelope = Envelope.parse(store.get_range(key, 0, MAX_BYTES + 1))
                envelope.statement()
            except IntegrityError:
                continue
            sha = key.rpartition("/")[2].removesuffix(".json")
            if envelope.sha == sha:
                yield sha, envelope

    @cached_property
    def _redactions(self) -> dict[int, CommitRecord]:
        """By log version, the last commit that says of one before it that it is redacted."""
        said = ((record, record.member(REDACTION)) for record in self.history.records)
        return {
            int(at): record
            for record, redaction in said
            if redaction is not None
            for at in redaction["entries"]
            if at.isdecimal() and int(at) < record.log_version
        }

    def redacted_by(self, record: CommitRecord) -> CommitRecord | None:
        """The commit on whose word one is redacted; itself, where no later one says so."""
        by = self._redactions.get(record.log_version)
        return record if by is None and record.redacted_outline is not None else by

    def is_as_signed(self, record: CommitRecord, keys: TrustedKeys) -> bool:
        """Whether a commit is what was signed of it: as it was, or redacted by one that a trusted key has signed.

        A redacted one has the name that it had, which whoever writes to the store can claim of other bytes.
        """
        by = self.redacted_by(record)
        return by is None or (by is not record and _is_signed_here(by, self, keys))

    def once(self, log_version: int, look: Callable[[], bool]) -> bool:
        """What looking at a commit gives, or gave."""
        if log_version not in self._signed_here:
            self._signed_here[log_version] = look()
        return self._signed_here[log_version]

    def covering(self, log_version: int, keys: TrustedKeys) -> int | None:
        """The newest commit after one that is signed for the place where it is. All after it are looked at once."""
        if self._newest is None:
            ours = (each for each in _backwards(self.history) if not each.is_foreign)
            self._newest = next((each.log_version for each in ours if _is_signed_here(each, self, keys)), -1)
        return self._newest if self._newest > log_version else None

    def places(self, record: CommitRecord) -> list[Place]:
        """Where a commit may have been made: here, under a name that the table had, or where it was exported from."""
        here = Place.of(self._project, self._table.name, record.log_version)
        former = [Place(name, table, here.environment, here.generation) for name, table in self._record.former]
        found = [here, *former]
        if self._export is not None:
            exported = [(self._export.environment, self._export.generation)]
            found += [Place(each.project, each.table, *exported[0]) for each in list(found)]
        return found


def _is_provenance(statement: Mapping[str, object], place: Place, record: CommitRecord) -> bool:
    try:
        return statement == provenance(place, record)
    except (VersionedError, LookupError, TypeError):
        return False


def _is_signed_here(record: CommitRecord, found: _Attestations, keys: TrustedKeys) -> bool:
    """Whether a trusted key has signed a commit for the very place that it is at; asked once of each."""
    place = found.places(record)[0]

    def look() -> bool:
        return found.is_as_signed(record, keys) and _is_signed(found.of(record), place, record, keys)

    return found.once(record.log_version, look)


def _is_signed(heard: "Iterable[_Heard]", place: Place, record: CommitRecord, keys: TrustedKeys) -> bool:
    """Whether one of the attestations says by a trusted key that a commit was made at a place."""
    return any(
        _is_provenance(envelope.statement(), place, record) and keys.who_held(sha, envelope, "sign")
        for sha, envelope in heard
    )


def _authors(
    heard: "Iterable[_Heard]", places: Sequence[Place], record: CommitRecord, keys: TrustedKeys
) -> Iterator[TrustedKey]:
    """Who has signed that a commit was made, and so may not approve of it."""
    for _, envelope in heard:
        if _spoken_of(envelope, record, places)[0] is not None:
            yield from keys.who_signed(envelope)


def _judge(record: CommitRecord, found: _Attestations, keys: TrustedKeys) -> CommitSignatures:
    if not found.is_as_signed(record, keys):
        by = found.redacted_by(record)
        assert by is not None  # or nothing would have been redacted
        who = "as no later commit says" if by is record else f"by @{by.log_version}, which no trusted key has signed"
        return CommitSignatures(record.log_version, "other", (), f"it was redacted since, {who}")
    judgement = _Judgement(record, found, keys)
    for sha, envelope in judgement.envelopes:
        judgement.hear(sha, envelope)
    return judgement.result()


class _Judgement:
    """What the attestations of one commit say, one after the other."""

    def __init__(self, record: CommitRecord, found: _Attestations, keys: TrustedKeys) -> None:
        self.envelopes = list(found.of(record))
        self._record = record
        self._found = found
        self._keys = keys
        self._places = found.places(record)
        self._signed: dict[str, None] = {}
        self._elsewhere: list[str] = []
        self._problems: list[tuple[Standing, str]] = []
        self._notes: list[str] = []
        self._authors = set(map(str, _authors(self.envelopes, self._places, record, keys)))

    def hear(self, sha: str, envelope: Envelope) -> None:
        """Take an attestation into account."""
        note = _note(envelope, self._record, self._places[0])
        if note is not None:
            self._notes += self._said_by(sha, envelope, *note)
            return
        place, is_carried = _spoken_of(envelope, self._record, self._places)
        if place is None:
            self._problems.append(("other", "what is signed there is of another commit, version or place"))
            return
        signed = self._keys.who_signed(envelope, "sign")
        held = [str(each) for each in signed if _holds(each, sha)]
        if held and place == self._places[0] and not is_carried:
            self._signed |= dict.fromkeys(held)
        elif held:
            self._elsewhere.append(f"signed by {', '.join(held)} as {place}")
        else:
            self._problems.append(_not_believed(envelope, signed))

    def _said_by(self, sha: str, envelope: Envelope, before: str, after: str) -> Iterator[str]:
        role: Role = "approve" if envelope.statement()["predicateType"] == APPROVAL else "sign"
        for name in map(str, self._keys.who_held(sha, envelope, role)):
            is_own = role == "approve" and name in self._authors
            yield f"{before} {name}{after}{' (who made it, so that it does not count)' if is_own else ''}"

    def result(self) -> CommitSignatures:
        """What it comes to."""
        at, notes = self._record.log_version, tuple(self._notes)
        if self._signed:
            return CommitSignatures(
                at, "signed", tuple(self._signed), f"signed by {', '.join(self._signed)}", notes=notes
            )
        if self._elsewhere:
            covering = self._found.covering(at, self._keys)
            if covering is not None:
                text = f"{self._elsewhere[0]}, and covered by what is signed of @{covering}"
                return CommitSignatures(at, "signed", (), text, notes=notes)
            self._problems.append(("elsewhere", f"{self._elsewhere[0]}; how it came here is not signed"))
        if not self._problems:
            return CommitSignatures(at, "unsigned", (), "unsigned", notes=notes)
        worst: list[Standing] = ["revoked", "elsewhere", "stranger", "other"]
        standing, text = min(self._problems, key=lambda problem: worst.index(problem[0]))
        return CommitSignatures(at, standing, (), text, tuple(text for _, text in self._problems), notes)


def _not_believed(envelope: Envelope, signed: Sequence[TrustedKey]) -> tuple[Standing, str]:
    """Why what was signed is not: a revoked key, or nobody's."""
    if not signed:
        ids = ", ".join(sorted({key_id[:16] for key_id, _ in envelope.signatures})) or "nobody"
        return "stranger", f"signed by {ascii(ids)[1:-1]}, which is not trusted to sign here"
    first = signed[0]
    assert first.revoked is not None
    why = f", {first.revoked.reason}" if first.revoked.reason else ""
    text = f"signed by {first}, which was revoked at {first.revoked.at:%Y-%m-%d %H:%M}Z{why}"
    return "revoked", f"{text}; no witness had seen it before"


def _backwards(history: History) -> Iterator[CommitRecord]:
    """Every commit, the newest first."""
    return (history.record(at) for at in range(history.log_version, -1, -1))


def _holds(key: TrustedKey, sha: str) -> bool:
    """Whether what a key has signed is believed."""
    return key.revoked is None or sha in key.revoked.witnessed


def _note(envelope: Envelope, record: CommitRecord, place: Place) -> tuple[str, str] | None:
    """What else than its provenance a statement says of just a commit, before and after who says it."""
    statement = envelope.statement()
    for action in ACTIONS:
        if (until := approved_until(statement, place, record, action)) is not None:
            ended = "expired " if until <= datetime.now(UTC) else ""
            return f"approved to {action} by", f", {ended or 'until '}{until:%Y-%m-%d}"
    outcome = outcome_of(statement, place, record)
    if outcome is None:
        return None
    same_code = outcome.get("same_code")
    code = "" if same_code is True else ", by other code" if same_code is False else ", by code that is not known"
    return "computed again by", f": {outcome.get('verdict')}, {outcome.get('text')}{code}"


def _spoken_of(envelope: Envelope, record: CommitRecord, places: Sequence[Place]) -> tuple[Place | None, bool]:
    """The place at which a statement says that a commit was made, and whether it is of the commit taken over."""
    statement = envelope.statement()
    for place in places:
        if _is_provenance(statement, place, record):
            return place, False
    carried = carried_versions(statement)
    if carried is None or not record.stored:
        return None, False
    place, said = carried
    is_known = (place.project, place.table) in {(each.project, each.table) for each in places}
    is_taken_over = is_known and _is_promoted_from(place.environment, record)
    if is_taken_over and all(version in said for version in versions_of(record)):
        return place, True
    return None, False


def _is_promoted_from(environment: str | None, record: CommitRecord) -> bool:
    made_in = {stored.raw()["facts"].get("promoted_from") for stored in record.stored or ()}
    return bool(environment) and made_in == {environment}


def registered_keys(document: Keys, witness: Callable[[str], frozenset[str]] | None = None) -> TrustedKeys:
    """The keys that a registry has for a project.

    ``witness`` says what the git mirror of a table had seen of attestations at a commit of its own; without one,
    nothing of a revoked key holds. Raises `GovernanceError`.
    """

    def revocation(key: RegisteredKey) -> Revocation | None:
        if key.revoked is None:
            return None
        seen = key.revoked.witness
        witnessed = witness(seen) if witness is not None and seen is not None else frozenset[str]()
        return Revocation(key.revoked.at, key.revoked.reason, witnessed)

    keys = [
        TrustedKey(PublicKey.parse(key.public_key), key.name, frozenset(key.roles), revocation(key))
        for key in document.keys
    ]
    for each, key in zip(keys, document.keys, strict=True):
        if each.key.key_id != key.id:
            raise GovernanceError(
                f"keys.json names the key of {key.name} {key.id[:16]}, but it is {each.key.key_id[:16]}. Nothing was "
                "trusted. Somebody edited it: revert that in git."
            )
    return TrustedKeys(tuple(keys), document.required_approvals, document.signatures_required)


def named_keys(texts: Iterable[bytes]) -> TrustedKeys:
    """Keys from PEM texts. Raises `InvalidInput` where there is none."""
    keys = [PublicKey.parse(text) for text in texts]
    if not keys:
        raise InvalidInput("No key is named, so nothing can be trusted. Nothing was checked.")
    return TrustedKeys.of(keys)
