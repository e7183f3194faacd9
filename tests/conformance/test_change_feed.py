"""The change data feed of tables made by others, beside a peer's."""

from collections.abc import Iterator

import deltalake
import pyarrow as pa
import pytest

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.errors import VersionedError, VersionNotFound
from dagster_versioned.storage.local import LocalStore
from support.delta_tables import ABSENT, EXPECTED, ROOT, difference

pytestmark = pytest.mark.conformance

if not EXPECTED:
    pytest.skip(ABSENT, allow_module_level=True)


def tables() -> Iterator[tuple[str, int]]:
    """Those with a feed, and their newest versions."""
    for name in sorted(EXPECTED):
        try:
            snapshot = load_snapshot(LocalStore(ROOT / name))
        except VersionedError:
            continue
        if snapshot.metadata.is_set("delta.enableChangeDataFeed"):
            yield name, snapshot.version


FOUND = list(tables())


def test_there_are_such_tables() -> None:
    assert len(FOUND) == 7


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "newest"), FOUND)
def test_a_peer_has_the_same_changes_in_every_range(name: str, newest: int) -> None:
    uri = str(ROOT / name)
    begins = 3 if name.endswith("checkpoint-cdf-table") else 0  # its older commits were cleaned up
    for first in range(begins):
        with pytest.raises(VersionNotFound):
            read_changes(uri, first)
    for first in range(begins, newest + 1, 1 if newest < 10 else 6):
        for last in {first, newest}:
            ours = read_changes(uri, first, last).drop_columns("_commit_timestamp")
            peer = deltalake.DeltaTable(uri).load_cdf(starting_version=first, ending_version=last).read_all()
            theirs = pa.table(peer).select(ours.column_names).cast(ours.schema)
            assert difference(ours, theirs) == [], (first, last)
