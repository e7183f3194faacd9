"""Errors that were raised in Spark's tasks: those of this package, and what executors lack to run it."""

import re
import sys

import dagster_versioned.errors as errors
from dagster_versioned.errors import MissingExtra, VersionedError

OLDEST_ARROW = 14

_DRIVER = f"{sys.version_info.major}.{sys.version_info.minor}"
_WANTED = (
    f"Spark's executors need a Python of the driver's minor version ({_DRIVER}), with pyarrow {OLDEST_ARROW} or newer "
    "and numpy"
)
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
    return lacking(text)


def as_raised(error: Exception) -> tuple[str, str]:
    """The class and the message of what was raised; where it is Py4J's error, of what a task raised in the JVM."""
    text = str(error)
    what = r"([\w.$]+): (.*?)(?=\n\s+at |\Z)"
    in_task = re.search(rf"executor [\w.-]+\): {what}", text, re.DOTALL)
    found = in_task or re.search(rf"^: {what}", text, re.DOTALL | re.MULTILINE)
    if type(error).__name__ != "Py4JJavaError" or found is None:
        return type(error).__name__, text
    return found[1].rpartition(".")[2], found[2]


def lacking(text: str, where: str = "", *, surely: bool = False) -> MissingExtra | None:
    """What executors lack, by the text of Spark's error; ``where`` says which Python it is.

    ``surely``: that no other fault can have ended the task.
    """
    if missing := re.search(r"No module named '(pyarrow|numpy)'", text):
        return _missing(f"there is no {missing[1]}", where)
    # PySpark has a floor of its own, which some of its functions ask for.
    if floor := re.search(r"PyArrow >= ([\d.]+) must be installed(?:; however, your version was ([\d.]+))?", text):
        found = f"PySpark wants {floor[1]} for this, and found {floor[2]}" if floor[2] else "there is no pyarrow"
        return _missing(found, where)
    if program := re.search(r"Cannot run program \"([^\"]*)\"", text):
        return _missing(f"there is no program {program[1]}", where)
    # The first is of 3.5, the second of 4.0 and newer.
    versions = re.search(
        r"Python in worker has different version:? \(?(\d+)(?:, |\.)(\d+)\)? than that in driver:? (\d+\.\d+)", text
    )
    if versions:
        return _missing(f"theirs is {versions[1]}.{versions[2]}", where)
    if not surely:
        return None
    # The worker's own last words, else Spark's first.
    words = re.findall(r"^(?:: )?(?:\w+\.)*(\w*(?:Error|Exception): .*)$", text.partition("\n\tat ")[0], re.MULTILINE)
    return _missing(f"theirs cannot run a task: {(words[-1:] or text.splitlines())[0].rstrip('.'):.200}", where)


def too_old(host: str, version: str, where: str = "") -> MissingExtra:
    """What an executor says whose pyarrow is too old."""
    return _missing(f"{host} has pyarrow {version}", where)


def _missing(what: str, where: str) -> MissingExtra:
    return MissingExtra(" ".join(filter(None, (f"{_WANTED}; {what}.", _HOW, where))))
