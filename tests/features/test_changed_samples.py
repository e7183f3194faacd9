"""What a feature lacks is found in the files in which its upstreams changed; all samples are compared where need be."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.engines.samples import SYSTEM_COLUMNS
from dagster_versioned.features.definitions import Feature, Field, FieldDep
from dagster_versioned.tables.options import TableOptions
from support.feature_tables import BASE, Tables, counted, graph_of, loud, videos, words
from support.sample_frames import resolve_frames

VECTORS = TableOptions(properties={"delta.enableDeletionVectors": "true"})


def scene(code="1"):
    """A feature of two upstreams, of which one is itself a feature of the other."""
    fields = [
        Field("all", code, [FieldDep("video", ["sound", "image"]), FieldDep("words", ["text"])]),
        Field("seen", "1", [FieldDep("video", ["image"])]),
    ]
    return Feature("scene", ["id"], fields, ["video", "words"])


def of_scene(rows):
    return rows.select(["id"]).append_column("all", pa.array([str(row) for row in rows.to_pylist()], pa.string()))


def ids(frame):
    return sorted(frame["id"].to_pylist())


def parts(table):
    return [Path(table.store.local_path(add.key)) for add in table.files().adds]


def test_where_nothing_that_counts_changed_no_file_is_read(either):
    graph = graph_of(words())
    either.root(graph, "video", videos(*BASE))
    either.follow(graph, "words", loud)
    either.root(graph, "video", videos(*[(row[0], row[1], "another image") for row in BASE]))
    for part in (*parts(either.table("video")), *parts(either.table("words"))):
        part.unlink()
    with either.resolve(graph, "words") as resolved:
        assert counted(resolved.increment) == (0, 0, 0, 3)
        assert ids(either.arrow(resolved.increment.changed)) == []


@pytest.mark.parametrize("written", [None, VECTORS], ids=["rewritten", "vectors"])
def test_of_an_upstream_that_changed_only_files_of_one_version_are_read(either, written):
    graph = graph_of(words())
    many = [(i, f"sound {i}", "x") for i in range(200)]
    either.root(graph, "video", videos(*many), written=written)
    common = parts(either.table("video"))
    either.follow(graph, "words", loud)
    later = [(1000, "new", "x"), *((i, "other" if i == 7 else sound, x) for i, sound, x in many if i != 9)]
    either.root(graph, "video", videos(*later), written=written)
    kept = [part for part in parts(either.table("video")) if part in common]
    assert bool(kept) == (written is VECTORS)
    with either.resolve(graph, "words") as resolved:
        increment = resolved.increment
        assert counted(increment) == (1, 1, 1, 198)
        assert increment.reasons == {"text": 1}
        changed = either.arrow(increment.changed)
        assert changed.select(["id", "sound"]).to_pylist() == [
            {"id": 7, "sound": "other"},
            {"id": 1000, "sound": "new"},
        ]
        assert ids(either.arrow(increment.orphaned)) == [9]
        if written is VECTORS:
            assert ids(either.arrow(increment.stale)) == [7]


@pytest.mark.parametrize("why", ["no parents", "expired", "a piece is missing", "code"])
def test_all_samples_are_compared_where_it_is_not_known_what_they_were_computed_from(tables, why):
    graph = graph_of(words())
    tables.root(graph, "video", videos(*BASE))
    if why == "no parents":
        tables.step(graph, "words", loud)
    elif why == "a piece is missing":
        with tables.resolve(graph, "words") as resolved:
            part = next(resolved.increment.chunks(2))
            update = resolved.finish(loud(part.changed), part)
            tables.table("words").write(update, parents=tables.table("video").upstream())
    else:
        tables.follow(graph, "words", loud)
    tables.root(graph, "video", videos(BASE[0], (2, "B", "y"), BASE[2]))
    if why == "expired":
        tables.table("video").expire(keep_last=1, dry_run=False)
    if why == "code":
        graph = graph_of(words("2"))
    with tables.resolve(graph, "words") as resolved:
        expected = {"a piece is missing": (1, 1, 0, 1), "code": (0, 3, 0, 0)}
        assert counted(resolved.increment) == expected.get(why, (0, 1, 0, 2))


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "seed", [seed if seed < 3 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(12)]
)
def test_at_random_it_is_what_comparing_all_samples_gives(tmp_path, seed):
    check_at_random(Tables(tmp_path), seed, 14)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_at_random_it_is_what_comparing_all_samples_gives_on_spark(tmp_path, spark, seed):
    check_at_random(Tables(tmp_path, spark), seed, 8)


def check_at_random(tables, seed, steps):
    """Change, compute and take back; compare each time with the comparison of all samples."""
    chance = random.Random(seed)
    code = 1
    graph = graph_of(words(), scene())
    rows = {i: (i, "a", "x") for i in range(20)}
    for _ in range(steps):
        match chance.choice(["root", "root", "words", "scene", "scene", "revert", "code"]):
            case "root":
                for i in chance.sample(range(30), chance.randint(0, 6)):
                    rows[i] = (i, chance.choice("abc"), chance.choice("xyz"))
                for i in chance.sample(sorted(rows), min(len(rows) - 1, chance.randint(0, 3))):
                    del rows[i]
                written = chance.choice([None, VECTORS])
                tables.root(graph, "video", videos(*(rows[i] for i in sorted(rows))), written=written)
            case "revert" if tables.table("video").exists():
                tables.table("video").revert(chance.choice(tables.table("video").history()).metadata_sha)
            case "code":
                code += 1
                graph = graph_of(words(str(code // 2)), scene(str(code)))
            case "words" | "scene" as key if all(tables.table(dep.feature).exists() for dep in graph[key].deps):
                with_parents = tables.follow if chance.random() < 0.8 else tables.step
                with_parents(graph, key, loud if key == "words" else of_scene)
        for key in ("words", "scene"):
            if all(tables.table(dep.feature).exists() for dep in graph[key].deps):
                compare(tables, graph, key)


def compare(tables, graph, key):
    frames = {dep.feature: tables.table(dep.feature).read() for dep in graph[key].deps}
    stored = tables.table(key).read() if tables.table(key).exists() else None
    expected = resolve_frames(graph, key, None, frames, current=stored)
    with tables.resolve(graph, key) as resolved:
        found = resolved.increment
        assert found.counts == expected.counts
        for kind in ("new", "stale", "orphaned"):
            assert ids(tables.arrow(getattr(found, kind))) == ids(getattr(expected, kind))
        assert plain(tables.arrow(found.changed)) == plain(pa.concat_tables([expected.new, expected.stale]))


def plain(rows):
    names = [name for name in rows.column_names if name not in SYSTEM_COLUMNS]
    return sorted(rows.select(names).to_pylist(), key=lambda row: row["id"])
