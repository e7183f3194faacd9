"""What a version of a feature's table records of how it came about: part of its identity, under ``custom``.

A *field digest* is that of all samples' ids and data versions of one field: while it is the same, nothing that is
computed from the field alone has changed, whatever else was written to the table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from dagster_versioned.engines.content_versions import field_digests
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import RowsDigest

if TYPE_CHECKING:
    import pyarrow as pa

FEATURE_MEMBER = "feature"
"""The member of ``custom`` that holds the record."""

_LANE = 1 << 64


@dataclass(frozen=True, slots=True)
class FeatureRecord:
    """How a version of a feature came about.

    ``ids`` are its id columns, ``fields`` has the static version and the code version by field, ``hash`` the algorithm
    and the length of sample versions. ``digests`` are its own field digests, ``upstreams`` by feature those of the
    fields that it was computed from, none where an upstream cannot be judged by them. ``left`` counts the samples
    that were still to be computed; ``full``: these are all that are not new, whatever they were computed from.
    """

    ids: tuple[str, ...]
    fields: Mapping[str, tuple[str, str]]
    hash: tuple[str, int]
    digests: Mapping[str, str]
    upstreams: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    left: int = 0
    full: bool = False

    def to_json(self) -> dict[str, Any]:
        """The record as JSON; what is empty is left out."""
        return {
            "ids": list(self.ids),
            "fields": {key: {"version": version, "code_version": code} for key, (version, code) in self.fields.items()},
            "hash": {"algorithm": self.hash[0], "length": self.hash[1]},
            "digests": dict(self.digests),
            **(
                {"upstreams": {key: dict(digests) for key, digests in self.upstreams.items()}} if self.upstreams else {}
            ),
            **({"left": self.left} if self.left else {}),
            **({"full": True} if self.full else {}),
        }

    @classmethod
    def parse(cls, raw: object) -> Self | None:
        """The record in JSON; ``None`` for what is none, which is nobody's error: anything may stand in ``custom``."""
        try:
            members = cast("Mapping[str, Any]", raw)
            upstreams: Mapping[str, Mapping[str, Any]] = members.get("upstreams", {})
            return cls(
                tuple(map(str, members["ids"])),
                {
                    str(key): (str(each["version"]), str(each["code_version"]))
                    for key, each in members["fields"].items()
                },
                (str(members["hash"]["algorithm"]), int(members["hash"]["length"])),
                {str(key): RowsDigest.parse(text).text for key, text in members["digests"].items()},
                {
                    str(key): {str(name): RowsDigest.parse(text).text for name, text in each.items()}
                    for key, each in upstreams.items()
                },
                int(members.get("left", 0)),
                members.get("full", False) is True,
            )
        except (TypeError, KeyError, ValueError, AttributeError, InvalidInput):
            return None

    def digests_of(self, rows: "pa.Table") -> dict[str, str]:
        """By field, the digest of rows with the ids and data versions of samples. Raises as `field_digests`."""
        members = {name: name.replace("/", "_") for name in self.fields}
        digests = field_digests(rows, self.ids, list(members.values()))
        return {name: digests[member] for name, member in members.items()}

    @classmethod
    def of(cls, custom: Mapping[str, Any]) -> Self | None:
        """The record among what a version says of itself, if there is one."""
        return cls.parse(custom.get(FEATURE_MEMBER))


def digests_together(
    added: Iterable[Mapping[str, str]], taken: Iterable[Mapping[str, str]] = ()
) -> dict[str, str] | None:
    """Field digests of all these samples, without those ``taken`` away; ``None`` where some lack a field's."""
    added, taken = list(added), list(taken)
    if any(each.keys() != added[0].keys() for each in (*added, *taken)):
        return None
    return (
        {key: _sum([each[key] for each in added], [each[key] for each in taken]) for key in added[0]} if added else {}
    )


def _sum(added: list[str], taken: list[str]) -> str:
    first = second = rows = 0
    for sign, texts in ((1, added), (-1, taken)):
        for text in texts:
            lanes = RowsDigest.parse(text).lanes
            first, second, rows = first + sign * lanes[0], second + sign * lanes[1], rows + sign * lanes[2]
    return RowsDigest("bag-xxh64x2", f"{first % _LANE:016x}{second % _LANE:016x}", rows).text
