"""Who writes is warned when a table leaves what datom's readers see, once."""

import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from support.frames import numbered

MERGES = TableOptions(mode="merge", merge_key=("n",))
VECTORS = MERGES.model_copy(update={"properties": {"delta.enableDeletionVectors": "true"}})


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [message for message in caplog.messages if "datom" in message]
    caplog.clear()
    return found


@pytest.mark.parametrize("options", [MERGES, VECTORS], ids=["parts", "vectors"])
def test_the_merge_that_hides_a_table_from_datom_says_so_and_no_later_one(
    project: Project, caplog: pytest.LogCaptureFixture, options: TableOptions
) -> None:
    project.table("flights").write(numbered(9), options=options)
    assert not warnings_in(caplog)
    project.table("flights").write(numbered(3, 7), options=options)
    (warning,) = warnings_in(caplog)
    assert "flights" in warning
    for start in (12, 20):
        project.table("flights").write(numbered(3, start), options=options)
    assert not warnings_in(caplog)
    project.table("flights").write(numbered(4))
    assert not warnings_in(caplog)
    project.table("flights").write(numbered(3, 7), options=options)
    assert len(warnings_in(caplog)) == 1, "it was visible in between"


def test_what_datom_never_saw_is_not_said_to_be_hidden(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    small = TableOptions(target_part_bytes=1, row_group_bytes=4_000)
    for rows in (900, 1_000):
        project.table("large").write(numbered(rows), options=small)
        project.table("parted").write(numbered(rows), partition=str(rows))
    project.table("large").write(numbered(9))
    project.table("large").drop(dry_run=False)
    assert not warnings_in(caplog)
    create_environment(project, "pr-1")
    branch = Project.open("NYC", project.store.uri, environment="pr-1").table("flights")
    branch.write(numbered(9), options=MERGES)
    branch.write(numbered(3, 7), options=MERGES)
    assert not warnings_in(caplog), "an environment has no documents for datom"
