"""Manifests: what people write is what the chain gets, and what they got wrong is said in their terms."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import (
    AddData,
    CompressionFormat,
    DatasetKind,
    EventTimeSourceFromPath,
    FetchStepUrl,
    MergeStrategySnapshot,
    MetadataEvent,
    PrepStepDecompress,
    ReadStepCsv,
    SetInfo,
    SetPollingSource,
    SetTransform,
    SourceCachingForever,
    SqlQueryStep,
    TemporalTable,
    TransformInput,
    TransformSql,
)
from dagster_versioned.odf.manifest import DatasetSnapshot, read_snapshot, to_document, write_manifest
from support import odf_values
from support.odf_chains import moment, slice_of

AIRPORTS = """\
kind: DatasetSnapshot
version: 1
content:
  name: org.example.airports
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Url
        url: https://example.org/airports.csv.gz
        eventTime:
          kind: FromPath
          pattern: (\\d{4})
        cache:
          kind: Forever
      prepare:
        - kind: Decompress
          format: Gzip
      read:
        kind: Csv
        header: true
        ddlSchema:
          - faa STRING NOT NULL
          - altitude INT
      preprocess:
        kind: Sql
        engine: spark
        query: |
          SELECT *
          FROM input
      merge:
        kind: Snapshot
        primaryKey:
          - faa
    - kind: SetInfo
      description: Airports, by year
"""
SNAPSHOT = DatasetSnapshot(
    "org.example.airports",
    DatasetKind.ROOT,
    (
        SetPollingSource(
            fetch=FetchStepUrl(
                "https://example.org/airports.csv.gz", EventTimeSourceFromPath(r"(\d{4})"), SourceCachingForever()
            ),
            prepare=(PrepStepDecompress(CompressionFormat.GZIP),),
            read=ReadStepCsv(ddl_schema=("faa STRING NOT NULL", "altitude INT"), header=True),
            preprocess=TransformSql("spark", query="SELECT *\nFROM input\n"),
            merge=MergeStrategySnapshot(("faa",)),
        ),
        SetInfo("Airports, by year"),
    ),
)
DERIVATIVE = """\
kind: DatasetSnapshot
version: 1
content:
  name: delays
  kind: derivative
  metadata:
    - kind: setTransform
      inputs:
        - datasetRef: org.example.airports
          alias: airports
      transform:
        kind: sql
        engine: spark
        queries:
          - alias: seen
            query: SELECT 1
          - query: SELECT * FROM seen
        temporalTables:
          - name: airports
            primaryKey: [faa]
"""


def test_a_manifest_is_read() -> None:
    assert read_snapshot(AIRPORTS) == SNAPSHOT


def test_a_manifest_is_written_as_people_would() -> None:
    written = write_manifest("DatasetSnapshot", SNAPSHOT)
    assert yaml.safe_load(written) == yaml.safe_load(AIRPORTS)
    assert "      query: |\n        SELECT *\n        FROM input\n" in written


def test_kinds_are_read_in_either_case() -> None:
    transform = TransformSql(
        "spark",
        queries=(SqlQueryStep(alias="seen", query="SELECT 1"), SqlQueryStep(query="SELECT * FROM seen")),
        temporal_tables=(TemporalTable("airports", ("faa",)),),
    )
    expected = SetTransform((TransformInput("org.example.airports", "airports"),), transform)
    assert read_snapshot(DERIVATIVE) == DatasetSnapshot("delays", DatasetKind.DERIVATIVE, (expected,))


EVENTS = st.lists(odf_values.values(MetadataEvent), max_size=4).map(tuple)


@settings(max_examples=15)
@given(EVENTS, st.sampled_from(DatasetKind))
def test_every_event_comes_back_as_it_was(events: tuple[Any, ...], kind: DatasetKind) -> None:
    snapshot = DatasetSnapshot("a", kind, events)
    assert read_snapshot(write_manifest("DatasetSnapshot", snapshot)) == snapshot


def test_an_event_is_shown_as_a_document() -> None:
    slice_ = slice_of(0, 9)
    assert to_document(AddData(prev_offset=0, new_data=slice_, new_watermark=moment(60))) == {
        "prevOffset": 0,
        "newData": {
            "logicalHash": str(slice_.logical_hash),
            "physicalHash": str(slice_.physical_hash),
            "offsetInterval": {"start": 0, "end": 9},
            "size": 100,
        },
        "newWatermark": "2024-02-29T12:00:00Z",
    }


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("kind: DatasetSnapshot", "kind: Dataset", "kind (line 1) is 'Dataset'; expected DatasetSnapshot"),
        ("version: 1", "version: 2", "version (line 2) is 2, of a later format than can be read; expected 1"),
        ("version: 1", "version: '1'", "version (line 2) is '1'; expected 1"),
        ("version: 1\n", "", "version (line 1) is null; expected 1"),
        ("  name: org.example.airports\n", "", "content.name (line 3) is missing"),
        ("name: org.example.airports", "name: a b", "content.name (line 4) is 'a b'; expected [account/]name"),
        ("name: org.example.airports", "name: 7", "content.name (line 4) is 7; expected a text"),
        ("kind: Root", "kind: Leaf", "content.kind (line 5) is 'Leaf'; expected one of Root, Derivative"),
        (
            "kind: SetInfo",
            "kind: SetInfos",
            "content.metadata[1].kind (line 35) is 'SetInfos'; expected one of AddData, ExecuteTransform, Seed,",
        ),
        (
            "    - kind: SetInfo\n      desc",
            "    - desc",
            "content.metadata[1] (line 35) has no kind; expected one of AddData",
        ),
        (
            "kind: Url\n",
            "kind: Uri\n",
            "content.metadata[0].fetch.kind (line 9) is 'Uri'; expected one of Url, FilesGlob, Container, Mqtt, Ethere",
        ),
        (
            "primaryKey:\n          - faa",
            "primaryKey: faa",
            "content.metadata[0].merge.primaryKey (line 33) is 'faa'; expected a list",
        ),
        (
            "primaryKey:",
            "primarykey:",
            "content.metadata[0].merge.primarykey (line 33) is not known; did you mean primaryKey?",
        ),
        ("header: true", "header: yes", "content.metadata[0].read.header (line 21) is 'yes'; expected true or false"),
        ("description: Airports, by year", "description: ", None),
        (
            "description: Airports, by year",
            "describe: x",
            "content.metadata[1].describe (line 36) is not known; did you mean",
        ),
        ("format: Gzip", "format: null", "content.metadata[0].prepare[0].format (line 18) is null, and may not be"),
        ("format: Gzip", "format: Rar", "format (line 18) is 'Rar'; expected one of Gzip, Zip"),
        (
            "url: https",
            "url: a\n        url: https",
            "content.metadata[0].fetch.url (line 10) is there twice, the second time on line 11",
        ),
    ],
)
def test_what_is_wrong_is_named_by_path_line_value_and_expectation(old: str, new: str, problem: str | None) -> None:
    assert AIRPORTS.count(old) >= 1
    text = AIRPORTS.replace(old, new, 1)
    if problem is None:
        assert read_snapshot(text).metadata[1] == SetInfo()
        return
    with pytest.raises(InvalidInput) as refused:
        read_snapshot(text, "airports.yaml")
    assert problem in str(refused.value)
    assert str(refused.value).startswith("airports.yaml cannot be used; nothing was changed:")


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = AIRPORTS.replace("kind: Root", "kind: Leaf").replace("header: true", "header: 1").replace("Gzip", "Rar")
    with pytest.raises(InvalidInput) as refused:
        read_snapshot(text)
    assert str(refused.value).count("\n  - ") == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the document (line 1) is null; expected a mapping with kind, version and content"),
        ("- 1", "is a list; expected a mapping"),
        ("a: [", "line 1 is no YAML"),
        ("a: 1\n b: 2", "line 2 is no YAML"),
        ("a: &x 1\nb: *x", "an anchor is nothing that JSON could say"),
        ("a: !!python/object:os.system x", "the tag tag:yaml.org,2002:python/object:os.system is nothing"),
        ("a: 1\n---\nb: 2", "no YAML"),
        ("[" * 60, "no YAML"),
        ("a: \x00", "no YAML"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match="the manifest") as refused:
        read_snapshot(text)
    assert problem in str(refused.value)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_snapshot(text)


@pytest.mark.parametrize(
    "text", ["1e5", "0x1", "yes", "null", "", "2024-01-01", " x ", "a: b", "- a", "7", "'", "ÿ\u2028", "a \nb", "~"]
)
def test_texts_stay_texts(text: str) -> None:
    snapshot = DatasetSnapshot("a", DatasetKind.ROOT, (SetInfo(text),))
    assert read_snapshot(write_manifest("DatasetSnapshot", snapshot)) == snapshot
