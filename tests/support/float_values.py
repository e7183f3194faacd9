"""Floats that readers compare each in their own way, conditions of them, and what SQL says of which are true."""

import math
from collections.abc import Callable

import pyarrow as pa

NAN = math.nan

GROUPS: list[list[float | None]] = [
    [1.0, NAN],
    [-0.0, -5.0],
    [NAN, NAN],
    [None, -0.0],
    [math.inf, 1.0, NAN],
    [0.0, 0.0],
    [5.0, 7.0],
]
"""The values of one row group each: of one with NaN, bounds say nothing; of zero, either may be the bound."""

VALUES = [value for group in GROUPS for value in group]


def _place(value: float) -> tuple[bool, float]:
    """NaN is equal to itself, and the greatest; the zeros are equal."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def _compared(holds: Callable[[tuple[bool, float]], bool]) -> Callable[[float | None], bool]:
    return lambda value: value is not None and holds(_place(value))


_NAN = (True, 0.0)

CONDITIONS: dict[str, Callable[[float | None], bool]] = {
    "{} > 100": _compared(lambda x: x > (False, 100)),
    "{} <> 1": _compared(lambda x: x != (False, 1)),
    "not ({} <= 100)": _compared(lambda x: x > (False, 100)),
    "{} = double('NaN')": _compared(lambda x: x == _NAN),
    "{} >= double('NaN')": _compared(lambda x: x >= _NAN),
    "{} between 6 and double('NaN')": _compared(lambda x: (False, 6) <= x <= _NAN),
    "{} in (double('NaN'), 5D)": _compared(lambda x: x in (_NAN, (False, 5))),
    "isnan({})": _compared(lambda x: x == _NAN),
    "{} > double('Infinity')": _compared(lambda x: x == _NAN),
    "{} = 0": _compared(lambda x: x == (False, 0)),
    "{} >= 0": _compared(lambda x: x >= (False, 0)),
    "{} <= -0.0D": _compared(lambda x: x <= (False, 0)),
    "{} = -0.0D": _compared(lambda x: x == (False, 0)),
    "{} in (0D, 8D)": _compared(lambda x: x == (False, 0)),
    "{} not in (-0.0D, 7D)": _compared(lambda x: x not in ((False, 0), (False, 7))),
    "{} is null": lambda value: value is None,
    f"{{}} in (0D, {', '.join(f'{n}.25D' for n in range(70))})": _compared(lambda x: x == (False, 0)),
    f"{{}} in (-0.0D, {', '.join(f'{n}.25D' for n in range(70))})": _compared(lambda x: x == (False, 0)),
    "{} <=> 0D": _compared(lambda x: x == (False, 0)),
}

COLUMNS = ("d", "f", "s.v", "s.inner.x")


def table(values: list[float | None], first: int = 0) -> pa.Table:
    """The values as each of `COLUMNS`, numbered by ``id``."""
    singles = pa.array(values, pa.float32())
    doubles = pa.array(values, pa.float64())
    inner = pa.StructArray.from_arrays([singles], ["x"])
    numbers = pa.array(range(first, first + len(values)), pa.int64())
    struct = pa.StructArray.from_arrays([doubles, numbers, inner], ["v", "n", "inner"])
    return pa.table({"id": numbers, "d": doubles, "f": singles, "s": struct})


def expected(condition: str) -> list[int]:
    """The ids of `VALUES` of which the condition is true."""
    return [i for i, value in enumerate(VALUES) if CONDITIONS[condition](value)]
