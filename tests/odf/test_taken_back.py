"""Whether a retraction or a correction takes back a row that is there, in a history as a whole."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.verification.files import taken_back_in_vain
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.event_history import (
    ChangelogMerge,
    EventColumns,
    EventHistory,
    SnapshotMerge,
    UpsertMerge,
)
from support.colliding import colliding_texts

APPEND, RETRACT, FROM, TO = range(4)
TIME = datetime(2026, 1, 1, tzinfo=UTC)
KEYED = {"primary_key": ("id",)}


@pytest.fixture
def written(tmp_path):
    """Writes frames to a history, each a slice, and verifies it."""
    table = Project("P", LocalStore(tmp_path / "store")).table("events")

    def write(merge, *frames):
        for frame in frames:
            EventTable(table, EventHistory(merge=merge)).write(frame)
        return verify(RemoteDataset(table.store), log=table.state.snapshot)

    return write


def log(*rows, **more):
    columns = {"op": [op for op, _, _ in rows], "id": [i for _, i, _ in rows], "v": [v for _, _, v in rows]}
    times = pa.array([TIME] * len(rows), pa.timestamp("us", "UTC"))
    return pa.table({**columns, "event_time": times, **more}).cast(
        pa.schema(
            [("op", pa.int32()), ("id", pa.int64()), ("v", pa.float64()), ("event_time", pa.timestamp("us", "UTC"))]
            + [(name, pa.string()) for name in more]
        )
    )


@pytest.mark.parametrize(
    ("frames", "offset"),
    [
        ([[(RETRACT, 1, 1.0)]], 0),
        ([[(APPEND, 1, 1.0), (RETRACT, 1, 2.0)]], 1),
        ([[(APPEND, 1, 1.0)], [(RETRACT, 1, 1.0)], [(APPEND, 0, 1.0), (RETRACT, 1, 1.0)]], 3),
        ([[(APPEND, 1, 1.0)], [(FROM, 1, None), (TO, 1, 2.0)]], 1),
        ([[(APPEND, 1, 1.0)], [(FROM, 1, 1.0), (TO, 1, 2.0)], [(RETRACT, 1, 1.0)]], 3),
        ([[(RETRACT, 1, 1.0)], [(APPEND, 1, 1.0)], [(RETRACT, 1, 1.0)]], 0),
    ],
)
def test_what_was_never_there_or_is_gone_is_named_by_its_offset(written, frames, offset):
    report = written(ChangelogMerge(**KEYED), *(log(*rows) for rows in frames))
    (finding,) = report.datasets[0].findings
    assert (finding.subject, finding.problem) == (
        "slice",
        f"the record at offset {offset} takes back a row that is not there",
    )


def test_data_that_was_made_to_have_the_open_hashes_of_a_row_does_not_take_it_back(written):
    one, other = colliding_texts()
    report = written(ChangelogMerge(**KEYED), log((APPEND, 1, 1.0), word=[one]), log((RETRACT, 1, 1.0), word=[other]))
    (finding,) = report.datasets[0].findings
    assert finding.problem == "the record at offset 1 takes back a row that is not there"


def test_what_is_there_may_be_taken_back(written):
    report = written(
        ChangelogMerge(**KEYED),
        log((APPEND, 1, 1.0), (APPEND, 2, None), (APPEND, 3, float("nan"))),
        log((FROM, 1, 1.0), (TO, 1, 2.0), (RETRACT, 2, None)),
        log((RETRACT, 1, 2.0), (RETRACT, 3, float("nan")), (APPEND, 1, 1.0), word=[None, None, "a"]),
        log((RETRACT, 1, 1.0), word=["a"]),
    )
    assert report.ok


@pytest.mark.parametrize("merge", [SnapshotMerge(**KEYED), UpsertMerge(**KEYED)])
def test_what_merges_take_back_is_there(written, merge):
    def rows(*pairs):
        return pa.table({"id": [i for i, _ in pairs], "v": [v for _, v in pairs]})

    frames = [rows((1, 1.0), (2, -0.0), (3, 3.0)), rows((1, 1.5), (2, 0.0)), rows((2, 7.0), (3, 3.0))]
    assert written(merge, *frames).ok


EVENTS = st.lists(
    st.lists(st.tuples(st.sampled_from([APPEND, RETRACT, TO]), st.integers(0, 2)), max_size=6), max_size=4
)


@given(EVENTS)
def test_it_is_as_counting_one_by_one(frames):
    counts, expected, offset = dict.fromkeys(range(3), 0), {}, 0
    slices = []
    for place, rows in enumerate(frames):
        operations, values = np.array([op for op, _ in rows], int), [value for _, value in rows]
        offsets = np.arange(offset, offset + len(rows))
        batch = pa.RecordBatch.from_pydict({"offset": offsets, "op": operations, "v": pa.array(values, pa.int64())})
        slices.append((lambda batch=batch: iter([batch.slice(0, 2), batch.slice(2)]), RETRACT in operations))
        for op, value in rows:
            if op == RETRACT and not counts[value]:
                expected.setdefault(place, offset)
            else:
                counts[value] += -1 if op == RETRACT else 1
            offset += 1
    schema = pa.schema([("offset", pa.int64()), ("op", pa.int64()), ("v", pa.int64())])
    assert taken_back_in_vain(slices, schema, EventColumns()) == expected
