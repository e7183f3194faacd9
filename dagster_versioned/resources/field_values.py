"""What the fields of resources hold before a run: values, or the names of environment variables that will hold them."""

import dagster as dg

_VARIABLES = (dg.EnvVar, type(dg.EnvVar.int("_")))  # the second class has no public name


def is_variable(value: object) -> bool:
    """Whether it stands for an environment variable, which has no value before a run.

    To be asked of what a ``mode="wrap"`` validator is given: pydantic makes plain text of a variable, its name.
    """
    return isinstance(value, _VARIABLES)
