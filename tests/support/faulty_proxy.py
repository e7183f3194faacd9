"""An HTTP proxy before a server of S3, Azure or Google that loses, delays, cuts and forges answers on demand."""

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

PASS = "pass"
DROP_BEFORE = "drop before"  # the connection ends, the server saw nothing
DROP_AFTER = "drop after"  # the server did it, the answer is lost
FAIL_AFTER = "fail after"  # the server did it, a gateway says 500
HANG = "hang"  # no answer within the client's patience
CUT = "cut"  # half of the body, then the end
NO_CONDITION = "no condition"  # the server does not see what it is to be asked
NO_METADATA = "no metadata"  # as FAIL_AFTER, and the server does not keep the object's metadata
_UNSEEN = {NO_METADATA: ("x-amz-meta",), NO_CONDITION: ("if-none-match", "if-match", "x-goog-if-")}

Fault = str | tuple[int, str]


def answer(status: int, code: str) -> tuple[int, str]:
    """A fault that answers for the server, in S3's words."""
    return status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"


class FaultyProxy:
    """What is to happen to the next requests, and which were seen."""

    def __init__(self, server_url: str) -> None:
        self.server = urlsplit(server_url)
        self.endpoint_url = ""
        self.meanwhile: Callable[[], object] | None = None
        self._lock = Lock()
        self.set()

    def set(self, *faults: Fault, for_ever: bool = False, on: Callable[[str, str], bool] | None = None) -> None:
        """Give each coming request that ``on`` takes the next of ``faults``; ``for_ever``: the last again and again."""
        self.seen: list[str] = []
        self._faults, self._for_ever, self._on = list(faults), for_ever, on

    def next(self, method: str, path: str) -> Fault:
        with self._lock:
            self.seen.append(method)
            if not self._faults or (self._on and not self._on(method, path)):
                return PASS
            return self._faults[0] if self._for_ever and len(self._faults) == 1 else self._faults.pop(0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy  # set on a subclass per proxy

    def log_message(self, *arguments: object) -> None: ...

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.next(self.command, self.path)
        if isinstance(fault, tuple):
            self.reply(fault[0], {"Content-Type": "application/xml"}, fault[1].encode())
        elif fault in (DROP_BEFORE, HANG):
            time.sleep(1.5 if fault == HANG else 0)
            if self.proxy.meanwhile:
                self.proxy.meanwhile()
            self.drop()
        else:
            self.forward(fault, body)

    def forward(self, fault: Fault, body: bytes) -> None:
        dropped = _UNSEEN.get(fault, ())
        status, headers, content = self.ask(body, ("expect", *dropped))
        if fault == DROP_AFTER:
            self.drop()
        elif fault in (FAIL_AFTER, NO_METADATA):
            self.reply(500, {}, answer(500, "InternalError")[1].encode())
        elif fault == CUT:
            self.reply(status, headers, content[: len(content) // 2], promised=len(content))
            self.drop()
        else:
            self.reply(status, headers, content)

    def ask(self, body: bytes, dropped: tuple[str, ...]) -> tuple[int, dict[str, str], bytes]:
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith(dropped)}
        connection = http.client.HTTPConnection(self.proxy.server.hostname or "", self.proxy.server.port)
        connection.request(self.command, self.path, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        kept = {name: value for name, value in response.getheaders() if name.lower() not in _OF_THE_CONNECTION}
        return response.status, kept, content

    def drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    def reply(self, status: int, headers: dict[str, str], body: bytes, promised: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if self.command == "HEAD" or name.lower() != "content-length":
                self.send_header(name, value)
        if self.command == "HEAD":
            body = b""
        else:
            self.send_header("Content-Length", str(len(body) if promised is None else promised))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


_OF_THE_CONNECTION = ("connection", "transfer-encoding")
for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.handle_any)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A dropped connection is what was asked for."""


@contextmanager
def faulty_proxy(server_url: str) -> Iterator[FaultyProxy]:
    """Run a proxy before the server at ``server_url`` on a free port."""
    proxy = FaultyProxy(server_url)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    proxy.endpoint_url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
