"""A cluster of Spark on loopback, made by the commands of ``docs/how-to/spark-clusters.md``: the real processes."""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from support.how_to import blocks
from support.s3_server import free_ports

PAGE = "how-to/spark-clusters.md"
ROOT = Path(__file__).parents[2]
START_SECONDS = 120
ARROW = ("pyarrow==14.*", "numpy<2")
"""The oldest that executors may have."""


def python_of_executors(folder: Path, *packages: str) -> Path:
    """A Python with these packages and nothing else, made as the page makes one."""
    shown = {
        "python3.11": sys.executable,
        "/opt/python": str(folder),
        '"pyarrow>=14" numpy boto3': shlex.join(packages),
    }
    for line in blocks(PAGE, "Standalone", "bash", shown)[0].splitlines():
        words = shlex.split(line)
        if words[-1] == "install":
            continue  # there are no packages
        subprocess.run(words, check=True, capture_output=True, env=_environment(), timeout=600)
    return folder / "bin" / "python"


@dataclass(frozen=True)
class Cluster:
    """A master with two workers, whose ``python3`` has nothing installed."""

    master: str
    folder: Path

    def driver(self, program: str, *arguments: str, **environment: str) -> str:
        """What a program prints, in a process and with a session of its own."""
        env = _environment(PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]), **environment)
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:] + self.logs()
        return done.stdout

    def logs(self) -> str:
        """The ends of what its processes have written."""
        logs = (*self.folder.glob("*.log"), *self.folder.glob("worker*/*/*/stderr"))
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a master and two workers, each a process; end them at exit."""
    port, ui = free_ports(2)
    shown = {
        "--host master --port 7077": f"--host 127.0.0.1 --port {port}",
        "spark://master:7077": f"spark://127.0.0.1:{port}",
    }
    master, worker = blocks(PAGE, "Standalone", "bash", shown)[1].splitlines()
    with ExitStack() as running:
        running.enter_context(_running([*shlex.split(master), "--webui-port", str(ui)], folder / "master.log"))
        _wait(f"http://127.0.0.1:{ui}/json/", lambda state: state["status"] == "ALIVE")
        python = python_of_executors(folder / "nothing")
        bare = {"PATH": os.pathsep.join([str(python.parent), _environment()["PATH"]])}
        bare["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # which their python3 does not know
        for number in (1, 2):
            command = [*shlex.split(worker), "--host", "127.0.0.1", "--work-dir", str(folder / f"worker{number}")]
            running.enter_context(_running(command, folder / f"worker{number}.log", **bare))
        _wait(f"http://127.0.0.1:{ui}/json/", lambda state: state["aliveworkers"] == 2)
        yield Cluster(f"spark://127.0.0.1:{port}", folder)


@contextmanager
def connect_server(folder: Path, master: str, python: Path, **environment: str) -> Iterator[str]:
    """Start a server of Spark Connect on a master, whose tasks run by this Python; yields its URL."""
    (port,) = free_ports(1)
    shown = {"spark://master:7077": master, "15002": str(port), "/opt/python/bin/python": str(python)}
    start = blocks(PAGE, "Spark Connect", "bash", shown)[0].splitlines()[1]
    words = shlex.split(start)
    command = words[words.index("spark-submit") :]
    variables = dict(each.split("=", 1) for each in words[: -len(command)])
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    command[-1:-1] = [word for setting in settings.items() for word in ("--conf", "=".join(setting))]
    log = folder / "connect.log"
    with _running(command, log, **variables, **environment):
        _wait_for(lambda: _answers(port), lambda: log.read_text(errors="replace")[-2000:])
        yield f"sc://127.0.0.1:{port}"


def _environment(**more: str) -> dict[str, str]:
    """That of this process without what a cluster must not find: this package, and which Python runs the tests."""
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON", "SPARK_MASTER", "SPARK_REMOTE")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**env, **more}


@contextmanager
def _running(command: Sequence[str], log: Path, **environment: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, env=_environment(**environment), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, is_ready: Callable[[dict[str, Any]], bool]) -> None:
    def ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return is_ready(json.load(answer))
        except OSError:
            return False

    _wait_for(ready, lambda: url)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_for(ready: Callable[[], bool], describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        assert time.monotonic() < deadline, f"not ready in {START_SECONDS} s: {describe()}"
        time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of a process; each driver has its executors for itself, so one runs after the other."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def arrow_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of executors that share the project's folder."""
    return python_of_executors(tmp_path_factory.mktemp("python") / "arrow", *ARROW)


@pytest.fixture(scope="session")
def arrow_and_boto3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of executors of a project on S3."""
    return python_of_executors(tmp_path_factory.mktemp("python") / "s3", *ARROW, "boto3")
