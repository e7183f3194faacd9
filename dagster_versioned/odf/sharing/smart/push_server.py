"""A dataset for who pushes to it by the smart transfer protocol: what arrives is pulled into the table, as from anyone.

Blocks are checked before a file is asked for, files as they arrive, and all of it together before the head moves.
"""

import hmac
import secrets
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.odf.blocks.block_iterator import state_at
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.chains import difference, steps_of
from dagster_versioned.odf.sharing.remote import RemoteDataset, StoredFile, files_of
from dagster_versioned.odf.sharing.smart.conversation import Conversation
from dagster_versioned.odf.sharing.smart.messages import (
    Empty,
    Progress,
    PushedBlocks,
    PushFiles,
    PushRequest,
    PushWay,
    PushWays,
    TransferUrl,
    accepted,
    decode,
    refused,
    unpack,
)
from dagster_versioned.odf.sharing.staged_pull import StagedPull, free_bytes, holds
from dagster_versioned.odf.sharing.transfer import head_of, pull
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.chain_head import BLOCKS
from dagster_versioned.tables.table import VersionedTable

ASK_SECONDS = 10.0
"""How often who sends files is asked how far it is; kamu's servers ask as often."""
SILENCE_SECONDS = 300.0
"""How long a push may go on without a byte of a file."""


@dataclass(frozen=True)
class Receiver:
    """The table that takes what is pushed, which need not be there yet, from who has the token.

    A push of more than ``max_bytes`` of files is refused, as is one of more than the disk has room for.
    """

    table: VersionedTable
    token: str
    max_bytes: int | None = None

    def __repr__(self) -> str:
        return f"Receiver({self.table!r})"

    def admits(self, header: str | None) -> bool:
        """Whether a request's header has the token; compared in a time that does not depend on it."""
        return hmac.compare_digest((header or "").encode(), f"Bearer {self.token}".encode())

    def own_table(self) -> VersionedTable:
        """The table, for one push: others are under way beside it."""
        return self.table.beside(str(self.table.name))


class Push:
    """A push whose files arrive: what it may send, and what it has sent."""

    def __init__(self, store: ObjectStore, source: RemoteDataset, files: list[StoredFile]) -> None:
        self.files: Mapping[str, StoredFile] = {file.key: file for file in files}
        self._store = store
        self._staged = StagedPull(store, source, None)
        self._arrived: set[str] = set()
        self.touched = time.monotonic()

    def has(self, file: StoredFile) -> bool:
        """Whether a file need not be sent: of an earlier push, which is read once, or of the table's folder."""
        if file.key not in self._arrived and (holds(self._store, file) or self._staged.has(file)):
            self._arrived.add(file.key)
        return file.key in self._arrived

    def receive(self, file: StoredFile, body: Iterator[bytes]) -> None:
        """Keep a file whole, or not at all. Raises `IntegrityError` for another one than its hash says."""
        self._staged.put(file, _Upload(self._store, body=self._noted(body)).pieces(file))
        self._arrived.add(file.key)

    def _noted(self, body: Iterator[bytes]) -> Iterator[bytes]:
        for data in body:
            self.touched = time.monotonic()
            yield data


class Pushes:
    """The pushes under way at a server, by the secret that is in the URLs of their files. Thread-safe."""

    def __init__(self) -> None:
        self._by_secret: dict[str, Push] = {}
        self._lock = Lock()

    def get(self, secret: str) -> Push | None:
        with self._lock:
            return self._by_secret.get(secret)

    @contextmanager
    def under_way(self, push: Push) -> Generator[str]:
        """The secret of a push, which ends with the context."""
        secret = secrets.token_urlsafe(32)
        with self._lock:
            self._by_secret[secret] = push
        try:
            yield secret
        finally:
            with self._lock:
                del self._by_secret[secret]


def answer_push(channel: Conversation, receiver: Receiver, base: str, pushes: Pushes) -> None:
    """Take what a client pushes, whose files it sends to below the URL ``base``; the head moves last, or not at all.

    Raises `ChannelClosed`, `TimeoutError`, and what `pull` raises of what arrives: the table is then as it was.
    """
    table = receiver.own_table()
    request = decode(channel.receive(), PushRequest, channel.origin)
    at = head_of(table)
    if request.current_head != at:
        named = {"actual_head": request.current_head, "expected_head": at}
        ends = {name: None if head is None else str(head) for name, head in named.items()}
        channel.send(refused("InvalidHead", ends))
        return
    channel.send(accepted(Empty()))
    blocks = unpack(decode(channel.receive(), PushedBlocks, channel.origin).new_blocks, channel.origin)
    end = next(reversed(blocks), at)
    if end is None:
        raise IntegrityError("No block was pushed, and there is none yet. Nothing was changed. Push a dataset.")
    source, copy = _ReceivedDataset(table.store, blocks=blocks), RemoteDataset(table.store)
    new = difference(end, source.block, at, copy.block).new
    steps = steps_of(new, lambda name: source.block(name)[1], None if at is None else state_at(copy, at))
    push = Push(table.store, source, [file for block, _ in steps for file in files_of(block)])
    _check_room(receiver, push)
    channel.send(accepted(Empty()))
    if blocks:
        with pushes.under_way(push) as secret:
            while _take_files(channel, push, f"{base}/push/{secret}"):
                pass
    decode(channel.receive(), Empty, channel.origin)
    pull(source, table, until=end)
    channel.send(Empty().encode())


def _check_room(receiver: Receiver, push: Push) -> None:
    """Raise `InvalidInput` where more is pushed than is allowed, or than the disk has room for."""
    size = sum(file.size for file in push.files.values() if not push.has(file))
    limits = {"are allowed": receiver.max_bytes, "are free": free_bytes(receiver.table.store)}
    for what, most in limits.items():
        if most is not None and size > most:
            raise InvalidInput(f"{size} bytes of files are pushed, and {most} {what}. Nothing was changed.")


def _take_files(channel: Conversation, push: Push, base: str) -> bool:
    """Say where files are to be sent, and wait until they are; whether the client asks for more."""
    asked = decode(channel.receive(), PushFiles, channel.origin)
    ways: list[PushWay] = []
    for file in asked.object_files:
        known = push.files.get(file.key)
        if known is None or known.size != file.size:
            raise IntegrityError(f"{file.key}, {file.size} bytes, is no file of the blocks. Nothing was changed.")
        if push.has(known):
            ways.append(PushWay(object_file=file, push_strategy="SkipUpload"))
        else:
            where = TransferUrl(url=f"{base}/{known.key}")
            ways.append(PushWay(object_file=file, push_strategy="HttpUpload", upload_to=where))
    channel.send(accepted(PushWays(object_transfer_strategies=tuple(ways))))
    push.touched = time.monotonic()
    while time.monotonic() - push.touched < SILENCE_SECONDS:
        try:
            text = channel.receive(ASK_SECONDS)
        except TimeoutError:
            channel.send(Empty().encode())
            continue
        if decode(text, Progress, channel.origin).details == "Complete":
            return asked.is_truncated
    raise TimeoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReceivedDataset(RemoteDataset):
    """Blocks that were sent; files are those that arrived, or were in the table's folder before."""

    blocks: Mapping[Multihash, bytes]

    def _bounded(self, key: str, most: int) -> bytes:
        data = self.blocks.get(Multihash.parse(key.removeprefix(BLOCKS))) if key.startswith(BLOCKS) else None
        if data is None:
            raise ObjectNotFound(f"{key} was not pushed, and the blocks after it need it. Nothing was changed.")
        return data

    def _chunks(self, key: str, most: int, length: int) -> Iterator[bytes]:
        try:
            yield from RemoteDataset._chunks(self, key, most, length)
        except ObjectNotFound:
            raise ObjectNotFound(
                f"{key} was not sent. Nothing was changed. Push again: what was sent whole is kept."
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upload(RemoteDataset):
    """A file as it arrives."""

    body: Iterator[bytes]

    def _chunks(self, key: str, most: int, length: int) -> Iterator[bytes]:
        return self.body
