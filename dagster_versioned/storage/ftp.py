"""Files of FTP servers, read in passive mode: each call is a connection of its own, tried again where it breaks."""

import ftplib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from dagster_versioned.errors import AccessDenied, InvalidInput, ObjectNotFound, StorageError, StoreUnavailable
from dagster_versioned.storage.backoff import DOWNLOAD
from dagster_versioned.storage.http import CHUNK_BYTES

SCHEME = "ftp://"
_Answer = TypeVar("_Answer")
_MOST_LINES = 1000
MOST_ENTRIES = 100_000
"""The most files and folders that are looked at, in one folder and in all: a server may make up any number."""
_TRANSIENT = (OSError, EOFError, ftplib.Error)


@dataclass(frozen=True, slots=True)
class FtpAddress:
    """A file or folder of a server: ``path`` is below the folder that the user has at login, absolute with a ``/``.

    What is shown of it has neither user nor password. The constructor raises `InvalidInput`.
    """

    host: str
    path: str
    port: int = ftplib.FTP_PORT
    user: str = field(default="anonymous", repr=False)
    password: str = field(default="anonymous@", repr=False)

    def __post_init__(self) -> None:
        parts = (self.host, self.path, self.user, self.password)
        if not self.host or not 0 < self.port < 2**16 or not all(map(_is_one_line, parts)):
            raise InvalidInput(
                "An FTP address has no host, no port from 1 to 65535, or characters such as the end of a line. Nothing "
                "was fetched. Use ftp://host/path, or ftp://user:${{ env.PASSWORD }}@host:port/path."
            )

    @classmethod
    def parse(cls, url: str, filled: Callable[[str], str] = str) -> "FtpAddress":
        """Read ``ftp://[user[:password]@]host[:port]/path``, whose parts are ``filled`` in after it is taken apart.

        Raises `InvalidInput`, without repeating what may be a password.
        """
        netloc, _, path = url.removeprefix(SCHEME).partition("/")
        login, at, place = netloc.rpartition("@")
        user, _, password = login.partition(":")
        host, _, port = place.rpartition(":") if not place.endswith("]") and ":" in place else (place, "", "")
        number = filled(port) if port else str(ftplib.FTP_PORT)
        return cls(
            filled(host).removeprefix("[").removesuffix("]"),
            filled(unquote(path)),
            int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 0,
            **({"user": filled(unquote(user)), "password": filled(unquote(password))} if at else {}),
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == ftplib.FTP_PORT else f":{self.port}"
        return f"{SCHEME}{host}{port}/{quote(self.path)}"


@dataclass(frozen=True, slots=True)
class FtpEntry:
    """What a server says of a file or folder: its size in bytes and its last change, where it says so."""

    name: str
    is_folder: bool
    size: int | None
    modified: datetime | None


class FtpClient:
    """Reads from FTP servers; each call is tried ``attempts`` times, and waits ``timeout`` seconds at most for a byte.

    Files come from the address that the server itself was reached at, whatever other one it names.
    """

    def __init__(self, *, attempts: int = 4, timeout: float = 30.0, public_only: bool = False) -> None:
        """With ``public_only``, a connection to an address that is not of the public network is closed unused."""
        self.attempts = attempts
        self._timeout = timeout
        self._public_only = public_only

    def public(self) -> "FtpClient":
        """The same client, for addresses of the public network alone."""
        return FtpClient(attempts=self.attempts, timeout=self._timeout, public_only=True)

    def info(self, address: FtpAddress) -> FtpEntry:
        """Size and last change of a file. Raises `ObjectNotFound`, `AccessDenied`, `StorageError`."""

        def ask(ftp: ftplib.FTP) -> FtpEntry:
            ftp.voidcmd("TYPE I")  # of text, servers refuse to give the size
            size = ftp.size(address.path)
            try:
                modified = _moment(ftp.sendcmd(f"MDTM {address.path}").partition(" ")[2])
            except ftplib.error_perm:
                modified = None  # it knows no such command: the file is there, since it has a size
            return FtpEntry(address.path.rpartition("/")[2], False, size, modified)

        return self._asked(address, ask)

    def list(self, address: FtpAddress) -> list[FtpEntry]:
        """What is in a folder. Raises `ObjectNotFound`, `AccessDenied`, `StorageError`."""

        def ask(ftp: ftplib.FTP) -> list[FtpEntry]:
            lines: list[str] = []

            def keep(line: str) -> None:
                if len(lines) == MOST_ENTRIES:
                    raise StorageError(f"{address} has more than {MOST_ENTRIES} files. Nothing was read.")
                lines.append(line)

            ftp.retrlines(f"MLSD {address.path}".rstrip(), keep)
            return [entry for entry in map(_entry, lines) if entry is not None]

        return self._asked(address, ask)

    def download(self, address: FtpAddress, target: Path, *, max_bytes: int) -> None:
        """Write a file's bytes to a local file.

        Raises `StorageError` for more than ``max_bytes``, `ObjectNotFound`, `AccessDenied`, `StoreUnavailable`.
        """

        def ask(ftp: ftplib.FTP) -> None:
            size = 0

            def keep(chunk: bytes) -> None:
                nonlocal size
                size += len(chunk)
                if size > max_bytes:
                    raise StorageError(f"{address} has more than {max_bytes} bytes. Nothing was kept.")
                file.write(chunk)

            with target.open("wb") as file:
                ftp.retrbinary(f"RETR {address.path}", keep, CHUNK_BYTES)

        self._asked(address, ask)

    def _asked(self, address: FtpAddress, ask: Callable[[ftplib.FTP], _Answer]) -> _Answer:
        for attempt in range(1, self.attempts + 1):
            ftp = _Connection(timeout=self._timeout)
            try:
                ftp.connect(address.host, address.port)
                if self._public_only and ftp.sock is not None:
                    from dagster_versioned.storage.public_network import check_public  # imports urllib3

                    check_public(ftp.sock, address.host)  # nothing was sent yet
                _login(ftp, address)
                return ask(ftp)
            except ftplib.error_perm as error:
                raise _refused(address, str(error)[:3]) from None
            except UnicodeError:
                raise StorageError(
                    f"{address}: the server has names that are no UTF-8. Nothing was read. Name the file by a URL."
                ) from None
            except _TRANSIENT as error:
                if attempt == self.attempts:
                    raise StoreUnavailable(
                        f"{address} did not answer, or broke off ({type(error).__name__}), {attempt} times. Check the "
                        "address, and run again later."
                    ) from None
            finally:
                ftp.close()
            DOWNLOAD.pause(attempt)
        raise AssertionError("unreachable: attempts is at least 1")


class _Connection(ftplib.FTP):
    """One whose server may say so much and no more, beside the files themselves."""

    _lines = 0

    def getline(self) -> str:
        self._lines += 1
        if self._lines > _MOST_LINES:
            raise ftplib.error_proto("more lines than any answer has")
        return super().getline()


def _login(ftp: ftplib.FTP, address: FtpAddress) -> None:
    try:
        ftp.login(address.user, address.password)
    except ftplib.error_perm:
        raise AccessDenied(
            f"{address}: the server refused the user or the password. Nothing was read. Check who may read it."
        ) from None


def _refused(address: FtpAddress, code: str) -> StorageError:
    if code == "550":
        return ObjectNotFound(f"{address}: FTP {code}. Nothing is there, or nothing to read. Check the address.")
    if code in ("530", "532"):
        return AccessDenied(f"{address}: FTP {code}. The server refused. Check who may read it.")
    return StorageError(
        f"{address}: FTP {code}. The server does not do what was asked of it (MLSD for a pattern, SIZE and RETR for a "
        "file, in passive mode). Nothing was read. Name single files, or fetch them by other means."
    )


def _entry(line: str) -> FtpEntry | None:
    """A line of a list; ``None`` for the folder itself, that above it, and names that lead elsewhere."""
    given, _, name = line.partition(" ")
    facts = {key.lower(): value for key, _, value in (fact.partition("=") for fact in given.split(";"))}
    kind = facts.get("type", "file").lower()
    if kind not in ("file", "dir") or name in ("", ".", "..") or "/" in name or not _is_one_line(name):
        return None
    return FtpEntry(name, kind == "dir", _number(facts.get("size")), _moment(facts.get("modify", "")))


def _moment(text: str) -> datetime | None:
    """A time as FTP has it, ``20240131120000`` and maybe fractions, in UTC."""
    try:
        return datetime.strptime(text.strip()[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _is_one_line(text: str) -> bool:
    return not any(ord(letter) < 32 or ord(letter) == 127 for letter in text)
