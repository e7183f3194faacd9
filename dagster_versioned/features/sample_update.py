"""Rows in the place of samples of a table: what is computed from a version goes onto that version, or nowhere."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.engine import Engine
from dagster_versioned.engines.parts import RowsSummary
from dagster_versioned.engines.samples import require_columns
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import RowMatch, require_key
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.sample_schema import updated_schema
from dagster_versioned.tables.write.addition import Addition
from dagster_versioned.tables.write.constraints import require_frame
from dagster_versioned.tables.write.pending import HeadParts, OwnWrite, PendingWrite, VersionDescription
from dagster_versioned.tables.write.stage import stage


@dataclass(frozen=True)
class SampleUpdate(OwnWrite):
    """What a table of samples lacks, and what it has too much, compared with what its upstreams say.

    ``frame`` has the table's columns, those of versions among them, and one row for each of its ``ids``. ``gone`` has
    the columns ``on``: units that go, be there rows of them or not. Stored rows that agree in ``on`` with a row of
    either go, and those with the ids of a row of the frame; then the frame's rows are added. Both are frames of one
    engine, and either may have no rows. ``on`` are the ids, or fewer columns where one unit has several rows.

    With ``gone=None`` the frame is all that there is: whatever is stored goes, columns that the frame lacks with it.

    ``base`` is the ``metadata_sha`` of the head that all this was computed from, ``None`` where there was none.
    ``custom`` becomes part of the version's identity, beside what `TableOptions` says. Raises `InvalidInput`.
    """

    frame: Any
    gone: Any
    on: tuple[str, ...]
    ids: tuple[str, ...]
    base: str | None
    custom: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name in ("ids", "on"):
            columns: Sequence[str] = getattr(self, name)
            if not columns or isinstance(columns, str) or len(set(columns)) < len(columns):
                raise InvalidInput(
                    f"{name} of a SampleUpdate must name columns, each once, and is {columns!r:.100}. Nothing was "
                    "written."
                )

    def stage(
        self,
        partition: str | None,
        description: VersionDescription,
        staging: Staging,
        options: TableOptions,
        constraints: Mapping[str, str],
        pinned: ExitStack,
    ) -> PendingWrite:
        """The update as a pending write, which can be used until ``pinned`` is closed. Raises `InvalidInput`.

        One that is all there is was computed from no version, so it goes onto any: its frame is written as a set of
        rows.
        """
        described = _described(self, description, options)
        if self.gone is None:
            as_set = options.model_copy(update={"row_order": "ignored", "allow_empty": True})
            return stage(self.frame, partition, described, staging, as_set, constraints, pinned)
        engine = engine_for(self.frame)
        if not engine.accepts(self.gone):
            raise InvalidInput(
                f"The rows of the update are a {type(self.frame).__name__}, but its units that go are a "
                f"{type(self.gone).__name__}. Nothing was written. Give both as frames of one kind."
            )
        frame = pinned.enter_context(engine.pinned(self.frame))
        gone = pinned.enter_context(engine.pinned(self.gone))
        require_frame(engine, frame, constraints)
        as_set = options.model_copy(update={"mode": "merge", "merge_key": self.ids, "allow_empty": True})
        return _Update(replace(self, frame=frame, gone=gone), partition, described, engine, staging, as_set)


def _described(update: SampleUpdate, description: VersionDescription, options: TableOptions) -> VersionDescription:
    """The description with what the update says. Raises `InvalidInput` for options that it cannot keep."""
    _require_set(options)
    if both := sorted(options.custom.keys() & update.custom.keys()):
        raise InvalidInput(
            f"TableOptions.custom has the member {both[0]!r}, which the update says itself. Nothing was written. Call "
            "it something else."
        )
    return replace(description, custom={**description.custom, **update.custom})


class _Update(Addition):
    """A `SampleUpdate` of pinned frames on its way onto the version that it was computed from, and onto no other."""

    def __init__(
        self,
        update: SampleUpdate,
        partition: str | None,
        description: VersionDescription,
        engine: Engine,
        staging: Staging,
        options: TableOptions,
    ) -> None:
        super().__init__(partition, description, update.frame, engine, staging, options, "update")
        self._update = update
        require_key(self._schema, update.on, "on")
        units = engine.schema(update.gone, options.write_options(partition))
        require_columns("The frame of units that go", units.names, update.on)
        for name in update.on:
            if units.field(name).type != self._schema.field(name).type:
                raise InvalidInput(
                    f"The column {name!r} is {units.field(name).type} in the units that go, and "
                    f"{self._schema.field(name).type} in the rows of the update. Nothing was written. Give it one type."
                )
        named = " AND ".join(f"`{name.replace('`', '``')}` IS NOT NULL" for name in update.on)
        for what, frame in (("rows", update.frame), ("units that go", update.gone)):
            if count := engine.violations(frame, named):
                raise InvalidInput(
                    f"Of the {what} of the update, {count} have a null in the columns {list(update.on)}, by which "
                    "units are matched. Nothing was written. Drop them."
                )

    def repeats(self, own: Version) -> None:
        """Never: an earlier attempt has moved the head, from which this one was computed then."""

    def onto(self, base: HeadParts) -> tuple[Add, ...]:
        """See `Addition.onto`. Raises `CommitConflict` where the head is another than that of the update."""
        found = base.head.metadata_sha if base.head is not None else None
        if found != self._update.base:
            of = "" if self.partition is None else f" of partition {self.partition!r}"
            raise CommitConflict(
                f"The update was computed from {_named(self._update.base)}, but the head{of} is {_named(found)} by "
                "now. Nothing was written. Run again: only what is stale by then is computed."
            )
        return super().onto(base)

    def _schema_beside(self, known: StructType | None) -> StructType:
        return updated_schema(known or self._schema, self._schema)

    def _matching(self, known: StructType | None, schema: StructType, given: RowsSummary | None) -> RowMatch:
        retyped = known is not None and known.fields != schema.fields[: len(known.fields)]
        update = self._update
        return RowMatch(
            update.ids,
            "ids",
            update.on,
            update.gone,
            rewrite=retyped,
            given=given,
            personal=self._options.hidden_columns,
        )


def _require_set(options: TableOptions) -> None:
    """Raise `InvalidInput` for options that an update cannot keep."""
    default = TableOptions()
    for name in ("mode", "row_order", "sort_rows", "single_part"):
        value = getattr(options, name)
        if value != getattr(default, name) and (name, value) != ("row_order", "ignored"):
            raise InvalidInput(
                f"A SampleUpdate leaves a set of rows in several parts, which {name}={value!r} contradicts. Nothing "
                "was written. Leave it out."
            )


def _named(sha: str | None) -> str:
    return "no version" if sha is None else f"version {sha[:8]}"
