"""The verbs that share histories of events: pulled, pushed, served, taken back. Heavy imports wait until one runs."""

import sys
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import TableArgument, argument, flag, option
from dagster_versioned.cli.chain_arguments import (
    BlockName,
    KeyFile,
    KeyVariable,
    Reference,
    Source,
    TokenFile,
    TokenVariable,
    bearer_token,
    changed_name,
    dataset_table,
    find_block,
    history,
    private_key,
    remote_at,
)
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Fields, counted, human_size, progress, say
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.odf.sharing.transfer import TransferReport

command = Commands("Histories of events")


@command(
    "odf pull https://example.org/cities cities",
    "odf pull s3://acme-shared/cities cities --require-signature",
    "odf pull acme/cities --ref accepted",
)
def pull(
    session: Session,
    source: Source,
    table: Annotated[str | None, argument("TABLE", "By default as the dataset of a repository is called.")] = None,
    reference: Reference = "head",
    dataset_id: Annotated[str | None, option("--dataset-id", "DID", "Refuse any other dataset: did:odf:fed01…")] = None,
    require_signature: Annotated[
        bool, flag("--require-signature", "Refuse a head that its owner did not sign.")
    ] = False,
    max_bytes: Annotated[int | None, flag("--max-bytes", "Refuse more than so much.", min=0)] = None,
    token_file: TokenFile = None,
    token_env: TokenVariable = None,
) -> None:
    """Make a table a copy of a dataset, or bring its copy up to date; every byte is checked by its hash."""
    from dagster_versioned.odf.identity.dataset_id import DatasetId
    from dagster_versioned.odf.sharing.repositories import place_of
    from dagster_versioned.odf.sharing.transfer import pull as pull_into

    named = place_of(session.production(), source)[1]
    if table is None and named is None:
        raise InvalidInput(f"{source!a:.200} is of no repository, and no TABLE is named. Nothing was pulled. Name one.")
    opened = dataset_table(session, table or changed_name(str(named)))
    token = bearer_token(token_file, token_env)
    with progress("Pulling", quiet=session.quiet) as note:
        done = pull_into(
            remote_at(session, source, reference, token),
            opened,
            dataset_id=None if dataset_id is None else DatasetId.parse(dataset_id),
            require_signature=require_signature,
            max_bytes=max_bytes,
            progress=note,
        )
    _show_transfer(session, str(opened.name), done)


@command("odf push cities s3://acme-shared/cities", "odf push cities acme/cities --key-file cities.key")
def push(
    session: Session,
    table: TableArgument,
    target: Annotated[str, argument("TARGET", "A folder, s3://…, odf+https://…, or repository/name.")],
    reference: Reference = "head",
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    token_file: TokenFile = None,
    token_env: TokenVariable = None,
) -> None:
    """Bring a copy of a dataset in a folder, a bucket or a smart server up to date, for others to pull."""
    from dagster_versioned.odf.sharing.references import reference_name
    from dagster_versioned.odf.sharing.repositories import SMART, place_of
    from dagster_versioned.odf.sharing.smart.client import open_smart
    from dagster_versioned.odf.sharing.smart.push import push_smart
    from dagster_versioned.odf.sharing.transfer import push as push_to
    from dagster_versioned.storage import open_store

    opened = dataset_table(session, table)
    place = place_of(session.production(), target)[0]
    key, token = private_key(key_file, key_env), bearer_token(token_file, token_env)
    smart = SMART.match(place) is not None
    if smart and key is not None:
        raise InvalidInput(
            "The smart transfer protocol has no place for a signature. Nothing was pushed. Leave the key out, or push "
            "to a folder or bucket."
        )
    if token is not None and not smart:
        raise InvalidInput("A token is for a smart server, odf+https://…. Nothing was pushed. Leave it out.")
    with progress("Pushing", quiet=session.quiet) as note:
        if smart:
            there = open_smart(place, token=token, reference=reference_name(reference))
            done = push_smart(opened, there, progress=note)
        else:
            store = open_store(place, profile=session.profile)
            done = push_to(opened, store, reference=reference_name(reference), key=key, progress=note)
    _show_transfer(session, place, done)


@command("odf ref cities", "odf ref cities accepted 12", "odf ref cities accepted --delete")
def ref(
    session: Session,
    table: TableArgument,
    name: Annotated[str | None, argument("NAME", "The reference; all if left out.")] = None,
    block: Annotated[str | None, argument("BLOCK", "What it is to stand for: a number, a hash, a reference.")] = None,
    delete: Annotated[bool, flag("--delete", "Take it away; the blocks stay.")] = False,
) -> None:
    """List the references beside a dataset's head, which name blocks of its chain; or set one, or take it away."""
    from dagster_versioned.odf.sharing.references import drop_reference, references, set_reference

    opened = history(dataset_table(session, table))
    if _is_unclear(name, block, delete):
        raise InvalidInput("A reference is set by NAME BLOCK, and taken away by NAME --delete. Nothing was changed.")
    if name is not None and block is not None:
        set_reference(opened, name, find_block(opened, block)[0])
    elif name is not None:
        drop_reference(opened, name)
    found = dict(references(opened))
    session.show({"table": opened.name, "references": found}, Fields(found.items()))


@command("odf repo", "odf repo acme s3://acme-shared", "odf repo acme --delete")
def repo(
    session: Session,
    name: Annotated[str | None, argument("NAME", "The repository; all if left out.")] = None,
    address: Annotated[str | None, argument("ADDRESS", "Where it is: a URL, a folder, or s3://bucket/prefix.")] = None,
    delete: Annotated[bool, flag("--delete", "Forget it; what is there stays.")] = False,
) -> None:
    """List the project's repositories, in which datasets are shared as repository/name; or name one, or forget it."""
    from dagster_versioned.odf.sharing.repositories import drop_repository, repositories, set_repository

    # An environment has those of its project.
    project = session.production() if name is None else session.open()
    if _is_unclear(name, address, delete):
        raise InvalidInput("A repository is set by NAME ADDRESS, and forgotten by NAME --delete. Nothing was changed.")
    if name is not None and address is not None:
        set_repository(project, name, address)
    elif name is not None:
        drop_repository(project, name)
    found = {str(repository): place for repository, place in repositories(project).items()}
    session.show({"repositories": found}, Fields(found.items()))


@command("odf serve cities", "odf serve cities --port 9000")
def serve(
    session: Session,
    table: TableArgument,
    host: Annotated[str, option("--host", "ADDRESS", "The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, flag("--port", "The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    url: Annotated[str | None, option("--url", "URL", "Where others find it, behind a proxy with TLS.")] = None,
    allow_push: Annotated[
        bool, flag("--allow-push", "Take pushes of who has the token; TABLE need not be there yet.")
    ] = False,
    max_bytes: Annotated[int | None, flag("--max-bytes", "Refuse a push of more than so much.", min=0)] = None,
    token_file: TokenFile = None,
    token_env: TokenVariable = None,
) -> None:
    """Serve a dataset over HTTP, by name and by the smart transfer protocol, until it is interrupted."""
    from dagster_versioned.odf.sharing.serve import server
    from dagster_versioned.odf.sharing.smart.push_server import Receiver
    from dagster_versioned.storage.http import check_url

    opened = dataset_table(session, table)
    token = bearer_token(token_file, token_env)
    if allow_push is not (token is not None):
        raise InvalidInput("--allow-push and a token (--token-file, --token-env) go together. Nothing is served.")
    if opened.exists() or token is None:
        history(opened)
    receiver = None if token is None else Receiver(opened, token, max_bytes)
    checked = None if url is None else check_url(url)
    with server(opened.store, host, port, url=checked, receiver=receiver) as running:
        say(f"http://{host}:{running.server_address[1]}/")
        sys.stdout.flush()  # whoever waits for the address reads it before the first request
        running.serve_forever()


@command("odf reset cities 12 --into cities_before")
def reset(
    session: Session,
    table: TableArgument,
    block: BlockName,
    into: Annotated[str, option("--into", "TABLE", "A new table, which gets the chain up to BLOCK.")],
) -> None:
    """Take a dataset back to an earlier block, as a new table: what others may have seen is never taken back itself."""
    from dagster_versioned.odf.sharing.remote import RemoteDataset
    from dagster_versioned.odf.sharing.transfer import pull as pull_into

    opened, new = history(dataset_table(session, table)), session.table(into)
    if new.exists():
        raise InvalidInput(f"{new.name} is there already. Nothing was changed. Name a table that is not.")
    done = pull_into(RemoteDataset(opened.store), new, until=find_block(opened, block)[0])
    _show_transfer(session, str(new.name), done)


def _is_unclear(name: str | None, value: str | None, delete: bool) -> bool:
    """Whether a name is neither to be set nor taken away, or both; without any, they are listed."""
    return (name is None and delete) or (name is not None and (value is None) is not delete)


def _show_transfer(session: Session, place: str, done: "TransferReport") -> None:
    if done.ahead:
        what = f"{counted(done.ahead, 'block')} ahead of the source, which lags or was taken back; left as it is"
    elif not done.blocks:
        what = "up to date"
    else:
        what = f"{counted(done.blocks, 'block')}, {counted(done.files, 'file')}, {human_size(done.bytes)}"
    session.show(members(done), f"{place}: {what}", f"head {done.head}, {_signed(done)}")


def _signed(done: "TransferReport") -> str:
    if done.signed is None:
        return "not signed"
    return "signed by its owner" if done.signed == done.head else f"signed by its owner up to {done.signed}"
