"""What attestations prove, given the keys that are trusted: by whom commits are signed, and what is approved."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.attestations import list_attestations
from dagster_versioned.tables.documents.export import read_export
from dagster_versioned.tables.history import CommitRecord, Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.table_record import TableRecord

Role = Literal["sign", "approve"]

Standing = Literal["signed", "unsigned", "stranger", "revoked", "other"]
"""``signed``: by a trusted key, of just this; ``stranger``: by keys that nobody trusts; ``revoked``: by one that is not
trusted any more; ``other``: what is signed there is of something else."""


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
        return cls(tuple(TrustedKey(key, "a key that was named", roles) for key in keys))

    def who_signed(self, envelope: Envelope, role: Role) -> list[TrustedKey]:
        """Those of the keys with a role that signed an envelope, revoked ones too."""
        signed = set(envelope.signers(each.key for each in self.keys))
        return [each for each in self.keys if role in each.roles and each.key.key_id in signed]


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
    wanted = None if versions is None else {version.log_version for version in versions}
    every = [record for record in history.records if record.stored]
    records = [record for record in every if wanted is None or record.log_version in wanted]
    found = _Attestations(project, opened)
    return [_judge(record, found, keys) for record in records]


def missing_approvals(
    project: Project, table: str, version: Version, keys: TrustedKeys, count: int, action: str = "promote"
) -> str | None:
    """Why a version is not approved by so many people; ``None`` where it is.

    Who signed the version itself does not count: nobody approves of their own. Raises `StorageError`.
    """
    opened = project.table(table)
    record = opened.state.history.record(version.log_version)
    found, now = _Attestations(project, opened), datetime.now(UTC)
    authors, approvers, expired = set[str](), dict[str, str](), 0
    for sha, envelope in found.of(record):
        statement = envelope.statement()
        author = statement == provenance(found.places(record)[0], record)
        if author:
            authors |= {each.key.key_id for each in keys.who_signed(envelope, "sign")}
        until = approved_until(statement, found.places(record)[0], record, action)
        if until is None:
            continue
        if until <= now:
            expired += 1
            continue
        for each in keys.who_signed(envelope, "approve"):
            if _holds(each, sha):
                approvers[each.key.key_id] = str(each)
    given = [name for key_id, name in approvers.items() if key_id not in authors]
    if len(given) >= count:
        return None
    of = f", of {count} that are required" if count > 1 else ""
    more = f"; {expired} expired" if expired else ""
    own = "; who made it does not count" if approvers.keys() & authors else ""
    return f"{len(given)} trusted keys have approved it{of}{more}{own}"


class _Attestations:
    """The attestations of a table's commits, listed once for each store that keeps them."""

    def __init__(self, project: Project, table: VersionedTable) -> None:
        self._project = project
        self._table = table
        self._listed: dict[str, tuple[ObjectStore, Mapping[str, list[str]]]] = {}
        self._record = TableRecord.of(table.state.snapshot)
        self._export = read_export(project.data)

    def of(self, record: CommitRecord) -> Iterator[tuple[str, Envelope]]:
        """Those of a commit that can be read, with the SHA-256 of each. Raises `StorageError`."""
        store = store_of(self._project, str(self._table.name), record.log_version)
        if store.uri not in self._listed:
            self._listed[store.uri] = store, list_attestations(store)
        for key in self._listed[store.uri][1].get(record.sha256, ()):
            try:
                envelope = Envelope.parse(store.get_range(key, 0, MAX_BYTES + 1))
                envelope.statement()
            except IntegrityError:
                continue
            sha = key.rpartition("/")[2].removesuffix(".json")
            if envelope.sha == sha:
                yield sha, envelope

    def places(self, record: CommitRecord) -> list[Place]:
        """Where a commit may have been made: here, under a name that the table had, or where it was exported from."""
        here = Place.of(self._project, self._table.name, record.log_version)
        found = [here]
        if record.log_version < self._record.since:
            found += [Place(name, table, here.environment, here.generation) for name, table in self._record.former]
        if self._export is not None:
            exported = [(self._export.environment, self._export.generation)]
            found += [Place(each.project, each.table, *exported[0]) for each in list(found)]
        return found


def _judge(record: CommitRecord, found: _Attestations, keys: TrustedKeys) -> CommitSignatures:
    at, problems, notes = record.log_version, list[tuple[Standing, str]](), list[str]()
    places = found.places(record)
    signed_by: tuple[tuple[str, ...], str] | None = None
    for sha, envelope in found.of(record):
        note = _note(envelope, record, places[0])
        if note is not None:
            role: Role = "approve" if envelope.statement()["predicateType"] == APPROVAL else "sign"
            names = [str(each) for each in keys.who_signed(envelope, role) if _holds(each, sha)]
            notes += [f"{note[0]} {name}{note[1]}" for name in names]
            continue
        place, is_carried = _spoken_of(envelope, record, places)
        if place is None:
            problems.append(("other", "what is signed there is of another commit, version or place"))
            continue
        signed = keys.who_signed(envelope, "sign")
        held = tuple(str(each) for each in signed if _holds(each, sha))
        if held:
            where = f" as {place}" if place != places[0] else ""
            more = "; how it came here is not signed" if is_carried else ""
            signed_by = signed_by or (held, f"signed by {', '.join(held)}{where}{more}")
        elif signed:
            first = signed[0]
            assert first.revoked is not None
            why = f", {first.revoked.reason}" if first.revoked.reason else ""
            text = f"signed by {first}, which was revoked at {first.revoked.at:%Y-%m-%d %H:%M}Z{why}"
            problems.append(("revoked", f"{text}; no witness had seen it before"))
        else:
            ids = ", ".join(sorted({key_id[:16] for key_id, _ in envelope.signatures})) or "nobody"
            problems.append(("stranger", f"signed by {ids}, which is not trusted to sign here"))
    if signed_by is not None:
        return CommitSignatures(at, "signed", *signed_by, notes=tuple(notes))
    if not problems:
        return CommitSignatures(at, "unsigned", (), "unsigned", notes=tuple(notes))
    worst: list[Standing] = ["revoked", "stranger", "other"]
    standing, text = min(problems, key=lambda problem: worst.index(problem[0]))
    return CommitSignatures(at, standing, (), text, tuple(text for _, text in problems), tuple(notes))


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
    return None if outcome is None else ("computed again by", f": {outcome.get('verdict')}, {outcome.get('text')}")


def _spoken_of(envelope: Envelope, record: CommitRecord, places: Sequence[Place]) -> tuple[Place | None, bool]:
    """The place at which a statement says that a commit was made, and whether it is of the commit taken over."""
    statement = envelope.statement()
    try:
        for place in places:
            if statement == provenance(place, record):
                return place, False
    except (VersionedError, LookupError, TypeError):
        return None, False
    carried = carried_versions(statement)
    if carried is None:
        return None, False
    place, said = carried
    assert record.stored is not None
    made_in = {stored.raw()["facts"].get("promoted_from") for stored in record.stored}
    is_known = any((place.project, place.table) == (each.project, each.table) for each in places)
    if is_known and made_in == {place.environment} and place.environment and _all_in(versions_of(record), said):
        return place, True
    return None, False


def _all_in(versions: Sequence[Mapping[str, object]], said: Sequence[Mapping[str, object]]) -> bool:
    return all(version in said for version in versions)


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
