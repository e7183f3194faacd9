"""What is installed without extras works alone, and what is missing is named with the extra that brings it."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
FOR_DEVELOPERS = {"all", "example", "s3-tests", "screenshots", "docs", "tests", "dev"}
FOR_USERS = EXTRAS.keys() - FOR_DEVELOPERS

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

ON_SPARK = """
import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame
from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager

@dg.asset
def numbers() -> pa.Table:
    return pa.table({"n": [1, 2, None], "nested": [{"a": [1]}, None, {"a": []}], "word": ["a", "b", "c"]})

@dg.asset
def doubled(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("2 * n AS n", "nested", "upper(word) AS word")

project = ProjectResource(name="SPARK", location="warehouse")
for _ in range(2):
    dg.materialize([numbers, doubled], resources={"io_manager": VersionedParquetIOManager(project=project)})
table = Project.open("SPARK", "warehouse").table("doubled")
print(*(version.change for version in table.history()), sorted(table.read()["word"].to_pylist()))
"""

DEFAULT_ENGINE = """
from dagster_versioned import ProjectResource
ProjectResource(name="P", location="warehouse", default_engine={!r}).frame_type()
"""
OPEN_LINEAGE = """
import dagster as dg, pyarrow as pa
from dagster_versioned import OpenLineageResource, ProjectResource, VersionedParquetIOManager

@dg.asset
def one():
    return pa.table({"n": [1]})

project = ProjectResource(name="P", location="lineage")
manager = VersionedParquetIOManager(project=project, open_lineage=OpenLineageResource())
try:
    dg.materialize([one], resources={"io_manager": manager})
except dg.DagsterResourceFunctionError as error:
    import os
    assert not os.path.exists("lineage")
    raise error.user_exception
"""

# What each extra is for, where it is missing. Nothing of the package needs `ui`: Dagster starts its web server itself.
MISSING = {
    "spark": "from dagster_versioned.engines.spark import default_session\ndefault_session()",
    "connect": "import os; os.environ['SPARK_REMOTE'] = 'sc://localhost'\n"
    "from dagster_versioned.engines.spark import default_session\ndefault_session()",
    "pandas": DEFAULT_ENGINE.format("pandas"),
    "polars": DEFAULT_ENGINE.format("polars"),
    "s3": "from dagster_versioned import Project\nProject.open('P', 's3://bucket/prefix?region=us-east-1')",
    "gcs": "from dagster_versioned import Project\nProject.open('P', 'gs://bucket/prefix')",
    "azure": "from dagster_versioned import Project\nProject.open('P', 'az://container/prefix?account=account')",
    "odf": "from dagster_versioned.odf.identity.signing_key import SigningKey\nprint(SigningKey(bytes(32)).dataset_id)",
    "serve": "from dagster_versioned.odf.sharing.serve import server",
    "attest": "from dagster_versioned.proof.keys import PrivateKey\nPrivateKey.generate()",
    "kms": "from dagster_versioned.proof.keys import open_signer\nopen_signer('awskms:alias/release')",
    "openlineage": OPEN_LINEAGE,
}

WITHOUT_EXTRAS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "boto3", "cryptography", "dagster_pyspark", "flatbuffers", "grpc", "obstore", "openlineage", "pandas",
            "polars", "py4j", "pyspark", "securesystemslib", "starlette", "uvicorn", "websockets",
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""

CONNECT_WITHOUT_GRPC = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "grpc":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from dagster_versioned.engines.spark import default_session
from dagster_versioned.errors import MissingExtra
try:
    default_session()
except MissingExtra as error:
    print(error)
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    builder = new_python(tmp_path_factory.mktemp("builder"), *PROJECT["build-system"]["requires"])
    run(builder, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder, cwd=ROOT)
    (found,) = folder.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as whoever installs from a registry without it builds it: from the sdist."""
    return built(sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the package and what it requires, and nothing else."""
    return new_python(tmp_path_factory.mktemp("base"), wheel)


def new_python(folder: Path, *requirements: object) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", *requirements)
    return python


def built(source: Path, folder: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, source)
    (found,) = folder.glob("*.whl")
    return found


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "PYSPARK"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_extra_has_its_case_and_its_place_in_the_docs():
    assert MISSING.keys() == FOR_USERS - {"ui"}
    (everything,) = EXTRAS["all"]
    assert set(everything.partition("[")[2].rstrip("]").split(",")) == FOR_USERS
    readme = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^pip install .*\[(.*)\]'(.*)$", readme, re.MULTILINE)
    assert line[0].startswith("spark,")
    assert set(re.findall(r"\w+", " ".join(line))) - {"also", "all"} == FOR_USERS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sdist_holds_all_that_make_needs_and_its_wheel_what_the_tree_s_has(
    sdist: Path, wheel: Path, tmp_path: Path
):
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    assert not [name for name, member in members.items() if not member.isfile()]
    assert members.keys() >= {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"}
    assert members.keys() >= {"Makefile", "constraints.txt", "mkdocs.yml", ".ci/matrix.py", "docs/index.md"}
    folders = {name.partition("/")[0] for name in members if "/" in name}
    assert folders == {".ci", "benchmarks", "dagster_versioned", "docs", "example_project", "tests"}
    tree = built(ROOT, tmp_path)
    with zipfile.ZipFile(wheel) as from_sdist, zipfile.ZipFile(tree) as from_tree:
        assert sorted(from_sdist.namelist()) == sorted(from_tree.namelist())
        (licence,) = [name for name in from_sdist.namelist() if name.endswith("/LICENSE")]
        assert from_sdist.read(licence) == (ROOT / "LICENSE").read_bytes()
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("dagster_versioned/**/*.py")}
    assert modules == {name for name in members if re.fullmatch(r"dagster_versioned/.*\.py", name)}


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
def test_spark_needs_no_other_extra(wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    python = new_python(tmp_path_factory.mktemp("spark"), f"{wheel}[spark]")
    assert run(python, "-c", ON_SPARK, cwd=tmp_path) == "full ['A', 'B', 'C']\n"


def test_without_extras_every_public_name_is_imported_and_a_table_is_written_and_read(tmp_path: Path):
    program = WITHOUT_EXTRAS + BASE
    assert run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(ROOT)) == "full\n"


@pytest.mark.parametrize(
    ("absent", "code", "who"),
    [
        ("pyspark", DEFAULT_ENGINE.format("spark"), "default_engine='spark' of a project"),
        (
            "dagster_pyspark",
            "from dagster_versioned.components.project import PySparkSettings; PySparkSettings().resource()",
            "A component with pyspark:",
        ),
    ],
)
def test_what_names_spark_without_a_session_names_the_extra_too(absent: str, code: str, who: str) -> None:
    hidden = f"import sys; sys.modules[{absent!r}] = None"
    program = f"{hidden}\ntry:\n    exec({code!r})\nexcept Exception as error:\n    print(type(error).__name__, error)"
    said = run(sys.executable, "-c", program, PYTHONPATH=str(ROOT))
    assert said.startswith(f"MissingExtra {who} needs {absent}, which is not installed here.")
    assert "pip install 'dagster-versioned[spark]'" in said


@pytest.mark.spark
def test_what_spark_connect_lacks_beside_pyspark_is_named():
    said = run(sys.executable, "-c", CONNECT_WITHOUT_GRPC, PYTHONPATH=str(ROOT), SPARK_REMOTE="sc://localhost")
    assert re.match(r"A session of Spark Connect needs grpc.*\. .*dagster-versioned\[connect\]", said), said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("extras", "beside"),
    [
        ("pandas", "dagster-dbt"),
        ("pandas", "dagster-aws"),
        ("pandas", "dagster-databricks"),
        ("pandas", "awswrangler"),
        ("pandas", "databricks-connect"),
        ("spark,pandas", "dagster-dbt"),
        ("spark,pandas", "dagster-aws"),
    ],
)
def test_it_resolves_beside_what_teams_run(wheel: Path, extras: str, beside: str) -> None:
    chosen = resolved(f"{wheel}[{extras}]", beside)
    assert {"dagster-versioned", "dagster", "pyarrow", beside} <= chosen.keys()
    # databricks-connect is a pyspark itself, and another one beside it breaks both; dagster-databricks requires it.
    assert ("pyspark" in chosen) == ("spark" in extras or beside == "dagster-databricks")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_resolves_beside_databricks_connect_with_numpy_1(wheel: Path) -> None:
    assert resolved(f"{wheel}[pandas]", "databricks-connect", "numpy<2")["numpy"].startswith("1.")


def resolved(*requirements: str) -> dict[str, str]:
    """The versions that pip would install, by name."""
    said = run(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", *requirements)
    (line,) = re.findall(r"^Would install (.*)$", said, re.MULTILINE)
    return dict(found.rsplit("-", 1) for found in line.split())
