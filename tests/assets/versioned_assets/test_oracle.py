"""Heads have the rows that they would have anyway, with the fewest calls that keys allow."""

import tempfile
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned import ProjectResource, VersionedParquetIOManager, versioned_asset
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.projects.project import Project

NAMES = ("b", "c", "d")
BRANCH = "pr-1"
ABOVE = {"b": ("a",), "c": ("a", "b"), "d": ("a", "b", "c")}

graphs = st.fixed_dictionaries({name: st.sets(st.sampled_from(ABOVE[name]), min_size=1).map(sorted) for name in NAMES})
steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 2)),
        st.tuples(st.just("code"), st.sampled_from(NAMES), st.sampled_from("12")),
        st.tuples(st.just("fails"), st.sampled_from(NAMES)),
        st.just(("again",)),
        st.just(("elsewhere",)),
    ),
    min_size=2,
    max_size=6,
)


class World:
    """A project with one graph, its source and its code, as they are now; in production, or in its one branch."""

    def __init__(self, root, graph, decorator):
        self.root = root
        self.graph = graph
        self.decorator = decorator
        self.instances = {}
        self.environment = None
        self.calls = []

    def go_elsewhere(self):
        """From production to the branch, which begins when it is first gone to; or back."""
        if self.environment is None and None in self.instances and BRANCH not in self.instances:
            create_environment(Project.open("WORLD", str(self.root)), BRANCH)
        self.environment = BRANCH if self.environment is None else None

    def run(self, data, code, failing):
        """The names of the functions that were called."""

        @dg.asset(code_version="1")
        def a() -> pd.DataFrame:
            return pd.DataFrame({"value": [data]})

        self.calls.clear()
        resource = ProjectResource(name="WORLD", location=str(self.root), environment=self.environment)
        io = VersionedParquetIOManager(project=resource)
        instance = self.instances.setdefault(self.environment, dg.DagsterInstance.ephemeral())
        assets = [a, *(self._asset(name, code[name], name == failing) for name in NAMES)]
        dg.materialize(assets, instance=instance, resources={"io_manager": io}, raise_on_error=False)
        return list(self.calls)

    def _asset(self, name, code, fails):
        @self.decorator(name=name, code_version=code, ins={one: dg.AssetIn(one) for one in self.graph[name]})
        def made(**inputs) -> pd.DataFrame:
            self.calls.append(name)
            if fails:
                raise RuntimeError(name)
            total = sum(sum(frame["value"].to_pylist()) for frame in inputs.values())
            return pd.DataFrame({"value": [total % 5 + int(code)]})

        return made

    def rows(self):
        project = Project.open("WORLD", str(self.root), environment=self.environment)
        tables = {name: project.table(name) for name in NAMES}
        return {
            name: table.read(as_type=pd.DataFrame)["value"].tolist() for name, table in tables.items() if table.exists()
        }


class Oracle:
    """What has to be called, by a dictionary of keys; the branch begins with production's."""

    def __init__(self, graph):
        self.graph = graph
        self.known, self.other = {}, None

    def go_elsewhere(self):
        self.known, self.other = (dict(self.known) if self.other is None else self.other), self.known

    def run(self, data, code, failing):
        versions = {"a": ("a", data)}
        called = []
        for name in NAMES:
            if not versions.keys() >= set(self.graph[name]):
                continue  # Dagster does not start it
            key = (name, code[name], tuple(versions[one] for one in self.graph[name]))
            if key not in self.known:
                called.append(name)
                if name == failing:
                    continue
                rows = sum(versions[one][-1] for one in self.graph[name]) % 5 + int(code[name])
                self.known[key] = (*key, rows)
            versions[name] = self.known[key]
        return called


@pytest.mark.slow
@given(graph=graphs, changes=steps)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_calls_are_those_of_an_oracle_and_rows_those_of_ordinary_assets(graph, changes):
    with tempfile.TemporaryDirectory() as root:
        reusing = World(Path(root, "reusing"), graph, versioned_asset)
        ordinary = World(Path(root, "ordinary"), graph, dg.asset)
        oracle = Oracle(graph)
        data, code = 1, dict.fromkeys(NAMES, "1")
        for change in [("again",), *changes, ("again",)]:
            failing = None
            match change:
                case ("data", value):
                    data = value
                case ("code", name, version):
                    code[name] = version
                case ("fails", name):
                    failing = name
                case ("elsewhere",):
                    for one in (reusing, ordinary, oracle):
                        one.go_elsewhere()
                case _:
                    pass
            assert sorted(reusing.run(data, code, failing)) == oracle.run(data, code, failing)
            ordinary.run(data, code, failing)
            if failing is None:
                assert reusing.rows() == ordinary.rows()
