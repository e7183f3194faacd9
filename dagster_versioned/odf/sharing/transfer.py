"""Sharing datasets: pulled from anyone who can serve files, pushed to anywhere that takes them.

Whatever is copied is checked against the hash by which it was asked for; then the head moves, last of all. A copy is
never rewritten: a chain that has grown apart is reported, and left as it is. Source: seed 002 ("Simple Transfer
Protocol", "Dataset Sharing").
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dagster_versioned.errors import (
    CommitConflict,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    PreconditionFailed,
)
from dagster_versioned.odf.blocks.block import decode_block
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks, state_at
from dagster_versioned.odf.blocks.validity import ChainState
from dagster_versioned.odf.event_slice import append_events, stated_bounds
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import HeadSignature, SigningKey
from dagster_versioned.odf.sharing.chains import Difference, Step, difference, steps_of
from dagster_versioned.odf.sharing.remote import RemoteDataset, files_of
from dagster_versioned.odf.sharing.staged_pull import Progress, StagedPull, copy_files, holds, pulled_slice
from dagster_versioned.odf.slice_records import SystemTimes
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.chain_head import BLOCKS, chain_head
from dagster_versioned.tables.parts import SLICES
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.table import VersionedTable

HEAD = "head"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TransferReport:
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
) -> TransferReport:
    """Make the table a copy of a dataset, or bring its copy up to date: one version for each block with data.

    Only what the copy lacks is read, up to the head, or ``until`` an earlier block of the chain. ``dataset_id`` is
    whose data are expected; ``require_signature`` refuses a head that its owner did not sign (a signature that does not
    hold is always refused); ``max_bytes`` bounds what one pull copies, as the disk does. Until all of it was checked,
    nothing of it is part of the table. Where another pull into the table was faster, this one goes on from there.

    Raises `IntegrityError` for a source that does not keep what its hashes promise, `CommitConflict` for a chain that
    has grown apart from the copy's, `ObjectNotFound`, `InvalidInput`: the copy is then as it was. Raises `StorageError`
    too: where it comes of the copy's own store, the copy is at a block that is not the last, and another pull goes on.
    """
    require("pull", table.project)
    while True:
        at = head_of(table)
        try:
            with remote.since(at, until) as source:
                return _pull(source, table, at, until, dataset_id, require_signature, max_bytes, progress)
        except (CommitConflict, ObjectNotFound):
            if head_of(table) == at:
                raise


def head_of(table: VersionedTable) -> Multihash | None:
    """Where the chain of a copy ends, ``None`` before there is one. Raises `InvalidInput` for a table of rows."""
    if not table.exists():
        return None
    known = chain_head(table.state.snapshot)
    if known is None:
        raise InvalidInput(f"{table.name} holds rows, and is no copy. Nothing was pulled. Pull into another table.")
    return Multihash.parse(known.head)


def _pull(
    remote: RemoteDataset,
    table: VersionedTable,
    at: Multihash | None,
    until: Multihash | None,
    dataset_id: DatasetId | None,
    require_signature: bool,
    max_bytes: int | None,
    progress: Progress,
) -> TransferReport:
    copy, staged = RemoteDataset(table.store), StagedPull(table.store, remote, max_bytes)
    head, offered = (until, None) if until is not None else _published(remote)
    found = difference(head, staged.fetched_block, at, copy.block)
    state = None if at is None else state_at(copy, at)
    steps = steps_of(found.new, lambda name: decode_block(staged.block(name)), state)
    end = steps[-1][1] if steps else state
    assert end is not None  # a head is a block, so where nothing is new there is a copy
    owner = end.seed.dataset_id
    if dataset_id not in (None, owner):
        raise IntegrityError(
            f"{remote.store.uri} serves the dataset {owner}, not {dataset_id}. Nothing was pulled. Check the address."
        )
    new = {step.head: step.sequence_number for _, step in steps}
    if offered is not None:
        _check_signature(offered, remote, head, owner, new, at, copy)
    own = _signature_of(copy, owner, at)

    def number(name: Multihash) -> int:
        return new[name] if name in new else copy.block(name)[1].sequence_number

    # An older signature is put in the place of a newer one by nobody who means well.
    signature = max(filter(None, (own, offered)), key=lambda candidate: number(candidate.head), default=None)
    signed = signature and signature.head
    if require_signature and (signed is None or number(signed) < number(head)):
        what = "not signed" if signed is None else f"signed up to {signed} only"
        raise IntegrityError(
            f"The head {head} of {remote.store.uri} is {what}, and a signature is required. Nothing was pulled. Ask "
            "its owner to sign it, or pull without that requirement."
        )
    files = [file for block, _ in steps for file in files_of(block)]
    copied = staged.fetch(files, progress)
    # All of it, before the first is committed: of a source that is refused, the copy has nothing.
    times = _times_until(table, copy, state if steps else None)
    slices = [(staged.slice_of(group, times), files_of(group[-1][0])) for group in _groups(steps)]
    for events, named in slices:
        staged.keep_checkpoints(named)
        append_events(table, lambda _, events=events: events)
    if not slices:
        table.resolve()  # a pull that died may have committed the last of them, and not said where the chain ends
    _keep_signature(copy, signature, own, found)
    staged.discard()
    return TransferReport(owner, end.head, at, len(steps), len(files), copied, found.ahead, signed)


def push(
    table: VersionedTable,
    target: ObjectStore,
    *,
    reference: str = HEAD,
    key: SigningKey | None = None,
    progress: Progress = lambda done, total: None,
) -> TransferReport:
    """Bring a copy of the table's dataset in a folder or bucket up to date: files, then blocks, then the head.

    Beside the head a copy may have a branch: then it is ``reference`` that goes on, and the head stays where it is.

    Who pulls meanwhile sees the old head or the new one, and all that it stands for. With the dataset's ``key`` the
    head is signed; without it the signature that the table has goes along, and stands for the head that it names.

    Raises `IntegrityError` where the table itself is not what its hashes promise, `CommitConflict` where the copy has
    grown apart or somebody else pushes, `InvalidInput`, `StorageError`; readers of the copy then see what they saw.
    """
    if next(target.list("_delta_log/"), None) is not None:
        raise InvalidInput(
            f"{target.uri} is a table with a log of its own, which a push would bypass. Nothing was pushed. Pull "
            "into it, or push to another folder."
        )
    own, end = pushed_chain(table)
    copy, owner = RemoteDataset(target, reference), end.seed.dataset_id
    if key is not None and key.dataset_id != owner:
        raise InvalidInput(f"The private key is that of {key.dataset_id}, not of {owner}. Nothing was pushed.")
    signature = _signature_of(own, owner, end.head) if key is None else key.sign_head(end.head)
    etag, at = _reference(copy)
    if at is None and reference != HEAD:
        _require_dataset(RemoteDataset(target), owner)
    found = difference(end.head, own.block, at, copy.block)
    theirs = _signature_of(copy, owner, at)
    if signature is not None and theirs is not None and not found.ahead:
        signature = max(theirs, signature, key=lambda their: own.block(their.head)[1].sequence_number)
    check_slices(table, own, at, found.new)
    blocks = [own.block(name)[1] for name in found.new]
    files = [file for block in blocks for file in files_of(block)]
    missing = [file for file in files if not holds(target, file)]
    copied = copy_files(missing, lambda file: target.put_chunks(file.key, own.pieces(file)), progress)
    for name in found.new:
        target.put(f"{BLOCKS}{name}", own.block(name)[0])
    if found.new:
        _move_reference(copy, end.head, etag)
    _keep_signature(copy, signature, theirs, found)
    signed = signature and signature.head
    return TransferReport(owner, end.head, at, len(blocks), len(missing), copied, found.ahead, signed)


def pushed_chain(table: VersionedTable) -> tuple[RemoteDataset, ChainState]:
    """The table's dataset, and what its chain says. Raises `InvalidInput` for a table whose chain nobody may push."""
    table.project.refuse_in_environment("A push", "Push the project's own table")
    known = chain_head(table.state.snapshot)
    if known is None:
        raise InvalidInput(f"{table.name} is no history of events, so it has no chain. Nothing was pushed.")
    own = RemoteDataset(table.store)
    return own, state_at(own, Multihash.parse(known.head))


# --- chains ----------------------------------------------------------------------------------------------------------


def _groups(steps: Sequence[Step]) -> Generator[list[Step]]:
    """The steps that become one commit each: those up to a block with data, and what is left."""
    group: list[Step] = []
    for step in steps:
        group.append(step)
        if step[0].new_data is not None:
            yield group
            group = []
    if group:
        yield group


def _published(remote: RemoteDataset) -> tuple[Multihash, HeadSignature | None]:
    """The head, and the signature beside it; both are read again where they changed in between."""
    head = remote.head()
    while True:
        signature = remote.signature()
        if signature is None or signature.head == head or (now := remote.head()) == head:
            return head, signature
        head = now


def _check_signature(
    signature: HeadSignature,
    remote: RemoteDataset,
    head: Multihash,
    owner: DatasetId,
    new: Mapping[Multihash, int],
    at: Multihash | None,
    copy: RemoteDataset,
) -> None:
    """Raise `IntegrityError` for somebody else's signature, and for one of a head that is not in the chain."""
    if signature.dataset_id != owner:
        raise IntegrityError(
            f"The head of {remote.store.uri} is signed by {signature.dataset_id}, which is not its owner ({owner}). "
            "Nothing was pulled."
        )
    if signature.head != head and signature.head not in new and not precedes(signature.head, at, copy):
        raise IntegrityError(
            f"{remote.store.uri} has a signature for {signature.head}, which is not in its chain: what its owner "
            "signed was taken out. Nothing was pulled. Ask the owner."
        )


def _signature_of(copy: RemoteDataset, owner: DatasetId, at: Multihash | None) -> HeadSignature | None:
    """The owner's signature that a copy has, of a head in its chain; ``None`` for any other."""
    try:
        signature = copy.signature()
    except IntegrityError:
        return None
    if signature is None or signature.dataset_id != owner or not precedes(signature.head, at, copy):
        return None
    return signature


def _keep_signature(
    copy: RemoteDataset, signature: HeadSignature | None, known: HeadSignature | None, found: Difference
) -> None:
    """Put a signature beside the head of a copy, unless it is there, or the copy went on beyond it."""
    if signature is not None and signature != known and not found.ahead:
        copy.store.put(copy.signature_key, signature.document())


def precedes(name: Multihash, at: Multihash | None, copy: RemoteDataset) -> bool:
    while at is not None and at != name:
        at = copy.block(at)[1].prev_block_hash
    return at is not None


# --- files -----------------------------------------------------------------------------------------------------------


def _reference(copy: RemoteDataset) -> tuple[str | None, Multihash | None]:
    """The ETag of a copy's reference and its block, which a push replaces if it still is the same."""
    try:
        etag = copy.store.head(copy.reference_key).etag
    except ObjectNotFound:
        return None, None
    return etag, copy.head()


def _move_reference(copy: RemoteDataset, head: Multihash, etag: str | None) -> None:
    try:
        copy.store.put_if_match(copy.reference_key, str(head).encode(), etag)
    except PreconditionFailed:
        raise CommitConflict(
            f"Somebody else pushed to {copy.store.uri} meanwhile. Its head is theirs; what was copied is there, and no "
            "part of it. Push again: it goes on from their head, or says how the chains differ."
        ) from None


def _require_dataset(copy: RemoteDataset, owner: DatasetId) -> None:
    """Raise `CommitConflict` where a copy has a head, and it is that of another dataset."""
    at = _reference(copy)[1]
    if at is not None and (known := state_at(copy, at).seed.dataset_id) != owner:
        raise CommitConflict(
            f"{copy.store.uri} holds the dataset {known}, not {owner}. Nothing was pushed. Push to another folder."
        )


def check_slices(table: VersionedTable, own: RemoteDataset, at: Multihash | None, new: Sequence[Multihash]) -> None:
    """Raise `IntegrityError` for records that nobody could pull, among those of blocks that follow a copy's end."""
    state = state_at(own, at) if new and at is not None else None
    times = _times_until(table, own, state)
    for block, then in steps_of(new, lambda name: own.block(name)[1], state):
        columns, data = then.arrow_schema(), block.new_data
        if columns is not None and data is not None:
            key = f"{SLICES}{data.physical_hash}"
            try:
                pulled_slice(own.store, key, data, columns, then, times)
            except (ObjectNotFound, FileNotFoundError):
                continue  # the copy may have it
            except IntegrityError as error:
                raise IntegrityError(
                    f"{key}: {error} Nobody could pull it. Nothing was pushed. `odf verify` says all that is wrong."
                ) from None


def _times_until(table: VersionedTable, copy: RemoteDataset, state: ChainState | None) -> SystemTimes:
    return SystemTimes(None if state is None else _latest_time(table, copy, state))


def _latest_time(table: VersionedTable, copy: RemoteDataset, state: ChainState) -> int | None:
    """A system time, in microseconds, that the last record of a copy has or exceeds, as the log's statistics say."""
    slices = (data for link in iterate_blocks(copy, state.head) if (data := link.block.new_data) is not None)
    if (last := next(slices, None)) is None:
        return None
    add = next((add for add in table.state.snapshot.adds() if add.key == f"{SLICES}{last.physical_hash}"), None)
    text = stated_bounds(add, state.columns.system_time)[1] if add is not None else None
    if text is None:
        return None
    # An upper bound is rounded up to a millisecond.
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1) - 999
