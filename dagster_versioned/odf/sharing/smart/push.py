"""A table's dataset, pushed to a smart server: blocks in one archive, then files to the URLs that the server names."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from dagster_versioned.errors import CommitConflict, IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.chains import difference
from dagster_versioned.odf.sharing.remote import RemoteDataset, StoredFile, files_of
from dagster_versioned.odf.sharing.smart.channel import Channel, ChannelClosed
from dagster_versioned.odf.sharing.smart.client import URLS_AT_ONCE, SmartDataset, broken_off, own_headers
from dagster_versioned.odf.sharing.smart.messages import (
    Empty,
    File,
    Message,
    Plan,
    Progress,
    PushedBlocks,
    PushFiles,
    PushRequest,
    PushWay,
    PushWays,
    Refusal,
    Running,
    Sent,
    decode,
    decode_result,
    pack,
    plan_of,
)
from dagster_versioned.odf.sharing.staged_pull import Progress as Note
from dagster_versioned.odf.sharing.staged_pull import copy_files
from dagster_versioned.odf.sharing.transfer import TransferReport, check_slices, precedes, pushed_chain
from dagster_versioned.tables.table import VersionedTable

COMMIT_SECONDS = 3600.0
"""How long a server may take to check all that was sent."""
_Model = TypeVar("_Model", bound=Message)


def push_smart(
    table: VersionedTable, target: SmartDataset, *, progress: Note = lambda done, total: None
) -> TransferReport:
    """Bring the dataset of a smart server up to date; it is made where the server has none and may make it.

    The server decides whether its head moves. The protocol has no place for a signature, so none is sent.

    Raises `CommitConflict` where the server's chain has grown apart or somebody else pushes, `IntegrityError` where the
    table is not what its hashes promise or the server refuses what it got, `AccessDenied`, `InvalidInput`,
    `StorageError`; the server's dataset is then as it was, unless it hung up after all was sent.
    """
    own, end = pushed_chain(table)
    if target.reference != "head":
        raise InvalidInput("The smart transfer protocol pushes the head alone. Nothing was pushed. Leave out --ref.")
    owner, at = end.seed.dataset_id, _head(target)

    def theirs(name: Multihash) -> tuple[bytes, Block]:
        """A block of the server; its own answer is not needed, and kamu's need not be the bytes that were hashed."""
        try:
            return own.block(name)
        except ObjectNotFound:
            return target.block(name)

    found = difference(end.head, own.block, at, theirs)
    sent: tuple[int, int] = (0, 0)
    check_slices(table, own, at, found.new)
    if found.new:
        channel = target.channel("push")
        try:
            sent = _push_blocks(channel, target, own, at, found.new, progress)
        except (ChannelClosed, TimeoutError) as error:
            raise broken_off(channel, error) from None
        except IntegrityError as error:
            if _head(target) != at:
                raise CommitConflict(f"Somebody else pushed meanwhile. {error}") from None
            raise
        finally:
            channel.close()
    signature = target.signature()
    is_own = signature is not None and signature.dataset_id == owner and precedes(signature.head, end.head, own)
    signed = signature.head if signature is not None and is_own else None
    return TransferReport(owner, end.head, at, len(found.new), *sent, found.ahead, signed)


def _push_blocks(
    channel: Channel,
    target: SmartDataset,
    own: RemoteDataset,
    at: Multihash | None,
    new: Sequence[Multihash],
    progress: Note,
) -> tuple[int, int]:
    """Converse from the first message to the confirmation; how many files were sent, and their bytes."""
    blocks = [own.block(name) for name in new]
    _begin(channel, at, plan_of((block, len(data)) for data, block in blocks))
    batch = pack((name, data) for name, (data, _) in zip(new, blocks, strict=True))
    channel.send(PushedBlocks(new_blocks=batch).encode())
    _accept(channel, decode_result(channel.receive(), Empty, channel.origin))
    sent = _send(channel, target, own, [file for _, block in blocks for file in files_of(block)], progress)
    channel.send(Empty().encode())
    _confirm(channel, target, new[-1])
    return sent


def _head(target: SmartDataset) -> Multihash | None:
    try:
        return target.head()
    except ObjectNotFound:
        return None


def _begin(channel: Channel, at: Multihash | None, plan: Plan) -> None:
    channel.send(PushRequest(current_head=at, transfer_plan=plan).encode())
    answer = decode_result(channel.receive(), Empty, channel.origin)
    if isinstance(answer, Refusal) and answer.kind == "InvalidHead":
        head = answer.members.get("expected_head")
        raise CommitConflict(
            f"Somebody else pushed meanwhile: the head of {channel.origin} is {head!a:.100}. Nothing was pushed. Push "
            "again: it goes on from their head, or says how the chains differ."
        )
    _accept(channel, answer)


def _accept(channel: Channel, answer: _Model | Refusal) -> _Model:
    if isinstance(answer, Refusal):
        raise IntegrityError(f"{channel.origin} refused: {answer}. Nothing was pushed.")
    return answer


def _confirm(channel: Channel, target: SmartDataset, head: Multihash) -> None:
    """Wait until the server has the head.

    Its confirmation has no members, and neither has its question how far the files are, which may have crossed the
    answer that they all are there: the first such message counts if the head is there, else the next one does.
    """
    decode(channel.receive(COMMIT_SECONDS), Empty, channel.origin)
    if _head(target) == head:
        return
    try:
        decode(channel.receive(COMMIT_SECONDS), Empty, channel.origin)
    except ChannelClosed:
        if not precedes(head, _head(target), target):  # others may have gone on from it
            raise


def _ways(channel: Channel) -> tuple[PushWay, ...]:
    """Where files are to be sent; a late question how far the ones before are is passed over."""
    while (text := channel.receive()) == Empty().encode():
        pass
    return _accept(channel, decode_result(text, PushWays, channel.origin)).object_transfer_strategies


def _send(
    channel: Channel, target: SmartDataset, own: RemoteDataset, files: Sequence[StoredFile], progress: Note
) -> tuple[int, int]:
    """Send the files that the server lacks; how many they were, and their bytes."""
    count, size = 0, 0
    for start in range(0, max(1, len(files)), URLS_AT_ONCE):
        group = files[start : start + URLS_AT_ONCE]
        asked = PushFiles(object_files=tuple(map(File.of, group)), is_truncated=start + URLS_AT_ONCE < len(files))
        channel.send(asked.encode())
        ways = _ways(channel)
        found = {way.object_file.key: way for way in ways}
        for file in group:
            if file.key not in found:
                raise IntegrityError(f"{channel.origin} names no place for {file.key}. Nothing was pushed.")
        wanted = [file for file in group if found[file.key].push_strategy == "HttpUpload"]
        size += _upload(channel, target, own, {file: found[file.key] for file in wanted}, progress)
        count += len(wanted)
        channel.send(Progress(details="Complete").encode())
    return count, size


def _upload(
    channel: Channel, target: SmartDataset, own: RemoteDataset, ways: Mapping[StoredFile, PushWay], progress: Note
) -> int:
    """Send files, and answer meanwhile how many are; their bytes."""
    done: list[StoredFile] = []

    def send(file: StoredFile) -> None:
        where = ways[file].upload_to
        if where is None:
            raise IntegrityError(f"{channel.origin} names no URL to send {file.key} to. Nothing was pushed.")
        headers = own_headers(where, channel.origin)
        origin = target.store.uri
        target.client.put(where.url, lambda: own.pieces(file), file.size, headers, named_by=origin)
        done.append(file)

    with ThreadPoolExecutor(1, thread_name_prefix="push") as pool:
        sending = pool.submit(copy_files, list(ways), send, progress)
        while not wait([sending], timeout=0.2).done:
            try:
                decode(channel.receive(0), Empty, channel.origin)
            except TimeoutError:
                continue
            running = Running(Running=Sent(uploaded_objects_count=len(done)))
            channel.send(Progress(details=running).encode())
        return sending.result()
