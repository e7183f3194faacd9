"""Parking: a write whose commit is left for later. Its parts get their final names, and one document says the rest."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dagster_versioned.delta.files import statistics
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.part_order import next_ordinal
from dagster_versioned.engines.parts import Part
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import Facts, Run, VersionEntry, created_at_text, data_sha
from dagster_versioned.publication.guard import refuse_unpublished
from dagster_versioned.publication.view import beside_collections, commit_in_memory, in_memory, seen_by, view
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, ParkedVersion, settle
from dagster_versioned.tables.erasure.commit import refuse_erased_since
from dagster_versioned.tables.lineage import Parents
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.parts import part_key, parts_of
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.commit import WRITER
from dagster_versioned.tables.write.constraints import require_frame
from dagster_versioned.tables.write.pending import OwnWrite, VersionDescription
from dagster_versioned.tables.write.stage import stage, staging_folder
from dagster_versioned.tables.write.write import TableWrite, WriteResult


@dataclass(frozen=True)
class ParkedWrite:
    """What a step wrote, as its run reads it, and the draft of it; ``None`` where it is all current already.

    ``seen`` is the table with the draft in it.
    """

    seen: VersionedTable
    results: Sequence[WriteResult]
    draft: ParkedDraft | None


def park(
    table: VersionedTable,
    frames: Mapping[str | None, Any],
    *,
    run: Run,
    backfill: str | None = None,
    asset_key: Sequence[str] | None = None,
    parents: Parents = (),
    code_version: str | None = None,
    message: str | None = None,
    options: TableOptions | None = None,
    partitioning: Partitioning | None = None,
) -> ParkedWrite:
    """`VersionedTable.write_partitions`, but for the commit: only the run, and those that go on with it, read the rows.

    Another attempt at the same computation takes the place of this one. Raises what `write_partitions` does, and
    `InvalidInput` for histories of events, for features, and for what is built from drafts of another project, of
    which nobody who publishes here would know.
    """
    require("park", table.project)
    options = options or TableOptions()
    if options.history is not None or any(isinstance(frame, OwnWrite) for frame in frames.values()):
        kind = "a history of events" if options.history is not None else "a feature, whose stale samples are computed"
        raise InvalidInput(
            f'publish="after_checks" cannot hold back {table.name}: it is {kind}, and what is added to it stays. '
            "Nothing was written. Take publish away from it."
        )
    descriptions = table.describe(frames, asset_key, parents, code_version, message, options)
    upon = _drafts_below(table, descriptions.values())
    for description in descriptions.values():
        refuse_erased_since(table.project, table.name, description.built_from)
    began = table.operations.check_name_is_free()
    options = table.with_personal_columns(options)
    with staging_folder(table.store) as staging, ExitStack() as pinned:
        parking = _DraftBuilder(table, staging, pinned, options, run, partitioning, began)
        to_park = parking.replacing if options.mode == "replace" else parking.adding
        parked = to_park(frames, descriptions)
    if parked.draft is None:
        return parked
    draft = replace(parked.draft, backfill=backfill, upon=upon)
    table.project.check_unmarked()
    table.project.data.put(draft.key, draft.to_bytes())
    try:
        for description in descriptions.values():  # an erasure that came meanwhile did not see the draft
            refuse_erased_since(table.project, table.name, description.built_from)
    except InvalidInput as error:
        settle(
            table.project.data, draft, standing="superseded", why=str(error), closed_at=datetime.now(UTC).isoformat()
        )
        raise
    if table.project.environment is not None:
        table.project.environment.check_committed()
    return replace(parked, draft=draft)


def _drafts_below(table: VersionedTable, descriptions: Iterable[VersionDescription]) -> tuple[str, ...]:
    """The ids of the drafts that versions are built from. Raises `InvalidInput` for those of another project."""
    unpublished = [entry for description in descriptions for entry in description.built_from if entry.drafts]
    others = [e for e in unpublished if e.parent.source != table.project.name or e.parent.environment]
    refuse_unpublished(table.name, others)
    return tuple(dict.fromkeys(draft for entry in unpublished for draft in entry.drafts))


@dataclass(frozen=True)
class _DraftBuilder:
    """One draft in the making: what is the same for all of its frames."""

    table: VersionedTable
    staging: Staging
    pinned: ExitStack
    options: TableOptions
    run: Run
    partitioning: Partitioning | None
    began: int

    def replacing(
        self, frames: Mapping[str | None, Any], described: Mapping[str | None, VersionDescription]
    ) -> ParkedWrite:
        """The ordinary write, whose log entry is put nowhere: its plan is what is parked."""
        table, options = self.table, self.options
        if options.refresh != "whole":  # what is checked is what will be current, whatever the head is by then
            options = options.model_copy(update={"refresh": "whole", "row_order": "ignored"})
        began, constraints = time.monotonic(), table.constraints(options)
        writes = [
            stage(frame, key, described[key], self.staging, options, constraints, self.pinned, table.known_schema)
            for key, frame in frames.items()
        ]
        author = table.project.author
        write = TableWrite(self.staging, writes, options, constraints, self.run, author, self.partitioning)

        def commit() -> tuple[VersionedTable, Sequence[WriteResult]]:
            log, cache = in_memory(table.operations)
            return seen_by(table, cache, {}), write.results(commit_in_memory(log, cache, write.draft), began)

        seen, results = beside_collections(table, commit)
        versions: list[ParkedVersion] = []
        for plan in write.planned:
            if plan.entry is not None:
                is_empty = plan.entry.identity.data_sha == data_sha([], "ignored")
                parts = plan.pending.parts() if plan.fresh else () if is_empty else None
                versions.append(ParkedVersion(plan.entry, plan.entry.facts.previous, _named(parts)))
        return ParkedWrite(seen, results, self.draft(versions) if versions else None)

    def adding(
        self, frames: Mapping[str | None, Any], described: Mapping[str | None, VersionDescription]
    ) -> ParkedWrite:
        """The rows as they are given: what comes of them depends on the head that they are added to, later.

        Their parts are numbered as if that were the head of now, so that they need not be written again if it is.
        """
        constraints = self.table.constraints(self.options)
        draft = self.draft([self._given(frame, described[key], key, constraints) for key, frame in frames.items()])
        viewed = view(self.table, [draft])
        if (why := viewed.superseded.get(draft.id)) is not None:  # a collection took its parts meanwhile
            raise why
        results = viewed.results[draft.id]
        is_news = any(result.change != "none" and not result.replayed for result in results)
        return ParkedWrite(viewed.table, results, draft if is_news else None)

    def draft(self, versions: Sequence[ParkedVersion]) -> ParkedDraft:
        """The document that says what was parked."""
        table, now = self.table, datetime.now(UTC).isoformat()
        author = table.project.author
        known = tuple(versions)
        return ParkedDraft(
            table.name, self.run, None, now, author, self.options, self.partitioning, known, log_version=self.began
        )

    def _given(
        self, frame: Any, described: VersionDescription, partition: str | None, constraints: Mapping[str, str]
    ) -> ParkedVersion:
        engine = engine_for(frame)
        frame = self.pinned.enter_context(engine.pinned(engine.typed(frame, self.table.known_schema)))
        require_frame(engine, frame, constraints)
        options = replace(self.options.write_options(partition), first_ordinal=self._next_ordinal(partition))
        written = engine.write(frame, self.staging, options)
        self.staging.promote_all([(part, part_key(part)) for part in written.parts])
        contents = written.contents
        sha = data_sha([part.sha256 for part in written.parts], "ignored")
        identity = described.identity(partition, contents, sha)
        facts = Facts(
            created_at=created_at_text(time.time_ns() // 1_000_000),
            writer=WRITER,
            size_bytes=sum(part.size for part in written.parts),
            part_count=len(written.parts),
            digest=contents.digest.text,
            run=self.run,
            author=self.table.project.author,
            null_counts=contents.null_counts,
        )
        return ParkedVersion(VersionEntry.of(identity, facts, "full"), None, _named(written.parts))

    def _next_ordinal(self, partition: str | None) -> int:
        state = self.table.operations.cache.known
        return 0 if state is None else next_ordinal(parts_of(state.snapshot, partition))


def _named(parts: Sequence[Part] | None) -> tuple[Part, ...] | None:
    """Parts under their final names, with the statistics that the log will have."""
    if parts is None:
        return None
    return tuple(
        replace(part, statistics=statistics.parse(statistics.to_json(part.statistics)), source=part_key(part))
        for part in parts
    )
