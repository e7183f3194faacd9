"""The smart transfer protocol on real sockets: this package's server, and another that a test may have lie.

The other server knows kamu's messages (kamu-cli at f95532386, `smart_protocol/messages.rs`) and nothing of this package
but its decoder of blocks. Its sockets are those of `websockets`' own threads.
"""

import io
import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from dagster_versioned.odf.blocks.block import decode_block
from dagster_versioned.odf.sharing.remote import files_of
from dagster_versioned.odf.sharing.serve import server
from dagster_versioned.storage import ObjectStore

Json = dict[str, Any]
Lie = Callable[[Any], Any]


@dataclass
class Running:
    """A server of a dataset: where it is, and the lines of its log."""

    url: str
    log: list[str] = field(default_factory=list)
    connections: ExitStack = field(default_factory=ExitStack)

    @property
    def smart(self) -> str:
        return f"odf+{self.url}"

    def asked(self, verb: str, folder: str = "") -> list[str]:
        """The paths below a folder that were asked for, by a verb of HTTP."""
        found = [re.search(rf'"{verb} (/{folder}\S*) ', line) for line in self.log]
        return [one[1] for one in found if one is not None]


@contextmanager
def serving(store: ObjectStore, **options: Any) -> Iterator[Running]:
    """This package's server of a dataset's folder, on a free port."""
    found = Running("")
    with server(store, port=0, log=found.log.append, **options) as running, found.connections:
        found.url = f"http://127.0.0.1:{running.server_address[1]}"
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield found


@dataclass
class Peer:
    """A smart server of a folder; each of ``lies`` changes what it sends: ``answer``, ``blocks``, ``ways``, ``file``.

    ``say`` replaces the whole conversation; ``reject`` is the answer to the handshake.
    """

    folder: Path
    lies: dict[str, Lie] = field(default_factory=dict)
    say: Callable[[ServerConnection], object] | None = None
    reject: Callable[[ServerConnection], Response] | None = None
    heard: list[Json] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    base: str = ""

    def chain(self, after: str | None, until: str | None) -> list[str] | None:
        """The names of blocks, the oldest first."""
        name = until or (self.folder / "refs/head").read_text()
        found: list[str] = []
        while name != after:
            found.insert(0, name)
            before = decode_block((self.folder / "blocks" / name).read_bytes()).prev_block_hash
            if before is None:
                return found if after is None else None
            name = str(before)
        return found

    def converse(self, connection: ServerConnection) -> None:
        if self.say is not None:
            self.say(connection)
            return
        self.heard.append(asked := json.loads(connection.recv()))
        names = self.chain(asked["begin_after"], asked["stop_at"])
        if names is None:
            refusal = {
                "InvalidInterval": {"head": (self.folder / "refs/head").read_text(), "tail": asked["begin_after"]}
            }
            connection.send(json.dumps(self.answered("answer", {"Err": refusal})))
            return
        blocks = {name: (self.folder / "blocks" / name).read_bytes() for name in names}
        files = [file for data in blocks.values() for file in files_of(decode_block(data))]
        plan = {
            "num_blocks": len(blocks),
            "num_objects": len(files),
            "num_records": 0,
            "bytes_in_raw_blocks": sum(map(len, blocks.values())),
            "bytes_in_raw_objects": sum(file.size for file in files),
        }
        connection.send(json.dumps(self.answered("answer", {"Ok": {"transfer_plan": plan}})))
        assert json.loads(connection.recv()) == {}
        connection.send(json.dumps(self.answered("blocks", {"blocks": batch(list(blocks.items()))})))
        for message in connection:
            self.heard.append(asked := json.loads(message))
            ways = [self.way(one) for one in asked["object_files"]]
            connection.send(json.dumps(self.answered("ways", {"object_transfer_strategies": ways})))

    def way(self, file: Json) -> Json:
        folder = {"DataSlice": "data", "Checkpoint": "checkpoints"}[file["object_type"]]
        url = {"url": f"{self.base}/{folder}/{file['physical_hash']}", "headers": [], "expires_at": None}
        return {"object_file": file, "pull_strategy": "HttpDownload", "download_from": url}

    def answered(self, what: str, truth: Any) -> Any:
        return self.lies[what](truth) if what in self.lies else truth

    def files(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if request.path in ("/pull", "/push"):
            return self.reject(connection) if self.reject is not None else None
        path = self.folder / request.path.lstrip("/")
        if not path.is_file():
            return Response(404, "Not Found", Headers({"Content-Length": "0"}), b"")
        found = self.answered("file", path.read_bytes())
        if isinstance(found, Response):
            return found
        return Response(200, "OK", Headers({"Content-Length": str(len(found)), "Connection": "close"}), found)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address, as a smart server's."""
        with serve(self.converse, "127.0.0.1", 0, process_request=self.files, compression=None, max_size=2**26) as made:
            self.base = f"http://127.0.0.1:{made.socket.getsockname()[1]}"
            threading.Thread(target=made.serve_forever, daemon=True).start()
            try:
                yield f"odf+{self.base}"
            finally:
                made.shutdown()


def batch(members: Sequence[tuple[str, bytes]], kind: bytes = tarfile.REGTYPE) -> Json:
    """The archive of blocks in a message."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed(written.getvalue(), len(members))


def packed(payload: bytes, count: int) -> Json:
    return {"num_blocks": count, "media_type": "application/tar+gzip", "encoding": "raw", "payload": list(payload)}
