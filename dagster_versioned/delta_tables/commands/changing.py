"""Commands that look at the rows of the table: deleting, updating and merging, and a constraint that all satisfy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from dagster_versioned.delta.commit.conflicts import WHOLE_TABLE
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with
from dagster_versioned.delta.commit.stored_expressions import require_admitted
from dagster_versioned.delta_tables.commands.command import Applied, Command, compact_json
from dagster_versioned.delta_tables.commands.plan import Plan, evolved, existing
from dagster_versioned.delta_tables.commands.provenance import UNNAMED, Provenance
from dagster_versioned.delta_tables.dml import (
    Assignments,
    Clause,
    Delete,
    FileChanges,
    Merge,
    RowEngine,
    Update,
    WhenMatched,
    WhenNotMatched,
    WhenNotMatchedBySource,
)
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore


def delete(
    engine: RowEngine, store: ObjectStore, where: str | None = None, *, provenance: Provenance = UNNAMED
) -> Applied:
    """Delete the rows that ``where`` is true for, or all. Raises as `write`, and `TableNotFound`."""
    read = existing(store)
    if provenance.is_committed(read):
        return Applied(read.version, skipped=True)
    command = Command(engine, store, Plan(read, read), provenance)
    command.refuse_append_only()
    predicate = "[]" if where is None else compact_json([where])
    return command.change(Delete(where), "DELETE", {"predicate": predicate}, where)


def update(
    engine: RowEngine,
    store: ObjectStore,
    assignments: Assignments,
    where: str | None = None,
    *,
    provenance: Provenance = UNNAMED,
) -> Applied:
    """Give new values to the rows that ``where`` is true for, or all. Raises as `delete`."""
    if not assignments:
        raise InvalidInput("An update that assigns nothing changes nothing. Nothing was written.")
    read = existing(store)
    if provenance.is_committed(read):
        return Applied(read.version, skipped=True)
    command = Command(engine, store, Plan(read, read), provenance)
    command.refuse_append_only()
    parameters = {} if where is None else {"predicate": compact_json([where])}
    return command.change(Update(assignments, where), "UPDATE", parameters, where)


def merge(
    engine: RowEngine,
    store: ObjectStore,
    source: Any,
    on: str,
    clauses: Sequence[Clause],
    schema_mode: Literal["merge"] | None = None,
    *,
    provenance: Provenance = UNNAMED,
) -> Applied:
    """Merge a frame's rows into the table; see `Merge`. Raises as `delete`.

    ``schema_mode`` ``merge`` adds the source's columns to the table where a clause takes ``"all"``.
    """
    change = Merge(source, on, tuple(clauses))
    _check_clauses(change)
    read = existing(store)
    if provenance.is_committed(read):
        return Applied(read.version, skipped=True)
    takes_all = any(clause.then == "all" for clause in clauses)
    plan = Plan(read, read)
    if schema_mode == "merge" and takes_all:
        plan = evolved(read, engine.schema_of(source), "merge", None)
    command = Command(engine, store, plan, provenance)
    if len(change.of_kind(WhenNotMatched)) < len(clauses):
        command.refuse_append_only()
    by_source = change.of_kind(WhenNotMatchedBySource)
    parameters = {
        "predicate": compact_json([on]),
        "matchedPredicates": compact_json([_described(clause) for clause in change.of_kind(WhenMatched)]),
        "notMatchedPredicates": compact_json([_described(clause) for clause in change.of_kind(WhenNotMatched)]),
        "notMatchedBySourcePredicates": compact_json([_described(clause) for clause in by_source]),
    }
    return command.change(change, "MERGE", parameters, None if by_source else on)


def add_constraint(engine: RowEngine, store: ObjectStore, name: str, check: str) -> Applied:
    """Add a CHECK constraint, which every row of the table must satisfy already. Raises `InvalidInput`."""
    require_admitted(f"the constraint {name!r}", check)
    read = existing(store)
    key = f"delta.constraints.{name.lower()}"
    if key in read.metadata.configuration:
        raise InvalidInput(f"The table has a constraint {name!r} already. Nothing was written. Drop it first.")
    command = Command(engine, store, Plan(read, read))
    if count := engine.violations(command.target, check):
        raise InvalidInput(f"{count} rows of the table do not satisfy {check}. Nothing was written.")
    configuration = {**read.metadata.configuration, key: check}
    metadata = replace(read.metadata, configuration=configuration)
    protocol = protocol_with(read.protocol, configuration, read.schema)
    command.plan = Plan(read, replace(read, metadata=metadata, protocol=protocol))
    return command.commit(FileChanges(), "ADD CONSTRAINT", {"name": name, "expr": check}, WHOLE_TABLE)


def _check_clauses(change: Merge) -> None:
    if not change.clauses:
        raise InvalidInput("A merge without clauses changes nothing. Nothing was written.")
    for kind in (WhenMatched, WhenNotMatched, WhenNotMatchedBySource):
        clauses = change.of_kind(kind)
        if any(clause.condition is None for clause in clauses[:-1]):
            raise InvalidInput(
                f"A {kind.__name__} without condition leaves nothing to the clauses after it. Nothing was written. Put"
                " it last."
            )


def _described(clause: Clause) -> dict[str, str]:
    insert = isinstance(clause, WhenNotMatched)
    action = "delete" if clause.then == "delete" else "insert" if insert else "update"
    return {"actionType": action, **({} if clause.condition is None else {"predicate": clause.condition})}
