from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.actions import Metadata
from dagster_versioned.delta.schema.identity_columns import (
    HIGH_WATER_MARK,
    START,
    STEP,
    IdentityColumn,
    identity_columns,
    with_high_water_marks,
)
from dagster_versioned.delta.schema.types import StructField, StructType, parse_schema
from dagster_versioned.errors import InvalidInput, LogCorrupt

longs = st.integers(-(2**40), 2**40)


def table(**members: object) -> Metadata:
    fields = [StructField("id", "long", True, {START: 1, STEP: 2, **members}), StructField("x", "string")]
    return Metadata("i", StructType(fields).json())


def column(metadata: Metadata) -> IdentityColumn:
    return identity_columns(parse_schema(metadata.schema_string))["id"]


@given(longs, longs.filter(bool), st.none() | longs, st.integers(0, 100))
def test_values_are_steps_from_the_start_beyond_the_mark(start: int, step: int, mark: int | None, count: int) -> None:
    values = IdentityColumn(start, step, mark).values(count)
    assert len(values) == count
    for value in values:
        assert (value - start) % step == 0
        assert (value - start) // step >= 0
        assert mark is None or (value > mark if step > 0 else value < mark)
    if count and mark is not None and values[0] != start:
        assert not (values[0] - step > mark if step > 0 else values[0] - step < mark), "a value was left out"


def test_values_end_with_64_bits() -> None:
    last = IdentityColumn(2**63 - 2, 1)
    assert list(last.values(2)) == [2**63 - 2, 2**63 - 1]
    with pytest.raises(InvalidInput, match="64 bits"):
        last.values(3)
    with pytest.raises(InvalidInput, match="64 bits"):
        IdentityColumn(0, -(2**62), -(2**63)).values(1)
    assert list(IdentityColumn(2**63 - 1, 1, 2**63 - 1).values(0)) == []


def test_the_mark_is_a_change_of_metadata() -> None:
    metadata = with_high_water_marks(table(), {"id": 7})
    assert column(metadata) == IdentityColumn(1, 2, 7)
    assert replace(metadata, schema_string="") == replace(table(), schema_string="")
    assert column(with_high_water_marks(metadata, {"id": 3})).high_water == 7
    assert column(with_high_water_marks(metadata, {"id": 9})).high_water == 9
    falling = table(**{STEP: -2, HIGH_WATER_MARK: -5})
    assert column(with_high_water_marks(falling, {"id": -3})).high_water == -5
    assert column(with_high_water_marks(falling, {"id": -7})).high_water == -7
    assert with_high_water_marks(metadata, {}) == metadata
    with pytest.raises(InvalidInput, match=r"no identity columns \['x'\]"):
        with_high_water_marks(metadata, {"x": 1})


@pytest.mark.parametrize(
    "members",
    [{STEP: 0}, {STEP: "1"}, {START: None}, {START: 2**63}, {HIGH_WATER_MARK: "x"},
     {"delta.identity.allowExplicitInsert": "true"}],
)  # fmt: skip
def test_members_that_make_no_sense(members: dict[str, object]) -> None:
    with pytest.raises(LogCorrupt, match="identity column 'id'"):
        column(table(**members))
