"""Named references beside a dataset's head: blocks that a name stands for, such as how far a review has come.

Source: seed 002 ("Metadata Chain", "Block References").
"""

import re

from dagster_versioned.errors import InvalidInput, VersionNotFound
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.remote import REFERENCES, RemoteDataset
from dagster_versioned.odf.sharing.transfer import HEAD
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.table import VersionedTable

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def reference_name(text: str) -> str:
    """The text, if a reference can have that name: lower case, digits and hyphens, 1 to 63. Raises `InvalidInput`."""
    if not _NAME.fullmatch(text):
        raise InvalidInput(
            f"{text!a:.100} is no name of a reference: 1 to 63 of a-z, 0-9 and '-', with no '-' at either end. Nothing "
            "was changed. Choose another name."
        )
    return text


def references(table: VersionedTable) -> dict[str, Multihash]:
    """The references of a table by name, its head not among them. Raises `ChainCorrupt` for one that names no block."""
    names = (info.key.removeprefix(REFERENCES) for info in table.store.list(REFERENCES))
    return {name: RemoteDataset(table.store, name).head() for name in names if name != HEAD and _NAME.fullmatch(name)}


def set_reference(table: VersionedTable, name: str, block: Multihash) -> None:
    """Have a name stand for a block of the table's chain.

    Raises `InvalidInput` for what is no name, `VersionNotFound` for a block of another chain.
    """
    require("reference", table.project)
    if reference_name(name) == HEAD:
        raise InvalidInput("The head is moved by what is written. Nothing was changed. Choose another name.")
    if all(found != block for found, _ in EventTable(table).blocks()):
        raise VersionNotFound(f"No block {block} in the chain of {table.name}. Nothing was changed.")
    table.store.put(f"{REFERENCES}{name}", str(block).encode())


def drop_reference(table: VersionedTable, name: str) -> None:
    """Take a reference away; the blocks stay. Raises `VersionNotFound`."""
    require("reference", table.project)
    known = references(table)
    if name not in known:
        raise VersionNotFound(
            f"{table.name} has no reference {name!a:.100}. There are: {', '.join(sorted(known)) or 'none'}. Nothing "
            "was changed."
        )
    table.store.delete([f"{REFERENCES}{name}"])
