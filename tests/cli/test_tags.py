"""``dagster-versioned tag``, and ``tag:NAME`` where a version is taken."""

from importlib.metadata import version

import pyarrow as pa

from dagster_versioned.bounds import release_of


def test_from_making_one_to_dropping_it(cli, project, flights, monthly):
    made = cli("tag", "create", "2026-11", "--why", "monthly report", "--author", "Grace", ok=0)
    assert "The tag 2026-11 has 2 tables of" in made.out
    flights.write(pa.table({"id": [9]}))
    (listed,) = cli.json("tag", "ls")["tags"]
    assert (listed["name"], listed["by"], listed["why"]) == ("2026-11", "Grace", "monthly report")
    assert {name: at["log_version"] for name, at in listed["tables"].items()} == {"flights": 2, "monthly": 0}
    assert cli.json("tag", "show", "2026-11") == {"tag": listed}
    text = cli("tag", "show", "2026-11", ok=0).out
    assert "monthly report" in text
    assert "@2" in text
    assert "2026-11" in cli("tag", "ls", ok=0).out
    read = cli.json("read", "flights", "tag:2026-11")
    assert (read["log_version"], read["total_rows"]) == (2, 4)
    assert cli.json("diff", "flights", "tag:2026-11")["before"]["log_version"] == 2
    kept = cli.json("expire", "flights", "--keep-last", "1", "--apply")["collections"][0]["kept"]
    assert list(kept.values()) == ["what the tag '2026-11' names"]
    refused = cli("purge", "flights", "tag:2026-11", "--why", "w", "--yes")
    assert refused.code == 2
    assert "Drop that tag first" in refused.err
    assert "would be dropped" in cli("tag", "drop", "2026-11", ok=0).out
    assert list(project.tags()) == ["2026-11"]
    assert cli.json("tag", "drop", "2026-11", "--apply") == {"tag": "2026-11", "dropped": True}
    assert cli.json("tag", "ls") == {"tags": []}
    assert "No tags at" in cli("tag", "ls", ok=0).err


def test_errors(cli, project, flights):
    assert cli.json("tag", "create", "x")["tag"]["by"] is None
    for code, *words in (
        (2, "tag", "create", "x"),
        (2, "tag", "create", "../y"),
        (2, "tag", "drop", "x" * 500, "--apply"),
        (2, "read", "flights", "tag:../y"),
        (3, "tag", "show", "y"),
        (3, "tag", "drop", "y"),
        (3, "tag", "drop", "y", "--apply"),
        (3, "read", "flights", "tag:y"),
        (2, "tag", "ls", "x"),
        (2 if release_of(version("click")) >= (8, 2) else 0, "tag"),  # shows its help
    ):
        assert cli(*words).code == code, words
    assert list(project.tags()) == ["x"]


def test_bytes_that_are_no_tag(cli, project, flights):
    cli("tag", "create", "x", ok=0)
    project.data.put(".metadata/tags/x.json", b"{}")
    for words in (("tag", "ls"), ("tag", "show", "x"), ("tag", "drop", "x"), ("read", "flights", "tag:x")):
        outcome = cli(*words)
        assert outcome.code == 4
        assert "tags/x.json cannot be read" in outcome.err
    cli("tag", "drop", "x", "--apply", ok=0)
    assert project.tags() == {}
