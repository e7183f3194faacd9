"""Vectors that were written once: a digest or a SHA that changes would give every stored version another name.

Each table is stored as JSON, so that another implementation can
check itself against the same files.
"""

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned.identity.digest import BagDigest, SequenceDigest
from dagster_versioned.identity.version import Identity, data_sha, partitions_sha
from support import reference_digest
from support.digest_columns import ARROW, batch_of

GOLDEN = Path(__file__).parent / "golden"
DIGESTS = json.loads((GOLDEN / "digests.json").read_text())
SHAS = json.loads((GOLDEN / "shas.json").read_text())


READ: dict[str, Callable[[str], Any]] = {
    "float": float,
    "double": float,
    "binary": base64.b64decode,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
    "timestamp_ntz": datetime.fromisoformat,
}


def from_text(kind: Any, value: Any) -> Any:
    """The Python value of a JSON one: binary is base64, NaN and infinities are text, dates and times ISO 8601."""
    if value is None:
        return None
    if isinstance(kind, list):
        match kind[0]:
            case "array":
                return [from_text(kind[1], item) for item in value]
            case "map":
                return [(from_text(kind[1], key), from_text(kind[2], item)) for key, item in value]
            case _:
                return {name: from_text(field, value[name]) for name, field in kind[1:]}
    read = READ.get(kind) or (Decimal if kind.startswith("decimal") else None)
    return read(value) if read else value


@pytest.mark.parametrize("case", DIGESTS, ids=lambda case: case["name"])
def test_golden_digests(case: dict[str, Any]) -> None:
    columns = [(name, kind) for name, kind in case["columns"]]
    rows = [
        tuple(from_text(kind, value) for (_, kind), value in zip(columns, row, strict=True)) for row in case["rows"]
    ]
    batch = batch_of(columns, rows)
    bag, sequence = BagDigest(batch.schema), SequenceDigest(batch.schema)
    bag.update(batch)
    sequence.update(batch)
    assert (bag.finish().text, sequence.finish().text) == (case["bag"], case["sequence"])
    assert (reference_digest.bag(columns, rows), reference_digest.sequence(columns, rows)) == (
        case["bag"],
        case["sequence"],
    )


@pytest.mark.parametrize("case", SHAS["metadata_sha"], ids=lambda case: case["name"])
def test_golden_metadata_shas(case: dict[str, Any]) -> None:
    assert Identity.from_json(case["identity"]).metadata_sha() == case["metadata_sha"]


@pytest.mark.parametrize("case", SHAS["data_sha"], ids=lambda case: case["name"])
def test_golden_data_shas(case: dict[str, Any]) -> None:
    assert data_sha(case["parts"], case["row_order"]) == case["data_sha"]


@pytest.mark.parametrize("case", SHAS["partitions_sha"], ids=lambda case: case["name"])
def test_golden_partitions_shas(case: dict[str, Any]) -> None:
    assert partitions_sha(case["partitions"]) == case["partitions_sha"]


def test_every_kind_has_a_golden_digest() -> None:
    text = json.dumps([case["columns"] for case in DIGESTS])
    for kind in [*ARROW, "array", "map", "struct"]:
        assert f'"{kind}"' in text
