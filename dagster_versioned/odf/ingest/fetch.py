"""What a source has that was not fetched yet: one file behind a URL, or files that a pattern matches, in order."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
from dagster_versioned.odf.ingest.source_file import SourceFile
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
class FetchedFile:
    """A file that is to be read, what it is as of, and the state that its source is in after it."""

    file: SourceFile
    event_time: datetime | None
    state: SourceState


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How files are fetched: into ``folder``, at ``now``, each of at most ``max_bytes``.

    ``variables`` are what ``${{ env.NAME }}`` in URLs and headers may stand for; nothing else of the environment is.
    Without ``local_files`` the source is a stranger's: files of this machine are refused, headers that are none of
    `HARMLESS_HEADERS`, and, unless there are ``local_addresses``, addresses that are not of the public network; so are
    buckets, which are read with the credentials of ``profile`` or of the environment.
    """

    folder: Path
    now: datetime
    client: HttpClient
    variables: Mapping[str, str]
    max_bytes: int = MAX_BYTES
    local_files: bool = True
    local_addresses: bool = False
    ftp: FtpClient = field(default_factory=FtpClient)
    profile: str | None = None

    @property
    def is_restricted(self) -> bool:
        """Whether only addresses of the public network may be reached."""
        return not (self.local_files or self.local_addresses)

    @property
    def places(self) -> Places:
        """How buckets and FTP servers are reached."""
        ftp = self.ftp.public() if self.is_restricted else self.ftp
        return Places(self.folder / "fetched", self.max_bytes, ftp, self.profile)


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
    if is_bucket(step.url) or is_ftp(step.url):
        return _fetch_remote(step, state, fetching)
    url = _filled(step.url, fetching.variables)
    parts = urlsplit(url)
    if parts.scheme == "file":
        _require_own(step.url, fetching)
        path = Path(unquote(parts.path))
        _require_file(path, fetching)
        file, modified, new = SourceFile(str(path), path), _modified(path), None
    else:
        _require_harmless(step.headers or (), fetching)
        headers = {header.name: _filled(header.value, fetching.variables) for header in step.headers or ()}
        if state is not None and state.kind in (ETAG, LAST_MODIFIED):
            headers["If-None-Match" if state.kind == ETAG else "If-Modified-Since"] = state.value
        target = fetching.folder / "fetched"
        client = fetching.client.public() if fetching.is_restricted else fetching.client
        status, answer_headers = client.download(url, target, headers, max_bytes=fetching.max_bytes)
        if status == 304:
            return None
        file, modified, new = SourceFile(shown_url(url), target), last_modified(answer_headers), _stated(answer_headers)
    # What says nothing of itself, and a file of this machine, is known by its bytes.
    new = new or SourceState(SOURCE_NAME, CONTENT, _hash(file.path))
    if new == state:
        return None
    when = event_time(step.event_time, path=unquote(parts.path), modified=modified, now=fetching.now)
    return FetchedFile(file, when, new)


def _fetch_remote(step: FetchStepUrl, state: SourceState | None, fetching: FetchOptions) -> FetchedFile | None:
    """The file of a bucket or an FTP server, if it is another one than that of the state."""
    if is_bucket(step.url):
        _require_own(step.url, fetching)
        found = object_at(_filled(step.url, fetching.variables), fetching.places)
    else:
        found = ftp_file(step.url, lambda text: _filled(text, fetching.variables), fetching.places)
    new = None if found.state is None else SourceState(SOURCE_NAME, ETAG, found.state)
    if new is not None and new == state:
        return None
    path = found.read()
    new = new or SourceState(SOURCE_NAME, CONTENT, _hash(path))
    if new == state:
        return None
    when = event_time(step.event_time, path=found.path, modified=found.modified, now=fetching.now)
    return FetchedFile(SourceFile(found.path, path), when, new)


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


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with its variables' values. Raises `InvalidInput` for one that was not given, and names it alone."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise InvalidInput(
                f"The source asks for the variable {match[1]!r}, which it was not given. Nothing was fetched. Pass it "
                "by name, if this source may have it."
            )
        return variables[match[1]]

    return _VARIABLE.sub(value, text)


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
    epoch = datetime.fromtimestamp(0, UTC)
    by_time = step.order is SourceOrdering.BY_EVENT_TIME
    places = {name: (times[name] or epoch if by_time else epoch, name) for name in names}
    done = {state.value for state in states}
    new = sorted((file for file in found if file.name not in done), key=lambda file: places[file.name])
    last = max((places[name] for name in names if name in done), default=None)
    if new and last is not None and places[new[0].name] < last:
        raise InvalidInput(
            f"{new[0].path} comes before {last[1]!r}, which was added already: files are added in the order of their "
            f"{'event times' if by_time else 'names'}, and what was added stays. Nothing was added. Give it a later "
            "one, or move it away."
        )
    for file in new:
        yield FetchedFile(
            SourceFile(file.path, file.read()), times[file.name], SourceState(SOURCE_NAME, ETAG, file.name)
        )


def _files_like(pattern: str, fetching: FetchOptions) -> list[ListedFile]:
    """The files that match a pattern: of this machine, of a bucket, or of an FTP server."""
    if is_ftp(pattern):
        return ftp_files(pattern, lambda text: _filled(text, fetching.variables), fetching.places)
    _require_own(pattern, fetching)
    if is_bucket(pattern):
        return objects_like(_filled(pattern, fetching.variables), fetching.places)
    matches = glob(pattern.removeprefix("file://"), recursive=True)  # noqa: PTH207 - it may be absolute, which Path.glob refuses

    def file_of(path: Path) -> ListedFile:
        return ListedFile(str(path), path.name, _modified(path), None, lambda: _require_file(path, fetching))

    return [file_of(path) for path in map(Path, matches) if path.is_file()]


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


def _modified(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


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
