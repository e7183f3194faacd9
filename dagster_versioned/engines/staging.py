"""One write's own area: where its parts lie until they are promoted to their final names, or discarded."""

import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.parts import Part
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.temporary import TemporaryFolder

PROMOTERS = 8


class Staging:
    """The files of one write, in ``_staging/{write_id}/`` of a store that is rooted at the table's folder.

    Nothing ever refers to a staged file, so whatever is left of a killed write is garbage that vacuum may collect
    (FORMAT "Layout").
    """

    def __init__(self, store: ObjectStore, write_id: str) -> None:
        self.store = store
        self.write_id = write_id
        self.prefix = f"_staging/{write_id}/"
        self._inside = store.local_path(f"{self.prefix}part")
        self._uploads = False
        self._temporary: TemporaryFolder | None = None

    def key(self, name: str) -> str:
        """The key in the store of a staged file, for writers that upload instead of writing locally."""
        self._uploads = True
        return f"{self.prefix}{name}"

    def directory(self) -> Path:
        """Where local files go: inside a local store, so that promotion is a link; else a private temporary folder.

        Inside a local store the folder is not created here, so that a write that needs no file leaves no folder.
        """
        if self._inside is not None:
            return self._inside.parent
        if self._temporary is None:
            self._temporary = TemporaryFolder()
        return self._temporary.path

    def scans(self, parts: Iterable[Part], schema: StructType) -> list[Scan]:
        """The rows of parts of the write, wherever their bytes are by now."""
        found: list[Scan] = []
        for part in parts:
            store, key = self.store, part.source
            if isinstance(key, bytes):
                path = self.directory() / f"{part.sha256}-{part.ordinal}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(key)
                key = path
            if isinstance(key, Path):
                store, key = LocalStore(key.parent), key.name
            file = ScanFile(key, part.size, part.sha256, part.num_records, part.partition_values)
            found.append(Scan(store, schema, (file,)))
        return found

    def promote(self, part: Part, key: str) -> None:
        """Give the part's bytes their final name; an object that is there already is replaced by the same bytes."""
        match part.source:
            case bytes() as data:
                self.store.put(key, data)
            case Path() as path if self._inside is not None and path.parent == self._inside.parent:
                self.store.copy(self.key(path.name), key)
            case Path() as path:
                self.store.put_file(key, path)
            case staged:
                self.store.copy(staged, key)

    def promote_all(self, parts: Iterable[tuple[Part, str]]) -> None:
        """`promote` many parts at once; the first failure is raised after the others have ended."""
        parts = list(parts)
        if len(parts) == 1:
            self.promote(*parts[0])
            return
        with ThreadPoolExecutor(PROMOTERS, thread_name_prefix="promote") as pool:
            for done in [pool.submit(self.promote, part, key) for part, key in parts]:
                done.result()

    def discard(self) -> None:
        """Delete everything of this write; may be called again, and after a failure half way."""
        if self._inside.parent.exists() if self._inside is not None else self._uploads:
            self.store.delete([info.key for info in self.store.list(self.prefix)])
        if self._inside is not None and self._inside.parent.exists():
            shutil.rmtree(self._inside.parent, ignore_errors=True)  # a task that is late may put a file there meanwhile
        if self._temporary is not None:
            self._temporary.close()
        self._temporary = None
