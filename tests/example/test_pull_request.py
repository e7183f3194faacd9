"""The whole way of a pull request, by git, two Dagsters and a browser: what a branch computed becomes production's."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: the extra screenshots, or tests")

from support.dagster_dev import DagsterDev, wait_for
from support.pages import Pages, lacking, opened_browser
from support.pull_request import LOCATION, Events, Shop, Side, open_shop, propose

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

PR = "pr-142"
NEXT = "pr-143"
BELOW_REVENUE = ["revenue_by_country", "revenue_by_month"]
WAITS = f"promotion of {PR}"
UNSYNCED = "Unsynced ("


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    with opened_browser() as found:
        yield found


def test_what_pull_requests_computed_becomes_productions_and_is_computed_once(tmp_path: Path, pages: Pages) -> None:
    shop = open_shop(tmp_path)
    production = shop.side("main")
    with production.dagster_dev() as dagster, production.instance() as events:
        production.materialize("*")
        since = time.time()
        dagster.wait_for(lambda: events.is_settled(since), "a tick that finds all 13 assets current")
        assert len(production.calls()) == len(set(shop.project().tables())) == 13
        assert events.runs() == []

        branch = propose(shop, PR)
        planned_and_computed(branch, pages)
        assert production.calls() == []
        assert events.runs() == []

        promoted_and_merged(production, dagster, events, branch, pages)
        production.cli("env", "drop", PR, "--apply")

        what_production_moved_on_from_is_left_to_it(shop, production, dagster, events)


def planned_and_computed(branch: Side, pages: Pages) -> None:
    """The plan names 3 of 13; the branch's own sensor computes these, and its UI shows where."""
    planned = branch.cli("plan", "-m", LOCATION, "--environment", PR, "--format", "markdown")
    assert f"### Plan for `{PR}`: 3 of its assets would run, or may" in planned
    assert "| revenue | runs |  | code version 1 -\\> 2 | keep\\_current |" in planned
    assert "10 tables and partitions are current." in planned
    assert branch.calls() == []

    began = time.time()
    with branch.dagster_dev() as dagster, branch.instance() as events:
        dagster.wait_for(lambda: events.is_settled(began), "a tick of the branch that finds everything current")
        assert branch.calls() == ["revenue", *BELOW_REVENUE]
        runs = events.runs()
        assert sorted(run.tags["dagster_versioned/target"] for run in runs) == ["revenue", *BELOW_REVENUE]
        assert {run.tags["dagster_versioned/environment"] for run in runs} == {PR}

        pages.open(f"{dagster.url}/assets/revenue?view=events")
        pages.read(f"dagster_versioned/environment {PR}", f"dagster/table_name SHOP@{PR}.revenue")
        pages.open(f"{dagster.url}/runs/{runs[-1].run_id}")
        pages.click("//button[.='View tags and config']")
        pages.read(f"dagster_versioned/environment: {PR}", "dagster_versioned/why: code version 1")

    compared = branch.cli("env", "diff", PR, "--key", "revenue=order", "--format", "markdown")
    assert f"### Data of `{PR}`: 3 tables differ, 10 do not" in compared
    assert "| revenue | 3 -\\> 3 | 3 changed |" in compared


def promoted_and_merged(production: Side, dagster: DagsterDev, events: Events, branch: Side, pages: Pages) -> None:
    """The merge computes nothing: production has the branch's versions, and its UI shows them as up to date."""
    made = heads(branch, "revenue", *BELOW_REVENUE)
    assert not set(made) & set(heads(production, "revenue", *BELOW_REVENUE))
    production.cli("promote", PR, "--prepare", "--apply")
    production.merge(PR)
    dagster.reload(LOCATION)
    deployed = time.time()
    dagster.wait_for(lambda: WAITS in "".join(events.ticks(deployed)), "a tick that waits for the promotion")
    pages.open(f"{dagster.url}/assets/revenue?view=events")
    pages.read(UNSYNCED)
    production.cli("promote", PR, "--commit", "-m", LOCATION, "--apply", "--instance")
    wait_for(lambda: UNSYNCED not in pages.text, "the open page of revenue to show it as in sync")
    since = time.time()
    dagster.wait_for(lambda: events.is_settled(since, 2), "two ticks after the merge that find everything current")
    assert heads(production, "revenue", *BELOW_REVENUE) == made
    assert (events.runs(), production.calls()) == ([], [])
    for name in ("revenue", "revenue_by_month"):
        pages.open(f"{dagster.url}/assets/{name}?view=events")
        pages.read(f"dagster_versioned/promoted_from {PR}", f"dagster/table_name SHOP.{name}")
    assert statuses(dagster) == {"FRESH"}


def what_production_moved_on_from_is_left_to_it(
    shop: Shop, production: Side, dagster: DagsterDev, events: Events
) -> None:
    """What is built from what production still has is promoted; its sensor computes the rest, and only that."""
    branch = shop.side(NEXT)
    branch.change_code("revenue_by_month", "1", "2")
    branch.change('lines["total"] * lines["rate"]', '(lines["total"] * lines["rate"]).round(2)')
    branch.change_code("loyalty", "1", "2")
    branch.change('how="left"', 'how="inner"')
    branch.push("Cents, and customers who ordered")
    branch.cli("env", "create", NEXT)
    branch.materialize("revenue_by_month,loyalty*")
    assert branch.calls() == ["best_customers", "loyalty", "revenue_by_month"]
    made = heads(branch, "best_customers", "loyalty")

    shop.receive("rates", "currency,rate\nEUR,1.0\nUSD,0.75\n")
    production.materialize("rates")
    since = time.time()
    dagster.wait_for(lambda: events.is_settled(since), "production to have built what is below the new rates")
    assert production.calls() == ["rates", "revenue_by_month"]

    before = len(events.runs())
    production.cli("promote", NEXT, "--prepare", "--apply", ends=1)
    production.merge(NEXT)
    dagster.reload(LOCATION)
    promoted = production.cli("promote", NEXT, "--commit", "-m", LOCATION, "--apply", "--instance", ends=1)
    assert f"2 versions of {NEXT} became production's, 1 are left to it." in promoted
    left = time.time()
    dagster.wait_for(lambda: events.is_settled(left), "production to have built what was left to it")
    assert production.calls() == ["revenue_by_month"]
    assert [run.tags["dagster_versioned/target"] for run in events.runs()[:-before]] == ["revenue_by_month"]
    assert heads(production, "best_customers", "loyalty") == made
    assert statuses(dagster) == {"FRESH"}


def heads(side: Side, *names: str) -> list[str]:
    """The versions that are current."""
    return [str(side.project().table(name).version().metadata_sha) for name in names]


def statuses(dagster: DagsterDev) -> set[str]:
    """What the UI says of all assets."""
    return {node["staleStatus"] for node in dagster.query("{ assetNodes { staleStatus } }")["assetNodes"]}
