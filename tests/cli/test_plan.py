"""``dagster-versioned plan``: what would run of a module, and why, before anything runs."""

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.cli.comment import MOST_CHARACTERS, escaped
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.cli.plan import markdown_of
from dagster_versioned.sensors.forecast import Forecast, ForecastEntry
from support.command_line import in_process

PIPELINE = """
import dagster as dg
import pyarrow as pa
from dagster_versioned import ProjectResource, VersionedParquetIOManager, build_version_sensor

CARRIERS = dg.StaticPartitionsDefinition(["AA", "UA"])

@dg.asset(code_version="{code}")
def flights() -> pa.Table:
    raise NotImplementedError

@dg.asset
def delays(flights: pa.Table) -> pa.Table:
    raise NotImplementedError

@dg.asset(partitions_def=CARRIERS)
def by_carrier(delays: pa.Table) -> pa.Table:
    raise NotImplementedError

project = ProjectResource(name="NYC", location={location!r}, environment={environment})
defs = dg.Definitions(
    [flights, delays, by_carrier],
    sensors=[build_version_sensor("keep_current", dg.AssetSelection.all())],
    resources={{"io_manager": VersionedParquetIOManager(project=project)}},
)
"""
VARIABLE = 'dg.EnvVar("DAGSTER_VERSIONED_ENVIRONMENT")'


@pytest.fixture
def code(tmp_path, code_folder):
    """Writes modules into the working directory."""

    def write(name, text=PIPELINE, code="1", environment=VARIABLE):
        values = {"code": code, "location": str(tmp_path / "store"), "environment": environment}
        (code_folder / f"{name}.py").write_text(text.format(**values) if text is PIPELINE else text)

    return write


@pytest.fixture
def built(project, code):
    """The modules ``same`` and ``changed``, and their tables, which ``same`` would leave as they are."""
    code("same")
    code("changed", code="2")
    fill(project)
    return project


def fill(project):
    frame = pa.table({"n": [1, 2]})
    project.table("flights").write(frame, code_version="1")
    project.table("delays").write(frame, parents=project.table("flights").upstream())
    table, above = project.table("by_carrier"), project.table("delays").upstream()
    table.write_partitions({"AA": frame, "UA": frame}, parents=above)


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in str(path)}


def plan(*words, ok=0):
    result = in_process("plan", *words)
    assert result.exit_code == ok, (result.stdout, result.stderr)
    return result


def test_nothing_would_run(built):
    said = plan("-m", "same", "--environment", "production", "--exit-code").stdout
    assert said == (
        "Nothing would run.\n"
        "4 tables and partitions are current. Changes of code are not seen of: delays, by_carrier.\n"
    )


def test_a_changed_source_and_all_below_it_and_nothing_is_written(built, tmp_path):
    before = files(tmp_path)
    said = plan("-m", "changed", "--environment", "production").stdout
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[1] == f"flights runs code version 1 -> 2 nobody 2 {size(built, 'flights')}"
    assert lines[2] == f"delays may run unknown until flights has run keep_current 2 {size(built, 'delays')}"
    assert lines[3].startswith("by_carrier may run 2 unknown until delays has run keep_current 4 ")
    assert lines[4].startswith("0 tables and partitions are current.")
    plan("-m", "changed", "--environment", "production", "--exit-code", ok=1)
    assert files(tmp_path) == before


def size(project, table):
    return f"{project.table(table).version().facts.size_bytes} bytes"


def test_conditions_that_no_sensor_evaluates_are_named(project, code):
    asked = PIPELINE.replace("@dg.asset\n", "@dg.asset(automation_condition=version_changed())\n")
    asked = asked.replace("build_version_sensor\n", "version_changed\n").replace(
        'build_version_sensor("keep_current", dg.AssetSelection.all())', ""
    )
    where = {"code": "1", "location": project.store.uri.removeprefix("file://"), "environment": VARIABLE}
    code("conditions", asked.format(**where))
    assert plan("-m", "conditions", "--environment", "production").stdout.splitlines()[-1] == (
        "Nobody evaluates version_changed() of delays: Dagster's default sensor cannot. Add "
        'AutomationConditionSensorDefinition("conditions", target="*", use_user_code_server=True).'
    )


def test_as_json_with_every_partition(built, cli):
    document = cli.json("plan", "-m", "changed", "--environment", "production")
    assert [(each["asset"], each["partition"], each["what"]) for each in document["cells"]] == [
        ("flights", None, "runs"),
        ("delays", None, "may run"),
        ("by_carrier", "AA", "may run"),
        ("by_carrier", "UA", "may run"),
    ]
    assert document["cells"][1]["sensors"] == ["keep_current"]
    assert (document["environment"], document["projects"], document["would_run"]) == ("production", ["NYC"], True)
    assert (document["current"], document["uncoded"]) == (0, ["delays", "by_carrier"])


def test_as_a_comment(built):
    said = plan("-m", "changed", "--environment", "production", "--format", "markdown").stdout.splitlines()
    assert said[0] == "<!-- dagster-versioned plan NYC production -->"
    assert said[1] == "### Plan for `production`: 3 of its assets would run, or may"
    assert said[5].startswith(r"| flights | runs |  | code version 1 -\> 2 | nobody | 2 |")
    assert said[7].startswith(r"| by\_carrier | may run | 2 | unknown until delays has run | keep\_current | 4 |")
    assert r"by\_carrier" in said[-1]


def test_a_comment_of_thousands_of_assets_is_cut():
    names = [f"x{'_' * 60}{n}" for n in range(800)]
    cells = [ForecastEntry(name, "NYC", name, None, "new", "never made", (), None, None) for name in names]
    found = Forecast(("NYC",), "production", tuple(cells), 0, 0, tuple(names), {}, (), ())
    said = "\n".join(markdown_of(found))
    assert MOST_CHARACTERS - 400 < len(said) < MOST_CHARACTERS
    assert f"\n{800 - said.count('| new |')} more are not shown" in said
    assert "0 tables and partitions are current" in said
    assert "and 780 more" in said


class TestEnvironments:
    def test_the_definitions_are_those_of_it(self, built):
        create_environment(built, "pr-142")
        built.in_environment("pr-142").table("flights").write(pa.table({"n": [3]}), code_version="1")
        assert plan("-m", "same", "--environment", "production").stdout.startswith("Nothing would run.")
        said = plan("-m", "same", "--environment", "pr-142", "-f", "markdown").stdout.splitlines()
        assert said[0] == "<!-- dagster-versioned plan NYC pr-142 -->"
        assert said[5].startswith("| delays | runs |  | flights ")

    def test_none_is_made(self, built, tmp_path):
        before = files(tmp_path)
        assert "There is no environment 'pr-142'" in plan("-m", "same", "--environment", "pr-142", ok=3).stderr
        assert files(tmp_path) == before

    def test_definitions_that_do_not_follow_are_refused(self, built, code):
        create_environment(built, "pr-142")
        code("fixed", environment="'production'")
        said = plan("-m", "fixed", "--environment", "pr-142", ok=ExitCode.INVALID).stderr
        assert "The definitions write to production, not to pr-142" in said
        code("silent", environment="None")
        said = plan("-m", "silent", "--environment", "pr-142", ok=ExitCode.INVALID).stderr
        assert "states no environment" in said


class TestModules:
    def test_what_cannot_be_loaded(self, built, code):
        code("broken", "1 / 0")
        code("empty", "import dagster")
        code("two", "import dagster as dg\none, two = dg.Definitions(), dg.Definitions()")
        code("tableless", "import dagster as dg\ndefs = dg.Definitions([dg.AssetSpec('a')])")
        code("wrong", "import dagster as dg\n@dg.asset\ndef a(b): ...\ndefs = dg.Definitions([a])")
        for name, why in (
            ("missing", "ModuleNotFoundError"),
            ("broken", "ZeroDivisionError"),
            ("wrong", "could not be loaded"),
            ("empty", "has no Definitions"),
            ("two", "has 2 Definitions"),
            ("tableless", "no versioned table"),
        ):
            result = plan("-m", name, ok=ExitCode.INVALID)
            assert why in result.stderr
            assert result.stdout == ""

    def test_none_is_named(self, built, monkeypatch):
        said = plan(ok=ExitCode.INVALID).stderr
        for way in (
            "-m MODULE",
            "DAGSTER_VERSIONED_MODULE",
            "-w FILE",
            "[tool.dagster]",
            "[tool.dg]",
            "workspace.yaml",
        ):
            assert way in said
        monkeypatch.setenv("DAGSTER_VERSIONED_MODULE", "same")
        plan("--environment", "production")

    def test_one_that_makes_its_definitions_when_asked(self, built, code):
        code("late", "import dagster as dg\n@dg.definitions\ndef defs():\n    from same import defs\n    return defs\n")
        assert plan("-m", "late", "--environment", "production").stdout.startswith("Nothing would run.")

    def test_two_of_the_same_assets_are_refused(self, built):
        said = plan("-m", "same", "-m", "changed", "--environment", "production", ok=ExitCode.INVALID).stderr
        assert "Two code locations define the asset flights" in said


def test_the_instance_is_that_of_dagster_home(built, tmp_path, monkeypatch):
    words = ("-m", "same", "--environment", "production", "--instance")
    assert "DAGSTER_HOME" in plan(*words, ok=ExitCode.INVALID).stderr
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    assert plan(*words).stdout.startswith("Nothing would run.")


def test_two_notations_are_refused(built):
    assert "two notations" in plan("-m", "same", "--json", "-f", "markdown", ok=ExitCode.INVALID).stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("@octocat", "@&#8203;octocat"),
        ("ada@host.example", "ada@&#8203;host.example"),
        ("a/b#12, gh-7", r"a/b\#&#8203;12, gh&#8203;-7"),
        ("https://evil.example www.evil.example", "https:&#8203;//evil.example www&#8203;.evil.example"),
        ("&commat;octocat &#64;octocat", r"\&commat;octocat \&\#&#8203;64;octocat"),
        ("[a](b) <b> a|b $x$ !1", r"\[a\]\(b\) \<b\> a\|b \$x\$ \!1"),
        ("two\nlines", "two lines"),
    ],
)
def test_what_data_say_in_a_comment_is_no_markup_and_no_link_and_notifies_nobody(text: str, shown: str):
    assert escaped(text) == shown
