"""Samples of groups, of one upstream sample or of several upstreams: alike on both engines."""

import hashlib
import sys

import pyarrow as pa
import pytest

from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SYSTEM_COLUMNS,
    SampleHash,
    decimal_hash,
    number_hash,
)
from dagster_versioned.errors import InvalidInput, MissingExtra
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, Lineage
from dagster_versioned.features.graph import FeatureGraph
from support.sample_frames import resolve_frames

METAXY = SampleHash("xxh32", 8)


@pytest.fixture(params=["arrow", pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.slow))])
def engine(request):
    return request.getfixturevalue("spark") if request.param == "spark" else None


def with_versions(rows, *members):
    """Rows whose versions are given as ``{member: text}`` in their last place."""
    struct = pa.struct([(member, pa.string()) for member in members])
    table = pa.Table.from_pylist([row for row, _ in rows])
    by_field = pa.array([versions for _, versions in rows], struct)
    whole = pa.array(["|".join(versions[member] for member in sorted(members)) for _, versions in rows])
    for name, values in zip(SYSTEM_COLUMNS, (by_field, whole, by_field, whole), strict=True):
        table = table.append_column(name, values)
    return table


def readings(*rows):
    return with_versions([({"sensor": sensor, "ts": ts}, {"value": value}) for sensor, ts, value in rows], "value")


READING = Feature("s/reading", ["sensor", "ts"], ["value"])
HOURLY = Feature("s/hourly", ["sensor"], ["mean"], [FeatureDep(READING, lineage=Lineage.aggregation(on=["sensor"]))])
CHUNK = Feature(
    "s/chunk", ["sensor", "chunk"], ["part"], [FeatureDep(HOURLY, lineage=Lineage.expansion(on=["sensor"]))]
)
SENSORS = FeatureGraph([READING, HOURLY, CHUNK])


def first_of(table, *ids):
    """One row for each id, as a feature of groups stores them."""
    rows = {tuple(row[name] for name in ids): row for row in reversed(table.to_pylist())}
    return pa.Table.from_pylist(list(rows.values()), table.schema)


def by_sensor(table):
    return {row["sensor"]: row[PROVENANCE] for row in table.to_pylist()}


FIRST = readings(("A", 1, "x1"), ("A", 2, "x2"), ("B", 1, "y1"))


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_a_group_is_stale_when_one_of_it_is(engine):
    changes = resolve_frames(SENSORS, "s/hourly", engine, {"s/reading": FIRST}, how=METAXY)
    new = changes.new
    assert by_sensor(new) == {"A": "97202157", "B": "25015741"}  # Metaxy's own, as recorded
    assert (len(new), changes.counts.new) == (3, 2)
    hourly = first_of(new, "sensor").drop_columns(["ts"])
    again = resolve_frames(SENSORS, "s/hourly", engine, {"s/reading": FIRST}, current=hourly, how=METAXY)
    assert not again.counts
    assert again.counts.unchanged == 2
    more = readings(("A", 3, "x3"), ("A", 1, "x1"), ("A", 2, "x2"))
    later = resolve_frames(SENSORS, "s/hourly", engine, {"s/reading": more}, current=hourly, how=METAXY)
    assert by_sensor(later.stale) == {"A": "82099147"}
    assert sorted(later.stale["ts"].to_pylist()) == [1, 2, 3]
    assert later.orphaned.to_pylist() == [{"sensor": "B"}]
    counts = later.counts
    assert (counts.new, counts.stale, counts.orphaned, counts.unchanged) == (0, 1, 1, 0)
    assert counts.reasons == {"mean": 1}


def test_all_that_came_of_a_sample_is_stale_with_it(engine):
    hourly = with_versions([({"sensor": key}, {"mean": f"m{key}"}) for key in "AB"], "mean")
    new = resolve_frames(SENSORS, "s/chunk", engine, {"s/hourly": hourly}).new
    assert sorted(new["sensor"].to_pylist()) == ["A", "B"]
    rows = [row | {"chunk": chunk} for row in new.to_pylist() for chunk in (0, 1)]
    chunks = pa.Table.from_pylist(rows, new.schema.append(pa.field("chunk", pa.int64())))
    changed = with_versions([({"sensor": "A"}, {"mean": "other"})], "mean")
    changes = resolve_frames(SENSORS, "s/chunk", engine, {"s/hourly": changed}, current=chunks)
    assert changes.stale["sensor"].to_pylist() == ["A"]
    gone = sorted((row["sensor"], row["chunk"]) for row in changes.orphaned.to_pylist())
    assert gone == [("B", 0), ("B", 1)]
    assert (changes.counts.stale, changes.counts.orphaned) == (1, 1)


def two_upstreams(**dep):
    left = Feature("left", ["id"], ["a", "b"])
    right = Feature("right", ["key"], ["c"])
    deps = [FeatureDep(left), FeatureDep(right, rename={"key": "id", "x": "y"}, **dep)]
    return FeatureGraph([left, right, Feature("both", ["id"], [Field("f", "7")], deps)])


LEFT = with_versions([({"id": i, "x": 10 * i}, {"a": f"a{i}", "b": f"b{i}"}) for i in (1, 2, 3)], "a", "b")
RIGHT = with_versions([({"key": i, "x": -i}, {"c": f"c{i}"}) for i in (2, 3, 4)], "c")


def resolved(engine, graph, **frames):
    changes = resolve_frames(graph, "both", engine, {"left": LEFT, "right": RIGHT} | frames)
    return {row["id"]: row for row in changes.new.to_pylist()}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def test_samples_that_every_required_upstream_has_are_computed(engine):
    rows = resolved(engine, two_upstreams())
    assert {key: (row["x"], row["y"]) for key, row in rows.items()} == {2: (20, -2), 3: (30, -3)}
    by_field = digest("f|7|left.a|a2|left.b|b2|right.c|c2")
    assert rows[2][PROVENANCE_BY_FIELD] == rows[2][DATA_VERSION_BY_FIELD] == {"f": by_field}
    assert rows[2][PROVENANCE] == rows[2][DATA_VERSION] == digest(by_field)


def test_what_an_optional_upstream_lacks_is_empty(engine):
    rows = resolved(engine, two_upstreams(optional=True))
    assert {key: row["y"] for key, row in rows.items()} == {1: None, 2: -2, 3: -3}
    assert rows[1][PROVENANCE_BY_FIELD] == {"f": digest("f|7|left.a|a1|left.b|b1|right.c|")}


def test_an_upstream_can_be_filtered_and_its_columns_chosen(engine):
    rows = resolved(engine, two_upstreams(filter="y > -3", select=["id"]))
    assert [(key, sorted(row.keys() - SYSTEM_COLUMNS)) for key, row in rows.items()] == [(2, ["id", "x"])]


@pytest.mark.parametrize(("condition", "kept"), [("y > 100", [3]), ("y in (0, 8)", [2])])
def test_a_filter_compares_nan_and_zeros_as_sql_does(engine, condition, kept):
    numbers = with_versions([({"key": i, "x": x}, {"c": f"c{i}"}) for i, x in ((2, -0.0), (3, float("nan")))], "c")
    assert sorted(resolved(engine, two_upstreams(filter=condition), right=numbers)) == kept


def test_data_versions_that_somebody_set_are_what_counts_downstream(engine):
    before = resolved(engine, two_upstreams())
    struct = pa.struct([("c", pa.string())])
    position = RIGHT.column_names.index(PROVENANCE_BY_FIELD)
    other = RIGHT.set_column(position, PROVENANCE_BY_FIELD, pa.array([{"c": "z"}] * 3, struct))
    assert resolved(engine, two_upstreams(), right=other) == before


def test_samples_that_have_more_ids_than_one_of_their_upstreams_are_told_apart(engine):
    video = Feature("video", ["video"], ["sound"])
    frame = Feature("frame", ["video", "n"], ["image"])
    graph = FeatureGraph([video, frame, Feature("both", ["video", "n"], ["f"], [video, frame])])
    videos = with_versions([({"video": 1}, {"sound": "s"})], "sound")

    def frames(*numbers):
        return with_versions([({"video": 1, "n": n}, {"image": f"i{n}"}) for n in numbers], "image")

    first = resolve_frames(graph, "both", engine, {"video": videos, "frame": frames(1, 2)})
    assert first.counts.new == 2
    current = first.new
    again = resolve_frames(graph, "both", engine, {"video": videos, "frame": frames(2, 3)}, current=current)
    counts = again.counts
    assert (counts.new, counts.stale, counts.orphaned, counts.unchanged) == (1, 0, 1, 1)
    assert again.new["n"].to_pylist() == [3]
    assert again.orphaned.to_pylist() == [{"video": 1, "n": 1}]


UNITS = {
    "fewer ids than upstream": (
        lambda: Feature("f", ["sensor"], ["x"], [READING]),
        r"differ in \['ts'\] would be one",
    ),
    "groups by more": (
        lambda: Feature("f", ["sensor"], ["x"], [FeatureDep(READING, lineage=Lineage.aggregation(["sensor", "ts"]))]),
        r"differ in \['ts'\] would be one",
    ),
    "an id from an optional upstream": (
        lambda: Feature("f", ["sensor", "ts"], ["x"], [HOURLY, FeatureDep(READING, optional=True)]),
        r"has the id columns \['ts'\] from optional upstreams only",
    ),
}


@pytest.mark.parametrize("what", UNITS)
def test_features_whose_samples_cannot_be_told_apart_are_refused(what):
    define, message = UNITS[what]
    with pytest.raises(InvalidInput, match=message):
        resolve_frames(FeatureGraph([READING, HOURLY, define()]), "f", None, {"s/reading": FIRST})


def changed(table, **columns):
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


Z = [[1, 2, 3]]

REFUSED = {
    "an id twice": ({"left": changed(LEFT, id=[1, 1, 2])}, r"1 ids have more than one row, for example \{'id': 1\}"),
    "an id of null": ({"left": changed(LEFT, id=[1, 2, None])}, "1 rows have a null"),
    "ids of two types": ({"right": changed(RIGHT, key=["2", "3", "4"])}, "Give it one type"),
    "no id": ({"right": RIGHT.drop_columns(["key"])}, "has no column 'key'"),
    "no versions": ({"right": RIGHT.drop_columns([DATA_VERSION_BY_FIELD])}, f"has no column '{DATA_VERSION_BY_FIELD}'"),
    "a column from both": (
        {"right": RIGHT.append_column("z", [[1, 2, 3]]), "left": LEFT.append_column("z", [[1, 2, 3]])},
        "gets the column 'z' from 'left' and from 'right'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_upstreams_that_do_not_fit_are_refused(engine, what):
    frames, message = REFUSED[what]
    with pytest.raises(InvalidInput, match=message):
        resolved(engine, two_upstreams(), **frames)


def test_an_upstream_without_rows_leaves_nothing(engine):
    current = first_of(resolve_frames(two_upstreams(), "both", engine, {"left": LEFT, "right": RIGHT}).new, "id")
    frames = {"left": LEFT.slice(0, 0), "right": RIGHT}
    changes = resolve_frames(two_upstreams(), "both", engine, frames, current=current)
    assert (changes.counts.new, changes.counts.stale, changes.counts.orphaned) == (0, 0, 2)


@pytest.mark.parametrize("how", [("sha256", 7), ("sha256", 65), ("md5", 33), ("wyhash", 21), ("crc", 8)], ids=str)
def test_hashes_have_a_length(how):
    with pytest.raises(InvalidInput, match="Samples cannot be hashed"):
        SampleHash(*how)


def test_executors_without_xxhash_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    number_hash.cache_clear()
    with pytest.raises(MissingExtra, match=r"hashed by xxh3_64, .* Install xxhash there"):
        decimal_hash(SampleHash("xxh3_64", 20), "x")
    assert decimal_hash(SampleHash("wyhash", 8), "x") == "88887830"


@pytest.mark.parametrize("name", ["count", "n", "rows", "f0", "x.y"])
def test_ids_may_have_any_name(engine, name):
    upper = Feature("upper", [name, "ts"], ["a"])
    lower = Feature("lower", [name], ["b"], [FeatureDep(upper, lineage=Lineage.aggregation(on=[name]))])
    graph = FeatureGraph([upper, lower])
    frame = with_versions([({name: 1, "ts": ts}, {"a": str(ts)}) for ts in (1, 2)], "a")
    new = resolve_frames(graph, "lower", engine, {"upper": frame}).new
    current = first_of(new, name).drop_columns(["ts"])
    counts = resolve_frames(graph, "lower", engine, {"upper": frame.slice(0, 1)}, current=current).counts
    assert (counts.stale, counts.reasons) == (1, {"b": 1})
