"""Sharing datasets: pulled from anyone who can serve files, pushed to anywhere that takes them.

Whatever is copied is checked against the hash by which it was asked for; then the head moves, last of all. A copy is
never rewritten: a chain that has grown apart is reported, and left as it is. Source: seed 002 ("Simple Transfer
Protocol", "Dataset Sharing").
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dagster_versioned.chain.block import Block, block_hash, decode_block
from dagster_versioned.chain.dataset_id import DatasetId
from dagster_versioned.chain.events import AddData, DataSlice, ExecuteTransform
from dagster_versioned.chain.multihash import Multihash
from dagster_versioned.chain.pulled_slice import pulled_slice
from dagster_versioned.chain.remote import RemoteDataset, StoredFile, files_of
from dagster_versioned.chain.signature import SIGNATURE_KEY, HeadSignature
from dagster_versioned.chain.signing_key import SigningKey
from dagster_versioned.chain.validity import ChainState, validate
from dagster_versioned.chain.walk import state_at
from dagster_versioned.delta.schema import StructType
from dagster_versioned.engines.conform import stored_schema
from dagster_versioned.engines.events import EventColumns
from dagster_versioned.engines.increment import nothing
from dagster_versioned.errors import ChainCorrupt, CommitConflict, IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.temporary import TemporaryFolder
from dagster_versioned.storage.transfer import PIECE_BYTES
from dagster_versioned.tables.chain_head import BLOCKS, REF_KEY, ChainHead, chain_head
from dagster_versioned.tables.event_slice import ChainEntry, EventSlice, SliceFile
from dagster_versioned.tables.parts import SLICES
from dagster_versioned.tables.table import VersionedTable

PULLED = "_staging/pull/"
"""Where what was copied waits until all of it is: a pull that was interrupted goes on from here."""
THREADS = 8

Progress = Callable[[int, int], None]
"""Called with the bytes that are copied, of how many."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a pull or a push did.

    ``before`` is the head that the copy had, ``None`` where it was made; ``ahead`` counts the blocks that the copy has
    and the source does not. ``signed`` is the head that the owner's signature stands for: the copy's head, an earlier
    one, or ``None``.
    """

    dataset_id: DatasetId
    head: Multihash
    before: Multihash | None
    blocks: int
    files: int
    bytes: int
    ahead: int = 0
    signed: Multihash | None = None


def pull(
    remote: RemoteDataset,
    table: VersionedTable,
    *,
    until: Multihash | None = None,
    dataset_id: DatasetId | None = None,
    require_signature: bool = False,
    max_bytes: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Transferred:
    """Make the table a copy of a dataset, or bring its copy up to date: one version for each block with data.

    Only what the copy lacks is read, up to the head, or ``until`` an earlier block of the chain. ``dataset_id`` is
    whose data are expected; ``require_signature`` refuses a head that its owner did not sign (a signature that does not
    hold is always refused); ``max_bytes`` bounds the slices and checkpoints of one pull. Until all of it was checked,
    nothing of it is part of the table.

    Raises `IntegrityError` for a source that does not keep what its hashes promise, `CommitConflict` for a chain that
    has grown apart from the copy's, `ObjectNotFound`, `InvalidInput`, `StorageError`; the copy is then as it was.
    """
    table.project.check_write()
    known = chain_head(table.state.snapshot) if table.exists() else None
    if known is None and table.exists():
        raise InvalidInput(f"{table.name} holds rows, and is no copy. Nothing was pulled. Pull into another table.")
    copy, staged = RemoteDataset(table.store), _Staged(table.store)
    head = until or remote.head()
    at = None if known is None else Multihash.parse(known.head)
    found = _difference(head, staged.reader(remote), at, copy.block)
    state = None if at is None else state_at(copy, at)
    steps = _steps(found.new, staged, state)
    end = steps[-1][1] if steps else state
    assert end is not None  # a head is a block, so where nothing is new there is a copy
    owner = end.seed.dataset_id
    if dataset_id not in (None, owner):
        raise IntegrityError(
            f"{remote.store.uri} serves the dataset {owner}, not {dataset_id}. Nothing was pulled. Check the address."
        )
    signature = None if until is not None else _signature(remote, head, owner, found, at, copy)
    signed = signature.head if signature is not None else None
    if require_signature and signed != head:
        what = "not signed" if signed is None else f"signed up to {signed} only"
        raise IntegrityError(
            f"The head {head} of {remote.store.uri} is {what}, and a signature is required. Nothing was pulled. Ask "
            "its owner to sign it, or pull without that requirement."
        )
    files = [file for block, _ in steps for file in files_of(block)]
    copied = staged.fetch(remote, files, max_bytes, progress)
    for group in _groups(steps):
        events = staged.slice_of(group)
        table.append_events(lambda _, events=events: events)
    if signature is not None and not found.ahead:
        table.store.put(SIGNATURE_KEY, signature.document())
    staged.discard()
    return Transferred(owner, end.head, at, len(steps), len(files), copied, found.ahead, signed)


def push(
    table: VersionedTable,
    target: ObjectStore,
    *,
    key: SigningKey | None = None,
    progress: Progress = lambda done, total: None,
) -> Transferred:
    """Bring a copy of the table's dataset in a folder or bucket up to date: files, then blocks, then the head.

    Who pulls meanwhile sees the old head or the new one, and all that it stands for. With the dataset's ``key`` the
    head is signed; without it the signature that the table has goes along, and stands for the head that it names.

    Raises `IntegrityError` where the table itself is not what its hashes promise, `CommitConflict` where the copy has
    grown apart or somebody else pushes, `InvalidInput`, `StorageError`; readers of the copy then see what they saw.
    """
    known = chain_head(table.state.snapshot)
    if known is None:
        raise InvalidInput(f"{table.name} is no history of events, so it has no chain. Nothing was pushed.")
    if next(target.list("_delta_log/"), None) is not None:
        raise InvalidInput(
            f"{target.uri} is a table with a log of its own, which a push would bypass. Nothing was pushed. Pull "
            "into it, or push to another folder."
        )
    own, copy = RemoteDataset(table.store), RemoteDataset(target)
    end = state_at(own, Multihash.parse(known.head))
    owner = end.seed.dataset_id
    if key is not None and key.dataset_id != owner:
        raise InvalidInput(f"The private key is that of {key.dataset_id}, not of {owner}. Nothing was pushed.")
    etag, at = _reference(target)
    found = _difference(end.head, own.block, at, copy.block)
    blocks = [own.block(name)[1] for name in found.new]
    files = [file for block in blocks for file in files_of(block)]
    missing = [file for file in files if not _holds(target, file)]
    copied = _copy(missing, lambda file: target.put_chunks(file.key, own.pieces(file)), progress)
    for name in found.new:
        target.put(f"{BLOCKS}{name}", own.block(name)[0])
    if found.new:
        target.put_if_match(REF_KEY, str(end.head).encode(), etag)
    signature = own.signature() if key is None else key.sign_head(end.head)
    if signature is not None and not found.ahead:
        target.put(SIGNATURE_KEY, signature.document())
    signed = signature.head if signature is not None else None
    return Transferred(owner, end.head, at, len(blocks), len(missing), copied, found.ahead, signed)


# --- chains ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Difference:
    """The blocks that a source has and a copy lacks, in order; and how many it is the other way round."""

    new: tuple[Multihash, ...]
    ahead: int


_Step = tuple[Block, ChainState]
"""A block, and what the chain says with it."""


def _difference(
    head: Multihash,
    theirs: Callable[[Multihash], tuple[bytes, Block]],
    at: Multihash | None,
    ours: Callable[[Multihash], tuple[bytes, Block]],
) -> _Difference:
    """Follow a chain back to what the copy at block ``at`` has; each block one number less, so that it ends.

    Raises `ChainCorrupt` for a chain that breaks that rule, `CommitConflict` where each side has blocks of its own.
    """
    if head == at:
        return _Difference((), 0)
    new: list[Multihash] = []
    name, block = head, theirs(head)[1]
    mine, own, ahead = at, ours(at)[1] if at is not None else None, 0
    while True:
        while own is not None and own.sequence_number >= block.sequence_number and mine != name:
            ahead += 1
            mine = own.prev_block_hash
            own = ours(mine)[1] if mine is not None else None
        if mine == name:
            break
        new.append(name)
        if block.prev_block_hash in (None, mine):
            break
        before = theirs(block.prev_block_hash)[1]
        if before.sequence_number + 1 != block.sequence_number:
            raise ChainCorrupt(
                f"Block {block.prev_block_hash} is number {before.sequence_number}, and is said to come before {name}, "
                f"number {block.sequence_number}. Nothing was copied."
            )
        name, block = block.prev_block_hash, before
    if ahead and new:
        common = "no block" if own is None else f"the blocks up to {mine} (number {own.sequence_number})"
        raise CommitConflict(
            f"The chains have grown apart: they share {common}; then the source has {len(new)} blocks and the copy "
            f"{ahead} others. Nothing was copied, and the copy is as it was. Ask the owner which is right; to take the "
            "source's, pull it into a new table."
        )
    return _Difference(tuple(reversed(new)), ahead)


def _steps(names: Iterable[Multihash], staged: "_Staged", state: ChainState | None) -> list[_Step]:
    """New blocks, each with what the chain says then. Raises `ChainCorrupt` for one that breaks its rules."""
    steps: list[_Step] = []
    for name in names:
        block = decode_block(staged.block(name))
        state = validate(state, block, name)
        steps.append((block, state))
    return steps


def _groups(steps: Sequence[_Step]) -> Generator[list[_Step]]:
    """The steps that become one commit each: those up to a block with data, and what is left."""
    group: list[_Step] = []
    for step in steps:
        group.append(step)
        if _data_of(step[0]) is not None:
            yield group
            group = []
    if group:
        yield group


def _data_of(block: Block) -> DataSlice | None:
    return block.event.new_data if isinstance(block.event, AddData | ExecuteTransform) else None


def _signature(
    remote: RemoteDataset,
    head: Multihash,
    owner: DatasetId,
    found: _Difference,
    at: Multihash | None,
    copy: RemoteDataset,
) -> HeadSignature | None:
    """The owner's signature, of the head, or of an earlier one where blocks were added since.

    Raises `IntegrityError` for somebody else's signature, and for one of a head that is not in the chain.
    """
    signature = remote.signature()
    if signature is None:
        return None
    if signature.dataset_id != owner:
        raise IntegrityError(
            f"The head of {remote.store.uri} is signed by {signature.dataset_id}, which is not its owner ({owner}). "
            "Nothing was pulled."
        )
    if signature.head not in (head, *found.new) and not _precedes(signature.head, at, copy):
        raise IntegrityError(
            f"{remote.store.uri} has a signature for {signature.head}, which is not in its chain: what its owner "
            "signed was taken out. Nothing was pulled. Ask the owner."
        )
    return signature


def _precedes(name: Multihash, at: Multihash | None, copy: RemoteDataset) -> bool:
    while at is not None and at != name:
        at = copy.block(at)[1].prev_block_hash
    return at is not None


# --- files -----------------------------------------------------------------------------------------------------------


def _copy(files: Sequence[StoredFile], copy: Callable[[StoredFile], object], progress: Progress) -> int:
    """Copy files, several at a time; the first failure ends it. Returns how many bytes they have."""
    total, done = sum(file.size for file in files), 0
    with ThreadPoolExecutor(THREADS, thread_name_prefix="transfer") as pool:
        running = {pool.submit(copy, file): file for file in files}
        try:
            for ended in as_completed(running):
                ended.result()
                done += running[ended].size
                progress(done, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return total


def _holds(store: ObjectStore, file: StoredFile, folder: str = "") -> bool:
    try:
        return store.head(f"{folder}{file.key}").size == file.size
    except ObjectNotFound:
        return False


def _reference(target: ObjectStore) -> tuple[str | None, Multihash | None]:
    """The ETag of a copy's head and the head, which a push replaces if it still is the same."""
    try:
        etag = target.head(REF_KEY).etag
    except ObjectNotFound:
        return None, None
    return etag, RemoteDataset(target).head()


class _Staged:
    """What a pull has copied so far, each piece whole and checked; below the table's folder, and no part of it yet."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def reader(self, remote: RemoteDataset) -> Callable[[Multihash], tuple[bytes, Block]]:
        """Reads blocks, from an earlier attempt where that has them."""

        def read(name: Multihash) -> tuple[bytes, Block]:
            try:
                data = self.block(name)
            except (ObjectNotFound, ChainCorrupt):
                data, block = remote.block(name)
                self._store.put(f"{PULLED}{BLOCKS}{name}", data, durability="later")
                return data, block
            return data, decode_block(data)

        return read

    def block(self, name: Multihash) -> bytes:
        """A block that was copied. Raises `ObjectNotFound`, `ChainCorrupt`."""
        data = self._store.get(f"{PULLED}{BLOCKS}{name}")
        if block_hash(data) != name:  # such as after a power failure
            raise ChainCorrupt(f"{PULLED}{BLOCKS}{name} in {self._store.uri} was altered. Pull again.")
        return data

    def fetch(
        self, remote: RemoteDataset, files: Sequence[StoredFile], max_bytes: int | None, progress: Progress
    ) -> int:
        """Copy files, those of an earlier attempt excepted; returns how many bytes. Raises `InvalidInput`."""
        total = sum(file.size for file in files)
        if max_bytes is not None and total > max_bytes:
            raise InvalidInput(
                f"{remote.store.uri} has {total} bytes that are new, and {max_bytes} are allowed. Nothing was pulled. "
                "Allow more, if you trust the source with your disk."
            )
        missing = [file for file in files if not _holds(self._store, file, PULLED)]
        return _copy(missing, lambda file: self._store.put_chunks(f"{PULLED}{file.key}", remote.pieces(file)), progress)

    def slice_of(self, group: Sequence[_Step]) -> EventSlice:
        """The events of one commit: at most one slice, and the blocks up to it."""
        block, state = group[-1]
        columns = state.arrow_schema()
        if columns is None:
            raise InvalidInput(
                f"The dataset {state.seed.dataset_id} has no columns yet. Nothing was pulled. Pull it once it has data."
            )
        schema = stored_schema(columns)
        for file in files_of(block):
            if not file.key.startswith(SLICES):
                self._store.copy(f"{PULLED}{file.key}", file.key)
        said = _data_of(block)
        file = None if said is None else self._read(said, schema, _columns(state))
        before = group[0][0].prev_block_hash
        return EventSlice(
            base=None if before is None else str(before),
            file=file,
            contents=nothing(schema) if file is None else file.contents,
            entry=ChainEntry(
                {str(step.head): self.block(step.head) for _, step in group},
                ChainHead(str(state.head), state.sequence_number, str(state.seed.dataset_id)),
            ),
        )

    def _read(self, said: DataSlice, schema: StructType, columns: EventColumns) -> SliceFile:
        staged = f"{PULLED}{SLICES}{said.physical_hash}"
        with _local(self._store, staged) as path:
            return pulled_slice(path, staged, said, schema, columns)

    def discard(self) -> None:
        """Delete what was copied, once it is part of the table."""
        self._store.delete([info.key for info in self._store.list(PULLED)])


def _columns(state: ChainState) -> EventColumns:
    said = state.vocab
    names = said.offset_column, said.operation_type_column, said.system_time_column, said.event_time_column
    return EventColumns(*(name for name in names if name))


@contextmanager
def _local(store: ObjectStore, key: str) -> Generator[Path]:
    """A file of this machine with an object's bytes."""
    path = store.local_path(key)
    if path is not None:
        yield path
        return
    with TemporaryFolder() as folder:
        path = folder / "slice"
        with path.open("wb") as file:
            for start in range(0, store.head(key).size, PIECE_BYTES):
                file.write(store.get_range(key, start, PIECE_BYTES))
        yield path
