"""May the columns change, and how?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.history import Version

Policy = Literal["additive", "frozen", "any"]
Kind = Literal["added", "removed", "another type", "another order"]

_FORBIDDEN: Mapping[Policy, frozenset[Kind]] = {
    "additive": frozenset({"removed", "another type"}),
    "frozen": frozenset({"added", "removed", "another type", "another order"}),
    "any": frozenset(),
}


@dataclass(frozen=True)
class Difference:
    """One difference between two schemas: where (a dotted path), of which kind, and the types before and after."""

    path: str
    kind: Kind
    before: object = None
    after: object = None


@dataclass(frozen=True)
class SchemaPolicy(VersionCheck):
    """Passes where the head's columns changed only as the policy allows, against the version before.

    ``additive``: columns, and members of nested ones, may be added, and change places; none may go or change its type.
    ``frozen``: nothing may change. ``any``: everything may, and the result says what did. The version before is the
    partition's own; the first one of a partition is compared with the newest of the others. ``baseline`` (a reference
    such as ``"pin:contract"``) is compared with instead, so that what was refused once is not accepted later because it
    has become the version before.
    """

    default_name = "schema"
    description = "The columns changed only as the policy allows."

    policy: Policy = "additive"
    baseline: str | None = None

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise InvalidInput(f"A schema policy is one of {', '.join(get_args(Policy))}, not {self.policy!r:.100}.")

    def judge(self, checked: CheckedHeads) -> Verdict:
        fixed = checked.table.version(self.baseline) if self.baseline is not None else None
        rows: list[tuple[object, ...]] = []
        faults: list[str] = []
        for head in checked.heads:
            before = fixed or _before(checked, head)
            for difference in differences(before.identity.schema, head.identity.schema) if before else ():
                is_fault = difference.kind in _FORBIDDEN[self.policy]
                verdict = "refused" if is_fault else "allowed"
                rows.append(
                    (
                        named(head),
                        before and named(before),
                        difference.path,
                        difference.kind,
                        difference.before,
                        difference.after,
                        verdict,
                    )
                )
                if is_fault:
                    faults.append(f"{difference.path} ({difference.kind}, {named(head)})")
        metadata: dict[str, Any] = {"policy": self.policy, "differences": len(rows)}
        if rows:
            titles = ["version", "against", "column", "what", "before", "after", self.policy]
            metadata["schema_changes"] = table_text(titles, rows)
        if faults:
            return Verdict(False, f"The policy {self.policy!r} refuses: {listed(faults)}.", metadata)
        return Verdict(True, f"{len(rows)} differences, none that the policy {self.policy!r} refuses.", metadata)


def differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Difference]:
    """What differs between two schemas, or types of one, in Delta's JSON form; into nested types."""
    prefix = f"{path}." if path else ""
    old = {field["name"]: field["type"] for field in before["fields"]}
    new = {field["name"]: field["type"] for field in after["fields"]}
    for name, data_type in old.items():
        if name not in new:
            yield Difference(prefix + name, "removed", before=_spelled(data_type))
        else:
            yield from _of_types(data_type, new[name], prefix + name)
    for name in new.keys() - old.keys():
        yield Difference(prefix + name, "added", after=_spelled(new[name]))
    if [name for name in old if name in new] != [name for name in new if name in old]:
        yield Difference(path or "(columns)", "another order", ", ".join(old), ", ".join(new))


def _of_types(before: Any, after: Any, path: str) -> Iterator[Difference]:
    match before, after:
        case {"type": "struct"}, {"type": "struct"}:
            yield from differences(before, after, path)
        case {"type": "array", "elementType": old}, {"type": "array", "elementType": new}:
            yield from _of_types(old, new, f"{path}.element")
        case {"type": "map", "keyType": key, "valueType": value}, {"type": "map", "keyType": new_key, "valueType": new}:
            yield from _of_types(key, new_key, f"{path}.key")
            yield from _of_types(value, new, f"{path}.value")
        case _ if before != after:
            yield Difference(path, "another type", _spelled(before), _spelled(after))
        case _:
            pass


def _spelled(data_type: Any) -> str:
    return data_type if isinstance(data_type, str) else data_type["type"]


def _before(checked: CheckedHeads, head: Version) -> Version | None:
    return next(chain(checked.before(head), checked.beside(head)), None)
