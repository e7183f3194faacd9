"""A dataset for who pulls it by the smart transfer protocol: what is new in one archive, and where the files are."""

from collections.abc import Collection
from typing import NoReturn

from dagster_versioned.errors import IntegrityError, VersionedError
from dagster_versioned.odf.blocks.block_iterator import Link, iterate_blocks
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.remote import RemoteDataset, files_of
from dagster_versioned.odf.sharing.smart.conversation import Conversation
from dagster_versioned.odf.sharing.smart.messages import (
    MAX_MESSAGE_BYTES,
    Empty,
    PullAccepted,
    PulledBlocks,
    PullFiles,
    PullRequest,
    PullWay,
    PullWays,
    TransferUrl,
    accepted,
    decode,
    internal,
    pack,
    plan_of,
    refused,
)

IDLE_SECONDS = 3600.0
"""How long who pulls may take for the files of one answer."""
_LETTERS = 4
"""What a byte of an archive has in its message at most."""


def answer_pull(channel: Conversation, dataset: RemoteDataset, base: str) -> None:
    """Hand a dataset over, whose files are below the URL ``base``; until the client hangs up.

    Raises `ChannelClosed`, `TimeoutError`, `IntegrityError` for messages that are none, `InvalidInput` for more blocks
    than one message holds, and `StoreUnavailable` where too many are being sent.
    """
    request = decode(channel.receive(), PullRequest, channel.origin)
    try:
        links = _interval(dataset, request.begin_after, request.stop_at)
        refusal = _unknown_interval(dataset, request) if links is None else ""
    except VersionedError:
        # Of what is wrong with it, its owner learns from `verify`; a stranger learns no paths.
        sentence = "The dataset cannot be read. Nothing was sent. Ask its owner."
        links, refusal = None, internal("Pull", "InitialRequest", sentence)
    if links is None:
        channel.send(refusal)
        return
    plan = plan_of((link.block, link.size) for link in links)
    channel.send(accepted(PullAccepted(transfer_plan=plan)))
    decode(channel.receive(), Empty, channel.origin)
    with channel.archive_room(min(_LETTERS * plan.bytes_in_raw_blocks, MAX_MESSAGE_BYTES)):
        batch = pack((link.name, dataset.block(link.name)[0]) for link in reversed(links))
        channel.send(PulledBlocks(blocks=batch).encode())
        del batch
    known = {file.key for link in links for file in files_of(link.block)}
    del links  # the conversation may be long, and there are many
    _name_files(channel, known, base)


def _name_files(channel: Conversation, known: Collection[str], base: str) -> NoReturn:
    """Answer where files are, until the client hangs up."""
    while True:
        asked = decode(channel.receive(IDLE_SECONDS), PullFiles, channel.origin).object_files
        if unknown := next((file.key for file in asked if file.key not in known), None):
            raise IntegrityError(f"{unknown} is no file of the blocks that were asked for. Nothing was sent.")
        ways = [
            PullWay(object_file=file, pull_strategy="HttpDownload", download_from=TransferUrl(url=f"{base}/{file.key}"))
            for file in asked
        ]
        channel.send(PullWays(object_transfer_strategies=tuple(ways)).encode())


def _unknown_interval(dataset: RemoteDataset, request: PullRequest) -> str:
    if request.begin_after is not None:
        ends = {"head": str(request.stop_at or dataset.head()), "tail": str(request.begin_after)}
        return refused("InvalidInterval", ends)
    sentence = f"Block {request.stop_at} is not in the chain. Nothing was sent. Name another one."
    return internal("Pull", "InitialRequest", sentence)


def _interval(dataset: RemoteDataset, after: Multihash | None, until: Multihash | None) -> list[Link] | None:
    """The blocks of the chain after one, up to another, the newest first; ``None`` where it does not have both."""
    head = dataset.head()
    links: list[Link] = []
    is_wanted = False
    if after is not None and after in (head, until):
        return [] if until in (None, after) else None
    for link in iterate_blocks(dataset, head):
        is_wanted = is_wanted or until in (None, link.name)
        if link.name == after:
            return links if is_wanted else None
        if is_wanted:
            links.append(link)
    return links if is_wanted and after is None else None
