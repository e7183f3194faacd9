"""Whether a dataset is what it claims to be, up to the datasets that it was made from.

Nothing is believed that a hash does not prove: blocks by their names, slices and checkpoints by the blocks, derived
data by doing the transformation again. What is reported says which dataset, and which of its blocks, is not what it
claims to be.
Source: seed 002 ("Verifiability", "Dataset Validation").
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.errors import (
    ChainCorrupt,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    UnsupportedFeature,
    VersionedError,
    VersionNotFound,
)
from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.block_iterator import Link, iterate_blocks
from dagster_versioned.odf.blocks.events import (
    AddPushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    FetchStepFilesGlob,
    FetchStepUrl,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
)
from dagster_versioned.odf.blocks.validity import ChainState, validate
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import MAX_SIGNATURE_BYTES, SIGNATURE_KEY
from dagster_versioned.odf.manifest import to_document
from dagster_versioned.odf.sharing.remote import RemoteDataset, StoredFile
from dagster_versioned.odf.verification.files import Progress, check_files, check_log, files_in, finding_of
from dagster_versioned.odf.verification.report import ChainFinding, DatasetReport, VerificationReport
from dagster_versioned.tables.chain_head import BLOCKS, REF_KEY, chain_head

Resolve = Callable[[DatasetId], RemoteDataset]
"""Where a dataset is found. Raises `VersionedError` where it is not."""

Replay = Callable[[RemoteDataset, Block, Resolve], ExecuteTransform]
"""Does a recorded run of a query again, and says what it gives. Raises `VersionedError`."""

_WRONG: Final = (IntegrityError, UnsupportedFeature, InvalidInput, ObjectNotFound, VersionNotFound)
"""What says something of the dataset. A store that does not answer says nothing of it: that error is passed on."""


def verify(
    dataset: RemoteDataset,
    *,
    resolve: Resolve | None = None,
    replay: Replay | None = None,
    head: Multihash | None = None,
    log: Snapshot | None = None,
    progress: Progress = lambda done, total: None,
) -> VerificationReport:
    """Check a dataset: its chain against the rules, its files against the chain.

    With ``resolve``, also the datasets that it was made from, up to the roots. With ``replay`` too, every recorded run
    of a query is done again, and what it gives compared with what is recorded. ``head`` is the last block as somebody
    else knows it: the dataset is to name the same one. ``log`` is what the log of the dataset's table says: it is to
    name that block too, and to list the slices of the chain, whole, and nothing else.

    Raises `StorageError` where a store does not answer, which says nothing of the dataset.
    """
    if log is not None and (logged := chain_head(log)) is not None:
        head = Multihash.parse(logged.head)
    verification = _Verification(resolve, replay, progress)
    verification.check(dataset, None, head, log)
    return VerificationReport(tuple(verification.reports))


@dataclass(slots=True)
class _CheckedDataset:
    """What is known of a dataset once its chain was checked, and what its chain says by block."""

    dataset: RemoteDataset
    report: DatasetReport
    links: Sequence[Link] = ()
    states: Mapping[Multihash, ChainState] = field(default_factory=dict[Multihash, ChainState])


class _Verification:
    def __init__(self, resolve: Resolve | None, replay: Replay | None, progress: Progress) -> None:
        self.reports: list[DatasetReport] = []
        self._resolve = resolve
        self._replay = replay
        self._progress = progress
        self._known: dict[DatasetId, _CheckedDataset | None] = {}

    def check(
        self,
        dataset: RemoteDataset,
        expected: DatasetId | None,
        head: Multihash | None = None,
        log: Snapshot | None = None,
    ) -> _CheckedDataset:
        """Check a dataset and, where asked for, all that it was made from."""
        place = len(self.reports)
        chain = _Chain(dataset, expected, head)
        if chain.dataset_id is not None:
            self._known[chain.dataset_id] = None
        findings, unchecked = chain.findings, chain.unchecked
        files = [(link, file) for link in chain.links for file in files_in(link)]
        found, unread = check_files(dataset, files, chain.schemas, chain.states, self._progress)
        findings += found
        unchecked += unread
        if log is not None and chain.state is not None and not unchecked:
            findings += check_log(log, chain.state, files)
        checked = _CheckedDataset(dataset, chain.report(files), chain.links, chain.states)
        self.reports.append(checked.report)
        replayed = 0
        if self._resolve is not None and checked.report.inputs:
            replayed = self._check_made_from(checked, findings, unchecked)
        checked.report = replace(
            checked.report, findings=tuple(findings), unchecked=tuple(unchecked), replayed=replayed
        )
        self.reports[place] = checked.report
        if chain.dataset_id is not None:
            self._known[chain.dataset_id] = checked
        return checked

    def _check_made_from(self, checked: _CheckedDataset, findings: list[ChainFinding], unchecked: list[str]) -> int:
        """Check what a dataset was made from, then its runs; how many of these were done again."""
        inputs = {wanted: self._input(wanted, unchecked) for wanted in checked.report.inputs}
        for link in checked.links:
            if isinstance(link.block.event, ExecuteTransform):
                findings += _check_inputs(link, link.block.event, inputs)
        if self._replay is None or not self._may_replay(inputs, checked, findings, unchecked):
            return 0
        replayed, found = self._check_runs(checked, unchecked)
        findings += found
        return replayed

    def _input(self, wanted: DatasetId, unchecked: list[str]) -> _CheckedDataset | None:
        if wanted in self._known:
            known = self._known[wanted]
            if known is None:
                unchecked.append(f"the input {wanted}: it is made from this dataset, in a circle")
            return known
        assert self._resolve is not None
        try:
            found = self._resolve(wanted)
        except VersionedError as error:
            unchecked.append(f"the input {wanted}: {error}")
            return None
        self._known[wanted] = None  # until it is checked, and for good if another dataset is there
        checked = self._known[wanted] = self.check(found, wanted)
        return checked

    def _may_replay(
        self,
        inputs: Mapping[DatasetId, _CheckedDataset | None],
        checked: _CheckedDataset,
        findings: Sequence[ChainFinding],
        unchecked: list[str],
    ) -> bool:
        """Whether what the runs read is what it claims to be: else what they gave would say nothing."""
        broken = [str(wanted) for wanted, known in inputs.items() if known is None or not known.report.ok]
        if broken:
            unchecked.append(f"no run was done again: the input {', '.join(broken)} is not what it claims to be")
        elif findings or checked.report.unchecked:
            unchecked.append("no run was done again: the dataset itself is not what it claims to be")
        else:
            return True
        return False

    def _check_runs(self, checked: _CheckedDataset, unchecked: list[str]) -> tuple[int, list[ChainFinding]]:
        """Do every recorded run again, and compare it with its block, of which the records have been checked."""
        assert self._replay is not None
        assert self._resolve is not None
        findings: list[ChainFinding] = []
        runs = [link for link in checked.links if isinstance(link.block.event, ExecuteTransform)]
        for link in reversed(runs):
            event = link.block.event
            assert isinstance(event, ExecuteTransform)
            problem = None
            try:
                given = self._replay(checked.dataset, link.block, self._found)
                problem = _difference(event, given)
            except UnsupportedFeature as error:
                unchecked.append(f"no run was done again, its chain and files alone were checked: {error}")
                return 0, []
            except _WRONG as error:
                problem = f"it cannot be done again: {error}"
            if problem is not None:
                findings.append(finding_of("replay", link, "", problem))
        return len(runs), findings

    def _found(self, wanted: DatasetId) -> RemoteDataset:
        known = self._known.get(wanted)
        if known is None:
            raise ObjectNotFound(f"The dataset {wanted} is no input. Nothing was read.")
        return known.dataset


class _Chain:
    """A chain that was walked and validated, as far as it can be; the first block comes last in ``links``."""

    def __init__(self, dataset: RemoteDataset, expected: DatasetId | None, head: Multihash | None) -> None:
        self.findings: list[ChainFinding] = []
        self.unchecked: list[str] = []
        self.links: list[Link] = []
        self.states: dict[Multihash, ChainState] = {}
        self.state: ChainState | None = None
        self.schemas: dict[Multihash, SetDataSchema] = {}
        self._dataset = dataset
        self.head = self._head(head)
        if self.head is not None:
            self._walk(self.head)
        seed = self.links[-1].block.event if self.links else None
        self.dataset_id = seed.dataset_id if isinstance(seed, Seed) else expected
        if expected not in (None, self.dataset_id):
            problem = f"the dataset there is {self.dataset_id}, not {expected}"
            self.findings.append(ChainFinding("head", self.head, None, REF_KEY, problem))
        self._validate()
        self.signed = self._signed()

    def report(self, files: Sequence[tuple[Link, StoredFile]]) -> DatasetReport:
        size = sum(file.size for _, file in files) + sum(link.size for link in self.links)
        return DatasetReport(
            location=self._dataset.store.uri,
            dataset_id=self.dataset_id,
            head=self.head,
            sources=tuple(_sources(link.block.event for link in reversed(self.links))),
            inputs=_inputs(self.links),
            signed=self.signed,
            blocks=len(self.links),
            files=len(files),
            bytes=size,
            replayed=0,
            findings=(),
            unchecked=tuple(self.unchecked),
        )

    def _head(self, known: Multihash | None) -> Multihash | None:
        try:
            named = self._dataset.head()
        except _WRONG as error:
            self.findings.append(ChainFinding("head", None, None, REF_KEY, str(error)))
            if known is None:
                self.unchecked.append("all of it: there is no head to begin with")
            return known
        if known is not None and named != known:
            problem = f"it names {named}, and the last block is {known}"
            self.findings.append(ChainFinding("head", None, None, REF_KEY, problem))
        return known or named

    def _walk(self, head: Multihash) -> None:
        """Follow the chain to its first block, or to the last that can be read."""
        asked, dataset = head, self._dataset

        class FollowedBlocks:
            def block(self, name: Multihash) -> tuple[bytes, Block]:
                nonlocal asked
                asked = name
                return dataset.block(name)

        try:
            self.links.extend(iterate_blocks(FollowedBlocks(), head))
        except _WRONG as error:
            number = self.links[-1].block.sequence_number - 1 if self.links else None
            self.findings.append(ChainFinding("block", asked, number, f"{BLOCKS}{asked}", str(error)))
            self.unchecked.append(f"block {number if number is not None else asked} and all before it")

    def _validate(self) -> None:
        """Apply the rules from the first block on; after a block that breaks one, nothing is known of the next."""
        state: ChainState | None = None
        schema: SetDataSchema | None = None
        valid = bool(self.links) and isinstance(self.links[-1].block.event, Seed)
        for link in reversed(self.links):
            event = link.block.event
            if isinstance(event, SetDataSchema):
                schema = event
            if schema is not None:
                self.schemas[link.name] = schema
            if not valid:
                continue
            try:
                state = validate(state, link.block, link.name)
                self.states[link.name] = state
            except ChainCorrupt as error:
                self.findings.append(finding_of("block", link, f"{BLOCKS}{link.name}", str(error)))
                valid = False
        self.state = state if valid else None

    def _signed(self) -> Multihash | None:
        """The head that the owner's key vouches for, if there is such a signature."""
        problem = ""
        try:
            signature = self._dataset.signature()
            if signature is None:
                return None
            stored = self._dataset.store.get_range(SIGNATURE_KEY, 0, MAX_SIGNATURE_BYTES + 1)
            if stored != signature.document():
                problem = "it is not written as signatures are, though it holds"
            elif self.dataset_id not in (None, signature.dataset_id):
                problem = f"it is by the key of {signature.dataset_id}, not of this dataset"
            elif self.links and not self.unchecked and signature.head not in self.states and not self.findings:
                problem = (
                    f"it is of the head {signature.head}, which the chain does not have: it was cut off or replaced"
                )
            if not problem:
                return signature.head
        except _WRONG as error:
            problem = str(error)
        self.findings.append(ChainFinding("signature", self.head, None, SIGNATURE_KEY, problem))
        return None


def _inputs(links: Sequence[Link]) -> tuple[DatasetId, ...]:
    """What a dataset is computed from, and what runs took before the query was another one."""
    found: list[DatasetId] = []
    transform = next((link.block.event for link in links if isinstance(link.block.event, SetTransform)), None)
    if isinstance(transform, SetTransform):
        with suppress(VersionedError):  # which validation has found
            found += [DatasetId.parse(entry.dataset_ref) for entry in transform.inputs]
    for link in links:
        if isinstance(link.block.event, ExecuteTransform):
            found += [entry.dataset_id for entry in link.block.event.query_inputs]
    return tuple(dict.fromkeys(found))


def _sources(events: Iterator[Any]) -> Iterator[str]:
    """Where data come from, as the events say, each once."""
    return iter(dict.fromkeys(text for event in events if (text := _source(event)) is not None))


def _source(event: Any) -> str | None:
    match event:
        case SetPollingSource(fetch=FetchStepUrl(url=url)):
            return f"fetched from {url}"
        case SetPollingSource(fetch=FetchStepFilesGlob(path=path)):
            return f"fetched from the files {path}"
        case SetPollingSource(fetch=fetch):
            return f"fetched by {type(fetch).__name__}"
        case AddPushSource(source_name=name):
            return f"pushed into the source {name}"
        case SetTransform():
            return _computation(event)
        case _:
            return None


def _computation(event: SetTransform) -> str:
    transform = event.transform
    query = transform.query or "; ".join(step.query for step in transform.queries or ())
    named = ", ".join(f"{entry.alias} = {entry.dataset_ref}" for entry in event.inputs)
    return f"computed by {transform.engine} {transform.version or '(any version)'} from {named}: {query}"


# --- inputs and runs -------------------------------------------------------------------------------------------------


def _check_inputs(
    link: Link, event: ExecuteTransform, inputs: Mapping[DatasetId, _CheckedDataset | None]
) -> Iterator[ChainFinding]:
    """Whether the blocks that a run took are blocks of its inputs, with records that far."""
    for entry in event.query_inputs:
        known = inputs.get(entry.dataset_id)
        if known is not None and not known.report.findings and entry.new_block_hash is not None:
            for problem in _input_problems(entry, entry.new_block_hash, known.states):
                yield finding_of("input", link, "", problem)


def _input_problems(
    entry: ExecuteTransformInput, taken_block: Multihash, states: Mapping[Multihash, ChainState]
) -> Iterator[str]:
    end = states.get(taken_block)
    if end is None:
        yield f"it took block {taken_block}, which the chain of {entry.dataset_id} does not have"
        return
    before = states.get(entry.prev_block_hash) if entry.prev_block_hash is not None else None
    if before is not None and end.sequence_number < before.sequence_number:
        yield f"it took block {end.sequence_number} of {entry.dataset_id} after block {before.sequence_number}"
    taken = entry.new_offset if entry.new_offset is not None else entry.prev_offset
    if taken != end.last_offset:
        yield f"it took records up to offset {taken} of {entry.dataset_id}, which ended with {end.last_offset}"


def _difference(recorded: ExecuteTransform, given: ExecuteTransform) -> str | None:
    """How what a run gives differs from what is recorded, but for what depends on who writes a file."""
    if given.new_data is not None and recorded.new_data is not None:
        written = replace(given.new_data, physical_hash=recorded.new_data.physical_hash, size=recorded.new_data.size)
        given = replace(given, new_data=written)
    given = replace(given, new_checkpoint=recorded.new_checkpoint)
    if given == recorded:
        return None
    before, now = to_document(recorded), to_document(given)
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    described = "; ".join(f"{name} is recorded as {before.get(name)} and is now {now.get(name)}" for name in differing)
    return f"done again, the query gives something else: {described}"
