"""Did what was not computed again deserve that?"""

from dataclasses import dataclass

from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.tables.computations import contradicted


@dataclass(frozen=True)
class ReuseIsHonest(VersionCheck):
    """Passes where no computation of a `versioned_asset` gave unequal rows when it was made again.

    Such a computation depends on something that its key does not cover: a clock, an unseeded random number, a file, an
    order that is not stated. It is not reused any more, so that its function is called in each run; others with the
    same fault may not have shown it yet. Passes again once no head is of such a computation.
    """

    default_name = "reuse_is_honest"
    description = "No computation gave unequal rows when it was made again."

    def judge(self, checked: CheckedHeads) -> Verdict:
        keys = set(contradicted(checked.table.state.snapshot))
        found = [head for head in checked.heads if head.facts.computation and head.facts.computation.key in keys]
        rows = [(named(head), head.facts.computation and head.facts.computation.key) for head in found]
        metadata = {"contradicted_keys": len(keys), "heads": table_text(["version", "key"], rows)}
        if found:
            way_out = (
                "Find what else the function depends on, and make it an input or config; then change code_version."
            )
            heads = listed([named(head) for head in found])
            return Verdict(
                False, f"The same computation gave other rows than these before: {heads}. {way_out}", metadata
            )
        return Verdict(True, f"No head is of a computation that gave unequal rows; {len(keys)} older are.", metadata)
