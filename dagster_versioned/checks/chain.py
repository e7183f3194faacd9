"""Is the history still the one that was written? Every commit of it, against Dagster's own event log too."""

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import COMMIT_KEY, LOG_VERSION_KEY, OUTLINE_KEY, URI_KEY
from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, table_text
from dagster_versioned.errors import VersionedError
from dagster_versioned.tables.history import History
from dagster_versioned.tables.verify import unlike_witnesses


@dataclass(frozen=True)
class ChainValidity(VersionCheck):
    """Passes where the log replays from its first commit, every link holds, and every identity has its SHA.

    The links cannot show that the log was cut at its end, or written anew as a whole. Dagster's event log can: the
    asset's last ``witnesses`` materializations say which commits they made. Those of a table that was at another place
    then are left out. Reads no part.
    """

    default_name = "chain"
    description = "Every commit links to the one before, and Dagster's event log saw the same commits."

    witnesses: int = 100

    def judge(self, checked: CheckedHeads) -> Verdict:
        state, _ = checked.table.replay()
        seen = self._seen(checked)
        witnessed = ((f"@{at}", problem) for at, problem in unlike_witnesses(state.history, seen))
        found = [*_links(state.history), *witnessed, *_identities(state.history)]
        metadata = {"commits": len(state.history.records), "witnessed_commits": len(seen)}
        if not found:
            return Verdict(
                True,
                f"{len(state.history.records)} commits form one chain; Dagster's event log saw {len(seen)} of them.",
                metadata,
            )
        return Verdict(
            False,
            f"{len(found)} commits or versions are not what was written: {found[0][0]}: {found[0][1]}. Compare with "
            "`dagster-versioned verify`, and restore _delta_log/ from a copy.",
            {**metadata, "problems": table_text(["where", "problem"], found)},
        )

    def _seen(self, checked: CheckedHeads) -> dict[int, str]:
        """What the asset's materializations say of commits, by log version, as `unlike_witnesses` takes it."""
        if not self.witnesses:
            return {}
        records = checked.context.instance.fetch_materializations(checked.asset_key, limit=self.witnesses).records
        seen: dict[int, str] = {}
        for event in (record.asset_materialization for record in records):
            match [_value(event, key) for key in (URI_KEY, LOG_VERSION_KEY, COMMIT_KEY, OUTLINE_KEY)]:
                case [checked.table.store.uri, int(log_version), str(sha), outline]:
                    known = f"{sha}:{outline}" if isinstance(outline, str) else sha
                    seen[log_version] = max(seen.get(log_version, ""), known, key=len)
                case _:
                    pass
        return seen


def _value(event: dg.AssetMaterialization | None, key: str) -> object:
    return event.metadata[key].value if event is not None and key in event.metadata else None


def _links(history: History) -> Iterator[tuple[str, str]]:
    for before, record in zip((None, *history.records), history.records, strict=False):
        expected = before.sha256 if before else None
        if record.info is not None and record.info.get("prev") != expected:
            recorded = str(record.info.get("prev"))[:12]
            yield f"@{record.log_version}", f"it links to {recorded}…, the commit before has {str(expected)[:12]}…"


def _identities(history: History) -> Iterator[tuple[str, str]]:
    for version in history.versions:
        if version.raw is not None:
            try:
                version.entry.to_json()
            except VersionedError as error:
                yield f"{version.short} (@{version.log_version})", str(error)
