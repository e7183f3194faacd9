"""What a user may say about a table, in one place for writing and reading."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import RowOrder
from dagster_versioned.tables.configuration import DELETION_VECTORS, SETTABLE, TAKEN_BY_PERSONAL, why_not_settable
from dagster_versioned.tables.event_history import EventHistory

if TYPE_CHECKING:
    from dagster_versioned.engines.parts import WriteOptions

METADATA_KEY = "dagster_versioned/options"
"""The asset metadata key under which options travel."""

_NOT_OF_EVENTS = (
    "mode",
    "refresh",
    "row_order",
    "sort_columns",
    "sort_rows",
    "single_part",
    "partition_columns",
    "cluster_by",
    "constraints",
    "personal_columns",
)
"""Options that a history of events leaves as by default."""


class TableOptions(BaseModel):
    """How an asset is stored as a versioned table.

    Source: seed 000 ("Computing data_sha": sort_columns, sort_rows); FORMAT.md ("A part", "Identity").
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    mode: Literal["replace", "append", "merge"] = "replace"
    """Whether rows ``replace`` those of the table (or partition), are appended to them, or merged into them by key.

    What is appended or merged may bring new columns, and lacks none; such tables are sets of rows, without an order.
    """
    refresh: Literal["whole", "changed_rows"] = "whole"
    """With ``mode="replace"``: whether a version is stored ``whole``, or only the ``changed_rows``, beside the files of
    the version before, where that takes less.

    Rows are compared as wholes, without a key; those that are gone stay in these files, and readers pass over them by
    deletion vectors. Such a table is a set of rows, without an order. Spark frames are stored whole for now, and so is
    what waits for checks.
    """
    merge_key: tuple[str, ...] = ()
    """With ``mode="merge"``: the columns by which a row takes the place of a stored one."""
    row_order: RowOrder | None = None
    """Whether the order of rows is part of a version's identity (``"significant"``) or not (``"ignored"``).

    By default it is for Arrow, pandas and Polars frames, and is not for Spark frames, which have none.
    """
    sort_columns: bool = False
    """Store columns by name, so that the identity does not depend on their order."""
    sort_rows: tuple[str, ...] = ()
    """Store rows by these columns, so that the identity does not depend on their order."""
    single_part: bool = False
    """Keep a version in one file, so that datom readers can open it."""
    allow_empty: bool = False
    """Write a frame without rows; by default it is refused, as most often it is a mistake."""
    target_part_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    """The size of a part at which another one is begun, in bytes."""
    row_group_bytes: int = Field(default=128 * 1024 * 1024, gt=0)
    """The size of a row group of a part, in bytes before compression."""
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    """How the pages of parts are compressed."""
    table_type: Literal["imported", "derived"] | None = None
    """What the version is, for datom; by default one that has parents is derived."""
    custom: Mapping[str, Any] = Field(default_factory=dict)
    """JSON that becomes part of the version's identity."""
    partition_columns: tuple[str, ...] = ()
    """Columns of which the rows of each combination of values are stored in files of their own.

    Readers that ask for other values pass over these files; such a table has no order of rows.
    """
    cluster_by: tuple[str, ...] | None = None
    """Columns by which the rows of each write are sorted, so that readers that ask for few values pass over files.

    Such a table has no order of rows. ``None`` leaves the columns that the table has, ``()`` takes them away.
    """
    constraints: Mapping[str, str] | None = None
    """Conditions in Spark's SQL, by name, that every row satisfies.

    A write with a row for which one is false or null is refused. ``None`` leaves those that the table has, ``{}`` takes
    them away.
    """
    personal_columns: tuple[str, ...] | None = None
    """Columns of which nothing is to be found beside their values: no bounds in files, log or documents.

    No file of such a table tells by its name what is in it. ``None`` leaves those that the table has, ``()`` none.
    """
    known_personal_columns: tuple[str, ...] = ()
    """Those that the table has; filled in as rows are written, and not to be given."""
    properties: Mapping[str, str] = Field(default_factory=dict)
    """Table properties to set, for other programs: `configuration.SETTABLE`, and any without the prefix ``delta.``."""
    publish: Literal["at_once", "after_checks"] | None = None
    """When what a step writes becomes current: as it is written, or once every blocking check has passed for it.

    ``None`` is as the IO manager says.
    """
    history: EventHistory | None = None
    """How rows become events, where the table is a history of events; it has the order of these, and no ``mode``."""

    @model_validator(mode="after")
    def _fits_the_mode(self) -> Self:
        if (self.mode == "merge") != bool(self.merge_key):
            raise ValueError("mode='merge' goes with a merge_key, and no other mode does")
        if self.partition_columns and self.cluster_by:
            raise ValueError("no table has both partition_columns and cluster_by")
        for name in _NOT_OF_EVENTS if self.history is not None else ():
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"history makes events of rows, one slice a write: leave out {name}={value!r}")
        return self

    @model_validator(mode="after")
    def _fits_a_refresh(self) -> Self:
        if self.refresh == "changed_rows":
            if self.mode != "replace":
                raise ValueError(f"mode={self.mode!r} stores what is new as it is: leave out refresh")
            if self.personal_columns:
                raise ValueError("rows that are gone stay in files, so refresh='changed_rows' has no personal columns")
            if self.properties.get(DELETION_VECTORS, "true") != "true":
                raise ValueError(f"refresh='changed_rows' needs {DELETION_VECTORS}: leave that property out")
        return self

    @model_validator(mode="after")
    def _fits_a_set(self) -> Self:
        what = self._what_makes_a_set
        if self._is_a_set and (self.row_order == "significant" or self.sort_rows):
            raise ValueError(f"{what} makes a set of rows: leave out row_order and sort_rows")
        if self.single_part and self._makes_parts:
            raise ValueError(f"{what} makes several parts, so single_part cannot be kept")
        return self

    @model_validator(mode="after")
    def _hides_personal_columns(self) -> Self:
        personal = self.personal_columns or ()
        if shown := [name for name in personal if name in {*self.partition_columns, *(self.cluster_by or ())}]:
            raise ValueError(f"files and logs tell values of {shown[0]!r}, so it is no personal column")
        if personal and self.properties.keys() & TAKEN_BY_PERSONAL:
            raise ValueError("which columns have statistics follows from personal_columns: leave that property out")
        return self

    @field_validator("merge_key", "partition_columns", "cluster_by", "personal_columns")
    @classmethod
    def _each_once(cls, columns: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if len(set(columns or ())) < len(columns or ()):
            raise ValueError(f"{info.field_name} names a column twice: {list(columns or ())}")
        return columns

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
                raise ValueError(why_not_settable(key))
        return properties

    @property
    def _what_makes_a_set(self) -> str:
        named = [name for name in ("partition_columns", "cluster_by") if getattr(self, name)]
        if self.refresh == "changed_rows":
            named = ["refresh='changed_rows'"]
        return named[0] if named else f"mode={self.mode!r}"

    @property
    def _makes_parts(self) -> bool:
        return self.mode != "replace" or bool(self.partition_columns) or self.refresh == "changed_rows"

    @property
    def _is_a_set(self) -> bool:
        refreshes = self.refresh == "changed_rows"
        return self.mode != "replace" or refreshes or bool(self.partition_columns or self.cluster_by)

    @property
    def hidden_columns(self) -> tuple[str, ...]:
        """The columns of which files, errors and reports say nothing."""
        return self.known_personal_columns if self.personal_columns is None else self.personal_columns

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

    def write_options(self, partition: str | None) -> "WriteOptions":
        """What an engine needs of the options to write one partition, or a whole table."""
        from dagster_versioned.engines.parts import WriteOptions

        return WriteOptions(
            row_order="ignored" if self._is_a_set else self.row_order,
            partition_columns=self.partition_columns,
            cluster_by=self.cluster_by or (),
            sort_columns=self.sort_columns,
            sort_rows=self.sort_rows,
            single_part=self.single_part,
            partition=partition,
            target_part_bytes=self.target_part_bytes,
            row_group_bytes=self.row_group_bytes,
            compression=self.compression,
            personal=self.hidden_columns,
            allow_empty=self.allow_empty,
        )
