"""Pins: names for versions, which keep these from being expired; one document for the project."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from dagster_versioned.errors import IntegrityError, VersionNotFound
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.document import encode, read_if_any, update_document
from dagster_versioned.tables.preconditions import require

PINS_KEY = ".metadata/pins.json"
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Pin:
    """A name for one version of one table; `VersionedTable.expire` keeps what is pinned."""

    name: str
    table: str
    version: str
    by: str | None
    why: str | None
    at: str


def read_pins(context: ProjectContext) -> dict[str, Pin]:
    """The pins by name."""
    data = read_if_any(context.data, PINS_KEY)
    return {} if data is None else _parse_pins(data)


def change_pins(context: ProjectContext, change: Callable[[dict[str, Pin]], dict[str, Pin]]) -> None:
    """Swap the pins for others. Raises what the verb "pin" does (`preconditions`)."""
    require("pin", context)

    def rewrite(data: bytes | None) -> bytes | None:
        context.check_unmarked()  # between the read and the swap: see `fence`
        pins = {} if data is None else _parse_pins(data)
        changed = change(pins)
        return None if changed == pins else encode({name: _pin_json(pin) for name, pin in changed.items()})

    update_document(context.data, PINS_KEY, rewrite)


def move_pins(context: ProjectContext, before: str, after: str) -> None:
    """Let the pins of a table name it as it is called now; `rename` is who calls this."""

    def change(pins: dict[str, Pin]) -> dict[str, Pin]:
        return {key: replace(pin, table=after) if pin.table == before else pin for key, pin in pins.items()}

    change_pins(context, change)


def resolve_pin(context: ProjectContext, name: str, table: str, former: Collection[str] = ()) -> str:
    """The ``metadata_sha`` that a pin names in a table, by a name that it has or had. Raises `VersionNotFound`."""
    pin = read_pins(context).get(name)
    if pin is None or pin.table not in {table, *former}:
        of = "" if pin is None else f" It names a version of {pin.table}."
        raise VersionNotFound(f"No pin {name!r} of table {table}.{of} Nothing was read; `pins` lists them.")
    return pin.version


def _pin_json(pin: Pin) -> dict[str, Any]:
    return {"table": pin.table, "version": pin.version, "by": pin.by, "why": pin.why, "at": pin.at}


def _parse_pins(data: bytes) -> dict[str, Pin]:
    try:
        return {name: _parse_pin(name, raw) for name, raw in orjson.loads(data).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{PINS_KEY} cannot be read ({error!r}). Nothing was changed, and nothing expires while it is unreadable. "
            "Restore it from a backup or from the store's own versioning."
        ) from error


def _parse_pin(name: str, raw: Mapping[str, Any]) -> Pin:
    pin = Pin(name, raw["table"], raw["version"], raw.get("by"), raw.get("why"), raw.get("at", ""))
    # A version that reads find by a prefix, but that expiry does not know, would be a pin that keeps nothing.
    if not _SHA.fullmatch(pin.version):
        raise ValueError(f"pin {name!r}: the version {pin.version!r:.100} is no full metadata_sha")
    texts: tuple[Any, ...] = (pin.table, pin.at, pin.by or "", pin.why or "")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"pin {name!r}: table, by, why and at must be text")
    return pin
