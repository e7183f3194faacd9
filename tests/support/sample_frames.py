"""Samples of frames that are no tables, compared by either engine."""

from dataclasses import replace

from dagster_versioned.engines.samples import SampleHash
from dagster_versioned.features.arrow import samples as arrow_samples
from dagster_versioned.features.resolve import sample_plan


def resolve_frames(graph, key, spark, frames=None, *, samples=None, current=None, how=None):
    """Which samples of a feature are new, stale and orphaned, as Arrow tables; by Spark if there is a session."""
    from dagster_versioned.engines.spark import samples as spark_samples

    resolver = spark_samples if spark else arrow_samples

    def given(table):
        return spark.createDataFrame(table) if spark and table is not None else table

    def table(frame):
        return frame.toArrow() if spark else frame

    plan = sample_plan(graph, key, how or SampleHash())
    if graph[key].deps:
        upstreams = {name: given(frame) for name, frame in frames.items()}
        changes = resolver.resolve(plan, upstreams, given(current))
    else:
        changes = resolver.resolve_samples(plan, given(samples), given(current))
    return replace(changes, **{kind: table(getattr(changes, kind)) for kind in ("new", "stale", "orphaned")})
