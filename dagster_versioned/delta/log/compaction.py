"""Log compaction files: the commits of a range as one, to be read in their stead. Protocol: *Log Compaction Files*."""

from dagster_versioned.delta.actions import encode_action
from dagster_versioned.delta.files.file_actions import in_order, to_adds, to_removes
from dagster_versioned.delta.log.commits import compaction_key
from dagster_versioned.delta.log.replay import Changes, read_changes
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore


def compact_log(store: ObjectStore, first: int, last: int) -> str:
    """Write the compaction of commits ``first`` to ``last``, both included; the key it has.

    Its bytes depend on the commits alone. Readers pass it over for the newest commit, whose own file says when it was
    made, and where the table asks for in-commit timestamps. Raises `InvalidInput` for less than two commits,
    `ObjectNotFound` if one is missing, `LogCorrupt` if one is malformed.
    """
    if not 0 <= first < last:
        raise InvalidInput(f"Versions {first} to {last} are not two or more commits. Nothing was written.")
    versions = range(first, last + 1)
    store.put(compaction_key(versions), _encode(read_changes(store, versions)))
    return compaction_key(versions)


def _encode(changes: Changes) -> bytes:
    newest = [changes.newest_protocol, changes.newest_metadata]
    others = [*changes.txns().values(), *changes.domains().values()]
    lines = [encode_action(action) for action in newest if action is not None]
    lines += sorted(map(encode_action, others))
    lines += map(encode_action, to_adds(in_order(changes.adds)))
    lines += map(encode_action, to_removes(in_order(changes.removes)))
    return b"".join(line + b"\n" for line in lines)
