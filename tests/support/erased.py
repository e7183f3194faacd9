"""People, some of whom are erased, and the search for what is left of them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def people(numbers: list[int], serial: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"person-{number:04d}-{serial}" for number in numbers],
            "x": pa.array([number / 3 if number % 5 else None for number in numbers], pa.float64()),
        }
    )


def assert_gone(folder: Path, *texts: str) -> None:
    """No file below a folder has any of the texts, decompressed or not."""
    for file in folder.rglob("*"):
        if not file.is_file():
            continue
        data = file.read_bytes()
        if file.suffix == ".parquet":
            data += str(pq.read_table(file).to_pylist()).encode()
        for text in texts:
            assert text.encode() not in data, (file, text)
