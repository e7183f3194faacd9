"""Features over their tables, without Dagster: only what is stale is computed, and what is written is right."""

import datetime as dt
import json
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SampleHash,
)
from dagster_versioned.errors import CommitConflict, EmptyTable, ExpiredVersion, InvalidInput, UnsupportedType
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, Lineage
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.feature_record import FeatureRecord
from support.colliding import colliding_texts
from support.crashes import append_as_another_program
from support.feature_tables import BASE, VIDEO, Tables, counted, graph_of, loud, table_of, videos, words


def test_only_what_changed_is_asked_for_and_the_rest_is_carried_over(either):
    graph = graph_of(words())
    either.write_plain("video", videos(*BASE))
    result, increment = either.step(graph, "words", loud)
    assert (result.change, counted(increment)) == ("full", (3, 0, 0, 0))
    result, increment = either.step(graph, "words", lambda rows: pytest.fail("there is nothing to do"))
    assert (result.change, counted(increment), bool(increment)) == ("none", (0, 0, 0, 3), False)
    either.write_plain("video", videos((1, "A", "x"), (2, "b", "Y"), (4, "d", "w")))
    asked = []
    result, increment = either.step(graph, "words", lambda rows: asked.append(rows) or loud(rows))
    assert counted(increment) == (1, 1, 1, 1)
    assert increment.reasons == {"text": 1}
    assert asked[0].select(["id", "sound", "image"]).to_pylist() == [
        {"id": 1, "sound": "A", "image": "x"},
        {"id": 4, "sound": "d", "image": "w"},
    ]
    if either.spark is None:  # frames of Spark are gone with what was kept of them
        assert increment.new["id"].to_pylist() == [4]
        assert increment.stale["id"].to_pylist() == [1]
        assert increment.orphaned.to_pylist() == [{"id": 3}]
    assert either.rows("words") == {
        1: {"id": 1, "text": "A"},
        2: {"id": 2, "text": "B"},
        4: {"id": 4, "text": "D"},
    }


def test_an_incremental_table_is_the_one_that_is_computed_from_scratch(tables, tmp_path):
    graph = graph_of(words())
    for rows in (BASE, [(1, "q", "x"), *BASE[1:]], [(1, "q", "x"), (5, "e", "v")]):
        tables.write_plain("video", videos(*rows))
        tables.step(graph, "words", loud)
    afresh = Tables(tmp_path / "afresh", tables.spark)
    afresh.write_plain("video", videos((1, "q", "x"), (5, "e", "v")))
    afresh.step(graph, "words", loud)
    one, other = (each.table("words").read().sort_by("id") for each in (tables, afresh))
    assert one.equals(other)
    assert tables.record("words") == FeatureRecord.of(afresh.head("words").identity.custom)


def test_after_a_code_bump_exactly_what_depends_on_the_field_is_stale(tables):
    def feature(text, length):
        deps = [FieldDep("video", ["sound"])]
        return graph_of(Feature("words", ["id"], [Field("text", text, deps), Field("length", length, deps)], ["video"]))

    tables.write_plain("video", videos(*BASE))
    tables.step(feature("1", "1"), "words", loud)
    _, increment = tables.step(feature("1", "2"), "words", loud)
    assert counted(increment) == (0, 3, 0, 0)
    assert increment.reasons == {"length": 3}


def test_a_code_bump_of_a_root_makes_nothing_stale_below(tables):
    def graph(code):
        video = Feature("video", ["id"], [Field("sound", code, columns=["sound"])])
        return FeatureGraph([video, words()])

    tables.write_plain("video", videos(*BASE))
    tables.step(graph("1"), "words", loud)
    result, increment = tables.step(graph("2"), "words", loud)
    assert not increment
    assert result.change == "metadata_only"  # the record has another version of the field


def test_content_versions_of_the_body_stop_the_wave(either):
    root = Feature("root", ["id"], ["raw"])
    middle = Feature("middle", ["id"], ["text"], [root])
    graph = FeatureGraph([root, middle, Feature("last", ["id"], ["end"], [middle])])

    def in_capitals(rows):
        texts = [text.upper() for text in rows["raw"].to_pylist()]
        versions = pa.array([{"text": text} for text in texts], pa.struct([("text", pa.string())]))
        return pa.table({"id": rows["id"], "text": texts, DATA_VERSION_BY_FIELD: versions})

    def step(raw):
        either.root(graph, "root", pa.table({"id": [1, 2], "raw": raw}))
        first = either.step(graph, "middle", in_capitals)[1]
        return counted(first), counted(either.step(graph, "last", lambda rows: rows)[1])

    assert step(["a", "b"]) == ((2, 0, 0, 0), (2, 0, 0, 0))
    assert step(["A", "b"]) == ((0, 1, 0, 1), (0, 0, 0, 2))
    assert step(["c", "b"]) == ((0, 1, 0, 1), (0, 1, 0, 1))
    stored = {row["id"]: row for row in either.table("middle").read().to_pylist()}
    assert stored[1][DATA_VERSION_BY_FIELD] == {"text": "C"}
    assert stored[1][DATA_VERSION] != stored[1][PROVENANCE]


@pytest.mark.parametrize("is_feature", [True, False], ids=["a root's samples", "a plain table's rows"])
def test_a_sample_that_was_made_to_look_unchanged_is_computed(either, is_feature):
    """By texts with one open digest, in the place of one another, and by a number in the place of a text's bytes."""
    graph, (one, other) = graph_of(words()), colliding_texts()

    def write(sound):
        rows = videos((1, "a", "x"), (2, "b", "y")).set_column(1, "sound", sound)
        if is_feature:
            either.root(graph, "video", rows, full=not pa.types.is_string(sound.type))
        else:
            either.write_plain("video", rows)
        found = either.step(
            graph, "words", lambda rows: loud(rows.set_column(1, "sound", rows["sound"].cast("string")))
        )
        return counted(found[1]), [row["text"] for _, row in sorted(either.rows("words").items())]

    assert write(pa.array([one, "b"])) == ((2, 0, 0, 0), [one.upper(), "B"])
    assert write(pa.array([other, "b"])) == ((0, 1, 0, 1), [other.upper(), "B"])
    assert write(pa.array([other, "12345678"])) == ((0, 1, 0, 1), [other.upper(), "12345678"])
    number = int.from_bytes(b"12345678", "little")
    assert write(pa.array([1, number])) == ((0, 2, 0, 0), ["1", str(number)])


def test_samples_with_content_versions_of_an_earlier_release_are_stale_once(tables):
    graph, raw = graph_of(words()), videos(*BASE)
    earlier = pa.array([{"image": f"{n:032x}", "sound": f"{n:032x}"} for n in range(3)])
    tables.root(graph, "video", raw.append_column(PROVENANCE_BY_FIELD, earlier))
    stored = tables.table("video").version().metadata_sha
    assert [counted(tables.root(graph, "video", raw)[1]) for _ in range(2)] == [(0, 3, 0, 0), (0, 0, 0, 3)]
    assert tables.table("video").read(stored)[PROVENANCE_BY_FIELD].to_pylist() == earlier.to_pylist()


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "ids",
    [
        pa.array([dt.datetime(2020, 1, n) for n in (1, 2)], pa.timestamp("us", "UTC")),
        pa.array([dt.datetime(2020, 1, n) for n in (1, 2)], pa.timestamp("us")),
        pa.array([dt.date(2020, 1, n) for n in (1, 2)]),
        pa.array([Decimal("1.10"), Decimal("2.20")], pa.decimal128(10, 2)),
        pa.array([b"\x00", b"\xff"]),
        pa.array([True, False]),
        pa.array([float("nan"), -0.0]),
        pa.array(["'\"`", "a|b"]),
    ],
    ids=lambda ids: str(ids.type),
)
def test_samples_can_have_ids_of_any_plain_type(tables, ids):
    graph = graph_of(words())
    for sound, expected in (("b", (2, 0, 0, 0)), ("b", (0, 0, 0, 2)), ("c", (0, 1, 0, 1))):
        tables.root(graph, "video", pa.table({"id": ids, "sound": ["a", sound], "image": ["x", "y"]}))
        _, increment = tables.step(graph, "words", loud)
        assert counted(increment) == expected
    assert sorted(tables.table("words").read()["text"].to_pylist()) == ["A", "C"]


def test_a_root_brings_its_versions_or_has_them_of_its_columns(tables):
    graph = graph_of(words())
    result, increment = tables.root(graph, "video", videos(*BASE))
    assert (result.change, counted(increment)) == ("full", (3, 0, 0, 0))
    tables.step(graph, "words", loud)
    _, increment = tables.root(graph, "video", videos((1, "a", "other"), *BASE[1:]))
    assert increment.reasons == {"image": 1}
    assert counted(tables.step(graph, "words", loud)[1]) == (0, 0, 0, 3)
    own = pa.array([{"sound": "s", "image": "i"}] * 3)
    samples = videos(*BASE).append_column(PROVENANCE_BY_FIELD, own)
    _, increment = tables.root(graph, "video", samples)
    assert counted(increment) == (0, 3, 0, 0)
    assert tables.table("video").read()[PROVENANCE_BY_FIELD].to_pylist() == [{"image": "i", "sound": "s"}] * 3
    assert tables.root(graph, "video", samples)[0].change == "none"


@pytest.mark.parametrize("made", [pl.DataFrame, pd.DataFrame, pl.LazyFrame], ids=str)
def test_frames_of_any_kind_are_samples_with_the_types_that_are_stored(tables, made):
    root = Feature("root", ["id"], ["name"])
    graph = FeatureGraph([root, Feature("lower", ["id"], ["text"], [root])])

    def step(*names):
        samples = made({"id": [f"n{number}" for number in range(len(names))], "name": list(names)})
        first = tables.root(graph, "root", samples)[1]
        found = tables.step(graph, "lower", lambda rows: rows.select(["id"]), as_type=pa.Table)[1]
        return counted(first), counted(found)

    assert step("a", "b") == ((2, 0, 0, 0), (2, 0, 0, 0))
    assert step("a", "c") == ((0, 1, 0, 1), (0, 1, 0, 1))


def test_values_that_cannot_be_stored_are_refused(tables):
    graph = graph_of(words())
    tables.write_plain("video", videos(*BASE))
    nanoseconds = pa.array([1, 2, 3], pa.timestamp("ns"))
    with pytest.raises(UnsupportedType, match="'at'"):
        tables.step(graph, "words", lambda rows: loud(rows).append_column("at", nanoseconds))
    assert not tables.table("words").exists()


def test_the_fields_digests_say_whether_an_upstream_changed_for_a_feature(tables):
    graph = graph_of(words())

    def recorded():
        record = tables.record("words")
        return record.upstreams, record.digests

    tables.root(graph, "video", videos(*BASE))
    tables.step(graph, "words", loud)
    before = recorded()
    assert before[0].keys() == {"video"}
    assert before[0]["video"].keys() == {"sound"}
    tables.root(graph, "video", videos((1, "a", "other"), *BASE[1:]))
    assert tables.upstream("video").digests()["sound"] == before[0]["video"]["sound"]
    result, _ = tables.step(graph, "words", loud)
    assert (result.change, recorded()) == ("none", before)
    tables.root(graph, "video", videos((1, "other", "x"), *BASE[1:]))
    tables.step(graph, "words", loud)
    after = recorded()
    assert after[0] != before[0]
    assert after[1] != before[1]


def test_upstreams_that_are_filtered_are_not_judged_by_digests(tables):
    feature = Feature("words", ["id"], ["text"], [FeatureDep("video", filter="image != 'x'")])
    graph = graph_of(feature)
    tables.root(graph, "video", videos(*BASE))
    assert counted(tables.step(graph, "words", loud)[1]) == (2, 0, 0, 0)
    assert tables.record("words").upstreams == {"video": {}}


def test_a_piece_at_a_time_can_be_written_and_the_next_resolve_finds_what_is_left(tables):
    graph = graph_of(words())
    tables.write_plain("video", videos(*((n, f"s{n}", "") for n in range(5)), (9, "gone", "")))
    tables.step(graph, "words", loud)
    tables.write_plain("video", videos(*((n, f"t{n}", "") for n in range(7))))
    resolved = tables.resolve(graph, "words")
    parts = resolved.increment.chunks(2)
    after, sizes, lefts = None, [], []
    for part in parts:
        sizes.append(len(part.changed))
        after = tables.table("words").write(resolved.finish(loud(part.changed), part, after=after)).version
        lefts.append(FeatureRecord.of(after.identity.custom).left)
        if len(sizes) == 3:
            break
    assert sizes == [2, 2, 2]
    assert lefts == [5, 3, 1]
    assert 9 not in tables.rows("words")
    _, increment = tables.step(graph, "words", loud)
    assert counted(increment) == (0, 1, 0, 6)
    assert tables.record("words").left == 0
    assert tables.rows("words") == {n: {"id": n, "text": f"T{n}"} for n in range(7)}
    digests = tables.record("words").digests
    tables.step(graph, "words", loud, full=True)
    assert tables.record("words").digests == digests


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.RecordBatchReader], ids=str)
def test_frames_come_as_the_type_that_was_asked_for(tables, kind):
    graph = graph_of(words())
    tables.write_plain("video", videos(*BASE))
    seen = []
    tables.step(graph, "words", lambda rows: seen.append(type(rows)) or rows, as_type=kind)
    assert issubclass(seen[0], kind)
    assert tables.rows("words")[2] == {"id": 2, "sound": "b", "image": "y"}


def test_groups_are_given_whole_and_written_as_one(either):
    reading = Feature("reading", ["sensor", "ts"], [Field("value", columns=["value"])])
    dep = FeatureDep(reading, lineage=Lineage.aggregation(["sensor"]))
    graph = FeatureGraph([reading, Feature("mean", ["sensor"], ["mean"], [dep])])

    def readings(*rows):
        return table_of(("sensor", "ts", "value"), *rows)

    asked = []

    def mean(rows):
        asked.append(sorted(rows["ts"].to_pylist()))
        return rows.group_by("sensor").aggregate([("value", "mean")])

    either.write_plain("reading", readings(("a", 1, 2.0), ("a", 2, 4.0), ("b", 1, 5.0)))
    either.step(graph, "mean", mean)
    either.write_plain("reading", readings(("a", 1, 2.0), ("a", 2, 4.0), ("a", 3, 6.0), ("b", 1, 5.0)))
    _, increment = either.step(graph, "mean", mean)
    assert counted(increment) == (0, 1, 0, 1)
    assert asked[-1] == [1, 2, 3]
    assert sorted(either.table("mean").read()["value_mean"].to_pylist()) == [4.0, 5.0]


def test_pairs_of_samples_are_asked_for_and_no_other_pairs_of_the_same_samples(either):
    query = Feature("query", ["corpus", "q"], [Field("text", columns=["text"])])
    document = Feature("document", ["corpus", "d"], [Field("body", columns=["body"])])
    graph = FeatureGraph([query, document, Feature("pair", ["corpus", "q", "d"], ["score"], [query, document])])
    asked = []

    def score(rows):
        asked.append(sorted(zip(rows["q"].to_pylist(), rows["d"].to_pylist(), strict=True)))
        return rows.select(["corpus", "q", "d"]).append_column("score", pa.array(rows["text"].to_pylist()))

    def given(queries, documents):
        either.write_plain("query", table_of(("corpus", "q", "text"), *(("c", *each) for each in queries)))
        either.write_plain("document", table_of(("corpus", "d", "body"), *(("c", *each) for each in documents)))

    given([(1, "a"), (2, "b")], [(1, "x"), (2, "y")])
    either.step(graph, "pair", score)
    given([(1, "other"), (2, "b")], [(1, "x"), (2, "y"), (3, "z")])
    _, increment = either.step(graph, "pair", score)
    assert counted(increment) == (2, 2, 0, 2)
    assert asked[-1] == [(1, 1), (1, 2), (1, 3), (2, 3)]
    assert either.table("pair").read().num_rows == 6
    with either.resolve(graph, "pair", full=True) as resolved:
        for part in resolved.increment.chunks(4):
            assert either.arrow(part.changed).num_rows == part.todo


def test_an_upstream_that_no_field_depends_on_brings_its_columns(either):
    other = Feature("other", ["id"], ["name"])
    feature = Feature("words", ["id"], [Field("text", deps=[FieldDep("video", ["sound"])])], ["video", other])
    graph = FeatureGraph([VIDEO, other, feature])
    either.write_plain("video", videos(*BASE))
    either.write_plain("other", pa.table({"id": [1, 2, 3], "name": ["p", "q", "r"]}))
    _, increment = either.step(graph, "words", lambda rows: rows.select(["id", "name"]))
    assert counted(increment) == (3, 0, 0, 0)
    assert {n: row["name"] for n, row in either.rows("words").items()} == {1: "p", 2: "q", 3: "r"}
    either.write_plain("other", pa.table({"id": [1, 2], "name": ["other", "q"]}))
    assert counted(either.resolve(graph, "words").increment) == (0, 0, 1, 2)


def letter():
    """A feature with a row for each letter of a sound."""
    dep = FeatureDep("video", lineage=Lineage.expansion(["id"]))
    return Feature("letter", ["id", "n"], [Field("text", deps=[FieldDep("video", ["sound"])])], [dep])


def letters(rows):
    found = [(row["id"], n, letter) for row in rows.to_pylist() for n, letter in enumerate(row["sound"])]
    return table_of(("id", "n", "text"), *found)


def test_rows_that_nobody_asked_for_are_counted_where_a_sample_has_several(either):
    either.write_plain("video", videos(*BASE))
    others = pa.table({"id": [7, 7, 8], "n": [0, 1, 0], "text": ["", "", ""]})
    message = r"returned 3 rows of samples that were not asked for, for example \{'id': 7\}, \{'id': 8\}"
    with pytest.raises(InvalidInput, match=message):
        either.step(graph_of(letter()), "letter", lambda rows: pa.concat_tables([letters(rows), others]))


def test_all_that_came_of_a_sample_is_replaced_with_it(either):
    graph = graph_of(letter())
    either.write_plain("video", videos((1, "abc", ""), (2, "de", ""), (3, "f", "")))
    either.step(graph, "letter", letters)
    either.write_plain("video", videos((1, "a", ""), (2, "de", "")))
    _, increment = either.step(graph, "letter", letters)
    assert counted(increment) == (0, 1, 1, 1)
    rows = either.table("letter").read().to_pylist()
    assert sorted((row["id"], row["n"], row["text"]) for row in rows) == [(1, 0, "a"), (2, 0, "d"), (2, 1, "e")]


def test_everything_can_be_computed_again(either):
    graph = either.computed()
    either.write_plain("video", videos(*BASE[:2], (4, "d", "")))
    result, increment = either.step(graph, "words", loud, full=True)
    assert counted(increment) == (1, 2, 1, 0)
    assert sorted(either.rows("words")) == [1, 2, 4]
    result, _ = either.step(graph, "words", loud, full=True)
    assert result.change == "none"

    def other(rows):
        return rows.select(["id"])

    either.step(graph, "words", other, full=True)
    assert either.rows("words")[1] == {"id": 1}


def test_nothing_can_be_computed_again_as_well(either):
    graph = either.computed()
    either.write_plain("video", videos())
    either.step(graph, "words", loud)
    result, increment = either.step(graph, "words", loud, full=True)
    assert (result.change, counted(increment)) == ("none", (0, 0, 0, 0))


def in_pieces(tables, graph, key, body, size=1, **options):
    """Compute a feature anew, piece after piece; how many rows the table had after each."""
    after, had = None, []
    with tables.resolve(graph, key, full=True, **options) as resolved:
        for part in resolved.increment.chunks(size):
            update = resolved.finish(body(part.changed), part, after=after)
            after = tables.table(key).write(update).version
            had.append(after.identity.nrow)
    return had


def scratch(tables, path, graph, key, body):
    """The same feature in a project of its own, computed at once: its rows and its digests."""
    other = Tables(path)
    for dep in graph[key].deps:
        other.root(graph, dep.feature, tables.table(dep.feature).read())
    other.step(graph, key, body)
    return described(other, key)


def described(tables, key):
    rows = tables.table(key).read().to_pylist()
    return sorted(map(str, rows)), tables.record(key).digests


def test_everything_can_be_computed_again_in_pieces(tables, tmp_path):
    graph = graph_of(words())
    tables.root(graph, "video", videos(*BASE))
    tables.step(graph, "words", loud)
    assert in_pieces(tables, graph, "words", lambda rows: loud(rows).append_column("n", rows["id"])) == [3, 3, 3]
    # Rows of fewer columns cannot stand beside the others: they take their place.
    assert in_pieces(tables, graph, "words", loud) == [1, 2, 3]
    assert described(tables, "words") == scratch(tables, tmp_path / "other", graph, "words", loud)
    as_number = graph_of(words("2"))
    assert in_pieces(tables, as_number, "words", lambda rows: pa.table({"id": rows["id"], "text": rows["id"]})) == [
        1,
        2,
        3,
    ]
    assert not tables.resolve(as_number, "words").increment


@pytest.mark.parametrize("order", [1, -1])
def test_other_ids_are_computed_in_pieces_into_another_table(tables, tmp_path, order):
    reading = Feature("reading", ["id", "n"], [Field("value", columns=["value"])])
    rows = pa.table({"id": [1, 1, 2, 2], "n": [1, 2, 1, 2], "value": [1, 2, 3, 4]})
    each = FeatureGraph([reading, Feature("mean", ["id", "n"], ["value"], [reading])])
    group = FeatureDep(reading, lineage=Lineage.aggregation(["id"]))
    grouped = FeatureGraph([reading, Feature("mean", ["id"], ["value"], [group])])

    def alone(rows):
        return rows.select(["id", "n", "value"])

    def together(rows):
        found = rows.group_by("id").aggregate([("n", "max"), ("value", "mean")])
        return found.rename_columns(["id", "n", "value"])

    tables.root(each, "reading", rows)
    ways = [(each, alone, [1, 2, 3, 4]), (grouped, together, [1, 2])][::order]
    tables.step(ways[0][0], "mean", ways[0][1])
    graph, body, expected = ways[1]
    assert in_pieces(tables, graph, "mean", body) == expected
    assert not tables.resolve(graph, "mean").increment
    assert described(tables, "mean") == scratch(tables, tmp_path / "other", graph, "mean", body)


def returned(change):
    return lambda rows: change(loud(rows))


REFUSED = {
    "rows that were not asked for": (
        lambda rows: pa.concat_tables([rows, pa.table({"id": [7, 8], "text": ["", ""]})]),
        r"returned 2 rows of samples that were not asked for, for example \{'id': 7\}, \{'id': 8\}",
    ),
    "a sample twice": (
        lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]),
        r"1 ids have more than one row, for example \{'id': 1\}",
    ),
    "a sample left out": (
        lambda rows: rows.slice(1),
        r"returned no row for 1 samples that were asked for, for example \{'id': 1\}",
    ),
    "a null id": (
        lambda rows: pa.concat_tables([rows, pa.table({"id": pa.array([None], pa.int64()), "text": [""]})]),
        "1 rows have a null in them",
    ),
    "ids of another type": (
        lambda rows: rows.set_column(0, "id", rows["id"].cast(pa.string())),
        "has the id 'id' as string, but it was asked for as (int64|bigint)",
    ),
    "no ids": (lambda rows: rows.select(["text"]), "has no column 'id'"),
    "a column of ours": (
        lambda rows: rows.append_column("metaxy_text", rows["text"]),
        "has the column 'metaxy_text': names with 'metaxy_' belong",
    ),
    "versions of no field": (
        lambda rows: rows.append_column(DATA_VERSION_BY_FIELD, pa.array([{"sound": "x"}] * len(rows))),
        r"says data versions of \['sound'\], but the feature has the fields \['text'\]",
    ),
    "nothing": (lambda rows: None, "returned None, but 3 samples were asked for"),
}


@pytest.mark.spark
@pytest.mark.slow
def test_rows_of_spark_are_refused_for_the_same_reasons(tmp_path, spark):
    tables, graph = Tables(tmp_path, spark), graph_of(words())
    tables.write_plain("video", videos(*BASE))
    with tables.resolve(graph, "words") as resolved:
        rows = loud(tables.arrow(resolved.increment.changed))
        for change, message in REFUSED.values():
            with pytest.raises(InvalidInput, match=message):
                resolved.finish(change(rows))


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_are_not_what_was_asked_for_are_refused_and_nothing_is_written(tables, what):
    change, message = REFUSED[what]
    graph = graph_of(words())
    tables.write_plain("video", videos(*BASE))
    with pytest.raises(InvalidInput, match=message):
        tables.step(graph, "words", returned(change))
    assert not tables.table("words").exists()


BAD_UPSTREAM = {
    "an id twice": (videos(*BASE, BASE[0]), r"1 ids have more than one row, for example \{'id': 1\}"),
    "a null id": (videos(*BASE, (None, "", "")), "1 rows have a null"),
    "no column of a field": (videos(*BASE).drop_columns(["sound"]), "Feature 'video' has no column 'sound'"),
    "ids of another type": (
        videos(*BASE).set_column(0, "id", pa.array(["1", "2", "3"])),
        "cannot be matched by 'id', which is string in 'video', (int64|bigint) in its table",
    ),
}


@pytest.mark.parametrize("what", BAD_UPSTREAM)
def test_upstreams_whose_samples_cannot_be_told_apart_are_refused(tables, what):
    rows, message = BAD_UPSTREAM[what]
    graph = graph_of(words())
    tables.write_plain("video", videos(*BASE))
    before = tables.step(graph, "words", loud)[0].version
    tables.write_plain("video", rows)
    with pytest.raises(InvalidInput, match=message):
        tables.step(graph, "words", loud)
    assert tables.head("words") == before


def test_columns_of_a_root_that_belong_to_no_field_are_refused(tables):
    with pytest.raises(InvalidInput, match=r"have the columns \['more'\], which belong to no field"):
        tables.root(graph_of(), "video", videos(*BASE).append_column("more", pa.array([1, 2, 3])))


def test_names_that_would_clash_are_found_before_anything_is_computed(tables):
    other = Feature("other", ["id"], [Field("text", columns=["sound"])])
    graph = graph_of(other, Feature("both", ["id"], ["f"], ["video", "other"]))
    for key in ("video", "other"):
        tables.write_plain(key, videos(*BASE))
    with pytest.raises(InvalidInput, match="gets the column 'sound' from 'video' and from 'other'"):
        tables.resolve(graph, "both")


def test_an_upstream_without_rows_never_makes_a_table_but_takes_all_samples_away(tables):
    graph = graph_of(words())
    tables.write_plain("video", videos())
    with pytest.raises(EmptyTable, match="has no samples"):
        tables.step(graph, "words", loud)
    assert not tables.table("words").exists()
    tables.write_plain("video", videos(*BASE))
    tables.step(graph, "words", loud)
    tables.write_plain("video", videos())
    _, increment = tables.step(graph, "words", loud)
    assert counted(increment) == (0, 0, 3, 0)
    assert tables.rows("words") == {}
    tables.write_plain("video", videos(*BASE[:1]))
    assert counted(tables.step(graph, "words", loud)[1]) == (1, 0, 0, 0)
    assert tables.rows("words") == {1: {"id": 1, "text": "A"}}


def test_the_history_of_an_upstream_is_not_needed(tables):
    graph = graph_of(words())
    first = tables.write_plain("video", videos(*BASE)).version
    tables.step(graph, "words", loud)
    tables.write_plain("video", videos((1, "A", "x"), *BASE[1:]))
    tables.write_plain("video", videos((1, "B", "x"), *BASE[1:]))
    tables.table("video").purge([first.metadata_sha], why="the test", dry_run=False)
    assert counted(tables.step(graph, "words", loud)[1]) == (0, 1, 0, 2)
    with pytest.raises(ExpiredVersion, match="purged"):
        tables.table("video").files(first.metadata_sha)


def test_hashes_of_another_length_are_refused_unless_all_is_computed_again(tables):
    graph = tables.computed()
    longer = SampleHash("sha256", 40)
    with pytest.raises(InvalidInput, match=r"has the hash \['sha256', 32\], and the feature \['sha256', 40\]"):
        tables.resolve(graph, "words", how=longer)
    _, increment = tables.step(graph, "words", loud, how=longer, full=True)
    assert counted(increment) == (0, 3, 0, 0)
    assert not tables.resolve(graph, "words", how=longer).increment


def test_a_head_that_moved_meanwhile_is_a_conflict(tables):
    graph = tables.computed()
    tables.write_plain("video", videos((1, "A", "x"), *BASE[1:]))
    early = tables.resolve(graph, "words")
    rows = loud(tables.arrow(early.increment.changed))
    tables.write_plain("video", videos((1, "A", "x"), (2, "B", "y"), *BASE[2:]))
    tables.step(graph, "words", loud)
    with pytest.raises(CommitConflict, match="only what is stale by then is computed"):
        tables.table("words").write(early.finish(rows))


def test_a_table_that_another_program_changed_is_a_conflict_before_anything_is_computed(tables):
    graph = tables.computed()
    append_as_another_program(tables.table("words"), tables.table("words").read())
    with pytest.raises(CommitConflict, match="Another program changed the table"):
        tables.resolve(graph, "words")
    tables.step(graph, "words", loud, full=True)
    assert sorted(tables.rows("words")) == [1, 2, 3]
    append_as_another_program(tables.table("words"), tables.table("words").read())
    assert in_pieces(tables, graph, "words", loud) == [1, 2, 3]


class Noted(UpstreamFiles):
    """Files that note which columns are read of them."""

    def read(self, frame_type, columns=None):
        NOTED.append(columns)
        return super().read(frame_type, columns)


NOTED = []


def test_versions_are_read_and_no_other_column_until_rows_are_asked_for(tables):
    graph = graph_of(words())
    tables.root(graph, "video", videos(*BASE))
    files = tables.upstream("video")
    NOTED.clear()
    resolved = FeatureTable(graph, "words", tables.table("words")).resolve({"video": Noted(files.table, files.files)})
    assert counted(resolved.increment) == (3, 0, 0, 0)
    assert NOTED == [["id", DATA_VERSION_BY_FIELD]]
    assert resolved.increment.changed.num_rows == 3
    assert NOTED[1:] == [None]


@pytest.mark.spark
@pytest.mark.slow
def test_pieces_of_spark_have_no_more_samples_than_were_asked_for(tmp_path, spark):
    tables = Tables(tmp_path, spark)
    graph = graph_of(words())
    tables.write_plain("video", videos(*((n, f"s{n}", "") for n in range(50))))
    with tables.resolve(graph, "words") as resolved:
        kept = spark.sparkContext._jsc.sc().getPersistentRDDs
        before = kept().size()  # other tests' frames, which are let go of in their own time
        for part in resolved.increment.chunks(20):
            resolved.finish(tables.spark.createDataFrame(loud(tables.arrow(part.changed))), part)
            assert kept().size() <= before + 2, "the units, and what came of one part"
    with tables.resolve(graph, "words") as resolved:
        parts = list(resolved.increment.chunks(8))
        ids = [sorted(tables.arrow(part.changed)["id"].to_pylist()) for part in parts]
    assert all(0 < len(part) <= 8 for part in ids)
    assert sorted(n for part in ids for n in part) == list(range(50))
    assert [part.asked.left for part in parts] == [50 - sum(map(len, ids[: n + 1])) for n in range(len(ids))]


@pytest.mark.spark
@pytest.mark.slow
def test_spark_computes_what_a_function_returns_once(tmp_path, spark):
    tables = Tables(tmp_path, spark)
    graph = graph_of(words())
    tables.write_plain("video", videos(*BASE))
    count = spark.sparkContext.accumulator(0)

    def costly(text):
        count.add(1)
        return text.upper()

    from pyspark.sql import functions as sf

    with tables.resolve(graph, "words") as resolved:
        rows = resolved.increment.changed
        rows = rows.select("id", sf.udf(costly, "string")("sound").alias("text"))
        tables.table("words").write(resolved.finish(rows))
    assert tables.rows("words") == {n: {"id": n, "text": text.upper()} for n, text, _ in BASE}
    assert count.value == 3


def test_a_root_may_say_data_versions_as_any_feature_may(either):
    """With provenance of its own or without; what it says is what downstream compares."""
    root = Feature("root", ["id"], [Field("a", columns=["x"])])
    graph = FeatureGraph([root, Feature("below", ["id"], ["a"], [root])])

    def samples(x, said):
        return pa.table({"id": [1], "x": [x], DATA_VERSION_BY_FIELD: [{"a": said}]})

    def below(rows):
        return rows.select(["id"])

    either.root(graph, "root", samples(1, "same"))
    either.step(graph, "below", below)
    assert counted(either.root(graph, "root", samples(2, "same"))[1]) == (0, 1, 0, 0)
    assert not either.resolve(graph, "below").increment
    provenance = pa.array([{"a": "p"}])
    either.root(graph, "root", samples(2, "same").append_column(PROVENANCE_BY_FIELD, provenance))
    (row,) = either.table("root").read().to_pylist()
    assert (row[PROVENANCE_BY_FIELD], row[DATA_VERSION_BY_FIELD]) == ({"a": "p"}, {"a": "same"})
    assert not either.resolve(graph, "below").increment
    either.root(graph, "root", samples(3, "other"))
    assert counted(either.resolve(graph, "below").increment) == (0, 1, 0, 0)


def test_versions_by_field_are_texts(either):
    graph = graph_of(words())
    samples = videos(BASE[0])
    of_numbers = pa.array([{"sound": 1, "image": 2}])
    message = r"'metaxy_\w+_by_field' has versions of the field '(sound|image)' of type \w+. Nothing .* Make them texts"
    for column in (PROVENANCE_BY_FIELD, DATA_VERSION_BY_FIELD):
        with pytest.raises(InvalidInput, match=message):
            either.root(graph, "video", samples.append_column(column, of_numbers))
    for lacking in (pa.array([{"sound": "s"}]), pa.array([{"sound": "s", "Image": "i"}])):
        with pytest.raises(InvalidInput, match="has no version of the field 'image'"):
            either.root(graph, "video", samples.append_column(PROVENANCE_BY_FIELD, lacking))
    either.root(graph, "video", samples)
    renamed = Feature("video", ["id"], ["Sound", "image"])
    bumped = FeatureGraph([renamed, Feature("words", ["id"], ["text"], [renamed])])
    with pytest.raises(InvalidInput, match="has no version of the field 'Sound'"):
        either.resolve(bumped, "words")


def test_samples_of_other_types_are_refused_though_their_values_are_the_same(either):
    graph = graph_of()
    samples = videos(*BASE)
    number = pa.array([110, 220, 330])
    either.root(graph, "video", samples.set_column(1, "sound", number.cast(pa.int32())))
    with pytest.raises(UnsupportedType, match=r"'video' have other types.*'sound' is .*long.*full: true"):
        either.root(graph, "video", samples.set_column(1, "sound", number))
    either.root(graph, "video", samples.set_column(1, "sound", number), full=True)
    assert counted(either.root(graph, "video", samples.set_column(1, "sound", number))[1]) == (0, 0, 0, 3)


@pytest.mark.spark
@pytest.mark.slow
def test_a_source_that_changes_after_it_was_compared_is_not_written_as_what_it_was(tmp_path, spark):
    tables = Tables(tmp_path / "house", spark)
    graph = graph_of()
    source = tmp_path / "samples.json"

    def says(*sounds):
        rows = [json.dumps({"id": n, "sound": sound, "image": "x"}) for n, sound in enumerate(sounds)]
        source.write_text("\n".join(rows))

    def resolved():
        return FeatureTable(graph, "video", tables.table("video")).resolve_samples(samples)

    says("a", "b")
    samples = spark.read.schema("id long, sound string, image string").json(str(source))
    with resolved() as first:
        says("c", "b")  # of which the first version is as good as of the other
        tables.table("video").write(first.finish())
    with resolved() as same:
        assert counted(same.increment) == (0, 0, 0, 2)
    says("d", "b")
    with resolved() as second:
        says("e", "b")
        with pytest.raises(InvalidInput, match="gave 0 samples as they were compared, of 1: its source changed"):
            second.finish()
    assert {n: row["sound"] for n, row in tables.rows("video").items()} == {0: "c", 1: "b"}


def test_data_versions_that_are_no_struct_are_refused(tables):
    graph = graph_of(words())
    as_map = pa.array([[("text", "v")]], pa.map_(pa.string(), pa.string()))
    tables.root(graph, "video", videos(BASE[0]))
    for said in (as_map, pa.array(["v"])):
        with pytest.raises(InvalidInput, match="which is no struct with a text by field"):
            tables.step(graph, "words", lambda rows, said=said: loud(rows).append_column(DATA_VERSION_BY_FIELD, said))
        with pytest.raises(InvalidInput, match="which is no struct with a text by field"):
            tables.root(graph, "video", videos(BASE[0]).append_column(DATA_VERSION_BY_FIELD, said))
    assert not tables.table("words").exists()


@pytest.mark.parametrize(
    "ids", [pa.array([{"a": 1}]), pa.array([[1]]), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))]
)
def test_nested_ids_are_refused(tables, ids):
    samples = pa.table({"id": ids, "sound": ["a"], "image": ["x"]})
    with pytest.raises(InvalidInput, match=r"\['id'\] do not identify the samples of the frame: they are nested"):
        tables.root(graph_of(words()), "video", samples)
    tables.write_plain("video", samples)
    with pytest.raises(
        InvalidInput, match=r"\['id'\] do not identify the samples of Upstream 'video': they are nested"
    ):
        tables.resolve(graph_of(words()), "words")


@pytest.mark.parametrize("name", ["id", "image", "Image"])
def test_a_column_is_not_renamed_to_what_another_is_called(tables, name):
    tables.root(graph_of(), "video", videos(*BASE))
    graph = graph_of(Feature("words", ["id"], ["text"], [FeatureDep("video", rename={"sound": name})]))
    with pytest.raises(InvalidInput, match=f"(?i)of upstream 'video' would both be called '{name}'"):
        tables.resolve(graph, "words")
    swapped = {"sound": "image", "image": "sound"}
    graph = graph_of(Feature("words", ["id"], ["text"], [FeatureDep("video", rename=swapped)]))
    assert tables.resolve(graph, "words").increment.changed["image"].to_pylist() == ["a", "b", "c"]


def test_samples_may_be_ids_alone(either):
    graph = FeatureGraph([Feature("seen", ["id"], ["there"])])
    samples = pa.table({"id": [1, 2], PROVENANCE_BY_FIELD: pa.array([{"there": "a"}, {"there": "b"}])})
    either.root(graph, "seen", samples)
    result, increment = either.root(graph, "seen", samples)
    assert (result.change, counted(increment)) == ("none", (0, 0, 0, 2))
