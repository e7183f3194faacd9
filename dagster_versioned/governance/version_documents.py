"""What a git mirror holds of a table: its version documents, as its log implies them, and the SHA-256 of every commit.

Layout, from the top of the git repository (docs/reference/format.md, "The git mirror")::

    project.json                                whose mirror this is
    {table}/metadata.json                       the current version; of a partitioned table: the table as a whole
    {table}/version_history.json                every version, newest first
    {table}/commits.sha256                      each commit's SHA-256, for ``sha256sum -c`` in the table's folder
    {table}/attestations.sha256                 each attestation's SHA-256, sorted; what was seen once stays
    {table}/partitions/{key}/metadata.json      one partition's current version
    {table}/partitions/{key}/version_history.json

No document says where the bytes are: that is ref.json's to say, so a project that moves leaves no trace here (seed 003,
"Why an indirection at all").
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.errors import GovernanceError
from dagster_versioned.identity.names import partition_path
from dagster_versioned.tables.documents.datom_documents import history_entry, metadata_document
from dagster_versioned.tables.documents.manifest import DATOM_SCHEMA_VERSION
from dagster_versioned.tables.history import History, Version

PROJECT_PATH = "project.json"
SCHEMA_VERSION = 1

_DOCUMENT = re.compile(
    r"[^/]+/(?:(?:commits|attestations)\.sha256|(?:partitions/[^/]+/)?(?:metadata|version_history)\.json)"
)
_SHA = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LINE = re.compile(r"([0-9a-f]{64})  (_delta_log/[0-9]{20}\.json)", re.ASCII)


@dataclass(frozen=True)
class SeenCommits:
    """The SHA-256 of every commit of a table that a mirror has seen, by log version from 0 on.

    Somebody who cuts the end off a log, or writes it anew with a chain that holds, cannot make these agree.
    """

    shas: tuple[str, ...]

    @classmethod
    def of(cls, history: History) -> Self:
        """Those of a table's history."""
        return cls(tuple(record.sha256 for record in history.records))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Parse ``commits.sha256``. Raises `GovernanceError` naming the place and the line."""
        shas: list[str] = []
        for number, line in enumerate(data.decode(errors="replace").splitlines()):
            match = _LINE.fullmatch(line)
            if match is None or match[2] != commit_key(number):
                raise GovernanceError(
                    f"{where}, line {number + 1}: {line!r:.120} is not the SHA-256 of {commit_key(number)}. The table "
                    "is untouched. Somebody edited the mirror: revert that in git."
                )
            shas.append(match[1])
        return cls(tuple(shas))

    def to_bytes(self) -> bytes:
        """One line a commit, as ``sha256sum`` writes them."""
        return "".join(f"{sha}  {commit_key(number)}\n" for number, sha in enumerate(self.shas)).encode()

    @property
    def log_version(self) -> int:
        """The last log version that was seen; -1 before the first."""
        return len(self.shas) - 1

    def difference(self, log: "SeenCommits") -> str | None:
        """What is wrong with a log that was read after these were recorded; ``None`` where it continues them."""
        for number, (seen, found) in enumerate(zip(self.shas, log.shas, strict=False)):
            if seen != found:
                return f"the mirror saw {seen[:12]}… at @{number}, the log holds {found[:12]}…"
        if log.log_version < self.log_version:
            return f"the mirror saw the log up to @{self.log_version}, but it ends at @{log.log_version}"
        return None


def project_document(project: str) -> bytes:
    """The document at the top of a mirror, so that no other project is mirrored into the same repository."""
    return _encode({"project": project, "schema_version": SCHEMA_VERSION})


def parse_project_document(data: bytes, where: str) -> str:
    """The project whose mirror a repository is. Raises `GovernanceError`."""
    try:
        document = orjson.loads(data)
        name, version = document["project"], document["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise GovernanceError(
            f"{PROJECT_PATH} of {where} cannot be read ({error!r:.100}). Nothing was changed. Revert the edit in git, "
            "or use another repository."
        ) from error
    if version != SCHEMA_VERSION or not isinstance(name, str):
        raise GovernanceError(
            f"{PROJECT_PATH} of {where} has the schema_version {version!r:.20} and the project {name!r:.100}; this "
            f"release reads schema_version {SCHEMA_VERSION}. Nothing was changed. Upgrade dagster-versioned."
        )
    return name


def commits_path(table: str) -> str:
    """Where the SHA-256 of a table's commits are."""
    return f"{table}/commits.sha256"


def attestations_path(table: str) -> str:
    """Where the SHA-256 of a table's attestations are."""
    return f"{table}/attestations.sha256"


def attestations_document(shas: Iterable[str]) -> bytes | None:
    """One line each; ``None`` where there are none."""
    return "".join(f"{sha}\n" for sha in sorted(shas)).encode() or None


def parse_attestations(data: bytes, where: str) -> list[str]:
    """Parse ``attestations.sha256``. Raises `GovernanceError` naming the place and the line."""
    shas = data.decode(errors="replace").splitlines()
    for number, sha in enumerate(shas, 1):
        if not _SHA.fullmatch(sha):
            raise GovernanceError(
                f"{where}, line {number}: {sha!r:.120} is no SHA-256. The table is untouched. Somebody edited the "
                "mirror: revert that in git."
            )
    return shas


def is_table_document(path: str) -> bool:
    """Whether a path is one that `table_documents` may give."""
    return _DOCUMENT.fullmatch(path) is not None


def table_documents(table: str, history: History) -> dict[str, bytes]:
    """Every document of a table, by path; a function of its log alone.

    A version stands in a history once, by its newest commit (as for datom readers), with ``gone`` where its bytes are
    not kept. A commit of another program has no identity, so only ``commits.sha256`` knows it.
    """
    documents = {commits_path(table): SeenCommits.of(history).to_bytes()}
    if not history.is_partitioned:
        return documents | _versions_documents(table, history.versions)
    documents[f"{table}/metadata.json"] = _whole_document(history)
    documents[f"{table}/version_history.json"] = _encode(_whole_history(history))
    by_partition: dict[str, list[Version]] = {}
    for version in history.versions:
        if version.partition is not None:
            by_partition.setdefault(version.partition, []).append(version)
    for partition, versions in by_partition.items():
        documents |= _versions_documents(f"{table}/partitions/{_folder(partition)}", versions)
    return documents


def _versions_documents(folder: str, versions: Iterable[Version]) -> dict[str, bytes]:
    newest = {version.metadata_sha: version for version in versions if version.raw is not None}
    if not newest:
        return {}
    ordered = sorted(newest.values(), key=lambda version: -version.log_version)
    return {
        f"{folder}/metadata.json": _encode(orjson.loads(metadata_document(ordered[0]))),
        f"{folder}/version_history.json": _encode([_entry(version) for version in ordered]),
    }


def _entry(version: Version) -> dict[str, Any]:
    return history_entry(version) | ({"gone": version.gone} if version.gone else {})


def _whole_document(history: History) -> bytes:
    newest = max(version.log_version for version in history.heads.values())
    return _encode(
        {
            "schema_version": DATOM_SCHEMA_VERSION,
            "kind": "table",
            "asset_key": history.asset_key,
            "metadata_sha": history.whole.metadata_sha,
            "data_sha": history.whole.data_sha,
            "log_version": newest,
            "partitions": {key: version.metadata_sha for key, version in history.heads.items() if key is not None},
        }
    )


def _whole_history(history: History) -> Sequence[dict[str, Any]]:
    """The table as a whole, newest first: a version for each commit that changed a partition."""
    entries: dict[str, dict[str, Any]] = {}
    for record in reversed(history.records):
        whole = record.info.get("partitions_sha") if record.info else None
        changed = record.info.get("versions", ()) if record.info else ()
        if whole is None or whole in entries or not changed:
            continue
        first = changed[0]
        entries[whole] = {
            "version": whole,
            "log_version": record.log_version,
            "timestamp": first["facts"]["created_at"],
            "author": first["facts"].get("author"),
            "commit_message": first["identity"].get("message"),
            "partitions": sorted(str(version["identity"].get("partition")) for version in changed),
        }
    return list(entries.values())


def _folder(partition: str) -> str:
    """A partition's folder: its encoded key, but never ``.git`` or ``.gitmodules``, which git refuses or obeys."""
    path = partition_path(partition)
    return f"%2E{path[1:]}" if path.startswith(".") else path


def _encode(document: Any) -> bytes:
    """JSON that a person can read in a diff: sorted keys, indented, a newline at the end."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
