"""`why` names what was done, and nothing else: over random histories in which the cause is known."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import Project, TableOptions
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.identity.version import Code, Run
from dagster_versioned.proof.why import Explanation, why
from dagster_versioned.tables.code_details import CodeDetails
from support.crashes import foreign


class Graph:
    """A project of sources and of what is built from them, whose rows follow from rows, code and config."""

    def __init__(self, project: Project, seed: int) -> None:
        self.project = project
        self.random = random.Random(seed)
        self.sources = {f"source{number}": number for number in range(3)}
        self.code = {f"table{number}": 0 for number in range(4)}
        self.inputs = {
            f"table{number}": self.random.sample([*self.sources, *list(self.code)[:number]], self.random.randint(1, 2))
            for number in range(4)
        }
        self.config = dict.fromkeys(self.code, 0)
        for source in self.sources:
            self.write_source(source)
        self.run()

    def write_source(self, name: str) -> None:
        self.project.table(name).write(pa.table({"v": [self.sources[name]]}))

    def run(self) -> None:
        """Build every table that is not built from what is current."""
        for name, code in self.code.items():
            tables = [self.project.table(each) for each in self.inputs[name]]
            value = hash((name, code, self.config[name], *(table.read()["v"][0].as_py() for table in tables)))
            details = CodeDetails({f"shop:{name}": f"{code:064x}"})
            table = self.project.table(name)
            table.write(
                pa.table({"v": [value]}),
                parents=[entry for each in tables for entry in each.upstream()],
                run=Run(f"run-{self.random.random()}", name, 0, code=Code(f"1:{name}-{code}", details.sha)),
            )
            details.put(table.store)

    def change(self) -> tuple[str, str]:
        """Change something; returns what kind of cause it is, and of which table."""
        kind = self.random.choice(("source", "code", "other rows"))
        name = self.random.choice(list(self.sources if kind == "source" else self.code))
        if kind == "source":
            self.sources[name] += 10
            self.write_source(name)
        elif kind == "code":
            self.code[name] += 1
        else:
            self.config[name] += 1
        self.run()
        return kind, name

    def below(self, name: str) -> set[str]:
        """What is built from a table, by whatever way, and itself."""
        found = {name}
        for table, inputs in self.inputs.items():
            if found & set(inputs):
                found.add(table)
        return found


def told(found: Explanation) -> set[tuple[str, str]]:
    return {(cause.kind, cause.version.table) for cause in found.causes}


@pytest.mark.parametrize("seed", range(8))
def test_the_cause_of_each_change_is_named_in_every_table_below(project: Project, seed: int) -> None:
    graph = Graph(project, seed)
    for _ in range(4):
        kind, name = graph.change()
        for table in graph.below(name) - set(graph.sources):
            found = why(project, table)
            assert told(found) == {(kind, name)}, (table, str(found))
            (cause,) = found.causes
            assert cause.through[-1] == table
            if kind == "code":
                assert f"changed: shop:{name}" in cause.text


def test_two_causes_at_once(project: Project) -> None:
    graph = Graph(project, 0)
    graph.sources["source0"] += 1
    graph.write_source("source0")
    graph.code["table0"] += 1
    graph.inputs["table0"] = ["source0"]
    graph.run()
    graph.sources["source0"] += 1
    graph.write_source("source0")
    graph.code["table0"] += 1
    graph.run()
    assert told(why(project, "table0")) == {("source", "source0"), ("code", "table0")}


def test_a_revert_a_message_and_added_rows(project: Project) -> None:
    table = project.table("orders")
    table.write(pa.table({"v": [1]}))
    assert told(why(project, "orders")) == {("source", "orders")}
    table.write(pa.table({"v": [2]}))
    table.revert(0)
    assert told(why(project, "orders")) == {("revert", "orders")}
    table.write(pa.table({"v": [1]}), message="as agreed")
    assert "as agreed" in str(why(project, "orders"))
    table.write(pa.table({"v": [3]}), options=TableOptions(mode="append"))
    found = why(project, "orders")
    assert "rows added" in {cause.kind for cause in found.causes}
    assert "appended to: 1 inserted" in str(found)


def test_a_promotion(project: Project) -> None:
    orders = project.table("orders")
    orders.write(pa.table({"v": [1]}))
    project.table("report").write(pa.table({"v": [1]}), parents=orders.upstream(), code_version="1")
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1")
    upstream = branch.table("orders").upstream()
    branch.table("report").write(pa.table({"v": [2]}), parents=upstream, code_version="2")
    promote(project, "pr-1", dry_run=False)
    assert told(why(project, "report")) == {("promotion", "report"), ("code version", "report")}


def test_what_moved_and_is_not_to_be_found_is_said(project: Project, tmp_path: Path) -> None:
    other = Project.open("OTHER", str(tmp_path / "other"))
    for value in (1, 2):
        other.table("prices").write(pa.table({"v": [value]}))
        project.table("report").write(pa.table({"v": [value]}), parents=other.table("prices").upstream())
    found = why(project, "report")
    assert [cause.kind for cause in found.causes] == ["unknown"]
    assert "which is of the project OTHER, which was not opened" in str(found)
    assert told(why(project, "report", open_project={"OTHER": other}.__getitem__)) == {("source", "prices")}


def test_what_another_program_has_changed(tmp_path):
    table = Project.open("SHOP", str(tmp_path)).table("orders")
    foreign(table)
    found = why(Project.open("SHOP", str(tmp_path)), "orders")
    assert str(found) == "orders was changed by another program (APPEND)."
    assert str(found.version) == "orders @1"
    assert found.before is not None


def write(project, name, rows, *inputs, **described):
    parents = [each for table in inputs for each in project.table(table).upstream()]
    project.table(name).write(pa.table({"v": rows}), parents=parents, **{"code_version": "1", **described})


def test_a_parent_that_was_renamed_is_the_same_parent(tmp_path):
    project = Project.open("SHOP", str(tmp_path))
    write(project, "orders", [1])
    write(project, "report", [1], "orders")
    project.table("orders").rename("bills", dry_run=False)
    write(project, "bills", [1, 2])
    write(project, "report", [2], "bills")
    assert [str(cause) for cause in why(project, "report").causes] == [
        "bills has other rows: 2 instead of 1 (bills -> report)"
    ]


def test_another_message_of_a_parent_explains_no_other_rows(tmp_path):
    project = Project.open("SHOP", str(tmp_path))
    write(project, "orders", [1])
    write(project, "report", [1], "orders")
    write(project, "orders", [1], message="looked at")
    write(project, "report", [99], "orders")
    kinds = {(cause.kind, cause.version.table) for cause in why(project, "report").causes}
    assert kinds == {("metadata", "orders"), ("other rows", "report")}


def test_code_that_no_commit_has_is_said_to_be(tmp_path):
    project = Project.open("SHOP", str(tmp_path))
    for number in (1, 2):
        code = Code(f"1:{number:064x}", commit="a" * 40, modified=["shop/helpers.py"])
        run = Run(f"run{number}", "step", 0, code=code)
        project.table("t").write(pa.table({"v": [number]}), run=run)
    assert "(commit aaaaaaaaaaaa and what no commit has of shop/helpers.py)" in str(why(project, "t"))
