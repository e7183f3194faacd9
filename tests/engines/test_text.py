"""Text that is not UTF-8 is refused by column: no reader could read the file that held it."""

import pandas as pd
import pyarrow as pa
import pytest

from dagster_versioned.errors import UnsupportedType
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.event_history import AppendMerge, EventHistory
from dagster_versioned.tables.options import TableOptions


def broken(kind: pa.DataType, valid: bytes = b"ok") -> pa.Array:
    """Two texts, of which the second is no text."""
    large = pa.types.is_large_string(kind)
    width = 8 if large else 4
    ends = (0, len(valid), len(valid) + 2)
    offsets = b"".join(end.to_bytes(width, "little") for end in ends)
    return pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(offsets), pa.py_buffer(valid + b"\xff\xfe")])


TEXT = broken(pa.string())
NESTED = {
    "text": TEXT,
    "large text": broken(pa.large_string()),
    "in a struct": pa.StructArray.from_arrays([pa.array([1, 2]), TEXT], ["n", "text"]),
    "in a list": pa.ListArray.from_arrays([0, 1, 2], TEXT),
    "as a value of a map": pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), TEXT),
    "as a key of a map": pa.MapArray.from_arrays([0, 1, 2], TEXT, pa.array([1, 2])),
    "in a dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1]), TEXT),
    "deep": pa.ListArray.from_arrays([0, 1, 2], pa.StructArray.from_arrays([TEXT], ["text"])),
}


@pytest.fixture
def project(tmp_path):
    return Project.open("NYC", str(tmp_path / "store"))


@pytest.mark.parametrize("where", NESTED)
def test_it_is_refused_by_column_and_nothing_is_written(project, where):
    table = project.table("flights")
    with pytest.raises(UnsupportedType, match=r"Column 'note' (holds text that is not UTF-8|cannot be stored)"):
        table.write(pa.table({"n": [1, 2], "note": NESTED[where]}))
    assert not table.exists()


@pytest.mark.parametrize(
    "options",
    [TableOptions(mode="append"), TableOptions(mode="merge", merge_key=["note"]), TableOptions(sort_rows=["note"])],
    ids=["append", "merge", "sorted"],
)
def test_a_table_that_is_there_stays_as_it_was(project, options):
    table = project.table("flights")
    table.write(pa.table({"note": ["a"]}))
    with pytest.raises(UnsupportedType, match="'note' holds text that is not UTF-8"):
        table.write(pa.table({"note": TEXT}), options=options)
    assert table.read().to_pydict() == {"note": ["a"]}
    assert len(table.history()) == 1


def test_a_batch_late_in_a_stream_is_looked_at_too(project):
    schema = pa.schema({"note": pa.string()})
    batches = (pa.record_batch([one], schema=schema) for one in (pa.array(["a"]), TEXT))
    with pytest.raises(UnsupportedType, match="'note' holds text"):
        project.table("flights").write(pa.RecordBatchReader.from_batches(schema, batches))


def test_events_are_looked_at_as_well(project):
    table = project.table("log")
    with pytest.raises(UnsupportedType, match="'note' holds text"):
        EventTable(table, EventHistory(merge=AppendMerge())).write(pa.table({"note": TEXT}))
    assert not table.exists()


def test_half_of_a_pair_of_surrogates_is_no_text_in_pandas(project):
    frame = pd.DataFrame({"n": [1], "note": pd.Series(["\ud800"], dtype=object)})
    with pytest.raises(UnsupportedType, match=r"not Unicode.*surrogates"):
        project.table("flights").write(frame)


def test_the_same_bytes_can_be_stored_as_bytes(project):
    table = project.table("flights")
    table.write(pa.table({"note": TEXT.cast(pa.binary())}))
    assert table.read()["note"].to_pylist() == [b"ok", b"\xff\xfe"]


def test_what_lies_behind_a_null_or_outside_of_a_slice_is_nobodys_text(project):
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x01"), *TEXT.buffers()[1:]])
    table = project.table("flights")
    table.write(pa.table({"note": hidden, "cut": pa.concat_arrays([TEXT, TEXT]).slice(0, 1).take([0, 0])}))
    assert table.read().to_pydict() == {"note": ["ok", None], "cut": ["ok", "ok"]}
