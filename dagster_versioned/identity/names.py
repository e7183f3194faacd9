"""Names of projects, environments, tags, tables and partitions, and what they are in a path."""

import re
from collections.abc import Sequence
from typing import Self
from urllib.parse import quote, unquote_to_bytes

from dagster_versioned.errors import InvalidName

DATA_FOLDER = "datom"
"""The folder of a project that has its tables."""

RESERVED = frozenset({".metadata", ".datom", "input_files", "datom", ".git", ".gitignore", "renv"})
"""Folder names that datom keeps for itself, in lower case."""

MAX_PARTITION_BYTES = 200
"""The longest partition key in its encoded form: file systems end at 255 bytes a segment, and suffixes need room."""

_TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ ()-]{0,127}")


_OTHER_NAMES = ("prod", "main", "master", "base", "default", "none", "head")
PRODUCTION = "production"
"""What the project itself is called where an environment is asked for."""

_ENVIRONMENT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_TAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class TableName(str):
    """A table's name, which is also its folder.

    Promises datom's rule: a letter, then up to 127 of letters, digits, space and ``_ ( ) -``, all ASCII, and no
    reserved name in any case. So it has no separator, no dot, and nothing that a path or an S3 key would have to
    escape. Raises `InvalidName`.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not _TABLE_NAME.fullmatch(text):
            raise InvalidName(
                f"{text!a:.200} is not a table name: it must be an ASCII letter followed by up to 127 ASCII letters, "
                "digits, spaces, or any of _ ( ) -. Nothing was written. Rename the table or its asset key."
            )
        if text.lower() in RESERVED:
            raise InvalidName(f"The table name {text!r} is reserved. Nothing was written. Choose another name.")
        return super().__new__(cls, text)


def table_name(text: str) -> TableName:
    """The text as a checked table name. Raises `InvalidName`."""
    return TableName(text)


def table_name_of(asset_key: Sequence[str]) -> TableName:
    """The table of an asset key: its parts joined with ``__``.

    Two keys may give one name (``["a__b"]`` and ``["a", "b"]``); the identity records the key, so a write whose key
    differs from the table's is refused there. Raises `InvalidName`.
    """
    if isinstance(asset_key, str) or not asset_key or not all(asset_key):
        raise InvalidName(
            f"The asset key {asset_key!a:.200} is not a list of parts that are all non-empty. Nothing was written."
        )
    try:
        return TableName("__".join(asset_key))
    except InvalidName as error:
        raise InvalidName(f"The asset key {list(asset_key)!a:.200} gives no table name. {error}") from None


def check_project_name(name: str) -> str:
    """The name itself, if a project can have it: not empty, no slash, no spaces around it. Raises `InvalidName`."""
    if not name or "/" in name or name != name.strip():
        raise InvalidName(f"A project needs a name without slashes or outer spaces, not {name!r:.100}.")
    return name


def check_environment_name(name: str) -> str:
    """The name itself, if an environment can have it: lower case, digits and hyphens, 1 to 63. Raises `InvalidName`."""
    if name in _OTHER_NAMES or name == PRODUCTION:
        raise InvalidName(
            f"{name!r} is a name for production, which is called {PRODUCTION!r} here and is no environment. Nothing "
            "was opened. Choose another name for the environment."
        )
    if not _ENVIRONMENT_NAME.fullmatch(name):
        raise InvalidName(
            f"{name!a:.100} is no name of an environment: 1 to 63 of a-z, 0-9 and '-', with no '-' at either end. "
            "Nothing was opened. Choose another name."
        )
    return name


def is_tag_name(name: str) -> bool:
    """Whether a tag can have the name: a letter or digit, then up to 99 of letters, digits and ``. _ -``, all ASCII."""
    return _TAG_NAME.fullmatch(name) is not None


def check_tag_name(name: str) -> str:
    """The name itself, if it `is_tag_name`. Raises `InvalidName`."""
    if not is_tag_name(name):
        raise InvalidName(
            f"{name!a:.100} is no name of a tag: an ASCII letter or digit, then up to 99 of these and '.', '_', '-'. "
            "Nothing was changed. Choose another name."
        )
    return name


def check_partition_key(key: str) -> str:
    """The key itself, if it can name a partition: not empty, no NUL, text that UTF-8 can hold. Raises `InvalidName`."""
    if not _is_text(key) or not key or "\0" in key:
        raise InvalidName(
            f"The partition key {key!a:.200} is no text, is empty or holds a NUL. Nothing was written. Use another key."
        )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidName(
            f"The partition key {key!a:.200} is not Unicode (a lone surrogate). Nothing was written."
        ) from None
    return key


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def partition_path(key: str) -> str:
    """The partition key as one path segment; `partition_key` is the way back.

    Every UTF-8 byte but ``A-Z a-z 0-9 _ -`` is percent-encoded; ``.`` too, if the key is made of dots alone. Raises
    `InvalidName` for an empty key, and for one that is longer than 200 bytes when encoded.
    """
    check_partition_key(key)
    # quote() leaves "~" and "." alone besides the letters, digits, "_" and "-".
    encoded = quote(key, safe="").replace("~", "%7E")
    if not key.strip("."):
        encoded = key.replace(".", "%2E")
    if len(encoded) > MAX_PARTITION_BYTES:
        raise InvalidName(
            f"The partition key {key!a:.100} takes {len(encoded)} bytes in a path; at most {MAX_PARTITION_BYTES} fit. "
            "Nothing was written. Use a shorter key."
        )
    return encoded


def partition_key(path: str) -> str:
    """The partition key whose `partition_path` is the given segment. Raises `InvalidName` if there is none."""
    try:
        key = unquote_to_bytes(path).decode()
        if partition_path(key) == path:
            return key
    except (UnicodeError, InvalidName):
        pass
    raise InvalidName(f"{path!a:.300} is not an encoded partition key. Nothing was changed.")
