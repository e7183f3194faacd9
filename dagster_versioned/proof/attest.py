"""Signing what was committed: by the process that did, as it does, or by somebody later."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster_versioned.errors import VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.envelope import Envelope
from dagster_versioned.proof.keys import Signer
from dagster_versioned.proof.statement import Place, approval, provenance, reproduced
from dagster_versioned.storage.object_store import Durability, ObjectStore
from dagster_versioned.tables.attestations import put_attestation
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.context import CommittedTable
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.history import CommitRecord
from dagster_versioned.tables.state import TableState

logger = logging.getLogger("dagster_versioned")

APPROVED_FOR = timedelta(days=30)
"""How long an approval holds, where nothing else is said."""


class CommitSigner:
    """Signs each commit that makes versions; a `CommitObserver` of a project."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def committed(self, table: CommittedTable, state: TableState) -> None:
        """Sign the commit at the end of a log. It stands whether that can be done or not: then the log says so."""
        record = state.history.record(state.log_version)
        if not record.stored:
            return
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

    Raises as `attest` does.
    """
    store, place, record = _commit_of(project, table, version, partition)
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
    chosen = opened.choose(version, partitions=None if partition is None else [partition])
    found = max(chosen.versions, key=lambda each: each.log_version, default=None)
    log_version = chosen.log_version if found is None else found.log_version
    record = opened.state.history.record(log_version)
    place = Place.of(project, opened.name, log_version)
    return store_of(project, table, log_version), place, record


def _put(
    store: ObjectStore, record: CommitRecord, statement: dict[str, Any], signer: Signer, durability: Durability = "now"
) -> str:
    return put_attestation(store, record.sha256, Envelope.sign(encode(statement), signer).to_bytes(), durability)
