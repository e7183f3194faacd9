"""Versions of samples: what each field of a row was computed from, and which rows are stale by that.

A sample's *provenance* of a field is the hash of a text: the field, its code version, and the data versions of the
upstream fields that it is computed from. A stored sample whose provenance is another than the expected is stale.
Source: seed 004 ("Samples"). The texts are Metaxy's, so that its tables can be taken over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from dagster_versioned.errors import InvalidInput, MissingExtra
from dagster_versioned.identity.wyhash import wyhash

PROVENANCE_BY_FIELD = "metaxy_provenance_by_field"
PROVENANCE = "metaxy_provenance"
DATA_VERSION_BY_FIELD = "metaxy_data_version_by_field"
DATA_VERSION = "metaxy_data_version"
SYSTEM_COLUMNS = (PROVENANCE_BY_FIELD, PROVENANCE, DATA_VERSION_BY_FIELD, DATA_VERSION)
"""What is stored beside a sample: twice a struct of texts by field, and the hash of these."""

SYSTEM_PREFIX = "metaxy_"
"""What the names of these begin with, and of no column of a user."""

SUPPLIED = "metaxy_supplied"
"""A column of what users say of a sample's versions, while these are computed; its member follows after a dot."""

SEPARATOR = "|"

EXAMPLES = 5

LONGEST = {"sha256": 64, "md5": 32, "xxh32": 10, "xxh64": 20, "xxh3_64": 20, "wyhash": 20}
"""By algorithm how many digits a version of a sample may have."""

DECIMAL = frozenset({"xxh32", "xxh64", "xxh3_64", "wyhash"})
"""The algorithms whose values are numbers in decimal digits; the others' are hexadecimal."""


@dataclass(frozen=True, slots=True)
class SampleHash:
    """How texts become versions: their UTF-8 hashed, cut to ``length`` digits, which are hexadecimal or `DECIMAL`.

    ``sha256`` and ``md5`` are computed by the engine itself. The others are for stores that Metaxy began; ``xxh32`` cut
    to 8, its default, is the same for some ten thousand of a million samples and another one. Raises `InvalidInput`.
    """

    algorithm: Literal["sha256", "md5", "xxh32", "xxh64", "xxh3_64", "wyhash"] = "sha256"
    length: int = 32

    def __post_init__(self) -> None:
        longest = LONGEST.get(self.algorithm)
        if longest is None or not 8 <= self.length <= longest:
            known = ", ".join(f"{name} (8 to {digits})" for name, digits in LONGEST.items())
            raise InvalidInput(
                f"Samples cannot be hashed by {self.algorithm!r} cut to {self.length!r}. Nothing was read or written; "
                f"there are {known}."
            )


def decimal_hash(how: SampleHash, text: str | None) -> str | None:
    """A text's version, by one of the algorithms that are `DECIMAL`.

    Raises `MissingExtra` on executors without xxhash.
    """
    return None if text is None else str(number_hash(how.algorithm)(text.encode()))[: how.length]


@cache
def number_hash(algorithm: str) -> Callable[[bytes], int]:
    """One of the algorithms that are `DECIMAL`, of bytes. Raises `MissingExtra` as `decimal_hash` does."""
    if algorithm == "wyhash":
        return wyhash
    try:
        import xxhash
    except ModuleNotFoundError:
        raise MissingExtra(
            f"Samples are hashed by {algorithm}, as Metaxy hashed them, and Spark's executors have no xxhash for that. "
            "Nothing was written. Install xxhash there."
        ) from None
    return getattr(xxhash, f"{algorithm}_intdigest")


@dataclass(frozen=True, slots=True)
class UpstreamSamples:
    """One upstream of a feature, as its samples meet those of the others.

    ``rename``, ``select`` and ``filter`` (SQL, in the new names) are applied in this order. ``ids`` identify its
    samples and ``on`` are the columns that they are matched by, both by the new names; where it is ``grouped``, all
    samples that agree in ``on`` are one to the feature. ``fields`` are the members of its versions that are read.
    """

    name: str
    ids: tuple[str, ...]
    on: tuple[str, ...]
    fields: tuple[str, ...]
    rename: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    select: tuple[str, ...] | None = None
    filter: str | None = None
    optional: bool = False
    grouped: bool = False

    def renamed(self, names: Sequence[str]) -> list[str]:
        """The new names of columns. Raises `InvalidInput` where two would have one; case does not tell them apart."""
        found = [self.rename.get(name, name) for name in names]
        seen: dict[str, str] = {}
        for old, new in zip(names, found, strict=True):
            if (other := seen.setdefault(new.casefold(), old)) != old:
                raise InvalidInput(
                    f"The columns {other!r} and {old!r} of upstream {self.name!r} would both be called {new!r}. "
                    "Nothing was computed or written. Rename the other as well in its FeatureDep, or neither."
                )
        return found

    def selected(self, names: Sequence[str]) -> list[str]:
        """Those of the columns, by their new names, that the feature gets."""
        chosen = {*(self.select or ()), *self.ids, *self.on}
        return [name for name in names if self.select is None or name in chosen]

    def data_columns(self, names: Sequence[str]) -> list[str]:
        """The columns that are none of its versions, while those of samples are computed."""
        return [name for name in names if name not in self.version_columns]

    @property
    def version_columns(self) -> list[str]:
        """What the columns of its versions are called while those of samples are computed."""
        return [version_column(member, self.name) for member in self.fields]


JoinKind = Literal["inner", "left", "full"]


@dataclass(frozen=True, slots=True)
class FieldText:
    """The text of which a field's provenance is the hash: its pieces, joined by `SEPARATOR`.

    A piece is a literal, or the name of an upstream and a member of its versions.
    """

    member: str
    pieces: tuple[str | tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """All that decides which samples of a feature are stale.

    ``on`` are the columns that upstreams are matched by, ``units`` those ids of the feature that come from them: by
    these a sample is expected, and compared with what is stored. They are fewer than the ids where one unit has several
    samples.
    """

    feature: str
    ids: tuple[str, ...]
    on: tuple[str, ...]
    units: tuple[str, ...]
    upstreams: tuple[UpstreamSamples, ...]
    fields: tuple[FieldText, ...]
    hash: SampleHash = SampleHash()

    @property
    def members(self) -> tuple[str, ...]:
        """The fields by their names in the columns of versions, in the order in which the whole is hashed."""
        return tuple(sorted(each.member for each in self.fields))

    @property
    def joins(self) -> list[tuple[UpstreamSamples, JoinKind]]:
        """The upstreams as they are joined, each with how it is to those before it.

        Those that every sample has come first: an optional one never decides which samples there are beside them.
        """
        order = sorted(self.upstreams, key=lambda each: each.optional)
        optional: JoinKind = "full" if all(each.optional for each in order) else "left"
        return [(each, optional if each.optional else "inner") for each in order]

    @property
    def joins_alone(self) -> bool:
        """Whether joining the upstreams gives the rows of all units, and no others, whenever that is done.

        Not where they are matched by columns that may be null, nor where a filter may look at a clock.
        """
        return all(not each.grouped and each.filter is None and {*each.on} <= {*each.ids} for each in self.upstreams)

    @property
    def pairs(self) -> bool:
        """Whether units are pairs of samples of several upstreams, so that some pairs of the same may be no units."""
        deciding = [each for each in self.upstreams if not each.optional] or self.upstreams
        return not any({*self.units} <= {*each.on} for each in deciding)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many samples there are of each kind; ``reasons`` has, by field, in how many stale ones it is another."""

    new: int = 0
    stale: int = 0
    orphaned: int = 0
    unchanged: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.new or self.stale or self.orphaned)


@dataclass(frozen=True, slots=True)
class SampleChanges:
    """What a feature's table lacks of what its upstreams say, as frames of the engine.

    ``new`` and ``stale`` have the upstreams' columns and the expected `SYSTEM_COLUMNS`; ``orphaned`` has the ids of
    stored samples that come from nothing any more. Where samples come from groups, or groups of samples from one, the
    rows are the upstream's, and are counted by the columns that they are matched by.
    """

    new: Any
    stale: Any
    orphaned: Any
    counts: Counts


def version_column(member: str, upstream: str | None = None) -> str:
    """What a column with one version is called while versions are computed; no user's column is called like it."""
    return f"metaxy_version.{member}" if upstream is None else f"metaxy_version.{upstream}.{member}"


def require_columns(what: str, known: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise `InvalidInput` unless all columns are there."""
    if missing := [name for name in wanted if name not in known]:
        raise InvalidInput(
            f"{what} has no column {missing[0]!r}. Nothing was computed or written. It has: "
            f"{', '.join(map(repr, known)):.500}."
        )


def refuse_nested_ids(what: str, nested: Sequence[str]) -> None:
    """Raise `InvalidInput` if there are ids of ``nested`` types."""
    if nested:
        raise InvalidInput(
            f"The columns {list(nested)} do not identify the samples of {what}: they are nested. Nothing was computed "
            "or written. Identify samples by plain columns."
        )


def refuse_bad_ids(what: str, ids: Sequence[str], nulls: int, repeated: int, examples: Callable[[], object]) -> None:
    """Raise `InvalidInput` if ``nulls`` rows have a null among their ids, or ``repeated`` ids several rows."""
    if nulls or repeated:
        raise InvalidInput(
            f"The columns {list(ids)} do not identify the samples of {what}: {nulls} rows have a null in them, and "
            f"{repeated} ids have more than one row, for example {examples()}. Nothing was computed or written. Drop "
            "these rows, or add columns to the ids."
        )


def require_equal_types(plan: SamplePlan, types: Mapping[str, Mapping[str, object]]) -> None:
    """Raise `InvalidInput` unless the columns that samples are matched by have one type in all frames.

    ``types`` are the types by column of each frame, by what it is called in the error.
    """
    for name in dict.fromkeys((*plan.on, *plan.units)):
        held = {what: columns[name] for what, columns in types.items() if name in columns}
        if len(set(held.values())) > 1:
            described = ", ".join(f"{kind} in {what}" for what, kind in held.items())
            raise InvalidInput(
                f"The samples of feature {plan.feature!r} cannot be matched by {name!r}, which is {described}. Nothing "
                "was computed or written. Give it one type."
            )


def refuse_equal_names(plan: SamplePlan, columns: Mapping[str, Sequence[str]]) -> None:
    """Raise `InvalidInput` if two upstreams bring a column of the same name that they are not matched by."""
    seen: dict[str, str] = {}
    for upstream, names in columns.items():
        for name in names:
            if name in plan.on:
                continue
            other = seen.setdefault(name.casefold(), upstream)
            if other != upstream:
                raise InvalidInput(
                    f"Feature {plan.feature!r} gets the column {name!r} from {other!r} and from {upstream!r} (case "
                    "aside). Nothing was computed or written. Rename one of the two in its FeatureDep, or select "
                    "others."
                )


def require_plain_columns(plan: SamplePlan, what: str, known: Sequence[str], members: Sequence[str]) -> None:
    """Raise `InvalidInput` for a column that is named like ours, and for data versions (``members``) of no field.

    And for data versions that have no members, which would say nothing.
    """
    if taken := [name for name in known if name.startswith(SYSTEM_PREFIX) and name not in SYSTEM_COLUMNS]:
        raise InvalidInput(
            f"{what} has the column {taken[0]!r}: names with {SYSTEM_PREFIX!r} belong to the columns of versions. "
            "Nothing was written. Rename it."
        )
    if DATA_VERSION_BY_FIELD in known and not members:
        raise InvalidInput(
            f"{what} has the column {DATA_VERSION_BY_FIELD!r}, which is no struct with a text by field. Nothing was "
            f"written. Make it one, with some of {list(plan.members)}, or leave it out."
        )
    if unknown := [name for name in members if name not in plan.members]:
        raise InvalidInput(
            f"{what} says data versions of {unknown}, but the feature has the fields {list(plan.members)}. Nothing was "
            "written. Check the names."
        )


def require_texts(column: str, others: Mapping[str, object]) -> None:
    """Raise `InvalidInput` if versions by field are of ``others`` than text: engines would spell them differently."""
    for member, kind in others.items():
        raise InvalidInput(
            f"The column {column!r} has versions of the field {member!r} of type {kind}. Nothing was computed or "
            "written. Make them texts."
        )


def require_members(column: str, kind: object, known: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise `InvalidInput` unless a column has versions of all the fields ``wanted``."""
    if missing := [name for name in wanted if name not in known]:
        raise InvalidInput(
            f"The column {column!r} has no version of the field {missing[0]!r}: it is of type {kind}. Nothing was "
            "computed or written. It is a struct with a text by field."
        )


def require_types(what: str, names: Sequence[str], found: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """Raise `InvalidInput` unless the columns have the types that they have where the samples came from."""
    for name in names:
        if found[name] != wanted[name]:
            raise InvalidInput(
                f"{what} has the id {name!r} as {found[name]}, but it was asked for as {wanted[name]}. Nothing was "
                "written. Leave the type of ids as it is."
            )


def refuse_other_samples(
    feature: str,
    others: int,
    dropped: int,
    other_examples: Callable[[], object],
    dropped_examples: Callable[[], object],
) -> None:
    """Raise `InvalidInput` if ``others`` rows are of samples that nobody asked for, or ``dropped`` ones are missing."""
    if others:
        raise InvalidInput(
            f"Feature {feature!r} returned {others} rows of samples that were not asked for, for example "
            f"{other_examples()}. Nothing was written. Return rows for what is in increment.new and increment.stale "
            "alone."
        )
    if dropped:
        raise InvalidInput(
            f"Feature {feature!r} returned no row for {dropped} samples that were asked for, for example "
            f"{dropped_examples()}. Nothing was written. Return one for each; to leave samples out for good, filter "
            "the upstream in its FeatureDep."
        )
