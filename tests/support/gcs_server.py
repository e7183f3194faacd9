"""As much of Google Cloud Storage's XML API as its client asks for, in memory, on loopback: made here, not by Google.

What conditional writes stand on is as there: each write gives the object a generation that no other write gives, and
``x-goog-if-generation-match`` is compared in one step with the write. ETags are MD5, as Google's of plain uploads, so
that two generations may have one. Whoever asks is let in.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dagster_versioned.storage import CloudOptions, CloudStore, Location

# Small enough that a test of some megabytes is uploaded in parts.
SMALL_PARTS = CloudOptions(part_bytes=5 * 1024**2)
_METADATA = "x-goog-meta-"
_PAGE = 1000


@cache
def service_account() -> str:
    """A key file with a key of its own, from which the client makes its tokens without asking anybody."""
    private = rsa.generate_private_key(65537, 2048)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return json.dumps({"private_key": pem, "private_key_id": uuid4().hex, "client_email": "tests@example.com"})


class _Object(NamedTuple):
    data: bytes
    etag: str
    generation: int
    modified: datetime
    metadata: dict[str, str]


@dataclass
class GcsServer:
    """How to reach a running server, and what it holds."""

    endpoint_url: str = ""
    buckets: dict[str, dict[str, _Object]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    generations: Iterator[int] = field(default_factory=lambda: count(1_700_000_000_000_000))

    @property
    def environment(self) -> dict[str, str]:
        """Where stores look for the key."""
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": service_account()}

    def new_bucket(self) -> str:
        """Create a bucket with a name of its own."""
        bucket = f"test-{uuid4().hex[:16]}"
        self.buckets[bucket] = {}
        return bucket

    def location(self, bucket: str, prefix: str = "") -> Location:
        """A place on this server."""
        return Location(type="gcs", root=bucket, prefix=prefix, endpoint_url=self.endpoint_url)

    def store(self, bucket: str, prefix: str = "", options: CloudOptions = SMALL_PARTS) -> CloudStore:
        """The store at a place on this server; the key is taken from the environment."""
        return CloudStore(self.location(bucket, prefix), options=options)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_state: GcsServer  # set on a subclass per server

    def log_message(self, *arguments: object) -> None: ...

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path.lstrip("/")).partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        with self.server_state.lock:
            objects = self.server_state.buckets.get(bucket)
            if objects is None:
                answer = _error(404, "NoSuchBucket")
            elif not key:
                answer = _list(objects, query)
            elif self.command == "POST" or "uploadId" in query:
                answer = self.upload(objects, key, query, body)
            elif self.command == "PUT":
                answer = self.put(objects, key, body)
            elif key not in objects:
                answer = _error(404, "NoSuchKey")
            elif self.command == "DELETE":
                del objects[key]
                answer = 204, {}, b""
            else:
                answer = self.read(objects[key])
        self.reply(*answer)

    def put(self, objects: dict[str, _Object], key: str, body: bytes) -> "_Answer":
        found = objects.get(key)
        asked = self.headers.get("x-goog-if-generation-match")
        if asked is not None and int(asked) != (found.generation if found else 0):
            return _error(412, "PreconditionFailed")
        metadata = {name: value for name, value in self.headers.items() if name.lower().startswith(_METADATA)}
        if source := self.headers.get("x-goog-copy-source"):
            bucket, _, origin = unquote(source.lstrip("/")).partition("/")
            copied = self.server_state.buckets.get(bucket, {}).get(origin)
            if copied is None:
                return _error(404, "NoSuchKey")
            body, metadata = copied.data, copied.metadata
        return 200, _headers(self.write(objects, key, body, metadata)), b""

    def write(self, objects: dict[str, _Object], key: str, data: bytes, metadata: dict[str, str]) -> _Object:
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        objects[key] = _Object(data, etag, next(self.server_state.generations), datetime.now(UTC), metadata)
        return objects[key]

    def upload(self, objects: dict[str, _Object], key: str, query: dict[str, str], body: bytes) -> "_Answer":
        uploads, name = self.server_state.uploads, query.get("uploadId", "")
        if "uploads" in query:
            name = uuid4().hex
            uploads[name] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        if name not in uploads:
            return _error(404, "NoSuchUpload")
        if self.command == "PUT":
            uploads[name][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
        parts = uploads.pop(name)
        if self.command == "DELETE":
            return 204, {}, b""
        numbers = [int(number.text or "") for number in ET.fromstring(body).iter("PartNumber")]
        made = self.write(objects, key, b"".join(parts[number] for number in numbers), {})
        return _xml("CompleteMultipartUploadResult", f"<ETag>{made.etag}</ETag>", _headers(made))

    def read(self, found: _Object) -> "_Answer":
        asked = self.headers.get("Range")
        if asked is None:
            return 200, _headers(found), found.data
        first, last = asked.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last) + 1 if last else len(found.data), len(found.data))
        if start >= len(found.data):
            return _error(416, "InvalidRange")
        part = f"bytes {start}-{end - 1}/{len(found.data)}"
        return 206, {**_headers(found), "Content-Range": part}, found.data[start:end]

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


_Answer = tuple[int, dict[str, str], bytes]
for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.handle_any)


def _headers(found: _Object) -> dict[str, str]:
    return {
        "ETag": found.etag,
        "x-goog-generation": str(found.generation),
        "Last-Modified": format_datetime(found.modified, usegmt=True),
        **found.metadata,
    }


def _list(objects: dict[str, _Object], query: dict[str, str]) -> _Answer:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    after = max(query.get("continuation-token", ""), query.get("start-after", ""), key=str.encode)
    rows: list[str] = []
    last = folder = ""
    for key in sorted((key for key in objects if key.startswith(prefix)), key=str.encode):
        inner, cut, _ = key[len(prefix) :].partition(delimiter or "\0")
        name = prefix + inner + cut  # a folder, where it was cut
        if name.encode() <= after.encode() or (cut and name == folder):
            continue
        if len(rows) == int(query.get("max-keys", _PAGE)):
            rows.append(f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(last)}</NextContinuationToken>")
            break
        last = name
        if cut:
            folder = name
            rows.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            continue
        found = objects[key]
        rows.append(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(found.data)}</Size><ETag>{found.etag}</ETag>"
            f"<LastModified>{found.modified:%Y-%m-%dT%H:%M:%S.%f}Z</LastModified></Contents>"
        )
    return _xml("ListBucketResult", "".join(rows))


def _xml(element: str, inner: str, headers: dict[str, str] | None = None) -> _Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><{element}>{inner}</{element}>".encode()
    return 200, {"Content-Type": "application/xml", **(headers or {})}, body


def _error(status: int, code: str) -> _Answer:
    return status, *_xml("Error", f"<Code>{code}</Code>")[1:]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up, or is killed, is no error."""


@contextmanager
def running_gcs_server() -> Iterator[GcsServer]:
    """Run an empty server in threads of this process; end it at exit."""
    state = GcsServer()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_state": state}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    state.endpoint_url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
