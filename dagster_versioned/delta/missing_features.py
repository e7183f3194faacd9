"""Features of the protocol, and of its drafts, that are not implemented: by name, with what to do about a table.

Source: the protocol's text and drafts, and the features of the reference, as they are in August 2026.
"""

_CATALOG = (
    "A catalog decides which of its commits count, and its folder alone may show an older state: use it by an engine"
    " that is connected to the catalog, or have one copy its rows to another table."
)
_REDIRECTED = "It stands for a table in another place: use that one."
_ICEBERG = "Write to it by an engine that keeps Iceberg's metadata in step."
_TYPE = "Have a program that knows the type copy the table with the column cast to another type."

ADVICE = {
    "adaptiveMetadata": "Have a program that knows Iceberg's metadata tree copy its rows to another table.",
    "catalogManaged": _CATALOG,
    "collations": "Write to it by an engine that orders text by collations, or copy its rows to a table without them.",
    "coordinatedCommits": _CATALOG,
    "columnMappingUsageTracking": "Drop the feature, which no reader depends on, or write by another engine.",
    "geospatial": _TYPE,
    "icebergCompatV3": _ICEBERG,
    "icebergWriterCompatV1": _ICEBERG,
    "icebergWriterCompatV3": _ICEBERG,
    "redirectReaderWriter": _REDIRECTED,
    "redirectWriterOnly": _REDIRECTED,
    "timestampNanos": _TYPE,
}
"""What to do about a table that uses a feature, by the feature's name without the end that its draft had."""

EARLIER_NAMES = {"catalogOwned": "catalogManaged"}
"""What a feature was called in a draft."""

_ANOTHER = "Use a newer release, or a program that implements it."


def advice(feature: str) -> str:
    """What to do about a table that uses a feature which is not implemented."""
    name = feature.removesuffix("-preview").removesuffix("-dev")
    return ADVICE.get(EARLIER_NAMES.get(name, name), _ANOTHER)
