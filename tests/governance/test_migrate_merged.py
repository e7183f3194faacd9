"""Tables whose rows were merged move with their deletion vectors and their files of changes."""

from pathlib import Path

import pyarrow as pa

from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import Location
from dagster_versioned.tables.options import TableOptions
from support.frames import numbered
from support.governed import Governed, Opener, facts
from support.stores import contents

MERGE = TableOptions(
    mode="merge",
    merge_key=("n",),
    properties={"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
)


def feed(governed: Governed, place: Location) -> pa.Table:
    return read_changes(str(governed.at(place).data.local_path("flights")), 0)


def test_vectors_and_changes_are_at_the_new_place(registry: Registry, mirror: GovernanceStore, tmp_path: Path) -> None:
    old, new = (Location.parse(str(tmp_path / name)) for name in ("old", "new"))
    governed = Governed.begin(registry, mirror, old, Opener())
    flights = governed.at(old).table("flights")
    flights.write(numbered(3_000), options=MERGE)
    for first, text in ((0, "scattered"), (1, "again")):  # whose vectors are too large for the log
        some = numbered(3_000).take(list(range(first, 3_000, 5)))
        flights.write(some.set_column(1, "text", pa.array([text] * some.num_rows)), options=MERGE)
    before, told = facts(governed.at(old)), feed(governed, old)
    kinds = [key.split("/")[-1].split("_")[0] for key in contents(flights.store) if not key.endswith(".json")]
    assert kinds.count("deletion") == 2
    assert len([key for key in contents(flights.store) if key.startswith("_change_data/")]) == 2
    governed.move(new, verify="content")
    assert facts(governed.at(new)) == before
    assert feed(governed, new).sort_by("n").equals(told.sort_by("n"))
    arrived = governed.at(new).table("flights")
    arrived.verify().require_ok()
    assert contents(arrived.store, without=("_delta_log", ".metadata")) == contents(
        flights.store, without=("_delta_log", ".metadata")
    )
