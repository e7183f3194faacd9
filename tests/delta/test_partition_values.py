import math
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.files.partition_values import (
    NULL_FOLDER,
    decode,
    decode_column,
    encode,
    folder,
    typed_columns,
)
from dagster_versioned.delta.schema.types import StructField, StructType, schema_to_arrow
from dagster_versioned.errors import InvalidInput, LogCorrupt

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.one_of(
    st.tuples(st.just("string"), texts),
    st.tuples(st.just("binary"), texts.map(str.encode)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("byte"), st.integers(-128, 127)),
    st.tuples(st.just("short"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("integer"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("long"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("double"), st.floats()),
    st.tuples(st.just("float"), st.floats(width=32)),
    st.tuples(st.just("date"), st.dates()),
    st.tuples(st.just("timestamp"), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just("timestamp_ntz"), st.datetimes()),
    st.tuples(st.just("decimal(38,6)"), st.decimals(-(10**31), 10**31, places=6)),
    st.tuples(st.sampled_from(["string", "long", "date", "timestamp"]), st.none()),
)


def same(one: Any, other: Any) -> bool:
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


@given(values)
def test_round_trip(pair: tuple[str, Any]) -> None:
    data_type, value = pair
    text = encode(value, data_type)
    assert text != ""
    assert same(decode(text, data_type), value)
    column = decode_column(pa.chunked_array([[text, None], [text]]), data_type)
    assert column.type == schema_to_arrow(StructType([StructField("x", data_type)])).field(0).type
    first, null, last = column.to_pylist()
    assert same(first, value)
    assert null is None
    assert same(last, value)


@pytest.mark.parametrize(
    ("text", "data_type", "value"),
    [
        ("", "string", None),
        ("", "long", None),
        (None, "date", None),
        ("1970-01-01 00:00:00", "timestamp", datetime(1970, 1, 1, tzinfo=UTC)),
        ("1970-01-01 00:00:00.123456", "timestamp", datetime(1970, 1, 1, 0, 0, 0, 123456, UTC)),
        ("1970-01-01 00:00:00.5", "timestamp", datetime(1970, 1, 1, 0, 0, 0, 500000, UTC)),
        ("1970-01-01T00:00:00.123456Z", "timestamp", datetime(1970, 1, 1, 0, 0, 0, 123456, UTC)),
        ("1970-01-01T02:00:00+02:00", "timestamp", datetime(1970, 1, 1, tzinfo=UTC)),
        ("1970-01-01 00:00:00.123456", "timestamp_ntz", datetime(1970, 1, 1, 0, 0, 0, 123456)),
        ("2024-02-29", "timestamp_ntz", datetime(2024, 2, 29)),  # widened from `date`
        ("TRUE", "boolean", True),
        ("1.0E10", "double", 1e10),
        ("-Infinity", "float", -math.inf),
        ("inf", "double", math.inf),  # as deltalake writes it
        ("-inf", "float", -math.inf),
        ("2024-2-9", "date", date(2024, 2, 9)),
        ("2024-2-9 00:00:00", "timestamp", datetime(2024, 2, 9, tzinfo=UTC)),
        ("1", "decimal(5,2)", Decimal("1.00")),
        ("1E+2", "decimal(5,2)", Decimal("100.00")),
        ("\x01\x02", "binary", b"\x01\x02"),
    ],
)
def test_every_spelling_of_the_protocol_and_of_writers_is_read(text: str, data_type: str, value: object) -> None:
    assert decode(text, data_type) == value


@pytest.mark.parametrize(
    ("value", "data_type", "text"),
    [
        (None, "string", None),
        ("a b=%", "string", "a b=%"),
        (b"\x01\x02", "binary", "\x01\x02"),
        (True, "boolean", "true"),
        (False, "boolean", "false"),
        (-128, "byte", "-128"),
        (2**63 - 1, "long", "9223372036854775807"),
        (1.5, "double", "1.5"),
        (-math.inf, "float", "-Infinity"),
        (math.nan, "double", "NaN"),
        (Decimal("100"), "decimal(5,2)", "100.00"),
        (date(2024, 2, 29), "date", "2024-02-29"),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), "timestamp", "1970-01-01T00:00:00.000000Z"),
        (datetime(1970, 1, 1, 0, 0, 0, 500_000), "timestamp_ntz", "1970-01-01 00:00:00.500000"),
    ],
)
def test_values_are_written_as_the_protocol_spells_them(value: Any, data_type: str, text: str | None) -> None:
    assert encode(value, data_type) == text


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("x", "long"),
        ("1_0", "long"),
        (" 1", "integer"),
        ("128", "byte"),
        ("1.0", "integer"),
        ("info", "double"),
        ("yes", "boolean"),
        ("2020-02-30", "date"),
        ("20200101", "date"),
        ("2020-01-01", "timestamp"),
        ("2020-01-01 00:00:00.1234567", "timestamp"),
        ("2020-01-01T00:00:00Z", "timestamp_ntz"),
        ("300000-01-01 00:00:00", "timestamp"),
        ("2020-01-01 25:00:00", "timestamp"),
        ("2020-01-01T00:00:00+24:00", "timestamp"),
        ("1234567-01-01", "date"),
        ("10000-02-30", "date"),
        ("1.234", "decimal(5,2)"),
        ("1234.5", "decimal(5,2)"),
        ("NaN", "decimal(5,2)"),
        ("1e9999", "decimal(5,2)"),
    ],
)
def test_a_string_that_is_no_value_is_refused(text: str, data_type: str) -> None:
    with pytest.raises(LogCorrupt, match="is not of type"):
        decode(text, data_type)


@pytest.mark.parametrize(
    ("text", "data_type", "written"),
    [
        ("10000-01-01", "date", "10000-01-01"),
        ("+12345-06-07", "date", "12345-06-07"),
        ("-0001-01-01", "date", "-0001-01-01"),
        ("0000-12-31", "date", "0000-12-31"),
        ("-32000-01-01", "date", "-32000-01-01"),
        ("10000-01-01 01:59:59.999999", "timestamp", "10000-01-01T01:59:59.999999Z"),
        ("9999-12-31T23:59:59-10:00", "timestamp", "10000-01-01T09:59:59.000000Z"),
        ("-0001-01-01 00:00:00", "timestamp_ntz", "-0001-01-01 00:00:00.000000"),
        ("-0001-01-01", "timestamp_ntz", "-0001-01-01 00:00:00.000000"),
    ],
)
def test_years_that_python_has_not(text: str, data_type: str, written: str) -> None:
    value = decode(text, data_type)
    assert isinstance(value, int)
    assert encode(value, data_type) == written
    column = decode_column(pa.chunked_array([[text, None]]), data_type)
    assert pc.equal(column[0], pa.scalar(value, column.type)).as_py()
    assert pc.cast(column, pa.string())[0].as_py().rstrip("Z").removeprefix("+") == (
        written.replace("T", " ").rstrip("Z").removeprefix("+")
    )


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        ("", "string"),
        (b"", "binary"),
        (b"\xff", "binary"),
        (1, "string"),
        (True, "long"),
        (2**31, "integer"),
        (datetime(2020, 1, 1), "timestamp"),
        (datetime(2020, 1, 1, tzinfo=UTC), "timestamp_ntz"),
        (datetime(2020, 1, 1), "date"),
        (Decimal("1.234"), "decimal(5,2)"),
        (Decimal("NaN"), "decimal(5,2)"),
    ],
)
def test_a_value_without_a_serialization_is_refused(value: Any, data_type: str) -> None:
    with pytest.raises(InvalidInput, match="no serialization"):
        encode(value, data_type)


@given(st.dictionaries(texts, texts | st.none(), min_size=1, max_size=3))
def test_hive_folders_have_values_that_can_be_read_back_and_names_that_are_as_plain_as_keys_allow(
    values: dict[str, str | None],
) -> None:
    path = folder(values, list(values))
    parts = [segment.split("=") for segment in path.split("/")]
    read = [None if value == NULL_FOLDER else unquote(value) for _, value in parts]
    assert read == list(values.values()) or NULL_FOLDER in values.values()
    assert not any(character in path for character in "\0\n:\\")
    assert not any(character in value for _, value in parts for character in "\"#'*?")
    for name, (written, _) in zip(values, parts, strict=True):
        assert written == name or re.search(r"[\x00-\x1f\x7f/:=\\]", name)


def test_columns_of_files() -> None:
    schema = StructType([StructField("d", "date"), StructField("n", "integer"), StructField("x", "long")])
    table = adds_table(
        [Add("a", {"d": "2020-01-01", "n": None}, 1, 1, True), Add("b", {"n": "7", "d": ""}, 1, 1, True)]
    )
    typed = typed_columns(table, schema, ("d", "n"))
    assert typed.to_pydict() == {"d": [date(2020, 1, 1), None], "n": [None, 7]}
    assert typed.schema.types == [pa.date32(), pa.int32()]
    with pytest.raises(LogCorrupt, match="'b' does not have one value"):
        typed_columns(adds_table([Add("b", {"n": "7"}, 1, 1, True)]), schema, ("d", "n"))
    with pytest.raises(LogCorrupt, match="does not have one value"):
        typed_columns(adds_table([Add("b", {"n": "7", "x": "1"}, 1, 1, True)]), schema, ("d", "n"))
