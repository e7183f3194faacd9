"""Is the table written by one definition of its asset?"""

from dataclasses import dataclass

from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed
from dagster_versioned.tables.write.definitions import other_definition, version_before


@dataclass(frozen=True)
class OneDefinition(VersionCheck):
    """Passes where the version before the head was not made by another definition of the asset.

    Two code locations can define assets of one key, and each then replaces what the other writes. A definition that
    changes within its code location is one and the same.
    """

    default_name = "definition"
    description = "No other definition of the asset wrote the version before."

    def judge(self, checked: CheckedHeads) -> Verdict:
        history = checked.table.state.history
        heads = {head.log_version: head for head in checked.heads}.values()  # a commit has one writer
        pairs = [(before, head) for head in heads if (before := version_before(history, head)) is not None]
        found = [text for before, head in pairs if (text := other_definition(before, head)) is not None]
        if found:
            way_out = "Give one of the assets another key."
            return Verdict(False, f"The table has two definitions: {listed(found)}. {way_out}")
        return Verdict(True, "One definition of the asset wrote the head and the version before.")
