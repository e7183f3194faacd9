"""Errors that were raised in Spark's tasks: those of this package, and what executors lack to run it."""

import re

import dagster_versioned.errors as errors
from dagster_versioned.errors import MissingExtra, VersionedError

_WANTED = "Spark's executors need a Python of the driver's minor version, with pyarrow 14 or newer and numpy"
_HOW = (
    "Nothing was committed. Install them there, and name that Python before the session starts: the environment "
    "variable PYSPARK_PYTHON, or spark.pyspark.python."
)


def own_error(error: Exception) -> VersionedError | None:
    """What this package's code raised in a task, out of the traceback that is all Spark passes on; or, in one sentence,
    what the executors lack."""
    text = str(error)
    found = re.search(r"^(?:dagster_versioned\.errors\.)(\w+): (.*)$", text, re.MULTILINE)
    kind = getattr(errors, found[1], None) if found else None
    if found and isinstance(kind, type) and issubclass(kind, VersionedError):
        return kind(found[2])
    return _lacking(text)


def as_raised(error: Exception) -> tuple[str, str]:
    """The class and the message of what was raised; where it is Py4J's error, of what a task raised in the JVM."""
    text = str(error)
    found = re.search(r"(?:executor [\w.-]+\): |^: )([\w.$]+): (.*?)(?=\n\s+at |\Z)", text, re.DOTALL | re.MULTILINE)
    if type(error).__name__ != "Py4JJavaError" or found is None:
        return type(error).__name__, text
    return found[1].rpartition(".")[2], found[2]


def _lacking(text: str) -> MissingExtra | None:
    missing = re.search(r"No module named '(pyarrow|numpy)\b|(PyArrow) >= [\d.]+ must be installed", text)
    if missing:
        return MissingExtra(f"{_WANTED}; there is no {missing[1] or 'pyarrow'}. {_HOW}")
    # The first is of 3.5, the second of 4.0 and newer.
    versions = re.search(
        r"Python in worker has different version:? \(?(\d+)(?:, |\.)(\d+)\)? than that in driver:? (\d+\.\d+)", text
    )
    if versions:
        there = f"{versions[1]}.{versions[2]}"
        return MissingExtra(f"{_WANTED}; theirs is {there}, the driver's is {versions[3]}. {_HOW}")
    program = re.search(r"Cannot run program \"([^\"]*)\"", text)
    if program:
        return MissingExtra(f"{_WANTED}; there is no program {program[1]}. {_HOW}")
    return None
