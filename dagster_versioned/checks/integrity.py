"""Is the head still what was committed? Every byte of it."""

from dataclasses import dataclass

from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.tables.parts import stored_bytes
from dagster_versioned.tables.verify import part_problems


@dataclass(frozen=True)
class HeadIntegrity(VersionCheck):
    """Passes where every part of the head is there with the bytes that were committed.

    Reads every part once: identity against ``metadata_sha``, parts against ``data_sha``, bytes, and those of deletion
    vectors, against their SHA-256.
    """

    default_name = "integrity"
    description = "The parts of the head are there, and their bytes have the SHA-256 that was committed."

    def judge(self, checked: CheckedHeads) -> Verdict:
        adds = checked.files().adds
        found = part_problems(checked.table.store, adds)
        what = f"{len(adds)} parts of {listed([named(head) for head in checked.heads])}"
        metadata = {"parts": len(adds), "bytes": float(sum(map(stored_bytes, adds)))}
        if not found:
            return Verdict(True, f"The {what} have the bytes that were committed.", metadata)
        return Verdict(
            False,
            f"{len(found)} of the {what} are not what was committed: {found[0][0]}: {found[0][1]}. Restore them from a "
            "copy, or materialize the asset again, which writes the same bytes.",
            {**metadata, "problems": table_text(["part", "problem"], found)},
        )
