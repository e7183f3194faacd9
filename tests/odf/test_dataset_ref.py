"""References to datasets: what the grammar takes, and what it refuses."""

import pytest

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.dataset_ref import (
    DatasetAlias,
    DatasetUrl,
    Name,
    RemoteAlias,
    RemoteId,
    parse_ref,
    parse_remote_ref,
)

IDENTITY = DatasetId(bytes(range(32)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (str(IDENTITY), IDENTITY),
        ("cities", DatasetAlias(Name("cities"))),
        ("admin0.countries.10m", DatasetAlias(Name("admin0.countries.10m"))),
        ("ny-newyork/public-safety.ems", DatasetAlias(Name("public-safety.ems"), Name("ny-newyork"))),
    ],
)
def test_what_refers_to_a_dataset_here(text: str, expected: object) -> None:
    assert parse_ref(text) == expected
    assert str(parse_ref(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (str(IDENTITY), RemoteId(IDENTITY)),
        (f"data.gov/{IDENTITY}", RemoteId(IDENTITY, Name("data.gov"))),
        ("statcan.gc.ca/census.2016", RemoteAlias(Name("statcan.gc.ca"), Name("census.2016"))),
        ("data.gov/ny-newyork/ems", RemoteAlias(Name("data.gov"), Name("ems"), Name("ny-newyork"))),
        ("https://opendata.ca/odf/census/", DatasetUrl("https://opendata.ca/odf/census/")),
        ("s3+http://bucket/x", DatasetUrl("s3+http://bucket/x")),
    ],
)
def test_what_refers_to_a_dataset_elsewhere(text: str, expected: object) -> None:
    assert parse_remote_ref(text) == expected
    assert str(parse_remote_ref(text)) == text


def test_names_are_the_same_in_either_case() -> None:
    assert parse_ref("NY-NewYork/EMS") == parse_ref("ny-newyork/ems")
    assert len({parse_ref("Cities"), parse_ref("cities")}) == 1
    assert parse_ref("Cities") != parse_ref("Towns")


@pytest.mark.parametrize(
    "text", ["", "/", "a/", "/a", "a b", "-a", "a-", "a..b", "a_b", "a/b/c", "ä", "a\n", "did:key:zabc"]
)
def test_what_refers_to_nothing_here(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_ref(text)


@pytest.mark.parametrize("text", ["", "a", "a/b/c/d", "a/../b", "://x", "a//b", "did:odf:xyz", "a/did:odf:xyz"])
def test_what_refers_to_nothing_elsewhere(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_remote_ref(text)
