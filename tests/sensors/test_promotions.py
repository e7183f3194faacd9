"""The version sensor while a promotion is open: what is coming is waited for, and nothing is lost."""

from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import ProjectResource, VersionedParquetIOManager, build_version_sensor, version_changed
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.open_promotion import abandon_promotion
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.promotion_document import PROMOTION_KEY, read_promotion
from dagster_versioned.projects.project import Project
from dagster_versioned.sensors.forecast import forecast
from dagster_versioned.storage import LocalStore
from support.hooked_store import HookedStore

ALL_STALE = {("middle", None), ("daily", "a"), ("daily", "b")}
"""What is requested first where the code of all but the last asset is another one."""


def rows(number):
    return pa.table({"n": [number]})


def build(project, table, number, *upstreams, code="1", **given):
    parents = [parent for one in upstreams for parent in project.table(one).upstream()]
    return project.table(table).write(rows(number), parents=parents, code_version=code, **given)


class Production:
    """``raw``, ``middle`` from it, ``top`` from that, ``daily`` by partition from raw, ``below`` from all of it."""

    def __init__(self, location, instance):
        self.location = str(location)
        self.project = Project.open("NYC", self.location)
        self.instance = instance
        self.project.table("raw").write(rows(1))
        build(self.project, "middle", 1, "raw")
        build(self.project, "top", 1, "middle")
        for key in "ab":
            build(self.project, "daily", 1, "raw", partition=key)
        build(self.project, "below", 1, "top", "daily")
        create_environment(self.project, "pr")
        self.branch = self.project.in_environment("pr")
        build(self.branch, "middle", 2, "raw", code="2")
        build(self.branch, "top", 2, "middle", code="2")
        for key in "ab":
            build(self.branch, "daily", 2, "raw", code="2", partition=key)

    def deploy(self, code, *, environment=None, condition=None):
        def asset(name, *upstreams, code="1", partitions=None):
            def compute():
                raise NotImplementedError

            whole = dg.AllPartitionMapping()
            deps = [dg.AssetDep(one, partition_mapping=whole if one == "daily" else None) for one in upstreams]
            return dg.asset(
                name=name, deps=deps, code_version=code, partitions_def=partitions, automation_condition=condition
            )(compute)

        assets = [
            asset("raw", code=None),
            asset("middle", "raw", code=code),
            asset("top", "middle", code=code),
            asset("daily", "raw", code=code, partitions=dg.StaticPartitionsDefinition(["a", "b"])),
            asset("below", "top", "daily"),
        ]
        resource = ProjectResource(name="NYC", location=self.location, environment=environment)
        manager = VersionedParquetIOManager(project=resource)
        sensors = [build_version_sensor("keep", dg.AssetSelection.all(), on_code_version=True)]
        self.definitions = dg.Definitions(assets, sensors=sensors, resources={"io_manager": manager})

    def look(self, cursor=None):
        sensor = self.definitions.get_repository_def().get_sensor_def("keep")
        context = dg.build_sensor_context(instance=self.instance, definitions=self.definitions, cursor=cursor)
        with context as opened:
            return sensor.evaluate_tick(opened)

    def asked(self):
        found = self.look().run_requests or ()
        return {(one.asset_selection[0].to_user_string(), one.partition_key) for one in found}

    def prepare(self):
        return promote(self.project, "pr", dry_run=False, half="prepare")

    def commit(self, project=None):
        return promote(project or self.project, "pr", dry_run=False, half="commit")

    def an_hour_later(self):
        known = read_promotion(self.project.data)
        before = (known.renewed_at - timedelta(minutes=61)).isoformat()
        self.project.data.put(PROMOTION_KEY, replace(known, renewed=before).to_bytes())


@pytest.fixture
def production(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Production(tmp_path / "lake", instance)


def test_no_run_from_the_first_half_to_the_end_whenever_the_code_arrives(production, tmp_path):
    production.deploy("1")
    assert production.asked() == set()
    production.prepare()
    assert production.asked() == set()
    production.deploy("2")
    assert production.asked() == set()
    assert (
        "4 being built by a run in progress, parked, or promoted: daily[a] (promotion of pr)"
        in production.look().skip_message
    )
    seen = []

    def between():
        for code in ("1", "2"):
            production.deploy(code)
            seen.append(production.asked())

    store = LocalStore(tmp_path / "lake")
    for table in ("daily", "middle", "top"):
        store = HookedStore(store, "put", f"heads/{table}.json", between)
    for table in ("middle", "top"):
        store = HookedStore(store, "put_if_absent", f"{table}/_delta_log/00000000000000000001.json", between)
    assert not production.commit(Project("NYC", store)).left
    assert len(seen) >= 4
    assert all(one == set() for one in seen)
    production.deploy("2")
    # What is below, and was not in the environment, is stale by what was promoted: no more, no less.
    assert production.asked() == {("below", None)}


def test_what_reads_a_version_that_is_coming_waits(production):
    production.project.table("raw").write(rows(5))  # all below is stale
    production.deploy("1")
    assert production.asked() == {("middle", None), ("daily", "a"), ("daily", "b")}
    build(production.project, "middle", 9, "raw")
    build(production.project, "daily", 9, "raw", partition="a")
    create_environment(production.project, "pr-2")
    branch = production.project.in_environment("pr-2")
    build(branch, "middle", 7, "raw", code="2")
    promote(production.project, "pr-2", dry_run=False, half="prepare")
    # A partition that is not in it is asked for; top reads middle, which is about to be another one.
    assert production.asked() == {("daily", "b")}
    abandon_promotion(production.project, "pr-2", dry_run=False)
    assert production.asked() == {("daily", "b"), ("top", None)}


def test_what_is_left_is_requested_when_it_has_ended(production):
    production.deploy("2")
    production.prepare()
    build(production.project, "top", 9, "middle", code="1")
    assert production.asked() == set()
    assert [str(one.table) for one in production.commit().left] == ["top"]
    assert production.asked() == {("top", None)}


def test_a_dead_one_is_waited_for_no_longer(production):
    production.deploy("2")
    production.prepare()
    assert production.asked() == set()
    production.an_hour_later()
    assert production.asked() == ALL_STALE


def test_an_abandoned_one_neither(production):
    production.deploy("2")
    production.prepare()
    abandon_promotion(production.project, "pr", dry_run=False)
    assert production.asked() == ALL_STALE


def test_what_is_settled_is_settled_by_heads_alone(production):
    production.deploy("2")
    production.prepare()
    found = production.look()
    assert "settled" not in found.cursor
    promote(production.project, "pr", dry_run=False)
    build(production.project, "below", 2, "top", "daily")
    cursor = production.look(found.cursor).cursor
    assert "settled" in cursor
    assert "All are built from current versions" in production.look(cursor).skip_message
    production.deploy("3")
    assert {one.asset_selection[0].to_user_string() for one in production.look(cursor).run_requests} == {
        "middle",
        "daily",
    }


def test_a_damaged_document_is_named_and_stops_nothing(production):
    production.deploy("2")
    production.project.data.put(PROMOTION_KEY, b'{"cells": "..."}')
    assert production.asked() == ALL_STALE
    production.project.table("middle").revert("@0", hold=True, why="a dispute")
    production.project.table("top").revert("@0", hold=True, why="a dispute")
    for key in "ab":
        production.project.table("daily").revert(
            "@0" if key == "a" else "@1", partition=key, hold=True, why="a dispute"
        )
    assert production.asked() == set()
    assert ".metadata/promotion.json of" in production.look().skip_message


def test_one_that_ends_between_heads_and_its_document_is_seen(production, tmp_path, monkeypatch):
    """A tick reads heads; then all is committed and the promotion ends; then the tick looks for the promotion."""
    production.deploy("2")
    production.prepare()
    done = []

    def at_once(self, key):
        if key == PROMOTION_KEY and not done:
            done.append(key)
            production.commit()
        return get(self, key)

    get = LocalStore.get
    monkeypatch.setattr(LocalStore, "get", at_once)
    assert production.asked() == {("below", None)}
    assert done


def test_in_an_environment_none_counts(production):
    production.prepare()
    production.branch.data.put(PROMOTION_KEY, production.project.data.get(PROMOTION_KEY))
    production.deploy("3", environment="pr")
    assert production.asked() == ALL_STALE


def test_a_plan_names_it(production):
    production.deploy("2")
    production.prepare()
    found = {one.asset: one for one in forecast([production.definitions.get_repository_def()]).cells}
    assert (found["middle"].what, found["middle"].why) == ("waits", "code version 1 -> 2; promotion of pr is under way")
    assert found["below"].what in ("waits", "may run")


def test_a_condition_waits_as_a_sensor_does(production):
    production.deploy("2", condition=version_changed(on_code_version=True))
    production.prepare()

    def wanted():
        result = dg.evaluate_automation_conditions(production.definitions, instance=production.instance)
        return {one.key.to_user_string() for one in result.results if not one.true_subset.is_empty}

    assert wanted() == set()
    abandon_promotion(production.project, "pr", dry_run=False)
    assert "middle" in wanted()


class TestCosts:
    @pytest.fixture
    def reads(self, monkeypatch):
        found = []
        get = LocalStore.get

        def noted(self, key):
            found.append(key)
            return get(self, key)

        monkeypatch.setattr(LocalStore, "get", noted)
        return found

    def test_one_read_a_tick_where_something_is_stale_and_none_where_nothing_is(self, production, reads):
        production.deploy("1")
        production.look()
        assert PROMOTION_KEY not in reads
        production.prepare()
        production.deploy("2")
        reads.clear()
        production.look()
        assert reads.count(PROMOTION_KEY) == 1
