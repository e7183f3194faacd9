"""Slices that a query gave are a cache: discarded and lost ones come back byte for byte, or not at all."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.odf.queries.cached_slices import discard, rebuild
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.tables.options import TableOptions
from support.command_line import in_process
from support.derived import House
from support.transforms import at

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LATE = "SELECT event_time, id, delay FROM flights WHERE delay > 6"
COUNTS = "SELECT max(event_time) AS event_time, delay, count(*) AS n FROM flights GROUP BY delay"
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def house(spark, project):
    house = House(project)
    for rows in (((at(1), 1, "UA", 7), (at(2), 2, "AA", 9)), ((at(0), 3, "UA", 9),)):
        house.write(*rows)
        house.derive(LATE)
        house.derive(COUNTS, "counts")
    return house


def slices(house, name):
    store = house.project.table(name).store
    return {info.key: store.get(info.key) for info in store.list("data/")}


def test_a_lost_slice_is_rebuilt_byte_for_byte(spark, house):
    """One row of one row, and (`counts`) a result that is compared with what the slices before come to."""
    for name in ("late", "counts"):
        table, before = house.project.table(name), slices(house, name)
        rows = table.read()
        assert len(before) == 2
        table.store.delete(before)
        assert not verify(house.dataset(name), resolve=house.by_id).ok
        made = list(rebuild(table, house.by_id, spark))
        assert [one.size for one in made] == [len(before[one.key]) for one in made]
        assert slices(house, name) == before
        assert table.read() == rows
        assert verify(house.dataset(name), resolve=house.by_id).ok
        assert list(rebuild(table, house.by_id, spark)) == []


def test_only_what_can_be_rebuilt_is_discarded(spark, house):
    table, before = house.project.table("counts"), slices(house, "counts")
    would = discard(table, house.by_id, spark, before=LATER, apply=False)
    assert {one.key for one in would.slices} == {*before}
    assert slices(house, "counts") == before
    second = house.chain("counts")[-1][1].system_time.to_datetime()
    (gone,) = discard(table, house.by_id, spark, before=second, apply=True).slices
    assert slices(house, "counts") == {key: data for key, data in before.items() if key != gone.key}
    list(rebuild(table, house.by_id, spark))
    assert slices(house, "counts") == before
    flights = house.project.table("flights")
    lost = next(iter(slices(house, "flights")))
    flights.store.delete([lost])
    with pytest.raises((IntegrityError, ObjectNotFound)):
        discard(table, house.by_id, spark, before=LATER, apply=True)
    assert slices(house, "counts") == before


def test_what_a_pin_a_tag_or_an_environment_keeps_is_not_discarded(spark, house, tmp_path):
    """A version needs every slice up to its own, so that of the first keeps one, and that of the second all."""
    table, before = house.project.table("counts"), slices(house, "counts")
    second, first = table.history()
    (key_of_first,) = (file.key for file in table.files(first.metadata_sha).scan.files)
    assert key_of_first in before

    def kept(**protected):
        report = discard(table, house.by_id, spark, before=LATER, apply=False)
        assert {one.key for one in report.slices} == before.keys() - report.kept.keys()
        return report.kept

    house.project.pin("paper", "counts", first.metadata_sha)
    assert kept() == {key_of_first: f"version {first.short} is pinned as 'paper'"}
    where = ("--project", "flying", "--location", tmp_path)
    outcome = in_process(*where, "odf", "discard", "counts", "--before", "2100-01-01")
    assert f"  kept {key_of_first}: version {first.short} is pinned as 'paper'" in outcome.stdout
    house.project.unpin("paper")

    house.project.tag("release")
    assert kept() == dict.fromkeys(before, f"version {second.short} is what the tag 'release' names")
    house.project.drop_tag("release")

    create_environment(house.project, "pr-1")
    report = discard(table, house.by_id, spark, before=LATER, apply=True)
    assert report.slices == ()
    assert report.kept == dict.fromkeys(before, f"version {second.short} is what the environment 'pr-1' began with")
    assert house.project.in_environment("pr-1").table("counts").read() == table.read()


def test_a_pin_that_comes_while_the_runs_are_done_again_counts(spark, house):
    table, before = house.project.table("counts"), slices(house, "counts")

    def pinning(dataset_id):
        house.project.pin("paper", "counts")
        return house.by_id(dataset_id)

    report = discard(table, pinning, spark, before=LATER, apply=True)
    assert (report.slices, report.kept.keys()) == ((), before.keys())
    assert slices(house, "counts") == before


def test_who_reads_what_was_discarded_is_pointed_to_the_rebuild(spark, house):
    table = house.project.table("late")
    discard(table, house.by_id, spark, before=LATER, apply=True)
    for frame in (pa.Table, DataFrame):
        with pytest.raises(IntegrityError, match=r"is missing from .* run `dagster-versioned odf rebuild late`"):
            table.read(as_type=frame)
    list(rebuild(table, house.by_id, spark))
    assert table.read().num_rows == 3


def test_a_slice_in_other_bytes_is_neither_discarded_nor_put(spark, house):
    house.write((at(3), 4, "UA", 20))
    options = TableOptions(compression="snappy")
    table = house.project.table("late")
    house.derive(LATE, options=options)
    before = slices(house, "late")
    assert len(before) == 3
    with pytest.raises(IntegrityError, match="its file other bytes"):
        discard(table, house.by_id, spark, before=LATER, apply=True)
    assert slices(house, "late") == before
    written = f"data/{house.chain()[-1][1].event.new_data.physical_hash}"
    table.store.delete([written])
    with pytest.raises(IntegrityError, match="Nothing was put in its place"):
        list(rebuild(table, house.by_id, spark))
    assert written not in slices(house, "late")


def test_a_root_is_no_cache(spark, house):
    for attempt in (
        lambda table: list(rebuild(table, house.by_id, spark)),
        lambda table: discard(table, house.by_id, spark, before=LATER, apply=True),
    ):
        with pytest.raises(InvalidInput, match="no dataset that a query computes"):
            attempt(house.project.table("flights"))
    assert len(slices(house, "flights")) == 2


def test_the_command_line_discards_and_rebuilds(spark, house, tmp_path):
    before = slices(house, "late")
    where = ("--project", "flying", "--location", tmp_path, "--json")

    def run(*words):
        outcome = in_process(*where, "odf", *words)
        assert outcome.exit_code == 0, outcome.stderr
        return json.loads(outcome.stdout)

    assert run("discard", "late", "--before", "1d")["slices"] == []
    would = run("discard", "late", "--before", "2100-01-01")
    assert ([one["number"] for one in would["slices"]], would["applied"]) == ([3, 4], False)
    assert slices(house, "late") == before
    assert run("discard", "late", "--before", "2100-01-01", "--apply")["applied"]
    assert slices(house, "late") == {}
    rebuilt = run("rebuild", "late")
    assert [one["key"] for one in rebuilt["slices"]] == [one["key"] for one in would["slices"]]
    assert slices(house, "late") == before
