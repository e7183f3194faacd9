"""Events of OpenLineage: what a server receives of each output, and that nothing fails where there is none."""

import gzip
import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from jsonschema import Draft202012Validator

from dagster_versioned import OpenLineageResource, ProjectResource, VersionedParquetIOManager, versioned_source
from dagster_versioned.identity.version import partitions_sha
from dagster_versioned.io_managers.open_lineage_events import OWN_FACET, PRODUCER, dataset_of

# What OpenLineage 2-0-2 requires of a run event, and its facets of the versions below of themselves, in JSON Schema's
# words. A facet's _schemaURL says which of these it follows; one of our own follows that of any facet.
_URI = {"type": "string", "format": "uri", "pattern": "^https?://"}
_TEXT = {"type": "string"}
_UUID = {"type": "string", "format": "uuid", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}


def _record(required, **optional):
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _list(items):
    return {"type": "array", "items": items}


_COLUMN = _record({"name": _TEXT}, type=_TEXT, description=_TEXT, fields={"type": "array"})
_INPUT_FIELD = _record({"namespace": _TEXT, "name": _TEXT, "field": _TEXT}, transformations={"type": "array"})
_JOB_NAME = {"namespace": _TEXT, "name": _TEXT}
FACETS = {
    "facets/1-2-0/ColumnLineageDatasetFacet.json#/$defs/ColumnLineageDatasetFacet": _record(
        {"fields": {"type": "object", "additionalProperties": _record({"inputFields": _list(_INPUT_FIELD)})}},
        dataset=_list(_INPUT_FIELD),
    ),
    "facets/1-2-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet": _record({}, fields=_list(_COLUMN)),
    "facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet": _record(
        {"datasetVersion": _TEXT}
    ),
    "facets/1-0-1/StorageDatasetFacet.json#/$defs/StorageDatasetFacet": _record(
        {"storageLayer": _TEXT}, fileFormat=_TEXT
    ),
    "facets/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet": _record(
        {"run": _record({"runId": _UUID}), "job": _record(_JOB_NAME)}, root={"type": "object"}
    ),
    "facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet": _record(
        {"message": _TEXT, "programmingLanguage": _TEXT}, stackTrace=_TEXT
    ),
    "2-0-2/OpenLineage.json#/$defs/DatasetFacet": {},
}
# Of clients before 1.51, with what is asked of the newer one.
FACETS["facets/1-1-0/ParentRunFacet.json#/$defs/ParentRunFacet"] = FACETS[
    "facets/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet"
]
KEYS = {  # as the facets' own schemas name them
    "columnLineage": "ColumnLineageDatasetFacet",
    "schema": "SchemaDatasetFacet",
    "version": "DatasetVersionDatasetFacet",
    "storage": "StorageDatasetFacet",
    "parent": "ParentRunFacet",
    "errorMessage": "ErrorMessageRunFacet",
}
_FACETS = {"type": "object", "additionalProperties": _record({"_producer": _URI, "_schemaURL": _URI})}
_DATASET = _record(_JOB_NAME, facets=_FACETS)
RUN_EVENT = _record(
    {
        "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$"},
        "producer": _URI,
        "schemaURL": {"const": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"},
        "run": _record({"runId": _UUID}, facets=_FACETS),
        "job": _record(_JOB_NAME, facets=_FACETS),
    },
    eventType={"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
    inputs=_list(_DATASET),
    outputs=_list(_DATASET),
)


def check(events):
    """That events are as the specification wants them, and their runs too: each has one beginning and one end."""
    runs = {}
    for event in events:
        Draft202012Validator(RUN_EVENT).validate(event)
        runs.setdefault(event["run"]["runId"], []).append(event)
        for holder in (event["run"], *event.get("inputs", ()), *event.get("outputs", ())):
            for name, facet in holder.get("facets", {}).items():
                if name == "tags":  # the client's own, which says its version
                    continue
                own = facet["_schemaURL"].removeprefix("https://openlineage.io/spec/")
                Draft202012Validator(FACETS[own]).validate(facet)
                assert facet["_producer"] == event["producer"] == PRODUCER
                # A custom facet is called prefix_name, each in camel case.
                assert KEYS.get(name, "DatasetFacet") == own.rpartition("/")[2]
                assert name in KEYS or re.fullmatch(r"[a-z][A-Za-z]*_[a-z][A-Za-z]*", name)
        for datasets in (event.get("inputs", ()), event.get("outputs", ())):
            names = [(one["namespace"], one["name"]) for one in datasets]
            assert len(set(names)) == len(names)
    for begun, ended in runs.values():
        assert (begun["eventType"], ended["eventType"] in ("COMPLETE", "FAIL")) == ("START", True)
        assert begun["job"] == ended["job"]
        assert begun["eventTime"] <= ended["eventTime"]


def ended(events):
    """The last event of each run."""
    check(events)
    return events[1::2]


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
    first, second = ended(received)
    for event in received:
        above = event["run"]["facets"]["parent"]
        assert above["run"]["runId"] == result.run_id
        assert above["job"]["namespace"] == "fleet"
    assert [event["eventType"] for event in received] == ["START", "COMPLETE"] * 2
    assert [event["job"]["name"] for event in (first, second)] == ["up", "late/down"]
    assert {event["job"]["namespace"] for event in received} == {"fleet"}
    started = {one.step_key: one.start_time for one in house.instance.get_run_step_stats(result.run_id)}
    begun = [datetime.fromisoformat(event["eventTime"]).timestamp() for event in received[::2]]
    assert begun == pytest.approx([started["up"], started["late__down"]], abs=0.001)
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
    ((made,),) = (event["outputs"] for event in ended(received))
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
    found = facets(ended(received)[1]["outputs"][0])["columnLineage"]["fields"]
    assert found.keys() == {"twice"}  # what comes of no column is left out, as in Dagster
    (origin,) = found["twice"]["inputFields"]
    folder = house.project.table("up").store.uri
    assert (origin["namespace"], origin["name"], origin["field"]) == ("file", folder, "n")


def test_partitions_that_were_read_are_one_input(house, received):
    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b", "c"]))
    def daily(context):
        return pa.table({"day": [context.partition_key]})

    @dg.asset(ins={"daily": dg.AssetIn(partition_mapping=dg.SpecificPartitionsPartitionMapping(["a", "b"]))})
    def two(daily):
        return daily

    for key in "abc":
        house.run(daily, partition_key=key)
    house.run(daily, two, selection=[two], io_manager=house.io_manager(open_lineage=OpenLineageResource()))
    (event,) = ended(received)
    (read,) = event["inputs"]
    shas = {key: house.head("daily", key).metadata_sha for key in "ab"}
    assert facets(read)["version"] == {"datasetVersion": partitions_sha(shas)}
    (own,) = facets(event["outputs"][0])[OWN_FACET]["versions"]
    assert {one["partition"]: one["version"] for one in own["parents"]} == shas


def test_what_was_read_of_elsewhere_is_named_by_its_place(house, received, tmp_path):
    """A table of another project, and a Delta table of none."""
    place = str(tmp_path / "plain")
    write_deltalake(place, pa.table({"n": [3]}))
    plain = versioned_source("plain", uri=place)
    other = VersionedParquetIOManager(project=ProjectResource(name="OTHER", location=str(tmp_path / "other")))

    @dg.asset(io_manager_key="other")
    def theirs():
        return pa.table({"n": [1]})

    @dg.asset
    def ours(theirs, plain):
        return pa.concat_tables([theirs, plain])

    manager = house.io_manager(open_lineage=OpenLineageResource())
    house.run(theirs, plain, ours, io_manager=manager, resources={"other": other})
    (event,) = ended(received)
    assert sorted((one["namespace"], one["name"]) for one in event["inputs"]) == [
        ("file", str(tmp_path / "other/datom/theirs")),
        ("file", place),
    ]


def test_an_attempt_that_was_refused_is_a_run_that_failed(house, received):
    attempts = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def moody():
        attempts.append(1)
        return pa.table({"n": pa.array([], pa.int64())}) if len(attempts) == 1 else pa.table({"n": [1]})

    house.run(moody, io_manager=house.io_manager(open_lineage=OpenLineageResource()))
    failed, completed = ended(received)
    assert (failed["eventType"], completed["eventType"]) == ("FAIL", "COMPLETE")
    assert failed["run"]["runId"] != completed["run"]["runId"]
    assert failed["run"]["facets"]["errorMessage"]["message"].startswith("EmptyTable: The frame has no rows.")
    (meant,) = failed["outputs"]
    assert (meant["name"], "version" in facets(meant)) == (house.project.table("moody").store.uri, False)


def test_what_a_transport_has_not_sent_yet_is_sent_with_the_end_of_the_run(house, received, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "async_http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", os.environ["OPENLINEAGE_URL"])
    monkeypatch.delenv("OPENLINEAGE_URL")
    resource = OpenLineageResource()
    for _ in range(2):
        house.run(up, io_manager=house.io_manager(open_lineage=resource))
    assert sorted(event["eventType"] for event in received) == ["COMPLETE", "COMPLETE", "START", "START"]


def test_where_nobody_listens_the_run_succeeds_and_says_so_once(house, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    result = house.run(up, io_manager=house.io_manager(open_lineage=OpenLineageResource()))
    assert result.success
    (text,) = [one.user_message for one in house.instance.all_logs(result.run_id) if one.level == 30]
    assert text.startswith("up: what was written is committed, but the event did not reach OpenLineage. Conn")


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
