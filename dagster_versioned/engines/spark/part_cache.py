"""Parts of remote stores on the local disk, where a Spark on this machine reads them at full speed without a JAR."""

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

from dagster_versioned.engines.parts import MEBIBYTE
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import IntegrityError

DOWNLOADS = 8
RANGE_BYTES = 16 * MEBIBYTE
IN_USE_SECONDS = 24 * 3600
"""Frames are lazy: what was asked for within this time may still be read, so it is kept even above the bound."""


@dataclass(frozen=True, slots=True)
class PartCache:
    """Files under names that determine their bytes, so that nothing in it can be stale.

    Bound: about ``max_bytes``, oldest use first, but nothing that was used in the last 24 hours is removed.
    """

    root: Path
    max_bytes: int

    @classmethod
    def default(cls) -> Self:
        """In ``DAGSTER_VERSIONED_CACHE``, else the user's cache folder; 20 GiB or ``DAGSTER_VERSIONED_CACHE_BYTES``."""
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = os.environ.get("DAGSTER_VERSIONED_CACHE") or Path(base, "dagster-versioned", "parts")
        return cls(Path(root), int(os.environ.get("DAGSTER_VERSIONED_CACHE_BYTES", 20 * 1024 * MEBIBYTE)))

    def paths(self, scan: Scan) -> Sequence[Path]:
        """Where the scan's files are, in its order, after fetching those that were not there yet.

        Raises `IntegrityError` for a file whose bytes are not those of its SHA-256.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="fetch") as pool:
            fetched = [pool.submit(self._path, scan, file) for file in scan.files]
        self._prune()
        return [path.result() for path in fetched]

    def _path(self, scan: Scan, file: ScanFile) -> Path:
        name = (
            file.sha256
            or hashlib.sha256(f"{scan.store.url(file.key)}\0{scan.store.head(file.key).etag}".encode()).hexdigest()
        )
        path = self.root / f"{name}.parquet"
        try:
            os.utime(path)
            if path.stat().st_size == file.size:
                return path
        except FileNotFoundError:
            pass  # not here yet: the usual case
        temporary = self.root / f".{uuid4().hex}.tmp"
        try:
            self._fetch(scan, file, temporary)
            return temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _fetch(self, scan: Scan, file: ScanFile, target: Path) -> None:
        sha256 = hashlib.sha256()
        with target.open("xb") as output:
            for start in range(0, file.size, RANGE_BYTES):
                data = scan.store.get_range(file.key, start, RANGE_BYTES)
                sha256.update(data)
                output.write(data)
        if file.sha256 is not None and sha256.hexdigest() != file.sha256:
            raise IntegrityError(
                f"The part {file.key} in {scan.store.uri} was altered: its bytes have the SHA-256 {sha256.hexdigest()} "
                f"instead of {file.sha256}. No row was returned. Restore it from a copy, or materialize the version's "
                "asset again, which writes the same bytes."
            )

    def _prune(self) -> None:
        found: list[tuple[float, int, Path]] = []
        for path in self.root.iterdir():
            with suppress(FileNotFoundError):  # another process prunes too
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        excess = sum(size for _, size, _ in found) - self.max_bytes
        for used, size, path in sorted(found):
            if excess <= 0 or used > time.time() - IN_USE_SECONDS:
                return
            path.unlink(missing_ok=True)
            excess -= size
