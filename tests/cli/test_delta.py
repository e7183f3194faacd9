"""The verbs for any Delta table, by its folder."""

import os
import shutil

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.delta_tables.write import update_delta, write_delta
from support.command_line import Outcome, in_process


@pytest.fixture
def lake(tmp_path):
    """A table of another writer: three versions, two partitions."""
    uri = str(tmp_path / "trips")
    rows = pa.table({"city": ["Rome", "Bern"], "km": [3, None], "stops": [["a"], []]})
    deltalake.write_deltalake(uri, rows, partition_by=["city"], name="trips", description="by bike")
    deltalake.write_deltalake(uri, rows.slice(0, 1), mode="append")
    deltalake.DeltaTable(uri).alter.add_constraint({"positive": "km > 0 OR km IS NULL"})
    return uri


@pytest.fixture
def delta():
    def run(*words, ok=0):
        result = in_process("delta", *map(str, words))
        outcome = Outcome(result.exit_code, result.stdout, result.stderr)
        assert outcome.code == ok, outcome
        return outcome

    return run


def test_describe_says_what_a_table_is(delta, lake):
    found = delta("describe", lake, "--json").json
    assert (found["version"], found["rows"], found["files"], found["name"]) == (2, 3, 3, "trips")
    assert found["partition_columns"] == ["city"]
    assert found["constraints"] == {"positive": "km > 0 OR km IS NULL"}
    assert [column["type"] for column in found["columns"]] == ["string", "long", "array<string>"]
    assert delta("describe", lake, "--version", 0, "--json").json["rows"] == 2
    text = delta("describe", lake).out
    assert "by bike" in text
    assert "array<string>" in text


def test_files_lists_what_a_version_consists_of(delta, lake):
    found = delta("files", lake, "--json").json
    assert (found["total"], len(found["files"])) == (3, 3)
    assert [file["partition"] for file in found["files"]] == [{"city": "Bern"}, {"city": "Rome"}, {"city": "Rome"}]
    limited = delta("files", lake, "--limit", 1)
    assert "1 of 3 files" in limited.err
    assert "city=Bern" in limited.out


def test_files_outside_the_folder_are_followed_where_that_is_allowed(delta, lake, tmp_path):
    clone, base = tmp_path / "clone", f"{lake}/city=Rome"
    shutil.copytree(f"{lake}/_delta_log", clone / "_delta_log")
    for log in (clone / "_delta_log").glob("*.json"):
        log.write_text(log.read_text().replace('"path":"city', f'"path":"file://{lake}/city'))
    assert f"allow=['{lake}/city=" in delta("files", clone, ok=2).err
    assert "city=Bern" in delta("files", clone, "--allow", base, ok=2).err
    assert delta("files", clone, "--allow", tmp_path, "--json").json["total"] == 3
    assert delta("describe", clone, "--allow", base, "--allow", f"{lake}/city=Bern", "--json").json["rows"] == 3


def test_history_tells_each_commit(delta, lake):
    found = delta("history", lake, "--json").json["commits"]
    assert [entry["operation"] for entry in found] == ["ADD CONSTRAINT", "WRITE", "WRITE"]
    assert [entry["version"] for entry in delta("history", lake, "--limit", 2, "--json").json["commits"]] == [2, 1]
    moment = found[1]["timestamp"]
    assert delta("describe", lake, "--at", moment, "--json").json["version"] == 1
    assert "WRITE" in delta("history", lake).out


def test_features_are_listed_even_of_a_table_that_cannot_be_read(delta, lake, tmp_path):
    found = delta("features", lake, "--json").json
    assert {"feature": "checkConstraints", "asked_of": "writers", "can_read": True, "can_write": True} in found[
        "features"
    ]
    (tmp_path / "trips" / commit_key(3)).write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["flyingCarpets"],'
        '"writerFeatures":["flyingCarpets"]}}\n'
    )
    assert "flyingCarpets" in delta("describe", lake, ok=2).err
    found = delta("features", lake, "--json").json
    assert found["features"] == [
        {"feature": "flyingCarpets", "asked_of": "readers", "can_read": False, "can_write": False}
    ]
    assert "flyingCarpets" in delta("features", lake).out


def test_the_protocol_is_found_behind_a_checkpoint(delta, lake, tmp_path):
    delta("checkpoint", lake)
    for version in range(3):
        (tmp_path / "trips" / commit_key(version)).unlink()
    assert delta("features", lake, "--json").json["protocol"]["reader"] == 1


def test_a_checkpoint_is_one_that_others_read(delta, lake):
    assert delta("checkpoint", lake, "--json").json["version"] == 2
    assert deltalake.DeltaTable(lake).to_pyarrow_table().num_rows == 3


def test_optimize_joins_the_files_of_a_partition(delta, lake):
    assert "2 files became 1" in delta("optimize", lake, "--where", "city = 'Rome'").out
    assert delta("describe", lake, "--json").json["files"] == 2
    assert "nothing to join" in delta("optimize", lake).out
    assert delta("optimize", lake, "--json").json["version"] == 3


def test_vacuum_deletes_only_what_it_is_told_to(delta, lake, tmp_path):
    delta("optimize", lake)
    parts = len(list((tmp_path / "trips").glob("*/*.parquet")))
    assert "nothing" not in delta("vacuum", lake).out
    dry = delta("vacuum", lake, "--min-age", "0s", "--force")
    assert "2 files" in dry.out
    assert "dry run" in dry.err
    assert len(list((tmp_path / "trips").glob("*/*.parquet"))) == parts
    assert "shorter than the table's" in delta("vacuum", lake, "--min-age", "0s", "--apply", ok=2).err
    done = delta("vacuum", lake, "--min-age", "0s", "--force", "--apply", "--json").json
    assert (done["applied"], len(done["keys"])) == (True, 2)
    assert len(list((tmp_path / "trips").glob("*/*.parquet"))) == parts - 2
    assert delta("describe", lake, "--json").json["rows"] == 3


def test_commits_are_compacted(delta, lake, tmp_path):
    log = tmp_path / "trips" / "_delta_log"
    assert "commits 0 to 2 as one file" in delta("compact", lake).out
    assert (log / f"{0:020}.{2:020}.compacted.json").exists()
    assert delta("compact", lake, 0, 1, "--json").json == {"table": lake, "first": 0, "last": 1}
    assert delta("describe", lake, "--json").json["rows"] == 3
    assert "7 is none" in delta("compact", lake, 0, 7, ok=2).err
    assert "are not two or more commits" in delta("compact", lake, 2, 1, ok=2).err
    delta("checkpoint", lake)
    assert "fewer than two commits" in delta("compact", lake).out
    assert delta("compact", lake, "--json").json == {"table": lake, "first": None, "last": None}


def test_a_log_is_cleaned_up_when_it_is_told_to(delta, lake, tmp_path):
    delta("checkpoint", lake)
    for path in (tmp_path / "trips" / "_delta_log").iterdir():
        os.utime(path, (1, 1))
    dry = delta("cleanup", lake)
    assert "2 files of the log would be deleted; history begins at version 2" in dry.out
    assert "dry run" in dry.err
    done = delta("cleanup", lake, "--apply", "--json").json
    assert (done["applied"], done["oldest_version"], len(done["keys"])) == (True, 2, 2)
    assert [entry["version"] for entry in delta("history", lake, "--json").json["commits"]] == [2]
    assert delta("describe", lake, "--json").json["rows"] == 3


def test_a_remark_is_in_the_history(delta, lake):
    write_delta(lake, pa.table({"city": ["Oslo"], "km": [1]}), user_metadata="by hand")
    assert delta("history", lake, "--json").json["commits"][0]["user_metadata"] == "by hand"


@pytest.fixture
def feed(tmp_path):
    uri = str(tmp_path / "feed")
    rows = pa.table({"id": [1, 2], "tags": [["a"], []]})
    write_delta(uri, rows, properties={"delta.enableChangeDataFeed": "true"})
    update_delta(uri, {"id": "id + 10"}, "id = 2")
    return uri


def test_changes_shows_the_rows_that_changed(delta, feed, tmp_path):
    found = delta("changes", feed, 0, "--json").json
    assert found["total_rows"] == 4
    assert [(row["id"], row["_change_type"]) for row in delta("changes", feed, 1, 1, "--json").json["rows"]] == [
        (2, "update_preimage"),
        (12, "update_postimage"),
    ]
    shown = delta("changes", feed, 0, "--limit", 1)
    assert "1 of 4 changes" in shown.err
    assert "insert" in shown.out
    assert "4 changes" in delta("changes", feed, 0, "--output", tmp_path / "c.parquet").out
    assert pq.read_table(tmp_path / "c.parquet").num_rows == 4
    written = delta("changes", feed, 0, "--output", tmp_path / "c.csv", "--limit", 2, "--json", ok=2)
    assert "tags" in written.err
    assert delta("changes", feed, "2020-01-01T00:00:00Z", "--json").json["total_rows"] == 4


def test_changes_of_a_table_without_a_feed_are_refused(delta, lake):
    assert "delta.enableChangeDataFeed" in delta("changes", lake, 0, ok=2).err


@pytest.mark.parametrize(
    "words",
    [
        ["describe"],
        ["files"],
        ["history"],
        ["features"],
        ["checkpoint"],
        ["optimize"],
        ["vacuum"],
        ["compact"],
        ["cleanup"],
    ],
)
def test_a_folder_without_a_table_is_not_found(delta, tmp_path, words):
    assert "no Delta table" in delta(*words, tmp_path, ok=3).err


@pytest.mark.parametrize(
    "words", [["describe", "--version", "9"], ["describe", "--at", "1999-01-01T00:00:00Z"], ["files", "--version", "9"]]
)
def test_a_version_that_is_not_there_is_not_found(delta, lake, words):
    delta(words[0], lake, *words[1:], ok=3)
