"""What the fields of resources hold before a run: values, or the names of environment variables that will hold them."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import dagster as dg

from dagster_versioned.errors import InvalidInput

T = TypeVar("T")

_VARIABLES = (dg.EnvVar, type(dg.EnvVar.int("_")))  # the second class has no public name


def is_variable(value: object) -> bool:
    """Whether it stands for an environment variable, which has no value before a run.

    To be asked of what a ``mode="wrap"`` validator is given: pydantic makes plain text of a variable, its name.
    """
    return isinstance(value, _VARIABLES)


def unless_variable(check: Callable[[Any], object] = lambda _: None) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """A ``mode="wrap"`` validator: a variable stays one, any other value is what is parsed, if it passes a check."""

    def validated(value: Any, parse: Callable[[Any], Any]) -> Any:
        if is_variable(value):
            return value
        check(parsed := parse(value))
        return parsed

    return validated


def value_of(field: str, value: T) -> T:
    """The value of a field, outside of a run too: of a variable, what the environment holds.

    Within a run Dagster has put values in the place of variables. Raises `InvalidInput`, naming the field and the
    variable, where that is not set.
    """
    if not is_variable(value):
        return value
    variable = cast("dg.EnvVar", value)
    found = variable.get_value()
    if found is None:
        raise InvalidInput(
            f"{field} is the environment variable {variable.env_var_name!r}, which is not set. Nothing was read and "
            f"nothing was written. Set it where this code runs, or give {field} a value."
        )
    return cast("T", found)
