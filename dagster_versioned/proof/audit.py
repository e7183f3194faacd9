"""A bundle that proves a version to somebody who has nothing of ours: `standalone/verify.py` and one key's id do.

In a folder of its own: the log up to the commit that made the version, each entry with its exact bytes; what was signed
of that commit, and the public keys; the files of the rows; a report to read. bundle.json names all of them by their
SHA-256, so that a bundle which is not whole is found out, and is believed for nothing else.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.deletion_vectors import vector_bytes
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.errors import ExpiredVersion, InvalidInput, VersionNotFound
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.attest import named_version, store_of
from dagster_versioned.proof.keys import PublicKey
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.attestations import list_attestations
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.history import REDACTION, Version
from dagster_versioned.tables.parts import parts_of
from dagster_versioned.tables.read import check_parts
from dagster_versioned.tables.table import VersionedTable

VERIFIER = Path(__file__).parent / "standalone" / "verify.py"
_CHUNK = 8 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Bundle:
    """What was written: the version, its log version, and how many files of how many bytes."""

    folder: Path
    version: str
    partition: str | None
    log_version: int
    files: int
    size_bytes: int
    attestations: int


def write_bundle(
    project: Project,
    table: str,
    folder: Path,
    version: VersionLike = None,
    *,
    partition: str | None = None,
    keys: Sequence[PublicKey] = (),
    with_rows: bool = True,
    report: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Write what proves a version into a new folder, which appears when all of it is there.

    ``keys`` are the public keys that may have signed; ``report`` writes a page to read. Raises `VersionNotFound`,
    `ExpiredVersion` where the rows are gone and were asked for, `InvalidInput` for a folder that is not empty, and for
    the commit of another program, `IntegrityError`, `StorageError`.
    """
    _check_empty(folder)
    opened = project.table(table)
    found = named_version(opened, version, partition)
    if found.metadata_sha is None:
        raise VersionNotFound(f"@{found.log_version} of {table} was committed by another program. Adopt it first.")
    if with_rows and found.gone is not None:
        raise ExpiredVersion(
            f"The rows of version {found.short} are not kept any more. Nothing was written. What is left of it is "
            "proved without them: --without-rows."
        )
    snapshot = opened.operations.cache.older(found.log_version)
    adds = parts_of(snapshot, found.partition)
    check_parts(found, adds)
    if with_rows and project.erasures.of(opened.state.snapshot, snapshot).of(adds) != adds:
        raise ExpiredVersion(
            f"Rows were erased from version {found.short}, so its bytes are not those that its name proves. Nothing was"
            " written. What is left of it is proved without them: --without-rows."
        )
    _refuse_redacted_later(opened, found)
    with _complete_or_absent(folder) as staging:
        content = _Content(staging)
        attested = _copy_log(opened, project, found.log_version, content, keys)
        parts = _copy_rows(opened.store, adds, content, progress) if with_rows else None
        if report is not None:
            report(staging / "report.html")
            content.note("report.html")
        document = {
            "files": content.shas,
            "format": 1,
            "log_version": found.log_version,
            "parts": parts,
            "version": found.metadata_sha,
        }
        (staging / "bundle.json").write_bytes(json.dumps(document, indent=1, sort_keys=True).encode())
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Bundle(folder, found.metadata_sha, found.partition, found.log_version, len(content.shas) + 1, size, attested)


def _refuse_redacted_later(opened: VersionedTable, found: Version) -> None:
    """Raise `InvalidInput` for a version before a commit which says that entries of it, or before it, are redacted."""
    for record in opened.state.history.records[found.log_version + 1 :]:
        redaction = record.member(REDACTION)
        if redaction is not None and any(int(at) <= found.log_version for at in redaction["entries"]):
            raise InvalidInput(
                f"Version {found.short} of {opened.name} (@{found.log_version}) cannot be proved any more: rows were"
                f" erased, and what the log told of them up to it was redacted later, by commit @{record.log_version}."
                " Nothing was written. Prove a version that came after that one; write the rows anew for one."
            )


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} is not empty. Nothing was written. Name a folder that is not there.")


@contextmanager
def _complete_or_absent(folder: Path) -> Generator[Path]:
    """A folder beside another, which becomes that one when the block ends well."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written ({error.strerror}). Nothing was written.") from None
    try:
        yield staging
        if folder.exists():
            folder.rmdir()
        staging.chmod(0o755)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


class _Content:
    """The files of a bundle, each with its SHA-256."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shas: dict[str, str] = {}

    def put(self, name: str, data: bytes) -> None:
        """Write a file."""
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        self.shas[name] = hashlib.sha256(data).hexdigest()

    def copy(self, name: str, store: ObjectStore, key: str, size: int) -> None:
        """Write an object, a piece of which is in memory at a time."""
        path, digest = self._folder / name, hashlib.sha256()
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, size, _CHUNK):
                piece = store.get_range(key, start, _CHUNK)
                digest.update(piece)
                file.write(piece)
        self.shas[name] = digest.hexdigest()

    def note(self, name: str) -> None:
        """Name a file that somebody else has written."""
        self.shas[name] = hashlib.sha256((self._folder / name).read_bytes()).hexdigest()


def _copy_log(opened: VersionedTable, project: Project, end: int, content: _Content, keys: Sequence[PublicKey]) -> int:
    for number in range(end + 1):
        content.put(f"log/{number:020}.json", opened.store.get(commit_key(number)))
    records = opened.state.history.records[: end + 1]
    redactions = [record.log_version for record in records if record.member(REDACTION) is not None]
    attestations: list[str] = []
    for at in (*redactions, end):
        sha, store = records[at].sha256, store_of(project, str(opened.name), at)
        attestations = list_attestations(store, sha).get(sha, [])
        for key in attestations:
            content.put(f"attestations/{key.rpartition('/')[2]}", store.get(key))
    for key in keys:
        content.put(f"keys/{key.key_id}.pem", key.pem.encode())
    return len(attestations)


def _copy_rows(
    store: ObjectStore, adds: Sequence[Add], content: _Content, progress: Progress | None
) -> list[tuple[str, str | None]]:
    """Copy the files of a version, in the order of their rows; those of deletion vectors by themselves."""
    names: list[tuple[str, str | None]] = []
    for number, add in enumerate(adds):
        name, vector = f"parts/{number:06}.parquet", None
        content.copy(name, store, add.key, add.size)
        if add.deletion_vector is not None:
            vector = f"parts/{number:06}.deleted"
            content.put(vector, vector_bytes(store, add.deletion_vector, add.key))
        names.append((name, vector))
        if progress is not None:
            progress(number + 1, len(adds))
    return names
