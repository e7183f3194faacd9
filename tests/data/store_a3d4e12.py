"""Writes the store beside this file anew; run with the package of commit a3d4e12 on the path."""

import sys
import time
from pathlib import Path

import pyarrow as pa

from dagster_versioned.features.definitions import Feature, Field, FieldDep
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.identity.version import Run
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.tables.environments import create_environment
from dagster_versioned.tables.event_history import EventHistory, UpsertMerge
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parked.park import park
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.promote import promote
from dagster_versioned.tables.write.pending import OpenComputation

FOLDER = Path(sys.argv[1])
APPEND = TableOptions(mode="append")
KEY = "ab" * 32
VIDEO = Feature("video", ["id"], [Field("sound", "1", columns=["sound"])])
WORDS = Feature("words", ["id"], [Field("text", "1", [FieldDep("video", ["sound"])])], ["video"])


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": list(values)})


def shout(graph: FeatureGraph, project: Project) -> None:
    video = project.table("video")
    with FeatureTable(graph, "words", project.table("words")).resolve(
        {"video": UpstreamFiles(video, video.files())}
    ) as resolved:
        changed = resolved.increment.changed
        loud = pa.table({"id": changed["id"], "text": [text.upper() for text in changed["sound"].to_pylist()]})
        project.table("words").write(resolved.finish(loud), parents=video.upstream())


project = Project.open("NYC", str(FOLDER), author="Ada <ada@example.org>")

raw = project.table("raw")
raw.write(numbers(1, 2), options=APPEND)
raw.write(numbers(3), options=APPEND)
project.tag("before", by="Ada", why="a tag")
clean = project.table("clean")
clean.write(numbers(1), parents=raw.upstream(), code_version="1")

made = project.table("made")
made.write_partitions({None: numbers(7)}, computations={None: OpenComputation(KEY, time.monotonic())})
made.write(numbers(8))

project.table("first_name").write(numbers(5))
project.table("first_name").rename("renamed", dry_run=False)

floats = pa.table({"key": [1, 2, 3], "x": [0.5, float("nan"), -0.0]})
vectors = TableOptions(mode="merge", merge_key=("key",), properties={"delta.enableDeletionVectors": "true"})
project.table("vectors").write(floats, options=vectors)
project.table("vectors").write(pa.table({"key": [1], "x": [1.5]}), options=vectors)

video = project.table("video")
video.write(pa.table({"id": [1, 2], "sound": ["a", "b"]}))
shout(FeatureGraph([VIDEO, WORDS]), project)

events = EventTable(project.table("events"), EventHistory(merge=UpsertMerge(primary_key=("id",))))
events.write(pa.table({"id": [1, 2], "delay": [5, 6]}))
events.write(pa.table({"id": [1, 3], "delay": [7, 8]}))

for name in ("open", "done"):
    create_environment(project, name, by="Ada")
    inside = project.in_environment(name)
    inside.table("clean").write(numbers(1, len(name)), parents=inside.table("raw").upstream(), code_version=name)
    inside.table(f"of_{name}").write(numbers(len(name)), code_version="1")
promote(project, "done", dry_run=False, by="Ada")

park(raw, {None: numbers(4)}, run=Run("waiting", "raw", 0), options=APPEND)
