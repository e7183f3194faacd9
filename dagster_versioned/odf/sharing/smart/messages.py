"""The messages of the smart transfer protocol, version 1, as kamu writes them: JSON in texts of a WebSocket.

The members are those of kamu-cli (at f95532386, `src/adapter/http/src/smart_protocol/messages.rs`), the only other
implementation; the names in the AsyncAPI document of the specification (0.1.0, RFC-008) are others, which nobody sends.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)

from dagster_versioned.errors import IntegrityError, InvalidInput, UnsupportedFeature
from dagster_versioned.odf.blocks.block import MAX_BLOCK_SIZE, Block
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from dagster_versioned.odf.sharing.remote import CHECKPOINTS, StoredFile, files_of
from dagster_versioned.tables.parts import SLICES

VERSION = "1"
VERSION_HEADER = "x-odf-smtp-version"
MAX_MESSAGE_BYTES = 64 * 1024**2
"""What kamu's ends of a connection read at most; a message of blocks has up to four letters for each byte."""
MAX_FILES = 10_000
"""How many files one message may ask for."""

MAX_UNPACKED_BYTES = 256 * 1024**2
"""What the blocks of one message have at most, since they are in memory; more is for the simple protocol."""
_MEDIA_TYPE, _ENCODING = "application/tar+gzip", "raw"

_Model = TypeVar("_Model", bound="Message")
_Hash = Annotated[
    Multihash, PlainValidator(lambda value: Multihash.parse(str(value))), PlainSerializer(str, return_type=str)
]
_Bytes = Annotated[bytes, PlainValidator(lambda value: _bytes_of(value)), PlainSerializer(list, return_type=list[int])]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class Message(BaseModel):
    """A message: unknown members are passed over, since later ones of version 1 have more."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    def encode(self) -> str:
        return orjson.dumps(self.model_dump(mode="json")).decode()


class Plan(Message):
    """How much a transfer is, as its sender reckons."""

    num_blocks: _Count
    num_objects: _Count
    num_records: _Count = 0
    bytes_in_raw_blocks: _Count
    bytes_in_raw_objects: _Count


class PullRequest(Message):
    """Begins a pull of the blocks after one, up to another."""

    begin_after: _Hash | None = None
    stop_at: _Hash | None = None
    force_update_if_diverged: bool = False


class PullAccepted(Message):
    """Answers it, within a result."""

    transfer_plan: Plan


class Empty(Message):
    """Says that it is time for the next step; which one, its place says."""


class Batch(Message):
    """Blocks in an archive."""

    num_blocks: _Count
    media_type: str
    encoding: str
    payload: _Bytes


class PulledBlocks(Message):
    """The blocks that were asked for."""

    blocks: Batch


class File(Message):
    """A file that a block names."""

    object_type: Literal["DataSlice", "Checkpoint"]
    physical_hash: _Hash
    size: _Count

    @classmethod
    def of(cls, file: StoredFile) -> "File":
        kind = "DataSlice" if file.key.startswith(SLICES) else "Checkpoint"
        return cls(object_type=kind, physical_hash=file.physical_hash, size=file.size)

    @property
    def key(self) -> str:
        return f"{SLICES if self.object_type == 'DataSlice' else CHECKPOINTS}{self.physical_hash}"


_Files = Annotated[tuple[File, ...], Field(max_length=MAX_FILES)]


class PullFiles(Message):
    """Asks where files are."""

    object_files: _Files


class Header(Message):
    """A header that goes with a request."""

    name: str
    value: str


class TransferUrl(Message):
    """Where a file is read or sent, with which headers, and until when."""

    url: str
    headers: Annotated[tuple[Header, ...], Field(max_length=32)] = ()
    expires_at: AwareDatetime | None = None


class PullWay(Message):
    """How a file is fetched."""

    object_file: File
    pull_strategy: Literal["HttpDownload"]
    download_from: TransferUrl


class PullWays(Message):
    """How files are fetched."""

    object_transfer_strategies: Annotated[tuple[PullWay, ...], Field(max_length=MAX_FILES)]


class PushRequest(Message):
    """Begins a push of blocks after the one that is held to be the head."""

    current_head: _Hash | None = None
    transfer_plan: Plan
    force_update_if_diverged: bool = False
    visibility_for_created_dataset: str = "Private"


class PushedBlocks(Message):
    """The blocks that are pushed."""

    new_blocks: Batch


class PushFiles(Message):
    """Asks where files are to be sent; another such message follows if it is truncated."""

    object_files: _Files
    is_truncated: bool = False


class PushWay(Message):
    """How a file is sent, if it is to be."""

    object_file: File
    push_strategy: Literal["SkipUpload", "HttpUpload"]
    upload_to: TransferUrl | None = None


class PushWays(Message):
    """Answers it, within a result."""

    object_transfer_strategies: Annotated[tuple[PushWay, ...], Field(max_length=MAX_FILES)]


class Sent(Message):
    """How many files were sent."""

    uploaded_objects_count: _Count


class Running(Message):
    """Not all files were sent yet."""

    Running: Sent


class Progress(Message):
    """How far the files are."""

    details: Literal["Complete"] | Running


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a server answers in place of what was asked for: the name of an error, and what it says of it."""

    kind: str
    members: Mapping[str, Any]

    def __str__(self) -> str:
        sentence = self.members.get("error_message")
        return sentence[:1000] if isinstance(sentence, str) else f"{self.kind!a}"[:1000]


def decode(text: str, model: type[_Model], origin: str) -> _Model:
    """The message that was expected. Raises `IntegrityError` for any other, and for the sentence of a refusal."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise _unexpected(text, model, origin, error) from None


def decode_result(text: str, model: type[_Model], origin: str) -> _Model | Refusal:
    """The message that was expected, in a result, or the refusal. Raises `IntegrityError` for anything else."""
    try:
        ((kind, members),) = _Failed.model_validate_json(text).Err.items()
        return Refusal(kind, members)
    except ValidationError:
        pass
    try:
        return model.model_validate_json(orjson.dumps(_GOOD.validate_json(text)["Ok"]))
    except (ValidationError, KeyError) as error:
        raise _unexpected(text, model, origin, error) from None


def accepted(message: Message) -> str:
    """A message as the good half of a result."""
    return f'{{"Ok":{message.encode()}}}'


def refused(kind: str, members: Mapping[str, object]) -> str:
    """A refusal as the other half."""
    return orjson.dumps({"Err": {kind: members}}).decode()


def internal(phase: str, step: str, sentence: str) -> str:
    """The refusal that has a sentence, at a step of a pull or a push."""
    return refused("Internal", {"phase": {phase: step}, "error_message": sentence})


def plan_of(blocks: Iterable[tuple[Block, int]]) -> Plan:
    """How much blocks are, given each with its size in bytes, and the files that they name."""
    known = list(blocks)
    files = [file for block, _ in known for file in files_of(block)]
    slices = [block.new_data.offset_interval for block, _ in known if block.new_data is not None]
    return Plan(
        num_blocks=len(known),
        num_objects=len(files),
        num_records=sum(slice_.end - slice_.start + 1 for slice_ in slices),
        bytes_in_raw_blocks=sum(size for _, size in known),
        bytes_in_raw_objects=sum(file.size for file in files),
    )


class _Failed(Message):
    Err: Annotated[dict[str, dict[str, Any]], Field(min_length=1, max_length=1)]


_GOOD = TypeAdapter(dict[Literal["Ok"], Any])


def _bytes_of(value: object) -> bytes:
    if isinstance(value, bytes):  # no JSON has them
        return value
    if not isinstance(value, list):
        raise ValueError("no list of bytes")
    try:
        return bytes(value)  # pyright: ignore[reportUnknownArgumentType] - anything but numbers below 256 is refused
    except TypeError:
        raise ValueError("no list of bytes") from None


def _unexpected(text: str, model: type[Message], origin: str, error: ValidationError | KeyError) -> IntegrityError:
    if text.startswith('"'):  # the sentence of a refusal, where the protocol has no member for one
        try:
            return IntegrityError(f"{origin} refused: {str(orjson.loads(text))[:1000]}")
        except orjson.JSONDecodeError:
            pass
    why = f" ({error.errors()[0]['msg']})" if isinstance(error, ValidationError) else ""
    return IntegrityError(
        f"{origin} sent {text[:80]!a}, which is no {model.__name__} of the smart transfer protocol{why}. Nothing was "
        "changed. Ask who runs it, or pull by http(s)://."
    )


# --- blocks in an archive: a gzipped tar, each member named by its block's hash --------------------------------------


def pack(blocks: Iterable[tuple[Multihash, bytes]]) -> Batch:
    """The message of blocks, the oldest first. Raises `InvalidInput` where they are more than one can have."""
    written, count = io.BytesIO(), 0
    with tarfile.open(fileobj=written, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        for name, data in blocks:
            member = tarfile.TarInfo(str(name))
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            count += 1
    payload = written.getvalue()
    if 4 * len(payload) > MAX_MESSAGE_BYTES - 1024:
        raise InvalidInput(
            f"{count} blocks have {len(payload)} bytes packed, and one message of the smart transfer protocol holds "
            f"{MAX_MESSAGE_BYTES // 4}. Nothing was changed. Pull by http(s)://, which reads block by block."
        )
    return Batch(num_blocks=count, media_type=_MEDIA_TYPE, encoding=_ENCODING, payload=payload)


def unpack(batch: Batch, origin: str) -> dict[Multihash, bytes]:
    """The blocks of a message, in its order; that a block has the hash that it is named by is for who reads it.

    Raises `UnsupportedFeature` for another kind of archive, `IntegrityError` for what is no such archive or too much.
    """
    if (batch.media_type, batch.encoding) != (_MEDIA_TYPE, _ENCODING):
        raise UnsupportedFeature(
            f"{origin} sent blocks as {batch.media_type!a:.100}, {batch.encoding!a:.100}; {_MEDIA_TYPE!r}, "
            f"{_ENCODING!r} is known. Nothing of it was kept. Upgrade this package, or pull by http(s)://."
        )
    found: dict[Multihash, bytes] = {}
    try:
        with (
            _BoundedGzip(batch.payload) as unzipped,
            tarfile.open(fileobj=unzipped, mode="r|") as archive,
        ):
            for member in archive:
                if len(found) == batch.num_blocks:
                    raise IntegrityError(f"it holds more blocks than the {batch.num_blocks} that it is to have")
                name = _name(member)
                file = archive.extractfile(member)
                found[name] = b"" if file is None else file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError, IntegrityError) as error:
        raise _no_archive(origin, str(error) or type(error).__name__) from None
    if len(found) != batch.num_blocks:
        raise _no_archive(origin, f"it holds {len(found)} blocks, not {batch.num_blocks}")
    return found


def _name(member: tarfile.TarInfo) -> Multihash:
    """The block that a member is. Raises `IntegrityError`, also for a path: nothing is written by a member's name."""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise IntegrityError(f"the member {member.name!a:.100} is no plain file")
    if member.size > MAX_BLOCK_SIZE:
        raise IntegrityError(f"the member {member.name!a:.100} has {member.size} bytes, and a block has fewer")
    try:
        name = Multihash.parse(member.name)
    except InvalidInput:
        name = None
    if name is None or name.algorithm is not HashAlgorithm.SHA3_256:
        raise IntegrityError(f"the member {member.name!a:.100} is named by no hash of a block")
    return name


class _BoundedGzip(gzip.GzipFile):
    """An unpacked archive, of which no more is read than there may be: a small one may unpack to a large one."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(fileobj=io.BytesIO(payload))
        self._left = MAX_UNPACKED_BYTES

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise IntegrityError(f"its blocks have more than {MAX_UNPACKED_BYTES} bytes")
        return data


def _no_archive(origin: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{origin} sent an archive of blocks that cannot be used: {why}. Nothing of it was kept. Pull by http(s)://, "
        "or ask who publishes it."
    )
