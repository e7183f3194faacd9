"""What a reference means."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidReference
from dagster_versioned.identity.reference import (
    AsOf,
    HeadReference,
    LogVersion,
    PinName,
    Reference,
    ShaPrefix,
    TagName,
    parse_reference,
)

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given_", "meant"),
    [
        (None, HeadReference()),
        ("a3f8c1", ShaPrefix("a3f8c1")),
        ("A3F8C1D2", ShaPrefix("a3f8c1d2")),
        ("f" * 64, ShaPrefix("f" * 64)),
        ("20240501", ShaPrefix("20240501")),
        ("@0", LogVersion(0)),
        ("@12", LogVersion(12)),
        (12, LogVersion(12)),
        (NOON, AsOf(NOON)),
        (datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2))), AsOf(NOON)),
        ("2024-05-01T12:00:00Z", AsOf(NOON)),
        ("2024-05-01T14:00:00+02:00", AsOf(NOON)),
        ("2024-05-01T12:00", AsOf(NOON)),
        ("20240501T120000Z", AsOf(NOON)),
        ("2024-05-01T12:00:00.000001Z", AsOf(NOON + timedelta(microseconds=1))),
        ("pin:release 1", PinName("release 1")),
        ("pin:a3f8c1", PinName("a3f8c1")),
        ("tag:2026-11T", TagName("2026-11T")),
        ("tag:v1.0_b", TagName("v1.0_b")),
    ],
)
def test_references(given_: Any, meant: Reference) -> None:
    assert parse_reference(given_) == meant


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("", "neither hex"),
        ("a3f8c", "5 characters"),
        ("f" * 65, "65 characters"),
        ("a3f8g1", "neither hex"),
        ("a3f8c1\n", "neither hex"),
        (" a3f8c1", "neither hex"),
        ("\u0661\u0661\u0661\u0661\u0661\u0661", "neither hex"),
        ("2024-05-01", "needs its time"),
        ("2024-13-01T00:00:00Z", "not a time"),
        ("yesTerday", "not a time"),
        ("0001-01-01T00:00:00+14:00", "outside the years"),
        ("@", "not a log version"),
        ("@-1", "not a log version"),
        ("@1.5", "not a log version"),
        ("@\u0661", "not a log version"),
        ("@9999999999999999999", "between 0 and"),
        ("@1\n", "not a log version"),
        ("pin:", "no name"),
        ("pin: ", "no name"),
        ("tag:", "names no tag"),
        ("tag:../x", "names no tag"),
        ("tag:" + "x" * 500, "names no tag"),
        ("tag:x\n", "names no tag"),
        (-1, "between 0 and"),
        (10**5000, "between 0 and"),
        (True, "names no version"),
        (1.0, "names no version"),
        (date(2024, 5, 1), "names no version"),
        (datetime(2024, 5, 1), "no time zone"),
    ],
    ids=lambda value: ascii(value)[:25] if not isinstance(value, int) else f"int-{value < 2}",
)
def test_what_names_no_version_is_refused(wrong: Any, reason: str) -> None:
    with pytest.raises(InvalidReference, match=reason):
        parse_reference(wrong)


@given(st.text(max_size=70))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        parsed = parse_reference(text)
    except InvalidReference:
        return
    assert not isinstance(parsed, HeadReference)


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC)))
def test_times_survive_their_text(moment: datetime) -> None:
    assert parse_reference(moment.isoformat()) == AsOf(moment) == parse_reference(moment)
