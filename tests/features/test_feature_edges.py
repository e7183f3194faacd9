"""Features at their edges: nothing there, half done, other types, nulls, odd names, and what is said beside rows."""

import pyarrow as pa
import pytest

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, SYSTEM_COLUMNS, SampleHash
from dagster_versioned.errors import EmptyTable, InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, FieldsMapping, Lineage
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.pending_work import pending_work
from dagster_versioned.tables.options import TableOptions
from support.feature_tables import Tables, counted

ALLOWED = TableOptions(allow_empty=True)


def ids(rows):
    return rows.select(["id"])


def root(key="root", **columns):
    return Feature(key, ["id"], [Field(name, columns=of) for name, of in (columns or {"a": ["x"]}).items()])


def below(key="below", *deps, ids=("id",)):
    return Feature(key, ids, ["a"], deps or ["root"])


@pytest.fixture
def chain():
    return FeatureGraph([root(), below()])


def test_what_a_root_says_of_its_samples_beside_their_columns_makes_them_stale(either: Tables):
    graph = FeatureGraph([root(a=["path"]), below()])

    def samples(version):
        return pa.table({"id": [1, 2], "path": ["/x", "/y"], DATA_VERSION_BY_FIELD: [{"a": version}, {"a": "same"}]})

    either.root(graph, "root", samples("h1"))
    either.step(graph, "below", ids)
    assert counted(either.root(graph, "root", samples("h1"))[1]) == (0, 0, 0, 2)
    result, increment = either.root(graph, "root", samples("h2"))
    assert (result.change, counted(increment)) == ("full", (0, 1, 0, 1))
    stored = {row["id"]: row[DATA_VERSION_BY_FIELD] for row in either.table("root").read().to_pylist()}
    assert stored == {1: {"a": "h2"}, 2: {"a": "same"}}
    with either.resolve(graph, "below") as resolved:
        assert counted(resolved.increment) == (0, 1, 0, 1)


def in_pieces(tables: Tables, graph, key, size, stop=None, **options):
    """Compute a feature in chunks, and die after some of them; which samples it was called for."""
    called = []
    with tables.resolve(graph, key, **options) as resolved:
        after = None
        for number, part in enumerate(resolved.increment.chunks(size)):
            if number == stop:
                break
            rows = tables.arrow(part.changed) if part.todo else None
            called.append(rows["id"].to_pylist() if rows is not None else [])
            update = resolved.finish(None if rows is None else ids(rows), part, after=after)
            after = tables.table(key).write(update).version
    return called


def test_what_was_to_be_computed_again_as_a_whole_is_so_after_a_crash(tables, chain):
    tables.write_plain("root", pa.table({"id": [1, 2, 3, 4, 5], "x": [1, 2, 3, 4, 5]}))
    in_pieces(tables, chain, "below", 2)
    assert in_pieces(tables, chain, "below", 2, stop=1, full=True) == [[1, 2]]
    record = tables.record("below")
    assert record is not None
    assert (record.left, record.full) == (3, True)
    assert in_pieces(tables, chain, "below", 2) == [[1, 2], [3, 4], [5]]
    record = tables.record("below")
    assert record is not None
    assert (record.left, record.full) == (0, False)
    assert in_pieces(tables, chain, "below", 2) == [[]]


def test_what_was_left_of_an_increment_is_all_that_is_computed_after_a_crash(tables, chain):
    tables.write_plain("root", pa.table({"id": [1, 2, 3, 4, 5], "x": [1, 2, 3, 4, 5]}))
    assert in_pieces(tables, chain, "below", 2, stop=1) == [[1, 2]]
    assert in_pieces(tables, chain, "below", 2) == [[3, 4], [5]]


def test_groups_without_any_version_are_one_on_both_engines(tmp_path, either: Tables):
    """Where some partitions of an upstream lack a field; on Spark, as Arrow wrote it."""
    graph = FeatureGraph(
        [
            Feature("up", ["id"], [Field("a", columns=["x"]), Field("b", columns=["x"])]),
            Feature("group", ["g"], ["a"], [FeatureDep("up", lineage=Lineage.aggregation(["g"]))]),
        ]
    )
    versions = pa.array([{"a": "v", "b": None}, {"a": "w", "b": None}], pa.struct({"a": pa.string(), "b": pa.string()}))
    up = pa.table({"id": [1, 2], "g": ["k", "k"], "x": [1, 2], DATA_VERSION_BY_FIELD: versions})
    with_arrow = Tables(tmp_path)
    with_arrow.write_plain("up", up)
    with_arrow.step(graph, "group", lambda rows: rows.select(["g"]).group_by("g").aggregate([]))
    with either.resolve(graph, "group") as resolved:
        assert counted(resolved.increment) == (0, 0, 0, 1)
    other = Tables(tmp_path / "other")
    other.write_plain("up", up)
    with other.resolve(graph, "group", how=SampleHash("xxh32", 8)) as resolved:
        assert counted(resolved.increment) == (1, 0, 0, 0)


def test_upstreams_may_be_filtered_by_columns_of_the_same_name(either: Tables):
    def dep(key, name, select):
        return FeatureDep(key, filter=f"{name} = 'ok'", select=[select])

    merged = Feature(
        "merged",
        ["id"],
        [Field("r", deps=[FieldDep("a"), FieldDep("b")])],
        [dep("a", "status", "p"), dep("b", "Status", "q")],
    )
    graph = FeatureGraph([root("a", p=["p"]), root("b", q=["q"]), merged])
    either.write_plain("a", pa.table({"id": [1, 2], "p": [1, 2], "status": ["ok", "no"]}))
    either.write_plain("b", pa.table({"id": [1, 2], "q": [3, 4], "Status": ["ok", "ok"]}))
    either.step(graph, "merged", lambda rows: rows.select(["id", "p", "q"]))
    assert either.rows("merged") == {1: {"id": 1, "p": 1, "q": 3}}


def test_columns_that_differ_in_case_alone_are_refused_by_name(tables):
    merged = Feature("merged", ["id"], [Field("r", deps=[FieldDep("a"), FieldDep("b")])], ["a", "b"])
    graph = FeatureGraph([root("a", p=["p"]), root("b", q=["P"]), merged])
    tables.write_plain("a", pa.table({"id": [1], "p": [1]}))
    tables.write_plain("b", pa.table({"id": [1], "P": [1]}))
    with pytest.raises(InvalidInput, match="gets the column 'P' from 'a' and from 'b'"):
        tables.resolve(graph, "merged")


def test_ids_of_another_type_need_all_to_be_computed_again(either: Tables, chain):
    either.root(chain, "root", pa.table({"id": [1], "x": [1]}))
    either.step(chain, "below", ids)
    texts = pa.table({"id": ["1"], "x": [1]})
    with pytest.raises(InvalidInput, match="cannot be matched by 'id'"):
        either.root(chain, "root", texts)
    either.root(chain, "root", texts, full=True)
    with pytest.raises(InvalidInput, match="cannot be matched by 'id'"):
        either.step(chain, "below", ids)
    result, increment = either.step(chain, "below", ids, full=True)
    assert (result.change, increment.counts.new) == ("full", 1)
    assert list(either.rows("below")) == ["1"]


def test_a_feature_may_begin_without_samples_where_that_is_allowed(either: Tables, chain):
    nothing = pa.table({"id": pa.array([], pa.int64()), "x": pa.array([], pa.int64())})
    samples = either.spark.createDataFrame(nothing) if either.spark else nothing
    with FeatureTable(chain, "root", either.table("root")).resolve_samples(samples) as resolved:
        with pytest.raises(EmptyTable, match="'root' has no samples: its function returned none"):
            resolved.finish()
        either.table("root").write(resolved.finish(allow_empty=True), options=ALLOWED)
    with either.resolve(chain, "below") as resolved:
        with pytest.raises(EmptyTable, match="its upstreams have none"):
            resolved.finish()
        either.table("below").write(resolved.finish(allow_empty=True), options=ALLOWED)
    assert either.table("below").read().column_names == ["id", *SYSTEM_COLUMNS]
    either.root(chain, "root", pa.table({"id": [1], "x": [1]}))
    result, increment = either.step(chain, "below", lambda rows: rows.select(["id", "x"]))
    assert (result.change, counted(increment)) == ("full", (1, 0, 0, 0))
    assert either.rows("below") == {1: {"id": 1, "x": 1}}


def test_nothing_with_ids_of_other_names_takes_the_place_of_all(tables, chain):
    tables.write_plain("root", pa.table({"id": [1], "x": [1]}))
    tables.step(chain, "below", ids)
    renamed = FeatureGraph([Feature("root", ["key"], [Field("a", columns=["x"])]), below(ids=["key"])])
    tables.write_plain("root", pa.table({"key": pa.array([], pa.int64()), "x": pa.array([], pa.int64())}))
    tables.step(renamed, "below", lambda rows: pytest.fail("there is nothing"), full=True)
    assert tables.table("below").read().column_names == ["key", *SYSTEM_COLUMNS]
    assert tables.table("below").read().num_rows == 0


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [".id", ".", "[0]", "a.b", "a`b", 'a"b', "é"])
def test_ids_may_have_any_name(either: Tables, name):
    grouped = FeatureDep("root", lineage=Lineage.aggregation([name]))
    graph = FeatureGraph([root_of(name), below(ids=[name]), Feature("group", [name], ["a"], [grouped])])
    either.write_plain("root", pa.table({name: [2, 1, 3], "x": [1, 2, 3]}))
    for key in ("below", "group"):
        either.step(graph, key, lambda rows: rows.select([name]))
        assert either.table(key).read().num_rows == 3
    either.write_plain("root", pa.table({name: [2, 1], "x": [1, 5]}))
    for key in ("below", "group"):
        with either.resolve(graph, key) as resolved:
            assert counted(resolved.increment) == (0, 1, 1, 1)


def root_of(name):
    return Feature("root", [name], [Field("a", columns=["x"])])


@pytest.mark.parametrize(
    "define",
    [
        lambda: Feature("f", "id", ["a"]),
        lambda: Feature("f", ["id"], "gain"),
        lambda: Feature("f", ["id"], ["a"], "root"),
        lambda: Field("a", columns="x"),
        lambda: FieldDep("root", "times"),
        lambda: FeatureDep("root", select="x"),
        lambda: Lineage.aggregation("id"),
        lambda: Lineage.expansion("id"),
        lambda: FieldsMapping.specific({"a": "times"}),
    ],
    ids=["ids", "fields", "deps", "columns", "field dep", "select", "aggregation", "expansion", "mapping"],
)
def test_a_text_is_no_list_of_names(define):
    with pytest.raises(InvalidInput, match=r"a text\. Nothing was read or written; make it a list: \['"):
        define()


def test_a_mapping_names_fields_that_there_are():
    dep = FeatureDep("root", fields_mapping=FieldsMapping.specific({"c": ["tiems"]}))
    with pytest.raises(InvalidInput, match=r"depends on the fields \['tiems'\] of 'root', which has \['a'\]"):
        FeatureGraph([root(), root("other"), Feature("f", ["id"], ["c"], [dep, "other"])])


def test_the_order_of_a_fields_columns_means_nothing(tables):
    one, other = (FeatureGraph([root(a=list(columns)), below()]) for columns in ("xy", "yx"))
    samples = pa.table({"id": [1], "x": [1], "y": [2]})
    tables.root(one, "root", samples)
    assert counted(tables.root(other, "root", samples)[1]) == (0, 0, 0, 1)


def test_a_plan_claims_no_bound_where_stale_samples_may_come_to_others(tables):
    """A stale sample may come to other samples, and may move to another group."""
    words = Feature("words", ["id", "n"], ["a"], [FeatureDep("root", lineage=Lineage.expansion(["id"]))])
    letters = Feature("letters", ["id", "n"], ["a"], ["words"])
    graph = FeatureGraph([root(), words, letters])
    tables.write_plain("root", pa.table({"id": [1], "x": [1]}))

    def two(rows):
        return pa.table({"id": [*rows["id"].to_pylist()] * 2, "n": [*range(2)] * len(rows)})

    tables.step(graph, "words", two)
    tables.step(graph, "letters", lambda rows: rows.select(["id", "n"]))
    tables.write_plain("root", pa.table({"id": [1], "x": [2]}))
    found = {each.key: each for each in pending_work(tables.project, graph)}
    assert found["words"].certainty == "exact"
    assert (found["letters"].certainty, found["letters"].note) == (
        "unknown",
        "what comes of 1 stale samples of words is known once it ran",
    )


def test_a_plan_claims_no_bound_where_a_stale_sample_may_move_to_another_group(tables):
    groups = FeatureDep("below", lineage=Lineage.aggregation(["g"]))
    graph = FeatureGraph([root(), below(), Feature("group", ["g"], ["a"], [groups])])
    tables.write_plain("root", pa.table({"id": [1, 2], "x": [1, 2]}))
    tables.step(graph, "below", lambda rows: rows.select(["id"]).append_column("g", pa.array(["k", "l"])))
    tables.step(graph, "group", lambda rows: rows.select(["g"]).group_by("g").aggregate([]))
    tables.write_plain("root", pa.table({"id": [1, 2], "x": [1, 3]}))
    found = {each.key: each for each in pending_work(tables.project, graph)}
    assert (found["group"].certainty, found["group"].note) == (
        "unknown",
        "what comes of 1 stale samples of below is known once it ran",
    )
