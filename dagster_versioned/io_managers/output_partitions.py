"""What an asset returned, as a frame for each partition that the run covers."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import dagster as dg

from dagster_versioned.assets.graph.inputs import plain
from dagster_versioned.assets.reuse.reuse_step import KeptOutput
from dagster_versioned.engines.dispatch import split_rows
from dagster_versioned.engines.row_partitions import KeyColumn, RowPartitions
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.partitioning import shown

PARTITION_COLUMN_KEY = "partition_expr"
"""Asset metadata that names the column that says which partition a row is of; the key is Dagster's own.

For partitions of several dimensions, a dict of columns by dimension.
"""


@contextmanager
def frames_by_partition(context: dg.OutputContext, obj: Any, *, allow_empty: bool) -> Generator[dict[str | None, Any]]:
    """The frames to write by partition, the whole table as ``None``; they can be used until the block ends.

    Raises `InvalidInput` where they are not those of the run's partitions.
    """
    if isinstance(obj, KeptOutput):
        with ExitStack() as pinned:
            frames: dict[str | None, Any] = dict(obj.kept)
            for stretch, value in obj.computed:
                frames |= pinned.enter_context(_frames(context, value, sorted(stretch), allow_empty=allow_empty))
            yield {key: frames[key] for key in sorted(frames, key=str)}
        return
    keys = sorted(map(str, context.asset_partition_keys)) if context.has_asset_partitions else None
    with _frames(context, obj, keys, allow_empty=allow_empty) as frames:
        yield frames


@contextmanager
def _frames(
    context: dg.OutputContext, obj: Any, keys: Sequence[str] | None, *, allow_empty: bool
) -> Generator[dict[str | None, Any]]:
    """Those of one value of the function; ``keys`` are the partitions that it is of."""
    asset = context.asset_key.to_user_string()
    if obj is None:
        raise InvalidInput(
            f"The asset {asset} returned None, which is no table. Nothing was written. Return a frame, or annotate the "
            "function with -> None, so that it is not asked for one."
        )
    if keys is None:
        yield {None: obj}
        return
    column = plain(context.definition_metadata, PARTITION_COLUMN_KEY)
    if isinstance(obj, Mapping):
        yield _by_key(asset, cast("Mapping[Any, Any]", obj), keys)
    elif column is not None:
        with split_rows(obj, _row_partitions(context, column, keys), allow_empty=allow_empty) as frames:
            yield {key: frames[key] for key in keys}
    elif len(keys) == 1:
        yield {keys[0]: obj}
    else:
        raise InvalidInput(
            f"The run covers {len(keys)} partitions of {asset} ({shown(keys)}), but the value is one "
            f"{type(obj).__name__}. Nothing was written. Return a dict of frames by partition key, name the column "
            f"that holds the key in the asset's metadata ({{'{PARTITION_COLUMN_KEY}': 'day'}}), or give the asset "
            "backfill_policy=dg.BackfillPolicy.multi_run(1)."
        )


def _by_key(asset: str, frames_by_key: Mapping[Any, Any], keys: Sequence[str]) -> dict[str | None, Any]:
    frames = {str(key): frame for key, frame in frames_by_key.items()}
    if frames.keys() != set(keys):
        missing, extra = sorted(set(keys) - frames.keys()), sorted(frames.keys() - set(keys))
        faults = [f"{word} {shown(named)}" for word, named in (("lacks", missing), ("also has", extra)) if named]
        raise InvalidInput(
            f"The value of {asset} {' and '.join(faults)}: the run covers {len(keys)} partitions. Nothing was written. "
            "Return exactly one frame for each of context.partition_keys."
        )
    return {key: frames[key] for key in keys}


def _row_partitions(context: dg.OutputContext, column: Any, keys: Sequence[str]) -> RowPartitions:
    definition = context.asset_partitions_def
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        if not isinstance(column, str):
            raise _not_columns(context, column, "a column name")
        return RowPartitions(tuple(keys), (_key_column(column, keys, definition),))
    dimensions = {dimension.name: dimension.partitions_def for dimension in definition.partitions_defs}
    columns: Any = column
    if not isinstance(column, Mapping) or columns.keys() != dimensions.keys():
        raise _not_columns(context, column, f"a dict of column names by dimension ({', '.join(dimensions)})")
    parts = [definition.get_partition_key_from_str(key).keys_by_dimension for key in keys]
    return RowPartitions(
        tuple(keys),
        tuple(
            _key_column(str(columns[name]), [part[name] for part in parts], dimension)
            for name, dimension in dimensions.items()
        ),
    )


def _key_column(name: str, keys: Sequence[str], definition: dg.PartitionsDefinition[Any]) -> KeyColumn:
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return KeyColumn(name, tuple(keys))
    windows = (definition.time_window_for_partition_key(key) for key in keys)
    return KeyColumn(name, tuple(keys), tuple((window.start, window.end) for window in windows))


def _not_columns(context: dg.OutputContext, given: Any, wanted: str) -> InvalidInput:
    return InvalidInput(
        f"The metadata {PARTITION_COLUMN_KEY!r} of {context.asset_key.to_user_string()} is {given!r:.100}, and has to "
        f"be {wanted}. Nothing was written."
    )
