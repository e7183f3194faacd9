"""Samples of features on the command line: listed, described, deleted."""

import pytest

from dagster_versioned import Project, resolve_update
from dagster_versioned.cli.failures import ExitCode
from support.feature_tables import BASE, graph_of, loud, videos, words


@pytest.fixture
def features(project):
    graph = graph_of(words())
    with resolve_update(project, graph, "video", samples=videos(*BASE)) as update:
        update.write()
    with resolve_update(project, graph, "words") as update:
        update.write(loud(update.increment.changed))
    return graph


def ids(project):
    return sorted(project.table("words").read()["id"].to_pylist())


def test_features_are_listed(cli, project, features):
    lines = [line.split() for line in cli("feature", "ls", ok=0).out.splitlines()]
    version = project.table("words").version().short
    assert lines[0] == ["feature", "partition", "samples", "to", "compute", "fields", "version"]
    assert lines[2] == ["words", "3", "0", "text", version]
    documents = cli.json("feature", "ls")["features"]
    assert [(each["key"], each["rows"], each["left"]) for each in documents] == [("video", 3, 0), ("words", 3, 0)]


def test_a_project_without_features(cli, project):
    assert cli.json("feature", "ls") == {"features": []}
    assert "No features" in cli("feature", "ls", ok=0).err


def test_a_feature_is_described(cli, project, features):
    out = cli("feature", "show", "words", ok=0).out
    versions = features.versions("words")
    for text in (versions.feature, versions.fields["text"], "sha256, 32 digits", "computed from  video", "ids"):
        assert text in out
    (document,) = cli.json("feature", "show", "words")["features"]
    assert document["version"] == project.table("words").version().metadata_sha
    assert document["fields"]["text"]["code_version"] == "1"
    assert set(document["upstreams"]["video"]) == {"sound"}
    assert "no samples" in cli("feature", "show", "other", ok=ExitCode.INVALID).err
    assert "partition 'p'" in cli("feature", "show", "words", "--partition", "p", ok=ExitCode.INVALID).err


def test_samples_are_deleted_by_a_condition(cli, project, features):
    outcome = cli("feature", "delete", "words", "--where", "id < 3", ok=0)
    assert outcome.out == "words: 2 of 3 samples would be deleted\n"
    assert ("this is a dry run" in outcome.err, ids(project)) == (True, [1, 2, 3])
    outcome = cli("feature", "delete", "words", "--where", "id < 3", "--apply", ok=0)
    assert outcome.out == "words: 2 of 3 samples deleted\n"
    assert ids(project) == [3]
    document = cli.json("feature", "delete", "words", "--where", "id > 99", "--apply")
    assert (document["applied"], document["rows"], document["of"], document["versions"]) == (True, 0, 1, 0)
    assert "no column 'x'" in cli("feature", "delete", "words", "--where", "x = 1", ok=ExitCode.INVALID).err


@pytest.mark.parametrize("where", [(), ("--where", "id > 0")])
def test_everything_is_deleted_after_a_question(cli, project, features, where):
    command = ("feature", "delete", "words", *where, "--apply")
    outcome = cli(*command, stdin="no\n", ok=ExitCode.INVALID)
    assert "3 of 3 samples would be deleted.\nType the feature's key (words)" in outcome.err
    assert ids(project) == [1, 2, 3]
    cli(*command, stdin="words\n", ok=0)
    assert ids(project) == []


def test_without_a_question(cli, project, features):
    cli("feature", "delete", "words", "--apply", "--yes", ok=0)
    assert ids(project) == []


def test_for_good_asks_and_needs_a_reason(cli, project, features):
    first = project.table("words").version().metadata_sha
    command = ("feature", "delete", "words", "--where", "id = 1", "--hard")
    assert "needs a reason" in cli(*command, ok=ExitCode.INVALID).err
    assert "out of 1 version for good" in cli(*command, "--why", "12", "--apply", stdin="\n", ok=ExitCode.INVALID).err
    assert ids(project) == [1, 2, 3]
    document = cli.json(*command, "--why", "12", "--apply", "--yes")
    assert (document["versions"], ids(project)) == (1, [2, 3])
    assert project.table("words").read(first)["id"].to_pylist() == [2, 3]


def test_samples_are_copied_to_another_project(cli, project, features, tmp_path):
    command = ("feature", "copy", "--to", tmp_path / "dev", "--to-project", "DEV")
    outcome = cli(*command, ok=0)
    assert outcome.out.splitlines()[2].split() == ["words", "3", "3"]
    assert "this is a dry run" in outcome.err
    document = cli.json(*command, "words", "--where", "id < 3", "--apply")
    dev = Project.open("DEV", str(tmp_path / "dev"))
    version = dev.table("words").version().metadata_sha
    assert document["features"] == [{"key": "words", "partition": None, "rows": 2, "of": 3, "version": version}]
    assert (ids(dev), [str(name) for name in dev.tables()]) == ([1, 2], ["words"])
    assert "no samples of feature" in cli(*command, "other", ok=ExitCode.INVALID).err
