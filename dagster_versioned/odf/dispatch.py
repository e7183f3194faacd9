"""Which engine makes events of a frame, and frames of events."""

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.dispatch import engine_for_type
from dagster_versioned.odf.event_sql import EventEngine


def event_engine_for(frame_type: type) -> EventEngine:
    """What makes events of frames of a type, and frames of events. Raises `UnsupportedFrame`."""
    if isinstance(engine_for_type(frame_type), ArrowEngine):
        from dagster_versioned.odf.arrow.events import ArrowEvents

        return ArrowEvents()
    from dagster_versioned.engines.spark.catalyst import is_classic
    from dagster_versioned.odf.spark.events import SparkEvents

    return SparkEvents(counts=is_classic(frame_type))
