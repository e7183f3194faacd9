"""Derived datasets are verified by doing runs again: a forgery that every hash vouches for is found by nothing else."""

import hashlib
from dataclasses import replace
from io import BytesIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dagster_versioned.odf.blocks.block import block_hash, encode_block
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from dagster_versioned.odf.queries.transform import replay
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.tables.chain_head import BLOCKS, REF_KEY
from dagster_versioned.tables.parts import SLICES
from support.derived import House
from support.transforms import at

pytestmark = pytest.mark.spark

LATE = "SELECT event_time, id, delay FROM flights WHERE delay > 6"
COUNTS = "SELECT max(event_time) AS event_time, delay, count(*) AS n FROM late GROUP BY delay"


@pytest.fixture
def house(spark, project):
    house = House(project)
    house.write((at(1), 1, "UA", 7), (at(2), 2, "AA", 9))
    house.derive(LATE)
    house.derive(COUNTS, "counts", ("late",))
    house.write((at(0), 3, "UA", 9))
    house.derive(LATE)
    house.derive(COUNTS, "counts", ("late",))
    return house


def forge(house, name, change):
    """Change the last slice of a dataset, and its block and its head such that every hash is right again."""
    store = house.project.table(name).store
    _, block = house.chain(name)[-1]
    said = block.event.new_data
    rows = change(pq.read_table(BytesIO(store.get(f"{SLICES}{said.physical_hash}"))))
    file = BytesIO()
    pq.write_table(rows, file)
    physical = Multihash(HashAlgorithm.SHA3_256, hashlib.sha3_256(file.getvalue()).digest())
    logical = Arrow0(rows.schema)
    logical.update(rows)
    new = replace(said, physical_hash=physical, logical_hash=logical.digest(), size=len(file.getvalue()))
    data = encode_block(replace(block, event=replace(block.event, new_data=new)))
    store.put(f"{SLICES}{physical}", file.getvalue())
    store.put(f"{BLOCKS}{block_hash(data)}", data)
    store.put(REF_KEY, str(block_hash(data)).encode())


def set_column(rows, name, values):
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(name), pa.chunked_array([values(rows[name]).combine_chunks()]))


@pytest.mark.slow
def test_every_run_up_to_the_roots_gives_what_is_recorded(house):
    report = verify(house.dataset("counts"), resolve=house.by_id, replay=replay)
    report.require_ok()
    assert [one.replayed for one in report.datasets] == [2, 2, 0]


@pytest.mark.slow
def test_a_forged_row_of_a_derived_dataset_is_found_at_its_block(house):
    def counted_once_more(rows):
        taken_back = pc.is_in(rows["op"], pa.array([1, 2], rows["op"].type))  # what was there before is found by itself
        return set_column(rows, "n", lambda n: pc.if_else(taken_back, n, pc.add(n, pa.scalar(1, n.type))))

    forge(house, "counts", counted_once_more)
    assert verify(house.dataset("counts"), resolve=house.by_id).ok
    (dataset, *others) = verify(house.dataset("counts"), resolve=house.by_id, replay=replay).datasets
    (finding,) = dataset.findings
    assert (finding.subject, finding.sequence_number) == ("replay", house.chain("counts")[-1][1].sequence_number)
    assert all(other.ok for other in others)


@pytest.mark.slow
def test_a_forged_row_that_others_are_derived_from_is_found_where_it_was_derived(house):
    forge(house, "late", lambda rows: set_column(rows, "delay", lambda delay: pc.add(delay, pa.scalar(1, delay.type))))
    report = verify(house.dataset("late"), resolve=house.by_id, replay=replay)
    assert [finding.subject for finding in report.datasets[0].findings] == ["replay"]
