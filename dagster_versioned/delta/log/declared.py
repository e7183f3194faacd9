"""What a table's log declares, read even where this package could not read the table itself."""

from dataclasses import dataclass

from dagster_versioned.delta.actions import Metadata, Protocol, first_of
from dagster_versioned.delta.features import reader_features, require_protocol_read, require_write, writer_features
from dagster_versioned.delta.log.checkpoint_read import read_checkpoint
from dagster_versioned.delta.log.commits import list_log, read_commit
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature
from dagster_versioned.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class FeatureSupport:
    """One feature of a table's protocol, and whether it is implemented here.

    ``reader``: whether programs that only read must know it, too.
    """

    name: str
    reader: bool
    can_read: bool
    can_write: bool


def declared_protocol(store: ObjectStore) -> Protocol:
    """The protocol of the newest version, whatever it asks. Raises `TableNotFound`, `LogCorrupt`."""
    segment = list_log(store)
    for version in reversed(segment.commits):
        if protocol := read_commit(store, version).protocol:
            return protocol
    actions = read_checkpoint(store, segment.checkpoint).actions if segment.checkpoint else ()
    if protocol := first_of(actions, Protocol):
        return protocol
    raise LogCorrupt(f"The log of {store.uri} holds no protocol action. Nothing was read.")


def feature_support(protocol: Protocol) -> list[FeatureSupport]:
    """Every feature that a protocol asks for, by its versions or its lists, in order of names."""
    readers = reader_features(protocol)
    return [
        FeatureSupport(
            name,
            name in readers,
            name not in readers or _is_accepted(name, reading=True),
            _is_accepted(name, reading=False) and (name not in readers or _is_accepted(name, reading=True)),
        )
        for name in sorted(readers | writer_features(protocol))
    ]


def _is_accepted(feature: str, *, reading: bool) -> bool:
    protocol = Protocol(3, 7, (feature,), (feature,)) if reading else Protocol(1, 7, None, (feature,))
    try:
        if reading:
            require_protocol_read(protocol)
        else:
            require_write(protocol, Metadata("", StructType(()).json()))
    except UnsupportedFeature:
        return False
    return True
