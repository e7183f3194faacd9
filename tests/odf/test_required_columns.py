"""What a chain states as required is never null: whichever way rows come in, and whoever is to pull them."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.odf import slice_file
from dagster_versioned.odf.blocks.arrow_schema import encode_schema
from dagster_versioned.odf.blocks.data_schema_arrow import from_arrow
from dagster_versioned.odf.blocks.events import SetDataSchema, SetPollingSource
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.ingest.declare import event_table, source_of
from dagster_versioned.odf.ingest.poll import Polling, poll
from dagster_versioned.odf.manifest import read_snapshot
from dagster_versioned.odf.queries.transform import InputAt, derive
from dagster_versioned.odf.sharing.remote import open_remote
from dagster_versioned.odf.sharing.smart.client import open_smart
from dagster_versioned.odf.sharing.smart.push import push_smart
from dagster_versioned.odf.sharing.smart.push_server import Receiver
from dagster_versioned.odf.sharing.transfer import pull, push
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.event_history import (
    AppendMerge,
    ChangelogMerge,
    EventHistory,
    LedgerMerge,
    SnapshotMerge,
    UpsertMerge,
)
from dagster_versioned.tables.table import VersionedTable
from support.odf_chains import SYSTEM, Chain
from support.smart_peers import serving
from support.spark import spark_frame

KEY = ("id",)
PARTS = pa.list_(pa.field("item", pa.int64(), nullable=False))
INSIDE = pa.struct([pa.field("x", pa.int64(), nullable=False)])
COLUMNS = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("heat", pa.int64(), nullable=False),
    pa.field("parts", PARTS),
    pa.field("inside", INSIDE),
]
MERGES = [
    AppendMerge(),
    LedgerMerge(primary_key=KEY),
    SnapshotMerge(primary_key=KEY),
    UpsertMerge(primary_key=KEY),
    ChangelogMerge(primary_key=KEY),
]


@pytest.fixture(params=["logical", "arrow"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> VersionedTable:
    """A copy of a chain that others began, by either way of stating columns."""
    columns = pa.schema([*SYSTEM, *COLUMNS])
    stated = SetDataSchema(schema=from_arrow(columns))
    return pulled(tmp_path, stated if request.param == "logical" else SetDataSchema(encode_schema(columns)))


def pulled(folder: Path, stated: SetDataSchema, begun: Chain | None = None) -> VersionedTable:
    chain = (begun or Chain.root()).append(stated)
    origin = LocalStore(folder / "origin")
    for name, data in chain.stored.items():
        origin.put(f"blocks/{name}", data)
    origin.put("refs/head", str(chain.head).encode())
    table = Project.open("COPY", str(folder / "copy")).table("readings")
    pull(open_remote(str(folder / "origin")), table)
    return table


def frame(*, heat: int | None = 1, part: int | None = 1, x: int | None = 1, op: bool = False) -> pa.Table:
    rows = {"id": [1, 2], "heat": [1, heat], "parts": [None, [1, part]], "inside": [None, {"x": x}]}
    types = [pa.int64(), pa.int64(), pa.list_(pa.int64()), pa.struct([("x", pa.int64())])]
    columns = {name: pa.array(values, kind) for (name, values), kind in zip(rows.items(), types, strict=True)}
    return pa.table(columns | ({"op": pa.array([0, 0], pa.int32())} if op else {}))


@pytest.mark.parametrize("merge", MERGES, ids=lambda merge: type(merge).__name__)
def test_a_null_in_a_required_column_is_refused_by_every_merge(table: VersionedTable, merge: Any):
    history, operations = EventTable(table, EventHistory(merge=merge)), isinstance(merge, ChangelogMerge)
    for missing, column in (("heat", "heat"), ("part", "parts.item"), ("x", "inside.x")):
        with pytest.raises(InvalidInput, match=f"'{column}' has a null.*required.*Nothing was written"):
            history.write(frame(op=operations, **{missing: None}))
    assert history.chain.next_offset == 0
    history.write(frame(op=operations))
    assert verify(open_remote(str(table.store.local_path("x")).removesuffix("/x"))).ok


def test_a_null_that_a_source_has_is_refused_as_it_is_polled(tmp_path: Path):
    columns = pa.schema([*SYSTEM, *COLUMNS[:2]])
    table = pulled(tmp_path, SetDataSchema(schema=from_arrow(columns)))
    (tmp_path / "a.csv").write_text("id,heat\n1,\n")
    snapshot = read_snapshot(
        f"""
kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: {tmp_path}/*.csv}}
      read: {{kind: Csv, header: true, schema: [id BIGINT, heat BIGINT]}}
      merge: {{kind: Append}}
"""
    )
    source = source_of(snapshot)
    assert isinstance(source, SetPollingSource)
    with pytest.raises(InvalidInput, match="'heat' has a null"):
        list(poll(event_table(table, snapshot), source, Polling()))
    assert EventTable(table).chain.next_offset == 0


@pytest.mark.spark
def test_spark_and_queries_refuse_a_null_where_the_chain_has_none(spark: Any, tmp_path: Path):
    stated = SetDataSchema(schema=from_arrow(pa.schema([*SYSTEM, *COLUMNS[:2]])))
    table = pulled(tmp_path, stated)
    history = EventTable(table, EventHistory(merge=AppendMerge()))
    with pytest.raises(InvalidInput, match="'heat' has a null"):
        history.write(spark_frame(spark, frame(heat=None).select(["id", "heat"])))
    history.write(frame().select(["id", "heat"]))
    derived = pulled(tmp_path / "derived", stated, Chain.derivative())
    query = TransformQuery(("one",), (QueryStep("SELECT event_time, id, nullif(heat, 1) AS heat FROM one"),))
    with pytest.raises(InvalidInput, match="'heat' has a null"):
        derive(EventTable(derived), query, {"one": InputAt.of_table(table)}, spark)
    assert EventTable(derived).chain.next_offset == 0


@pytest.mark.parametrize("smart", [False, True], ids=["simple", "smart"])
def test_what_nobody_could_pull_is_not_pushed(
    table: VersionedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smart: bool
):
    with monkeypatch.context() as earlier:  # as earlier releases wrote it
        earlier.setattr(slice_file, "missing_value", lambda columns, stated: None)
        EventTable(table, EventHistory(merge=AppendMerge())).write(frame(part=None))
    shared = Project.open("SHARED", str(tmp_path / "shared")).table("readings")
    with serving(shared.store, receiver=Receiver(shared, "token")) as running:
        pushed = partial(push_smart, table, open_smart(running.smart, token="token"))
        with pytest.raises(IntegrityError, match=r"'parts.item' has a null.*Nothing was pushed"):
            (pushed if smart else partial(push, table, shared.store))()
    assert not list(shared.store.list())
