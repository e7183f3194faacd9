"""The document of an environment: the fork that it goes on from, and the other one while a rebase is on its way.

All in one, so that each step of a rebase is one swap by ETag, and whatever else reads or deletes the document sees the
rebase as it is then: before the swap of forks there is ``next``, after it ``previous``, and in the end neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import orjson

from dagster_versioned.tables.document import encode
from dagster_versioned.tables.environment.fork import Fork, unreadable


@dataclass(frozen=True)
class EnvironmentDocument:
    """``next`` is the fork that a rebase goes to, ``previous`` the one that it came from; at most one of them is there.

    All are of one environment, each of another generation. Raises `ValueError` where they are not.
    """

    fork: Fork
    next: Fork | None = None
    previous: Fork | None = None

    def __post_init__(self) -> None:
        forks = list(self.forks)
        if len(forks) > 2 or len({fork.generation for fork in forks}) < len(forks):
            raise ValueError("its forks are not those of one rebase")
        if {(fork.environment, fork.project) for fork in forks} != {(self.fork.environment, self.fork.project)}:
            raise ValueError("its forks are of several environments")

    @property
    def forks(self) -> Iterator[Fork]:
        """All that production keeps something for."""
        yield from (fork for fork in (self.fork, self.next, self.previous) if fork is not None)

    def is_open(self, generation: str) -> bool:
        """Whether what is written in a generation is the environment's, or will be."""
        return generation in {fork.generation for fork in (self.fork, self.next) if fork is not None}

    def to_bytes(self) -> bytes:
        """That of the fork, with the other one as a member."""
        others = {"next": self.next, "previous": self.previous}
        members = {name: orjson.loads(fork.to_bytes()) for name, fork in others.items() if fork is not None}
        return encode({**orjson.loads(self.fork.to_bytes()), **members}) if members else self.fork.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Self:
        """Parse a stored document. Raises `IntegrityError` where it is none."""
        fork = Fork.from_bytes(data, key)
        raw: dict[str, Any] = orjson.loads(data)

        def other(name: str) -> Fork | None:
            return Fork.from_bytes(encode(raw[name]), f"{key}, {name},") if name in raw else None

        try:
            return cls(fork, other("next"), other("previous"))
        except ValueError as error:
            raise unreadable(key, error) from error
