"""What is no asset: the outputs of a job's ops, which another IO manager stores and loads."""

from collections.abc import Generator, Mapping
from typing import Any, cast

import dagster as dg

from dagster_versioned.engines.dispatch import is_spark_frame
from dagster_versioned.errors import InvalidInput
from dagster_versioned.io_managers.attempt import input_text


def hand_on(context: dg.OutputContext, obj: Any, fallback: Any) -> None:
    """Give the fallback what is no asset. Raises what that does, `InvalidInput` for a frame of Spark."""
    manager = _io_manager(fallback, f"output {context.name!r}")
    try:
        _show(context, manager.handle_output(context, obj))
    except Exception as error:
        if not is_spark_frame(obj):
            raise
        raise InvalidInput(
            f"The output {context.name!r} is no asset, so it goes to the fallback of this IO manager, a "
            f"{type(manager).__name__}, which cannot keep a frame of Spark ({type(error).__name__}). It was not "
            "stored. Return a frame of pyarrow, pandas or Polars, or make an asset of it; where all steps are one "
            "process, fallback=dg.mem_io_manager keeps it."
        ) from error


def hand_back(context: dg.InputContext, fallback: Any) -> Any:
    """What the fallback has for an input. Raises what that does."""
    return _io_manager(fallback, input_text(context)).load_input(context)


def _io_manager(fallback: Any, value: str) -> dg.IOManager:
    """The fallback, for ``value``: a factory has made it by now, if Dagster started this."""
    if not isinstance(fallback, dg.IOManager):
        raise InvalidInput(
            f"The {value} is no asset, and the fallback of this IO manager, {type(fallback).__name__}, is no "
            "IO manager. Nothing was read or written. Give fallback= an IO manager or a factory of one; outside "
            "of a run, where no factory is asked, an IO manager."
        )
    return fallback


def _show(context: dg.OutputContext, handled: Any) -> None:
    if not isinstance(handled, Generator):
        return
    for event in cast("Generator[Any]", handled):
        if isinstance(event, Mapping):
            context.add_output_metadata(event)
        else:
            context.log_event(event)
