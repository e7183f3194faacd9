"""What the second reader and the package have to agree about."""

from pathlib import Path
from typing import Any

from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.manifest import to_document
from dagster_versioned.odf.sharing.remote import open_remote
from dagster_versioned.odf.verification.verify import verify
from support.second_reader import Dataset, read_dataset
from support.second_reader_blocks import Document


def as_text(value: Any) -> Any:
    """A document with its bytes as the package shows them."""
    if isinstance(value, dict):
        return {key: as_text(part) for key, part in value.items()}
    if isinstance(value, list):
        return [as_text(part) for part in value]
    return "f" + value.hex() if isinstance(value, bytes) else value


def shown(event: Any) -> Document:
    """An event as the package shows it."""
    return {"kind": type(event).__name__} | to_document(event)


def agrees(folder: Path, events: EventTable) -> Dataset:
    """The dataset in a folder, accepted by the second reader, which reads what the package reports."""
    read = read_dataset(folder)
    chain, blocks = events.chain, list(events.blocks())[::-1]
    assert (read.dataset_id, read.kind) == (str(chain.seed.dataset_id), chain.seed.dataset_kind.value)
    assert [as_text(event) for event in read.events] == [shown(block.event) for _, block in blocks]
    assert [block.hash for block in read.blocks] == [str(name) for name, _ in blocks]
    assert [block.system_time for block in read.blocks] == [str(block.system_time) for _, block in blocks]
    assert (read.last_offset, read.watermark) == (
        chain.last_offset,
        chain.watermark and str(chain.watermark),
    )
    assert rows_of(read.records) == rows_of(events.events().to_pylist())
    given = set(list(read.vocabulary.values())[:3])
    assert rows_of(read.rows, without=given) == rows_of(events.current().to_pylist(), without=given)
    assert verify(open_remote(str(folder))).ok
    return read


def rows_of(rows: list[Document], without: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Rows as texts in one order: a column that is not there is null, and a NaN is itself."""
    return sorted(
        str(sorted((name, repr(value)) for name, value in row.items() if name not in without and value is not None))
        for row in rows
    )
