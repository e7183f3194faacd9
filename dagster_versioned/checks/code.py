"""Does the code version that an asset states say what its code is?"""

from dataclasses import dataclass

import dagster as dg

from dagster_versioned.assets.asset_code import made_by, stated_code_version
from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.tables.code_details import code_of, compare_codes


@dataclass(frozen=True)
class CodeVersionIsCurrent(VersionCheck):
    """Passes where the heads were made by the code that is loaded, as far as it can be followed.

    Where that is another one while the definition's ``code_version`` is the same, or there is none, it names the
    functions that have changed since. Code that cannot be followed fails too, and it says why.
    """

    default_name = "code_version_is_current"
    description = "The code that is loaded is the one that made the heads, or has another code version."
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN

    def judge(self, checked: CheckedHeads) -> Verdict:
        node = checked.graph.get(checked.asset_key)
        made = made_by(node.assets_def)
        if made is None:
            return Verdict(True, "No function of this project makes the asset.")
        now, details = made
        metadata = {"fingerprint": now.fingerprint}
        if now.opaque:
            return Verdict(False, f"Nobody can say which code this is: {listed(list(now.opaque))}.", metadata)
        stated = stated_code_version(node.code_version)
        rows: list[tuple[object, ...]] = []
        for head in checked.heads:
            if head.identity.code_version != stated:
                continue
            change = compare_codes(checked.table.store, code_of(head), now, details)
            if change is not None:
                rows.append((named(head), stated or "", str(change)))
        if not rows:
            return Verdict(
                True, "The heads were made by the code that is loaded, or the code version is another.", metadata
            )
        heads = listed([str(row[0]) for row in rows])
        text = f"The code that made {heads} is not the one that is loaded: {rows[0][2]}."
        if stated is not None:
            text += f" The code version is still {stated!r}: change it with the code, or leave it out."
        return Verdict(False, text, {**metadata, "heads": table_text(["version", "code version", "what"], rows)})
