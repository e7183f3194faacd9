"""What is to be computed of a feature, as its body gets it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.samples import Counts, SamplePlan, UpstreamSamples
from dagster_versioned.errors import InvalidInput

FrameT = TypeVar("FrameT")
FrameT_co = TypeVar("FrameT_co", covariant=True)


class SampleRows(Protocol):
    """An engine's way with rows of samples: `features.arrow.sample_rows` or `features.spark.sample_rows`.

    A frame of *units* has the columns that tell them apart and those of the provenance that is expected of them.
    """

    def own(self, frame: Any, like: Any) -> Any:
        """A user's frame as one of the engine, ``like`` another one of it."""
        ...

    def as_frame(self, rows: Any, frame_type: type) -> Any:
        """A frame of the engine as a type that users asked for."""
        ...

    def translated(self, conditions: Sequence[str]) -> AbstractContextManager[None]:
        """Within it, that a condition fails on a row is `InvalidInput`."""
        ...

    def pinned(self, frame: Any) -> AbstractContextManager[Any]:
        """The frame, computed at most once until the block ends."""
        ...

    def names(self, frame: Any) -> list[str]:
        """The columns of a frame."""
        ...

    def select(self, frame: Any, columns: Sequence[str]) -> Any:
        """A frame with these columns alone."""
        ...

    def none_of(self, frame: Any) -> Any:
        """The frame without its rows."""
        ...

    def empty(self, schema: StructType, like: Any) -> Any:
        """A frame of a schema, without rows, ``like`` another one of the engine."""
        ...

    def members_of(self, frame: Any, column: str) -> Sequence[str]:
        """The members of a column of versions; none where it is no struct."""
        ...

    def with_contents(self, frame: Any, columns: Mapping[str, Sequence[str]]) -> Any:
        """The frame with versions by field, each the hash of the values in some ``columns``.

        Data versions that it says itself stay.
        """
        ...

    def stored(self, plan: SamplePlan, frame: Any, *, stale: bool) -> Any:
        """The ids and versions of stored samples, with all members of the plan; those of nobody where ``stale``."""
        ...

    def marked_stale(self, frame: Any, condition: str) -> Any:
        """The frame in which rows that satisfy a condition (SQL) were computed from nothing that is known."""
        ...

    def passing(self, upstream: UpstreamSamples, frame: Any) -> Any:
        """The rows of an upstream that pass its filter, by their new names."""
        ...

    def count(self, frame: Any) -> int:
        """How many rows a frame has."""
        ...

    def rows_of(
        self, plan: SamplePlan, upstreams: Mapping[str, Callable[[type], Any]], units: Any, *, every: bool
    ) -> Any:
        """All that the upstreams, by name, say of some units; each is read as the type that it is asked for.

        ``every``: they are all that there are, so that they need not be looked for.
        """
        ...

    def samples_of(self, plan: SamplePlan, samples: Any, units: Any, *, every: bool) -> Any:
        """The samples of some units, without versions but for data versions that they say; ``every`` as above."""
        ...

    def within(self, plan: SamplePlan, rows: Any, units: Any) -> Any:
        """Those of the rows that are of some units."""
        ...

    def differing(self, plan: SamplePlan, members: Sequence[str], before: Any, now: Any) -> Any:
        """The units that have other data versions of some ``members`` in one frame than in another, or none there."""
        ...

    def units_of(self, plan: SamplePlan, rows: Any) -> Any:
        """The units of rows with their provenance, each once."""
        ...

    def together(self, one: Any, other: Any) -> Any:
        """The units of both."""
        ...

    def pieces(self, plan: SamplePlan, units: Any, size: int) -> Iterator[tuple[Any, int]]:
        """The units in frames of at most ``size``, each with how many it has."""
        ...

    def finished(self, plan: SamplePlan, asked: Any, rows: Any, pin: Callable[[Any], Any]) -> Any:
        """The rows that came of units, with their versions, kept by ``pin``.

        Raises `InvalidInput` for others than were asked for.
        """
        ...

    def finished_samples(
        self, plan: SamplePlan, asked: Any, samples: Any, pin: Callable[[Any], Any], count: int, *, every: bool
    ) -> Any:
        """As `finished`, of samples that bring their provenance; ``count`` are asked for, ``every`` as above."""
        ...

    def digests(self, plan: SamplePlan, rows: Any) -> dict[str, str]:
        """By member, the digest of the ids and data versions of rows."""
        ...


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


class Increment(Generic[FrameT]):
    """Which samples of a feature are new, stale and orphaned.

    ``new`` and ``stale`` are frames of what the upstreams say of these samples, without versions; ``changed`` are both.
    ``orphaned`` has the ids of stored samples that come from nothing any more: they go without anything being done.
    ``partition`` is the one of the asset that they are of, if it has any. Nothing is read before it is asked for, and
    of no other samples.
    """

    def __init__(
        self,
        asked: SamplesToCompute,
        engine: SampleRows,
        plan: SamplePlan,
        rows: "RowsOf[FrameT]",
        as_frame: Callable[[Any], FrameT],
        fields: Mapping[str, str],
        partition: str | None = None,
    ) -> None:
        self.partition = partition
        self.asked = asked
        self._engine = engine
        self._plan = plan
        self._rows = rows
        self._as_frame = as_frame
        self._fields = fields

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
        return Increment(asked, self._engine, self._plan, self._rows, self._as_frame, self._fields, self.partition)

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
