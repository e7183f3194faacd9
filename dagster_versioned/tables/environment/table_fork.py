"""What is seen of one table's folder at a fork: all of it that a store of the table carries to executors.

So it needs nothing but the standard library.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from dagster_versioned.storage.overlay import Owner

LOG, VERSIONS = "_delta_log/", ".metadata/versions/"
_SIDECARS = "_delta_log/_sidecars/"
_COMPUTATIONS = ".metadata/computations/"
KEPT = (".metadata/findings/", ".metadata/code/", ".metadata/attestations/")
"""The folders of what is known of versions beside the log, and not derived from it: it goes where the table goes."""
_OWN = (LOG, ".metadata/", "_staging/", "refs/")


@dataclass(frozen=True)
class TableFork:
    """The table of a name at a fork (RFC 3339, UTC), whose log is the base's up to ``log_version``; -1: it has none.

    Keys begin with the table's name; see `storage.overlay.Fork`.
    """

    table: str
    log_version: int
    created: str

    @property
    def at(self) -> datetime:
        """The moment of the fork, UTC."""
        return datetime.fromisoformat(self.created)

    def owner(self, key: str) -> Owner:
        """Who holds what is under a key.

        Entries, checkpoints and indexes up to the fork are the base's for ever, later ones the environment's: a writer
        that is late, or an entry forged, cannot put another history in the place of the base's.
        """
        name = key[len(self.table) + 1 :]
        if self.log_version < 0:
            return "own"
        if name.startswith((_SIDECARS, _COMPUTATIONS, *KEPT)):
            # Who reads a computation's document believes this log alone, whosever it is; the others are of a content.
            return "either"
        if name.startswith(LOG):
            numbered = re.fullmatch(r"(\d{20})\.(?:json|crc|checkpoint\.[^/]+)", name[len(LOG) :], re.ASCII)
        elif name.startswith(VERSIONS):
            numbered = re.fullmatch(r"(\d{20})\.parquet", name[len(VERSIONS) :], re.ASCII)
        else:
            return "own" if name.startswith(_OWN) else "either"
        return "base" if numbered is not None and int(numbered[1]) <= self.log_version else "own"

    def document(self, key: str) -> bytes | None:
        """None: heads and pins lie beside the tables."""
        return None

    def documents(self, prefix: str) -> Iterator[str]:
        """None, as for `document`."""
        return iter(())

    def listed(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The log and its indexes, up to the fork."""
        for folder, end in ((VERSIONS, "parquet"), (LOG, "json")):
            beginning = f"{self.table}/{folder}"
            if self.log_version >= 0 and (beginning.startswith(prefix) or prefix.startswith(beginning)):
                yield max(beginning, prefix, key=len), f"{beginning}{self.log_version:020}.{end}"

    def folders(self, prefix: str) -> Iterator[str]:
        """None: what is below a table is asked for by name."""
        return iter(())

    def within(self, folder: str) -> "TableFork":
        """The same: it is of one table already."""
        return self
