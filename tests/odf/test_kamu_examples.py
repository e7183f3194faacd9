"""The manifests of the reference implementation's examples: all parse, and what of each is not here is known.

Manifests of the same shapes are run in tests/cli/test_odf_derived.py.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from dagster_versioned.odf.blocks.events import (
    AddPushSource,
    FetchStepFilesGlob,
    FetchStepUrl,
    PrepStepPipe,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
    SetPollingSource,
    SetTransform,
    TransformSql,
)
from dagster_versioned.odf.ingest.columns import read_schema
from dagster_versioned.odf.manifest import DatasetSnapshot, read_snapshot

EXAMPLES = dict(line.split("\t") for line in (Path(__file__).parent / "kamu_examples.tsv").read_text().splitlines()[1:])
CHECKOUT = os.environ.get("KAMU_CLI", "")
PAGE = " ".join((Path(__file__).resolve().parents[2] / "docs/reference/odf.md").read_text().split())


def needed(snapshot: DatasetSnapshot) -> str:
    """What a dataset asks for that is not run here."""
    found: list[str] = []
    for event in snapshot.metadata:
        if isinstance(event, SetPollingSource):
            if not isinstance(event.fetch, FetchStepUrl | FetchStepFilesGlob):
                found.append("fetch " + type(event.fetch).__name__.removeprefix("FetchStep"))
            found += ["prepare Pipe" for step in event.prepare or () if isinstance(step, PrepStepPipe)]
        if isinstance(event, SetPollingSource | AddPushSource):
            read_schema(event.read)
            if not isinstance(event.read, ReadStepCsv | ReadStepJson | ReadStepNdJson | ReadStepParquet):
                found.append("read " + type(event.read).__name__.removeprefix("ReadStep"))
            if isinstance(event.preprocess, TransformSql) and event.preprocess.engine.casefold() not in (
                "spark",
                "duckdb",
            ):
                found.append("engine " + event.preprocess.engine)
        if isinstance(event, SetTransform) and event.transform.engine.casefold() != "spark":
            found.append("engine " + event.transform.engine)
    return "; ".join(found)


# The manifests are another project's and are not copied here; what was seen of them and their runs is in the table.
@pytest.mark.skipif(not CHECKOUT, reason="KAMU_CLI names no checkout of kamu-cli")
def test_the_examples_parse_and_ask_for_what_is_known() -> None:
    found = {name: needed(read_snapshot((Path(CHECKOUT) / name).read_text())) for name in EXAMPLES}
    assert found == EXAMPLES


def test_the_reference_has_the_counts() -> None:
    kinds = Counter(map(_kind, EXAMPLES.values()))
    assert kinds == {"nothing missing": 11, "engine": 48, "step": 11}
    assert f"All {len(EXAMPLES)} manifests among kamu's examples parse" in PAGE
    for sentence in (
        "and 11 ran and were verified",
        "48 name another engine",
        "11 need a container",
    ):
        assert sentence in PAGE


def _kind(what: str) -> str:
    return "nothing missing" if not what else "engine" if what.startswith("engine") else "step"
