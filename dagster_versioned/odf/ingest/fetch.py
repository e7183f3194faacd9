"""What a source has that was not fetched yet: one file behind a URL, or files that a pattern matches, in order."""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import (
    EventTimeSource,
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
    FetchStep,
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    RequestHeader,
    SourceCachingForever,
    SourceOrdering,
    SourceState,
)
from dagster_versioned.odf.ingest.remote_files import (
    ListedFile,
    Places,
    ftp_file,
    ftp_files,
    is_bucket,
    is_ftp,
    object_at,
    objects_like,
)
from dagster_versioned.storage.ftp import FtpAddress, FtpClient
from dagster_versioned.storage.http import HttpClient, last_modified, shown_url

SOURCE_NAME = "default"
"""What a polling source is called in source states, by custom."""
ETAG = "odf/etag"
LAST_MODIFIED = "odf/last-modified"
CONTENT = "dagster-versioned/sha3-256"
"""The kind of a source state that is the hash of the bytes, for sources that say nothing of themselves."""
MAX_BYTES = 16 * 1024**3

HARMLESS_HEADERS = frozenset({"accept", "accept-charset", "accept-language", "cache-control", "pragma", "user-agent"})
"""What a stranger's source may send: no other host's name, no credential, no word that a metadata service waits for."""

_VARIABLE = re.compile(r"\$\{\{\s*env\.(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Bytes at ``path``, called ``name`` (a URL or a path) in errors."""

    name: str
    path: Path

    def error(self, what: str, *, place: str = "", column: str | None = None) -> InvalidInput:
        """An error that names the file, and the place in it (``line 3``) and the column where they are known."""
        where = ", ".join(filter(None, [self.name, place, column and f"column {column!r}"]))
        return InvalidInput(f"{where}: {what}. Nothing of this file was added. Correct it, or the source.")

    def not_text(self, encoding: str) -> InvalidInput:
        """The error for bytes that are no text in an encoding."""
        data = self.path.read_bytes()
        try:
            data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return self.error(f"not text in {encoding} ({error.reason})", place=f"line {line}")
        return self.error(f"not text in {encoding}")

    def require_columns(self, found: Sequence[str], declared: pa.Schema, *, place: str = "") -> None:
        """Raise `InvalidInput` unless the file has exactly the declared columns, in any order."""
        for name in found:
            if name not in declared.names:
                known = ", ".join(map(repr, declared.names[:20]))
                raise self.error(f"the column is not declared; declared are {known}", place=place, column=name)
            if found.count(name) > 1:
                raise self.error("the column is there twice", place=place, column=name)
        for name in declared.names:
            if name not in found:
                raise self.error("the column is declared and not there", place=place, column=name)


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file that is to be read, what it is as of, and the state that its source is in after it."""

    file: SourceFile
    event_time: datetime | None
    state: SourceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How a source is polled; each of its files has at most ``max_bytes``.

    ``variables`` are what ``${{ env.NAME }}`` in its URL and headers may stand for; nothing else of the environment is.
    ``local_files=False`` is for sources that somebody else may have written: they may not name files of this machine,
    nor buckets, nor addresses that are not of the public network (unless there are ``local_addresses``), nor send
    headers other than `HARMLESS_HEADERS`. Buckets are read with the credentials of ``profile`` of the AWS configuration
    files, else of the environment.
    """

    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    max_bytes: int = MAX_BYTES
    local_files: bool = True
    local_addresses: bool = False
    client: HttpClient = field(default_factory=HttpClient)
    ftp: FtpClient = field(default_factory=FtpClient)
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions(Polling):
    """How files are fetched: into ``folder``, at ``now``."""

    folder: Path
    now: datetime

    @property
    def is_restricted(self) -> bool:
        """Whether only addresses of the public network may be reached."""
        return not (self.local_files or self.local_addresses)

    @property
    def places(self) -> Places:
        """How buckets and FTP servers are reached."""
        ftp = self.ftp.public() if self.is_restricted else self.ftp
        return Places(self.folder / "fetched", self.max_bytes, ftp, self.profile)

    def filled(self, text: str) -> str:
        """The text with its variables' values. Raises `InvalidInput` for one that was not given, and names it alone."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in self.variables:
                raise InvalidInput(
                    f"The source asks for the variable {match[1]!r}, which it was not given. Nothing was fetched. Pass "
                    "it by name, if this source may have it."
                )
            return self.variables[match[1]]

        return _VARIABLE.sub(value, text)


def fetch(step: FetchStep, states: Sequence[SourceState], fetching: FetchOptions) -> Iterator[FetchedFile]:
    """The files that are new since the source was in ``states`` (of this dataset so far, the newest last), in order.

    Raises `InvalidInput` for what cannot be fetched, `ObjectNotFound`, `AccessDenied` and `StorageError`.
    """
    match step:
        case FetchStepUrl():
            found = _fetch_url(step, states[-1] if states else None, fetching)
            return iter([found] if found else [])
        case FetchStepFilesGlob():
            return _fetch_files(step, states, fetching)
        case FetchStepContainer():
            raise _refused(f"the container {step.image!r:.200}", "what a manifest names is not run")
        case FetchStepMqtt():
            raise _refused(f"the MQTT broker {step.host!r:.200}", "only files are fetched")
        case FetchStepEthereumLogs():
            raise _refused("the logs of an Ethereum node", "only files are fetched")


def check_no_password(step: FetchStep) -> None:
    """Raise `InvalidInput` for a password in an address, without repeating it: the chain would show it to everybody."""
    if not isinstance(step, FetchStepUrl | FetchStepFilesGlob):
        return
    address = step.url if isinstance(step, FetchStepUrl) else step.path
    login, at, place = address.partition("://")[2].partition("/")[0].rpartition("@")
    password = login.partition(":")[2]
    if at and (not is_ftp(address) or (password and not _VARIABLE.fullmatch(password))):
        raise InvalidInput(
            f"The address of the source at {place!a:.100} holds a user or a password, which the chain would show to "
            "everybody. Nothing was changed. Give it as a variable: in a header of http, as "
            "ftp://user:${{ env.PASSWORD }}@host/path, and that of a bucket in the environment or a profile."
        )
    if is_ftp(address):
        FtpAddress.parse(address, lambda text: _VARIABLE.sub("1", text))


def _shown(address: str) -> str:
    """An address without what may be a user or a password."""
    scheme, separator, rest = address.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


def _refused(what: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"The source is {what}, which is recorded but not fetched here: {why}. Nothing was added. Fetch it by other "
        "means and push the rows, or point the source at a URL or at files."
    )


# --- a URL -----------------------------------------------------------------------------------------------------------


def _fetch_url(step: FetchStepUrl, state: SourceState | None, fetching: FetchOptions) -> FetchedFile | None:
    if isinstance(step.cache, SourceCachingForever) and state is not None:
        return None
    listed = _file_at(step.url, fetching)
    if listed is None:
        return _fetch_http(step, state, fetching)
    stated = None if listed.state is None else SourceState(SOURCE_NAME, ETAG, listed.state)
    if stated is not None and stated == state:
        return None
    file = SourceFile(listed.path, listed.read())
    return _if_changed(step, file, listed.path, listed.modified, stated, state, fetching)


def _file_at(url: str, fetching: FetchOptions) -> ListedFile | None:
    """The file of this machine, of a bucket or of an FTP server at a URL; ``None`` for one of HTTP."""
    if is_ftp(url):
        return ftp_file(url, fetching.filled, fetching.places)
    if is_bucket(url):
        _require_own(url, fetching)
        return object_at(fetching.filled(url), fetching.places)
    parts = urlsplit(fetching.filled(url))
    if parts.scheme != "file":
        return None
    _require_own(url, fetching)
    path = unquote(parts.path)
    _require_file(Path(path), fetching)
    return _local_file(path, fetching)


def _fetch_http(step: FetchStepUrl, state: SourceState | None, fetching: FetchOptions) -> FetchedFile | None:
    url = fetching.filled(step.url)
    _require_harmless(step.headers or (), fetching)
    headers = {header.name: fetching.filled(header.value) for header in step.headers or ()}
    if state is not None and state.kind in (ETAG, LAST_MODIFIED):
        headers["If-None-Match" if state.kind == ETAG else "If-Modified-Since"] = state.value
    target = fetching.folder / "fetched"
    client = fetching.client.public() if fetching.is_restricted else fetching.client
    status, answer = client.download(url, target, headers, max_bytes=fetching.max_bytes)
    if status == 304:
        return None
    file, path = SourceFile(shown_url(url), target), unquote(urlsplit(url).path)
    return _if_changed(step, file, path, last_modified(answer), _stated(answer), state, fetching)


def _if_changed(
    step: FetchStepUrl,
    file: SourceFile,
    path: str,
    modified: datetime | None,
    stated: SourceState | None,
    state: SourceState | None,
    fetching: FetchOptions,
) -> FetchedFile | None:
    """The file, unless its source is in ``state`` still: as it says itself (``stated``), else by the file's bytes."""
    new = stated or SourceState(SOURCE_NAME, CONTENT, _hash(file.path))
    if new == state:
        return None
    return FetchedFile(file, event_time(step.event_time, path=path, modified=modified, now=fetching.now), new)


def _require_harmless(headers: Iterable[RequestHeader], fetching: FetchOptions) -> None:
    """Raise `InvalidInput` for a stranger's header that could do more than choose among forms of what is public."""
    refused = [header.name for header in headers if header.name.lower() not in HARMLESS_HEADERS]
    if refused and not fetching.local_files:
        raise InvalidInput(
            f"The source sends the header {refused[0]!a:.100}, and whoever wrote it may be a stranger: only "
            f"{', '.join(sorted(HARMLESS_HEADERS))} are sent for one. Nothing was fetched. If you mean that header, "
            "poll with a manifest of yours (--manifest FILE) or the dataset's key."
        )


def _stated(headers: Mapping[str, str]) -> SourceState | None:
    """The state that a server's answer says of itself."""
    for kind, header in ((ETAG, "ETag"), (LAST_MODIFIED, "Last-Modified")):
        if value := headers.get(header):
            return SourceState(SOURCE_NAME, kind, value)
    return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha3_256").hexdigest()


# --- files -----------------------------------------------------------------------------------------------------------


def _fetch_files(
    step: FetchStepFilesGlob, states: Sequence[SourceState], fetching: FetchOptions
) -> Iterator[FetchedFile]:
    """Each file once, by its name; files are put in order before the first is read."""
    found = _files_like(step.path, fetching)
    names = [file.name for file in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(
            f"{_shown(step.path)} matches two files with the name {min(twice)!r}, and files are identified by their "
            "names. Nothing was added. Rename one, or narrow the pattern."
        )
    times = {
        file.name: event_time(step.event_time, path=file.path, modified=file.modified, now=fetching.now)
        for file in found
    }
    by_time = step.order is SourceOrdering.BY_EVENT_TIME
    done = {state.value for state in states}
    for file in _new_files(found, done, times if by_time else None):
        state = SourceState(SOURCE_NAME, ETAG, file.name)
        yield FetchedFile(SourceFile(file.path, file.read()), times[file.name], state)


def _new_files(
    found: Sequence[ListedFile], done: Collection[str], times: Mapping[str, datetime | None] | None
) -> list[ListedFile]:
    """The files whose names are not ``done``, in the order of ``times``, else of names. Raises `InvalidInput`."""
    epoch = datetime.fromtimestamp(0, UTC)

    def place(file: ListedFile) -> tuple[datetime, str]:
        return (times or {}).get(file.name) or epoch, file.name

    new = sorted((file for file in found if file.name not in done), key=place)
    last = max((place(file) for file in found if file.name in done), default=None)
    if new and last is not None and place(new[0]) < last:
        raise InvalidInput(
            f"{new[0].path} comes before {last[1]!r}, which was added already: files are added in the order of their "
            f"{'names' if times is None else 'event times'}, and what was added stays. Nothing was added. Give it a "
            "later one, or move it away."
        )
    return new


def _files_like(pattern: str, fetching: FetchOptions) -> list[ListedFile]:
    """The files that match a pattern: of this machine, of a bucket, or of an FTP server."""
    if is_ftp(pattern):
        return ftp_files(pattern, fetching.filled, fetching.places)
    _require_own(pattern, fetching)
    if is_bucket(pattern):
        return objects_like(fetching.filled(pattern), fetching.places)
    matches = glob(pattern.removeprefix("file://"), recursive=True)  # noqa: PTH207 - it may be absolute, which Path.glob refuses
    return [_local_file(str(path), fetching) for path in map(Path, matches) if path.is_file()]


def _local_file(name: str, fetching: FetchOptions) -> ListedFile:
    path = Path(name)
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return ListedFile(name, path.name, modified, None, lambda: _require_file(path, fetching))


def _require_own(files: str, fetching: FetchOptions) -> None:
    if fetching.local_files:
        return
    what, why = f"files of this machine, {_shown(files)!a:.200}", ""
    if is_bucket(files):
        what, why = f"a bucket, {_shown(files)!a:.200}", ", which your credentials would open"
    raise InvalidInput(
        f"The source names {what}{why}, and whoever wrote it may be a stranger. Nothing was read. If you mean these "
        "files, poll with a manifest of yours (--manifest FILE) or the dataset's key."
    )


def _require_file(path: Path, fetching: FetchOptions) -> Path:
    """The path itself. Raises `InvalidInput` where no file is there, or one that is too large."""
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}). Nothing was added.") from None
    if size is None:
        raise InvalidInput(f"{path} is not there, or no file. Nothing was added. Check the source's address.")
    if size > fetching.max_bytes:
        raise InvalidInput(f"{path} has more than {fetching.max_bytes} bytes. Nothing was added.")
    return path


def event_time(
    source: EventTimeSource | None, *, path: str, modified: datetime | None, now: datetime
) -> datetime | None:
    """The event time of a file, by default its last modification; ``None`` where it is unknown.

    In a path it is the first group of the pattern (else all that matches), in ``timestamp_format`` or ISO 8601, in UTC
    where it says no zone. Raises `InvalidInput`.
    """
    match source:
        case None | EventTimeSourceFromMetadata():
            return modified
        case EventTimeSourceFromSystemTime():
            return now
        case EventTimeSourceFromPath():
            return _in_path(source, path)


def _in_path(source: EventTimeSourceFromPath, path: str) -> datetime:
    try:
        match = re.search(source.pattern, path)
    except re.error as error:
        raise InvalidInput(
            f"The pattern {source.pattern!a:.100} of an event time is no regular expression: {error}. Nothing was read."
        ) from None
    if not match:
        raise InvalidInput(
            f"{path} has no event time: {source.pattern!a:.100} does not match. Nothing was added. Correct the "
            "pattern, or rename the file."
        )
    text = match[1] if match.re.groups else match[0]
    form = source.timestamp_format
    try:
        moment = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{path} has no event time: {text!a:.100} is not of the form {form or 'ISO 8601'!a:.50}. "
            "Nothing was added. Correct timestampFormat, or rename the file."
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
