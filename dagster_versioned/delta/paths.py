"""Paths in file actions: URIs in the log, object keys below the table's folder in the store."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias, cast
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.errors import LogCorrupt, UnsupportedFeature

compute: Any = pc  # The published stubs refuse scalars where these functions take them.

Column: TypeAlias = "pa.ChunkedArray[Any]"

# What a URI path segment may hold as it is (RFC 2396 *pchar* without the colon, which could read as a scheme).
_UNRESERVED = "/=@&+$,;!'()*~-._"

_UNUSUAL = r"%|:|\\|//|\x00|^/|^$|(^|/)\.\.?(/|$)"
"""A path without any of these is its own key."""

_UNUSUAL_COMPILED = re.compile(_UNUSUAL)
_PLAIN = re.compile(r"(?:[\w=-][\w.=-]*/)*[\w=-][\w.=-]*")
"""Most paths: nothing unusual, found in a quarter of the time."""
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FILE_URI = re.compile(r"file:(//)?(?=/)")
_CLOUD_URI = re.compile(r"(s3[an]?|gs|abfss?|az):/+")
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}
"""What Hadoop calls a scheme beside the name that it has here."""


def encode_path(key: str) -> str:
    """The ``path`` of a file action for an object key. Inverse of `decode_path`."""
    return quote(key, safe=_UNRESERVED)


def decode_path(path: str) -> str:
    """The canonical form of a ``path``: the object key of a relative one, the plain path of an absolute one.

    Two spellings of one file give one result, which is what reconciliation compares. Raises `LogCorrupt` where the
    path is no URI. Protocol: *Add File and Remove File*.
    """
    if _PLAIN.fullmatch(path) or not _UNUSUAL_COMPILED.search(path):
        return path
    if _BAD_ESCAPE.search(path):
        raise LogCorrupt(f"The path {path!r} is not a URI: it holds a percent sign without two hex digits.")
    try:
        plain = unquote(_FILE_URI.sub("", path, count=1), errors="strict")
    except UnicodeDecodeError as error:
        raise LogCorrupt(f"The path {path!r} is not a URI: its escapes are not UTF-8.") from error
    segments = [segment for segment in plain.split("/") if segment not in ("", ".")]
    return ("/" if plain.startswith("/") else "") + "/".join(segments)


def is_absolute(path: str) -> bool:
    """Whether a ``path`` says itself where it is, rather than below the table's folder."""
    return _SCHEME.match(path) is not None or decode_path(path).startswith("/")


def cloud_uri(place: str) -> str | None:
    """One spelling for a place in a cloud, whatever Hadoop calls its scheme and however many slashes are left.

    ``None`` for a place that is in none.
    """
    found = _CLOUD_URI.match(place)
    return f"{_SCHEMES.get(found[1], found[1])}://{place[found.end() :]}" if found else None


def confined_key(path: str) -> str:
    """The object key of a ``path`` that stays below the table's folder.

    Raises `UnsupportedFeature` for an absolute path and `LogCorrupt` for one that leaves the folder.
    """
    if _PLAIN.fullmatch(path) or not _UNUSUAL_COMPILED.search(path):
        return path
    if is_absolute(path):
        raise UnsupportedFeature(
            f"absolutePaths: the table refers to the file {path!r} outside its own folder, or by an absolute path. Its"
            " rows can be read (`read_delta` and `read_changes`, with `allow` for folders outside its own), but not"
            " changed. Nothing was read or written. To change its rows, write them to a new table."
        )
    key = decode_path(path)
    if not key or ".." in key.split("/") or "\\" in key or "\0" in key:
        raise LogCorrupt(f"The path {path!r} leaves the table's folder, or names no file in it. Nothing was read.")
    return key


def keys_of(paths: Column) -> Column:
    """`decode_path` of a column. Shares the column's memory where no path needs decoding."""
    return _where_unusual(paths, decode_path)


def confine(paths: Column, admitted: Callable[[str], str] = confined_key) -> None:
    """Check a column with `confined_key`, or what else says which paths are admitted; raises as it does."""
    _where_unusual(paths, admitted)


def _where_unusual(paths: Column, function: Callable[[str], str]) -> Column:
    unusual: Column = compute.match_substring_regex(paths, _UNUSUAL)
    if not compute.any(unusual).as_py():
        return paths
    odd = cast("list[str]", paths.filter(unusual).to_pylist())
    changed: Any = pa.array([function(path) for path in odd], pa.string())
    return pa.chunked_array([compute.replace_with_mask(paths.combine_chunks(), unusual.combine_chunks(), changed)])
