"""What has to hold before a verb changes anything: every verb of the table is tried against every condition in it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NoReturn

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.open_promotion import abandon_promotion
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.errors import InvalidInput, ProjectMoved
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.snapshots import GraphHistory
from dagster_versioned.governance.fence import raise_fence
from dagster_versioned.identity.version import Run
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.queries.cached_slices import discard
from dagster_versioned.odf.sharing.references import drop_reference
from dagster_versioned.odf.sharing.remote import open_remote
from dagster_versioned.odf.sharing.repositories import set_repository
from dagster_versioned.odf.sharing.transfer import pull
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage.location import Location
from dagster_versioned.tables.context import PlacementAuthority
from dagster_versioned.tables.event_history import EventHistory
from dagster_versioned.tables.preconditions import VERBS
from dagster_versioned.tables.relocation.migration_mark import MigrationMark, put_mark
from dagster_versioned.tables.table import VersionedTable
from support.stores import contents

ROWS = pa.table({"n": [1]})
RUN = Run("r1", "numbers", 0)
NOW = datetime.now(UTC)

TABLE: dict[str, Callable[[VersionedTable], object]] = {
    "write": lambda table: table.write(pa.table({"n": [5]})),
    "park": lambda table: park(table, {None: ROWS}, run=RUN),
    "revert": lambda table: table.revert("@0"),
    "release": lambda table: table.release(),
    "forget": lambda table: table.forget(dry_run=False),
    "drop": lambda table: table.drop(dry_run=False),
    "restore": lambda table: table.restore(),
    "repartition": lambda table: table.repartition(None, dry_run=False),
    "record": lambda table: table.record_domain(DomainMetadata("of.somebody", "{}", False)),
    "vacuum": lambda table: table.vacuum(dry_run=False),
    "repair": lambda table: table.repair(),
    "leave": lambda table: table.leave(dry_run=False),
    "adopt": lambda table: table.adopt(),
    "expire": lambda table: table.expire(keep_last=1, dry_run=False),
    "purge": lambda table: table.purge(["@0"], why="asked", dry_run=False),
    "rename table": lambda table: table.rename("others", dry_run=False),
}
PROJECT: dict[str, Callable[[Project], object]] = {
    "rename project": lambda project: project.rename("NEW"),
    "pin": lambda project: project.pin("x", "numbers"),
    "tag": lambda project: project.tag("x"),
    "drop tag": lambda project: project.drop_tag("x"),
    "publish": lambda project: project.publish("r1", by="me"),
    "drop draft": lambda project: project.drop_parked("0" * 8),
    "promote": lambda project: promote(project, "pr-1", dry_run=False),
    "abandon promotion": lambda project: abandon_promotion(project, "pr-1", dry_run=False),
    "create environment": lambda project: create_environment(project, "pr-2"),
    "drop environment": lambda project: drop_environment(project, "pr-1"),
    "rebase": lambda project: rebase_environment(project, "pr-1", dry_run=False),
    "write events": lambda project: EventTable(project.table("happened"), EventHistory()).write(ROWS),
    "pull": lambda project: pull(open_remote("/nowhere"), project.table("pulled")),
    "reference": lambda project: drop_reference(project.table("numbers"), "x"),
    "name repository": lambda project: set_repository(project, "x", "https://example.org/x"),
    "change slices": lambda project: discard(project.table("numbers"), None, None, before=NOW, apply=True),
    "push definitions": lambda project: GraphHistory(project).push(FeatureGraph([])),
}
READING = {
    "beside",
    *("choose", "diff", "diff_rows", "exists", "files", "files_of", "head", "history", "is_void", "partitions"),
    *("publisher", "read", "read_files", "replay", "resolve", "state", "upstream", "computed", "kept", "constraints"),
    *(
        "describe",
        "known_schema",
        "with_personal_columns",
        "last_state",
        "upstream_of",
        "version",
        "asset_key",
        "name",
        "project",
        "store",
    ),
    *("operations", "verify"),
}
"""What changes no version: `resolve` only brings up to date what is derived."""
NOTHING_TO_DO = {"forget", "repartition", "repair"}
"""Nothing was computed, there are no partitions, and derived documents say what the log does, wherever it is."""
OTHER_NAMES = {
    "drop_partitions": "drop",
    "write_partitions": "write",
    "record_domain": "record",
    "rename": "rename table",
}
SEVERAL: dict[str, Callable[[Project, str], object]] = {
    "erase": lambda project, table: project.erase("n = 1", [table], why="asked", dry_run=False),
}
"""Verbs of a project that are told the tables."""


@pytest.fixture
def project(tmp_path) -> Project:
    made = Project.open("P", str(tmp_path / "lake"))
    for n in range(3):
        made.table("numbers").write(pa.table({"n": [n]}))
    create_environment(made, "pr-1")
    return made


def attempt(verb: str, project: Project, table: str = "numbers") -> object:
    if verb in SEVERAL:
        return SEVERAL[verb](project, table)
    return TABLE[verb](project.table(table)) if verb in TABLE else PROJECT[verb](project)


def verbs(condition: Callable[[str], bool]) -> list[str]:
    return [verb for verb in VERBS if condition(verb)]


def test_every_verb_is_tried_here():
    """A new verb has to say in the table what it does not go together with."""
    assert {*TABLE, *PROJECT, *SEVERAL} == set(VERBS)
    public = {name for name in vars(VersionedTable) if not name.startswith("_")} | {"operations"}
    of_tables = {OTHER_NAMES.get(name, name) for name in public - READING - {"commit_as_migration"}}
    assert of_tables == TABLE.keys() - {"park"}


@pytest.mark.parametrize("verb", VERBS)
def test_none_writes_by_a_name_that_the_project_does_not_have(project, verb):
    before = contents(project.store)
    with pytest.raises(InvalidInput, match="'P'"):
        attempt(verb, Project("Q", project.store))
    assert contents(project.store) == before


class Elsewhere(PlacementAuthority):
    """What governs a project whose bytes belong to another place."""

    def check_write(self) -> NoReturn:
        raise ProjectMoved("not here")

    def relocated(self) -> None:
        return None


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "rename project"])
def test_none_writes_where_governance_does_not_say_so(project, verb):
    before = contents(project.store)
    with pytest.raises(ProjectMoved, match="not here"):
        attempt(verb, Project("P", project.store, placement_authority=Elsewhere()))
    assert contents(project.store) == before


@pytest.mark.parametrize("verb", [*sorted(TABLE.keys() - NOTHING_TO_DO), "pin", "tag"])
def test_none_changes_a_place_that_was_left(project, verb, tmp_path):
    place = Location.parse(project.store.uri)
    raise_fence(project, MigrationMark("m1", "leaving", place, Location.parse(str(tmp_path / "new")), NOW.isoformat()))
    before = contents(project.store)
    with pytest.raises(ProjectMoved):
        attempt(verb, Project("P", project.store))
    now = contents(project.store)
    assert {key for key in now if before.get(key) != now[key] and "/heads/" not in key} == set()


@pytest.mark.parametrize("verb", verbs(lambda verb: VERBS[verb].instead is not None))
def test_those_that_are_productions_alone_are_refused_in_an_environment(project, verb):
    before = contents(project.store)
    with pytest.raises(InvalidInput, match=r"in the environment pr-1 .*Nothing was changed\. "):
        attempt(verb, project.in_environment("pr-1"))
    assert contents(project.store) == before


@pytest.mark.parametrize("verb", verbs(lambda verb: VERBS[verb].is_unlogged))
def test_those_that_a_migration_would_not_see_are_refused_while_there_is_one(project, verb):
    place = Location.parse(project.store.uri)
    put_mark(project.data, MigrationMark("m1", "leaving", place, place, "2026-11-24T00:00:00+00:00"))
    before = contents(project.store)
    with pytest.raises(ProjectMoved):
        attempt(verb, project)
    assert contents(project.store) == before


@pytest.mark.parametrize("verb", verbs(lambda verb: VERBS[verb].cannot_be is not None))
def test_those_that_would_take_events_away_are_refused_for_a_history(project, verb):
    EventTable(project.table("events"), EventHistory()).write(ROWS)
    before = contents(project.store)
    with pytest.raises(InvalidInput, match=f"is a history of events, .*cannot be {VERBS[verb].cannot_be}"):
        attempt(verb, project, "events")
    assert contents(project.store) == before


@pytest.mark.parametrize("verb", verbs(lambda verb: VERBS[verb].strands_drafts))
def test_those_that_would_strand_drafts_are_refused_while_one_waits(project, verb):
    park(project.table("numbers"), {None: pa.table({"n": [7]})}, run=RUN)
    before = contents(project.store)
    with pytest.raises(InvalidInput, match="would leave parked drafts behind"):
        attempt(verb, project)
    assert contents(project.store) == before
