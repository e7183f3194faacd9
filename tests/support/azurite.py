"""Azure's blob storage on loopback, for as long as tests need it: Azurite, Microsoft's own emulator, from npm."""

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import pytest

from dagster_versioned.storage import CloudOptions, CloudStore, Location

ACCOUNT = "testaccount"
START_SECONDS = 120
# Small enough that a test of some megabytes is uploaded in blocks.
SMALL_PARTS = CloudOptions(part_bytes=5 * 1024**2)


@dataclass(frozen=True)
class AzureServer:
    """How to reach a running server."""

    endpoint_url: str
    key: str

    @property
    def environment(self) -> dict[str, str]:
        """Where stores look for the key."""
        return {"AZURE_STORAGE_ACCOUNT_KEY": self.key}

    @property
    def sas_token(self) -> str:
        """What lets whoever has it do anything with blobs; a proxy may change the headers of its requests."""
        allowed = {"sp": "rwdlac", "ss": "b", "srt": "co", "se": "2100-01-01T00:00:00Z", "spr": "https,http"}
        version = "2021-08-06"
        lines = [
            ACCOUNT,
            allowed["sp"],
            allowed["ss"],
            allowed["srt"],
            "",
            allowed["se"],
            "",
            allowed["spr"],
            version,
            "",
        ]
        text = "".join(f"{line}\n" for line in lines)
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.key), text.encode(), hashlib.sha256)).decode()
        return urlencode({"sv": version, **allowed, "sig": signature})

    def location(self, container: str, prefix: str = "") -> Location:
        """A place on this server."""
        return Location(type="azure", root=container, prefix=prefix, account=ACCOUNT, endpoint_url=self.endpoint_url)

    def new_container(self) -> str:
        """Create a container with a name of its own."""
        container = f"test-{uuid4().hex[:16]}"
        self._request("PUT", container)
        return container

    def store(self, container: str, prefix: str = "", options: CloudOptions = SMALL_PARTS) -> CloudStore:
        """The store at a place on this server; the key is taken from the environment."""
        return CloudStore(self.location(container, prefix), options=options)

    def _request(self, method: str, container: str) -> None:
        """Azure's REST interface, for which obstore has no word: containers are made by whoever owns the account."""
        date, version = formatdate(usegmt=True), "2021-08-06"
        headers = f"x-ms-date:{date}\nx-ms-version:{version}\n"
        resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        text = f"{method}\n\n\n\n\n\n\n\n\n\n\n\n{headers}{resource}"
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.key), text.encode(), hashlib.sha256)).decode()
        connection = HTTPConnection(urlsplit(self.endpoint_url).netloc, timeout=30)
        connection.request(
            method,
            f"/{ACCOUNT}/{container}?restype=container",
            headers={
                "x-ms-date": date,
                "x-ms-version": version,
                "Content-Length": "0",
                "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            },
        )
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 201:
            raise RuntimeError(f"Azurite answered {answer.status}: {body[:500]!r}")


def azurite_program() -> Path:
    """What `make azurite` installs beside the interpreter, or npm for the machine; skips the test without either."""
    beside = Path(sys.prefix, "azurite", "node_modules", ".bin", "azurite-blob")
    found = str(beside) if beside.exists() else shutil.which("azurite-blob")
    if not found:
        pytest.skip("Azurite is not installed; `make azurite` does so, with npm")
    return Path(found)


@contextmanager
def running_azurite() -> Iterator[AzureServer]:
    """Start a server with fresh data and a fresh key on a free port; end it, and remove its data, at exit."""
    program = azurite_program()
    key = base64.b64encode(os.urandom(64)).decode()
    with socket.socket() as free, tempfile.TemporaryDirectory(prefix="azurite-") as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    str(program),
                    "--blobHost",
                    "127.0.0.1",
                    "--blobPort",
                    str(port),
                    "--location",
                    folder,
                    "--skipApiVersionCheck",
                    "--disableTelemetry",
                    "--silent",
                ],
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait(port, process, log)
            yield AzureServer(f"http://127.0.0.1:{port}/{ACCOUNT}", key)
        finally:
            process.kill()
            process.wait()


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"Azurite did not start within {START_SECONDS} s (exit code {process.poll()}):\n{tail}")
