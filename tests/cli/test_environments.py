"""``dagster-versioned env``, and other verbs in an environment."""

import pyarrow as pa

from dagster_versioned.tables.environment.registry import names_of


def test_from_making_it_to_dropping_it(cli, project, flights):
    made = cli("env", "create", "pr-142", ok=0)
    assert "The environment pr-142 of NYC is ready: 1 table" in made.out
    assert "--environment pr-142" in made.out
    project.in_environment("pr-142").table("flights").write(pa.table({"id": [9]}))
    project.in_environment("pr-142").table("mine").write(pa.table({"id": [9]}))
    assert [one["environment"] for one in cli.json("env", "ls")["environments"]] == ["pr-142"]
    shown = cli.json("env", "show", "pr-142")
    assert shown["tables"] == {"flights": 2}
    assert [(one["table"], one["commits"]) for one in shown["written"]] == [("flights", 1), ("mine", 1)]
    assert shown["written"][1]["before"] is None
    assert shown["size_bytes"] > 0
    text = cli("env", "show", "pr-142", ok=0).out
    assert "mine" in text
    dry = cli("env", "drop", "pr-142", ok=0)
    assert "would be dropped" in dry.out
    assert list(names_of(project.store)) == ["pr-142"]
    assert "is dropped" in cli("env", "drop", "pr-142", "--apply", ok=0).out
    assert cli("env", "ls", ok=0).out == "There is no environment.\n"


def test_verbs_work_in_one_and_say_so(cli, project, flights):
    cli("env", "create", "pr-142", ok=0)
    project.in_environment("pr-142").table("flights").write(pa.table({"id": [9]}))
    there = cli("--environment", "pr-142", "history", "flights", ok=0)
    assert "Environment pr-142." in there.err
    assert len(cli.json("history", "flights", "--environment", "pr-142")["versions"]) == 4
    assert len(cli.json("history", "flights")["versions"]) == 3
    assert len(cli.json("history", "flights", "--environment", "production")["versions"]) == 3
    assert cli("--environment", "pr-142", "verify", ok=0)
    refused = cli("--environment", "pr-142", "expire", "flights", "--keep-last", "1", "--apply")
    assert refused.code == 2
    assert "in the environment pr-142" in refused.err


def test_the_variable_names_one(cli, project, flights, monkeypatch):
    cli("env", "create", "pr-142", ok=0)
    project.in_environment("pr-142").table("flights").write(pa.table({"id": [9]}))
    monkeypatch.setenv("DAGSTER_VERSIONED_ENVIRONMENT", "pr-142")
    assert len(cli.json("history", "flights")["versions"]) == 4
    assert len(cli.json("history", "flights", "--environment", "production")["versions"]) == 3
    assert [one["environment"] for one in cli.json("env", "ls")["environments"]] == ["pr-142"]


def test_names(cli, project, flights):
    cli("env", "create", "pr-142", ok=0)
    assert cli("env", "create", "pr-142").code == 2
    assert "is there already" in cli("env", "create", "pr-142", "--if-absent", ok=0).out
    unknown = cli("--environment", "pr-124", "ls")
    assert unknown.code == 3
    assert "There are: pr-142" in unknown.err
    assert cli("env", "show", "pr-124").code == 3
    assert cli("env", "drop", "pr-124", "--apply").code == 3
    assert cli("env", "create", "prod").code == 2
    assert cli("env", "create", "../x").code == 2
    assert list(names_of(project.store)) == ["pr-142"]


def test_bytes_that_are_no_environment(cli, project, flights):
    cli("env", "create", "pr-142", ok=0)
    project.store.put("environments/forks/pr-142.json", b"{}")
    for words in (("env", "ls"), ("env", "show", "pr-142"), ("--environment", "pr-142", "ls")):
        outcome = cli(*words)
        assert outcome.code == 4
        assert "environments/forks/pr-142.json cannot be read" in outcome.err
    cli("env", "drop", "pr-142", "--apply", ok=0)
    assert not list(names_of(project.store))


class TestDiff:
    def fill(self, cli, project, flights, monthly):
        cli("env", "create", "pr-142", ok=0)
        branch = project.in_environment("pr-142")
        frame = flights.read()
        changed = frame.set_column(2, "delay", pa.array([None, -2.0, 3.25, 9.0])).append_column(
            "late", pa.array([1] * 4)
        )
        branch.table("flights").write(changed.slice(0, 3))
        branch.table("monthly").write(pa.table({"n": [7]}), partition="2013-02")
        branch.table("brand new").write(pa.table({"n": [1]}))

    def test_without_reading_rows(self, cli, project, flights, monthly):
        self.fill(cli, project, flights, monthly)
        found = {(one["table"], one["partition"]): one for one in cli.json("env", "diff", "pr-142")["differences"]}
        assert set(found) == {("flights", None), ("monthly", "2013-02"), ("brand new", None)}
        flight = found["flights", None]
        assert (flight["rows_before"], flight["rows_after"], flight["rows"]) == (4, 3, None)
        assert [column["name"] for column in flight["columns"]] == ["late"]
        assert flight["nulls"]["delay"] == [0, 1]
        assert found["brand new", None]["before"] is None

    def test_rows_by_key(self, cli, project, flights, monthly):
        self.fill(cli, project, flights, monthly)
        document = cli.json("env", "diff", "pr-142", "--key", "flights=id")["differences"]
        assert {"added": 0, "removed": 1, "changed": 1, "unchanged": 2} in [one["rows"] for one in document]
        small = cli.json("env", "diff", "pr-142", "--key", "flights=id", "--max-bytes", "1")["differences"]
        (unread,) = [one["unread"] for one in small if one["unread"]]
        assert "are more than 1" in unread

    def test_as_text_and_as_markdown(self, cli, project, flights, monthly):
        self.fill(cli, project, flights, monthly)
        text = cli("env", "diff", "pr-142", "--key", "flights=id", ok=0).out
        assert "1 removed, 1 changed" in text
        markdown = cli("env", "diff", "pr-142", "--format", "markdown", ok=0).out
        assert markdown.startswith("<!-- dagster-versioned env diff NYC pr-142 -->\n### Data of")
        assert "\n|---|---|---|---|---|\n" in markdown
        assert "3 tables differ, 0 do not" in markdown
        assert "3.25" not in markdown

    def test_nothing(self, cli, project, flights):
        cli("env", "create", "pr-142", ok=0)
        assert cli("env", "diff", "pr-142", ok=0).out == "Nothing is different in pr-142.\n"

    def test_what_cannot_be_compared(self, cli, project, flights, monthly):
        self.fill(cli, project, flights, monthly)
        for words in (
            ("--key", "flights"),
            ("--key", "other=id"),
            ("--key", "flights=nope"),
            ("--json", "-f", "markdown"),
        ):
            outcome = cli("env", "diff", "pr-142", *words)
            assert outcome.code == 2, outcome
            assert "Nothing was compared" in outcome.err

    def test_a_comment_of_thousands_of_tables_is_cut(self):
        from dagster_versioned.cli.comment import MOST_CHARACTERS
        from dagster_versioned.cli.environment_diff import markdown_of
        from dagster_versioned.identity.names import table_name
        from dagster_versioned.tables.environment.fork import Fork
        from dagster_versioned.tables.environment_diff import Difference

        fork = Fork("pr-142", "0" * 12, "NYC", "2026-11-24T14:02:00+00:00", None, {})
        many = [Difference(table_name(f"table {n}"), "|".join(["`<b>"] * 5), None, None) for n in range(3000)]
        text = "\n".join(markdown_of(fork, many, 0))
        assert len(text) < MOST_CHARACTERS
        assert "more are not shown" in text
        assert "<b>" not in text.replace("\\<b\\>", "")


def test_promote(cli, project, flights):
    cli("env", "create", "pr-142", ok=0)
    branch = project.in_environment("pr-142")
    branch.table("new").write(pa.table({"n": [1]}), code_version="1")
    dry = cli("promote", "pr-142", ok=0)
    assert "1 version of pr-142 would become production's, 0 are left to it." in dry.out
    assert not project.table("new").exists()
    branch.table("flights").write(pa.table({"id": [1]}), code_version="1")
    done = cli("promote", "pr-142", "--apply")
    assert done.code == 1
    assert "reads from its source itself" in done.out
    assert project.table("new").read()["n"].to_pylist() == [1]
    document = cli("promote", "pr-142", "--apply", "--json").json
    assert [one["table"] for one in document["promoted"]] == ["new"]
    assert [one["table"] for one in document["left"]] == ["flights"]
    assert cli("promote", "pr-7").code == 3


def test_promote_tells_dagster(cli, project, flights, tmp_path, monkeypatch):
    import dagster as dg

    cli("env", "create", "pr-142", ok=0)
    project.in_environment("pr-142").table("new").write(pa.table({"n": [1]}), code_version="1")
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    refused = cli("promote", "pr-142", "--apply", "--instance")
    assert refused.code == 2
    assert "DAGSTER_HOME" in refused.err
    assert not project.table("new").exists()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert "Reported to Dagster: 1 version." in cli("promote", "pr-142", "--apply", "--instance", ok=0).err
    assert "Reported to Dagster: 0 versions." in cli("promote", "pr-142", "--apply", "--instance", ok=0).err
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("new"))
    assert event.asset_materialization.tags["dagster/data_version"] == project.table("new").version().metadata_sha
