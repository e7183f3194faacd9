"""Events of OpenLineage: what a server receives of each output, and that nothing fails where there is none."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import dagster as dg
import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator

from dagster_versioned import OpenLineageResource
from dagster_versioned.io_managers.open_lineage import OWN_FACET, dataset_of

# What OpenLineage.json 2-0-2 requires of a run event and of what it holds.
_URI = {"type": "string", "pattern": "^https?://"}
_FACETS = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "required": ["_producer", "_schemaURL"],
        "properties": {"_producer": _URI, "_schemaURL": _URI},
    },
}
_NAMED = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": _FACETS},
}
RUN_EVENT = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*(Z|\+00:00)$"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "producer": _URI,
        "schemaURL": _URI,
        "run": {"type": "object", "required": ["runId"], "properties": {"facets": _FACETS}},
        "job": _NAMED,
        "inputs": {"type": "array", "items": _NAMED},
        "outputs": {"type": "array", "items": _NAMED},
    },
}


@pytest.fixture
def received(monkeypatch) -> Iterator[list[dict]]:
    """The events that a server on this machine receives, which the client's own variables name."""
    events: list[dict] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            events.append(json.loads(body))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
    yield events
    server.shutdown()
    server.server_close()


@dg.asset
def up():
    return pa.table({"n": [1, 2], "word": ["a", "b"]})


@dg.asset(key_prefix="late")
def down(up):
    return up.slice(0, 1)


def facets(dataset):
    return {name: {k: v for k, v in facet.items() if k[0] != "_"} for name, facet in dataset["facets"].items()}


def test_each_output_is_an_event_with_what_it_was_built_from(house, received):
    result = house.run(up, down, io_manager=house.io_manager(open_lineage=OpenLineageResource(namespace="fleet")))
    first, second = received
    for event in received:
        Draft202012Validator(RUN_EVENT).validate(event)
        assert event["eventType"] == "COMPLETE"
        assert event["run"]["facets"]["parent"]["run"]["runId"] == result.run_id
    assert [event["job"]["name"] for event in received] == ["up", "late/down"]
    assert {event["job"]["namespace"] for event in received} == {"fleet"}
    assert len({UUID(event["run"]["runId"]) for event in received}) == 2
    folders = {name: house.project.table(name).store.uri for name in ("up", "late__down")}
    assert first["inputs"] == []
    (made,) = first["outputs"]
    assert (made["namespace"], made["name"]) == ("file", folders["up"])
    head = house.head("up")
    assert facets(made)["version"] == {"datasetVersion": head.metadata_sha}
    assert facets(made)["storage"] == {"storageLayer": "delta", "fileFormat": "parquet"}
    columns = [(field["name"], field["type"]) for field in facets(made)["schema"]["fields"]]
    assert columns == [("n", "long"), ("word", "string")]
    (read,) = second["inputs"]
    assert (read["namespace"], read["name"]) == ("file", folders["up"])
    assert facets(read) == {"version": {"datasetVersion": head.metadata_sha}}
    below = house.head("late__down")
    (own,) = facets(second["outputs"][0])[OWN_FACET]["versions"]  # the client leaves out what is None
    assert own == {
        "change": "full",
        "metadata_sha": below.metadata_sha,
        "data_sha": below.data_sha,
        "log_version": 0,
        "parents": [{"source": "HOUSE", "table": "up", "version": head.metadata_sha}],
    }


def test_a_run_over_partitions_is_one_event(house, received):
    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]), backfill_policy=dg.BackfillPolicy.single_run())
    def daily(context):
        return {key: pa.table({"n": [1]}) for key in context.partition_keys}

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    house.run(daily, io_manager=house.io_manager(open_lineage=OpenLineageResource()), tags=tags)
    ((made,),) = (event["outputs"] for event in received)
    versions = facets(made)[OWN_FACET]["versions"]
    assert [(one["partition"], one["change"]) for one in versions] == [("a", "full"), ("b", "full")]
    assert [one["metadata_sha"] for one in versions] == [house.head("daily", key).metadata_sha for key in "ab"]


@pytest.mark.spark
def test_columns_of_spark_frames_have_their_lineage(house, received, spark):
    from pyspark.sql import DataFrame

    @dg.asset
    def doubled(up: DataFrame) -> DataFrame:
        return up.selectExpr("2 * n AS twice", "1 AS one")

    house.run(up, doubled, io_manager=house.io_manager(open_lineage=OpenLineageResource()))
    found = facets(received[1]["outputs"][0])["columnLineage"]["fields"]
    (origin,) = found["twice"]["inputFields"]
    folder = house.project.table("up").store.uri
    assert (origin["namespace"], origin["name"], origin["field"]) == ("file", folder, "n")


def test_where_nobody_listens_the_run_succeeds_and_says_so_once(house, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    result = house.run(up, io_manager=house.io_manager(open_lineage=OpenLineageResource()))
    assert result.success
    (text,) = [one.user_message for one in house.instance.all_logs(result.run_id) if one.level == 30]
    assert text.startswith("up: what was written is committed, but its event did not reach OpenLineage. Conn")


@pytest.mark.parametrize(
    ("uri", "dataset"),
    [
        ("/data/datom/up", ("file", "/data/datom/up")),
        ("file:///data/up", ("file", "/data/up")),
        ("s3://bucket/a/b/up?region=eu", ("s3://bucket", "a/b/up")),
        ("gs://bucket", ("gs://bucket", "/")),
        (
            "abfss://c@account.dfs.core.windows.net/x/up",
            ("abfss://c@account.dfs.core.windows.net", "x/up"),
        ),
    ],
)
def test_a_dataset_is_named_by_its_place(uri, dataset):
    assert dataset_of(uri) == dataset
