"""A table as environments have it that began with it: their logs name erasures, too, before any file is deleted.

So a writer there that read the rows before loses the race for its log entry, as one of production does.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

from dagster_versioned.errors import EnvironmentNotFound, InvalidInput, VersionedError
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.parked_draft import refuse_parked
from dagster_versioned.tables.environment.registry import FILES, names_of, read_forks
from dagster_versioned.tables.erased_parts import ERASE
from dagster_versioned.tables.erasure.redact import Redaction
from dagster_versioned.tables.history import is_data_key
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable, open_table
from dagster_versioned.tables.table_record import TableRecord


def forks_of(project: ProjectContext, table: VersionedTable) -> Iterator[tuple[VersionedTable, int]]:
    """The table in each environment that began with it, with the log version at which it did."""
    for there in project.in_environments():
        assert there.environment is not None
        if (forked_at := there.environment.forked_at(table.name)) >= 0:
            yield open_table(there, table.name), forked_at


def refuse_written(project: ProjectContext, table: VersionedTable) -> None:
    """Raise `InvalidInput` where an environment has versions of its own of a table, drafts or files, or had some."""
    for fork, _ in forks_of(project, table):
        refuse_written_fork(fork)
    forks = {f"{fork.path}/" for name in names_of(project.store) for fork in read_forks(project.store, name)}
    names = {str(table.name), *(name for _, name in TableRecord.of(table.state.snapshot).former)}
    for info in project.store.list(FILES):
        _, _, environment, generation, _, name, key = (*info.key.split("/", 6), "", "")[:7]
        of_fork = name == table.name and f"{FILES}{environment}/{generation}/" in forks
        if name in names and (not of_fork or is_data_key(key) or key.startswith("_staging/")):
            raise _refusal(environment, f"has files of {table.name}: {info.key}")


def refuse_written_fork(fork: VersionedTable) -> None:
    """Raise `InvalidInput` where an environment has versions of its own of a table, or drafts."""
    environment = fork.project.environment
    assert environment is not None
    refuse_parked(fork.project.data, f"Erasing from {fork.name} in {environment.name}", str(fork.name))
    if environment.commits_in(fork.name, fork.state):
        raise _refusal(environment.name, f"has written {fork.name}")


def _refusal(environment: str, problem: str) -> InvalidInput:
    return InvalidInput(
        f"The environment {environment!r} {problem}. No file of the table was deleted. Promote what it has, drop it"
        f" (`dagster-versioned env drop {environment} --apply`), and erase again."
    )


@contextmanager
def unless_dropped(fork: VersionedTable) -> Generator[None]:
    """Pass over whatever fails because the environment was dropped meanwhile."""
    try:
        yield
    except VersionedError:
        with suppress(EnvironmentNotFound):
            if fork.project.environment is not None:
                fork.project.environment.check_current()
            raise


def redaction_of_fork(fork: VersionedTable, forked_at: int, state: TableState) -> Redaction:
    """What the log of an environment tells no more, after its fork: of what erasures before the last one left, too."""
    erased = fork.project.erasures.of(state.snapshot)
    history = state.history
    last = max((record.log_version for record in history.records if record.operation == ERASE), default=-1)
    versions = {(v.log_version, v.partition) for v in history.versions if forked_at < v.log_version < last}
    return Redaction(erased.keys, versions)
