"""A dataset over HTTP, as any server of static files would have it; read only, and for trying it out."""

import re
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import IO

from dagster_versioned.errors import InvalidInput, ObjectNotFound, VersionedError
from dagster_versioned.odf.sharing.remote import CHECKPOINTS, REFERENCES, SIGNED
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.transfer import PIECE_BYTES
from dagster_versioned.tables.chain_head import BLOCKS
from dagster_versioned.tables.parts import SLICES

_SERVED = re.compile(
    rf"{REFERENCES}[a-z0-9-]{{1,63}}(?:{re.escape(SIGNED)})?|(?:{BLOCKS}|{SLICES}|{CHECKPOINTS})[A-Za-z0-9]{{1,200}}"
)


def server(store: ObjectStore, host: str = "127.0.0.1", port: int = 8000) -> ThreadingHTTPServer:
    """A server of a dataset's folder, not started yet: ``serve_forever()``, ``shutdown()``.

    Nothing but references, blocks, slices and checkpoints is served: no log, no listing, nothing that is staged. Raises
    `InvalidInput` for an address at which nothing can listen.
    """
    handler = type("DatasetRequest", (_Request,), {"store": store})
    try:
        return ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise InvalidInput(
            f"Nothing can listen at {host}:{port} ({error.strerror or error}). Nothing is served. Give another address "
            "or port."
        ) from None


class _Request(BaseHTTPRequestHandler):
    store: ObjectStore  # set on a subclass per server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        key = self.path.lstrip("/")
        if not _SERVED.fullmatch(key):
            self.send_error(404)
            return
        try:
            info = self.store.head(key)
        except ObjectNotFound:
            self.send_error(404)
            return
        except VersionedError:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(info.size))
        # A head changes, all else is named by its hash.
        lasts = "no-cache" if key.startswith(REFERENCES) else "public, max-age=31536000, immutable"
        self.send_header("Cache-Control", lasts)
        self.end_headers()
        if with_body:
            for start in range(0, info.size, PIECE_BYTES):
                shutil.copyfileobj(self._piece(key, start), self.wfile)

    def _piece(self, key: str, start: int) -> IO[bytes]:
        return BytesIO(self.store.get_range(key, start, PIECE_BYTES))
