"""Constraints: conditions that rows have to satisfy from now on, and those that are there already do."""

from dataclasses import replace

from dagster_versioned.delta.commit.conflicts import WHOLE_TABLE
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with
from dagster_versioned.delta.commit.stored_expressions import require_admitted
from dagster_versioned.delta_tables.commands.command import Applied, Command
from dagster_versioned.delta_tables.commands.plan import Plan, existing
from dagster_versioned.delta_tables.dml import FileChanges, RowEngine
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore


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
