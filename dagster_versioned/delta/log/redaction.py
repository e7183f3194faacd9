"""Entries of a log that lost what they told of rows, and how anyone sees that they lost nothing else.

A redacted entry says the SHA-256 that it had, and when it was committed. The entry after it has the SHA-256 of its
*outline*: its bytes without all that a redaction may take away. So nobody has to be believed who redacts.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from dagster_versioned.delta.actions import Add, CommitInfo, Remove

_DIGEST = re.compile(rb"(?<=(?:bag-xxh64x2|.seq-sha256):)[0-9a-f]+(?=:)")
"""The value in the text of a digest of rows."""

_PREDICATE = re.compile(
    rb'("(?:predicate|matchedPredicates|notMatchedPredicates|notMatchedBySourcePredicates)"\s*:\s*)"(?:[^"\\]|\\.)*"'
)
"""A condition that another program recorded of what it did, with the values in it."""

_CLAIM = re.compile(rb',?"dagsterVersionedRedacted":\{"sha256":"[0-9a-f]{64}","timestamp":-?\d+\}(?=\}\}\s*$)')
_PROVENANCE = b'{"commitInfo"'
_NOTHING = b'{"commitInfo":{}}'

Choice = Callable[[str], bool]
"""Whether the statistics of a file go that has this path, as the log spells it."""


def outline(data: bytes) -> bytes:
    """An entry without statistics of files, values of digests, and predicates; without saying that it is redacted.

    Where a commit came from is first, wherever the entry has it.
    """
    lines = [_without_claim(line) for line in redacted_lines(_DIGEST.sub(_zeros, data), lambda _: True)]
    first = [line for line in lines if line.startswith(_PROVENANCE) and line != _NOTHING]
    return b"\n".join([*first, *(line for line in lines if not line.startswith(_PROVENANCE))])


def outline_sha256(data: bytes) -> str:
    """The SHA-256 of the `outline` of an entry."""
    return hashlib.sha256(outline(data)).hexdigest()


def redacted_lines(data: bytes, choice: Choice) -> Iterator[bytes]:
    """The lines of an entry without the statistics of chosen files, and without predicates."""
    for line in data.split(b"\n"):
        if b'"stats"' in line:
            yield _without_statistics(line, choice)
        elif b'"commitInfo"' in line:
            yield _PREDICATE.sub(rb'\1"[]"', line)
        else:
            yield line


def hide_digest(data: bytes, digest: str) -> bytes:
    """An entry in which a digest of rows has zeros for a value."""
    return data.replace(digest.encode(), _DIGEST.sub(_zeros, b" " + digest.encode())[1:])


def claim(data: bytes, sha256: str, timestamp_ms: int) -> bytes:
    """A redacted entry that says, in its first line, what its SHA-256 was, and when it was committed."""
    said = b'"dagsterVersionedRedacted":{"sha256":"%s","timestamp":%d}' % (sha256.encode(), timestamp_ms)
    lines = data.split(b"\n")
    for at, line in enumerate(lines):
        if b'"commitInfo"' in line and isinstance(info := orjson.loads(line).get(CommitInfo.NAME), dict):
            if CommitInfo.REDACTED in info:
                return data
            stripped = line.rstrip()
            made = stripped[:-2].rstrip() + (b"," if info else b"") + said + b"}}"
            if not stripped.endswith(b"}}") or len(orjson.loads(line)) > 1:  # no writer is known that writes so
                made = orjson.dumps({CommitInfo.NAME: {**info, **orjson.loads(b"{%s}" % said)}})
            return b"\n".join([made, *lines[:at], *lines[at + 1 :]])
    return b'{"commitInfo":{%s}}\n' % said + data


def _without_statistics(line: bytes, choice: Choice) -> bytes:
    parsed: dict[str, Any] = orjson.loads(line)
    for kind in (Add.NAME, Remove.NAME):
        action: dict[str, Any] = parsed.get(kind) or {}
        if "stats" in action and choice(action["path"]):
            del action["stats"]
            return orjson.dumps(parsed)
    return line


def _without_claim(line: bytes) -> bytes:
    return _CLAIM.sub(b"", line) if b"dagsterVersionedRedacted" in line else line


def _zeros(found: "re.Match[bytes]") -> bytes:
    return b"0" * len(found[0])
