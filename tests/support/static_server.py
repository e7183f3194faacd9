"""HTTP servers on loopback: Python's own for a folder, and one that answers as a test says."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

START_SECONDS = 30


@contextmanager
def static_server(folder: Path, log: Path | None = None) -> Iterator[str]:
    """The URL of ``python -m http.server`` over a folder; what it says of requests goes to ``log``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    with (log or Path(os.devnull)).open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(START_SECONDS)


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"no server at port {port}")


class Request(BaseHTTPRequestHandler):
    """A request that a test answers with `reply`, or by itself."""

    respond: Callable[["Request"], None]  # set on a subclass per server

    def log_message(self, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        type(self).respond(self)

    def do_HEAD(self) -> None:
        self.do_GET()

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send an answer; ``_`` in the names of headers stands for ``-``."""
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def answering(respond: Callable[[Request], None]) -> Iterator[str]:
    """The URL of a server that calls ``respond`` for each request; a client that hangs up is no error."""
    handler = type("Handler", (Request,), {"respond": staticmethod(_forgiving(respond))})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _forgiving(respond: Callable[[Request], None]) -> Callable[[Request], None]:
    def run(request: Request) -> None:
        try:
            respond(request)
        except (BrokenPipeError, ConnectionResetError):
            request.close_connection = True

    return run
