"""Any Delta table with pyarrow, pandas and Polars: what is read, and what changes rows."""

from dagster_versioned.delta_tables.arrow.write_verbs import add_constraint as add_constraint
from dagster_versioned.delta_tables.arrow.write_verbs import create_delta as create_delta
from dagster_versioned.delta_tables.arrow.write_verbs import delete_from as delete_from
from dagster_versioned.delta_tables.arrow.write_verbs import merge_delta as merge_delta
from dagster_versioned.delta_tables.arrow.write_verbs import optimize_delta as optimize_delta
from dagster_versioned.delta_tables.arrow.write_verbs import update_delta as update_delta
from dagster_versioned.delta_tables.arrow.write_verbs import write_delta as write_delta
from dagster_versioned.delta_tables.change_feed import read_changes as read_changes
from dagster_versioned.delta_tables.read import read_delta as read_delta
