"""What Dagster shows of an increment: how many samples of each kind, and why they are computed."""

from typing import Any

import dagster as dg

from dagster_versioned.features.feature_table import Resolved
from dagster_versioned.features.graph import FeatureGraph

_OURS = "dagster_versioned"


def increment_metadata(graph: FeatureGraph, key: str, resolved: Resolved) -> dict[str, Any]:
    """The counts of an increment as metadata, with a table of its fields: their code versions, what each is computed
    from, and of how many stale samples it would be another, because of the code or of upstream."""
    counts = resolved.increment.counts
    return {
        f"{_OURS}/samples_new": counts.new,
        f"{_OURS}/samples_stale": counts.stale,
        f"{_OURS}/samples_orphaned": counts.orphaned,
        f"{_OURS}/samples_unchanged": counts.unchanged,
        f"{_OURS}/feature_version": graph.versions(key).feature,
        f"{_OURS}/fields": _fields(graph, key, resolved),
    }


def _fields(graph: FeatureGraph, key: str, resolved: Resolved) -> dg.TableMetadataValue:
    before = resolved.record
    reasons = resolved.increment.reasons
    records: list[dg.TableRecord] = []
    for field in graph[key].fields:
        was = before.fields.get(field.key) if before is not None else None
        because = ""
        if reasons.get(field.key):
            changed = was is None or was[1] != field.code_version
            because = f"code version {was[1] if was else 'none'} -> {field.code_version}" if changed else "upstream"
        records.append(
            dg.TableRecord(
                {
                    "field": field.key,
                    "code_version": field.code_version,
                    "computed_from": ", ".join(ref.text for ref in graph.parents(key, field.key)),
                    "stale_samples": reasons.get(field.key, 0),
                    "because_of": because,
                }
            )
        )
    columns = [
        dg.TableColumn("field", "string"),
        dg.TableColumn("code_version", "string"),
        dg.TableColumn("computed_from", "string"),
        dg.TableColumn("stale_samples", "int"),
        dg.TableColumn("because_of", "string"),
    ]
    return dg.TableMetadataValue(records, dg.TableSchema(columns))
