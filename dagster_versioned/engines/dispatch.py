"""Which engine a frame, or an annotation, belongs to; decided by names, so that nothing is imported to ask."""

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.engine import Engine
from dagster_versioned.engines.events import EventEngine
from dagster_versioned.engines.frames import READABLE, WRITABLE, family_of, name_of, unreadable
from dagster_versioned.errors import UnsupportedFrame

SPARK_FRAME = "pyspark.sql.DataFrame"


def engine_for(frame: object) -> Engine:
    """The engine that writes this frame. Raises `UnsupportedFrame`, which lists what is supported."""
    if family_of(type(frame)) is not None:
        return ArrowEngine()
    if _is_spark(type(frame)):
        return _spark()
    raise UnsupportedFrame(
        f"A {name_of(type(frame))} cannot be stored as a table. Nothing was written. "
        f"Return one of: {', '.join((*WRITABLE, SPARK_FRAME))}."
    )


def engine_for_type(annotation: object) -> Engine:
    """The engine that reads tables as this type. Raises `UnsupportedFrame`, which lists what is supported."""
    if isinstance(annotation, type):
        if family_of(annotation) in READABLE:
            return ArrowEngine()
        if _is_spark(annotation):
            return _spark()
    raise unreadable(annotation, (*READABLE, SPARK_FRAME))


def event_engine_for(frame_type: type) -> EventEngine:
    """What makes events of frames of a type, and frames of events. Raises `UnsupportedFrame`."""
    if isinstance(engine_for_type(frame_type), ArrowEngine):
        from dagster_versioned.engines.arrow_events import ArrowEvents

        return ArrowEvents()
    from dagster_versioned.engines.spark.events import SparkEvents

    return SparkEvents(counts=frame_type.__module__.startswith("pyspark.sql.classic"))


def _is_spark(frame_type: type) -> bool:
    return any(
        base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in frame_type.__mro__
    )


def _spark() -> Engine:
    from dagster_versioned.engines.spark import SparkEngine

    return SparkEngine()
