"""What is to be computed, told before it is: exactly, at most, or not at all, and never otherwise than it comes."""

import pyarrow as pa
import pytest
from conformance.metaxy.scenarios import scenario

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, PROVENANCE_BY_FIELD
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, Lineage
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.pending_work import PendingWork, pending_work
from support.crashes import append_as_another_program
from support.feature_tables import BASE, table_of
from support.feature_tables import Tables as FeatureTables
from support.stores import contents

VIDEO = Feature("raw/video", ["id"], [Field("sound", columns=["sound"]), Field("image", columns=["image"])])


def graph_of(words="1", extra=(), **options):
    features = [
        VIDEO,
        Feature("words", ["id"], [Field("text", words, [FieldDep(VIDEO, ["sound"])])], [VIDEO]),
        Feature("faces", ["id"], [Field("faces", "1", [FieldDep(VIDEO, ["image"])])], [FeatureDep(VIDEO, **options)]),
        Feature("both", ["id"], ["all"], [FeatureDep("words", select=[]), FeatureDep("faces", select=[])]),
    ]
    return FeatureGraph([*features, *extra])


class Tables(FeatureTables):
    """A project whose features are computed from what their increments say."""

    def videos(self, *rows):
        self.write_plain("raw/video", table_of(("id", "sound", "image"), *rows))

    def run(self, graph, key, compute=lambda rows: rows, samples=None):
        if samples is None:
            resolved = self.resolve(graph, key)
        else:
            resolved = FeatureTable(graph, key, self.table(key)).resolve_samples(samples)
        increment = resolved.increment
        if increment or not self.table(key).exists():
            self.write_plain(key, resolved.finish(compute(increment.changed) if increment.todo else None))
        return increment.counts

    def look(self, graph):
        before = contents(self.project.data)
        found = pending_work(self.project, graph)
        assert contents(self.project.data) == before  # nothing was written
        return {each.key: each for each in found}


@pytest.fixture
def tables(tmp_path):
    """Videos, and all that is computed from them."""
    tables = Tables(tmp_path)
    tables.videos(*BASE)
    for key in ("words", "faces", "both"):
        tables.run(graph_of(), key)
    return tables


def counts(told):
    return told.certainty, told.new, told.stale, told.orphaned, told.unchanged


def test_nothing_is_to_be_computed(tables):
    found = tables.look(graph_of())
    assert list(found) == [feature.key for feature in graph_of()]
    assert counts(found["raw/video"]) == ("unknown", 0, 0, 0, 3)
    assert {key: counts(found[key]) for key in ("words", "faces", "both")} == dict.fromkeys(
        ("words", "faces", "both"), ("exact", 0, 0, 0, 3)
    )


def test_what_changed_upstream_and_what_comes_of_that(tables):
    tables.videos((1, "A", "x"), *BASE[2:], (4, "d", "w"))
    found = tables.look(graph_of())
    assert counts(found["words"]) == ("exact", 1, 1, 1, 1)
    assert found["words"].reasons == {"text": 1}
    assert counts(found["faces"]) == ("exact", 1, 0, 1, 2)
    assert counts(found["both"]) == ("at most", 1, 1, 1, 1)
    assert found["both"].todo == 2


def test_what_a_bump_reaches(tables):
    found = tables.look(graph_of(words="2"))
    assert counts(found["words"]) == ("exact", 0, 3, 0, 0)
    assert counts(found["faces"]) == ("exact", 0, 0, 0, 3)
    assert counts(found["both"]) == ("at most", 0, 3, 0, 0)


def test_the_bound_is_not_reached_where_the_user_says_that_nothing_changed(tables):
    graph = graph_of(words="2")
    versions = tables.table("words").read(as_type=pa.Table).select(["id", DATA_VERSION_BY_FIELD])
    assert counts(tables.look(graph)["both"]) == ("at most", 0, 3, 0, 0)
    tables.run(graph, "words", lambda rows: with_versions(rows, versions))
    assert counts(tables.look(graph)["both"]) == ("exact", 0, 0, 0, 3)


def with_versions(rows, versions):
    known = {row["id"]: row[DATA_VERSION_BY_FIELD] for row in versions.to_pylist()}
    return rows.append_column(DATA_VERSION_BY_FIELD, pa.array([known[each] for each in rows["id"].to_pylist()]))


def test_below_what_never_ran(tmp_path):
    tables = Tables(tmp_path)
    found = tables.look(graph_of())
    assert found["raw/video"] == PendingWork("raw/video", "unknown", note="it was never materialized")
    assert found["words"].note == "raw/video is unknown"
    assert found["both"].note == "words is unknown"
    tables.videos(*BASE)
    found = tables.look(graph_of())
    assert counts(found["words"]) == ("exact", 3, 0, 0, 0)
    assert counts(found["both"]) == ("at most", 3, 0, 0, 0)


def test_an_upstream_that_another_program_changed_is_compared_as_it_is(tables):
    append_as_another_program(tables.table("raw/video"), tables.table("raw/video").read().slice(0, 0))
    found = tables.look(graph_of())
    assert counts(found["raw/video"]) == ("unknown", 0, 0, 0, 0)
    assert counts(found["words"]) == ("exact", 0, 0, 0, 3)


def test_filters_and_names(tables):
    """What will come of pending samples is taken to pass; what stays is filtered as ever."""
    lower = Feature(
        "lower",
        ["key"],
        ["f"],
        [FeatureDep("faces", rename={"id": "key", "image": "i"}, select=["i"], filter="i < 'z'")],
    )
    graph = graph_of(extra=[lower])
    tables.run(graph, "lower")
    assert counts(tables.look(graph)["lower"]) == ("exact", 0, 0, 0, 2)
    tables.videos((1, "a", "zzz"), *BASE[1:])
    assert counts(tables.look(graph)["faces"]) == ("exact", 0, 1, 0, 2)
    assert counts(tables.look(graph)["lower"]) == ("at most", 0, 1, 0, 1)
    tables.run(graph, "faces")
    assert counts(tables.look(graph)["lower"]) == ("exact", 0, 0, 1, 1)


def test_groups_and_parts(tables):
    chunk = Feature("chunk", ["id", "n"], ["c"], [FeatureDep("words", lineage=Lineage.expansion(["id"]))])
    total = Feature("total", ["id"], ["t"], [FeatureDep("chunk", lineage=Lineage.aggregation(["id"]))])
    graph = graph_of(extra=[chunk, total])

    def expanded(rows):
        return pa.Table.from_pylist([{**row, "n": n} for row in rows.to_pylist() for n in (0, 1)])

    def first(rows):
        return rows.group_by("id").aggregate([])

    assert tables.look(graph)["total"].note == "what comes of 3 new samples of chunk is known once it ran"
    tables.run(graph, "chunk", expanded)
    tables.run(graph, "total", first)
    assert counts(tables.look(graph)["total"]) == ("exact", 0, 0, 0, 3)
    tables.videos((1, "A", "x"), BASE[1])  # one changes, one goes
    found = tables.look(graph)
    assert counts(found["chunk"]) == ("at most", 0, 1, 1, 1)
    assert counts(found["total"]) == ("at most", 0, 1, 1, 1)
    tables.videos(*BASE, (4, "d", "w"))
    assert tables.look(graph)["total"].note == "what comes of 1 new samples of chunk is known once it ran"


def test_partitions_are_dagsters_to_say(tables):
    graph = graph_of(extra=[Feature("daily", ["id"], ["x"], ["words"]), Feature("last", ["id"], ["x"], ["daily"])])
    tables.table("daily").write_partitions({"2013-01": pa.table({"id": [1]})})
    found = tables.look(graph)
    assert (found["daily"].certainty, found["daily"].note) == ("unknown", "it has partitions")
    assert found["last"].note == "daily is unknown"


def test_what_cannot_be_compared_is_said(tables):
    graph = graph_of()
    other = Feature("both", ["id", "n"], ["all"], graph["both"].deps)
    found = tables.look(FeatureGraph([*(each for each in graph if each.key != "both"), other]))
    assert found["both"].certainty == "unknown"
    assert "has the id columns ['id'], and the feature ['id', 'n']" in found["both"].note


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_was_told_is_what_then_comes(tmp_path, seed):
    """Random graphs: whatever is exact comes so, and no bound is passed."""
    tables, told, asked = Tables(tmp_path), 0, scenario(seed)
    for step in asked["steps"]:
        graph = FeatureGraph(map(Feature.from_json, asked["graphs"][step["graph"]]))
        for key, rows in step["roots"].items():
            tables.run(graph, key, samples=pa.Table.from_pylist([named(row) for row in rows]))
        found = tables.look(graph)
        for feature in graph:
            if feature.deps:
                came = tables.run(graph, feature.key, shaped(feature))
                each = found[feature.key]
                if each.certainty == "exact":
                    assert counts(each)[1:] == (came.new, came.stale, came.orphaned, came.unchanged)
                elif each.certainty == "at most":
                    assert each.todo >= came.new + came.stale
                told += each.certainty != "unknown"
    assert told > len(asked["steps"])


def named(row):
    return {PROVENANCE_BY_FIELD if name == "versions" else name: value for name, value in row.items()}


def shaped(feature):
    """What makes rows of a feature of what its upstreams say."""
    kinds = {dep.lineage.kind for dep in feature.deps}

    def compute(rows):
        found = rows.to_pylist()
        if "expansion" in kinds:
            found = [{**row, "n": n} for row in found for n in (0, 1)]
        if "aggregation" in kinds:
            firsts = {}
            for row in sorted(found, key=lambda row: (row["id"], row.get("n", 0))):
                firsts.setdefault(row["id"], {name: value for name, value in row.items() if name not in ("n", "n1")})
            found = list(firsts.values())
        names = [name for name in (*rows.column_names, "n") if any(name in row for row in found)]
        types = dict(zip(rows.schema.names, rows.schema.types, strict=True))
        schema = pa.schema([(name, types.get(name, pa.int64())) for name in dict.fromkeys(names)])
        return pa.Table.from_pylist(found, schema)

    return compute
