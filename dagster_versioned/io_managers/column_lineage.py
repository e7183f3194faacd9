"""Where the columns of an output come from, by what a Spark frame says of itself."""

from typing import Any

import dagster as dg

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.tables.write.kept import KeptVersion


def as_source(frame: Any, asset_key: dg.AssetKey) -> Any:
    """The frame of an input; a Spark frame remembers of which asset it is."""
    if isinstance(engine_for(frame), ArrowEngine):
        return frame
    from dagster_versioned.engines.spark.column_lineage import as_source

    return as_source(frame, asset_key.to_user_string())


def column_lineage(frame: Any) -> dg.TableColumnLineage | None:
    """The lineage of a Spark frame's columns; ``None`` for other frames, and where nothing is known."""
    if isinstance(frame, SampleUpdate):
        frame = frame.frame
    if isinstance(frame, KeptVersion) or isinstance(engine_for(frame), ArrowEngine):
        return None
    from dagster_versioned.engines.spark.column_lineage import column_lineage

    found = column_lineage(frame)
    if not found:
        return None
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(dg.AssetKey.from_user_string(origin.source), origin.column) for origin in origins]
            for name, origins in found.items()
        }
    )
