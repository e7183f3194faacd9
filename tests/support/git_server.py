"""Git servers on this machine: git's own backend behind http or https, and an ssh that runs what it is asked."""

import base64
import os
import shlex
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread


class GitServer:
    """Serves the bare repositories of a folder; with a ``password``, to ``ada`` alone; not at all while ``hangs``."""

    def __init__(self, root: Path, password: str | None) -> None:
        self.root = root
        self.url = ""
        self.hangs = False
        self.over = Event()
        self.asked = 0
        self.authorization = password and "Basic " + base64.b64encode(f"ada:{password}".encode()).decode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_: GitServer

    def log_message(self, *arguments: object) -> None: ...

    def handle_git(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server_.asked += 1
        if self.server_.hangs:
            self.server_.over.wait(600)
            self.close_connection = True
            return
        expected = self.server_.authorization
        if expected and self.headers.get("Authorization") != expected:
            self.answer(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
            return
        path, _, query = self.path.partition("?")
        environment = {
            **{
                name: os.environ[name]
                for name in ("PATH", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM")
                if name in os.environ
            },
            "GIT_PROJECT_ROOT": str(self.server_.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "ada",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.answer(int(headers.pop("Status", "200").split()[0]), headers, content)

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


for _method in ("GET", "POST"):
    setattr(_Handler, f"do_{_method}", _Handler.handle_git)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what some tests are about."""


@contextmanager
def git_server(root: Path, *, certificate: Path | None = None, password: str | None = None) -> Iterator[GitServer]:
    """Run a server on a free port; over https with the certificate (and key) of a file."""
    git = GitServer(root, password)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_": git}))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    git.url = f"http{'s' if certificate else ''}://localhost:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield git
    finally:
        git.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(folder: Path) -> Path:
    """A certificate for localhost that vouches for itself, with its key, in one file."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    parts = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [*shlex.split(command), "-keyout", parts[0], "-out", parts[1]], check=True, capture_output=True, timeout=60
    )
    both = folder / "both.pem"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    return both


def make_ssh(folder: Path, *, first: str = "") -> str:
    """A command for ``GIT_SSH_COMMAND`` that notes how it was called, does ``first``, and runs here what it was to
    run elsewhere."""
    script = folder / "ssh"
    script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/ssh.log\n{first}\nfor last; do :; done\nexec sh -c "$last"\n')
    script.chmod(0o755)
    return str(script)
