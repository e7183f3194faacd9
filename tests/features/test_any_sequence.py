"""Whatever happens to samples, code and runs: a feature's table is what would be computed from scratch, and nothing was
computed again that is computed from the same."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dagster_versioned import Project
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, Lineage
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.upstream_files import UpstreamFiles

VIDEO = Feature("video", ["id"], [Field(name, columns=[name]) for name in ("sound", "image", "place")], [])
FIELDS = {"crop": ("sound", "image"), "face": ("faces",), "words": ("text",), "both": ("told",), "group": ("all",)}
ORDER = ("crop", "face", "words", "both", "group")
KEYS = {"group": "place"}
LETTERS = st.sampled_from("aAb")
IDS = st.integers(1, 6)


class Failure(Exception):
    pass


def graph_of(codes):
    def field(feature, name, *deps):
        return Field(name, codes[feature, name], [FieldDep(up, [theirs]) for up, theirs in deps])

    crop = Feature("crop", ["id"], [field("crop", name, ("video", name)) for name in ("sound", "image")], ["video"])
    face = Feature("face", ["id"], [field("face", "faces", ("crop", "image"))], ["crop"])
    words = Feature("words", ["id"], [field("words", "text", ("video", "sound"))], ["video"])
    loud = FeatureDep("words", select=["text"], filter="text <> 'B'", optional=True)
    both = Feature(
        "both", ["id"], [field("both", "told", ("crop", "sound"), ("words", "text"))], [FeatureDep("crop"), loud]
    )
    places = FeatureDep("video", lineage=Lineage.aggregation(["place"]))
    group = Feature("group", ["place"], [field("group", "all", ("video", "sound"))], [places])
    return FeatureGraph([VIDEO, crop, face, words, both, group])


def computed(feature, codes, rows):
    """What the function of a feature returns, from the fields that it says it is computed from."""

    def code(field):
        return codes[feature, field]

    match feature:
        case "crop":
            return [{"id": r["id"], **{f: code(f) + r[f] for f in FIELDS["crop"]}} for r in rows]
        case "face":
            return [{"id": r["id"], "faces": code("faces") + r["image"]} for r in rows]
        case "words":  # which says that equal texts are equal, whatever they were computed from
            return [
                {"id": r["id"], "text": (t := r["sound"].upper()), DATA_VERSION_BY_FIELD: {"text": t}} for r in rows
            ]
        case "both":
            return [{"id": r["id"], "told": f"{code('told')}{r['sound']}{r['text']}"} for r in rows]
        case _:
            found = {}
            for row in sorted(rows, key=lambda row: row["id"]):
                found[row["place"]] = found.get(row["place"], "") + row["sound"]
            return [{"place": place, "all": code("all") + text} for place, text in found.items()]


class Pipeline:
    """The tables of all features, in a folder."""

    def __init__(self, folder):
        self.project = Project.open("HOUSE", folder)

    def rows(self, key):
        table = self.project.table(key)
        key = KEYS.get(key, "id")
        return sorted(table.read().to_pylist(), key=lambda row: row[key]) if table.exists() else []

    def write_videos(self, graph, videos):
        rows = [{"id": key, **row} for key, row in sorted(videos.items())]
        types = [("id", pa.int64()), *((name, pa.string()) for name in ("sound", "image", "place"))]
        resolved = FeatureTable(graph, "video", self.project.table("video")).resolve_samples(
            pa.Table.from_pylist(rows, pa.schema(types))
        )
        if resolved.increment:
            table = self.project.table("video")
            table.write(resolved.finish(resolved.increment.changed if resolved.increment.todo else None))

    def run(self, graph, key, codes, size=100, fails_at=None, full=False):
        """Compute a feature; yields the keys of the samples of each chunk once it was written."""
        table = self.project.table(key)
        above = [dep.feature for dep in graph[key].deps]
        if not all(self.project.table(each).exists() for each in above):
            return
        upstreams = {each: UpstreamFiles(one, one.files()) for each in above for one in [self.project.table(each)]}
        resolved = FeatureTable(graph, key, table).resolve(upstreams, full=full)
        if not resolved.increment and not table.exists():
            return
        after = None
        for number, part in enumerate(resolved.increment.chunks(size)):
            rows = None
            if part.todo:
                given = part.changed.to_pylist()
                if number == fails_at:
                    raise Failure
                rows = pa.Table.from_pylist(computed(key, codes, given))
            after = table.write(resolved.finish(rows, part, after=after)).version
            yield {row[KEYS.get(key, "id")] for row in given} if part.todo else set()


class Walk(RuleBasedStateMachine):
    """Samples come, change, go and come back; code changes; runs cover some features, and some fail."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.pipeline = Pipeline(str(Path(self.folder.name) / "data"))
        self.videos = {}
        self.gone = {}
        self.codes = {(feature, field): "1" for feature, fields in FIELDS.items() for field in fields}
        self.inputs = {feature: {} for feature in ORDER}

    def teardown(self):
        self.run_all()
        self.is_what_would_be_computed_from_scratch()
        self.folder.cleanup()

    @initialize(rows=st.dictionaries(IDS, st.tuples(LETTERS, LETTERS, LETTERS), min_size=1))
    def begin(self, rows):
        self.videos = {key: self._row(*row) for key, row in rows.items()}
        self.pipeline.write_videos(graph_of(self.codes), self.videos)

    @rule(key=IDS, sound=LETTERS, image=LETTERS, place=LETTERS)
    def append_or_replace(self, key, sound, image, place):
        self.videos[key] = self._row(sound, image, place)

    @rule(data=st.data(), field=st.sampled_from(["sound", "image", "place"]), value=LETTERS)
    def edit(self, data, field, value):
        if self.videos:
            self.videos[data.draw(st.sampled_from(sorted(self.videos)))][field] = value

    @rule(data=st.data())
    def delete(self, data):
        if self.videos:
            key = data.draw(st.sampled_from(sorted(self.videos)))
            self.gone[key] = self.videos.pop(key)

    @rule()
    def restore(self):
        self.videos |= self.gone
        self.gone = {}

    @rule(which=st.sampled_from([(feature, field) for feature in ORDER for field in FIELDS[feature]]))
    def bump(self, which):
        self.codes[which] = str(int(self.codes[which]) + 1)

    @rule(
        features=st.sets(st.sampled_from(ORDER), min_size=1),
        size=st.integers(1, 4),
        fails_at=st.none() | st.integers(0, 2),
    )
    def run_some(self, features, size, fails_at):
        self.pipeline.write_videos(graph_of(self.codes), self.videos)
        for feature in ORDER:
            if feature in features:
                self._run(feature, size, fails_at)

    @rule()
    def run_all(self):
        self.pipeline.write_videos(graph_of(self.codes), self.videos)
        for feature in ORDER:
            self._run(feature)

    @rule(feature=st.sampled_from(ORDER))
    def compute_all_again(self, feature):
        self._run(feature, full=True)

    def _run(self, feature, size=100, fails_at=None, full=False):
        """Run a feature: it is asked for exactly the samples whose inputs are others than when they were computed."""
        expected = self._inputs(feature)
        if expected is None:
            return
        known = self.inputs[feature]
        stale = {key for key, given in expected.items() if known.get(key) != given}
        done = set()
        try:
            for keys in self.pipeline.run(graph_of(self.codes), feature, self.codes, size, fails_at, full):
                assert not keys & done
                done |= keys
                self.inputs[feature] = known = {key: given for key, given in known.items() if key in expected}
                known.update({key: expected[key] for key in keys})
            assert full or done == stale
        except Failure:
            assert done < stale or full
        assert full or done <= stale

    def _inputs(self, feature):
        """By sample, all that a feature is computed from, as its upstreams are stored now; none without upstreams."""
        above = {
            dep.feature: {row[KEYS.get(dep.feature, "id")]: row for row in self.pipeline.rows(dep.feature)}
            for dep in graph_of(self.codes)[feature].deps
        }
        if not all(self.pipeline.project.table(key).exists() for key in above):
            return None
        own = tuple(self.codes[feature, field] for field in FIELDS[feature])
        versions = {key: {k: r[DATA_VERSION_BY_FIELD] for k, r in rows.items()} for key, rows in above.items()}
        if feature == "group":
            places = {}
            for key, row in sorted(above["video"].items()):
                places.setdefault(row["place"], []).append(versions["video"][key]["sound"])
            return {place: (own, *texts) for place, texts in places.items()}
        if feature == "both":
            loud = {key: r["text"] for key, r in versions["words"].items() if above["words"][key]["text"] != "B"}
            return {key: (own, r["sound"], loud.get(key)) for key, r in versions["crop"].items()}
        ((up, rows),) = versions.items()
        used = {"crop": ("sound", "image"), "face": ("image",), "words": ("sound",)}[feature]
        return {key: (own, up, *(row[field] for field in used)) for key, row in rows.items()}

    def is_what_would_be_computed_from_scratch(self):
        with tempfile.TemporaryDirectory() as folder:
            afresh = Pipeline(folder)
            graph = graph_of(self.codes)
            if self.videos:
                afresh.write_videos(graph, self.videos)
            for feature in ORDER:
                list(afresh.run(graph, feature, self.codes))
            for feature in ("video", *ORDER):
                assert self.pipeline.rows(feature) == afresh.rows(feature)

    @staticmethod
    def _row(sound, image, place):
        return {"sound": sound, "image": image, "place": place}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_any_sequence_comes_to_what_would_be_computed_from_scratch_and_computes_nothing_twice():
    run_state_machine_as_test(
        Walk,
        settings=settings(
            max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
