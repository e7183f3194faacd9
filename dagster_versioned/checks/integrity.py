"""Is the head still what was committed? Every byte of it."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.engines.scan import ScanFile
from dagster_versioned.errors import ObjectNotFound
from dagster_versioned.storage.object_store import ObjectStore

_READERS = 4
_CHUNK = 8 * 1024 * 1024


@dataclass(frozen=True)
class HeadIntegrity(VersionCheck):
    """Passes where every part of the head is there with the bytes that were committed.

    Reads every part once: identity against ``metadata_sha``, parts against ``data_sha``, bytes against the parts'
    SHA-256.
    """

    title = "integrity"
    about = "The parts of the head are there, and their bytes have the SHA-256 that was committed."

    def judge(self, look: CheckedHeads) -> Verdict:
        keys = [head.partition for head in look.heads if head.partition is not None]
        scan = look.table.files(partitions=keys or None).scan
        with ThreadPoolExecutor(_READERS, thread_name_prefix="integrity") as pool:
            problems = list(pool.map(partial(_problem, scan.store), scan.files))
        found = [(file.key, problem) for file, problem in zip(scan.files, problems, strict=True) if problem]
        what = f"{len(scan.files)} parts of {listed([named(head) for head in look.heads])}"
        metadata = {"parts": len(scan.files), "bytes": float(sum(file.size for file in scan.files))}
        if not found:
            return Verdict(True, f"The {what} have the bytes that were committed.", metadata)
        return Verdict(
            False,
            f"{len(found)} of the {what} are not what was committed: {found[0][0]}: {found[0][1]}. Restore them from a "
            "copy, or materialize the asset again, which writes the same bytes.",
            {**metadata, "problems": table_text(["part", "problem"], found)},
        )


def _problem(store: ObjectStore, file: ScanFile) -> str | None:
    try:
        size = store.head(file.key).size
        if size != file.size:
            return f"it has {size} bytes, {file.size} were committed"
        digest = hashlib.sha256()
        for chunk in _chunks(store, file):
            digest.update(chunk)
    except ObjectNotFound:
        return "it is missing"
    return None if digest.hexdigest() == file.sha256 else f"its bytes have the SHA-256 {digest.hexdigest()[:12]}…"


def _chunks(store: ObjectStore, file: ScanFile) -> Iterator[bytes]:
    return (store.get_range(file.key, start, _CHUNK) for start in range(0, file.size, _CHUNK))
