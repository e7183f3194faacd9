"""``dagster dev`` as a user starts it: its daemon, its UI, its processes; and waits that say what they are for."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

PATIENCE = 240.0
"""Seconds."""

Found = TypeVar("Found")

_RELOAD = """
mutation ($name: String!) {
  reloadRepositoryLocation(repositoryLocationName: $name) {
    __typename
    ... on WorkspaceLocationEntry { locationOrLoadError { __typename ... on PythonError { message } } }
  }
}"""


@dataclass(frozen=True)
class DagsterDev:
    """One that runs: where its UI is, and what its processes wrote."""

    url: str
    log: Path
    process: "subprocess.Popen[bytes]"

    def wait_for(self, look: Callable[[], Found | None], what: str, seconds: float = PATIENCE) -> Found:
        """What ``look`` finds, once it finds something; ends at once where this does."""

        def alive() -> Found | None:
            assert self.process.poll() is None, f"dagster dev has ended while {what} was waited for:\n{self.tail}"
            return look()

        try:
            return wait_for(alive, what, seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the end of {self.log}:\n{self.tail}") from None

    @property
    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-3000:]

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        """What the UI's GraphQL answers."""
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            answer: dict[str, Any] = json.load(response)
        assert not answer.get("errors"), answer
        return answer["data"]

    def reload(self, location: str) -> None:
        """Load the code of a location anew, as its button in the UI does."""
        found = self.query(_RELOAD, name=location)["reloadRepositoryLocation"]
        loaded = found.get("locationOrLoadError") or {}
        assert loaded.get("__typename") == "RepositoryLocation", found


@contextmanager
def dagster_dev(
    *code: str, log: Path, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[DagsterDev]:
    """``dagster dev`` with this code (``-m …``, ``-f …``), on a free port, from when its UI answers.

    When the block ends, however it does, all of its processes are killed at once, with the runs that they execute.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [tool("dagster"), "dev", *code, "-h", "127.0.0.1", "-p", str(port)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    dev = DagsterDev(f"http://127.0.0.1:{port}", log, process)
    try:
        dev.wait_for(lambda: _answers(dev.url), "its UI")
        yield dev
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself, and all that it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def tool(name: str) -> str:
    """A command installed beside this Python."""
    return str(Path(sys.executable).parent / name)


def wait_for(look: Callable[[], Found | None], what: str, seconds: float = PATIENCE) -> Found:
    """What ``look`` finds, once it finds something. Raises `TimeoutError`, which says for what."""
    until = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.5)
    return found
