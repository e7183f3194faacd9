"""An engine's way with rows of samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, TypeVar

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.samples import (
    DATA_VERSION_BY_FIELD,
    SYSTEM_COLUMNS,
    SampleChanges,
    SamplePlan,
    UpstreamSamples,
    require_columns,
    require_plain_columns,
    require_types,
)

FrameT = TypeVar("FrameT")


class SampleRows(ABC, Generic[FrameT]):
    """What `features.arrow.sample_rows` and `features.spark.sample_rows` do with frames of their engine.

    A frame of *units* has the columns that tell them apart and those of the provenance that is expected of them.
    ``frame_type`` is what tables are read as.
    """

    def __init__(self, frame_type: type) -> None:
        self.frame_type = frame_type

    # Which samples there are

    @abstractmethod
    def resolve(
        self,
        plan: SamplePlan,
        upstreams: Mapping[str, FrameT],
        current: FrameT | None,
        pin: Callable[[FrameT], FrameT],
    ) -> SampleChanges:
        """Compare what the upstreams, by name, say with the samples that are stored; ``None``: there are none.

        ``pin`` keeps a frame that is looked at more than once. Raises `InvalidInput` for ids that do not identify, that
        have several types, and columns that are missing or come twice.
        """

    @abstractmethod
    def resolve_samples(
        self, plan: SamplePlan, samples: FrameT, current: FrameT | None, pin: Callable[[FrameT], FrameT]
    ) -> SampleChanges:
        """As `resolve`, for a feature without upstreams, whose samples bring their provenance by field."""

    @abstractmethod
    def differing(self, plan: SamplePlan, members: Sequence[str], before: FrameT, now: FrameT) -> FrameT:
        """The units that have other data versions of some ``members`` in one frame than in another, or none there."""

    @abstractmethod
    def marked_stale(self, frame: FrameT, condition: str) -> FrameT:
        """The frame in which rows that satisfy a condition (SQL) were computed from nothing that is known."""

    @abstractmethod
    def stored(self, plan: SamplePlan, frame: FrameT, *, stale: bool) -> FrameT:
        """The ids and versions of stored samples, with all members of the plan; those of nobody where ``stale``."""

    @abstractmethod
    def with_contents(self, frame: FrameT, columns: Mapping[str, Sequence[str]]) -> FrameT:
        """The frame with versions by field, each the hash of the values in some ``columns``, and of what it says
        itself.

        Data versions that it says stay.
        """

    # Their rows

    @abstractmethod
    def rows_of(
        self, plan: SamplePlan, upstreams: Mapping[str, Callable[[type], Any]], units: FrameT, *, every: bool
    ) -> FrameT:
        """All that the upstreams, by name, say of some units; each is read as the type that it is asked for.

        ``every``: they are all that there are, so that they need not be looked for.
        """

    def samples_of(self, plan: SamplePlan, samples: FrameT, units: FrameT, *, every: bool) -> FrameT:
        """The samples of some units, without versions but for data versions that they say; ``every`` as above."""
        supplied = self.supplied(samples)
        return supplied if every else self.within(plan, supplied, units)

    def supplied(self, frame: FrameT) -> FrameT:
        """The frame with the columns alone in which users say something."""
        names = self.names(frame)
        return self.select(
            frame, [each for each in names if each not in SYSTEM_COLUMNS or each == DATA_VERSION_BY_FIELD]
        )

    @abstractmethod
    def passing(self, upstream: UpstreamSamples, frame: FrameT) -> FrameT:
        """The rows of an upstream that pass its filter, by their new names."""

    @abstractmethod
    def within(self, plan: SamplePlan, rows: FrameT, units: FrameT) -> FrameT:
        """Those of the rows that are of some units."""

    @abstractmethod
    def units_of(self, plan: SamplePlan, rows: FrameT) -> FrameT:
        """The units of rows with their provenance, each once."""

    @abstractmethod
    def pieces(self, plan: SamplePlan, units: FrameT, size: int) -> Iterator[tuple[FrameT, int]]:
        """The units in frames of at most ``size``, each with how many it has."""

    @abstractmethod
    def finished(self, plan: SamplePlan, asked: FrameT, rows: FrameT, pin: Callable[[FrameT], FrameT]) -> FrameT:
        """The rows that came of units, with their versions, kept by ``pin``.

        They may say data versions of their own, for some fields or rows. Raises `InvalidInput` for rows that were not
        asked for, samples without a row, and ids that are missing, null, of another type, or come twice.
        """

    @abstractmethod
    def finished_samples(
        self,
        plan: SamplePlan,
        asked: FrameT,
        samples: FrameT,
        pin: Callable[[FrameT], FrameT],
        count: int,
        *,
        every: bool,
    ) -> FrameT:
        """As `finished`, of samples that bring their provenance; ``count`` are asked for, ``every`` as above."""

    def require_returned(self, plan: SamplePlan, asked: FrameT, rows: FrameT) -> str:
        """Raise `InvalidInput` unless the columns of rows can be those of samples; what errors call the rows."""
        what, names = f"What feature {plan.feature!r} returned", self.names(rows)
        require_columns(what, names, plan.ids)
        require_plain_columns(plan, what, names, self.members_of(rows, DATA_VERSION_BY_FIELD))
        require_types(what, plan.units, self.types(rows), self.types(asked))
        return what

    @abstractmethod
    def digests(self, plan: SamplePlan, rows: FrameT) -> dict[str, str]:
        """By member, the digest of the ids and data versions of rows."""

    # Frames

    @abstractmethod
    def own(self, frame: Any, like: FrameT | None = None) -> FrameT:
        """A user's frame as one of the engine, ``like`` another one of it. Raises `UnsupportedType`."""

    @abstractmethod
    def as_frame(self, rows: FrameT, frame_type: type) -> Any:
        """A frame of the engine as a type that users asked for."""

    @abstractmethod
    def translated(self, conditions: Sequence[str]) -> AbstractContextManager[None]:
        """Within it, that a condition fails on a row is `InvalidInput`."""

    @abstractmethod
    def pinned(self, frame: FrameT) -> AbstractContextManager[FrameT]:
        """The frame, computed at most once until the block ends."""

    def pin(self, until: ExitStack) -> Callable[[FrameT], FrameT]:
        """Keeps frames until a stack is closed."""
        return lambda frame: until.enter_context(self.pinned(frame))

    @abstractmethod
    def names(self, frame: FrameT) -> list[str]:
        """The columns of a frame."""

    @abstractmethod
    def types(self, frame: FrameT) -> Mapping[str, object]:
        """The types of columns, by their names."""

    @abstractmethod
    def select(self, frame: FrameT, columns: Sequence[str]) -> FrameT:
        """A frame with these columns alone."""

    @abstractmethod
    def none_of(self, frame: FrameT) -> FrameT:
        """The frame without its rows."""

    @abstractmethod
    def together(self, one: FrameT, other: FrameT) -> FrameT:
        """The rows of both."""

    @abstractmethod
    def count(self, frame: FrameT) -> int:
        """How many rows a frame has."""

    @abstractmethod
    def empty(self, schema: StructType, like: FrameT | None = None) -> FrameT:
        """A frame of a schema, without rows, ``like`` another one of the engine."""

    @abstractmethod
    def members_of(self, frame: FrameT, column: str) -> Sequence[str]:
        """The members of a column of versions; none where it is no struct.

        Raises `InvalidInput` where one is no text.
        """
