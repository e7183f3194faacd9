"""The verbs that look say what the library says, to people and as JSON."""

import csv
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def shas(table):
    return [version.metadata_sha for version in table.history()]


def test_ls_lists_every_table_with_its_head(cli, flights, monthly):
    listed = cli.json("ls")
    assert (listed["project"], listed["location"]) == ("NYC", str(cli.location))
    by_name = {table["table"]: table for table in listed["tables"]}
    assert by_name.keys() == {"flights", "monthly"}
    assert by_name["flights"]["version"] == shas(flights)[0]
    assert (by_name["flights"]["rows"], by_name["flights"]["versions"], by_name["flights"]["log_version"]) == (4, 3, 2)
    assert (by_name["monthly"]["rows"], by_name["monthly"]["partitions"]) == (3, 2)
    text = cli("ls", ok=0).out
    assert shas(flights)[0][:8] in text
    assert "monthly" in text


def test_ls_lists_the_others_where_one_table_cannot_be_read(cli, flights, monthly):
    log = cli.location / "datom" / "flights" / "_delta_log" / "00000000000000000001.json"
    log.write_bytes(log.read_bytes()[:-20])
    outcome = cli("ls", "--json", ok=4)
    by_name = {table["table"]: table for table in outcome.json["tables"]}
    assert by_name["monthly"]["rows"] == 3
    assert by_name["flights"]["problem"]
    assert "flights" in outcome.err


def test_ls_of_a_place_without_tables_says_so(cli, project):
    outcome = cli("--project", "NYC", "ls", ok=0)
    assert (outcome.out, "No tables" in outcome.err) == ("", True)


def test_history_is_newest_first_and_can_be_cut(cli, flights):
    listed = cli.json("history", "flights")
    assert [v["version"] for v in listed["versions"]] == shas(flights)
    assert [v["log_version"] for v in listed["versions"]] == [2, 1, 0]
    assert (listed["versions"][2]["message"], listed["versions"][2]["author"]) == ("first", "Ada <ada@example.org>")
    assert [v["version"] for v in cli.json("history", "flights", "--limit", 1)["versions"]] == shas(flights)[:1]


def test_history_of_one_partition(cli, monthly):
    listed = cli.json("history", "monthly", "--partition", "2013-02")["versions"]
    assert [v["partition"] for v in listed] == ["2013-02"]
    assert "2013-01" in cli("history", "monthly", ok=0).out


def test_history_shows_an_altered_entry_beside_the_others(cli, flights):
    log = cli.location / "datom" / "flights" / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace('"message":"first"', '"message":"fi2st"'))
    by_log_version = {v["log_version"]: v for v in cli.json("history", "flights")["versions"]}
    assert by_log_version[0]["problem"]
    assert by_log_version[1]["problem"] is None
    assert "altered" in cli("history", "flights").out


def test_show_says_what_a_version_is_and_where_its_bytes_are(cli, flights, project):
    project.pin("audit", "flights", "@1")
    shown = cli.json("show", "flights", "@1")
    version = flights.version("@1")
    assert shown["version"] == version.metadata_sha
    assert shown["identity"] == version.identity.to_json()
    assert shown["facts"] == version.facts.to_json()
    assert (shown["current"], shown["pins"], shown["held"]) == (False, ["audit"], None)
    (file,) = shown["files"]
    assert (cli.location / "datom" / "flights" / file["key"]).stat().st_size == file["size_bytes"]
    text = cli("show", "flights", ok=0).out
    for said in (shas(flights)[0], "carrier", "current  ", "yes", "significant"):
        assert said in text


def test_show_of_a_partitioned_table_lists_its_partitions(cli, monthly):
    shown = cli.json("show", "monthly")
    assert [p["partition"] for p in shown["partitions"]] == ["2013-01", "2013-02"]
    assert shown["version"] == monthly.state.history.whole.metadata_sha
    assert cli.json("show", "monthly", "--partition", "2013-01")["rows"] == 1
    assert "2013-02" in cli("show", "monthly", ok=0).out


def test_show_says_that_bytes_are_gone(cli, flights):
    flights.purge(["@0"], why="asked", dry_run=False)
    shown = cli.json("show", "flights", "@0")
    assert (shown["gone"], shown["files"]) == ("purge", [])


def test_a_table_is_found_by_its_asset_key(cli, project, rows):
    project.table(["raw", "air"]).write(rows)
    assert cli.json("show", "raw/air")["table"] == "raw__air"
    assert cli.json("show", "raw__air")["rows"] == 3


def test_diff_against_the_head_and_between_two(cli, flights):
    newest, middle, oldest = shas(flights)
    found = cli.json("diff", "flights", "@0")
    assert (found["before"]["version"], found["after"]["version"]) == (oldest, newest)
    assert (found["before"]["rows"], found["after"]["rows"], found["same_data"]) == (3, 4, False)
    assert found["metadata"]["message"] == {"before": "first", "after": None}
    assert cli.json("diff", "flights", oldest[:10], middle[:10])["after"]["version"] == middle
    assert "3 -> 4 (+1)" in cli("diff", "flights", "@0", ok=0).out


def test_diff_names_columns_that_changed(cli, project):
    table = project.table("t")
    table.write(pa.table({"a": [1], "b": [1]}))
    table.write(pa.table({"a": ["1"], "c": [[{"x": 1}]]}))
    assert {c["name"]: (c["before"] is None, c["after"] is None) for c in cli.json("diff", "t", "@0")["columns"]} == {
        "a": (False, False),
        "b": (False, True),
        "c": (True, False),
    }
    assert "array<struct<x: long>>" in cli("diff", "t", "@0").out


def test_diff_of_rows_counts_and_shows_them(cli, flights):
    rows = cli.json("diff", "flights", "@0", "--rows", "--key", "id")["rows"]
    assert {kind: rows[kind] for kind in ("added", "removed", "changed", "unchanged")} == {
        "added": 1,
        "removed": 0,
        "changed": 1,
        "unchanged": 2,
    }
    assert rows["examples"]["added"] == [{"id": 4, "carrier": "DL", "delay": 0.0}]
    (pair,) = rows["examples"]["changed"]
    assert (pair["before"]["carrier"], pair["after"]["carrier"]) == ("UA", "B6")
    assert "carrier: UA -> B6" in cli("diff", "flights", "@0", "--rows", "--key", "id").out


@pytest.mark.parametrize("wrong", [("--rows",), ("--key", "id")])
def test_rows_and_key_belong_together(cli, flights, wrong):
    assert cli("diff", "flights", "@0", *wrong).code == 2


def test_read_previews_rows_of_any_version(cli, flights):
    shown = cli.json("read", "flights", "@0")
    assert shown["rows"] == flights.read("@0").to_pylist()
    assert shown["columns"][0] == {"name": "id", "type": "int64"}
    assert (shown["total_rows"], shown["versions"]) == (3, [shas(flights)[2]])
    text = cli("read", "flights", "@0", ok=0).out
    assert "carrier" in text
    assert "null" in text


def test_read_takes_columns_partitions_and_a_limit(cli, flights, monthly):
    assert cli.json("read", "flights", "--columns", "delay,id", "--limit", 1)["rows"] == [{"delay": 1.5, "id": 1}]
    assert cli.json("read", "flights", "--limit", 0)["rows"] == []
    assert cli.json("read", "monthly", "--partition", "2013-02")["rows"] == [{"n": 2}, {"n": 3}]
    both = cli.json("read", "monthly", "--partition", "2013-01", "--partition", "2013-02")
    assert sorted(row["n"] for row in both["rows"]) == [1, 2, 3]


def test_a_column_whose_name_holds_a_comma_is_quoted(cli, project):
    project.table("t").write(pa.table({"a,b": [1], "c": [2]}))
    assert cli.json("read", "t", "--columns", '"a,b"')["rows"] == [{"a,b": 1}]


def test_read_says_that_there_is_more(cli, project):
    project.table("t").write(pa.table({"n": list(range(50))}))
    outcome = cli("read", "t", ok=0)
    assert len(outcome.out.splitlines()) == 21
    assert "20 of 50 rows" in outcome.err
    assert cli("read", "t", "--quiet").err == ""


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "json"])
def test_read_exports_every_row(cli, flights, tmp_path, suffix):
    target = tmp_path / f"out.{suffix}"
    said = cli.json("read", "flights", "--output", target)
    assert (said["rows_written"], said["format"], said["size_bytes"]) == (4, suffix, target.stat().st_size)
    expected = flights.read()
    match suffix:
        case "parquet":
            assert pq.read_table(target).equals(expected)
        case "arrow":
            assert pa.ipc.open_file(target.read_bytes()).read_all().equals(expected)
        case "json":
            assert json.loads(target.read_text()) == expected.to_pylist()
        case "csv":
            assert [int(row["id"]) for row in csv.DictReader(target.open())] == [1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [target.name]


def test_an_export_takes_a_limit_and_an_empty_one_is_a_file(cli, flights, tmp_path):
    cli("read", "flights", "--limit", 2, "--output", tmp_path / "two.json", ok=0)
    assert len(json.loads((tmp_path / "two.json").read_text())) == 2
    cli("read", "flights", "--limit", 0, "--output", tmp_path / "none.json", ok=0)
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_an_export_that_fails_leaves_the_file_as_it_was(cli, flights, tmp_path):
    target = tmp_path / "out.parquet"
    target.write_bytes(b"old")
    (part,) = (cli.location / "datom" / "flights").glob(f"{flights.version().data_sha}*")
    part.chmod(0o600)
    part.write_bytes(b"x" * part.stat().st_size)
    assert cli("read", "flights", "--output", target).code == 4
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.parquet"]


@pytest.mark.parametrize("name", ["out", "out.xlsx", "missing/out.csv"])
def test_a_file_that_cannot_be_written_is_refused(cli, flights, tmp_path, name):
    assert cli("read", "flights", "--output", tmp_path / name).code == 2


def test_csv_refuses_what_it_cannot_hold_by_column(cli, project, tmp_path):
    project.table("t").write(pa.table({"n": [1], "list": [[1]], "raw": [b"x"]}))
    outcome = cli("read", "t", "--output", tmp_path / "out.csv", ok=2)
    assert "'list', 'raw'" in outcome.err
    assert not (tmp_path / "out.csv").exists()
    cli("read", "t", "--columns", "n", "--output", tmp_path / "out.csv", ok=0)


def test_values_that_json_has_no_type_for_are_text(cli, project):
    frame = pa.table(
        {
            "nan": [float("nan")],
            "inf": [float("-inf")],
            "decimal": pa.array([Decimal("1.10")], pa.decimal128(10, 2)),
            "at": pa.array([1_500_000], pa.timestamp("us", "UTC")),
            "far": pa.array([300_000_000_000_000_000], pa.timestamp("us")),
            "day": pa.array([0], pa.date32()),
            "raw": [b"\x00"],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "big": [2**63 - 1],
        }
    )
    project.table("t").write(frame)
    (row,) = cli.json("read", "t")["rows"]
    assert row == {
        "nan": "NaN",
        "inf": "-Infinity",
        "decimal": "1.10",
        "at": "1970-01-01T00:00:01.500000Z",
        "far": "11476-08-15T05:20:00.000000",
        "day": "1970-01-01",
        "raw": "AA==",
        "map": [["k", 1]],
        "big": 2**63 - 1,
    }


def test_verify_is_clean_over_the_whole_project(cli, flights, monthly):
    report = cli.json("verify")
    assert report["ok"]
    assert [(t["table"], t["versions"]) for t in report["tables"]] == [("flights", 3), ("monthly", 2)]
    assert "flights: ok" in cli("verify", "flights", ok=0).out


def test_verify_exits_with_1_and_names_what_it_found(cli, flights, monthly):
    part = next(Path(cli.location, "datom", "flights").glob("*.parquet"))
    part.chmod(0o600)
    part.write_bytes(b"x" * part.stat().st_size)
    report = cli.json("verify", ok=1)
    by_name = {table["table"]: table for table in report["tables"]}
    assert (report["ok"], by_name["flights"]["ok"], by_name["monthly"]["ok"]) == (False, False, True)
    (finding,) = by_name["flights"]["findings"]
    assert (finding["subject"], finding["where"]) == ("part", part.name)
    assert part.name in cli("verify", "flights", ok=1).out


def test_verify_of_one_version_looks_at_no_other(cli, flights):
    part = Path(cli.location, "datom", "flights", f"{flights.version('@0').data_sha}.parquet")
    part.unlink()
    assert cli.json("verify", "flights", "--at", "@2")["ok"]
    assert not cli.json("verify", "flights", "--at", "@0", ok=1)["ok"]


def test_a_witness_sees_a_log_that_was_cut(cli, flights):
    noted = cli.json("show", "flights", "@2")["commit_sha256"]
    assert cli.json("verify", "flights", "--witness", f"2={noted}")["tables"][0]["witnessed"] == 2
    Path(cli.location, "datom", "flights", "_delta_log", "00000000000000000002.json").unlink()
    findings = cli.json("verify", "flights", "--witness", f"2={noted}", ok=1)["tables"][0]["findings"]
    assert any(finding["subject"] == "chain" for finding in findings)


@pytest.mark.parametrize(
    "wrong", [("--at", "@0"), ("flights", "monthly", "--at", "@0"), ("flights", "--witness", "2=xyz")]
)
def test_verify_refuses_what_it_cannot_mean(cli, flights, monthly, wrong):
    assert cli("verify", *wrong).code == 2
