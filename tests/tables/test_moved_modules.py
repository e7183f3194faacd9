"""Modules are found by the names that they had in the release before."""

import importlib
import sys

import pytest

from dagster_versioned.moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_module_is_found_by_its_former_name(old: str, new: str):
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{old}.")]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        found = importlib.import_module(old)
    assert found is importlib.import_module(new)
    assert found.__name__ == found.__spec__.name == new
