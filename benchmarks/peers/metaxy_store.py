"""Metaxy as a contestant of `increment.py`: one JSON object a line in, a JSON object out.

Run by the Python of an environment with ``metaxy[delta,duckdb]==0.1.11 duckdb==1.4.4 sqlglot==28.6.0`` (newer ones of
the latter two do not go with it).
"""

import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import duckdb
import metaxy as mx
import narwhals as nw
import polars as pl
from metaxy.config import MetaxyConfig
from metaxy.ext.duckdb import DuckDBMetadataStore
from metaxy.ext.polars.handlers.delta import DeltaMetadataStore
from metaxy.versioning.types import HashAlgorithm

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

FIELDS = ("audio", "frames", "text", "thumbnail")
PIECE = 1_000_000
"""Rows that are written at a time, as a user with many would."""

MetaxyConfig.set(MetaxyConfig(project="benchmark", auto_create_tables=True, hash_truncation_length=32))
_graph = mx.FeatureGraph()
with _graph.use():
    _fields = [mx.FieldSpec(key=field, code_version="1") for field in FIELDS]

    class Video(mx.BaseFeature, spec=mx.FeatureSpec(key="video", id_columns=["video_id"], fields=_fields)):
        video_id: int
        path: str
        duration: float

    class Crop(mx.BaseFeature, spec=mx.FeatureSpec(key="crop", id_columns=["video_id"], deps=[Video], fields=_fields)):
        video_id: int


def opened(kind: str, folder: str) -> Any:
    """The store in a folder; samples are hashed by MD5, which both have."""
    if kind == "delta":
        return DeltaMetadataStore(folder, hash_algorithm=HashAlgorithm.MD5)
    store = DuckDBMetadataStore(str(Path(folder) / "store.duckdb"), hash_algorithm=HashAlgorithm.MD5)
    store.extensions = []  # the one that it would download is for other algorithms
    return store


def videos(source: str, where: str) -> Any:
    """The samples of a Parquet file, by pieces, with a provenance by field from its columns ``audio`` and so on."""
    struct = ", ".join(f"{field} := {field}" for field in FIELDS)
    reader = duckdb.sql(
        f"SELECT video_id, path, duration, struct_pack({struct}) AS metaxy_provenance_by_field"
        f" FROM read_parquet('{source}') WHERE {where}"
    ).fetch_arrow_reader(PIECE)
    for batch in reader:
        yield pl.from_arrow(batch)


def write(store: Any, source: str, where: str) -> None:
    """Samples of the upstream."""
    with _graph.use(), store.open(mode="w"):
        for piece in videos(source, where):
            store.write(Video, piece)


def follow(store: Any) -> None:
    """Bring the downstream feature up to the upstream."""
    with _graph.use(), store.open(mode="w"):
        increment = store.resolve_update(Crop)
        changed = pl.concat([nw.from_native(frame).to_polars() for frame in (increment.new, increment.stale)])
        store.write(Crop, changed.drop("path", "duration"))


def resolve(store: Any) -> dict[str, int]:
    """The increment, in memory: how many samples it has of each kind."""
    with _graph.use(), store.open(mode="r"):
        increment = store.resolve_update(Crop)
        return {
            kind: len(nw.from_native(getattr(increment, kind)).to_polars()) for kind in ("new", "stale", "orphaned")
        }


def main() -> None:
    stores: dict[str, Any] = {}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        store = stores.setdefault(asked["kind"], opened(asked["kind"], asked["folder"]))
        answer: dict[str, Any] = {}
        start = time.perf_counter()
        match asked["operation"]:
            case "write":
                write(store, asked["source"], asked["where"])
            case "follow":
                follow(store)
            case "resolve":
                answer = resolve(store)
            case other:
                raise ValueError(other)
        print(json.dumps({"seconds": time.perf_counter() - start, **answer}), flush=True)


if __name__ == "__main__":
    main()
