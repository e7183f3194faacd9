"""What a user may say about a table, in one place for writing and reading."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dagster_versioned.engines.parts import MEBIBYTE, RowOrder, WriteOptions
from dagster_versioned.errors import InvalidInput

METADATA_KEY = "dagster_versioned/options"
"""The asset metadata key under which options travel."""


class TableOptions(BaseModel):
    """How an asset is stored as a versioned table.

    ``row_order``: whether the order of rows is part of what the table says; by default it is for Arrow, pandas and
    Polars frames, and it is not for Spark frames, which have none. ``sort_rows`` (column names) and ``sort_columns``
    make an identity that depends on neither order. ``single_part`` keeps a version in one file, so that datom readers
    can open it. ``table_type``: ``"imported"`` or ``"derived"``; by default what has parents is derived. ``custom``:
    JSON that becomes part of the version's identity. Sizes are in bytes.

    Source: seed 000 ("Computing data_sha": sort_columns, sort_rows); FORMAT.md ("A part", "Identity").
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row_order: RowOrder | None = None
    sort_columns: bool = False
    sort_rows: tuple[str, ...] = ()
    single_part: bool = False
    allow_empty: bool = False
    target_part_bytes: int = Field(default=256 * MEBIBYTE, gt=0)
    row_group_bytes: int = Field(default=128 * MEBIBYTE, gt=0)
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    table_type: Literal["imported", "derived"] | None = None
    custom: Mapping[str, Any] = Field(default_factory=dict)

    def as_metadata(self) -> dict[str, Any]:
        """The options as asset metadata: ``@asset(metadata=TableOptions(...).as_metadata())``."""
        return {METADATA_KEY: self.model_dump(mode="json", exclude_defaults=True)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any] | None) -> "TableOptions":
        """The options in an asset's metadata, or the defaults. Raises `InvalidInput`, naming the member."""
        raw = (metadata or {}).get(METADATA_KEY)
        if raw is None:
            return cls()
        try:
            return cls.model_validate(getattr(raw, "value", raw))
        except ValidationError as error:
            first = error.errors()[0]
            member = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(
                f"TableOptions in asset metadata: {member}: {first['msg']} (got {first.get('input')!r}). "
                "Nothing was written. Build them with TableOptions(...).as_metadata()."
            ) from error

    def write_options(self, partition: str | None) -> WriteOptions:
        """What an engine needs of the options to write one partition, or a whole table."""
        return WriteOptions(
            row_order=self.row_order,
            sort_columns=self.sort_columns,
            sort_rows=self.sort_rows,
            single_part=self.single_part,
            partition=partition,
            target_part_bytes=self.target_part_bytes,
            row_group_bytes=self.row_group_bytes,
            compression=self.compression,
            allow_empty=self.allow_empty,
        )
