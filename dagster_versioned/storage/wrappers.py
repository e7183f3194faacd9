"""Stores around a store, which are otherwise what they wrap; for tests and measurements, some count, fail or wait.

A wrapper and its subfolders share one account of calls; a copy made by pickling starts from that account and then keeps
its own.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

from dagster_versioned.errors import AccessDenied, StoreUnavailable
from dagster_versioned.storage.object_store import Durability, ObjectInfo, ObjectStore, UnfinishedWrite

T = TypeVar("T")

READ_ONLY_VARIABLE = "DAGSTER_VERSIONED_READ_ONLY"
"""Where it is set, every store that is opened is a `ReadOnlyStore`."""

Verb = Literal[
    "get",
    "get_range",
    "head",
    "list",
    "folders",
    "put",
    "put_file",
    "put_chunks",
    "put_if_absent",
    "put_if_match",
    "copy",
    "delete",
    "unfinished",
    "abort",
]


_WRITING = frozenset({"put", "put_file", "put_chunks", "put_if_absent", "put_if_match", "copy", "delete", "abort"})


class StoreWrapper:
    """Passes every call on to another store, through `_around`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._folder = ""

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], T]) -> T:
        """Run ``action``, one call of ``verb`` on ``key`` (below the outermost wrapper) that writes ``size`` bytes."""
        return action()

    @property
    def uri(self) -> str:
        return self._store.uri

    def subfolder(self, path: str) -> Self:
        deeper = copy(self)
        deeper._store = self._store.subfolder(path)
        deeper._folder = f"{self._folder}{path}/"
        return deeper

    def url(self, key: str) -> str:
        return self._store.url(key)

    def local_path(self, key: str) -> Path | None:
        return self._store.local_path(key)

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self._store.get(key))

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        return self._call("get", key, lambda: self._store.get_with_info(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._call("get_range", key, lambda: self._store.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        return self._call("head", key, lambda: self._store.head(key))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._call("list", prefix, lambda: self._store.list(prefix, start_after=start_after))

    def folders(self, prefix: str = "") -> Iterator[str]:
        return self._call("folders", prefix, lambda: self._store.folders(prefix))

    def put(self, key: str, data: bytes, *, durability: Durability = "now") -> ObjectInfo:
        return self._call("put", key, lambda: self._store.put(key, data, durability=durability), len(data))

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        return self._call("put_file", key, lambda: self._store.put_file(key, path), path.stat().st_size)

    def put_chunks(self, key: str, chunks: Iterable[bytes]) -> ObjectInfo:
        return self._call("put_chunks", key, lambda: self._store.put_chunks(key, chunks))

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        return self._call("put_if_absent", key, lambda: self._store.put_if_absent(key, data), len(data))

    def put_if_match(self, key: str, data: bytes, etag: str | None, *, durability: Durability = "now") -> ObjectInfo:
        return self._call(
            "put_if_match", key, lambda: self._store.put_if_match(key, data, etag, durability=durability), len(data)
        )

    def copy(self, source: str, target: str) -> ObjectInfo:
        return self._call("copy", target, lambda: self._store.copy(source, target))

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        return self._call("delete", keys[0] if keys else "", lambda: self._store.delete(keys))

    def unfinished(self) -> Iterator[UnfinishedWrite]:
        return self._call("unfinished", "", self._store.unfinished)

    def abort(self, writes: Iterable[UnfinishedWrite]) -> None:
        writes = list(writes)
        return self._call("abort", writes[0].id if writes else "", lambda: self._store.abort(writes))

    def _call(self, verb: Verb, key: str, action: Callable[[], T], size: int = 0) -> T:
        return self._around(verb, self._folder + key, size, action)


@dataclass(frozen=True, slots=True)
class Call:
    """One call that came through a wrapper: the ``number``-th (from 1), and the bytes that it wrote and read."""

    number: int
    verb: Verb
    key: str
    written: int = 0
    read: int = 0


class CountingStore(StoreWrapper):
    """Notes every call that succeeded, in order of completion."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls: list[Call] = []

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], T]) -> T:
        result = action()
        answer: object = result
        if isinstance(answer, tuple):  # of get_with_info: bytes first
            answer = cast("tuple[object, ...]", answer)[0]
        # list.append is atomic, so threads need no lock; the number is only exact without them.
        self.calls.append(Call(len(self.calls) + 1, verb, key, size, len(answer) if isinstance(answer, bytes) else 0))
        return result

    def count(self, *verbs: Verb) -> int:
        """Calls of these verbs; of all if none is named."""
        return sum(not verbs or call.verb in verbs for call in self.calls)

    @property
    def bytes_written(self) -> int:
        """Bytes passed to puts; a copy passes none."""
        return sum(call.written for call in self.calls)

    @property
    def bytes_read(self) -> int:
        """Bytes that gets returned."""
        return sum(call.read for call in self.calls)

    def reset(self) -> None:
        """Forget the calls so far."""
        self.calls.clear()


class Fault(Enum):
    """What happens to a call: it fails untried, it succeeds and its answer is lost, or the process dies before it."""

    BEFORE = "before"
    LOST_ANSWER = "lost answer"
    KILL = "kill"


class _Turns:
    """Numbers from 1, each given out once among threads."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    def __getstate__(self) -> int:
        return self._last

    def __setstate__(self, last: int) -> None:
        self._last = last
        self._lock = threading.Lock()


class FaultStore(StoreWrapper):
    """Asks ``decide`` before every call what shall happen to it; ``None`` lets it pass.

    Injected failures are `StoreUnavailable`.
    """

    def __init__(self, store: ObjectStore, decide: Callable[[Call], Fault | None]) -> None:
        super().__init__(store)
        self._decide = decide
        self._turns = _Turns()

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], T]) -> T:
        call = Call(self._turns.next(), verb, key, size)
        fault = self._decide(call)
        if fault is Fault.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault is Fault.BEFORE:
            raise StoreUnavailable(f"{verb} {key!r} in {self.uri}: injected failure of call {call.number}, not tried.")
        result = action()
        if fault is Fault.LOST_ANSWER:
            raise StoreUnavailable(f"{verb} {key!r} in {self.uri}: injected loss of the answer to call {call.number}.")
        return result


@dataclass(frozen=True, slots=True)
class AtCall:
    """A decision for `FaultStore` that can be pickled: ``fault`` at call ``number``, nothing else."""

    number: int
    fault: Fault

    def __call__(self, call: Call) -> Fault | None:
        return self.fault if call.number == self.number else None


class LatencyStore(StoreWrapper):
    """Waits ``seconds`` before every call, as a store at a distance would."""

    def __init__(self, store: ObjectStore, seconds: float) -> None:
        super().__init__(store)
        self._seconds = seconds

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], Any]) -> Any:
        time.sleep(self._seconds)
        return action()


class ReadOnlyStore(StoreWrapper):
    """A store that nothing is written to, whatever rights there are. Raises `AccessDenied`."""

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], T]) -> T:
        if verb in _WRITING:
            raise AccessDenied(
                f"{verb} of {key!r} in {self.uri} was refused: in this process stores are read alone "
                f"({READ_ONLY_VARIABLE}). Nothing was changed."
            )
        return action()


def read_alone(store: ObjectStore) -> ObjectStore:
    """The store, to be read alone where the environment says so (`READ_ONLY_VARIABLE`)."""
    is_alone = isinstance(store, ReadOnlyStore) or not os.environ.get(READ_ONLY_VARIABLE)
    return store if is_alone else ReadOnlyStore(store)
