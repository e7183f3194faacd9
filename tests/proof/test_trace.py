"""A trace leads from a version to exactly those that it was built from, however they were named, and back."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dagster_versioned import Project, TableOptions
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.features.rendering import render
from dagster_versioned.proof.trace import trace
from dagster_versioned.proof.trace_views import document_of, drawing_of, open_lineage_events, tree_lines
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.table import VersionedTable


def build(project: Project, name: str, value: int, *parents: str | VersionedTable, partition: str | None = None) -> str:
    """Write a table of one row from the heads of others; returns the version's SHA."""
    tables = [project.table(each) if isinstance(each, str) else each for each in parents]
    upstream = [entry for each in tables for entry in each.upstream()]
    written = project.table(name).write(pa.table({"v": [value]}), parents=upstream, partition=partition)
    return str(written.version.metadata_sha)


def test_exact_versions_and_not_heads(project: Project) -> None:
    first = build(project, "orders", 1)
    sales = build(project, "sales", 1, "orders")
    report = build(project, "report", 1, "sales", "orders")
    build(project, "orders", 2)  # which nothing was built from
    found = trace(project, "report")
    assert found.root.version == report
    assert {name.table: name.version for name in found.versions if name.table == "orders"} == {"orders": first}
    assert [name.table for name in found.versions] == ["report", "orders", "sales"]
    lines = list(tree_lines(found))
    assert [line.partition("  @")[0] for line in lines] == [
        f"SHOP.report {report[:8]}",
        f"├─ SHOP.orders {first[:8]}",
        f"└─ SHOP.sales {sales[:8]}",
        f"   └─ SHOP.orders {first[:8]}",
    ]


def test_down_to_what_is_kept(project: Project) -> None:
    build(project, "orders", 1)
    sales = build(project, "sales", 1, "orders")
    build(project, "report", 1, "sales")
    build(project, "orders", 2)
    found = trace(project, "orders", 0, down=True)
    assert [name.table for name in found.versions] == ["orders", "sales", "report"]
    assert trace(project, "orders", down=True).versions.keys() == {trace(project, "orders").root}
    assert trace(project, "sales", sales, down=True).root.version == sales


def test_a_partition_and_the_whole(project: Project) -> None:
    build(project, "orders", 1)
    for day in ("1", "2"):
        build(project, "daily", int(day), "orders", partition=day)
    build(project, "report", 3, "daily")
    found = trace(project, "report")
    daily = next(version for name, version in found.versions.items() if name.table == "daily")
    assert (daily.partitions, daily.rows) == (2, 2)
    assert [name.table for name in daily.parents] == ["orders"]
    assert trace(project, "daily", partition="2").root.partition == "2"


def test_rows_that_were_added_lead_to_those_before(project: Project) -> None:
    table = project.table("log")
    for number in range(5):
        table.write(pa.table({"v": [number]}), options=TableOptions(mode="append"))
    found = trace(project, "log")
    assert len(found.versions) == 5
    lines = list(tree_lines(found))
    assert len(lines) == 2
    assert "onto 4 versions, from" in lines[1]


def test_a_renamed_table_and_a_renamed_project_are_followed(project: Project) -> None:
    first = build(project, "orders", 1)
    build(project, "report", 1, "orders")
    project.table("orders").rename("purchases")
    found = trace(project, "report")
    assert not found.gaps
    assert {name.version for name in found.versions} >= {first}
    renamed = project.rename("STORE")
    assert not trace(renamed, "report").gaps


def test_what_cannot_be_read_is_a_gap_and_the_rest_is_shown(project: Project, tmp_path: Path) -> None:
    other = Project.open("OTHER", str(tmp_path / "other"))
    build(other, "prices", 1)
    build(project, "orders", 1)
    build(project, "report", 1, "orders", other.table("prices"))
    (gap,) = trace(project, "report").gaps
    assert gap.gap == "is of the project OTHER, which was not opened"
    assert not trace(project, "report", open_project={"OTHER": other}.__getitem__).gaps
    assert "which was not opened" in "\n".join(tree_lines(trace(project, "report")))


def test_expired_rows_are_a_gap(project: Project) -> None:
    build(project, "orders", 1)
    build(project, "report", 1, "orders")
    build(project, "orders", 2)
    build(project, "report", 2, "orders")
    for table in ("report", "orders"):
        project.table(table).expire(keep_last=1, dry_run=False)
    found = trace(project, "report", 0)
    assert [(gap.name.table, gap.gap) for gap in found.gaps] == [
        ("report", "its rows are not kept (expire)"),
        ("orders", "its rows are not kept (expire)"),
    ]
    assert [name.table for name in trace(project, "orders", down=True).versions] == ["orders", "report"]


def test_purged_versions_are_gaps_and_those_of_a_dropped_table_none_while_they_are_kept(project: Project) -> None:
    for value in (1, 2):
        build(project, "orders", value)
        build(project, "report", value, "orders")
    orders = project.table("orders")
    orders.purge([0], why="asked for", dry_run=False)
    assert [(gap.name.table, gap.gap) for gap in trace(project, "report", 0).gaps] == [
        ("orders", "its rows are not kept (purge)")
    ]
    orders.drop(dry_run=False)
    found = trace(project, "report")
    assert [name.table for name in found.versions] == ["report", "orders"]
    assert found.gaps == []


def test_a_table_of_another_program_is_a_gap(project: Project, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "theirs", pa.table({"v": [1]}))
    theirs = ExternalTable(str(tmp_path / "theirs")).upstream()
    project.table("report").write(pa.table({"v": [1]}), parents=theirs)
    (gap,) = trace(project, "report").gaps
    assert gap.gap == "is of a Delta table that another program writes"


@pytest.mark.slow
def test_two_thousand_versions_lead_to_the_first(project: Project) -> None:
    """More than functions call each other in Python; the benchmark has ten thousand."""
    for number in range(2_000):
        build(project, f"t{number % 2}", number, *([f"t{(number + 1) % 2}"] if number else []))
    found = trace(project, "t1")
    assert (len(found.versions), found.gaps) == (2_000, [])
    assert len(list(tree_lines(found))) == 2_000


def test_an_environment_leads_to_what_it_began_with(project: Project) -> None:
    first = build(project, "orders", 1)
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1")
    build(branch, "report", 1, "orders")
    found = trace(branch, "report")
    assert not found.gaps
    assert {name.version: name.environment for name in found.versions}[first] is None
    assert found.root.environment == "pr-1"


def test_other_notations(project: Project) -> None:
    build(project, "orders", 1)
    build(project, "report", 1, "orders")
    found = trace(project, "report")
    assert render(drawing_of(found), "mermaid").count("-->") == 1
    document = document_of(found)
    assert [each["leads_to"] for each in document["versions"]] == [[1], []]
    events = list(open_lineage_events(found))
    assert [event["inputs"] == [] for event in events] == [False, True]
    assert events == list(open_lineage_events(found))


def test_a_version_that_was_committed_again_is_the_commit_that_was_read(tmp_path):
    project = Project.open("SHOP", str(tmp_path))
    orders, report = project.table("orders"), project.table("report")
    orders.write(pa.table({"v": [1]}))
    report.write(pa.table({"v": [1]}), parents=orders.upstream())
    orders.write(pa.table({"v": [2]}))
    orders.revert("@0")  # the same version once more, younger than what was built from it
    found = trace(project, "report")
    assert [(each.name.table, each.log_version) for each in found.versions.values()] == [("report", 0), ("orders", 0)]
    report.revert("@0")
    down = trace(project, "orders", "@0", down=True)
    assert [len(children) for children in down.edges.values()] == [1, 0]


def test_what_was_built_is_found_after_a_rename_and_in_an_environment(tmp_path):
    project = Project.open("SHOP", str(tmp_path))
    orders, report = project.table("orders"), project.table("report")
    orders.write(pa.table({"v": [1]}))
    report.write(pa.table({"v": [1]}), parents=orders.upstream())
    orders.rename("bills", dry_run=False)
    assert {each.table for each in trace(project, "bills", "@0", down=True).versions} == {"bills", "report"}
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1")
    branch.table("bills").write(pa.table({"v": [2]}))
    branch.table("report").write(pa.table({"v": [2]}), parents=branch.table("bills").upstream())
    assert {each.table for each in trace(branch, "bills", down=True).versions} == {"bills", "report"}
