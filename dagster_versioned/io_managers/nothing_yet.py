"""Inputs of which nothing is there yet: the partition before the first, and those that were never materialized."""

from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

import dagster as dg
import pyarrow as pa

from dagster_versioned.assets.graph.inputs import ALLOW_MISSING_KEY, plain
from dagster_versioned.dagster_internals import partition_loading_context
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.dispatch import engine_for_type
from dagster_versioned.engines.frames import to_frame

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext


def without_none(annotation: Any) -> tuple[Any, bool]:
    """What an annotation such as ``pl.DataFrame | None`` is of, and whether it allows ``None``."""
    args = get_args(annotation)
    if NoneType not in args or len(args) != 2:
        return annotation, False
    return next(arg for arg in args if arg is not NoneType), True


def may_lack(context: dg.InputContext, step: "StepExecutionContext | None", partitions: list[str]) -> bool:
    """Whether an input of partitions may do without these, which have no version.

    Where its metadata say so (`ALLOW_MISSING_KEY`), and where these are what the run itself is to make. There are none
    to lack where its partition mapping leads to before the first.
    """
    allowed = bool(plain(context.definition_metadata, ALLOW_MISSING_KEY))
    return allowed or set(partitions) <= _made_by_run(context, step)


def no_columns(frame_type: Any) -> Any:
    """A frame without rows where not even the columns are known. Raises `UnsupportedFrame`."""
    if isinstance(engine_for_type(frame_type), ArrowEngine):
        return to_frame(pa.table({}), frame_type)
    from dagster_versioned.engines.spark.session import default_session

    return default_session().createDataFrame([], "struct<>")


def _made_by_run(context: dg.InputContext, step: "StepExecutionContext | None") -> frozenset[str]:
    if step is None or step.assets_def is None or context.asset_key not in step.assets_def.keys:
        return frozenset()
    definition = step.run_partitions_def
    if definition is None or not step.has_partition_key_range:
        return frozenset()
    with partition_loading_context(dynamic_partitions_store=step.instance):
        return frozenset(definition.get_partition_keys_in_range(step.partition_key_range))
