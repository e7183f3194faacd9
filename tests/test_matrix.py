"""What was tested together is on its page as it was recorded, and whoever hosts the project tests the same."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / ".ci" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["matrix"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(matrix: ModuleType) -> None:
    assert matrix.PAGE.read_text("utf-8") == matrix.page(matrix.read_results()), "run: .ci/matrix.py --render"


def test_the_workflow_has_a_job_for_each_combination(matrix: ModuleType) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    jobs = workflow["jobs"]
    named = jobs["combinations"]["strategy"]["matrix"]["combination"]
    assert [*named, "newest"] == list(matrix.COMBINATIONS)
    assert jobs["newest"]["steps"][-1]["run"] == ".ci/run"


def test_a_report_is_counted_by_its_ends(matrix: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase name='a'/><testcase name='b'><failure/></testcase>"
        "<testcase name='c'><error/></testcase><testcase name='d'><skipped message='no npm'/></testcase>"
        "</testsuite></testsuites>"
    )
    found = matrix.count(report)
    assert found == {"passed": 1, "failed": 2, "skipped": 1, "skips": {"no npm": 1}}
