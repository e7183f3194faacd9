"""A dataset of a smart server: what is new in one archive, then files by the URLs that the server names.

What arrives is checked as what any other source gives, by `RemoteDataset`: neither blocks nor files are believed, nor
where the server leads.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock

from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound, StoreUnavailable
from dagster_versioned.odf.blocks.block import decode_block
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import HeadSignature
from dagster_versioned.odf.sharing.remote import RemoteDataset, StoredFile, files_of
from dagster_versioned.odf.sharing.repositories import SMART
from dagster_versioned.odf.sharing.smart.channel import Channel, ChannelClosed, connect
from dagster_versioned.odf.sharing.smart.messages import (
    VERSION,
    VERSION_HEADER,
    Empty,
    File,
    PullAccepted,
    PulledBlocks,
    PullFiles,
    PullRequest,
    PullWays,
    Refusal,
    TransferUrl,
    decode,
    decode_result,
    unpack,
)
from dagster_versioned.storage.http import HttpClient, shown_url
from dagster_versioned.storage.http_store import HttpStore
from dagster_versioned.tables.chain_head import BLOCKS

URLS_AT_ONCE = 100
"""So many URLs are asked for at once: signed ones do not outlast the files before them, and few questions are asked."""
_NOT_THE_SERVERS = re.compile(
    r"host|range|if-range|content-length|transfer-encoding|connection|upgrade|te|trailer|expect|keep-alive"
    r"|accept-encoding|cookie|proxy-.*",
    re.IGNORECASE,
)
"""Headers that decide how a request is sent, or where: a server may not add them to the requests of others."""


def open_smart(
    address: str,
    *,
    token: str | None = None,
    reference: str = "head",
    client: HttpClient | None = None,
    timeout: float = 60.0,
) -> "SmartDataset":
    """The dataset of a smart server (``odf+https://host/name``), which sees the token if one is given.

    Nothing is sent yet; later the server has ``timeout`` seconds for each message. Raises `InvalidInput`.
    """
    if SMART.match(address) is None:
        raise InvalidInput(f"{shown_url(address)!a:.200} is no smart server: odf+http:// or odf+https://.")
    client = client or HttpClient()
    headers = {VERSION_HEADER: VERSION, **({} if token is None else {"Authorization": f"Bearer {checked(token)}"})}
    store = HttpStore(SMART.sub("", address), client=client, headers=headers)
    return SmartDataset(store, reference, client, token, timeout)


def checked(token: str) -> str:
    """The token, which can be a header. Raises `InvalidInput`, without repeating it."""
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{1,8192}", token):
        raise InvalidInput("The token has characters that no bearer token has, or none. Nothing was sent. Correct it.")
    return token


@dataclass(frozen=True, slots=True)
class SmartDataset(RemoteDataset):
    """A dataset of a smart server, which also serves it by name, as the simple protocol has it."""

    client: HttpClient = field(default_factory=HttpClient)
    token: str | None = field(default=None, repr=False)
    timeout: float = 60.0

    @contextmanager
    def since(self, at: Multihash | None, until: Multihash | None) -> Generator[RemoteDataset]:
        """What the server has after block ``at``; all of it, where that block is unknown to it.

        Raises `StoreUnavailable` where the server hangs up or is silent, `IntegrityError` for what it should not send.
        """
        if until is None and self.reference != "head":
            until = self.head()
        # Before the blocks: a head that is signed later is in no archive yet.
        signature = self.signature()
        channel = self.channel("pull")
        try:
            blocks = _blocks(channel, at, until)
            if blocks is None:  # the copy has other blocks; what both have is found in the whole chain
                channel.close()
                channel = self.channel("pull")
                blocks = _blocks(channel, None, until)
            head = next(reversed(blocks), at) if blocks is not None else None
            if blocks is None or head is None:
                raise ObjectNotFound(f"{self.store.uri} has no such blocks. Nothing was pulled. Check the address.")
            yield _NegotiatedDataset(
                self.store,
                self.reference,
                end=head,
                blocks=blocks,
                signed=signature,
                client=self.client,
                channel=channel,
            )
        except (ChannelClosed, TimeoutError) as error:
            raise broken_off(channel, error) from None
        finally:
            channel.close()

    def channel(self, verb: str) -> Channel:
        """A connection for a pull or a push. Raises what `connect` does."""
        return connect(f"{self.store.uri}/{verb}", self.token, self.client, self.timeout)


def broken_off(channel: Channel, error: ChannelClosed | TimeoutError) -> StoreUnavailable:
    code = f", {error.code}" if isinstance(error, ChannelClosed) and error.code is not None else ""
    return StoreUnavailable(
        f"{channel.origin} broke off ({str(error)[:500]!a}{code}). What was copied whole is kept apart. Run again: it "
        "goes on from there."
    )


def _blocks(channel: Channel, at: Multihash | None, until: Multihash | None) -> dict[Multihash, bytes] | None:
    """The blocks after ``at``, the oldest first; ``None`` where the server knows of no such part of its chain."""
    channel.send(PullRequest(begin_after=at, stop_at=until).encode())
    try:
        answer = decode_result(channel.receive(), PullAccepted, channel.origin)
    except ChannelClosed as closed:
        # Errors of kamu are in the reason of the close.
        answer = decode_result(str(closed), PullAccepted, channel.origin) if str(closed).startswith("{") else None
        if answer is None:
            raise
    if isinstance(answer, Refusal):
        if answer.kind == "InvalidInterval":
            return None
        raise IntegrityError(f"{channel.origin} refused: {answer}. Nothing was pulled.")
    if not answer.transfer_plan.num_blocks:
        return {}
    channel.send(Empty().encode())
    return unpack(decode(channel.receive(), PulledBlocks, channel.origin).blocks, channel.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NegotiatedDataset(RemoteDataset):
    """What a smart server handed over, and where its files are."""

    end: Multihash
    blocks: Mapping[Multihash, bytes]
    signed: HeadSignature | None
    client: HttpClient
    channel: Channel
    files: list[StoredFile] = field(default_factory=list)
    urls: dict[str, TransferUrl] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def head(self) -> Multihash:
        return self.end

    def signature(self) -> HeadSignature | None:
        return self.signed

    def _bounded(self, key: str, most: int) -> bytes:
        data = self.blocks.get(Multihash.parse(key.removeprefix(BLOCKS))) if key.startswith(BLOCKS) else None
        if data is None:
            raise ObjectNotFound(
                f"{self.store.uri} did not send {key}, which its chain needs. Nothing was pulled. Ask who publishes it."
            )
        return data

    def _chunks(self, key: str, most: int, length: int) -> Iterator[bytes]:
        with self.lock:
            found = self.urls.get(key)
            if found is None or (found.expires_at is not None and found.expires_at - _MARGIN < datetime.now(UTC)):
                self._ask(key)
                found = self.urls[key]
        headers = own_headers(found, self.store.uri)
        yield from self.client.chunks(found.url, headers, named_by=self.store.uri)

    def _ask(self, key: str) -> None:
        """Ask where a file is, and those around it of which it is not known yet."""
        asked = [file for file in self._around(key) if file.key == key or file.key not in self.urls]
        self.channel.send(PullFiles(object_files=tuple(map(File.of, asked))).encode())
        found = decode(self.channel.receive(), PullWays, self.channel.origin)
        self.urls.update((way.object_file.key, way.download_from) for way in found.object_transfer_strategies)
        if key not in self.urls:
            raise ObjectNotFound(f"{self.channel.origin} names no URL of {key}. Nothing was pulled. Run again later.")

    def _around(self, key: str) -> list[StoredFile]:
        """The files that are asked for at once with one, itself among them."""
        if not self.files:
            self.files.extend(file for data in self.blocks.values() for file in files_of(decode_block(data)))
        index = next(index for index, file in enumerate(self.files) if file.key == key)
        start = index - index % URLS_AT_ONCE
        return self.files[start : start + URLS_AT_ONCE]


_MARGIN = timedelta(seconds=30)


def own_headers(found: TransferUrl, origin: str) -> dict[str, str]:
    """The headers that a server wants with a request. Raises `IntegrityError` for one that is not its to set."""
    for header in found.headers:
        if _NOT_THE_SERVERS.fullmatch(header.name):
            raise IntegrityError(
                f"{origin} wants the header {header.name!a:.100} with a request, which is not its to set. Nothing was "
                "sent. Ask who runs it."
            )
    return {header.name: header.value for header in found.headers}
