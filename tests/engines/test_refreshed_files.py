"""Which files are written anew where most rows of a table stay the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.engines.refresh import FileRows, files_to_rewrite

LARGE = FileRows(1_000_000, 0, 100)


@pytest.mark.parametrize(
    ("files", "inserted", "rewritten"),
    [
        pytest.param([LARGE], 100, set(), id="few rows go"),
        pytest.param([LARGE, FileRows(1_000, 450, 100)], 100, {1}, id="more than half of a file"),
        pytest.param([LARGE, FileRows(1_000, 0, 1_000)], 0, {1}, id="all of a file"),
        pytest.param([FileRows(1_000_000, 0, 160_000)], 0, None, id="many rows go"),
        pytest.param([LARGE], 200_000, None, id="many rows come"),
        pytest.param([LARGE, *[FileRows(100, 0, 0)] * 3], 100, {1, 2, 3}, id="four small ones of a size"),
        pytest.param([LARGE, *[FileRows(100, 0, 0)] * 3], 0, set(), id="nothing is written beside them"),
        pytest.param([LARGE, *[FileRows(100, 0, 0)] * 2], 100, set(), id="three"),
        pytest.param([*[FileRows(1_000_000, 0, 0)] * 4], 1, set(), id="none is small"),
    ],
)
def test_as_a_version_follows(files, inserted, rewritten):
    assert files_to_rewrite(files, inserted) == rewritten


@given(nights=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 5_000)), max_size=60))
def test_however_many_nights_pass_there_are_few_files_and_each_is_mostly_read(nights):
    files, written, changed = [FileRows(200_000, 0, 0)], 0, 0
    for inserted, going in nights:
        left, now = going, list[FileRows]()
        for file in files:  # the oldest rows go first
            lost = min(left, file.left)
            now.append(FileRows(file.stored, file.deleted, lost))
            left -= lost
        rewritten = files_to_rewrite(now, inserted)
        changed += max(inserted, going)
        if rewritten is None:
            files = [FileRows(inserted + sum(file.left for file in now), 0, 0)]
            continue
        new = inserted + sum(now[i].left for i in rewritten)
        files = [
            FileRows(file.stored, file.deleted + file.going, 0) for i, file in enumerate(now) if i not in rewritten
        ]
        files += [FileRows(new, 0, 0)] if new else []
        written += new
        assert all(2 * file.deleted <= file.stored for file in files)
        assert len(files) < 30
    assert written <= 12 * changed + 200_000
