"""Any sequence of updates of samples leaves what a dictionary holds; the Spark engine has the same test of its own."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from dagster_versioned.projects.project import Project
from support.sample_updates import STEPS, UNIT_COLUMNS, Step, agrees_with_a_dictionary


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, on=UNIT_COLUMNS)
def test_every_version_is_what_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Step], on: tuple[str, ...]
) -> None:
    table = Project.open("P", str(tmp_path_factory.mktemp("any"))).table("samples")
    agrees_with_a_dictionary(table, steps, on, lambda frame: frame)
