"""``dagster-versioned env``, and other verbs in an environment."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import fork_now
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.environment.registry import document_of, names_of
from dagster_versioned.tables.options import TableOptions
from support.spark import spark

__all__ = ["spark"]


def test_from_making_it_to_dropping_it(cli, project, flights):
    made = cli("env", "create", "pr-142", ok=0)
    assert "The environment pr-142 of NYC is ready: 1 table" in made.out
    assert "--environment pr-142" in made.out
    project.in_environment("pr-142").table("flights").write(pa.table({"id": [9]}))
    project.in_environment("pr-142").table("mine").write(pa.table({"id": [9]}))
    assert [each["environment"] for each in cli.json("env", "ls")["environments"]] == ["pr-142"]
    shown = cli.json("env", "show", "pr-142")
    assert shown["tables"] == {"flights": 2}
    assert [(each["table"], each["commits"]) for each in shown["written"]] == [("flights", 1), ("mine", 1)]
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
    assert [each["environment"] for each in cli.json("env", "ls")["environments"]] == ["pr-142"]


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


class TestExport:
    def fill(self, cli, project, flights):
        cli("env", "create", "pr-142", ok=0)
        project.in_environment("pr-142").table("mine").write(pa.table({"id": [9]}))

    def test_a_dry_run_then_the_export(self, cli, project, flights, tmp_path):
        self.fill(cli, project, flights)
        place = str(tmp_path / "out")
        dry = cli("env", "export", "pr-142", place, "--dry-run", ok=0)
        assert "1 table of pr-142" in dry.out
        assert "would be at" in dry.out
        assert "1 table left out" in dry.out
        assert not (tmp_path / "out").exists()
        assert "are at" in cli("env", "export", "pr-142", place, ok=0).out
        assert Project.open("NYC", place).table("mine").read()["id"].to_pylist() == [9]
        assert cli.json("--location", place, "verify")["ok"]
        again = cli("env", "export", "pr-142", place)
        assert again.code == 2
        assert "is an export of the environment pr-142" in again.err

    def test_all_tables_or_some(self, cli, project, flights, tmp_path):
        self.fill(cli, project, flights)
        both = cli("env", "export", "pr-142", str(tmp_path / "x"), "--all", "--table", "mine")
        assert both.code == 2
        everything = cli.json("env", "export", "pr-142", str(tmp_path / "all"), "--all")
        assert [each["table"] for each in everything["tables"]] == ["flights", "mine"]
        assert everything["applied"]
        assert everything["left_out"] == []
        one = cli.json("env", "export", "pr-142", str(tmp_path / "one"), "--table", "flights")
        assert [(table["table"], table["log_version"], table["files"]) for table in one["tables"]] == [
            ("flights", 2, 1)
        ]
        assert one["left_out"] == ["mine"]
        assert cli("env", "export", "pr-142", str(tmp_path / "none"), "--table", "other").code == 3
        secret = cli("env", "export", "pr-142", "s3://user:p4ss@bucket/x")
        assert secret.code == 2
        assert "p4ss" not in secret.err


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
        found = {(each["table"], each["partition"]): each for each in cli.json("env", "diff", "pr-142")["differences"]}
        assert set(found) == {("flights", None), ("monthly", "2013-02"), ("brand new", None)}
        flight = found["flights", None]
        assert (flight["rows_before"], flight["rows_after"], flight["rows"]) == (4, 3, None)
        assert [column["name"] for column in flight["columns"]] == ["late"]
        assert flight["nulls"]["delay"] == [0, 1]
        assert found["brand new", None]["before"] is None

    def test_rows_by_key(self, cli, project, flights, monthly):
        self.fill(cli, project, flights, monthly)
        document = cli.json("env", "diff", "pr-142", "--key", "flights=id")["differences"]
        assert {"added": 0, "removed": 1, "changed": 1, "unchanged": 2} in [each["rows"] for each in document]
        small = cli.json("env", "diff", "pr-142", "--key", "flights=id", "--max-bytes", "1")["differences"]
        (unread,) = [each["unread"] for each in small if each["unread"]]
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

    def measured(self, cli, project) -> None:
        """Twelve rows in two columns, and two in another; of each, one value changes."""
        table = {
            "id": range(12),
            "pay": [1000.0] * 11 + [1012.5],
            "is_paid": [True] * 12,
            "few": [4321] * 2 + [None] * 10,
        }
        project.table("people").write(pa.table(table))
        cli("env", "create", "pr-142", ok=0)
        branch = project.in_environment("pr-142").table("people")
        changed = {
            "pay": [1000.0] * 11 + [float("nan")],
            "is_paid": [False] * 3 + [True] * 9,
            "few": [1234] + [None] * 11,
        }
        branch.write(pa.table({**table, **changed}))

    @pytest.mark.parametrize("how", [("--statistics",), ("--key", "people=id")])
    def test_statistics_give_no_value_of_a_row_away(self, cli, project, how):
        self.measured(cli, project)
        text = cli("env", "diff", "pr-142", *how, ok=0).out
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert "people pay mean 1,001 1,000" in lines
        assert "people pay NaN 0 1" in lines
        assert "people is_paid true 100 % 75 %" in lines
        assert "Means of fewer than 10 values are not shown: --values shows them." in lines
        markdown = cli("env", "diff", "pr-142", *how, "-f", "markdown", ok=0).out
        assert (
            "\n\n| table | column | statistic | before | after |\n|---|---|---|---|---|\n| people | pay |" in markdown
        )
        document = cli.json("env", "diff", "pr-142", *how)
        statistics = document["differences"][0]["statistics"]
        assert statistics["few"]["after"] == {"nulls": 11, "nans": 0, "values": 1, "mean": None}
        for shown in (text, markdown, str(statistics)):
            assert not [
                value
                for value in ("1001.04", "1012", "1,012", "1,001.0", "4321", "4,321", "1234", "1,234")
                if value in shown
            ]

    def test_values_where_they_are_asked_for(self, cli, project):
        self.measured(cli, project)
        lines = [" ".join(line.split()) for line in cli("env", "diff", "pr-142", "--values", ok=0).out.splitlines()]
        assert "people pay maximum 1,012.5 1,000" in lines
        assert "people few mean 4,321 1,234" in lines
        assert not [line for line in lines if "--values" in line or "minimum 1,000" in line]
        found = cli.json("env", "diff", "pr-142", "--values")["differences"][0]["statistics"]
        pay = {"nulls": 0, "nans": 0, "values": 12, "mean": 12012.5 / 12, "minimum": 1000, "maximum": 1012.5}
        assert found["pay"]["before"] == pay

    def test_no_row_is_read_unless_it_is_asked_for(self, cli, project):
        self.measured(cli, project)
        parts = list(project.store.local_path("x").parent.rglob("*.parquet"))
        assert len(parts) == 2
        for path in parts:
            path.write_bytes(b"")
        assert cli.json("env", "diff", "pr-142")["differences"][0]["nulls"] == {"few": [10, 11]}
        small = cli.json("env", "diff", "pr-142", "--values", "--max-bytes", "1")["differences"][0]
        assert "are more than 1" in small["unread"]
        assert small["statistics"] == {}
        assert cli("env", "diff", "pr-142", "--statistics").code == 4

    @pytest.mark.slow  # that both engines find the same is tested in tests/engines
    @pytest.mark.spark
    def test_spark_says_the_same(self, cli, project, spark):
        self.measured(cli, project)
        words = ("env", "diff", "pr-142", "--key", "people=id", "--values")
        assert cli.json(*words, "--engine", "spark") == cli.json(*words, "--engine", "arrow")

    def test_a_version_that_became_empty(self, cli, project):
        self.measured(cli, project)
        table = project.in_environment("pr-142").table("people")
        table.write(table.read().slice(0, 0), options=TableOptions(allow_empty=True))
        lines = [" ".join(line.split()) for line in cli("env", "diff", "pr-142", "--statistics", ok=0).out.splitlines()]
        assert "people pay mean 1,001" in lines
        found = cli.json("env", "diff", "pr-142", "--key", "people=id")["differences"][0]
        assert found["rows"] == {"added": 0, "removed": 12, "changed": 0, "unchanged": 0}

    def test_downstream(self, cli, project, flights, monthly):
        delays = project.table("delays")
        delays.write(pa.table({"n": [1]}), parents=flights.upstream())
        project.table("report").write(pa.table({"n": [1]}), parents=delays.upstream())
        self.fill(cli, project, flights, monthly)
        document = cli.json("env", "diff", "pr-142")["downstream"]
        assert document == [{"table": "delays", "partition": None}, {"table": "report", "partition": None}]
        text = cli("env", "diff", "pr-142", ok=0).out
        assert text.endswith("Built from other data than this, and not made anew: delays, report.\n")
        markdown = cli("env", "diff", "pr-142", "-f", "markdown", ok=0).out
        assert markdown.endswith("\n\nBuilt from other data than this, and not made anew: delays, report.\n")

    def test_nothing(self, cli, project, flights):
        cli("env", "create", "pr-142", ok=0)
        assert cli("env", "diff", "pr-142", ok=0).out == "Nothing is different in pr-142.\n"

    def test_what_cannot_be_compared(self, cli, project, flights, monthly):
        self.fill(cli, project, flights, monthly)
        for words in (
            ("--key", "flights"),
            ("--key", "other=id"),
            ("--key", "flights=nope"),
            ("--key", "flights=carrier"),
            ("--json", "-f", "markdown"),
        ):
            outcome = cli("env", "diff", "pr-142", *words)
            assert outcome.code == 2, outcome
            assert "Nothing was compared" in outcome.err

    def test_a_comment_of_thousands_of_tables_is_cut(self):
        from dagster_versioned.branches.diff import Difference
        from dagster_versioned.cli.comment import MOST_CHARACTERS
        from dagster_versioned.cli.environment_diff import markdown_of
        from dagster_versioned.engines.comparison import ColumnStatistics
        from dagster_versioned.identity.names import table_name
        from dagster_versioned.tables.environment.fork import Fork

        fork = Fork("pr-142", "0" * 12, "NYC", "2026-11-24T14:02:00+00:00", None, {})
        many = [Difference(table_name(f"table {n}"), "|".join(["`<b>"] * 5), None, None) for n in range(3000)]
        sides = tuple(ColumnStatistics("number", 0, 0, 99, mean) for mean in (1.0, 2.0))
        many[0] = replace(many[0], statistics={f"column {n}": sides for n in range(9000)})
        text = "\n".join(markdown_of(fork, many, [(table_name("below"), None)], 0, values=False))
        assert len(text) < MOST_CHARACTERS
        assert f"{12_000 - len(re.findall(r'^[|] table .*[0-9]', text, re.MULTILINE)):,} more are not shown" in text
        assert text.endswith("not made anew: below.")
        assert "<b>" not in text.replace("\\<b\\>", "")


def test_rebase(cli, project, flights):
    cli("env", "create", "pr-142", ok=0)
    branch = project.in_environment("pr-142")
    branch.table("new").write(pa.table({"n": [1]}))
    project.table("later").write(pa.table({"n": [2]}))
    dry = cli("env", "rebase", "pr-142", ok=0)
    assert "pr-142 would go on from production of 20" in dry.out
    assert "Kept would be 1 version of its own, and 0 left." in dry.out
    assert cli.json("env", "show", "pr-142")["tables"] == {"flights": 2}
    document, etag = document_of(project.store, project.name, "pr-142")
    begun = replace(document, next=fork_now(project, "pr-142", "Ada"))
    project.store.put_if_match("environments/forks/pr-142.json", begun.to_bytes(), etag)
    assert cli.json("env", "show", "pr-142")["unfinished_rebase"]
    assert "A rebase of it is unfinished." in cli("env", "show", "pr-142", ok=0).out
    assert "Kept is 1 version of its own, and 0 left." in cli("env", "rebase", "pr-142", "--apply", ok=0).out
    assert cli.json("env", "show", "pr-142")["unfinished_rebase"] is False
    assert cli.json("env", "show", "pr-142")["tables"] == {"flights": 2, "later": 0}
    project.in_environment("pr-142").table("flights").write(pa.table({"id": [1]}))
    project.table("flights").write(pa.table({"id": [2]}))
    outcome = cli("env", "rebase", "pr-142", "--apply", "--json")
    assert outcome.code == 1
    assert [each["table"] for each in outcome.json["kept"]] == ["new"]
    assert [(each["table"], each["partition"]) for each in outcome.json["left"]] == [("flights", None)]
    assert not outcome.json["dry_run"]
    assert outcome.json["forked"]
    assert cli("env", "rebase", "pr-7").code == 3


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
    assert [each["table"] for each in document["promoted"]] == ["new"]
    assert [each["table"] for each in document["left"]] == ["flights"]
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


DEPLOYED = """
import dagster as dg
import pyarrow as pa
from dagster_versioned import ProjectResource, VersionedParquetIOManager

@dg.asset(code_version="{code}")
def new() -> pa.Table:
    raise NotImplementedError

project = ProjectResource(
    name="NYC", location={location!r}, environment=dg.EnvVar("DAGSTER_VERSIONED_ENVIRONMENT")
)
defs = dg.Definitions([new], resources={{"io_manager": VersionedParquetIOManager(project=project)}})
"""


class TestHalves:
    @pytest.fixture
    def prepared(self, cli, project, flights, tmp_path, monkeypatch):
        """A promotion of ``new`` by code 2 that is prepared; modules with older code and with that."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("DAGSTER_VERSIONED_ENVIRONMENT", "")  # so that what the verb sets is taken back
        monkeypatch.delenv("DAGSTER_HOME", raising=False)
        for code in ("1", "2"):
            text = DEPLOYED.format(code=code, location=str(cli.location))
            (tmp_path / f"deployed_{code}.py").write_text(text)
        cli("env", "create", "pr-142", ok=0)
        project.in_environment("pr-142").table("new").write(pa.table({"n": [1]}), code_version="2")
        assert "can become production's" in cli("promote", "pr-142", "--prepare", "--apply", ok=0).out
        yield cli
        for code in ("1", "2"):
            sys.modules.pop(f"deployed_{code}", None)

    def test_one_after_the_other(self, prepared, project):
        assert not project.table("new").exists()
        assert "would become" in prepared("promote", "pr-142", "--commit", ok=0).out
        assert not project.table("new").exists()
        document = prepared("promote", "pr-142", "--commit", "--apply", "--json", ok=0).json
        assert (document["half"], document["dry_run"]) == ("commit", False)
        assert [(each["table"], each["nrow"]) for each in document["promoted"]] == [("new", 1)]
        assert project.table("new").read()["n"].to_pylist() == [1]
        prepared("promote", "pr-142", "--commit", "--apply", ok=0)
        prepared("env", "drop", "pr-142", "--apply", ok=0)

    def test_the_code_has_to_be_deployed(self, prepared, project):
        refused = prepared("promote", "pr-142", "--commit", "--apply", "-m", "deployed_1")
        assert refused.code == 2
        assert "new (1 is deployed, 2 made it)" in refused.err
        assert prepared("promote", "pr-142", "--commit", "-m", "deployed_1").code == 2
        assert not project.table("new").exists()
        assert prepared("promote", "pr-142", "--commit", "-m", "nothing_of_that_name").code == 2
        prepared("promote", "pr-142", "--commit", "--apply", "-m", "deployed_2", ok=0)
        assert project.table("new").exists()

    def test_the_code_is_that_of_a_workspace_file_where_it_is_named(self, prepared, project):
        Path("workspace.yaml").write_text("load_from: [{python_module: deployed_1}]")
        refused = prepared("promote", "pr-142", "--commit", "--apply", "-w", "workspace.yaml")
        assert refused.code == 2
        assert "new (1 is deployed, 2 made it)" in refused.err
        assert prepared("promote", "pr-142", "--apply", "-w", "workspace.yaml").code == 2
        assert not project.table("new").exists()
        prepared("promote", "pr-142", "--commit", "--apply", ok=0)  # which does not look for one
        assert project.table("new").exists()

    def test_no_run_of_it_may_be_in_progress(self, prepared, project, tmp_path, monkeypatch):
        import dagster as dg

        home = tmp_path / "home"
        home.mkdir()
        monkeypatch.setenv("DAGSTER_HOME", str(home))
        with dg.DagsterInstance.get() as instance:
            job = dg.Definitions([dg.asset(name="new")(lambda: None)]).resolve_implicit_global_asset_job_def()
            run = instance.create_run_for_job(
                job, status=dg.DagsterRunStatus.STARTED, asset_selection=frozenset([dg.AssetKey("new")])
            )
            refused = prepared("promote", "pr-142", "--commit", "--apply", "--instance")
            assert refused.code == 6
            assert f"new (run {run.run_id[:8]})" in refused.err
            assert not project.table("new").exists()
            instance.report_run_canceled(run)
        outcome = prepared("promote", "pr-142", "--commit", "--apply", "--instance", ok=0)
        assert "Reported to Dagster: 1 version." in outcome.err

    def test_abandon_and_drop(self, prepared, project):
        refused = prepared("env", "drop", "pr-142", "--apply")
        assert refused.code == 2
        assert "promote pr-142 --abandon --apply" in refused.err
        assert prepared("env", "drop", "pr-142").code == 2
        assert "would be abandoned" in prepared("promote", "pr-142", "--abandon", ok=0).out
        assert prepared("env", "drop", "pr-142", "--apply").code == 2
        assert "is abandoned" in prepared("promote", "pr-142", "--abandon", "--apply", ok=0).out
        assert prepared("promote", "pr-142", "--abandon", "--apply").code == 2
        prepared("env", "drop", "pr-142", "--apply", ok=0)
        assert not project.table("new").exists()

    def test_what_does_not_go_together(self, prepared, project):
        for words in (
            ("--prepare", "--commit"),
            ("--commit", "--abandon"),
            ("--prepare", "-m", "deployed_2"),
            ("--prepare", "-w", "workspace.yaml"),
            ("--prepare", "--instance"),
            ("--abandon", "--instance"),
            ("--commit", "--accept", "new"),
            ("--abandon", "--accept", "new"),
        ):
            refused = prepared("promote", "pr-142", *words, "--apply")
            assert (refused.code, "Nothing was done" in refused.err) == (2, True), words
        assert not project.table("new").exists()
