"""Inputs of which the version is known, and whose rows are loaded only if the function that wants them is called."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import dagster as dg

from dagster_versioned.assets.graph.inputs import VERSION_KEY, plain
from dagster_versioned.tables.upstream import Upstream

_OURS = "dagster_versioned/"


@dataclass(frozen=True)
class LazyInput:
    """One input of a step: its asset, the exact versions that it reads, and how it is loaded.

    ``read_as`` and ``asked`` are what else the rows depend on: the type, and what the input's metadata asks for.
    ``load`` takes the partitions that are wanted, ``None`` for all that the step reads. ``look_again`` is there where
    the versions are those that an earlier step of the run made, and gives the input as it is now.
    """

    asset_key: dg.AssetKey
    versions: Sequence[Upstream]
    read_as: str
    asked: Mapping[str, Any]
    load: Callable[[frozenset[str] | None], Any]
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    look_again: "Callable[[], LazyInput] | None" = None

    def loaded_within(self, within: Callable[[], AbstractContextManager[None]]) -> "LazyInput":
        """The same, loaded while something is open."""
        return replace(self, within=within)

    def as_it_is_now(self) -> "LazyInput":
        """The input, looked at now where the versions are remembered from an earlier step."""
        return self if self.look_again is None else self.look_again().loaded_within(self.within)

    def value(self, partitions: frozenset[str] | None, kind: dg.DagsterType) -> Any:
        """The value, of which Dagster's own check of its type is made now.

        Raises what loading it does, and `dagster.DagsterTypeCheckDidNotPass`.
        """
        with self.within():
            value = self.load(partitions)
        inner = kind.inner if isinstance(kind, LazyType) else kind
        checked = inner.type_check(cast("Any", None), value)
        if not checked.success:
            raise dg.DagsterTypeCheckDidNotPass(
                checked.description or f"The input {self.asset_key.to_user_string()} is no {inner.display_name}.",
                metadata=checked.metadata,
                dagster_type=inner,
            )
        return value


class KeptValue:
    """Begins the classes of what stands for an output, or a part of it, that is not computed."""


class LazyType(dg.DagsterType):
    """The type of an input or output of such an asset: ``inner``, or what stands for a value of it."""

    def __init__(self, inner: dg.DagsterType) -> None:
        self.inner = inner  # first: Dagster asks for the name while it makes the type

        def check(context: Any, value: object) -> dg.TypeCheck | bool:
            return True if isinstance(value, LazyInput | KeptValue) else inner.type_check(context, value)

        super().__init__(
            type_check_fn=check,
            key=f"versioned[{inner.key}]",
            description=inner.description,
            loader=inner.loader,
            required_resource_keys=set(inner.required_resource_keys),
            typing_type=inner.typing_type,
        )

    @property
    def display_name(self) -> str:
        """That of the inner type, which is what users see."""
        return self.inner.display_name


@cache
def lazy_type(inner: dg.DagsterType) -> LazyType:
    """The one lazy type of a type: Dagster refuses two of one key."""
    return inner if isinstance(inner, LazyType) else LazyType(inner)


def type_text(annotation: Any) -> str:
    """A type as the key of a computation names it."""
    if isinstance(annotation, type) and not getattr(annotation, "__args__", ()):
        return f"{annotation.__module__}.{annotation.__qualname__}"
    return str(annotation)


def asked_of(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the metadata of an input asks for beside the version, as JSON."""
    wanted = sorted(key for key in metadata or {} if key.startswith(_OURS) and key != VERSION_KEY)
    return {key: _json(plain(metadata, key)) for key in wanted}


def _json(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_json(element) for element in cast("Sequence[Any]", value)]
        case dict():
            return {str(key): _json(element) for key, element in cast("Mapping[Any, Any]", value).items()}
        case _:
            return str(value)
