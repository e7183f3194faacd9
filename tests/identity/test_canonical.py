"""Canonical JSON: one text per value, and refusal of what has none."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidMetadata
from dagster_versioned.identity.canonical import canonical_json, canonical_names

numbers = (
    st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-(2.0**52), 2.0**52)
    | st.floats(min_value=1e21, allow_infinity=False)
)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(values)
def test_the_text_survives_every_parser_and_encoder(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text
    assert canonical_json(json.loads(json.dumps(value))) == text


names = st.recursive(st.text(st.characters(exclude_categories=["Cs"])), lambda inner: st.lists(inner, max_size=4))


@given(st.lists(names, max_size=4))
def test_names_have_the_same_text_without_the_encoder_of_the_rfc(value: list[Any]) -> None:
    assert canonical_names(value) == canonical_json(value)


def test_the_example_of_rfc_8785() -> None:
    # Section 3.2.2 and 3.2.4.
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert (
        canonical_json(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_keys_are_sorted_as_utf_16() -> None:
    # Section 3.2.3: U+1F600 is a surrogate pair and comes before U+FB33, although its code point is greater.
    assert list(json.loads(canonical_json({"\ufb33": 1, "\U0001f600": 2, "1": 3}))) == ["1", "\U0001f600", "\ufb33"]


def test_whole_floats_are_integers() -> None:
    assert canonical_json([10.0, -0.0, 10]) == b"[10,0,10]"


@pytest.mark.parametrize(
    "value",
    [
        2**53,
        -(2**53),
        10**400,
        2.0**53,
        1e20,
        -1e16,
        math.nan,
        math.inf,
        -math.inf,
        {1: 2},
        {None: 2},
        b"bytes",
        {1, 2},
        object(),
        "\ud800",
        {"\udfff": 1},
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_has_no_canonical_form_is_refused_by_key_path(value: Any) -> None:
    with pytest.raises(InvalidMetadata, match=r"form: a\.b\[1\] holds .*Nothing was written"):
        canonical_json({"a": {"b": [0, value]}})


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidMetadata, match="nested deeper"):
        canonical_json(value)


def test_the_largest_integers_are_kept() -> None:
    assert canonical_json([2**53 - 1, -(2**53) + 1]) == b"[9007199254740991,-9007199254740991]"


@pytest.mark.parametrize(
    "case", json.loads((Path(__file__).parent / "golden" / "canonical.json").read_text()), ids=lambda case: case["name"]
)
def test_golden_canonical_texts(case: dict[str, Any]) -> None:
    assert canonical_json(case["value"]).decode() == case["canonical"]


def test_every_character_of_ascii_has_the_text_of_the_rfc() -> None:
    text = "".join(map(chr, range(128)))
    assert canonical_json({text: [text, -1, None, True]}) == rfc8785.dumps({text: [text, -1, None, True]})


@given(values)
def test_the_text_is_that_of_the_rfcs_encoder(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)
