"""Signing what was committed: by the process that did, as it does, or by somebody later."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from dagster_versioned.errors import IntegrityError, InvalidInput, VersionedError
from dagster_versioned.identity.reference import LogVersion, parse_reference
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.envelope import MAX_BYTES, Envelope
from dagster_versioned.proof.keys import Signer, open_signer
from dagster_versioned.proof.statement import Place, approval, provenance, reproduced
from dagster_versioned.storage.object_store import Durability, ObjectStore
from dagster_versioned.tables.attestations import list_attestations, put_attestation
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.context import CommittedTable
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.history import CommitRecord, Version
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable

logger = logging.getLogger("dagster_versioned")

APPROVED_FOR = timedelta(days=30)
"""How long an approval holds, where nothing else is said."""


class CommitSigner:
    """Signs each commit; a `CommitObserver` of a project.

    A signer is given, or the place of its key, which is opened for the first commit.
    """

    def __init__(self, signer: Signer | str) -> None:
        self._given = signer

    @cached_property
    def _signer(self) -> Signer:
        return open_signer(self._given) if isinstance(self._given, str) else self._given

    def committed(self, table: CommittedTable, state: TableState) -> None:
        """Sign the commit at the end of a log. It stands whether that can be done or not: then the log says so."""
        record = state.history.record(state.log_version)
        try:
            place = Place.of(table.project, table.name, record.log_version)
            # A signature that a power failure takes can be made again, so that a write does not wait for the disk.
            _put(table.store, record, provenance(place, record), self._signer, durability="later")
        except VersionedError:
            logger.warning(
                "%s: log version %d is committed, but it could not be signed. Sign it later: `dagster-versioned attest "
                "%s @%d --key …`.",
                table.name,
                record.log_version,
                table.name,
                record.log_version,
                exc_info=True,
            )


def attest(
    project: Project, table: str, version: VersionLike = None, *, signer: Signer, partition: str | None = None
) -> str:
    """Sign that a version was made as its log says; all versions of its commit with it. Returns the document's key.

    By its log version a commit is signed that makes none, too, such as one that says what was redacted.

    The table is followed to the name and place that it has. Raises `VersionNotFound`, `InvalidInput` for a commit of
    another program, and for one that an environment began with, `StorageError`.
    """
    store, place, record = _commit_of(project, table, version, partition)
    return _put(store, record, provenance(place, record), signer)


def approve(
    project: Project,
    table: str,
    version: VersionLike = None,
    *,
    signer: Signer,
    partition: str | None = None,
    action: str = "promote",
    expires: datetime | None = None,
    message: str | None = None,
) -> str:
    """Sign that an action with a version is agreed to, until a moment (30 days from now). Returns the document's key.

    Raises as `attest` does, and `InvalidInput` where the key has signed that the version was made.
    """
    store, place, record = _commit_of(project, table, version, partition)
    if _has_signed(signer, store, place, record):
        raise InvalidInput(
            f"The key {signer.public.key_id[:16]} has signed that @{record.log_version} of {table} was made, and "
            "nobody approves of their own. Nothing was signed. Have somebody else approve."
        )
    until = expires or datetime.now(UTC) + APPROVED_FOR
    return _put(store, record, approval(place, record, action, until, message), signer)


def attest_reproduction(
    project: Project,
    table: str,
    version: VersionLike,
    outcome: Mapping[str, Any],
    *,
    signer: Signer,
    partition: str | None = None,
) -> str:
    """Sign what came of computing a version again. Returns the document's key. Raises as `attest` does."""
    store, place, record = _commit_of(project, table, version, partition)
    return _put(store, record, reproduced(place, record, outcome), signer)


def named_version(table: VersionedTable, version: VersionLike, partition: str | None) -> Version:
    """The one version that is meant. Raises `InvalidInput` for a table of several partitions without naming one."""
    if version is None and partition is None and len(partitions := table.partitions()) > 1:
        raise InvalidInput(
            f"{table.name} has {len(partitions)} partitions, each with versions of its own. Nothing was done. Name "
            "one: --partition."
        )
    return table.version(version, partition=partition)


def store_of(project: Project, table: str, log_version: int) -> ObjectStore:
    """The store that keeps the attestations of a commit: production's, of what an environment began with."""
    opened = project.table(table)
    environment = project.environment
    if environment is None or log_version > environment.forked_at(opened.name):
        return opened.store
    return Project(project.name, environment.base).table(str(opened.name)).store


def _commit_of(
    project: Project, table: str, version: VersionLike, partition: str | None
) -> tuple[ObjectStore, Place, CommitRecord]:
    opened = project.table(table)
    log_version = _without_versions(opened, version)
    if log_version is None:
        log_version = named_version(opened, version, partition).log_version
    record = opened.state.history.record(log_version)
    place = Place.of(project, opened.name, log_version)
    return store_of(project, table, log_version), place, record


def _without_versions(table: VersionedTable, version: VersionLike) -> int | None:
    """The log version that is meant, if it is that of a commit of ours that makes no version."""
    reference = None if isinstance(version, Version) else parse_reference(version)
    if not isinstance(reference, LogVersion) or not 0 <= reference.number <= table.state.log_version:
        return None
    record = table.state.history.record(reference.number)
    return None if record.is_foreign or record.stored else reference.number


def _has_signed(signer: Signer, store: ObjectStore, place: Place, record: CommitRecord) -> bool:
    for key in list_attestations(store, record.sha256).get(record.sha256, ()):
        try:
            envelope = Envelope.parse(store.get_range(key, 0, MAX_BYTES + 1))
            if envelope.statement() == provenance(place, record) and envelope.signers([signer.public]):
                return True
        except IntegrityError:
            continue
    return False


def _put(
    store: ObjectStore, record: CommitRecord, statement: dict[str, Any], signer: Signer, durability: Durability = "now"
) -> str:
    return put_attestation(store, record.sha256, Envelope.sign(encode(statement), signer).to_bytes(), durability)
