"""What a user may say about a table, in one place for writing and reading."""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dagster_versioned.engines.parts import MEBIBYTE, RowOrder, WriteOptions
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.configuration import SETTABLE
from dagster_versioned.tables.event_history import EventHistory

METADATA_KEY = "dagster_versioned/options"
"""The asset metadata key under which options travel."""


class TableOptions(BaseModel):
    """How an asset is stored as a versioned table.

    ``mode``: whether the rows of an asset ``replace`` those of its table (or partition), ``append`` to them, or
    ``merge`` into them, each in the place of the row that has the same values in the columns ``merge_key``. What is
    appended or merged may bring new columns, and lacks none; such tables are sets of rows, without an order.

    ``history``: the table is a history of events, and rows become events as it says (`EventHistory`); such a table has
    an order, that of its events, and ``mode`` says nothing of it.

    ``partition_columns``: the rows of each combination of their values are stored in files of their own, which readers
    that ask for other values pass over; such a table has no order of rows.

    ``constraints``: conditions in Spark's SQL, by name, that every row satisfies; a write with a row for which one is
    false or null is refused. ``None`` leaves those that the table has, ``{}`` takes them away. ``properties``: table
    properties to set, for other programs to see (`configuration.SETTABLE`, and any without the prefix ``delta.``).

    ``row_order``: whether the order of rows is part of what the table says; by default it is for Arrow, pandas and
    Polars frames, and it is not for Spark frames, which have none. ``sort_rows`` (column names) and ``sort_columns``
    make an identity that depends on neither order. ``single_part`` keeps a version in one file, so that datom readers
    can open it. ``table_type``: ``"imported"`` or ``"derived"``; by default what has parents is derived. ``custom``:
    JSON that becomes part of the version's identity. Sizes are in bytes.

    Source: seed 000 ("Computing data_sha": sort_columns, sort_rows); FORMAT.md ("A part", "Identity").
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["replace", "append", "merge"] = "replace"
    merge_key: tuple[str, ...] = ()
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
    partition_columns: tuple[str, ...] = ()
    constraints: Mapping[str, str] | None = None
    properties: Mapping[str, str] = Field(default_factory=dict)
    history: EventHistory | None = None

    @model_validator(mode="after")
    def _fits_the_mode(self) -> Self:
        if (self.mode == "merge") != bool(self.merge_key):
            raise ValueError("mode='merge' goes with a merge_key, and no other mode does")
        if len(set(self.merge_key)) < len(self.merge_key):
            raise ValueError(f"merge_key names a column twice: {list(self.merge_key)}")
        if len(set(self.partition_columns)) < len(self.partition_columns):
            raise ValueError(f"partition_columns names a column twice: {list(self.partition_columns)}")
        if self.history is not None:
            for name in (
                "mode",
                "row_order",
                "sort_columns",
                "sort_rows",
                "single_part",
                "partition_columns",
                "constraints",
            ):
                if (value := getattr(self, name)) != type(self).model_fields[name].default:
                    raise ValueError(f"history makes events of rows, one slice a write: leave out {name}={value!r}")
        if self._is_a_set:
            what = "partition_columns" if self.partition_columns else f"mode={self.mode!r}"
            if self.row_order == "significant" or self.sort_rows:
                raise ValueError(f"{what} makes a set of rows: leave out row_order and sort_rows")
            if self.single_part:
                raise ValueError(f"{what} makes several parts, so single_part cannot be kept")
        return self

    @field_validator("constraints")
    @classmethod
    def _named(cls, constraints: Mapping[str, str] | None) -> Mapping[str, str] | None:
        for name in constraints or ():
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,127}", name):
                raise ValueError(f"a constraint is named by letters, digits and underscores, not {name!r:.100}")
        return constraints

    @field_validator("properties")
    @classmethod
    def _settable(cls, properties: Mapping[str, str]) -> Mapping[str, str]:
        for key in properties:
            if key.startswith("delta.") and key not in SETTABLE:
                raise ValueError(
                    f"{key} cannot be set on a versioned table; of Delta's can {', '.join(sorted(SETTABLE))}"
                )
        return properties

    @property
    def _is_a_set(self) -> bool:
        return self.mode != "replace" or bool(self.partition_columns)

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
            row_order="ignored" if self._is_a_set else self.row_order,
            partition_columns=self.partition_columns,
            sort_columns=self.sort_columns,
            sort_rows=self.sort_rows,
            single_part=self.single_part,
            partition=partition,
            target_part_bytes=self.target_part_bytes,
            row_group_bytes=self.row_group_bytes,
            compression=self.compression,
            allow_empty=self.allow_empty,
        )
