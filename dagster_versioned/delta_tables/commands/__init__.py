"""The commands that change rows of any Delta table, for every engine: one commit each, or nothing.

A command reads the newest snapshot, has a `RowEngine` write files, and commits them. Commits that came in between and
left valid what it read are passed over; others raise `CommitConflict`. What a failed command wrote is removed, unless
it is not known whether its commit landed: then the files are left for vacuum.
"""

from dagster_versioned.delta_tables.commands.changing import add_constraint as add_constraint
from dagster_versioned.delta_tables.commands.changing import delete as delete
from dagster_versioned.delta_tables.commands.changing import merge as merge
from dagster_versioned.delta_tables.commands.changing import update as update
from dagster_versioned.delta_tables.commands.command import Applied as Applied
from dagster_versioned.delta_tables.commands.compaction import optimize as optimize
from dagster_versioned.delta_tables.commands.plan import FIRST_PROTOCOL as FIRST_PROTOCOL
from dagster_versioned.delta_tables.commands.plan import SchemaMode as SchemaMode
from dagster_versioned.delta_tables.commands.provenance import Provenance as Provenance
from dagster_versioned.delta_tables.commands.writing import Mode as Mode
from dagster_versioned.delta_tables.commands.writing import create as create
from dagster_versioned.delta_tables.commands.writing import write as write
