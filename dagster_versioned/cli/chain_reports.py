"""Reports on a chain, for people and for programs: what was verified, and where an event comes from."""

from collections.abc import Sequence
from typing import Any

from dagster_versioned.cli.documents import cell
from dagster_versioned.cli.terminal import counted, human_size, say
from dagster_versioned.odf.blocks.events import SqlQueryStep
from dagster_versioned.odf.queries.provenance import Explanation
from dagster_versioned.odf.verification.report import DatasetReport


def report_document(report: DatasetReport) -> dict[str, Any]:
    """What was verified of a dataset, for ``--json``."""
    return {
        "location": report.location,
        "dataset_id": None if report.dataset_id is None else str(report.dataset_id),
        "head": None if report.head is None else str(report.head),
        "sources": list(report.sources),
        "inputs": [str(one) for one in report.inputs],
        "signed": None if report.signed is None else str(report.signed),
        "blocks": report.blocks,
        "files": report.files,
        "bytes": report.bytes,
        "replayed": report.replayed,
        "findings": [
            {
                "subject": one.subject,
                "block": None if one.block is None else str(one.block),
                "number": one.sequence_number,
                "key": one.key,
                "problem": one.problem,
                "records_match": one.records_match,
            }
            for one in report.findings
        ],
        "unchecked": list(report.unchecked),
    }


def show_report(report: DatasetReport) -> None:
    """A dataset in a few lines: what it is, where it comes from, what was checked, what does not match."""
    signature = "not signed" if report.signed is None else "signed by its owner"
    if report.signed not in (None, report.head):
        signature += f" up to {report.signed}"
    checked = [counted(report.blocks, "block"), counted(report.files, "file"), human_size(report.bytes) or ""]
    replayed = [counted(report.replayed, "run") + " done again"] if report.replayed else []
    say(f"{report.dataset_id or 'unknown dataset'} in {report.location}", f"  {signature}")
    say(*(f"  from {source}" for source in report.sources))
    say(f"  checked: {', '.join([*checked, *replayed])}")
    say(*(f"  WRONG: {finding}" for finding in report.findings))
    say(*(f"  not checked: {what}" for what in report.unchecked))


def explanation_document(found: Explanation) -> dict[str, Any]:
    """An explanation, and those below it, for ``--json``."""
    return {
        "dataset_id": str(found.dataset_id),
        "offset": found.offset,
        "event": cell(dict(found.values)),
        "block": str(found.block),
        "number": found.sequence_number,
        "system_time": str(found.system_time),
        "query": [] if found.transform is None else [step.query for step in _queries(found)],
        "steps": list(found.steps),
        "columns": [
            {"column": one.column, "sources": [list(source) for source in one.sources], "expression": one.expression}
            for one in found.columns
        ],
        "rows": [[str(dataset), offset] for dataset, offset in found.rows],
        "inputs": [explanation_document(one) for one in found.inputs],
        "taken_back": None if found.taken_back is None else explanation_document(found.taken_back),
    }


def _queries(found: Explanation) -> Sequence[SqlQueryStep]:
    transform = found.transform
    if transform is None:
        return ()
    return transform.queries or ((SqlQueryStep(query=transform.query),) if transform.query is not None else ())


def explained(found: Explanation, depth: int = 0) -> list[str]:
    """An explanation, and those below it, as indented lines."""
    values = ", ".join(f"{name}={value}" for name, value in found.values.items())
    lines = [
        f"event {found.offset} of {found.dataset_id}: {values}",
        f"  in block {found.sequence_number} since {found.system_time}",
        *(f"  query: {' '.join(step.query.split())}" for step in _queries(found)),
        *(f"  step: {step}" for step in found.steps),
    ]
    for column in found.columns:
        sources = ", ".join(f"{dataset}.{name}" for dataset, name in column.sources) or "nothing"
        how = "copied" if column.expression is None else f"as {column.expression}"
        lines.append(f"  column {column.column}: {how} from {sources}")
    if found.taken_back is not None:
        lines += ["  takes back:", *explained(found.taken_back, 1)]
    if found.rows:
        lines.append(f"  made of {counted(len(found.rows), 'row')}:")
        lines += [line for one in found.inputs for line in explained(one, 1)]
        if len(found.rows) > len(found.inputs):
            lines.append(f"    and {len(found.rows) - len(found.inputs)} more")
    return [f"{'    ' * depth}{line}" for line in lines]
