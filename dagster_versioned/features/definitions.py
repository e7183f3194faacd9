"""What features are: rows that know, field by field, what they were computed from. Source: seed 004 ("Versioning")."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, cast

from dagster_versioned.engines.samples import SYSTEM_PREFIX
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import check_project_name

INITIAL_CODE_VERSION = "__metaxy_initial__"
"""The code version of a field that states none (seed 004, "Field Level")."""

_PART = re.compile("[A-Za-z0-9_][A-Za-z0-9_-]*")


def _listed(what: str, given: "Iterable[Any]") -> tuple[Any, ...]:
    """What was given, as a tuple. Raises `InvalidInput` for a text, whose letters nobody means."""
    if isinstance(given, str):
        raise InvalidInput(
            f"{what} are {given!r:.100}, a text. Nothing was read or written; make it a list: [{given!r:.100}]."
        )
    return tuple(given)


class Asset(Protocol):
    """An asset that is a feature: whatever has a key with a path, such as Dagster's definitions of assets."""

    @property
    def key(self) -> Any:
        """The key, whose ``path`` are the parts."""


def key_text(key: "str | Sequence[str] | Feature | Asset") -> str:
    """A feature's or field's key as text, its parts joined by ``/``. Raises `InvalidInput`.

    The key of an asset is that of the feature that it is.
    """
    if isinstance(key, Feature):
        return key.key
    if not isinstance(key, str | Sequence):
        key = _path_of(key)
    parts = key.split("/") if isinstance(key, str) else list(key)
    if not parts or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidInput(
            f"{'/'.join(map(str, parts))!r:.100} is no key of a feature or field. Nothing was read or written; make it"
            " of letters, digits, '_' and '-', its parts joined by '/'."
        )
    return "/".join(parts)


def _path_of(asset: Asset) -> Sequence[str]:
    """The parts of an asset's key. Raises `InvalidInput` for an asset of several keys."""
    keys: Any = getattr(asset, "keys", None)
    if isinstance(keys, Set) and len(cast("Set[Any]", keys)) > 1:
        raise InvalidInput(
            f"The asset of {', '.join(sorted(each.to_user_string() for each in cast('Set[Any]', keys)))} is no single "
            "feature. Nothing was read or written. Name one of its features by the Feature."
        )
    return cast("Sequence[str]", getattr(getattr(asset, "key", None), "path", None) or [repr(asset)])


EVERY_UPSTREAM = "*"
"""The feature of a `FieldDep` on all fields of all upstreams."""


@dataclass(frozen=True, slots=True)
class FieldDep:
    """Upstream fields that a field is computed from; all of the feature's where ``fields`` is ``None``."""

    feature: str
    fields: tuple[str, ...] | None = None

    def __init__(
        self, feature: "str | Sequence[str] | Feature | Asset", fields: Iterable[str | Sequence[str]] | None = None
    ) -> None:
        object.__setattr__(self, "feature", key_text(feature))
        listed = None if fields is None else _listed(f"The fields of the FieldDep on {self.feature!r}", fields)
        object.__setattr__(self, "fields", None if listed is None else tuple(sorted(map(key_text, listed))))

    @classmethod
    def all(cls) -> Self:
        """On all fields of all upstreams of the feature, whichever these are."""
        found = cls.__new__(cls)
        object.__setattr__(found, "feature", EVERY_UPSTREAM)
        object.__setattr__(found, "fields", None)
        return found

    def to_json(self) -> dict[str, Any]:
        """The dependency as JSON."""
        return {"feature": self.feature} | ({} if self.fields is None else {"fields": list(self.fields)})

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """The dependency that `to_json` gave. Raises `InvalidInput`."""
        if members["feature"] == EVERY_UPSTREAM and members.get("fields") is None:
            return cls.all()
        return cls(members["feature"], members.get("fields"))


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that a feature says of each sample, such as the audio of a video.

    ``code_version`` changes when the code that computes the field does. ``deps`` are the upstream fields that it is
    computed from; without them, `FieldsMapping` finds them by name. ``columns`` belong to features without upstream:
    the columns of a sample whose values are the field, where the sample brings no versions of its own.
    """

    key: str
    code_version: str = INITIAL_CODE_VERSION
    deps: tuple[FieldDep, ...] | None = None
    columns: tuple[str, ...] = ()

    def __init__(
        self,
        key: str | Sequence[str],
        code_version: str = INITIAL_CODE_VERSION,
        deps: Iterable[FieldDep] | None = None,
        columns: Iterable[str] = (),
    ) -> None:
        object.__setattr__(self, "key", key_text(key))
        object.__setattr__(self, "code_version", code_version)
        object.__setattr__(self, "deps", tuple(deps) if deps is not None else None)
        object.__setattr__(self, "columns", _listed(f"The columns of field {self.key!r}", columns))
        if not isinstance(code_version, str) or "|" in code_version:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"Field {self.key!r} has the code version {code_version!r:.100}. Nothing was read or written; a code"
                " version is a text without '|'."
            )
        _require_own_name(self.member, "a field is called")

    @property
    def member(self) -> str:
        """The field's name inside the struct columns of versions."""
        return self.key.replace("/", "_")

    def to_json(self) -> dict[str, Any]:
        """The definition as JSON."""
        deps = {} if self.deps is None else {"deps": [dep.to_json() for dep in self.deps]}
        columns = {"columns": list(self.columns)} if self.columns else {}
        return {"key": self.key, "code_version": self.code_version, **deps, **columns}

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """The definition that `to_json` gave."""
        deps = members.get("deps")
        return cls(
            members["key"],
            members["code_version"],
            None if deps is None else [FieldDep.from_json(dep) for dep in deps],
            members.get("columns", ()),
        )


@dataclass(frozen=True, slots=True)
class FieldsMapping:
    """Which upstream fields a field without ``deps`` depends on.

    By default the one with the same key and, where there is none, all of them. ``match_suffix`` takes ``audio/french``
    for a match of ``french``; ``excluded`` fields never match.
    """

    kind: Literal["default", "specific", "all", "none"] = "default"
    match_suffix: bool = False
    excluded: frozenset[str] = frozenset()
    mapping: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]], hash=False)

    @classmethod
    def default(cls, *, exclude: Iterable[str] = ()) -> Self:
        """By equal keys, else all."""
        return cls(excluded=frozenset(map(key_text, exclude)))

    @classmethod
    def suffix(cls, *, exclude: Iterable[str] = ()) -> Self:
        """By keys that are equal or end alike, else all."""
        return cls(match_suffix=True, excluded=frozenset(map(key_text, exclude)))

    @classmethod
    def specific(cls, mapping: Mapping[str, Iterable[str]]) -> Self:
        """As stated: upstream fields by field; a field that is not mentioned depends on none."""
        return cls(
            "specific",
            mapping={
                key_text(own): frozenset(map(key_text, _listed(f"The upstream fields of {own!r}", upstream)))
                for own, upstream in mapping.items()
            },
        )

    @classmethod
    def all(cls) -> Self:
        """Every field on every upstream field."""
        return cls("all")

    @classmethod
    def none(cls) -> Self:
        """No field on any."""
        return cls("none")

    def parents(self, own: str, upstream: Iterable[str]) -> frozenset[str]:
        """Which of the ``upstream`` fields the field ``own`` depends on."""
        fields = frozenset(upstream)
        match self.kind:
            case "all":
                return fields
            case "none":
                return frozenset()
            case "specific":
                return self.mapping.get(own, frozenset()) & fields
            case "default":
                candidates = fields - self.excluded
                return frozenset(key for key in candidates if self._matches(own, key)) or candidates

    def _matches(self, own: str, upstream: str) -> bool:
        return own == upstream or (self.match_suffix and upstream.endswith(f"/{own}"))

    def to_json(self) -> dict[str, Any]:
        """The mapping as JSON; the default one is empty."""
        return {
            **({} if self.kind == "default" else {"kind": self.kind}),
            **({"match_suffix": True} if self.match_suffix else {}),
            **({"excluded": sorted(self.excluded)} if self.excluded else {}),
            **({"mapping": {own: sorted(keys) for own, keys in self.mapping.items()}} if self.mapping else {}),
        }

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """The mapping that `to_json` gave."""
        mapping: Mapping[str, Iterable[str]] = members.get("mapping", {})
        return cls(
            members.get("kind", "default"),
            members.get("match_suffix", False),
            frozenset(members.get("excluded", ())),
            {own: frozenset(keys) for own, keys in mapping.items()},
        )


@dataclass(frozen=True, slots=True)
class Lineage:
    """How many upstream samples a sample is computed from, or samples come from one.

    *identity*: one from one. *aggregation*: one from all that agree in the columns ``on`` (by default the feature's own
    id columns). *expansion*: many from the one that has their values of ``on``.
    """

    kind: Literal["identity", "aggregation", "expansion"] = "identity"
    on: tuple[str, ...] | None = None

    @classmethod
    def identity(cls) -> Self:
        """One sample from one."""
        return cls()

    @classmethod
    def aggregation(cls, on: Iterable[str] | None = None) -> Self:
        """One sample from a group."""
        return cls("aggregation", _listed("The columns of an aggregation", on) if on is not None else None)

    @classmethod
    def expansion(cls, on: Iterable[str]) -> Self:
        """A group of samples from one."""
        return cls("expansion", _listed("The columns of an expansion", on))

    def to_json(self) -> dict[str, Any]:
        """The lineage as JSON."""
        return {"kind": self.kind} | ({"on": list(self.on)} if self.on is not None else {})

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """The lineage that `to_json` gave."""
        on = members.get("on")
        return cls(members["kind"], None if on is None else tuple(on))


@dataclass(frozen=True, slots=True)
class FeatureDep:
    """A feature that another is computed from.

    ``rename`` gives columns of the upstream other names here, ``select`` leaves out those not listed (by their new
    names; ids stay), ``filter`` (SQL) passes over samples. Samples that an ``optional`` upstream lacks are computed
    nonetheless. ``source`` is what the dependency was made of: a feature, an asset that is one, or its key.
    """

    feature: str
    rename: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    select: tuple[str, ...] | None = None
    filter: str | None = None
    optional: bool = False
    lineage: Lineage = Lineage()
    fields_mapping: FieldsMapping = FieldsMapping()
    source: Any = field(default=None, init=False, compare=False, repr=False)

    def __init__(
        self,
        feature: "str | Sequence[str] | Feature | Asset",
        rename: Mapping[str, str] | None = None,
        select: Iterable[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the seed's own word
        optional: bool = False,
        lineage: Lineage | None = None,
        fields_mapping: FieldsMapping | None = None,
    ) -> None:
        object.__setattr__(self, "feature", key_text(feature))
        object.__setattr__(self, "rename", dict(rename or {}))
        object.__setattr__(self, "select", None if select is None else _listed("The columns to select", select))
        object.__setattr__(self, "filter", filter)
        object.__setattr__(self, "optional", optional)
        object.__setattr__(self, "lineage", lineage or Lineage())
        object.__setattr__(self, "fields_mapping", fields_mapping or FieldsMapping())
        object.__setattr__(self, "source", feature)
        if len(set(self.rename.values())) < len(self.rename):
            raise InvalidInput(
                f"The dependency on {self.feature!r} renames two columns to one: {dict(self.rename)}. Nothing was read"
                " or written; give each a name of its own."
            )
        for name in self.rename.values():
            _require_own_name(name, f"the dependency on {self.feature!r} renames a column to")

    def to_json(self) -> dict[str, Any]:
        """The dependency as JSON, without what is as by default."""
        mapping = self.fields_mapping.to_json()
        return {
            "feature": self.feature,
            **({"rename": dict(self.rename)} if self.rename else {}),
            **({} if self.select is None else {"select": list(self.select)}),
            **({} if self.filter is None else {"filter": self.filter}),
            **({"optional": True} if self.optional else {}),
            **({} if self.lineage.kind == "identity" else {"lineage": self.lineage.to_json()}),
            **({"fields_mapping": mapping} if mapping else {}),
        }

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """The dependency that `to_json` gave."""
        lineage = members.get("lineage")
        return cls(
            members["feature"],
            members.get("rename"),
            members.get("select"),
            members.get("filter"),
            members.get("optional", False),
            None if lineage is None else Lineage.from_json(lineage),
            FieldsMapping.from_json(members.get("fields_mapping", {})),
        )


@dataclass(frozen=True, slots=True)
class Feature:
    """A table of samples, each with versions of its fields.

    ``id_columns`` identify a sample. Fields may be given by key alone, dependencies by the feature. Two fields never
    share a name inside the columns of versions, and no id column is named like one of these. ``project`` names another
    project, in which it is computed: this one reads it.
    """

    key: str
    id_columns: tuple[str, ...]
    fields: tuple[Field, ...]
    deps: tuple[FeatureDep, ...] = ()
    project: str | None = None

    def __init__(
        self,
        key: str | Sequence[str],
        id_columns: Iterable[str],
        fields: Iterable[Field | str] = ("default",),
        deps: "Iterable[FeatureDep | Feature | Asset | str]" = (),
        project: str | None = None,
    ) -> None:
        object.__setattr__(self, "key", key_text(key))
        object.__setattr__(self, "id_columns", _listed(f"The id columns of feature {self.key!r}", id_columns))
        named = _listed(f"The fields of feature {self.key!r}", fields)
        object.__setattr__(self, "fields", tuple(Field(each) if isinstance(each, str) else each for each in named))
        object.__setattr__(
            self,
            "deps",
            tuple(each if isinstance(each, FeatureDep) else FeatureDep(each) for each in _listed("The deps", deps)),
        )
        object.__setattr__(self, "project", None if project is None else check_project_name(project))
        self._check()

    def _check(self) -> None:
        if not self.id_columns or len({name.casefold() for name in self.id_columns}) < len(self.id_columns):
            raise self._refused(
                f"its id columns are {list(self.id_columns)}",
                "Name one or more, each once (case aside).",
            )
        for name in self.id_columns:
            _require_own_name(name, f"feature {self.key!r} has the id column")
        upstream = [dep.feature for dep in self.deps]
        if len(set(upstream)) < len(upstream):
            raise self._refused(f"it depends on a feature twice: {sorted(upstream)}", "Keep one of the dependencies.")
        if not self.fields:
            raise self._refused("it has no field", "Give it one, such as Field('default').")
        members: dict[str, str] = {}
        for each in self.fields:
            name = each.member.casefold()  # case does not tell columns apart
            if (other := members.get(name)) is not None:
                what = (
                    f"its fields {other!r} and {each.key!r} have one name in the columns of versions, {each.member!r}"
                )
                raise self._refused(what, "Rename one.")
            members[name] = each.key
            self._check_field(each, upstream)

    def _check_field(self, field: Field, upstream: list[str]) -> None:
        for dep in field.deps or ():
            if dep.feature == EVERY_UPSTREAM and not upstream:
                raise self._refused(
                    f"its field {field.key!r} depends on all upstreams, and there is none", "Leave its deps out."
                )
            if dep.feature not in (*upstream, EVERY_UPSTREAM):
                raise self._refused(
                    f"its field {field.key!r} depends on {dep.feature!r}, on which the feature does not",
                    f"Add FeatureDep({dep.feature!r}) to its deps.",
                )
        if field.columns and self.deps:
            raise self._refused(
                f"its field {field.key!r} names columns {list(field.columns)}, but the feature has an upstream, from"
                " which versions come",
                "Leave out the columns.",
            )

    def _refused(self, what: str, fix: str) -> InvalidInput:
        return InvalidInput(f"Feature {self.key!r} cannot be: {what}. Nothing was read or written. {fix}")

    def to_json(self) -> dict[str, Any]:
        """The definition as JSON: what snapshots of a graph hold."""
        return {
            "key": self.key,
            "id_columns": list(self.id_columns),
            "fields": [each.to_json() for each in self.fields],
            **({"deps": [dep.to_json() for dep in self.deps]} if self.deps else {}),
            **({} if self.project is None else {"project": self.project}),
        }

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """The definition that `to_json` gave."""
        return cls(
            members["key"],
            members["id_columns"],
            [Field.from_json(each) for each in members["fields"]],
            [FeatureDep.from_json(each) for each in members.get("deps", ())],
            members.get("project"),
        )


def _require_own_name(name: str, where: str) -> None:
    if name.startswith(SYSTEM_PREFIX):
        raise InvalidInput(
            f"{where[0].upper()}{where[1:]} {name!r}: names with {SYSTEM_PREFIX!r} belong to the columns of versions. "
            "Nothing was read or written; choose another."
        )
