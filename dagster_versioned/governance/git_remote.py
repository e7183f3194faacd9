"""What may stand for a remote git repository: a folder, ssh or https, and nothing that git would execute."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from dagster_versioned.errors import InvalidInput

ROOTS_VARIABLE = "DAGSTER_VERSIONED_GIT_ROOTS"
"""The environment variable that, where it is set, lists the folders (``:`` between) in which local remotes may lie."""

_REFUSED = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_REFUSED_IN_PATH = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_HELPER = re.compile(r"[A-Za-z0-9+.-]*::")
_HOST = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_SSH = re.compile(rf"ssh://(?:{_USER}@)?{_HOST}(?::\d{{1,5}})?/[^?#]+")
_SCP = re.compile(rf"(?:{_USER}@)?{_HOST}:[^-:?#@][^?#@]*")  # an "@" behind the host: a password before it
_WEB = re.compile(rf"{_HOST}(?::\d{{1,5}})?")
_NO_WEB = "is not of the form https://host[:port]/path"
_SELF = ("localhost", "127.0.0.1", "::1")
_CREDENTIAL = re.compile(r"://[^/\s'\"]*@")  # up to the last "@": a password may hold one
_ADVICE = (
    "Nothing was run. Use https://host/path, ssh://user@host/path, user@host:path, or an absolute folder; credentials "
    "come from git's own helpers or an ssh agent, never from a URL."
)


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A URL that git may be given, made by `remote_url` alone.

    It holds no credential, no option and no command. ``protocols`` is what git may speak on the way there
    (``GIT_ALLOW_PROTOCOL``), ``local`` the folder, if it is one.
    """

    text: str
    protocols: str
    local: Path | None = None

    def __str__(self) -> str:
        return self.text


def remote_url(text: str, *, roots: Sequence[Path] | None = None) -> RemoteUrl:
    """Check what a person, or a document, gives as the remote of a git repository.

    A folder must lie in one of ``roots`` (default: those of ``DAGSTER_VERSIONED_GIT_ROOTS``; anywhere if it is not
    set), links followed. Plain http is for this machine alone. Raises `InvalidInput`, without repeating the text, for
    everything else: ``ext::`` and its kin, options, other schemes, users and passwords in a web address.
    """
    if not text:
        raise _refusal("is empty")
    if text.startswith("-"):
        raise _refusal("begins with '-', which git reads as an option")
    if _HELPER.match(text):
        raise _refusal("names a remote helper ('::'), which git would execute")
    scheme, colon, rest = text.partition("://")
    if not colon:
        is_ssh = ":" in text.partition("/")[0]  # as git distinguishes the two
        return _ssh(text, _SCP, "[user@]host:path") if is_ssh else _folder(text, roots)
    match scheme:
        case "file":
            if not rest.startswith("/"):
                raise _refusal("is a file URL without an absolute path")
            return _folder(unquote(rest), roots)
        case "ssh":
            return _ssh(text, _SSH, "ssh://[user@]host[:port]/path")
        case "https" | "http":
            return _web(text)
        case _:
            raise _refusal("has a scheme other than https, ssh and file")


def cached_clone(kind: Literal["registries", "mirrors"], remote: str) -> Path:
    """A folder in the user's cache, for the clone of one remote, however a folder is spelled. Raises `InvalidInput`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "dagster-versioned", kind, hashlib.sha256(str(remote_url(remote)).encode()).hexdigest()[:16])


def without_credentials(text: str) -> str:
    """A message of git's, on one line, without the user and password of any URL in it.

    Git knows credentials that our URLs do not hold: a person's configuration may rewrite them.
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in _CREDENTIAL.sub("://…@", text))
    return " ".join(plain.split())


def _folder(text: str, roots: Sequence[Path] | None) -> RemoteUrl:
    if _REFUSED_IN_PATH.search(text):
        raise _refusal("has a control character")
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise _refusal("is in the home of a user whom this machine does not know") from None
    if ".." in path.parts:
        raise _refusal("has '..' in its path")
    path = path.absolute()
    if not _is_allowed(path, roots):
        raise _refusal(f"lies outside of the folders that {ROOTS_VARIABLE} allows")
    return RemoteUrl(str(path), "file", path)


def _is_allowed(path: Path, roots: Sequence[Path] | None) -> bool:
    """Whether a folder lies inside of one of the roots, by default those of the environment; without any, each does."""
    if roots is None and (listed := os.environ.get(ROOTS_VARIABLE)) is not None:
        roots = [Path(root) for root in listed.split(os.pathsep) if root]
    return roots is None or any(path.resolve().is_relative_to(root.resolve()) for root in roots)


def _ssh(text: str, form: re.Pattern[str], said: str) -> RemoteUrl:
    if _REFUSED.search(text) or not form.fullmatch(text):
        raise _refusal(f"is not of the form {said}")
    return RemoteUrl(text, "ssh:https")


def _web(text: str) -> RemoteUrl:
    try:
        parts = urlsplit(text)
    except ValueError:  # half of an IPv6 address
        raise _refusal(_NO_WEB) from None
    if "@" in parts.netloc:
        raise _refusal("holds a user or a password")
    if "?" in text or "#" in text:
        raise _refusal("holds a query or a fragment")
    if _REFUSED.search(text) or not _WEB.fullmatch(parts.netloc) or not parts.path.strip("/"):
        raise _refusal(_NO_WEB)
    if parts.scheme == "http":
        if parts.hostname not in _SELF:
            raise _refusal("is plain http, which anybody on the way can read and change")
        return RemoteUrl(text, "http:https")
    return RemoteUrl(text, "https:ssh")  # people rewrite the one into the other (url.<base>.insteadOf)


def _refusal(reason: str) -> InvalidInput:
    return InvalidInput(f"The URL of a git remote {reason}. {_ADVICE}")
