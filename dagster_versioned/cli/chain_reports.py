"""Reports on a chain, for people and for programs: what was verified, and where an event comes from."""

from collections.abc import Iterator, Sequence
from typing import Any

from dagster_versioned.cli.documents import cell, members
from dagster_versioned.cli.terminal import counted, human_size
from dagster_versioned.odf.blocks.events import SqlQueryStep
from dagster_versioned.odf.queries.provenance import Explanation
from dagster_versioned.odf.verification.report import DatasetReport


def report_document(report: DatasetReport) -> dict[str, Any]:
    """What was verified of a dataset, for ``--json``."""
    shown = ("subject", "block", "number=sequence_number", "key", "problem", "records_match")
    return {**members(report), "findings": [members(finding, *shown) for finding in report.findings]}


def report_lines(report: DatasetReport) -> Iterator[str]:
    """A dataset in a few lines: what it is, where it comes from, what was checked, what does not match."""
    signature = "not signed" if report.signed is None else "signed by its owner"
    if report.signed not in (None, report.head):
        signature += f" up to {report.signed}"
    checked = [counted(report.blocks, "block"), counted(report.files, "file"), human_size(report.bytes) or ""]
    replayed = [counted(report.replayed, "run") + " done again"] if report.replayed else []
    yield f"{report.dataset_id or 'unknown dataset'} in {report.location}"
    yield f"  {signature}"
    yield from (f"  from {source}" for source in report.sources)
    yield f"  checked: {', '.join([*checked, *replayed])}"
    yield from (f"  WRONG: {finding}" for finding in report.findings)
    yield from (f"  not checked: {what}" for what in report.unchecked)


def explanation_document(found: Explanation) -> dict[str, Any]:
    """An explanation, and those below it, for ``--json``."""
    return {
        **members(found, "dataset_id", "offset"),
        "event": cell(dict(found.values)),
        **members(found, "block", "number=sequence_number"),
        "system_time": str(found.system_time),
        "query": [] if found.transform is None else [step.query for step in _queries(found)],
        "steps": found.steps,
        "columns": [members(each, "column", "sources", "expression") for each in found.columns],
        "rows": found.rows,
        "inputs": [explanation_document(each) for each in found.inputs],
        "taken_back": None if found.taken_back is None else explanation_document(found.taken_back),
    }


def _queries(found: Explanation) -> Sequence[SqlQueryStep]:
    transform = found.transform
    if transform is None:
        return ()
    return transform.queries or ((SqlQueryStep(query=transform.query),) if transform.query is not None else ())


def explanation_lines(found: Explanation, depth: int = 0) -> list[str]:
    """An explanation, and those below it, as indented lines."""
    values = ", ".join(f"{name}={value}" for name, value in found.values.items())
    lines = [
        f"event {found.offset} of {found.dataset_id}: {values}",
        f"  in block {found.sequence_number} since {found.system_time}",
        *(f"  query: {' '.join(step.query.split())}" for step in _queries(found)),
        *(f"  step: {step}" for step in found.steps),
    ]
    lines += _column_lines(found)
    if found.taken_back is not None:
        lines += ["  takes back:", *explanation_lines(found.taken_back, 1)]
    if found.rows:
        lines.append(f"  made of {counted(len(found.rows), 'row')}:")
        lines += [line for each in found.inputs for line in explanation_lines(each, 1)]
        if len(found.rows) > len(found.inputs):
            lines.append(f"    and {len(found.rows) - len(found.inputs)} more")
    return [f"{'    ' * depth}{line}" for line in lines]


def _column_lines(found: Explanation) -> Iterator[str]:
    for column in found.columns:
        sources = ", ".join(f"{dataset}.{name}" for dataset, name in column.sources) or "nothing"
        how = "copied" if column.expression is None else f"as {column.expression}"
        yield f"  column {column.column}: {how} from {sources}"
