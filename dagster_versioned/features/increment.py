"""What is to be computed of a feature, as its body gets it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from dagster_versioned.engines.samples import Counts, SamplePlan
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.sample_rows import SampleRows

FrameT = TypeVar("FrameT")
FrameT_co = TypeVar("FrameT_co", covariant=True)


class RowsOf(Protocol[FrameT_co]):
    """Gives the rows of units, as users get them; ``every``: they are all that there are."""

    def __call__(self, units: Any, *, every: bool) -> FrameT_co: ...


@dataclass(frozen=True)
class SamplesToCompute:
    """What is to be done, as frames of the engine.

    ``new`` and ``stale`` are units with their provenance, ``gone`` the ids of rows that go without others in their
    place. ``left`` counts the units that are to be computed after these, of which these are a ``piece``. ``full``: all
    that is stored goes. ``first``: nothing is stored, so that all samples are new.
    """

    new: Any
    stale: Any
    gone: Any
    counts: Counts
    left: int = 0
    piece: bool = False
    full: bool = False
    first: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Increment(Generic[FrameT]):
    """Which samples of a feature are new, stale and orphaned.

    ``new`` and ``stale`` are frames of what the upstreams say of these samples, without versions; ``changed`` are both.
    ``orphaned`` has the ids of stored samples that come from nothing any more: they go without anything being done.
    ``partition`` is the one of the asset that they are of, if it has any. Nothing is read before it is asked for, and
    of no other samples.
    """

    asked: SamplesToCompute
    _engine: SampleRows[Any]
    _plan: SamplePlan
    _rows: "RowsOf[FrameT]"
    _as_frame: Callable[[Any], FrameT]
    _fields: Mapping[str, str]
    partition: str | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.counts)

    def __repr__(self) -> str:
        return f"Increment({self.counts})"

    @cached_property
    def new(self) -> FrameT:
        """What the upstreams say of samples that are not stored."""
        return self._rows(self.asked.new, every=self._every)

    @cached_property
    def stale(self) -> FrameT:
        """What the upstreams say of samples that were computed from something else."""
        return self._rows(self.asked.stale, every=False)

    @cached_property
    def changed(self) -> FrameT:
        """What the upstreams say of samples that are new or stale."""
        return self._rows(self.units, every=self._every)

    @cached_property
    def orphaned(self) -> FrameT:
        """The ids of stored samples that come from nothing any more."""
        return self._as_frame(self.asked.gone)

    @cached_property
    def units(self) -> Any:
        """The units to be computed, with their provenance, as a frame of the engine."""
        return self.asked.new if self.asked.first else self._engine.together(self.asked.new, self.asked.stale)

    @property
    def _every(self) -> bool:
        return self.asked.first and not self.asked.piece and self._plan.joins_alone

    @property
    def counts(self) -> Counts:
        """How many samples there are of each kind."""
        return self.asked.counts

    @property
    def todo(self) -> int:
        """How many samples are to be computed."""
        return self.counts.new + self.counts.stale

    @property
    def reasons(self) -> dict[str, int]:
        """Of how many stale samples each field would be computed from something else."""
        return {self._fields.get(member, member): count for member, count in self.counts.reasons.items()}

    def of(self, asked: SamplesToCompute) -> "Increment[FrameT]":
        """The same for a part of what is asked for."""
        return replace(self, asked=asked)

    def chunks(self, size: int) -> "Iterator[Increment[FrameT]]":
        """The increment in pieces of at most ``size`` samples to be computed; the first has all that are orphaned.

        Reasons are counted for the whole alone.
        """
        if size < 1:
            raise InvalidInput(f"chunk_size is {size}; at least 1 is needed. Nothing was computed or written.")
        if self.todo <= size:
            yield self
            return
        whole, done = self.asked, 0
        none = self._engine.none_of(self.units)
        gone, orphaned = whole.gone, self.counts.orphaned
        for kind, units in (("new", whole.new), ("stale", whole.stale)):
            with self._engine.pinned(units) if whole.first else nullcontext(units) as kept:
                for piece, count in self._engine.pieces(self._plan, kept, size):
                    done += count
                    frames = {"new": none, "stale": none, kind: piece}
                    counts = replace(Counts(0, 0, orphaned, self.counts.unchanged), **{kind: count})
                    left = whole.left + self.todo - done
                    yield self.of(replace(whole, **frames, gone=gone, counts=counts, left=left, piece=True))
                    gone, orphaned = self._engine.none_of(whole.gone), 0
