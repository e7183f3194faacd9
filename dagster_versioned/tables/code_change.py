"""What changed of the code between two versions, by the functions that the log has recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagster_versioned.identity.version import Code
from dagster_versioned.tables.history import History, Version

_NAMED = 5


@dataclass(frozen=True)
class CodeChange:
    """Two fingerprints, and the functions and classes whose own text differs, or that one side does not reach.

    ``constants`` are those that may have changed, where no function has: their values are recorded nowhere.
    """

    before: str
    after: str
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = [("changed", self.changed), ("new", self.added), ("no longer reached", self.removed)]
        texts = [f"{what}: {_listed(names)}" for what, names in named if names]
        if texts:
            return "; ".join(texts)
        if self.constants:
            return f"no function, but a constant, file or library that they use: {_listed(self.constants)}"
        return "a file or library that it uses, or functions that were not recorded"


def code_change(history: History, before: Version, after: Version) -> CodeChange | None:
    """The difference of the code of two versions; ``None`` where it is equal, or not known of both."""
    first, second = code_of(before), code_of(after)
    if first is None or second is None:
        return None
    return compare_codes(recorded(history, first), recorded(history, second))


def compare_codes(first: Code, second: Code) -> CodeChange | None:
    """The difference of two codes; ``None`` where they are equal."""
    if first.fingerprint == second.fingerprint:
        return None
    old: Mapping[str, str] = first.functions or {}
    new: Mapping[str, str] = second.functions or {}
    if not old or not new:
        return CodeChange(first.fingerprint, second.fingerprint)
    return CodeChange(
        first.fingerprint,
        second.fingerprint,
        changed=tuple(sorted(name for name in old.keys() & new.keys() if old[name] != new[name])),
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        constants=tuple(sorted({*(first.constants or ()), *(second.constants or ())})),
    )


def code_of(version: Version) -> Code | None:
    """The code that made a version, as far as its own facts say."""
    run = version.facts.run if version.raw is not None else None
    return None if run is None else run.code


def recorded(history: History, code: Code) -> Code:
    """The same code with its functions, which stand with the first version of several that it made."""
    if code.functions is not None:
        return code
    for version in history.backwards():
        found = code_of(version)
        if found is not None and found.fingerprint == code.fingerprint and found.functions is not None:
            return found
    return code


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
