"""Going back to an older version, and keeping it there."""

import pyarrow as pa
import pytest

from dagster_versioned.errors import HeldHead, InvalidInput
from dagster_versioned.tables.table import VersionedTable


def test_revert_commits_the_old_identity_again_and_writes_no_part(
    table: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    first = table.write(rows, message="good").version
    table.write(more, message="bad")
    result = table.revert(first.metadata_sha)
    assert result.change == "full"
    assert result.version.metadata_sha == first.metadata_sha
    assert result.version.log_version == 2
    assert table.read().num_rows == 3
    assert table.history()[0].operation == "REVERT"
    assert table.verify().ok


def test_revert_to_the_head_does_nothing(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    assert table.revert(None).change == "none"
    assert table.state.log_version == 0


def test_a_held_head_says_who_and_why_until_it_is_released(
    table: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    table.write(rows)
    table.write(more)
    table.revert(0, hold=True, by="Ada", why="wrong feed")
    head = table.head().head
    assert head is not None
    assert head.held is not None
    assert (head.held.by, head.held.why) == ("Ada", "wrong feed")
    assert table.release()
    assert not table.release()
    released = table.head().head
    assert released is not None
    assert released.held is None
    assert released.log_version == head.log_version
    assert table.verify().ok


def test_a_hold_needs_a_reason(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    with pytest.raises(InvalidInput, match="why"):
        table.revert(0, hold=True)
    with pytest.raises(InvalidInput, match="hold=True too"):
        table.revert(0, why="wrong feed")


def test_a_partition_is_reverted_and_held_alone(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    a = table.write(rows, partition="a").version
    table.write(rows, partition="b")
    table.write(more, partition="a")
    table.revert(a.metadata_sha, hold=True, why="wrong feed")
    assert table.read(partition="a").num_rows == 3
    held = table.head(partition="a").head
    free = table.head(partition="b").head
    assert held is not None
    assert free is not None
    assert held.held is not None
    assert free.held is None
    table.release(partition="a")
    released = table.head(partition="a").head
    assert released is not None
    assert released.held is None


def test_a_held_head_is_not_written_over(table: VersionedTable, rows: pa.Table, more: pa.Table) -> None:
    table.write(rows)
    table.write(more)
    table.revert(0, hold=True, by="Ada", why="wrong feed")
    assert table.write(rows).change == "none"
    with pytest.raises(HeldHead, match=r"Ada.*wrong feed"):
        table.write(more)
    assert table.read().num_rows == 3
    table.release()
    assert table.write(more).change == "full"
