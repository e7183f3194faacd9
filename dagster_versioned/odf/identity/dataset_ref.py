"""How people name datasets. Source: seed 002 ("Aliases and References").

Names are compared without regard to case, and kept as they were written.
"""

import re
from dataclasses import dataclass
from typing import Final

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.identity.dataset_id import DatasetId

_HOSTNAME: Final = re.compile(r"[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*(?:\.[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*)*")
_URL: Final = re.compile(r"[a-zA-Z0-9]+(?:\+[a-zA-Z0-9]+)*://[^\n]+")
_DID: Final = "did:odf:"


class Name(str):
    """The name of a dataset, an account or a repository: words of letters and digits, joined by ``-`` and ``.``.

    The constructor raises `InvalidInput`.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> "Name":
        if not _HOSTNAME.fullmatch(text):
            raise InvalidInput(
                f"{text!a:.100} names no dataset, account or repository: a name is words of letters and digits, "
                "joined by '-' and '.'. Nothing was changed."
            )
        return super().__new__(cls, text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.lower())


@dataclass(frozen=True, slots=True)
class DatasetAlias:
    """A dataset of this workspace, or of an account in it: ``[account/]name``."""

    name: Name
    account: Name | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (self.account, self.name) if part)


@dataclass(frozen=True, slots=True)
class RemoteAlias:
    """A dataset of a repository: ``repository/[account/]name``."""

    repository: Name
    name: Name
    account: Name | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (self.repository, self.account, self.name) if part)


@dataclass(frozen=True, slots=True)
class RemoteId:
    """A dataset by its identity, in a repository or wherever it is found: ``[repository/]did:odf:…``."""

    dataset_id: DatasetId
    repository: Name | None = None

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.repository, self.dataset_id) if part)


@dataclass(frozen=True, slots=True)
class DatasetUrl:
    """A dataset at a URL."""

    url: str

    def __str__(self) -> str:
        return self.url


DatasetRef = DatasetId | DatasetAlias
RemoteRef = RemoteId | RemoteAlias | DatasetUrl


def parse_ref(text: str) -> DatasetRef:
    """The dataset of this workspace that a text refers to. Raises `InvalidInput`."""
    if text.startswith(_DID):
        return DatasetId.parse(text)
    match text.split("/"):
        case [name]:
            return DatasetAlias(Name(name))
        case [account, name]:
            return DatasetAlias(Name(name), Name(account))
        case _:
            raise _refused(text, "[account/]name")


def parse_remote_ref(text: str) -> RemoteRef:
    """The dataset of a repository that a text refers to. Raises `InvalidInput`."""
    if _URL.fullmatch(text):
        return DatasetUrl(text)
    match text.split("/"):
        case [dataset_id] if dataset_id.startswith(_DID):
            return RemoteId(DatasetId.parse(dataset_id))
        case [repository, dataset_id] if dataset_id.startswith(_DID):
            return RemoteId(DatasetId.parse(dataset_id), Name(repository))
        case [repository, name]:
            return RemoteAlias(Name(repository), Name(name))
        case [repository, account, name]:
            return RemoteAlias(Name(repository), Name(name), Name(account))
        case _:
            raise _refused(text, "repository/[account/]name or a URL")


def _refused(text: str, grammar: str) -> InvalidInput:
    return InvalidInput(f"{text!a:.200} refers to no dataset: write {_DID}…, or {grammar}. Nothing was changed.")
