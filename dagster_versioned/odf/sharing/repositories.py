"""Places where datasets are shared, by the names that a project gives them: ``repository/[account/]name``.

A project's repositories are one document beside its tables: addresses, and no credentials. Source: seed 002
("Repository", "Aliases and References").
"""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

import orjson

from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound, VersionNotFound
from dagster_versioned.odf.identity.dataset_ref import Name, RemoteAlias, RemoteId, parse_remote_ref
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import Location
from dagster_versioned.storage.http import check_url
from dagster_versioned.tables.document import encode, update_document
from dagster_versioned.tables.preconditions import require

KEY = ".metadata/repositories.json"
SMART = re.compile(r"odf\+(?=https?://)", re.IGNORECASE)
"""How the address of a smart server begins, before its URL."""
_OTHER = re.compile(r"[./~]|[A-Za-z][A-Za-z0-9+]*:|did:")
"""How a place begins that is no dataset of a repository: a path, a URI, an identity."""


def repositories(project: Project) -> dict[Name, str]:
    """The addresses of a project's repositories, by name. Raises `IntegrityError`."""
    try:
        return _parsed(project.data.get(KEY))
    except ObjectNotFound:
        return {}


def set_repository(project: Project, name: str, address: str) -> None:
    """Give a place a name: a URL (http, https, odf+https), a folder, or ``s3://bucket/prefix``; nothing is read there.

    Raises `InvalidInput` for what is no name or no address, and for an address with a password.
    """
    named, place = Name(name), _address(address)
    _change(project, lambda known: {**{name: known[name] for name in known if name != named}, named: place})


def drop_repository(project: Project, name: str) -> None:
    """Forget a repository; what is there stays. Raises `VersionNotFound`."""

    def dropped(known: dict[Name, str]) -> dict[Name, str]:
        if Name(name) not in known:
            raise _unknown(name, known)
        return {key: address for key, address in known.items() if key != name}

    _change(project, dropped)


def place_of(project: Project, text: str) -> tuple[str, str | None]:
    """Where a dataset is, and its name if it is one of a repository's: ``repository/[account/]name``.

    What begins as a path or a URI does, or with no name of a repository, is the place itself. Raises `InvalidInput`.
    """
    first, slash, _ = text.partition("/")
    address = _address_of(project, first) if slash and not _OTHER.match(text) else None
    if address is None:
        return text, None
    found = parse_remote_ref(text)
    if isinstance(found, RemoteId):
        raise InvalidInput(
            f"{text!a:.200} names a dataset of the repository {first} by its identity, and places are found by names. "
            "Nothing was read. Give repository/name, with --dataset-id if it has to be that one."
        )
    assert isinstance(found, RemoteAlias)
    path = "/".join(part for part in (found.account, found.name) if part)
    if _is_web(address):
        return f"{address.rstrip('/')}/{path}", path
    location = Location.parse(address)
    return location.model_copy(update={"prefix": f"{location.prefix}{path}/"}).uri, path


def _address_of(project: Project, repository: str) -> str | None:
    return next((address for name, address in repositories(project).items() if name == repository), None)


def _address(text: str) -> str:
    """An address as it is kept: a folder by its whole path. Raises `InvalidInput`."""
    if not _is_web(text):
        return Location.parse(text).uri
    check_url(text.partition("+")[2] if SMART.match(text) else text)
    if urlsplit(text).query or urlsplit(text).fragment:
        raise InvalidInput("The URL of a repository has a query or a fragment. Nothing was changed. Leave it out.")
    return text


def _is_web(text: str) -> bool:
    return text.lower().startswith(("http://", "https://")) or SMART.match(text) is not None


def _change(project: Project, change: Callable[[dict[Name, str]], dict[Name, str]]) -> None:
    require("name repository", project)

    def rewrite(data: bytes | None) -> bytes | None:
        known = {} if data is None else _parsed(data)
        changed = change(known)
        return None if changed == known else encode({str(name): {"url": url} for name, url in changed.items()})

    update_document(project.data, KEY, rewrite)


def _parsed(data: bytes) -> dict[Name, str]:
    try:
        return {Name(name): _address(members["url"]) for name, members in orjson.loads(data).items()}
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise IntegrityError(
            f"{KEY} cannot be read ({type(error).__name__}). Nothing was changed. Restore it, or delete it and name "
            "the repositories again."
        ) from error


def _unknown(name: str, known: dict[Name, str]) -> VersionNotFound:
    return VersionNotFound(
        f"No repository {name!a:.100}. There are: {', '.join(sorted(known)) or 'none'}. Nothing was changed."
    )
