"""What arguments of the verbs for histories of events name: chains, their blocks and sources, manifests, keys."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import argument, option
from dagster_versioned.cli.session import Session, table_of
from dagster_versioned.cli.terminal import counted
from dagster_versioned.errors import InvalidInput, InvalidName, TableNotFound

if TYPE_CHECKING:
    from dagster_versioned.odf.blocks.block import Block
    from dagster_versioned.odf.blocks.events import AddPushSource, SetPollingSource
    from dagster_versioned.odf.blocks.validity import ChainState
    from dagster_versioned.odf.identity.dataset_id import DatasetId
    from dagster_versioned.odf.identity.multihash import Multihash
    from dagster_versioned.odf.identity.signing_key import SigningKey
    from dagster_versioned.odf.manifest import DatasetSnapshot
    from dagster_versioned.odf.sharing.remote import RemoteDataset
    from dagster_versioned.tables.table import VersionedTable

Manifest = Annotated[Path, argument("MANIFEST", "A DatasetSnapshot in YAML, or repository/name.")]
KeyFile = Annotated[Path | None, option("--key-file", "FILE", "The dataset's private key, as `odf init` wrote it.")]
KeyVariable = Annotated[str | None, option("--key-env", "NAME", "The environment variable with the private key.")]
TokenFile = Annotated[Path | None, option("--token-file", "FILE", "The file with the bearer token of a smart server.")]
TokenVariable = Annotated[str | None, option("--token-env", "NAME", "The environment variable with that token.")]
Variables = Annotated[
    list[str] | None, option("--var", "NAME", "An environment variable that the manifest may ask for; repeatable.")
]
Source = Annotated[
    str, argument("SOURCE", "A URL, that of a smart server (odf+https://…), a folder, s3://…, or repository/name.")
]
Sources = Annotated[
    list[str] | None, option("--from", "SOURCE", "Where else datasets are: as the SOURCE of a pull; repeatable.")
]
Reference = Annotated[str, option("--ref", "NAME", "Another reference there than the head: a branch, or a review's.")]
BlockName = Annotated[str, argument("BLOCK", "Its number in the chain, the start of its hash, or a reference.")]


def dataset_table(session: Session, name: str) -> "VersionedTable":
    """The table of a name, of an asset key, or of a dataset's name, which its table may spell with other punctuation.

    Where there is none, the table that such a dataset gets. Raises `InvalidInput` where several fit.
    """
    project, changed = session.open(), changed_name(name)
    try:
        own = table_of(project, name)
    except InvalidName:
        own = project.table(changed)
    else:
        if own.exists():
            return own
    alike = [each for each in project.tables() if changed_name(each).casefold() == changed.casefold()]
    found = [table for table in map(project.table, alike) if table.state.is_history]
    if len(found) > 1:
        raise InvalidInput(
            f"{name!a:.200} may be any of the tables {', '.join(repr(str(each.name)) for each in found)}. Nothing was "
            "changed. Give the table's own name."
        )
    return found[0] if found else own


def changed_name(name: str) -> str:
    """What the table of a dataset is called: its name, with ``_`` for what not every table can have."""
    return re.sub(r"\W", "_", name)


def history(table: "VersionedTable") -> "VersionedTable":
    """The table, which is a history of events. Raises `TableNotFound`, `InvalidInput`."""
    if not table.state.is_history:
        raise InvalidInput(f"{table.name} is no history of events, so it has no chain. Nothing was read.")
    return table


def remote_at(session: Session, place: str, reference: str = "head", token: str | None = None) -> "RemoteDataset":
    """The dataset at a place, or of a repository of the project; the token is for a smart server.

    Raises `InvalidInput`.
    """
    from dagster_versioned.odf.sharing.references import reference_name
    from dagster_versioned.odf.sharing.remote import open_remote
    from dagster_versioned.odf.sharing.repositories import SMART, place_of
    from dagster_versioned.odf.sharing.smart.client import open_smart

    where, name = place_of(session.production(), place)[0], reference_name(reference)
    if SMART.match(where):
        return open_smart(where, token=token, reference=name)
    if token is not None:
        raise InvalidInput("A token is for a smart server, odf+https://…. Nothing was sent. Leave it out.")
    return open_remote(where, profile=session.profile, reference=name)


def datasets_at(
    session: Session, table: "VersionedTable", places: list[str] | None
) -> "Callable[[DatasetId], RemoteDataset]":
    """What finds the datasets of the table's project, and those at the places. Raises `InvalidInput`."""
    from dagster_versioned.odf.sharing.finder import datasets_of

    return datasets_of(table.project, [remote_at(session, place) for place in places or ()])


def chain_source(
    table: "VersionedTable", state: "ChainState | None", name: str | None
) -> "SetPollingSource | AddPushSource":
    """The source of a chain, or that of its push sources with a name. Raises `InvalidInput`, `TableNotFound`."""
    if state is None and not table.exists():
        raise TableNotFound(
            f"No table {table.name}: nothing was ever written under this name. Nothing was added. Give --manifest FILE,"
            " or add the dataset: dagster-versioned odf add FILE."
        )
    pushed = dict(state.push_sources) if state is not None else {}
    if name in pushed:
        return pushed[name]
    if name is None and state is not None and state.polling_source is not None:
        return state.polling_source
    if name is None and len(pushed) == 1:
        return next(iter(pushed.values()))
    has = f"the push sources {', '.join(sorted(pushed))}" if pushed else "no source"
    raise InvalidInput(
        f"{table.name} has {has}. Nothing was added. Give --source NAME, or --manifest FILE, or add a source: "
        "dagster-versioned odf add FILE."
    )


def snapshot_of(manifest: Path) -> "DatasetSnapshot":
    from dagster_versioned.odf.manifest import read_snapshot

    try:
        text = manifest.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The manifest {manifest} cannot be read: {error}. Nothing was changed.") from None
    return read_snapshot(text, str(manifest))


def private_key(file: Path | None, variable: str | None) -> "SigningKey | None":
    """The private key that was named, if one was. Raises `InvalidInput`."""
    from dagster_versioned.odf.identity.signing_key import SigningKey

    if file is not None and variable is not None:
        raise InvalidInput("--key-file and --key-env name two keys. Nothing was changed. Give one.")
    if file is not None:
        try:
            return SigningKey.from_secret(str(file), {str(file): file.read_text()})
        except (OSError, UnicodeDecodeError):
            return SigningKey.from_secret(str(file), {})
    return None if variable is None else SigningKey.from_secret(variable, os.environ)


def bearer_token(file: Path | None, variable: str | None) -> str | None:
    """The token that was named, if one was. Raises `InvalidInput`, without repeating it."""
    from dagster_versioned.odf.sharing.smart.client import checked

    if file is not None and variable is not None:
        raise InvalidInput("--token-file and --token-env name two tokens. Nothing was sent. Give one.")
    if variable is not None:
        return checked(variables_named([variable])[variable].strip())
    try:
        return None if file is None else checked(file.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The token in {file} cannot be read ({type(error).__name__}). Nothing was sent.") from None


def variables_named(names: list[str] | None) -> dict[str, str]:
    missing = [name for name in names or () if name not in os.environ]
    if missing:
        raise InvalidInput(f"The variable {missing[0]!r} is not set in the environment. Nothing was fetched.")
    return {name: os.environ[name] for name in names or ()}


def find_block(table: "VersionedTable", text: str) -> "tuple[Multihash, Block]":
    """The block of a number, of the start of a hash, or of a reference. Raises `InvalidInput`."""
    from dagster_versioned.odf.event_table import EventTable
    from dagster_versioned.odf.sharing.references import references

    if (named := references(table).get(text)) is not None:
        text = str(named)

    by_number = text.isascii() and text.isdigit()
    if not by_number and len(text) < len("f1620") + 6:
        raise InvalidInput(f"{text!a:.100} is no block. Give its number, or at least 11 letters of its hash.")
    found = [
        (name, block)
        for name, block in EventTable(table).blocks()
        if (str(block.sequence_number) == text if by_number else str(name).startswith(text))
    ]
    if len(found) != 1:
        raise InvalidInput(f"{counted(len(found), 'block')} of {table.name} match {text!a:.100}, and one is needed.")
    return found[0]
