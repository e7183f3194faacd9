"""What Dagster shows of a run of a SQL transform: which events of its inputs it took, and how."""

from typing import Any

import dagster as dg

from dagster_versioned.io_managers.materialization import OURS
from dagster_versioned.odf.queries.transform import Derivation, Derived


def run_metadata(derivation: Derivation, derived: Derived) -> dict[str, Any]:
    """The intervals of the inputs, as they are recorded, by what the query calls them.

    ``run`` is ``map`` (over new events alone), ``whole`` (computed and compared), or ``none`` where nothing was new.
    """
    records = [
        dg.TableRecord(
            {
                "input": name,
                "dataset": str(taken.dataset_id),
                "after_offset": "" if taken.prev_offset is None else str(taken.prev_offset),
                "until_offset": "" if taken.new_offset is None else str(taken.new_offset),
                "until_block": "" if taken.new_block_hash is None else str(taken.new_block_hash),
            }
        )
        for name, taken in zip(derivation.query.inputs, derived.inputs, strict=True)
    ]
    names = ("input", "dataset", "after_offset", "until_offset", "until_block")
    schema = dg.TableSchema([dg.TableColumn(name, "string") for name in names])
    return {
        f"{OURS}/run": derived.kind.value if derived.kind is not None else "none",
        f"{OURS}/inputs": dg.TableMetadataValue(records, schema),
    }
