"""What is installed without extras works alone, and what is missing is named with the extra that brings it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BASE = """
import pyarrow as pa
import dagster_versioned
from dagster_versioned import Project

for name in dagster_versioned.__all__:
    getattr(dagster_versioned, name)
table = Project.open("BASE", "warehouse").table("numbers")
rows = pa.table({"n": [1, 2, None], "nested": [{"a": [1]}, None, {"a": []}]})
table.write(rows)
assert table.read().equals(rows)
print(table.history()[0].change)
"""

MISSING = {
    "spark": "from dagster_versioned.engines.spark import default_session\ndefault_session()",
    "s3": "from dagster_versioned import Project\nProject.open('P', 's3://bucket/prefix?region=us-east-1')",
    "odf": "from dagster_versioned.odf.identity.signing_key import SigningKey\nprint(SigningKey(bytes(32)).dataset_id)",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the package and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", wheel)
    return python


def run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_base_imports_every_public_name_and_writes_and_reads_a_table(base: Path, tmp_path: Path) -> None:
    assert run(base, "-c", BASE, cwd=tmp_path) == "full\n"
    assert "Usage" in run(base.parent / "dagster-versioned", "--help")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", sorted(MISSING))
def test_a_missing_extra_is_named(base: Path, tmp_path: Path, extra: str) -> None:
    code = f"try:\n    exec({MISSING[extra]!r})\nexcept Exception as error:\n    print(type(error).__name__, error)"
    said = run(base, "-c", code, cwd=tmp_path)
    assert said.startswith("MissingExtra")
    assert f"pip install 'dagster-versioned[{extra}]'" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "beside", ["dagster-dbt", "dagster-aws", "dagster-databricks", "awswrangler", "databricks-connect"]
)
def test_it_resolves_beside_what_teams_run(wheel: Path, beside: str) -> None:
    said = run(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", f"{wheel}[pandas]", beside)
    assert "Would install" in said
