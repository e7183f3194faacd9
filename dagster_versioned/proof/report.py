"""What is known of a version as pages to read: a version, a table by its newest, a project as a folder.

A page is one file and asks for nothing from anywhere; what it says follows from the log, the documents beside it and,
where that is wanted, the bytes, which are checked as it is written.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

from dagster_versioned.__about__ import __version__
from dagster_versioned.delta.schema.types import sql_text
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.html import Content, Html, element, fields, page, table
from dagster_versioned.proof.lineage import OpenProject, ProjectLineage, TableLineage, first_sentence
from dagster_versioned.proof.report_pictures import SHOWN, lineage_picture, rows_of, timeline_picture
from dagster_versioned.proof.signatures import TrustedKeys, check_signatures
from dagster_versioned.proof.trace import trace_from
from dagster_versioned.proof.why import explained
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.code_details import CodeDetails, code_of
from dagster_versioned.tables.diff import VersionDiff
from dagster_versioned.tables.findings import findings_of
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.verify import VerifyReport

TIMELINE = 40
"""Versions of a table that a page tells of: the newest ones up to the one it is about, and those after it."""
_CAUSES = 3
_COLUMNS = 2_000
_LISTED = 200

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ReportOptions:
    """What a page says beside what the log does.

    ``keys`` are those whose signatures are looked for; with ``with_bytes`` the parts are read and compared;
    ``open_project`` opens other projects that lineage names. ``now`` is when it was written.
    """

    keys: TrustedKeys | None = None
    with_bytes: bool = True
    open_project: OpenProject | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


def report_of(
    project: Project,
    name: str,
    version: VersionLike = None,
    *,
    partition: str | None = None,
    options: ReportOptions | None = None,
) -> str:
    """The page of a version, by default of the newest: HTML.

    Raises `VersionNotFound`, `TableNotFound`, `StorageError`.
    """
    lineage = ProjectLineage(project, None if options is None else options.open_project)
    return _page(lineage, name, version, partition, options or ReportOptions(), ())


def write_project_report(
    project: Project, folder: Path, *, options: ReportOptions | None = None, progress: Progress | None = None
) -> list[Path]:
    """Write a page for each table of a project, and ``index.html`` that lists them, into a folder; returns the files.

    Raises `InvalidInput` for a folder that holds something else than such pages, and `StorageError`.
    """
    _make_folder(folder)
    options = options or ReportOptions()
    names = [str(name) for name in project.tables()]
    pages: list[Path] = []
    rows: list[Sequence[Content]] = []
    for number, name in enumerate(names):
        path = folder / f"{_file_name(name)}.html"
        try:
            # Read anew for each page: the project goes on meanwhile.
            lineage = ProjectLineage(project, options.open_project)
            path.write_text(_page(lineage, name, None, None, options, [("All tables", "index.html")]), "utf-8")
            rows.append([element("a", name, href=path.name), *_line_of(list(_heads(project.table(name))))])
            pages.append(path)
        except VersionedError as error:
            rows.append([name, f"cannot be read: {first_sentence(error)}", "", "", ""])
        if progress is not None:
            progress(number + 1, len(names))
    headings = ("table", "version", "committed", "rows", "bytes")
    index = folder / "index.html"
    body = [
        element("h1", f"Project {project.name}"),
        element("p", f"{_counted(len(names), 'table')}, each by its newest version.", class_="lead"),
        table(headings, rows, numbers=(3, 4)),
        _foot(project, options.now),
    ]
    index.write_text(page(f"Project {project.name}", _style(), element("main", *body)), "utf-8")
    return [index, *pages]


def _make_folder(folder: Path) -> None:
    """Make a folder for a report, which may have been written there before. Raises `InvalidInput`."""
    foreign = sorted(path.name for path in folder.iterdir() if path.suffix != ".html") if folder.is_dir() else []
    if foreign or (folder.exists() and not folder.is_dir()):
        what = f"holds {foreign[0]}" if foreign else "is no folder"
        raise InvalidInput(f"{folder} {what}. Nothing was written. Name a folder for the report alone.")
    folder.mkdir(parents=True, exist_ok=True)


def _page(
    lineage: ProjectLineage,
    name: str,
    reference: VersionLike,
    partition: str | None,
    options: ReportOptions,
    links: Sequence[tuple[str, str]],
) -> str:
    project = lineage.project
    opened = project.table(name)
    version = _newest(opened, reference, partition)
    subject = _Subject(lineage, opened, lineage.own_table(str(opened.name)), version, options)
    title = f"{project.name}.{opened.name} {version.short}"
    nav = element("nav", *[element("a", text, href=to) for text, to in links]) if links else None
    sections = [element("section", element("h2", heading), content) for heading, content in subject.sections()]
    body = element("main", nav, *subject.head(), *sections, _foot(project, options.now))
    return page(title, _style(), body)


@cache
def _style() -> str:
    return resources.files("dagster_versioned.proof").joinpath("report.css").read_text("utf-8")


def _newest(opened: VersionedTable, reference: VersionLike, partition: str | None) -> Version:
    """The version that is meant; of a partitioned table without a partition, the one that was committed last."""
    if reference is None and partition is None and (heads := opened.partitions()):
        return max(heads.values(), key=lambda head: head.log_version)
    return opened.version(reference, partition=partition)


class _Subject:
    """A version, and what is said of it."""

    def __init__(
        self,
        lineage: ProjectLineage,
        opened: VersionedTable,
        table: TableLineage,
        version: Version,
        options: ReportOptions,
    ) -> None:
        self._lineage = lineage
        self._opened = opened
        self._table = table
        self._version = version
        self._options = options
        self._raw: Mapping[str, Any] = version.raw or {"identity": {}, "facts": {}}
        self._before = table.before(version)

    def head(self) -> Iterator[Html]:
        """What it is, in two lines."""
        version, identity, facts = self._version, self._raw["identity"], self._raw["facts"]
        place = f" [{version.partition}]" if version.partition is not None else ""
        environment = self._lineage.project.environment
        within = f", environment {environment.name}" if environment is not None else ""
        yield element("p", f"{self._lineage.project.name}{within}", class_="over")
        yield element("h1", f"{self._opened.name}{place}")
        is_head = self._table.history.heads.get(version.partition) == version
        yield element(
            "p",
            element("code", version.short),
            f" (@{version.log_version}), {version.change}, committed {_time(version.timestamp)}"
            f"{', the current version' if is_head else ''}",
            class_="lead",
        )
        if version.gone is not None:
            yield element("p", f"Its rows are not kept any more ({version.gone}).", class_="bad")
        if version.raw is not None:
            yield fields(
                {
                    "rows": f"{identity['nrow']:,}",
                    "bytes": f"{facts['size_bytes']:,} in {_counted(facts['part_count'], 'part')}",
                    "by": facts.get("author"),
                    "message": identity.get("message"),
                    "promoted from": facts.get("promoted_from"),
                }
            )

    def sections(self) -> Iterator[tuple[str, Content]]:
        """Headings, and what is below each."""
        yield "Why it is another than the one before", self._causes()
        yield "What it was built from", self._picture()
        if (difference := self._difference()) is not None:
            yield "Difference to the version before", difference
        yield "Timeline", self._timeline()
        yield "Columns", self._columns()
        yield "Checks", self._checks()
        yield "Code and runtime", self._code()
        if self._options.keys is not None:
            yield "Signatures", self._signatures(self._options.keys)
        yield "Verified", self._verified()
        yield "Identity", self._identity()

    def _causes(self) -> Content:
        found = explained(self._lineage, self._table, self._version)
        before = "It is the first." if self._before is None else f"Before it came {self._before.short}."
        return [element("p", before), element("ul", *[element("li", f"{cause}.") for cause in found.causes])]

    def _picture(self) -> Content:
        if self._version.metadata_sha is None:
            return element("p", "Another program committed it, which says nothing of its inputs.")
        trace = trace_from(
            self._lineage, str(self._opened.name), f"@{self._version.log_version}", partition=self._version.partition
        )
        more = len(trace.versions) - SHOWN
        gaps = len(trace.gaps)
        notes = [
            f"{more:,} versions more, which are further away, are not in the picture." if more > 0 else None,
            f"{gaps:,} of them cannot be read, or their rows are not kept." if gaps else None,
        ]
        return [
            element("div", lineage_picture(trace), class_="wide"),
            *[element("p", note) for note in notes if note is not None],
        ]

    def _difference(self) -> Content | None:
        version, before = self._version, self._before
        if before is None or version.raw is None or before.raw is None:
            return None
        try:
            found = self._opened.diff(f"@{before.log_version}", f"@{version.log_version}", partition=version.partition)
        except VersionedError as error:
            return element("p", f"They cannot be compared: {first_sentence(error)}.")
        return table(("", "before", "after"), list(_differences(found)))

    def _timeline(self) -> Content:
        version = self._version
        every = [each for each in self._table.history.versions if not each.is_drop]
        if version.partition is not None:
            every = [each for each in every if each.partition == version.partition]
        place = every.index(version) if version in every else len(every) - 1
        first = max(0, min(place - TIMELINE // 2, len(every) - TIMELINE))
        shown = every[first : first + TIMELINE]
        rows = [self._timeline_row(each) for each in reversed(shown)]
        of = f" of {len(every):,}" if len(every) > len(shown) else ""
        return [
            element("div", timeline_picture(shown, version), class_="wide"),
            element("p", f"{len(shown)}{of} {'version' if len(every) == 1 else 'versions'}, the newest first."),
            table(("version", "log", "committed", "change", "rows", "by", "because"), rows, numbers=(4,)),
        ]

    def _timeline_row(self, version: Version) -> Sequence[Content]:
        return [
            element("strong" if version == self._version else "code", version.short),
            f"@{version.log_version}",
            _time(version.timestamp),
            version.change if version.gone is None else f"{version.change}, rows {version.gone}d",
            _count(rows_of(version)),
            "" if version.raw is None else version.raw["facts"].get("author"),
            self._short_causes(version),
        ]

    def _short_causes(self, version: Version) -> Content:
        causes = explained(self._lineage, self._table, version).causes
        more = [f"and {len(causes) - _CAUSES} more"] if len(causes) > _CAUSES else []
        return "; ".join([*map(str, causes[:_CAUSES]), *more])

    def _columns(self) -> Content:
        schema = self._raw["identity"].get("schema")
        if schema is None:
            return element("p", "They are not recorded.")
        nulls: Sequence[int] = self._raw["facts"].get("null_counts") or ()
        columns = schema["fields"]
        rows = [
            [
                element("code", column["name"]),
                sql_text(column["type"]),
                _count(nulls[number]) if number < len(nulls) else "",
                column.get("metadata", {}).get("comment", ""),
            ]
            for number, column in enumerate(columns[:_COLUMNS])
        ]
        more = len(columns) - _COLUMNS
        return [
            table(("column", "type", "nulls", "comment"), rows, numbers=(2,)),
            element("p", f"{more:,} columns more.") if more > 0 else None,
        ]

    def _checks(self) -> Content:
        found = findings_of(self._opened.store, str(self._version.metadata_sha))
        if not found:
            return element("p", "What checks found is not noted with this version.")
        rows = [(name, _mark(found[name], "passed", "failed")) for name in sorted(found)]
        return table(("check", ""), rows)

    def _code(self) -> Content:
        code = code_of(self._version)
        run: Mapping[str, Any] = self._raw["facts"].get("run") or {}
        known: dict[str, Content] = {
            "code version, as declared": self._raw["identity"].get("code_version"),
            "definition": " ".join(filter(None, (run.get("code_location"), run.get("function")))),
            "run": run.get("run_id"),
        }
        if code is None:
            return [fields(known), element("p", "Which code that was is not recorded.")]
        known |= {
            "fingerprint": element("code", code.fingerprint),
            "git commit": None if code.commit is None else element("code", code.commit),
            "git commit, as claimed": code.claimed_commit,
            "repository": code.remote,
            "not as that commit has them": ", ".join(code.modified),
            "not followed": " ".join(f"{each}." for each in code.opaque),
        }
        details = CodeDetails.read(self._opened.store, code.details)
        return [fields(known), *(() if details is None else self._details(details))]

    def _details(self, details: CodeDetails) -> Iterator[Content]:
        names = sorted(details.functions)
        rows = [(element("code", name), element("code", details.functions[name][:16])) for name in names[:_LISTED]]
        if rows:
            yield element("h3", f"Functions and classes that it reaches: {len(names):,}")
            yield table(("", "digest"), rows)
        runtime = {name: value for name, value in details.runtime.items() if isinstance(value, str)}
        yield element("h3", "Runtime")
        yield fields(runtime)
        for name, value in details.runtime.items():
            if isinstance(value, Mapping):
                releases = cast("Mapping[str, object]", value)
                shown = [(str(each), str(release)) for each, release in sorted(releases.items())[:_LISTED]]
                yield element("details", element("summary", f"{len(releases):,} {name}"), table(("", "release"), shown))

    def _signatures(self, keys: TrustedKeys) -> Content:
        found = check_signatures(self._lineage.project, str(self._opened.name), keys, [self._version])
        kinds = {"signed": "good", "unsigned": None}
        return [
            [element("p", _sentence(each.text), class_=kinds.get(each.standing, "bad")), *map(_note, each.notes)]
            for each in found
        ]

    def _verified(self) -> Content:
        if not self._options.with_bytes:
            return element("p", "The bytes were not read for this page.")
        report: VerifyReport = self._opened.verify(f"@{self._version.log_version}", partition=self._version.partition)
        looked = f"{_counted(report.parts, 'part')} of {report.bytes:,} bytes, and the chain of the log, at"
        when = _time(self._options.now)
        if report.ok:
            gaps = f" Not kept: {'; '.join(report.gaps)}." if report.gaps else ""
            return element("p", f"All is as it was committed: {looked} {when}.{gaps}", class_="good")
        rows = [(finding.subject, finding.where, finding.problem) for finding in report.findings[:_LISTED]]
        return [
            element("p", f"{_counted(len(report.findings), 'finding')}; {looked} {when}.", class_="bad"),
            table(("of", "where", "what"), rows),
        ]

    def _identity(self) -> Content:
        version, identity, facts = self._version, self._raw["identity"], self._raw["facts"]
        custom: Mapping[str, object] = identity.get("custom") or {}
        shas: dict[str, Content] = {
            "metadata_sha": version.metadata_sha,
            "data_sha": version.data_sha,
            "digest of rows": facts.get("digest"),
            "SHA-256 of the commit": version.record.sha256,
            "previous version": facts.get("previous"),
            "table type": identity.get("table_type"),
            **{f"custom {name}": str(value) for name, value in custom.items()},
        }
        parents = [
            (
                f"{parent['source']}.{parent['table']}",
                parent.get("partition", ""),
                parent.get("environment", ""),
                element("code", parent["version"]),
            )
            for parent in identity.get("parents", ())
        ]
        return [
            fields({name: value and element("code", value) for name, value in shas.items()}),
            table(("parent", "partition", "environment", "version"), parents[:_LISTED]) if parents else None,
            element("p", f"{len(parents) - _LISTED:,} parents more.") if len(parents) > _LISTED else None,
        ]


def _differences(found: VersionDiff) -> Iterator[Sequence[Content]]:
    yield "rows", _count(found.rows_before), _count(found.rows_after)
    yield "rows are the same", "", "yes" if found.same_data else "no"
    yield "parts", f"{found.parts_removed:,} of its own", f"{found.parts_added:,} new, {found.parts_shared:,} as before"
    for column in found.columns[:_LISTED]:
        yield f"column {column.name}", *[kind and sql_text(kind) for kind in (column.before, column.after)]
    if found.column_order_changed:
        yield "order of columns", "", "another"
    for parent in found.parents[:_LISTED]:
        place = f"{parent.table}{'' if parent.partition is None else f' [{parent.partition}]'}"
        yield f"from {place}", *[element("code", (sha or "")[:8]) for sha in (parent.before, parent.after)]
    for name, (before, after) in found.metadata.items():
        yield name, *["" if each is None else str(each) for each in (before, after)]
    if found.code is not None:
        yield "code", found.code.before[:14], f"{found.code.after[:14]}: {found.code}"


def _heads(table: VersionedTable) -> Iterator[Version]:
    """The current versions, the newest first."""
    yield from sorted(table.state.history.current, key=lambda head: head.log_version, reverse=True)


def _line_of(heads: Sequence[Version]) -> Sequence[Content]:
    """A table in the list: its newest version, and the sums over its partitions."""
    facts = [head.raw for head in heads if head.raw is not None]
    partitions = f" and {len(heads) - 1:,} more partitions" if len(heads) > 1 else ""
    return (
        [element("code", heads[0].short), partitions],
        _time(heads[0].timestamp),
        _count(sum(each["identity"]["nrow"] for each in facts)),
        _count(sum(each["facts"]["size_bytes"] for each in facts)),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _note(text: str) -> Html:
    return element("p", _sentence(text))


def _mark(is_good: bool, good: str, bad: str) -> Html:
    return element("span", good if is_good else bad, class_="good" if is_good else "bad")


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _file_name(table: str) -> str:
    """The name of a table's page, of no other table's; ``index`` is taken, and systems there are that know no cases."""
    safe = re.sub(r"[^a-z0-9_.-]", "_", table)
    is_own = safe == table and safe != "index"
    return safe if is_own else f"{safe}.{hashlib.sha256(table.encode()).hexdigest()[:8]}"


def _foot(project: Project, now: datetime) -> Html:
    made = f"Written {_time(now)} by dagster-versioned {__version__} from {project.name}."
    proves = "It is for reading, and proves nothing: what does is an audit (dagster-versioned audit)."
    return element("footer", element("p", f"{made} {proves}"))
