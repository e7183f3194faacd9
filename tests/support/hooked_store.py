"""A store that lets something else happen right before one of its calls."""

from collections.abc import Callable
from typing import TypeVar

from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.wrappers import StoreWrapper, Verb

T = TypeVar("T")


class HookedStore(StoreWrapper):
    """Calls ``hook`` once, right before the first call of ``verb`` on a key that ends in ``ending``."""

    def __init__(self, store: ObjectStore, verb: Verb, ending: str, hook: Callable[[], object]) -> None:
        super().__init__(store)
        self._waiting = [(verb, ending, hook)]

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], T]) -> T:
        for awaited, ending, hook in list(self._waiting):
            if awaited == verb and key.endswith(ending):
                self._waiting.clear()
                hook()
        return action()
