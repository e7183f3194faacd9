"""The verbs that change something: dry where they delete, asked twice where nothing brings it back."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.cli.arguments import parse_moment, parse_span
from dagster_versioned.errors import InvalidInput


def parts(cli, table="flights"):
    return {path.name for path in Path(cli.location, "datom", table).glob("*.parquet")}


def orphan(cli, *, days):
    """A file that no version needs, of an age."""
    path = Path(cli.location, "datom", "flights", f"{'0' * 64}.parquet")
    path.write_bytes(b"left behind")
    then = time.time() - days * 86_400
    os.utime(path, (then, then))
    return path


def test_repair_brings_back_a_derived_document(cli, flights, monthly):
    head = Path(cli.location, "datom", ".metadata", "heads", "flights.json")
    before = head.read_bytes()
    head.unlink()
    assert cli("verify").code == 1
    assert cli.json("repair")["repaired"] == ["flights", "monthly"]
    assert head.read_bytes() == before
    assert cli("verify").code == 0


def test_vacuum_is_dry_unless_asked(cli, flights):
    path = orphan(cli, days=8)
    planned = cli.json("vacuum")
    assert (planned["applied"], planned["collections"][0]["keys"]) == (False, [path.name])
    assert "--apply" in cli("vacuum", ok=0).err
    assert cli.json("vacuum", "--min-age", "9d", "--apply")["collections"][0]["keys"] == []
    assert path.exists()
    done = cli.json("vacuum", "flights", "--apply")
    assert (done["applied"], done["collections"][0]["size_bytes"]) == (True, len(b"left behind"))
    assert not path.exists()


def test_leave_is_dry_unless_asked_and_adopt_takes_the_table_back(cli, flights):
    planned = cli.json("leave", "flights")
    features = ["domainMetadata", "inCommitTimestamp"]
    assert planned == {
        "table": "flights",
        "applied": False,
        "dropped": features,
        "features": [],
        "reader_features": [],
    }
    assert "--apply" in cli("leave", "flights", ok=0).err
    said = cli("leave", "flights", "--retention", "interval 30 days", "--why", "sold", "--apply", ok=0)
    assert said.out.strip() == "flights: is a Delta table like any other, with no feature of the protocol to know about"
    assert cli("revert", "flights", "@0").code == 2
    assert cli.json("adopt", "flights")["change"] == "none"
    assert cli("verify", "flights").code == 0
    assert cli("leave", "flights", "--retention", "soon", "--apply").code == 2


def test_erase_is_dry_unless_asked_and_takes_its_condition_from_a_file(cli, flights, tmp_path):
    file = tmp_path / "condition.sql"
    file.write_text("id < 2")
    given = ("erase", "flights", "--where-file", str(file), "--why", "request 1", "--all-rows")
    planned = cli.json(*given)
    assert not planned["applied"]
    assert planned["tables"][0]["rows"] > 0
    assert "--apply" in cli(*given, ok=0).err
    done = cli.json(*given, "--apply")
    assert (done["epochs"], done["tables"][0]["rows"]) == ([0], planned["tables"][0]["rows"])
    assert cli("verify", "flights").code == 0
    assert "lost the rows that were erased" in cli("why", "flights", ok=0).out
    assert cli.json(*given, "--apply")["tables"][0]["rows"] == 0
    assert "--why" in cli("erase", "flights", "--where", "id = 1").err
    assert "--where-file" in cli("erase", "flights", "--why", "x").err
    assert "cannot be read" in cli("erase", "flights", "--where-file", "/nowhere", "--why", "x").err


def test_expire_is_dry_unless_asked_and_keeps_what_is_pinned(cli, flights, project):
    project.pin("audit", "flights", "@0")
    before = parts(cli)
    planned = cli.json("expire", "flights", "--keep-last", 1)["collections"][0]
    assert (planned["applied"], [v["log_version"] for v in planned["versions"]]) == (False, [1])
    assert planned["kept"] == {flights.version("@0").short: "pinned as 'audit'"}
    assert parts(cli) == before
    gone = cli.json("expire", "flights", "--keep-last", 1, "--why", "policy", "--apply")["collections"][0]
    assert before - parts(cli) == set(gone["keys"])
    assert flights.version("@1").gone == "expire"
    assert cli("read", "flights", "@1").code == 3
    assert cli("read", "flights", "pin:audit").code == 0


def test_expire_by_age_takes_spans_and_times(cli, flights):
    assert cli.json("expire", "flights", "--older-than", "90d")["collections"][0]["versions"] == []
    assert cli.json("expire", "flights", "--older-than", "2013-01-01")["collections"][0]["versions"] == []
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert len(cli.json("expire", "flights", "--older-than", tomorrow)["collections"][0]["versions"]) == 2


@pytest.mark.parametrize("wrong", [(), ("--keep-last", "0"), ("--older-than", "soon"), ("--older-than", "90")])
def test_expire_refuses_what_is_no_retention(cli, flights, wrong):
    assert cli("expire", "flights", *wrong, "--apply").code == 2
    assert len(parts(cli)) == 3


def test_an_unknown_table_stops_a_collection_before_the_first_deletion(cli, flights):
    assert cli("expire", "flights", "nowhere", "--keep-last", 1, "--apply").code == 3
    assert len(parts(cli)) == 3


def test_revert_holds_and_release_lets_go(cli, flights):
    oldest = flights.version("@0").metadata_sha
    done = cli.json("revert", "flights", "@0", "--hold", "--why", "bad source", "--author", "Grace")
    assert (done["change"], done["version"]["version"], done["version"]["log_version"]) == ("full", oldest, 3)
    assert cli.json("show", "flights")["held"] == {"by": "Grace", "why": "bad source"}
    assert "held: bad source" in cli("ls").out
    assert cli.json("release", "flights")["released"] is True
    assert cli.json("release", "flights")["released"] is False
    assert cli.json("show", "flights")["held"] is None


def test_revert_to_the_head_changes_nothing(cli, flights):
    assert cli.json("revert", "flights", "@2")["change"] == "none"
    assert "already" in cli("revert", "flights", "@2", ok=0).out


@pytest.mark.parametrize("wrong", [("--hold",), ("--why", "x")])
def test_a_hold_and_its_reason_belong_together(cli, flights, wrong):
    assert cli("revert", "flights", "@0", *wrong).code == 2
    assert flights.version().log_version == 2


def test_release_of_what_does_not_exist_says_so(cli, flights, monthly):
    assert cli("release", "nowhere").code == 3
    assert cli("release", "monthly", "--partition", "1999-01").code == 3


def test_pins_are_made_listed_used_and_taken_away(cli, flights):
    made = cli.json("pin", "flights", "audit", "@1", "--why", "Q1", "--author", "Ada")["pin"]
    assert (made["version"], made["why"], made["by"]) == (flights.version("@1").metadata_sha, "Q1", "Ada")
    assert cli.json("pins")["pins"] == [made]
    assert "audit" in cli("pins").out
    assert cli.json("show", "flights", "pin:audit")["log_version"] == 1
    assert cli("pin", "flights", "audit", "@0").code == 2
    assert cli.json("unpin", "audit") == {"unpinned": "audit"}
    assert cli("unpin", "audit").code == 3
    assert cli.json("pins")["pins"] == []


def test_adopt_gives_a_foreign_commit_an_identity(cli, flights):
    assert cli.json("adopt", "flights") == {"table": "flights", "change": "none", "version": None}
    commit = Path(cli.location, "datom", "flights", "_delta_log", "00000000000000000003.json")
    commit.write_text(
        '{"commitInfo":{"timestamp":1700000000000,"inCommitTimestamp":9999999999999,"operation":"DELETE"}}\n'
        f'{{"remove":{{"path":"{flights.version().data_sha}.parquet","dataChange":true,"deletionTimestamp":1}}}}\n'
    )
    (listed,) = cli.json("ls")["tables"]
    assert listed["foreign"]
    assert "adopt" in cli("ls").out
    adopted = cli.json("adopt", "flights", "--message", "emptied elsewhere")
    assert (adopted["change"], adopted["version"]["rows"]) == ("full", 0)
    assert not cli.json("ls")["tables"][0]["foreign"]


def test_purge_deletes_once_the_table_s_name_is_typed(cli, flights):
    before = parts(cli)
    refused = cli("purge", "flights", "@0", "--why", "erasure 12", stdin="weather\n")
    assert (refused.code, parts(cli)) == (2, before)
    assert flights.version("@0").short in refused.err
    assert cli("purge", "flights", "@0", "--why", "erasure 12", stdin="").code == 2
    done = cli.json("purge", "flights", "@0", "--why", "erasure 12", stdin="flights\n")
    assert before - parts(cli) == set(done["collections"][0]["keys"]) != set()


def test_purge_can_be_dry_or_not_asked(cli, flights):
    before = parts(cli)
    assert cli.json("purge", "flights", "@0", "--why", "x", "--dry-run")["applied"] is False
    assert parts(cli) == before
    assert cli.json("purge", "flights", "@0", "@1", "--why", "x", "--yes")["applied"] is True
    assert len(parts(cli)) == 1


@pytest.mark.parametrize("how", [["--yes"], ["--dry-run"]])
def test_purge_says_what_it_does_not_remove(cli, flights, how):
    said = cli("purge", "flights", "@0", "--why", "x", *how)
    assert said.code == 0
    for rest in ("smallest and largest", "32 characters", "event log"):
        assert rest in said.out + said.err


def test_purge_refuses_the_head_and_needs_a_reason(cli, flights):
    assert cli("purge", "flights", "@2", "--why", "x", "--yes").code == 2
    assert cli("purge", "flights", "@0", "--yes").code == 2
    assert len(parts(cli)) == 3


@pytest.mark.parametrize(
    ("text", "span"),
    [("90d", timedelta(days=90)), ("12h", timedelta(hours=12)), ("4w", timedelta(weeks=4)), ("0s", timedelta(0))],
)
def test_spans_are_a_number_and_a_unit(text, span):
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert parse_span(text) == span
    assert parse_moment(text, now) == now - span


@pytest.mark.parametrize("text", ["", "d", "-1d", "1.5d", "90", "1y", "999999999w", "٣d"])
def test_what_is_no_span_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_span(text)
    with pytest.raises(InvalidInput):
        parse_moment(text or "never", datetime.now(UTC))


def test_a_date_is_its_first_moment_in_utc():
    assert parse_moment("2026-01-31", datetime.now(UTC)) == datetime(2026, 1, 31, tzinfo=UTC)


def test_forgetting_is_dry_unless_asked(cli, project):
    from dagster_versioned.tables.write.pending import OpenComputation

    table, key = project.table("computed"), "a" * 64
    table.write_partitions(
        {None: pa.table({"n": [1]})}, code_version="1", computations={None: OpenComputation(key, 0.0)}
    )
    assert cli.json("forget", "computed")["versions"][0]["version"] == table.version().metadata_sha
    assert "--apply" in cli("forget", "computed", "--key", key, ok=0).err
    assert "1 version would" in cli("forget", "computed", "--code-version", "1", ok=0).out
    assert "0 versions would" in cli("forget", "computed", "--code-version", "2", ok=0).out
    done = cli.json("forget", "computed", "--code-version", "1", "--apply")
    assert (done["applied"], len(done["versions"])) == (True, 1)
    assert cli.json("forget", "computed")["versions"] == []
    assert cli("forget", "computed", "--key", "b").code == 2
