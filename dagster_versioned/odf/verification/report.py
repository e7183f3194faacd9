"""What a verification found. Source: seed 002 ("Verifiability", "Dataset Validation")."""

from dataclasses import dataclass
from typing import Literal

from dagster_versioned.errors import IntegrityError
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash

Subject = Literal["head", "signature", "block", "slice", "checkpoint", "input", "replay", "log"]


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """What is not as it is claimed to be: which kind of thing, which block says so, and how they differ.

    ``key`` is the file, where it is one. ``records_match`` marks a slice whose bytes are other ones, but whose records
    have the logical hash that the block states: somebody wrote it anew. That is no proof, since arrow0 takes a null for
    a zero byte.
    """

    subject: Subject
    block: Multihash | None
    sequence_number: int | None
    key: str
    problem: str
    records_match: bool = False

    def __str__(self) -> str:
        place = f" of block {self.sequence_number} ({self.block})" if self.block is not None else ""
        return f"{self.subject} {self.key}{place}: {self.problem}"


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """What was checked of one dataset, and what did not match.

    ``sources`` say where the data come from: what was fetched or pushed, or which query over which ``inputs``.
    ``signed`` is the head that the owner's key vouches for. ``blocks``, ``files`` and ``bytes`` count what was checked,
    ``replayed`` the runs that were done again. ``unchecked`` says what could not be, and why.
    """

    location: str
    dataset_id: DatasetId | None
    head: Multihash | None
    sources: tuple[str, ...]
    inputs: tuple[DatasetId, ...]
    signed: Multihash | None
    blocks: int
    files: int
    bytes: int
    replayed: int
    findings: tuple[ChainFinding, ...]
    unchecked: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything was checked and nothing found."""
        return not self.findings and not self.unchecked


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The datasets that were verified, what was asked for first, inputs after what was made from them."""

    datasets: tuple[DatasetReport, ...]

    @property
    def ok(self) -> bool:
        """Whether everything was checked and nothing found."""
        return all(dataset.ok for dataset in self.datasets)

    def require_ok(self) -> None:
        """Raise `IntegrityError`, listing what was found first, unless everything was checked and nothing found."""
        if self.ok:
            return
        wrong = [f"{d.dataset_id or d.location}: {finding}" for d in self.datasets for finding in d.findings]
        wrong += [f"{d.dataset_id or d.location}: not checked: {what}" for d in self.datasets for what in d.unchecked]
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise IntegrityError(f"Verification found {len(wrong)} problems: {'; '.join(wrong[:5])}{more}")
