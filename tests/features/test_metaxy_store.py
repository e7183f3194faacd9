"""A store that Metaxy 0.1.11 made is read as it reads it itself, and its samples are not computed again."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, PROVENANCE_BY_FIELD, SYSTEM_COLUMNS, SampleHash
from dagster_versioned.errors import IntegrityError, InvalidInput, TableNotFound, UnsupportedFeature
from dagster_versioned.features.arrow import samples as arrow_samples
from dagster_versioned.features.definitions import Feature, Field
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.metaxy_store import MetaxyStore
from support.sample_frames import resolve_frames

RECORDED = Path(__file__).parents[1] / "conformance" / "metaxy" / "store"
"""Made by `make_store.py` beside it."""

EXPECTED = json.loads((RECORDED / "expected.json").read_text())["features"]
ORDER = ["example/video", "example/chunk", "example/crop", "example/face-detection", "example/summary"]
DEFINITIONS = "metaxy-system/feature_versions.delta"
METAXY = SampleHash("xxh32", 8)


@pytest.fixture
def store():
    return MetaxyStore(str(RECORDED))


@pytest.fixture
def copy(tmp_path):
    """A copy of the store to alter."""
    return Path(shutil.copytree(RECORDED, tmp_path / "store"))


def earlier(graph):
    """The graph as it was before the audio's code version became 2."""
    video = Feature("example/video", ["video_id"], [Field("audio", "1"), Field("frames", "1")])
    return FeatureGraph([video, *(feature for feature in graph if feature.key != video.key)])


def test_the_definitions_are_read_with_the_versions_that_metaxy_gives_them(store):
    graph = store.graph()
    assert {feature.key for feature in graph} == set(ORDER)
    for name, found in (("after", graph), ("before", earlier(graph))):
        for key, expected in EXPECTED.items():
            versions = found.versions(key)
            assert (versions.feature, dict(versions.fields)) == (
                expected[name]["feature_version"],
                expected[name]["fields"],
            )


def test_all_of_a_definition_is_read(store):
    graph = store.graph()
    (faces,) = graph["example/face-detection"].deps
    assert (faces.rename, faces.filter) == ({"size": "bytes"}, "(bytes > 5) AND (bytes < 500)")
    (chunk,) = graph["example/chunk"].deps
    assert (chunk.lineage.kind, chunk.lineage.on, chunk.fields_mapping.kind) == ("expansion", ("video_id",), "all")
    chunks, optional = graph["example/summary"].deps
    assert (chunks.lineage.kind, chunks.fields_mapping.match_suffix) == ("aggregation", True)
    assert (optional.optional, optional.select) == (True, ())
    assert [ref.text for ref in graph.parents("example/summary", "all")] == [
        "example/chunk.audio/french",
        "example/face-detection.faces",
    ]


@pytest.mark.parametrize("key", ORDER)
@pytest.mark.parametrize("name", ["before", "after"])
def test_samples_are_read_as_metaxy_reads_them(store, name, key):
    """The last of each id, without those deleted softly or for good, of the present feature version alone."""
    graph = store.graph()
    rows = store.samples(graph if name == "after" else earlier(graph), key)
    assert rows.to_pylist() == EXPECTED[key][name]["rows"]
    assert set(SYSTEM_COLUMNS) <= set(rows.column_names)
    assert not [column for column in rows.column_names if column.startswith("metaxy_") and column not in SYSTEM_COLUMNS]


def test_the_hash_is_found_out_from_the_samples(store):
    assert store.hash(store.graph()) == METAXY


def resolved(graph, tables, key):
    feature = graph[key]
    frames = {dep.feature: tables[dep.feature] for dep in feature.deps}
    return resolve_frames(graph, key, None, frames, current=tables[key], how=METAXY).counts


def test_nothing_that_is_taken_over_is_computed_again(store):
    graph = store.graph()
    tables = {feature.key: store.samples(graph, feature.key) for feature in graph}
    for feature in graph:
        if feature.deps:
            counts = resolved(graph, tables, feature.key)
            assert not counts, feature.key
            assert counts.unchanged == 2


def test_what_changes_after_it_was_taken_over_is_computed(store):
    graph = store.graph()
    tables = {feature.key: store.samples(graph, feature.key) for feature in graph}
    changed = tables["example/crop"].to_pylist()
    changed[0][DATA_VERSION_BY_FIELD] = {"audio": "AAAA", "frames": "GGGG"}
    tables["example/crop"] = pa.Table.from_pylist(changed, tables["example/crop"].schema)
    counts = resolved(graph, tables, "example/face-detection")
    assert (counts.stale, counts.unchanged, counts.reasons) == (1, 1, {"faces": 1})


# --- other shapes of a store -----------------------------------------------------------------------------------------


def flat(folder):
    """The same store in Metaxy's other layout."""
    for table in sorted(folder.rglob("*.delta")):
        key = table.relative_to(folder).as_posix()
        shutil.move(table, folder / key.replace("/", "__").replace("-", "_"))


def test_a_flat_layout(copy):
    flat(copy)
    store = MetaxyStore(str(copy))
    graph = store.graph()
    assert store.samples(graph, "example/face-detection").num_rows == 2


def rewrite(copy, name, change):
    """Have another writer replace the rows of a table."""
    uri = str(copy / name)
    table = change(DeltaTable(uri).to_pyarrow_table())
    write_deltalake(uri, table, mode="overwrite", schema_mode="overwrite")


def with_column(name, values):
    def change(table):
        position = table.column_names.index(name)
        made = values(table[name]) if callable(values) else values
        return table.set_column(position, name, made)

    return change


def nulls(column):
    return pa.nulls(len(column), column.type)


def test_versions_that_are_maps(copy):
    def as_maps(table):
        for name in (PROVENANCE_BY_FIELD, DATA_VERSION_BY_FIELD):
            maps = pa.array([list(value.items()) for value in table[name].to_pylist()], pa.map_("string", "string"))
            table = table.set_column(table.column_names.index(name), name, maps)
        return table

    rewrite(copy, "example/crop.delta", as_maps)
    store = MetaxyStore(str(copy))
    assert store.samples(store.graph(), "example/crop").to_pylist() == EXPECTED["example/crop"]["after"]["rows"]


def hashed_by(how):
    def change(table):
        texts = pa.array(["|".join(value.values()) for value in table[PROVENANCE_BY_FIELD].to_pylist()])
        return arrow_samples.hashed(how, texts)

    return lambda table: with_column("metaxy_provenance", change(table))(table)


@pytest.mark.parametrize("how", [SampleHash("sha256", 64), SampleHash("md5", 12), SampleHash("xxh32", 10)], ids=str)
def test_other_hashes_are_found_out(copy, how):
    rewrite(copy, "example/video.delta", hashed_by(how))
    store = MetaxyStore(str(copy))
    assert store.hash(store.graph()) == how


def tagged(version):
    return with_column(
        "tags", lambda tags: pa.array([json.dumps({"metaxy": json.dumps({"version": version})})] * len(tags))
    )


def spec(change):
    """Have a member of the definition of crops changed."""

    def altered(specs):
        found = []
        for text in specs.to_pylist():
            members = json.loads(text)
            if members["key"] == "example/crop":
                change(members)
            found.append(json.dumps(members))
        return pa.array(found)

    return with_column("feature_spec", altered)


REFUSED = {
    "a newer Metaxy": (tagged("0.2.0"), UnsupportedFeature, r"written by Metaxy 0\.2\.0.* up to Metaxy 0\.1 "),
    "a much newer Metaxy": (tagged("12.0.1rc1"), UnsupportedFeature, r"written by Metaxy 12\.0\.1rc1"),
    "a version of no number": (tagged("unknown"), UnsupportedFeature, "written by Metaxy unknown"),
    "a member that nobody knows": (
        spec(lambda members: members["deps"][0].update(window="7d")),
        UnsupportedFeature,
        r"'example/crop'.* cannot be understood: deps\.0\.window: Extra inputs",
    ),
    "a lineage that nobody knows": (
        spec(lambda members: members["deps"][0]["lineage"]["relationship"].update(type="N:M")),
        UnsupportedFeature,
        r"lineage\.relationship\.type",
    ),
    "no JSON": (with_column("feature_spec", lambda specs: pa.array(["{"] * len(specs))), UnsupportedFeature, "JSON"),
    "no version": (with_column("metaxy_feature_version", nulls), UnsupportedFeature, "metaxy_feature_version"),
    "no time": (with_column("recorded_at", nulls), UnsupportedFeature, "recorded_at"),
    "no definition": (with_column("feature_spec", nulls), UnsupportedFeature, "feature_spec"),
    "no column of keys": (lambda table: table.drop_columns(["feature_key"]), UnsupportedFeature, "feature_key"),
    "another code version than was hashed": (
        spec(lambda members: members["fields"][0].update(code_version="9")),
        IntegrityError,
        "recorded the version 'fe237dc9' of feature 'example/crop', but ",
    ),
    "a cycle": (
        spec(lambda members: members["deps"][0].update(feature="example/face-detection")),
        InvalidInput,
        "depend on themselves",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_definitions_that_are_not_what_they_must_be_are_refused(copy, what):
    change, error, message = REFUSED[what]
    rewrite(copy, DEFINITIONS, change)
    with pytest.raises(error, match=message):
        MetaxyStore(str(copy)).graph()


def test_a_patch_of_the_known_series_is_read(copy):
    rewrite(copy, DEFINITIONS, tagged("0.1.99"))
    assert len(list(MetaxyStore(str(copy)).graph())) == 5


def test_a_store_to_which_no_definitions_were_pushed(copy, store):
    shutil.rmtree(copy / "metaxy-system")
    pushed = store.graph()
    store = MetaxyStore(str(copy))
    with pytest.raises(TableNotFound, match="no table of 'metaxy-system/feature_versions'"):
        store.graph()
    # Whoever has the definitions in Python can do without.
    assert store.samples(pushed, "example/crop").num_rows == 2


def test_what_is_no_store(tmp_path, store):
    with pytest.raises(TableNotFound, match="Check the location"):
        MetaxyStore(str(tmp_path)).graph()
    graph = FeatureGraph([*store.graph(), Feature("never/written", ["id"])])
    with pytest.raises(TableNotFound, match=r"neither never/written\.delta nor never__written\.delta"):
        store.samples(graph, "never/written")
    with pytest.raises(InvalidInput, match="no feature 'x'"):
        store.samples(graph, "x")


def test_tables_that_are_not_what_they_must_be_are_refused(copy):
    store = MetaxyStore(str(copy))
    graph = store.graph()
    rewrite(copy, "example/crop.delta", lambda table: table.drop_columns(["metaxy_updated_at"]))
    with pytest.raises(InvalidInput, match="no column 'metaxy_updated_at'"):
        store.samples(graph, "example/crop")
    rewrite(copy, "example/chunk.delta", with_column("metaxy_data_version", lambda v: pa.nulls(len(v), pa.string())))
    with pytest.raises(InvalidInput, match="have no metaxy_data_version"):
        store.samples(graph, "example/chunk")
    rewrite(
        copy,
        "example/summary.delta",
        with_column(PROVENANCE_BY_FIELD, lambda v: pa.array([{**row, "all": None} for row in v.to_pylist()], v.type)),
    )
    with pytest.raises(InvalidInput, match=r"2 samples have no metaxy_provenance_by_field\.all"):
        store.samples(graph, "example/summary")
    rewrite(copy, "example/video.delta", with_column("metaxy_updated_at", lambda v: pa.array(["today"] * len(v))))
    with pytest.raises(InvalidInput, match=r"'example/video' in .* has columns of other types than Metaxy gives them"):
        store.samples(graph, "example/video")


def test_hashes_that_nobody_knows_are_refused(copy):
    rewrite(copy, "example/video.delta", with_column("metaxy_provenance", lambda v: pa.array(["7" * 19] * len(v))))
    store = MetaxyStore(str(copy))
    with pytest.raises(UnsupportedFeature, match=r"hashed by none of sha256, md5, xxh32, .*: '7+', for one"):
        store.hash(store.graph())


def test_without_a_sample_there_is_no_hash(copy):
    rewrite(copy, "example/video.delta", lambda table: table.slice(0, 0))
    store = MetaxyStore(str(copy))
    graph = FeatureGraph([store.graph()["example/video"]])
    with pytest.raises(InvalidInput, match="No feature has samples"):
        store.hash(graph)


def test_of_two_rows_of_one_time_the_deleted_one_counts(copy):
    def twice(table):
        deleted = with_column("metaxy_deleted_at", lambda _: table["metaxy_updated_at"])(table)
        return pa.concat_tables([table, deleted])

    rewrite(copy, "example/crop.delta", twice)
    store = MetaxyStore(str(copy))
    assert store.samples(store.graph(), "example/crop").num_rows == 0
