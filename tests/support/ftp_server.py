"""A real FTP server on loopback (pyftpdlib), and one that answers as a test has it."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

USER, PASSWORD = "reader", "hunter2"


@contextmanager
def ftp_server(folder: Path) -> Iterator[str]:
    """``host:port`` of a server over a folder, for `USER` with `PASSWORD` and for everybody, who only read."""
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.ioloop import IOLoop
    from pyftpdlib.servers import FTPServer

    authorizer = DummyAuthorizer()
    authorizer.add_user(USER, PASSWORD, str(folder), perm="elr")
    authorizer.add_anonymous(str(folder), perm="elr")
    handler = type("Handler", (FTPHandler,), {"authorizer": authorizer, "auth_failed_timeout": 0})
    loop = IOLoop()
    server = FTPServer(("127.0.0.1", 0), handler, ioloop=loop)
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            loop.loop(timeout=0.05, blocking=False)
        server.close_all()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield "{}:{}".format(*server.address[:2])
    finally:
        stopped.set()
        thread.join()


@contextmanager
def scripted_ftp_server(answers: Sequence[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """``host:port`` of a server that greets with the first of the answers, has the next for each command, and
    then closes; and what it was asked, by all who came."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connected = listening.accept()[0]
                except OSError:
                    return
                with connected, connected.makefile("rb") as commands:
                    try:
                        connected.sendall(answers[0])
                        for answer in answers[1:]:
                            if not (command := commands.readline()):
                                break
                            asked.append(command)
                            connected.sendall(answer)
                    except OSError:
                        pass  # the client has gone

        threading.Thread(target=serve, daemon=True).start()
        yield "{}:{}".format(*listening.getsockname()), asked
        listening.shutdown(socket.SHUT_RDWR)
