"""A version's name follows from its datom document, by code that knows no more than the page on the format."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned import Project, TableOptions
from dagster_versioned.governance.version_documents import table_documents
from support.how_to import DOCS, blocks
from support.table_histories import TableHistory

pytestmark = pytest.mark.conformance

Hash = Callable[[Mapping[str, Any]], str]
SECTION = "What datom readers see"
ODD = {
    "ratio": 0.1,
    "large": 1e21,
    "whole": 2.0,
    "tiny": -0.0,
    "ünï": "\u2028 \U0001f600 é",
    "deep": {"b": [None, True], "a": {}},
}


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """What the page's code defines."""
    (code,) = blocks("reference/format.md", SECTION, "python", {})
    defined: dict[str, Any] = {}
    exec(code, defined)
    return defined


@pytest.fixture
def described(tmp_path: Path) -> Project:
    """A project whose versions have every member of an identity that one without partitions can have."""
    project = Project.open("NYC", str(tmp_path), author="Ada <ada@example.org>")
    raw = project.table("raw")
    raw.write(pa.table({"n": [1]}), options=TableOptions(custom=ODD))
    project.table("derived").write(
        pa.table({"n": [1], "ünï": ["x"]}),
        asset_key=["derived"],
        parents=raw.upstream(),
        code_version="7",
        message="with a reason",
    )
    return project


def stored(table: Any) -> list[dict[str, Any]]:
    keys = [
        info.key
        for info in table.store.list(".metadata/")
        if re.fullmatch(r"\.metadata/([0-9a-f]{64}|metadata)\.json", info.key)
    ]
    return [json.loads(table.store.get(key)) for key in keys]


def test_every_document_of_a_table_has_the_name_that_its_members_give(
    documented: dict[str, Any], history: TableHistory
) -> None:
    of: Hash = documented["metadata_sha"]
    history.table.repair()
    for path, data in table_documents(str(history.table.name), history.table.state.history).items():
        if path.endswith("metadata.json"):
            found = json.loads(data)
            assert of(found) == found["metadata_sha"], path
    for found in stored(history.table):
        assert of(found) == found["metadata_sha"]


def test_the_name_covers_each_member_of_an_identity_and_no_fact(documented: dict[str, Any], described: Project) -> None:
    of: Hash = documented["metadata_sha"]
    covered: set[str] = set()
    for name in ("raw", "derived"):
        table = described.table(name)
        (document,) = [one for one in stored(table) if one["metadata_sha"] == table.version().metadata_sha][:1]
        identity = table.version().identity.to_json()
        covered |= identity.keys()
        assert of(document) == table.version().metadata_sha
        for member in document:
            without = {key: value for key, value in document.items() if key != member}
            assert (of(without) != of(document)) == (member in identity), member
    assert covered == set(documented["IDENTITY"]) - {"partition"}


def test_the_page_lists_the_members_once_in_words_and_once_in_code(documented: dict[str, Any]) -> None:
    text = (DOCS / "reference/format.md").read_text("utf-8")
    table = text.split("| member of the identity | |\n|---|---|\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(documented["IDENTITY"])


def test_it_survives_a_reader_that_sorts_and_indents(documented: dict[str, Any], described: Project) -> None:
    of: Hash = documented["metadata_sha"]
    for document in stored(described.table("raw")):
        again = json.loads(json.dumps(document, sort_keys=True, indent=2, ensure_ascii=True))
        assert of(dict(reversed(again.items()))) == document["metadata_sha"]
