"""What blocking checks found of a version stays with its table, in environments, promotions and collections."""

from datetime import timedelta

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.findings import FOLDER, findings_of, note_findings

FOUND = {"small": True, "whole": False}


@pytest.fixture
def project(tmp_path) -> Project:
    made = Project.open("NYC", str(tmp_path / "lake"))
    made.table("raw").write(pa.table({"n": [1]}))
    return made


@pytest.fixture
def branch(project) -> Project:
    create_environment(project, "pr-1")
    return project.in_environment("pr-1")


def write(project: Project, *numbers: int, table: str = "down") -> str:
    rows, parents = pa.table({"n": list(numbers)}), project.table("raw").upstream()
    return str(project.table(table).write(rows, parents=parents, code_version="1").version.metadata_sha)


def note(project: Project, sha: str, **found: bool) -> None:
    note_findings(project.table("down").store, sha, found)


def found(project: Project, sha: str) -> dict[str, bool]:
    return findings_of(project.table("down").store, sha)


def documents(project: Project) -> list[str]:
    return [info.key.removeprefix(FOLDER).removesuffix(".json") for info in project.table("down").store.list(FOLDER)]


def test_an_environment_sees_productions_and_notes_its_own_apart(project):
    first, second = write(project, 1), write(project, 2)
    note(project, first, **FOUND)
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1")
    assert found(branch, first) == FOUND
    note(branch, first, small=False)
    note(branch, second, small=True)
    assert (found(branch, first), found(branch, second)) == ({"small": False, "whole": False}, {"small": True})
    assert (found(project, first), found(project, second)) == (FOUND, {})


@pytest.mark.parametrize("half", [None, "halves"])
def test_a_promotion_takes_them_along_whatever_they_say(project, branch, half):
    sha = write(branch, 7)
    note(branch, sha, **FOUND)
    assert promote(project, "pr-1").promoted
    assert not project.table("down").exists()
    for one in ("prepare", "commit") if half else (None,):
        assert promote(project, "pr-1", dry_run=False, half=one).promoted
    assert found(project, sha) == FOUND


def test_what_production_has_found_itself_is_not_replaced_by_an_environments_word(project, branch):
    """Who may write below environments alone must not make a version pass that failed in production."""
    sha = write(branch, 7)
    note(branch, sha, small=True, extra=True)
    note(project, sha, small=False)  # of the same version, made there before
    assert promote(project, "pr-1", dry_run=False).promoted
    assert found(project, sha) == {"small": False, "extra": True}


def test_a_rebase_takes_them_along(project, branch):
    sha = write(branch, 7)
    note(branch, sha, **FOUND)
    project.table("other").write(pa.table({"n": [1]}))
    assert rebase_environment(project, "pr-1", dry_run=False).kept
    assert found(project.in_environment("pr-1"), sha) == FOUND


@pytest.mark.parametrize("dry_run", [True, False])
def test_vacuum_deletes_those_of_versions_that_are_gone(project, dry_run):
    gone, kept = write(project, 1), write(project, 2)
    for sha in (gone, kept, "0" * 64):
        note(project, sha, **FOUND)
    table = project.table("down")
    table.expire(keep_last=1, dry_run=False)
    assert len(documents(project)) == 3
    assert not [key for key in table.vacuum(dry_run=dry_run).keys if key.startswith(FOLDER)]  # they are young
    keys = table.vacuum(min_age=timedelta(0), dry_run=dry_run).keys
    assert sorted(key for key in keys if key.startswith(FOLDER)) == sorted(
        f"{FOLDER}{sha}.json" for sha in (gone, "0" * 64)
    )
    assert sorted(documents(project)) == sorted([gone, kept, "0" * 64] if dry_run else [kept])


def test_vacuum_in_an_environment_leaves_productions(project):
    first, second = write(project, 1), write(project, 2)
    note(project, first, **FOUND)
    note(project, second, **FOUND)
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1")
    own = write(branch, 3)
    note(branch, own, **FOUND)
    note(branch, "0" * 64, **FOUND)
    branch.table("down").vacuum(min_age=timedelta(0), dry_run=False)
    assert (found(branch, own), found(branch, "0" * 64)) == (FOUND, {})
    assert (found(project, first), found(project, second)) == (FOUND, FOUND)
