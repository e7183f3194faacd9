"""The verbs that make another table of one: dry unless asked, and each with its way back."""

import pyarrow as pa
import pytest

from dagster_versioned.tables.partitioning import Partitioning


@pytest.fixture
def sales(project):
    table = project.table("sales")
    for day in ("2026-10-01", "2026-10-02"):
        rows = pa.table({"day": [day, day], "where": ["n", "s"]})
        table.write(rows, partition=day, partitioning=Partitioning.time_windows("daily"))
    return table


def test_drop_partition_is_dry_unless_asked(cli, sales):
    planned = cli.json("drop-partition", "sales", "2026-10-01")
    assert (planned["applied"], [v["partition"] for v in planned["versions"]]) == (False, ["2026-10-01"])
    assert "--apply" in cli("drop-partition", "sales", "2026-10-01", ok=0).err
    assert len(sales.partitions()) == 2
    assert "1 partition dropped" in cli("drop-partition", "sales", "2026-10-01", "--why", "x", "--apply", ok=0).out
    assert list(sales.partitions()) == ["2026-10-02"]
    assert cli.json("history", "sales")["versions"][0]["change"] == "dropped"
    assert cli("history", "sales", ok=0).out
    assert cli("drop-partition", "sales", "2026-10-01", "--apply").code == 3


def test_a_dropped_table_is_listed_as_such_and_restored(cli, sales):
    assert cli.json("drop", "sales")["applied"] is False
    assert "the table dropped" in cli("--author", "Ada", "drop", "sales", "--why", "unused", "--apply", ok=0).out
    assert "was dropped by Ada" in cli.json("ls")["tables"][0]["dropped"]
    assert "was dropped by Ada" in cli("ls", ok=0).out.replace("\n", " ")
    assert cli("read", "sales").code == 3
    assert cli("verify", ok=0)
    assert cli("vacuum", ok=0)
    assert cli.json("restore", "sales")["restored"] is True
    assert cli.json("restore", "sales")["restored"] is False
    assert cli("read", "sales").code == 0


def test_repartition_gives_columns_other_types(cli, sales):
    same = ("repartition", "sales", "--by", "same")
    assert "partition" in cli(*same, "--type", "where=binary", "--apply", ok=0).out
    assert cli(*same, "--type", "where").code == 2
    assert cli(*same).code == 2


def test_repartition_takes_kinds_and_columns(cli, sales):
    planned = cli.json("repartition", "sales", "--by", "names", "--column", "where")
    assert planned["partitions"] == [{"partition": "n", "rows": 2}, {"partition": "s", "rows": 2}]
    assert "--apply" in cli("repartition", "sales", "--by", "names", "--column", "where", ok=0).err
    assert list(sales.partitions()) == ["2026-10-01", "2026-10-02"]
    assert "2 partitions" in cli("repartition", "sales", "--by", "names", "--column", "where", "--apply", ok=0).out
    both = ["--by", "daily,names", "--column", "day,where", "--dimension", "time,place"]
    assert cli.json("repartition", "sales", *both, "--apply")["applied"]
    assert sorted(sales.partitions())[0] == "n|2026-10-01"
    assert "a whole table" in cli("repartition", "sales", "--by", "none", "--apply", ok=0).out
    assert sales.read().num_rows == 4
    assert cli("repartition", "sales", "--by", "daily,names", "--dimension", "a,b").code == 2
    assert cli("repartition", "sales", "--by", "fortnightly", "--column", "day").code == 2
