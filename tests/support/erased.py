"""People, some of whom are erased, and the search for what is left of them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.storage.object_store import ObjectStore


def people(numbers: list[int], serial: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"person-{number:04d}-{serial}" for number in numbers],
            "x": pa.array([number / 3 if number % 5 else None for number in numbers], pa.float64()),
        }
    )


def assert_gone(place: Path | ObjectStore, *texts: str) -> None:
    """No file below a folder, or object of a store, has any of the texts, decompressed or not."""
    if isinstance(place, Path):
        files = ((str(file), file.read_bytes()) for file in place.rglob("*") if file.is_file())
    else:
        files = ((info.key, place.get(info.key)) for info in place.list())
    for name, data in files:
        rows = str(pq.read_table(pa.BufferReader(data)).to_pylist()) if name.endswith(".parquet") else ""
        for text in texts:
            assert text.encode() not in data, (name, text)
            assert text not in rows, (name, text)
