"""A dataset that a manifest describes as computed from others, made in a project: its query, and its first run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import DatasetKind, MergeStrategyAppend, SetTransform, SetVocab
from dagster_versioned.odf.event_slice import WriteDescription
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.dataset_ref import DatasetAlias, parse_ref
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.ingest.declare import declare
from dagster_versioned.odf.ingest.poll import history_of
from dagster_versioned.odf.manifest import DatasetSnapshot
from dagster_versioned.odf.queries.transform import Derivation, DerivationReport, InputAt, query_of
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.table import VersionedTable, open_table


def add_derivative(
    table: VersionedTable,
    snapshot: DatasetSnapshot,
    named: Callable[[str], str],
    *,
    key: SigningKey | None = None,
    **described: Unpack[WriteDescription],
) -> tuple[DerivationReport, int]:
    """Run the query of a manifest over what is new in its inputs; what was appended, and how much else was recorded.

    Inputs are tables of the same project, by identity or by name; ``named`` is the table's name for a dataset's. The
    first run makes the dataset. Raises `InvalidInput` for a manifest that is not of one query, an input that is not
    there, and what `derive` refuses; `UnsupportedFeature` for another engine than Spark.
    """
    event = _transform_of(snapshot)
    vocab = next((event for event in snapshot.metadata if isinstance(event, SetVocab)), None)
    columns = None if vocab is None else history_of(MergeStrategyAppend(), vocab).columns
    query = query_of(event)
    inputs = {
        input_.alias or input_.dataset_ref: _input(table.project, input_.dataset_ref, named) for input_ in event.inputs
    }
    derived = Derivation(query, inputs).write(table, key=key, columns=columns, **described)
    others = replace(snapshot, metadata=tuple(other for other in snapshot.metadata if other is not event))
    return derived, declare(EventTable(table, key=key), others, **described)


def _transform_of(snapshot: DatasetSnapshot) -> SetTransform:
    transforms = [event for event in snapshot.metadata if isinstance(event, SetTransform)]
    if snapshot.kind is not DatasetKind.DERIVATIVE or len(transforms) != 1:
        raise InvalidInput(
            f"The manifest of {snapshot.name!r} is of kind {snapshot.kind.value} and has {len(transforms)} queries. "
            "Nothing was changed. A dataset of kind Derivative has one SetTransform."
        )
    return transforms[0]


def _input(project: ProjectContext, reference: str, named: Callable[[str], str]) -> InputAt:
    wanted = parse_ref(reference)
    if isinstance(wanted, DatasetAlias):
        found = open_table(project, named(str(wanted)))
    else:
        tables = (open_table(project, str(name)) for name in project.tables())
        heads = ((table, chain_head(table.state.snapshot)) for table in tables)
        found = next((table for table, head in heads if head is not None and head.dataset_id == str(wanted)), None)
    if found is None or not found.exists():
        raise InvalidInput(
            f"The input {reference!r:.200} is no dataset of project {project.name}. Nothing was changed. Pull it, or "
            "add it, and try again."
        )
    return InputAt.of_table(found)
