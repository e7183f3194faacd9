"""Environments of a governed project: they read it where it is, so it stays there as long as there are any."""

from pathlib import Path

import pytest

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.errors import InvalidInput
from dagster_versioned.governance.enroll import decommission
from dagster_versioned.governance.migrate import migrate
from dagster_versioned.storage import Location
from dagster_versioned.tables.environment.registry import names_of
from support.frames import numbered
from support.governed import NAME, Governed, facts
from support.stores import contents


@pytest.fixture
def governed(governed: Governed) -> Governed:
    create_environment(governed.by_developer(), "pr-1", by="Ada")
    return governed


def test_a_developer_works_in_one_and_production_stays(governed: Governed) -> None:
    before = facts(governed.at(governed.home))
    branch = governed.by_developer().in_environment("pr-1")
    branch.table("flights").write(numbered(50))
    assert branch.table("flights").read().num_rows == 50
    assert facts(governed.at(governed.home)) == before
    assert list(names_of(governed.open(governed.home))) == ["pr-1"]


def test_a_migration_is_refused_by_name_until_they_are_dropped(governed: Governed, tmp_path: Path) -> None:
    target = Location.parse(str(tmp_path / "away"))
    before = contents(governed.open(governed.home))
    with pytest.raises(InvalidInput, match=r"has environments, which read the project there: pr-1\..*env drop pr-1"):
        migrate(governed.registry, governed.mirror, NAME, target)
    assert contents(governed.open(governed.home)) == before
    assert not contents(governed.open(target))
    drop_environment(governed.by_developer(), "pr-1")
    governed.by_developer().tag("x")
    governed.by_developer().drop_tag("x")
    assert migrate(governed.registry, governed.mirror, NAME, target, delete_source=True).tables > 0
    assert (
        migrate(governed.registry, governed.mirror, NAME, governed.home).tables > 0
    )  # what was dropped is no stranger


def test_bytes_are_not_deleted_below_them(governed: Governed) -> None:
    before = contents(governed.open(governed.home))
    with pytest.raises(InvalidInput, match="pr-1"):
        decommission(governed.registry, governed.mirror, NAME, delete_data=True)
    assert contents(governed.open(governed.home)) == before
    drop_environment(governed.by_developer(), "pr-1")
    assert decommission(governed.registry, governed.mirror, NAME, delete_data=True).deleted_objects > 20
