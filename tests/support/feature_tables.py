"""A project of feature tables, and the features that most tests of them have."""

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned import Project, resolve_update
from dagster_versioned.engines.samples import SYSTEM_COLUMNS
from dagster_versioned.features.definitions import Feature, Field, FieldDep
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.options import TableOptions

VIDEO = Feature("video", ["id"], [Field("sound", columns=["sound"]), Field("image", columns=["image"])])


def graph_of(*features):
    return FeatureGraph([VIDEO, *features])


def words(code="1"):
    return Feature("words", ["id"], [Field("text", code, [FieldDep("video", ["sound"])])], ["video"])


def videos(*rows):
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "sound": pa.array([row[1] for row in rows], pa.string()),
            "image": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def table_of(names, *rows):
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


BASE = [(1, "a", "x"), (2, "b", "y"), (3, "c", "z")]


class Tables:
    """A project whose features are computed by one engine, from functions of Arrow tables."""

    def __init__(self, path, spark=None, name="HOUSE"):
        self.project = Project.open(name, str(path))
        self.spark = spark
        self.as_type = type(spark.range(0)) if spark else pa.Table

    def arrow(self, frame):
        if not self.spark:
            return frame
        rows = frame.toArrow()
        return rows.take(pc.sort_indices(rows.column(0)))

    def table(self, key):
        return self.project.table([*key.split("/")])

    def upstream(self, key):
        table = self.table(key)
        return UpstreamFiles(table, table.files())

    def head(self, key):
        return self.table(key).version()

    def record(self, key):
        return FeatureRecord.of(self.head(key).identity.custom)

    def computed(self):
        """A graph of videos and words, and both computed from the rows of `BASE`."""
        graph = graph_of(words())
        self.write_plain("video", videos(*BASE))
        self.step(graph, "words", loud)
        return graph

    def write_plain(self, key, rows):
        return self.table(key).write(rows, options=TableOptions(allow_empty=True))

    def root(self, graph, key, samples, *, written=None, **options):
        table = self.table(key)
        if self.spark:
            samples = self.spark.createDataFrame(samples)
        with FeatureTable(graph, key, table).resolve_samples(samples, **options) as resolved:
            increment = resolved.increment
            update = resolved.finish(increment.changed if increment.todo else None)
            return table.write(update, options=written or TableOptions()), increment

    def resolve(self, graph, key, *, how=None, **options):
        upstreams = {dep.feature: self.upstream(dep.feature) for dep in graph[key].deps}
        options = {"as_type": self.as_type, **options}
        return FeatureTable(graph, key, self.table(key), how).resolve(upstreams, **options)

    def step(self, graph, key, body, **options):
        """Compute and write what is stale of a feature; what it came to and the increment."""
        with self.resolve(graph, key, **options) as resolved:
            increment = resolved.increment
            rows = body(self.arrow(increment.changed)) if increment.todo else None
            return self.table(key).write(resolved.finish(rows)), increment

    def follow(self, graph, key, body, **options):
        """As `step`, with the versions that it is computed from as parents, as a run of Dagster records them."""
        parents = [one for dep in graph[key].deps for one in self.table(dep.feature).upstream()]
        with self.resolve(graph, key, **options) as resolved:
            increment = resolved.increment
            rows = body(self.arrow(increment.changed)) if increment.todo else None
            return self.table(key).write(resolved.finish(rows), parents=parents), increment

    def rows(self, key):
        rows = self.table(key).read().to_pylist()
        return {row["id"]: {name: row[name] for name in row if name not in SYSTEM_COLUMNS} for row in rows}


def loud(rows):
    """What the feature ``words`` computes: the sound in capitals."""
    return pa.table({"id": rows["id"], "text": [text.upper() for text in rows["sound"].to_pylist()]})


def counted(increment):
    counts = increment.counts
    return counts.new, counts.stale, counts.orphaned, counts.unchanged


def update_videos(project, graph, *rows, **options):
    """The videos as samples of a feature, written by `resolve_update`."""
    with resolve_update(project, graph, VIDEO, samples=videos(*rows), **options) as update:
        return update.write()


def update_words(project, graph, key="words", *, written=None, **options):
    """What is stale of a feature of the videos, by `resolve_update`: how much that is, and what writing it came to."""
    with resolve_update(project, graph, key, **options) as update:
        rows = loud(update.increment.changed) if update.increment.todo else None
        return counted(update.increment), update.write(rows, options=written)
