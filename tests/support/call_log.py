"""A store that notes every call, those that fail among them, and has no local paths: as a bucket would be charged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import StoreWrapper, Verb


@dataclass(frozen=True)
class Called:
    """One call, with the bytes that it was to write."""

    verb: Verb
    key: str
    written: int


class CallLog(StoreWrapper):
    """Notes every call before it is made."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls: list[Called] = []

    def local_path(self, key: str) -> Path | None:
        return None

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], Any]) -> Any:
        self.calls.append(Called(verb, key, size))
        return action()

    def keys(self, verb: Verb) -> list[str]:
        """The keys of the calls of a verb, in order."""
        return [call.key for call in self.calls if call.verb == verb]

    def clear(self) -> None:
        """Forget the calls so far."""
        self.calls.clear()

    def __repr__(self) -> str:
        return "".join(f"\n{call.verb} {call.key} {call.written}" for call in self.calls)
