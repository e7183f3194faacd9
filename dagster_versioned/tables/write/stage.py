"""From frames to writes: what a write says of each, and each frame written to parts that are staged."""

import logging
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.identity.version import TableType
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.upstream import Upstream
from dagster_versioned.tables.write.addition import Addition
from dagster_versioned.tables.write.constraints import require_frame
from dagster_versioned.tables.write.pending import OwnWrite, PendingWrite, VersionDescription
from dagster_versioned.tables.write.refresh import Refresh

logger = logging.getLogger("dagster_versioned")


@contextmanager
def staging_folder(store: ObjectStore) -> Generator[Staging]:
    """A staging folder of its own for one write; what is left if it cannot be deleted is garbage for vacuum."""
    staging = Staging(store, str(uuid.uuid4()))
    try:
        yield staging
    finally:
        try:
            staging.discard()
        except VersionedError:
            logger.warning("The staged files of write %s could not be deleted.", staging.write_id, exc_info=True)


def check_partitions(frames: Mapping[Any, Any]) -> None:
    """Raise `InvalidInput` unless these can be written together: one whole table (``None``), or partitions."""
    keys = list(frames)
    for key in keys:
        if not isinstance(key, str | None):
            raise InvalidInput(f"A partition key must be text, not {key!r:.100}. Nothing was written.")
    if len(keys) > 1 and None in keys:
        raise InvalidInput(
            "One write holds a whole table (key None) and partitions. Nothing was written. Write one or the other."
        )
    own = [frame for frame in frames.values() if isinstance(frame, OwnWrite) and not frame.beside_frames]
    if own and len(own) < len(keys):
        raise InvalidInput(
            f"One write holds a {type(own[0]).__name__} and a frame that replaces a partition. Nothing was written. "
            "Write them one after the other."
        )


def describe(
    asset_key: Sequence[str],
    parents: Sequence[Upstream],
    code_version: str | None,
    message: str | None,
    options: TableOptions,
) -> VersionDescription:
    """What a write says of one version. Raises `InvalidInput`."""
    if isinstance(asset_key, str):  # which tuple() would take apart, letter by letter
        raise InvalidInput(f"asset_key must be the parts of a key: [{asset_key!r:.100}]. Nothing was written.")
    kind: TableType = options.table_type or ("derived" if parents else "imported")
    return VersionDescription(
        asset_key=tuple(asset_key),
        table_type=kind,
        parents=tuple(upstream.parent for upstream in parents),
        source_lineage=tuple(source for upstream in parents for source in upstream.sources),
        code_version=code_version,
        message=message,
        custom=options.custom,
        built_from=tuple(parents),
    )


def stage(
    frame: Any,
    partition: str | None,
    description: VersionDescription,
    staging: Staging,
    options: TableOptions,
    constraints: Mapping[str, str],
    pinned: ExitStack,
    table_schema: Callable[[], StructType | None] = lambda: None,
) -> PendingWrite:
    """The frame as a pending write, which can be used until ``pinned`` is closed.

    ``table_schema`` gives the table's, for columns of the frame that have no type.
    """
    if isinstance(frame, OwnWrite):
        return frame.stage(partition, description, staging, options, constraints, pinned)
    engine = engine_for(frame)
    frame = engine.typed(frame, table_schema)
    refreshes = options.refresh == "changed_rows" and engine.refreshes
    if constraints or refreshes or options.mode != "replace":
        frame = pinned.enter_context(engine.pinned(frame))
    require_frame(engine, frame, constraints)
    if options.mode != "replace":
        return Addition(partition, description, frame, engine, staging, options)
    if refreshes:
        _require_nothing_hidden(options)
        return Refresh(partition, description, frame, engine, staging, options)
    write_options = options.write_options(partition)
    contents = engine.contents(frame, write_options)
    written = None if contents is not None else engine.write(frame, staging, write_options)
    known = contents if contents is not None else written.contents  # pyright: ignore[reportOptionalMemberAccess]
    return PendingWrite(
        partition,
        description,
        known,
        write_options.resolved_row_order(engine.default_row_order),
        written,
        lambda: engine.write(frame, staging, write_options, known),
        single_part=options.single_part,
        engine=engine,
        frame=frame,
    )


def _require_nothing_hidden(options: TableOptions) -> None:
    if options.hidden_columns:
        raise InvalidInput(
            f"The table has the personal columns {list(options.hidden_columns)}, of which nothing stays in files "
            "beside its rows, so it is written whole. Nothing was written. Leave refresh out."
        )
