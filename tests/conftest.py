"""What every test stands on: an environment that touches nobody's real home, account or telemetry."""

import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from hypothesis import HealthCheck, settings

from support.tmpfs import in_memory

if TYPE_CHECKING:
    from support.azurite import AzureServer
    from support.gcs_server import GcsServer
    from support.s3_server import S3Server

# Until all is imported and collected, which nothing of is garbage; then `pytest_collection_finish` goes on.
gc.disable()

settings.register_profile(
    "ci",
    deadline=None,
    # In CI always the same few examples: what luck finds elsewhere refuses no change that has not made it.
    derandomize="CI" in os.environ,
    max_examples=15 if "CI" in os.environ else 50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Else each run rewrites all assertions, and each of some hundred processes that tests start compiles the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell that starts something in the background has it ignore Ctrl-C, and so do all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_"))]:
    del os.environ[name]
# Before anything imports boto3, Spark or Dagster: a test that wants another value sets it with monkeypatch.
os.environ.update(
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    AWS_EC2_METADATA_DISABLED="true",  # else a client without credentials waits for an address that never answers
    AWS_DEFAULT_REGION="us-east-1",
    AZURE_MSI_ENDPOINT="http://127.0.0.1:9",  # nor is anybody else asked for the identity of this machine
    GCE_METADATA_HOST="127.0.0.1:9",
    GCE_METADATA_ROOT="127.0.0.1:9",
    GCE_METADATA_IP="127.0.0.1:9",
    PYSPARK_PYTHON=sys.executable,
    SPARK_LOCAL_IP="127.0.0.1",
    # Queries over a handful of rows spend most of their time in the compiler: with its first tier alone, half the time.
    SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    NO_COLOR="1",
)
if (place := in_memory()) is not None:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(place)  # of tmp_path
    os.environ["TMPDIR"] = tempfile.tempdir = str(place)  # of Dagster, Spark and whatever else tests start
for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
    os.environ.pop(name, None)


@pytest.fixture(autouse=True, scope="session")
def dagster_home() -> Iterator[Path]:
    """A Dagster home for this test process alone, with telemetry off."""
    with tempfile.TemporaryDirectory(prefix="dagster-home-") as folder:
        home = Path(folder)
        (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        before = os.environ.get("DAGSTER_HOME")
        os.environ["DAGSTER_HOME"] = folder
        yield home
        if before is None:
            del os.environ["DAGSTER_HOME"]
        else:
            os.environ["DAGSTER_HOME"] = before


@pytest.fixture(autouse=True, scope="session")
def migrations_of_dagster() -> Iterator[None]:
    """Have the scripts that migrate Dagster's databases, some hundred, run once and not for each instance."""
    read = ScriptDirectory.from_config
    kept: dict[str | None, ScriptDirectory] = {}

    def from_config(config: Config) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in kept:
            kept[place] = read(config)
        return kept[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", from_config)
        yield


@pytest.fixture(scope="session")
def s3_server() -> Iterator["S3Server"]:
    """A real S3 server, one for all tests of a process."""
    from support.s3_server import running_s3_server

    with running_s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator["S3Server"]:
    """S3 as moto imitates it, one for all tests of a process."""
    from support.s3_server import running_moto_server

    with running_moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator["AzureServer"]:
    """Azure's blob storage, one for all tests of a process; its key is in the environment meanwhile."""
    from support.azurite import running_azurite

    with running_azurite() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator["GcsServer"]:
    """Google Cloud Storage as these tests imitate it, one for all of a process; its key is in the environment."""
    from support.gcs_server import running_gcs_server

    with running_gcs_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


_cases: Counter[str] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of the cases of a test that is marked ``every(n)``, only each n-th one stays fast, of those that are not slow.

    What takes the session of Spark is a test of Spark, whether it says so or not.
    """
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)
    every = item.get_closest_marker("every")
    if every is not None and item.get_closest_marker("slow") is None:
        test = item.nodeid.partition("[")[0]
        if _cases[test] % every.args[0]:
            item.add_marker(pytest.mark.slow)
        _cases[test] += 1


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what was imported and collected, which it would visit all the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1_000)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have one worker run all tests of Spark, so that there is one JVM.

    What xdist 3.8 does for its groups it does to a node id that pytest 9.2 does not read any more.
    """
    if getattr(config.option, "loadgroup", False):
        for item in items:
            if item.get_closest_marker("spark") is not None:
                item._id = type(item.id).parse(f"{item.nodeid}@spark")
