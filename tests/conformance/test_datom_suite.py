"""datom's own suite, from the package index, with stores of ours in the place of its: what its page counts."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from support.archives import unpack
from support.datom_cases import CASES, write_cases
from support.git_identity import isolated_git

pytest.importorskip("datom")

pytestmark = [pytest.mark.conformance, pytest.mark.slow, pytest.mark.timeout(3600)]

NEED_A_SET = {
    "test_kind_is_checked_before_the_data_path_is_built": 1,
    "test_tampered_set_payload_is_refused_before_parsing": 1,
    "test_set_with_empty_document_sha_is_an_error": 1,
    "test_get_set_never_reads_member_data": 1,
    "test_labels_are_always_lists_of_strings": 1,
    "test_untagged_member_has_no_tags": 1,
    "test_malformed_member_is_refused": 5,
    "test_one_element_string_array_in_an_id_is_read_as_that_string": 1,
    "test_members_must_be_a_list": 3,
    "test_member_that_is_a_set_is_not_followed_by_get_set": 1,
    "test_fetch_member_by_member_object": 1,
    "test_fetch_member_from_another_project_says_so": 1,
    "test_unknown_member_kind": 1,
}
"""Its rules that begin with a set, and how many each."""

BACKENDS = ("local", "s3", "s3-prefix")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its source: where ``DATOM_SDIST`` says, else as the package index has it."""
    if given := os.environ.get("DATOM_SDIST"):
        return Path(given)
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "datom==0.1.0"]
    done = subprocess.run([*command, "-d", folder], capture_output=True, text=True, check=False)
    if done.returncode:  # a machine without the package index, where the cases themselves are asked all the same
        pytest.skip(f"datom's source cannot be downloaded here: {done.stderr.strip()[-300:]}")
    unpack(folder / "datom-0.1.0.tar.gz", folder)
    return folder / "datom-0.1.0"


@pytest.fixture(scope="module")
def outcomes(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bool]]:
    """Whether each of its tests passed, by module and name."""
    folder = tmp_path_factory.mktemp("cases")
    with pytest.MonkeyPatch.context() as monkeypatch:
        isolated_git(tmp_path_factory, monkeypatch)
        write_cases(folder / "cases")
    report = folder / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--junitxml={report}", "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=suite,
        env={**environment, "DATOM_READER_CASES": str(folder / "cases")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, dict[str, bool]] = {}
    for case in ET.parse(report).iter("testcase"):
        assert case.find("skipped") is None, case.attrib
        passed = case.find("failure") is None and case.find("error") is None
        found.setdefault(case.attrib["classname"].removeprefix("tests."), {})[case.attrib["name"]] = passed
    return found


def test_its_runner_passes_every_reader_case_on_each_backend(outcomes: dict[str, dict[str, bool]]) -> None:
    cases = {f"test_reader_case[{name}-{backend}]" for name in CASES for backend in BACKENDS}
    others = {"test_every_case_is_run", "test_reading_every_case_writes_nothing"}
    assert outcomes["test_reader_cases"] == dict.fromkeys(cases | others, True)


def test_all_its_rules_hold_but_those_that_begin_with_a_set(outcomes: dict[str, dict[str, bool]]) -> None:
    rules = outcomes["test_rules"]
    assert len(rules) == 77
    assert Counter(name.split("[")[0] for name, held in rules.items() if not held) == NEED_A_SET


@pytest.mark.parametrize("module", ["test_s3", "test_s3_ambient", "test_sso"])
def test_its_connections_pass(outcomes: dict[str, dict[str, bool]], module: str) -> None:
    assert outcomes[module]
    assert all(outcomes[module].values())
