"""Entries of a log that lost what they told of rows, and how anyone sees that they lost nothing else.

A redacted entry says the SHA-256 that it had, and when it was committed. The entry after it has the SHA-256 of its
*outline*: what it says but for all that a redaction may take away. So nobody has to be believed who redacts.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from dagster_versioned.delta.actions import Add, CommitInfo, DomainMetadata, Remove, without_rest

OWN: Final = "dagsterVersioned"
"""The member of ``commitInfo`` that is of this package."""

OWN_DOMAIN: Final = "dagster_versioned.version"
"""How the metadata domains begin that say what a head is."""

_DIGEST = re.compile(r"(?<=:)[0-9a-f]+(?=:)")
"""The value in the text of a digest of rows."""

_CONDITION = re.compile(r".*(predicates?|condition|where)", re.IGNORECASE)
"""Parameters of other programs' operations that are conditions, with the values in them."""


@dataclass(frozen=True)
class Choice:
    """What an entry tells no more: the statistics of files of these ``paths``, as the log spells them, and these
    ``digests`` of rows."""

    path: Callable[[str], bool]
    digest: Callable[[str], bool]


_EVERYTHING = Choice(lambda _: True, lambda _: True)


def outline(data: bytes) -> bytes:
    """What an entry says but for statistics of files, values of digests, conditions, and that it is redacted.

    Where a commit came from is first, wherever the entry has it. Members are in the order of their names.
    """
    first: list[bytes] = []
    others: list[bytes] = []
    for line in data.split(b"\n"):
        action = _action(line)
        if action is None:
            others += [line] if line.strip() else []
            continue
        _clear(action, _EVERYTHING)
        info = _member(action, CommitInfo.NAME)
        if info is not None:
            info.pop(CommitInfo.REDACTED, None)
        if action != {CommitInfo.NAME: {}}:
            (others if info is None else first).append(orjson.dumps(action, option=orjson.OPT_SORT_KEYS))
    return b"\n".join([*first, *others])


def outline_sha256(data: bytes) -> str:
    """The SHA-256 of the `outline` of an entry."""
    return hashlib.sha256(outline(data)).hexdigest()


def redacted_lines(data: bytes, choice: Choice) -> bytes:
    """An entry without what is chosen, and without conditions; the other lines are as they were."""
    return b"\n".join(_redacted(line, choice) for line in data.split(b"\n"))


def claim(data: bytes, sha256: str, timestamp_ms: int) -> bytes:
    """A redacted entry that says, in its first line, what its SHA-256 was, and when it was committed."""
    said = {CommitInfo.REDACTED: {"sha256": sha256, "timestamp": timestamp_ms}}
    lines = data.split(b"\n")
    for at, line in enumerate(lines):
        action = _action(line) if b'"commitInfo"' in line else None
        if action is not None and (info := _member(action, CommitInfo.NAME)) is not None:
            if CommitInfo.REDACTED in info:
                return data
            made = orjson.dumps({**action, CommitInfo.NAME: {**info, **said}})
            return b"\n".join([made, *lines[:at], *lines[at + 1 :]])
    return orjson.dumps({CommitInfo.NAME: said}) + b"\n" + data


def repeats_members(data: bytes) -> bool:
    """Whether an object in an entry has a member twice, of which other programs may read the other one."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise _RepeatedMember
        return found

    try:
        for line in data.split(b"\n"):
            if _action(line) is not None:
                json.loads(without_rest(line), object_pairs_hook=members)
    except _RepeatedMember:
        return True
    return False


class _RepeatedMember(Exception):
    pass


def _redacted(line: bytes, choice: Choice) -> bytes:
    action = _action(line)
    return orjson.dumps(action) if action is not None and _clear(action, choice) else line


def _action(line: bytes) -> dict[str, Any] | None:
    """What a line says; ``None`` of one that is no object."""
    try:
        action: object = orjson.loads(without_rest(line))
    except orjson.JSONDecodeError:
        return None
    return cast("dict[str, Any]", action) if isinstance(action, dict) else None


def _member(members: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = members.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _clear(action: dict[str, Any], choice: Choice) -> bool:
    """Take what is chosen out of an action, and conditions; whether it had any."""
    changed = False
    for kind in (Add.NAME, Remove.NAME):
        file = _member(action, kind)
        if file is not None and "stats" in file and choice.path(str(file.get("path"))):
            del file["stats"]
            changed = True
    if (info := _member(action, CommitInfo.NAME)) is not None:
        changed |= _clear_conditions(_member(info, "operationParameters") or {})
        for facts in _facts(info):
            changed |= _hide_digest(facts, choice)
    domain = _member(action, DomainMetadata.NAME)
    if domain is not None and str(domain.get("domain")).partition("/")[0] == OWN_DOMAIN:
        said = _action(str(domain.get("configuration")).encode())
        if said is not None and _hide_digest(said, choice):
            domain["configuration"] = orjson.dumps(said).decode()
            changed = True
    return changed


def _clear_conditions(parameters: dict[str, Any]) -> bool:
    found = [name for name, value in parameters.items() if _CONDITION.fullmatch(name) and value != "[]"]
    parameters |= dict.fromkeys(found, "[]")
    return bool(found)


def _facts(info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What has digests of rows of the versions that a commit makes; identities, which versions are named by, are as
    they were."""
    versions = (_member(info, OWN) or {}).get("versions")
    for version in cast("list[object]", versions) if isinstance(versions, list) else ():
        facts = _member(cast("dict[str, Any]", version), "facts") if isinstance(version, dict) else None
        if facts is not None:
            yield from (each for each in (facts, _member(facts, "added")) if each is not None)


def _hide_digest(members: dict[str, Any], choice: Choice) -> bool:
    text = members.get("digest")
    if not isinstance(text, str) or not choice.digest(text):
        return False
    members["digest"] = hidden = _DIGEST.sub(lambda found: "0" * len(found[0]), text)
    return hidden != text
