"""Features on the command line: drawn, compared, pushed."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import Project, resolve_update
from dagster_versioned.assets.code_location import features_of_module
from dagster_versioned.cli.failures import ExitCode
from dagster_versioned.features.snapshots import GraphHistory
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import LocalStore, Location
from support.command_line import PROGRAM, in_process

FEATURES = """
from dagster_versioned.features.definitions import Feature, Field, FieldDep
from dagster_versioned.features.graph import FeatureGraph

video = Feature("video", ["video_id"], [Field("audio", "{audio}"), Field("frames", "1")])
crop = Feature("crop", ["video_id"], [Field("audio", "1"), Field("frames", "1")], [video])
faces = Feature("faces", ["video_id"], [Field("faces", "1", [FieldDep(crop, ["frames"])])], [crop])
"""


@pytest.fixture
def features(code_folder):
    """Writes the modules ``first`` and ``second`` into the working directory."""
    for name, audio in (("first", "1"), ("second", "2")):
        (code_folder / f"{name}.py").write_text(FEATURES.replace("{audio}", audio))
    return code_folder


@pytest.fixture
def pushed(cli, features):
    """A project to which both were pushed."""
    cli("graph", "push", "-m", "first", "--why", "ticket 12", ok=0)
    cli("graph", "push", "-m", "second", ok=0)
    return cli


def test_features_of_a_module_are_drawn(cli, features):
    out = cli("graph", "render", "-m", "first", ok=0).out
    assert out.splitlines()[0].endswith("features: 3")
    assert "── faces " in out
    assert "from crop.frames" in out


def test_the_module_may_be_given_by_the_environment(cli, features, monkeypatch):
    monkeypatch.setenv("DAGSTER_VERSIONED_MODULE", "first")
    assert "── faces " in cli("graph", "render", ok=0).out
    cli("graph", "push", ok=0)


def test_drawing_a_module_needs_no_project(features):
    done = subprocess.run(
        [*PROGRAM, "graph", "render", "-m", "first", "-f", "mermaid"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("flowchart TB")


@pytest.mark.parametrize(
    ("name", "start"), [("graph.mmd", "flowchart TB"), ("a.MERMAID", "flowchart TB"), ("graph.txt", "project version")]
)
def test_a_picture_is_written_in_the_format_that_its_name_ends_in(cli, features, name, start):
    out = cli("graph", "render", "-m", "first", "-o", name, ok=0).out
    assert out.startswith(f"3 features in {name}")
    assert Path(name).read_text().startswith(start)


def test_a_format_that_is_asked_for_wins(cli, features):
    cli("graph", "render", "-m", "first", "-o", "graph.txt", "-f", "mermaid", "--direction", "LR", ok=0)
    assert Path("graph.txt").read_text().startswith("flowchart LR")
    assert cli("graph", "render", "-m", "first", "-f", "mermaid", ok=0).out.startswith("flowchart TB")
    assert cli("graph", "render", "-m", "first", "-f", "pdf").code == ExitCode.INVALID


def test_a_push_says_what_changed(cli, features):
    first = cli("graph", "push", "-m", "first", "--why", "ticket 12", ok=0).out
    assert first.startswith("Pushed as @0, the first: 3 features.\n")
    assert cli("graph", "push", "-m", "first", ok=0).out == "Nothing changed since push @0.\n"
    dry = cli("graph", "push", "-m", "second", "--dry-run", ok=0)
    assert dry.out.startswith("Would be pushed: 2 features changed since @0.\n")
    assert "dry run" in dry.err
    second = cli("graph", "push", "-m", "second", ok=0).out
    assert second.startswith("Pushed as @1: 2 features changed since @0.\n")
    assert "  code 1 -> 2\n" in second
    assert "  with video.audio\n" in second


def test_the_history_lists_pushes(pushed):
    lines = pushed("graph", "history", ok=0).out.splitlines()
    assert [line.split()[0] for line in lines] == ["push", "@1", "@0"]
    assert lines[2].rstrip().endswith("ticket 12")
    assert len(pushed("graph", "history", "--limit", "1", ok=0).out.splitlines()) == 2


def test_a_project_without_pushes(cli, features):
    outcome = cli("graph", "history", ok=0)
    assert (outcome.out, outcome.err) == ("", "Nothing was pushed.\n")
    assert "No definitions were pushed" in cli("graph", "diff", "-m", "first", ok=ExitCode.NOT_FOUND).err
    assert "No definitions were pushed" in cli("graph", "render", ok=ExitCode.NOT_FOUND).err


def test_pushes_and_the_module_are_compared(pushed):
    changed = "features changed: 2, unchanged: 1"
    same = "features changed: 0, unchanged: 3"
    for args, expected in (
        (("@0", "@1"), changed),
        (("@0",), changed),
        (("@1",), same),
        (("-m", "first"), changed),
        (("-m", "second"), same),
        (("@0", "-m", "first"), same),
        (("@0", "@1", "-m", "first"), changed),
    ):
        assert pushed("graph", "diff", *args, ok=0).out.splitlines()[0].endswith(expected), args


def test_a_comparison_may_be_a_picture(pushed):
    assert ":::changed" in pushed("graph", "diff", "@0", "@1", "-f", "mermaid", ok=0).out
    pushed("graph", "diff", "@0", "-o", "changes.mmd", ok=0)
    assert "classDef" in Path("changes.mmd").read_text()


def test_a_push_is_drawn(pushed, project):
    first = GraphHistory(project).find("@0")
    last = pushed("graph", "render", ok=0).out
    assert "code 2" in last
    for reference in ("@0", first.snapshot[:8], first.project_version):
        out = pushed("graph", "render", reference, ok=0).out
        assert first.project_version in out
        assert "code 2" not in out


def test_documents(pushed):
    graph = pushed.json("graph", "render", "@1")
    assert [feature["key"] for feature in graph["features"]] == ["video", "crop", "faces"]
    assert graph["features"][2]["fields"][0]["parents"] == ["crop.frames"]
    diff = pushed.json("graph", "diff", "@0", "@1")
    assert (diff["before"]["number"], diff["after"]["number"], diff["unchanged"]) == (0, 1, 1)
    assert diff["features"][0]["fields"][0]["code"] == ["1", "2"]
    history = pushed.json("graph", "history")["pushes"]
    assert [each["why"] for each in history] == [None, "ticket 12"]
    again = pushed.json("graph", "push", "-m", "second")
    assert (again["applied"], again["push"], again["before"]["number"]) == (True, None, 1)
    written = pushed.json("graph", "render", "@1", "-o", "graph.mmd")
    assert (written["output"], written["format"]) == ("graph.mmd", "mermaid")


def test_what_cannot_be_is_refused(pushed, features):
    (features / "broken.py").write_text("import nothing_of_this_name")
    (features / "empty.py").write_text("x = 1")
    (features / "two.py").write_text("from first import video\nfrom second import video as other")
    for args, message in (
        (("push",), "-m MODULE"),
        (("diff",), "-m MODULE"),
        (("render", "-m", "broken"), "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        (("render", "-m", "not_there"), "'not_there' could not be loaded"),
        (("render", "-m", "empty"), "has no features"),
        (("push", "-m", "two"), "two definitions of feature 'video'"),
        (("render", "pin:audit"), "names no push"),
        (("render", "-m", "first", "-o", "not/there.mmd"), "could not be written"),
    ):
        outcome = pushed("graph", *args, ok=ExitCode.INVALID)
        assert message in outcome.err, args
        assert outcome.out == ""


def test_assets_that_are_features(cli, features):
    (features / "assets.py").write_text(
        """
import dagster as dg
from dagster_versioned.assets.feature_definition import feature_metadata
from dagster_versioned.features.graph import FeatureGraph
from second import crop, video

_graph = FeatureGraph([video, crop])

@dg.asset(metadata=feature_metadata(_graph, "crop"))
def crops(): ...

@dg.asset
def ordinary(): ...
"""
    )
    (features / "eager.py").write_text("import dagster as dg, assets\ndefs = dg.Definitions(assets=[assets.crops])")
    (features / "lazy.py").write_text(
        "import dagster as dg, assets\n\n@dg.definitions\ndef defs():\n    return dg.Definitions(assets=[assets.crops])"
    )
    (features / "listed.py").write_text("import assets\nall_of_them = {'a': [assets.crops, assets.ordinary]}")
    for module in ("eager", "lazy", "listed"):
        graph = cli.json("graph", "render", "-m", module)
        assert [feature["key"] for feature in graph["features"]] == ["video", "crop"], module


def test_what_a_feature_depends_on_need_not_be_in_the_module(cli, features):
    (features / "lower.py").write_text("from second import faces")
    graph = cli.json("graph", "render", "-m", "lower")
    assert [feature["key"] for feature in graph["features"]] == ["video", "crop", "faces"]


def test_the_plan_says_what_is_to_be_computed(cli, project, features):
    (features / "planned.py").write_text(
        """
from dagster_versioned.features.definitions import Feature, Field

video = Feature("video", ["id"], [Field("audio", columns=["audio"])])
words = Feature("words", ["id"], ["text"], [video])
lower = Feature("lower", ["id"], ["x"], [words])
"""
    )
    before = cli("graph", "plan", "-m", "planned", ok=0).out.splitlines()
    assert before[1].split() == ["video", "unknown", "it", "was", "never", "materialized"]
    project.table("video").write(pa.table({"id": [1, 2], "audio": ["a", "b"]}))
    outcome = cli("graph", "plan", "-m", "planned", ok=0)
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[1][:3] == ["video", "unknown", "2"]
    assert lines[2] == ["words", "exact", "2", "2", "0", "0", "0"]
    assert lines[3] == ["lower", "at", "most", "2", "2", "0", "0", "0"]
    assert outcome.err.startswith("'at most': ")
    document = cli.json("graph", "plan", "-m", "planned")["features"]
    assert [(each["key"], each["certainty"], each["todo"]) for each in document] == [
        ("video", "unknown", 0),
        ("words", "exact", 2),
        ("lower", "at most", 2),
    ]
    assert "-m MODULE" in cli("graph", "plan", ok=ExitCode.INVALID).err


def test_samples_are_accepted_under_another_name(cli, project, features):
    text = """
from dagster_versioned.features.definitions import Feature, Field, FieldDep

video = Feature("video", ["id"], [Field("audio", columns=["audio"])])
words = Feature("words", ["id"], [Field("{name}", deps=[FieldDep(video, ["audio"])])], [video])
"""
    for name in ("text", "speech"):
        (features / f"with_{name}.py").write_text(text.replace("{name}", name))
    project.table("video").write(pa.table({"id": [1, 2], "audio": ["a", "b"]}))
    with resolve_update(project, features_of_module("with_text"), "words") as update:
        before = update.write(update.increment.changed).version
    cli("graph", "push", "-m", "with_text", ok=0)
    command = ("graph", "rebase", "-m", "with_speech", "--renamed", "words.text=speech")
    outcome = cli(*command, ok=0)
    assert outcome.out.splitlines()[1].split() == ["words", "2", "0", before.short]
    assert "this is a dry run" in outcome.err
    assert project.table("words").version().metadata_sha == before.metadata_sha
    document = cli.json(*command, "--why", "better", "--apply")
    after = project.table("words").version().metadata_sha
    assert (document["applied"], document["push"]["why"]) == (True, "better")
    assert document["features"] == [
        {"key": "words", "samples": 2, "left": 0, "before": before.metadata_sha, "after": after}
    ]
    assert (
        cli("graph", "rebase", "-m", "with_speech", ok=0).out
        == "No sample is computed by other definitions than these.\n"
    )
    assert "is no FEATURE.OLD=NEW" in cli(*command[:-1], "speech", ok=ExitCode.INVALID).err
    assert "-m MODULE" in cli("graph", "rebase", ok=ExitCode.INVALID).err
    assert "words.text" in cli("graph", "history", "--json", ok=0).out


def test_help_says_what_a_push_is(cli):
    for verb in ("render", "diff", "history", "push", "plan", "lock"):
        out = cli("graph", verb, "--help", ok=0).out
        assert f"dagster-versioned graph {verb}" in out


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "feature-graphs.md"


def test_the_page_works_as_it_is_written(tmp_path, monkeypatch):
    """Its files and commands, in order; what it shows of their output is what they say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two modules of one size within a second are told apart
    said, outputs, names = "", {}, {}
    blocks = re.findall(r'^```(\w+)(?: title="([^"\n]*)")?\n(.*?)^```', PAGE.read_text(), re.M | re.S)
    for language, title, block in blocks:
        if title:
            Path(title).write_text(block)
            sys.modules.pop(Path(title).stem, None)
        elif language == "python":
            exec(block, names)
        elif language == "text":
            assert said.startswith(block.removesuffix("…\n"))
        for line in block.splitlines() if language == "sh" else ():
            program, *words = shlex.split(line)
            if program == "export":
                for setting in words:
                    monkeypatch.setenv(*setting.split("=", 1))
                continue
            done = in_process(*words)
            assert (done.exit_code, done.stderr) == (0, ""), line
            said = outputs[line.removeprefix("dagster-versioned ")] = done.stdout
    for name in ("features", "search", "split"):
        del sys.modules[name]
    assert outputs["graph render -m split"].count("from video.") == 2
    assert "vectors" in outputs["graph render -m search"]
    assert "crop 9558764d  by video_id; of VIDEOS" in outputs["graph render -m search"]
    assert [feature.key for feature in names["pushed"]] == ["video", "crop", "transcript", "faces"]
    assert len(outputs["graph history"].splitlines()) == 3
    assert outputs["graph plan -m features"].count(" is unknown ") == 3


OURS = """
from dagster_versioned import Feature, FeatureLock, Field

lock = FeatureLock.read()
index = Feature("index", ["video_id"], [Field("index", "{code}")], [lock["crop"]])
"""


@pytest.fixture
def other(features, tmp_path):
    """A project, VIDEOS, to which ``first`` was pushed; the options that name it."""
    options = ("--project", "VIDEOS", "--location", str(tmp_path / "videos"))
    assert in_process("graph", "push", "-m", "first", *options).exit_code == 0
    return options


def test_features_are_locked_and_renewed(cli, features, other):
    first = cli("graph", "lock", "crop", *other, ok=0)
    assert [line.split()[:3] for line in first.out.splitlines()[1:3]] == [
        ["video", "VIDEOS", "added"],
        ["crop", "VIDEOS", "added"],
    ]
    assert first.out.endswith("Wrote features.lock: 2 features.\n")
    written = Path("features.lock").read_bytes()
    assert cli("graph", "lock", *other, ok=0).out == "features.lock is up to date: 2 features.\n"
    assert cli("graph", "lock", "--check", *other, ok=0).out == "features.lock is up to date: 2 features.\n"
    cli("graph", "push", "-m", "second", *other, ok=0)
    stale = cli("graph", "lock", "--check", *other, ok=ExitCode.FINDINGS)
    assert stale.out.endswith("features.lock is not up to date.\n")
    assert Path("features.lock").read_bytes() == written
    document = cli.json("graph", "lock", *other)
    assert (document["applied"], document["output"]) == (True, "features.lock")
    assert document["projects"]["VIDEOS"]["push"] == 1
    assert [(each["key"], each["change"]) for each in document["features"]] == [
        ("video", "changed"),
        ("crop", "changed"),
    ]
    assert cli("graph", "lock", "faces", *other, ok=0).out.endswith("Wrote features.lock: 3 features.\n")
    less = cli("graph", "lock", "video", *other, ok=0).out.splitlines()
    assert [line.split()[:3] for line in less[1:3]] == [["crop", "VIDEOS", "removed"], ["faces", "VIDEOS", "removed"]]


def test_a_push_of_what_is_not_locked_leaves_the_file(cli, features, other):
    cli("graph", "lock", "video", *other, ok=0)
    written = Path("features.lock").read_bytes()
    (features / "third.py").write_text(FEATURES.replace("{audio}", "1").replace('"faces", "1"', '"faces", "2"'))
    cli("graph", "push", "-m", "third", *other, ok=0)
    assert cli("graph", "lock", *other, ok=0).out == "features.lock is up to date: 1 feature.\n"
    assert Path("features.lock").read_bytes() == written


def test_what_cannot_be_locked_names_what_to_do(cli, features, other, tmp_path):
    assert "none is named" in cli("graph", "lock", *other, ok=ExitCode.INVALID).err
    assert "has no features ['no']" in cli("graph", "lock", "no", *other, ok=ExitCode.NOT_FOUND).err
    unknown = cli("graph", "lock", "crop", "--project", "NO", "--governance", str(tmp_path / "gov"))
    assert (unknown.code, unknown.out) == (ExitCode.INTEGRITY, "")
    assert "NO" in unknown.err
    assert not Path("features.lock").exists()
    Path("features.lock").write_bytes(b'{"schema_version": 1,')
    damaged = cli("graph", "lock", "crop", *other, ok=ExitCode.INTEGRITY)
    assert "delete it and lock again" in damaged.err
    assert Path("features.lock").read_bytes() == b'{"schema_version": 1,'


def compute(project, module):
    """All that the module ``first`` defines."""
    graph = features_of_module(module)
    given = pa.table({"video_id": [1, 2], "metaxy_provenance_by_field": [{"audio": "a", "frames": "f"}] * 2})
    with resolve_update(project, graph, "video", samples=given) as update:
        update.write()
    with resolve_update(project, graph, "crop") as update:
        update.write(update.increment.changed)


def test_locked_features_are_planned_drawn_pushed_and_rebased_with_the_other_project(cli, features, other, project):
    videos = Project.open("VIDEOS", other[-1])
    compute(videos, "first")
    cli("graph", "lock", "crop", *other, ok=0)
    (features / "ours.py").write_text(OURS.replace("{code}", "1"))
    (features / "bumped.py").write_text(OURS.replace("{code}", "2"))
    upstream = ("--upstream", other[-1])
    assert "by video_id; of VIDEOS" in cli("graph", "render", "-m", "ours", ok=0).out
    cli("graph", "push", "-m", "ours", ok=0)
    unknown = cli("graph", "plan", "-m", "ours", ok=ExitCode.INVALID)
    assert "'crop' is of project VIDEOS" in unknown.err
    (planned,) = cli.json("graph", "plan", "-m", "ours", *upstream)["features"]
    assert (planned["key"], planned["certainty"], planned["new"]) == ("index", "exact", 2)
    with resolve_update(project, features_of_module("ours"), "index", upstreams=[videos]) as update:
        update.write(update.increment.changed)
    words = ("graph", "rebase", "-m", "bumped", "--unchecked", "index", "--apply")
    assert "'crop' is of project VIDEOS" in cli(*words, ok=ExitCode.INVALID).err
    (rebased,) = cli.json(*words, *upstream)["features"]
    assert (rebased["key"], rebased["samples"], rebased["left"]) == ("index", 2, 0)


def test_governance_finds_the_projects_of_locked_features(cli, features, tmp_path, git_identity):
    registry, clone = str(tmp_path / "registry.git"), tmp_path / "clone"
    made, mirror = Registry.init(registry, clone), GovernanceStore(LocalStore(tmp_path / "gov"))
    for name in ("VIDEOS", "SEARCH"):
        made.register(name, Location.parse(str(tmp_path / name)), actor="Ada <ada@example.org>")
    mirror.publish(made)
    reader, writer = ("--governance", str(tmp_path / "gov")), ("--clone", str(clone))
    videos = ("--project", "VIDEOS", *reader)
    pushed = in_process("graph", "push", "-m", "first", *videos, *writer)
    assert pushed.exit_code == 0, pushed.stderr
    compute(Project.open("VIDEOS", str(tmp_path / "VIDEOS")), "first")
    locked = in_process("graph", "lock", "crop", *videos)
    assert locked.exit_code == 0, locked.stderr
    (features / "ours.py").write_text(OURS.replace("{code}", "1"))
    planned = in_process("graph", "plan", "-m", "ours", "--project", "SEARCH", *reader, "--json")
    assert planned.exit_code == 0, planned.stderr
    assert [(each["key"], each["new"]) for each in json.loads(planned.stdout)["features"]] == [("index", 2)]
