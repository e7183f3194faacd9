"""What a storage key may be: the one place where keys are checked, for every backend.

Listings are in the order of the keys' UTF-8 bytes. That is the order of Python's `str` too (both order by code point),
so the stores compare keys as they are.
"""

import re

from dagster_versioned.errors import InvalidName

TEMPORARY = ".tmp"
"""Folder name under which a store keeps files that are not objects; reserved at every depth."""

MAX_KEY_BYTES = 1024  # S3's limit
MAX_SEGMENT_BYTES = 255  # ext4's and xfs's limit; enforced everywhere so that any table can move to a folder

# Control characters do not survive every listing, backslashes are separators elsewhere, lone surrogates are not UTF-8.
_REFUSED = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")


def check_key(key: str) -> str:
    """Return ``key`` if it names one object below a root; raises `InvalidName` before anything is touched."""
    fault = _fault(key)
    if fault:
        raise _refusal("key", key, fault)
    return key


def is_key(text: str) -> bool:
    """Whether `check_key` accepts ``text``."""
    return _fault(text) is None


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys can start with it: whole segments, then possibly the beginning of one."""
    folder, slash, beginning = prefix.rpartition("/")
    fault = (_fault(folder) if slash else None) or _character_fault(beginning)
    if fault:
        raise _refusal("prefix", prefix, fault)
    return prefix


def check_folder(prefix: str) -> str:
    """Return ``prefix`` if it is ``""`` or whole segments, each with its ``/``."""
    if prefix and not prefix.endswith("/"):
        raise _refusal("folder", prefix, "it does not end in '/'")
    return check_prefix(prefix)


def check_start(start_after: str) -> str:
    """Return ``start_after`` if it can be compared with keys; it need not be one."""
    fault = _character_fault(start_after)
    if fault:
        raise _refusal("start_after", start_after, fault)
    return start_after


def _fault(key: str) -> str | None:
    fault = _character_fault(key)
    if fault:
        return fault
    for segment in key.split("/"):
        if not segment:
            return "it is absolute, empty, or has an empty segment"
        if segment in (".", ".."):
            return f"the segment {segment!r} could leave the root"
        if segment == TEMPORARY:
            return f"the segment {TEMPORARY!r} is reserved for files in the making"
        if len(segment) * 4 > MAX_SEGMENT_BYTES and len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"a segment is longer than {MAX_SEGMENT_BYTES} bytes"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"it is longer than {MAX_KEY_BYTES} bytes"
    return None


def _character_fault(text: str) -> str | None:
    refused = _REFUSED.search(text)
    return f"it contains {refused.group()!r}" if refused else None


def _refusal(what: str, text: str, fault: str) -> InvalidName:
    return InvalidName(
        f"The storage {what} {text!r} is refused: {fault}. Nothing was touched. "
        "Use a relative path with '/' between segments and no '.' or '..' segment."
    )
