"""Frames that hold what readers trip over: every stored type, with its extremes and nulls, and odd column names."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa

_MICROSECOND = dt.timedelta(microseconds=1)
_EARLY = dt.datetime(1, 1, 1, 0, 0, 0, 1)
_LATE = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
_EPOCH = dt.datetime(1970, 1, 1)


def _instants(*, zone: dt.tzinfo | None) -> list[dt.datetime | None]:
    moments = [_EARLY, _EPOCH - _MICROSECOND, None, _EPOCH, dt.datetime(1969, 12, 31, 23, 59, 59, 999_001), _LATE]
    return [moment and moment.replace(tzinfo=zone) for moment in moments]


FLAT: dict[str, pa.Array] = {
    "boolean": pa.array([True, False, None, True, False, None]),
    "byte": pa.array([-128, 127, None, 0, -1, 1], pa.int8()),
    "short": pa.array([-(2**15), 2**15 - 1, None, 0, -1, 1], pa.int16()),
    "integer": pa.array([-(2**31), 2**31 - 1, None, 0, -1, 1], pa.int32()),
    "long": pa.array([-(2**63), 2**63 - 1, None, 2**53 + 1, -(2**53) - 1, 1], pa.int64()),
    "float": pa.array([-0.0, float("nan"), None, float("inf"), 1.5, -3.5], pa.float32()),
    "double": pa.array([float("-inf"), -0.0, None, float("nan"), 5e-324, 1.7976931348623157e308]),
    "decimal_small": pa.array(
        [Decimal("-999.99"), Decimal("0.01"), None, Decimal("-0.01"), Decimal(0), Decimal(5)]
    ).cast(pa.decimal128(5, 2)),
    "decimal_large": pa.array(
        [Decimal(-(10**38) + 1), Decimal(10**38 - 1), None, Decimal(-1), Decimal(0), Decimal(1)], pa.decimal128(38, 0)
    ),
    "decimal_fine": pa.array(
        [Decimal("-0." + "9" * 38), Decimal("0." + "0" * 37 + "1"), None, Decimal(0), None, None], pa.decimal128(38, 38)
    ),
    "string": pa.array(["", "\U0001f600" * 40, None, "ü" * 31 + "\U0010ffff" * 3, "a\x00b\n", "z" * 33]),
    "binary": pa.array([b"", b"\xff\xfe\x00" * 20, None, b"\x00", b"a", b"\xf0\x9f\x98"]),
    "date": pa.array(
        [dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(1969, 12, 31), dt.date(1582, 10, 10), _EPOCH.date()]
    ),
    "timestamp": pa.array(_instants(zone=dt.UTC), pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.array(_instants(zone=None), pa.timestamp("us")),
}

_POINT = pa.struct([("x", pa.int32()), ("when", pa.timestamp("us", "UTC"))])
_WHEN = dt.datetime(1969, 7, 20, 20, 17, 40, 1, dt.UTC)

NESTED: dict[str, pa.Array] = {
    "struct": pa.array([{"x": 1, "when": _WHEN}, None, {"x": None, "when": None}, {"x": 2}, None, {"x": -1}], _POINT),
    "array": pa.array([[1, None, 3], [], None, [None], [2**62], [0]], pa.list_(pa.int64())),
    "map": pa.array([[("k", 1.5), ("", None)], [], None, [("ü", -0.0)], [], None], pa.map_(pa.string(), pa.float64())),
    "deep": pa.array(
        [
            [{"points": [{"x": 1}, None], "named": [("a", [Decimal("1.50"), None])]}],
            [],
            None,
            [None, {"points": None, "named": None}],
            [{"points": [], "named": [("b", None)]}],
            [{"points": [{"x": 5, "when": _WHEN}], "named": []}],
        ],
        pa.list_(
            pa.struct([("points", pa.list_(_POINT)), ("named", pa.map_(pa.string(), pa.list_(pa.decimal128(9, 2))))])
        ),
    ),
    "struct_in_struct": pa.array(
        [{"a": {"b": {"c": "deep"}}}, {"a": None}, None, {"a": {"b": None}}, {"a": {"b": {"c": None}}}, None],
        pa.struct([("a", pa.struct([("b", pa.struct([("c", pa.string())]))]))]),
    ),
}

ALL_TYPES = pa.table({**FLAT, **NESTED})

ONLY_NULLS = ALL_TYPES.schema.empty_table().from_pylist([{}, {}, {}], ALL_TYPES.schema)

ODD_NAMES = pa.table(
    {
        name: pa.array([position, None, -position], pa.int64())
        for position, name in enumerate(
            ["a.b", "a`b", "A/ä", "x,y=z", " spaced name ", "%41", 'q"q', "q'q", "😀", "", "a\nb", "{}();\t", "n" * 300]
        )
    }
)

ODD_PARTITIONS = [
    "2013-01-01",
    "a b",
    "x/y",
    "../z",
    "%41",
    "%2F",
    "ü 😀",
    "a=b",
    "k",
    "K",
    ".",
    "|",
    "'",
    '"',
    "a\nb",
    " ",
]


def numbered(nrow: int, start: int = 0) -> pa.Table:
    """Rows that tell which they are, and hold nulls."""
    numbers = range(start, start + nrow)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "text": pa.array([f"row {n}" if n % 7 else None for n in numbers], pa.string()),
            "amount": pa.array([None if n % 5 == 0 else Decimal(n - 50) / 100 for n in numbers], pa.decimal128(12, 2)),
            "at": pa.array([n * 1_000_003 - 10**9 for n in numbers], pa.timestamp("us", "UTC")),
        }
    )


def equal_rows(nrow: int) -> pa.Table:
    """Rows that are all the same, so that parts of equally many of them are equal too."""
    return pa.table({"n": pa.array([7] * nrow, pa.int64()), "text": ["same"] * nrow})
