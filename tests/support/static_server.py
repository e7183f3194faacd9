"""HTTP servers on loopback: Python's own for a folder, and one that answers as a test says."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def static_server(folder: Path, log: Path | None = None) -> Iterator[str]:
    """The URL of ``python -m http.server`` over a folder; what it says of requests goes to ``log``."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
    with (
        (log or Path(os.devnull)).open("wb") as output,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True) as server,
    ):
        assert server.stdout is not None
        try:
            said = server.stdout.readline()  # as soon as it listens
            port = re.search(r" port (\d+) ", said)
            assert port, f"no server: {said!r}"
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            server.kill()


class Request(BaseHTTPRequestHandler):
    """A request that a test answers with `reply`, or by itself."""

    respond: Callable[["Request"], None]  # set on a subclass per server

    def log_message(self, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        type(self).respond(self)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
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
def answering(respond: Callable[[Request], None], host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server that calls ``respond`` for each request; a client that hangs up is no error."""
    handler = type("Handler", (Request,), {"respond": staticmethod(_forgiving(respond))})
    server = ThreadingHTTPServer((host, 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
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
