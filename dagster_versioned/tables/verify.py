"""Verifying: is everything still what was committed? Parts' bytes, the log and its chain, identities, documents."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, pairwise, starmap
from typing import Any, Literal, Protocol, cast

from dagster_versioned.delta.actions import Add, Cdc
from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.files.statistics import num_records
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.errors import (
    ExpiredVersion,
    IntegrityError,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    TableNotFound,
    UnsupportedFeature,
    VersionedError,
)
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.datom_documents import Check
from dagster_versioned.tables.documents.export import EXPORT_KEY, read_export
from dagster_versioned.tables.documents.head import Head, head_key, read_head, table_head
from dagster_versioned.tables.documents.publish import Publisher
from dagster_versioned.tables.erased_parts import FOLDER, ErasureRegister
from dagster_versioned.tables.history import MEMBER, OUTLINE, REDACTION, CommitRecord, History, Version, redaction_in
from dagster_versioned.tables.maintenance.change_files import ChangeFiles
from dagster_versioned.tables.maintenance.protection import known_shas
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.parts import (
    LiveParts,
    part_sha,
    parts_by_partition,
    parts_of,
    sha256_of,
    stored_bytes,
    vector_sha_of,
)
from dagster_versioned.tables.read import VersionFiles, check_parts
from dagster_versioned.tables.state import TableState

Subject = Literal["log", "chain", "identity", "parent", "part", "document"]

_READERS = 4
_UNKNOWN = "its table does not know that version any more"

Progress = Callable[[int, int], None]
"""Called with (done, total) units of work; units are parts, deletion vectors, files of changes and documents."""


Look = Callable[[], str | None]
"""Finds what is wrong with one of them; ``None`` where nothing is."""


class VerifiedTable(Protocol):
    """A table, as far as it is verified: see `VersionedTable`."""

    @property
    def name(self) -> TableName: ...
    @property
    def project(self) -> ProjectContext: ...
    @property
    def store(self) -> ObjectStore: ...
    @property
    def publisher(self) -> Publisher: ...
    def replay(self) -> tuple[TableState, Sequence[Commit]]: ...
    def files(self, version: VersionLike = None, *, partition: str | None = None) -> VersionFiles: ...


@dataclass(frozen=True)
class Finding:
    """Something that is not what was committed: in what, where (a key or a log version), and how."""

    subject: Subject
    where: str
    problem: str


@dataclass(frozen=True)
class VerifyReport:
    """What was checked and what did not match.

    ``versions``, ``parts``, ``bytes`` and ``documents`` count what was looked at; ``gaps`` are versions whose bytes
    were expired or purged, which is recorded and therefore no finding, and redacted commits which only who redacted
    them knows (the next one is of a release that did not record what they may lose); ``witnessed`` says up to which
    log version an outside witness confirmed the chain, ``None`` if none was given.
    """

    findings: tuple[Finding, ...]
    versions: int
    parts: int
    bytes: int
    documents: int
    gaps: tuple[str, ...]
    witnessed: int | None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def require_ok(self) -> None:
        """Raise `IntegrityError`, listing the first findings, unless nothing was found."""
        if self.findings:
            first = "; ".join(f"{f.subject} {f.where}: {f.problem}" for f in self.findings[:5])
            more = f" and {len(self.findings) - 5} more" if len(self.findings) > 5 else ""
            raise IntegrityError(f"Verification found {len(self.findings)} problems: {first}{more}.")


def verify_table(
    table: VerifiedTable,
    reference: str | int | datetime | None,
    partition: str | None,
    witnesses: Mapping[int, str],
    progress: Progress | None,
) -> VerifyReport:
    """Verify the whole table (``reference`` and ``partition`` ``None``), or what one reference means."""
    try:
        state, commits = table.replay()
    except TableNotFound:
        raise
    except VersionedError as error:
        return VerifyReport((Finding("log", table.store.uri, str(error)),), 0, 0, 0, 0, (), None)
    whole = reference is None and partition is None
    findings = list(_chain(commits, state.history, witnesses))
    versions, gaps, unknown = _verified_versions(table, state, reference, partition)
    wrong, parts = _identities(commits, versions, table.project.erasures, state)
    # A head that is derived from an altered identity looks like a right one; the identity is the finding.
    documents, derived = _derived(table, state, commits, with_head=not wrong) if whole else (0, iter(()))
    findings += [*unknown, *wrong, *(_current(state) if whole else ()), *_parents(table, state.history, versions)]
    looks = _looks(table.store, parts) + _looks(table.store, _changes(state, commits, versions))
    total = len(looks) + documents
    for done, found in enumerate(chain(starmap(_part_findings, _in_parallel(looks)), derived), 1):
        findings += found
        if progress is not None:
            progress(done, total)
    sizes = {add.key: add.size for add in parts}
    return VerifyReport(
        findings=tuple(findings),
        versions=len(versions),
        parts=len(sizes),
        bytes=sum(sizes.values()) + sum(stored_bytes(add) - add.size for add in parts),  # with deletion vectors
        documents=documents,
        gaps=(*gaps, *(_unbound(commits) if whole else ())),
        witnessed=max(witnesses, default=None),
    )


def _verified_versions(
    table: VerifiedTable, state: TableState, reference: VersionLike, partition: str | None
) -> tuple[Sequence[Version], list[str], list[Finding]]:
    """What a reference means, or all versions; which of them have no bytes any more, and why there are none."""
    versions: Sequence[Version] = ()
    try:
        if reference is None and partition is None:
            versions = [version for version in state.history.versions if not version.is_drop]
        else:
            versions = table.files(reference, partition=partition).versions
    except InvalidInput:
        raise
    except ExpiredVersion as error:
        return (), [str(error)], []
    except VersionedError as error:
        return (), [], [Finding("identity", str(reference if reference is not None else partition), str(error))]
    return versions, [f"{v.short} (@{v.log_version}): {v.gone}" for v in versions if v.gone is not None], []


def _derived(
    table: VerifiedTable, state: TableState, commits: Sequence[Commit], *, with_head: bool
) -> tuple[int, Iterator[list[Finding]]]:
    """How many derived documents there are, the checkpoints with their index as one, and what is wrong with each."""
    publisher = table.publisher
    documents = publisher.checks(state)

    def findings() -> Iterator[list[Finding]]:
        for key, check in sorted(documents.items()):
            yield _document(table.store, key, check)
        if with_head:
            yield _head(table.project.data, head_key(table.name), table_head(table.name, state), state.log_version)
        yield [
            *_until_error("log", table.store.uri, _checkpoints(publisher, table.store, commits)),
            *_until_error("log", table.store.uri, _misleading(publisher, commits)),
            *_until_error("document", ".metadata", _extra(publisher, state)),
        ]

    return len(documents) + with_head + 1, findings()


def _until_error(subject: Subject, where: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except VersionedError as error:
        yield Finding(subject, where, str(error))


def _checkpoints(publisher: Publisher, store: ObjectStore, commits: Sequence[Commit]) -> Iterator[Finding]:
    for key, check in publisher.checkpoint_checks(commits):
        yield from _document(store, key, check)


def _misleading(publisher: Publisher, commits: Sequence[Commit]) -> Iterator[Finding]:
    for file in publisher.misleading(commits):
        yield Finding("document", file.keys[0], f"{file.problem}; repair() takes it away, the commits say it all")


def _extra(publisher: Publisher, state: TableState) -> Iterator[Finding]:
    """Derived documents that the log does not imply, but that readers would believe."""
    for key in publisher.extra_indexes(state):
        yield Finding("document", key, "the log does not imply it; repair() takes it away")


def _redactions(commits: Sequence[Commit]) -> Iterator[Finding]:
    """Redacted commits that a later one does not know to be redacted so.

    The one after it has what may not be changed (`History` refuses it), or is of a release that does not record that.
    """
    entries: dict[str, str] = {}
    for commit in reversed(commits):
        told, where = entries.get(f"{commit.version}"), f"@{commit.version}"
        stored = hashlib.sha256(commit.data).hexdigest()
        if commit.is_redacted and told is None:
            yield Finding("chain", where, "it says that it was redacted, but no later commit does")
        elif told not in (None, stored):
            problem = f"a later commit redacted it to {told[:12]}…, the log holds {stored[:12]}…"
            yield Finding("chain", where, f"{problem}; an erasure that died is finished by the next one")
        entries = {**(redaction_in(commit) or {}).get("entries", {}), **entries}


def _unbound(commits: Sequence[Commit]) -> Iterator[str]:
    for commit, after in pairwise(commits):
        own = (after.commit_info or {}).get(MEMBER)
        if commit.is_redacted and not (isinstance(own, Mapping) and OUTLINE in own):
            yield f"@{commit.version}: redacted, and what else it was is on the word of who redacted it"


def _chain(commits: Sequence[Commit], history: History, witnesses: Mapping[int, str]) -> Iterator[Finding]:
    """Every commit's link to the one before, what the witnesses say, and that redacted ones are as a later one says."""
    yield from _redactions(commits)
    for before, commit in zip([None, *commits], commits, strict=False):
        own = (commit.commit_info or {}).get(MEMBER)
        if not isinstance(own, Mapping):
            continue
        recorded = cast("Mapping[str, Any]", own).get("prev")
        expected = before.sha256 if before else None
        if recorded != expected:
            problem = f"it links to {str(recorded)[:12]}…, but the commit before has the SHA-256 {str(expected)[:12]}…"
            yield Finding("chain", f"@{commit.version}", problem)
    for at, problem in unlike_witnesses(history, witnesses):
        yield Finding("chain", f"@{at}", problem)


def unlike_witnesses(history: History, witnesses: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """The commits that are not what witnesses saw, and how: by log version, of the SHA-256 of a commit, and of its
    outline after a colon where that is known.

    A redacted commit has the name that it had, which proves nothing by itself: it is what a witness saw if its outline
    is, or if a witness saw a later commit, which is as it was and binds it: by the outlines in all commits up to that
    one, or because the commit is among these that says what became of it.
    """
    records = history.records
    known = {at: seen.partition(":")[::2] for at, seen in sorted(witnesses.items())}
    whole = {
        at
        for at, (sha, _) in known.items()
        if at < len(records) and records[at].sha256 == sha and records[at].redacted_outline is None
    }
    bound = _bound(records, whole)
    for at, (sha, outline) in known.items():
        if at >= len(records):
            yield at, "a witness saw this commit, but the log ends before it"
        elif records[at].sha256 != sha:
            yield at, f"a witness saw {sha[:12]}…, the log holds {records[at].sha256[:12]}…"
        elif (now := records[at].redacted_outline) is None:
            continue
        elif outline and now != outline:
            yield at, "it was redacted since a witness saw it, and lost more than an erasure takes out of a log"
        elif not outline and at not in bound:
            problem = "it was redacted since a witness saw it, and none has seen a later commit yet, so that it lost"
            yield at, f"{problem} nothing else is on the word of who redacted it"


def _bound(records: Sequence[CommitRecord], whole: Set[int]) -> Set[int]:
    """The commits that are bound by one of those that a witness saw, and that are as they were."""
    bound: set[int] = set()
    last, is_bound = max(whole, default=-1), False
    for record in reversed(records):
        at = record.log_version
        bound |= {at} if is_bound else set()
        if at <= last and record.redacted_outline is None:
            redaction = cast("Mapping[str, Mapping[str, str]]", record.member(REDACTION) or {})
            bound |= {int(each) for each in redaction.get("entries", ()) if each.isdecimal() and int(each) < at}
        is_bound = (is_bound or at in whole) and record.member(OUTLINE) is not None
    return bound


def _identities(
    commits: Sequence[Commit], versions: Iterable[Version], register: ErasureRegister, state: TableState
) -> tuple[list[Finding], Sequence[Add]]:
    """Identities against their SHAs and against the parts in the log; returns also the parts to look at.

    Where rows were erased these are the parts that stand for those in the log.
    """
    findings: list[Finding] = []
    try:
        erased = register.of(state.snapshot)
    except VersionedError as error:
        return [Finding("document", FOLDER, str(error))], []
    parts: dict[tuple[str, str | None], Add] = {}
    live = LiveParts()
    for version in sorted(versions, key=lambda version: version.log_version):
        try:
            live.advance(commits[live.log_version + 1 : version.log_version + 1])
            adds = live.of(version.partition)
            if version.raw is not None:
                _ = version.entry  # in its canonical form, too
                check_parts(version, adds)
        except VersionedError as error:
            findings.append(Finding("identity", f"{version.short} (@{version.log_version})", str(error)))
            continue
        if version.gone is None:
            parts.update((add.identity, add) for add in erased.of(adds))
    return findings, list(parts.values())


def _parents(table: VerifiedTable, history: History, versions: Iterable[Version]) -> Iterator[Finding]:
    """Parents in this project that versions record, and that are not in the history of their table any more.

    One whose bytes are gone is there: its table says so. What is in another project, or environment, is not looked at,
    nor are the tables that an export left out, or has not come to.
    """
    project = table.project
    try:
        export = read_export(project.data)
    except IntegrityError as error:
        export = None
        yield Finding("document", EXPORT_KEY, str(error))
    left_out: Set[str] = set() if export is None else set(map(str, export.absent))
    known: dict[str, tuple[Set[str], str]] = {str(table.name): (known_shas(history), _UNKNOWN)}
    for version in versions:
        for name, sha in _parents_within(project.name, version):
            if name not in known:
                if name in left_out and TableOperations(project, table_name(name)).refresh() is None:
                    continue
                known[name] = _known_versions(project, name)
            shas, problem = known[name]
            if sha not in shas:
                named = f"{name} {sha[:8]}"
                yield Finding("parent", named, f"{version.short} (@{version.log_version}) was built from it: {problem}")


def _known_versions(project: ProjectContext, name: str) -> tuple[Set[str], str]:
    """The versions that a table knows, and what is wrong with others."""
    try:
        return known_shas(TableOperations(project, table_name(name)).existing_state().history), _UNKNOWN
    except (TableNotFound, InvalidName):
        return frozenset(), "there is no such table any more"
    except VersionedError as error:
        return frozenset(), str(error)


def _parents_within(project: str, version: Version) -> Iterator[tuple[str, str]]:
    """The tables and versions of this project, and of no environment of it, that a kept version records as parents."""
    if version.gone is not None or version.raw is None:
        return
    for parent in version.raw["identity"].get("parents", ()):
        name = parent.get("table")
        if parent.get("source") == project and "environment" not in parent and isinstance(name, str):
            yield name, parent["version"]


def _current(state: TableState) -> Iterator[Finding]:
    """Heads whose parts are not the table's any more.

    A commit of another program may have removed parts of one partition, before an own one to another partition.
    """
    parts = parts_by_partition(state.snapshot)
    for version in state.history.current:
        if version.gone is not None or version.log_version == state.log_version:
            continue
        try:
            whole = version.partition is None
            check_parts(version, parts_of(state.snapshot) if whole else parts.get(version.partition, ()))
        except VersionedError as error:
            yield Finding(
                "identity", f"{version.short} (@{version.log_version}), as of @{state.log_version}", str(error)
            )


def _looks(store: ObjectStore, files: Sequence[Add | Cdc]) -> list[tuple[str, Look]]:
    """What finds what is wrong with each file, however many deletion vectors it has, and with each of these."""
    vectors = [file for file in files if isinstance(file, Add) and file.deletion_vector]
    looks: list[tuple[str, Look]] = [
        (key, partial(_part, store, file)) for key, file in {f.key: f for f in files}.items()
    ]
    return looks + [(add.key, partial(_vector, store, add)) for add in vectors]


def _in_parallel(looks: Sequence[tuple[str, Look]]) -> Iterator[tuple[str, Look]]:
    """The looks in order, each taken by the time it is asked."""
    with ThreadPoolExecutor(_READERS, thread_name_prefix="verify") as pool:
        for key, looking in [(key, pool.submit(look)) for key, look in looks]:
            yield key, looking.result


def _part_findings(key: str, look: Look) -> list[Finding]:
    try:
        problem = look()
    except VersionedError as error:
        problem = str(error)
    return [] if problem is None else [Finding("part", key, problem)]


def _changes(state: TableState, commits: Sequence[Commit], versions: Iterable[Version]) -> list[Cdc]:
    """The files of changes that belong to versions and must be there."""
    files = ChangeFiles()
    for commit in commits:
        files.advance(commit)
    belonging = files.of(versions)
    return [file for key, file in files.needed(state.history.versions).items() if key in belonging]


def part_problems(store: ObjectStore, files: Sequence[Add | Cdc]) -> list[tuple[str, str]]:
    """What is wrong with the bytes of parts, of their deletion vectors, and of files of changes, by the files' keys.

    Reads every byte. Raises `StorageError` where the store does not answer.
    """
    looked_at = _in_parallel(_looks(store, files))
    return [(key, problem) for key, look in looked_at if (problem := look()) is not None]


def _part(store: ObjectStore, add: Add | Cdc) -> str | None:
    expected = part_sha(add)
    try:
        info = store.head(add.key)
        if info.size != add.size:
            return f"it has {info.size} bytes, {add.size} were committed"
        digest = sha256_of(store, add.key, add.size) if expected is not None else None
    except ObjectNotFound:
        return "it is missing"
    return f"its bytes have the SHA-256 {str(digest)[:12]}…" if digest != expected else None


def _vector(store: ObjectStore, add: Add) -> str | None:
    rows = num_records(add.stats)
    try:
        if add.deletion_vector is not None and rows is not None:
            deleted_rows(store, add.deletion_vector, rows, add.key, vector_sha_of(add))
    except (IntegrityError, UnsupportedFeature) as error:
        return str(error)
    return None


def _document(store: ObjectStore, key: str, check: Check) -> list[Finding]:
    data: bytes | None = None
    try:
        with suppress(ObjectNotFound):
            data = store.get(key)
        if check(data):
            return []
        problem = "it is missing" if data is None else "it is not what the log says"
        problem += "; repair() writes it again from the log"
    except VersionedError as error:
        problem = str(error)
    return [Finding("document", key, problem)]


def _head(data: ObjectStore, key: str, expected: Head | None, log_version: int) -> list[Finding]:
    try:
        found = read_head(data, key)
    except VersionedError as error:
        return [Finding("document", key, str(error))]
    if found.head != expected or found.log_version > log_version:
        return [Finding("document", key, f"it is at @{found.log_version} and not what the log says at @{log_version}")]
    return []
