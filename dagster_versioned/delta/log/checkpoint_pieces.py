"""A checkpoint in pieces, each of which is read by itself, so that nobody has to hold it as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.actions import Action
from dagster_versioned.delta.files.statistics import read_footer
from dagster_versioned.delta.log.checkpoint_read import SIDECARS, layout_of, read_files, read_head, sidecar_names
from dagster_versioned.delta.log.commits import CheckpointFiles
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class CheckpointPiece:
    """One file of a checkpoint, or some row groups of it, with ``rows`` actions of any kind.

    ``layout``: the `layout_of` the file, which may be replaced before it is read; ``None`` for one of JSON.
    """

    key: str
    row_groups: range | None
    rows: int
    layout: str | None = None


def checkpoint_pieces(
    store: ObjectStore, checkpoint: CheckpointFiles, row_groups: int
) -> tuple[tuple[Action, ...], list[CheckpointPiece]]:
    """What a checkpoint says of other things than files, and the pieces that may hold files, in an order that stays.

    A piece has at most ``row_groups`` of a file; of stores elsewhere it is a whole file, since it is fetched as a
    whole. Raises `LogCorrupt`, and `ObjectNotFound`, where a file is not there or cannot be read.
    """
    heads = [read_head(store, key) for key in checkpoint.keys]
    sidecars = [SIDECARS + name for _, names in heads for name in names]
    pieces: list[CheckpointPiece] = []
    for key in [*checkpoint.keys, *sidecars]:
        pieces += _pieces(store, key, row_groups)
    return tuple(chain.from_iterable(actions for actions, _ in heads)), pieces


def _pieces(store: ObjectStore, key: str, row_groups: int) -> Sequence[CheckpointPiece]:
    if key.endswith(".json"):
        files, tombstones = read_files(store, key)
        return [CheckpointPiece(key, None, files.num_rows + tombstones.num_rows)]
    metadata = _metadata(store, key)
    layout = layout_of(metadata)
    if store.local_path(key) is None:
        return [CheckpointPiece(key, None, metadata.num_rows, layout)]
    groups = range(metadata.num_row_groups)
    cuts = [groups[start : start + row_groups] for start in range(0, len(groups), row_groups)]
    return [CheckpointPiece(key, cut, sum(metadata.row_group(each).num_rows for each in cut), layout) for cut in cuts]


def is_larger(store: ObjectStore, checkpoint: CheckpointFiles, limit: int) -> bool:
    """Whether the files of a checkpoint have more than ``limit`` rows; those of JSON, which are small, count as none.

    Little is read: of tables that are not large this is asked, too. Raises `LogCorrupt`, `ObjectNotFound`.
    """
    count, sidecars = 0, list[str]()
    for key in checkpoint.keys:
        metadata = None if key.endswith(".json") else _metadata(store, key)
        count += 0 if metadata is None else metadata.num_rows
        if metadata is None or "sidecar" in _columns(metadata, key):
            sidecars += [SIDECARS + name for name in sidecar_names(store, key)]
    for key in sidecars:
        if count > limit:
            break
        count += _metadata(store, key).num_rows
    return count > limit


def _metadata(store: ObjectStore, key: str) -> pq.FileMetaData:
    path = store.local_path(key)
    try:
        return read_footer(store, key, store.head(key).size) if path is None else pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise LogCorrupt(f"{key}: the checkpoint cannot be read ({error}). Nothing was read.") from error


def _columns(metadata: pq.FileMetaData, key: str) -> list[str]:
    try:
        return metadata.schema.to_arrow_schema().names
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise LogCorrupt(f"{key}: the checkpoint cannot be read ({error}). Nothing was read.") from error
