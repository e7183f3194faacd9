"""What is "the same"? Canonical JSON, names, the identity of a version, digests of rows, references to versions.

The digests come with numpy and pyarrow, so they are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.identity.names import TableName, partition_key, partition_path, table_name, table_name_of
from dagster_versioned.identity.reference import (
    AsOf,
    HeadReference,
    LogVersion,
    PinName,
    Reference,
    ShaPrefix,
    TagName,
    parse_reference,
)
from dagster_versioned.identity.version import (
    Change,
    Facts,
    Identity,
    Parent,
    Run,
    SourceVersion,
    VersionEntry,
    Writer,
    created_at_text,
    data_sha,
    partitions_sha,
)

if TYPE_CHECKING:
    from dagster_versioned.identity.digest import BagDigest, RowsDigest, SequenceDigest, row_lanes

__all__ = [
    "AsOf",
    "BagDigest",
    "Change",
    "Facts",
    "HeadReference",
    "Identity",
    "LogVersion",
    "Parent",
    "PinName",
    "Reference",
    "RowsDigest",
    "Run",
    "SequenceDigest",
    "ShaPrefix",
    "SourceVersion",
    "TableName",
    "TagName",
    "VersionEntry",
    "Writer",
    "canonical_json",
    "created_at_text",
    "data_sha",
    "parse_reference",
    "partition_key",
    "partition_path",
    "partitions_sha",
    "row_lanes",
    "table_name",
    "table_name_of",
]


def __getattr__(name: str) -> Any:
    if name in ("BagDigest", "RowsDigest", "SequenceDigest", "row_lanes"):
        return getattr(import_module("dagster_versioned.identity.digest"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
