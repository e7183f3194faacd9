"""What Spark raises about SQL and values, as `InvalidInput`: a condition fails on rows, long after it was analysed."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from dagster_versioned.engines.spark.assignment import WITHOUT_LOSS
from dagster_versioned.engines.spark.catalyst import spark_errors
from dagster_versioned.engines.spark.task_errors import as_raised, own_error
from dagster_versioned.errors import InvalidInput, UnsupportedType

_OF_VALUES = (
    "AnalysisException",
    "ParseException",
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "DateTimeException",
    "IllegalArgumentException",
    "InvocationTargetException",
    "NumberFormatException",
    "PatternSyntaxException",
    "RuntimeException",
)
_STATES = re.compile(r"SQLSTATE: (?:2[12]|42|P0)")
"""Cardinality, data, syntax and what is raised on purpose: conditions that Spark has no class of its own for."""
_RAISED = re.compile(r"^(?:\w+\.)*\w+(?:: .*)?$", re.MULTILINE)
_OWN_FRAME = re.compile(r'File "[^"\n]*[/\\]dagster_versioned[/\\]')


@contextmanager
def translate_spark_errors(conditions: Sequence[str] = (), untouched: str = "Nothing was written.") -> Generator[None]:
    """Within it, what Spark raises about SQL or values becomes `InvalidInput`, and our own errors what they were.

    ``conditions`` are what a user gave, one of which may be the cause.
    """
    try:
        yield
    except spark_errors() as error:
        ours = own_error(error) or _refusal(error, conditions, untouched)
        if ours is None:
            raise
        raise ours from error


def _refusal(error: Exception, conditions: Sequence[str], untouched: str) -> InvalidInput | None:
    kind, text = as_raised(error)
    # PySpark 3.5 has no name for what `raise_error` raises.
    begin = "" if kind == "RuntimeException" else r".*\[USER_RAISED_EXCEPTION\] "
    if raised := re.match(rf"{begin}(.*?Nothing was written\.)", text, re.DOTALL):
        return (UnsupportedType if WITHOUT_LOSS in raised[1] else InvalidInput)(raised[1])
    if (found := _by_function(kind, text)) is not None:
        reason = f"a function in Python raises {found}"
    elif kind.removeprefix("Spark") in _OF_VALUES or _STATES.search(text):
        reason = text.splitlines()[0] if text else kind
    else:
        return None
    to_do = (
        f" Correct {' or '.join(f'{condition!r:.300}' for condition in conditions)}, or the values."
        if conditions
        else ""
    )
    return InvalidInput(f"Spark refuses the expression or a value: {reason[:500].rstrip(' ;.')}. {untouched}{to_do}")


def _by_function(kind: str, text: str) -> str | None:
    """What a user's function raised in a worker; ``None`` where it is none, or code of this package raised it."""
    if kind != "PythonException" or _OWN_FRAME.search(text):
        return None
    raised = _RAISED.findall(text.partition("Traceback (most recent call last)")[2])
    return raised[-1] if raised else None
