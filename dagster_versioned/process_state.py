"""What a process remembers, beside what the objects hold that its callers have."""

from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

Kept = TypeVar("Kept")


class ProcessState:
    """All that this package remembers of a process: of each class that is asked for, one object, made by then.

    There is one `ProcessState`, and nothing else in a module changes after its import, because nobody could hand it on:
    Dagster makes resources and IO managers anew for every step, a resource is configuration, and locks and what was
    tidied are of the process. The class of an object says what it keeps, and how much; its module alone uses it, or
    who imports the class.

    An object lives as long as the process, or as long as its *owner*: the context of a step, a project that was opened,
    an asset graph. A forked child has what its parent had; where this is pickled, as for Spark's workers, it is empty.
    """

    def __init__(self) -> None:
        self._kept: dict[type, Any] = {}
        self._of_owners: dict[type, WeakKeyDictionary[object, Any]] = {}

    def __reduce__(self) -> tuple[type["ProcessState"], tuple[()]]:
        return ProcessState, ()

    def of(self, kind: type[Kept], owner: object = None) -> Kept:
        """The process's one object of a class, or the owner's; the same one for all threads."""
        key = kind if owner is None else owner
        kept: Any = self._kept if owner is None else self._of_owners.setdefault(kind, WeakKeyDictionary())
        found = kept.get(key)
        return kept.setdefault(key, kind()) if found is None else found

    def forget(self, kind: type) -> None:
        """Forget the process's object of a class, and those of all owners."""
        self._kept.pop(kind, None)
        self._of_owners.pop(kind, None)


PROCESS: Final = ProcessState()
