"""The reference names every event and every field that a chain can hold."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

from dagster_versioned.odf.blocks.events import AddData, MetadataEvent

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/odf.md").read_text()


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def test_every_event_and_its_fields_are_described() -> None:
    events = get_args(get_args(MetadataEvent)[0])
    assert len(events) == 13
    assert AddData in events
    for event in events:
        assert f"| `{event.__name__}` |" in PAGE
        missing = [field.name for field in fields(event) if f"`{camel(field.name)}`" not in PAGE]
        assert not missing, event.__name__
