"""What has to hold before a verb changes anything: one table for all verbs, which each of them begins by asking.

Conditions of the rows, or of what is named in the call, are the verb's own; what must hold of the place, the project,
its environments and drafts stands here, so that a new verb says it by one line, and a test can try them all. A
migration has conditions of its own (`governance/migrate.py`); an export changes nothing here, so it has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.parked_draft import refuse_parked
from dagster_versioned.tables.state import TableState


class Subject(Protocol):
    """A table, as far as a verb is asked of it."""

    @property
    def name(self) -> TableName: ...
    @property
    def state(self) -> TableState: ...


@dataclass(frozen=True)
class Verb:
    """A verb as errors name it (``{}`` stands for the table), and what it does not go together with.

    ``instead`` is what to do in an environment, where the verb is refused; ``None``: it is possible there.
    ``cannot_be`` is the participle that a history of events cannot become. ``strands_drafts`` says that drafts which
    wait to be published could not be published any more. ``is_unlogged`` says that it commits to no table's log, where
    a migration's fence would stop it, so it is refused as soon as a migration marks the place. All are refused where
    the place is not the one to write to, unless they are only tried (``dry_run``).
    """

    title: str
    instead: str | None = None
    cannot_be: str | None = None
    strands_drafts: bool = False
    is_unlogged: bool = False


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        # of a table
        "write": Verb("A write"),
        "park": Verb("A draft"),
        "revert": Verb("A revert", cannot_be="reverted"),
        "release": Verb("A release"),
        "forget": Verb("Forgetting"),
        "drop": Verb("Dropping {}", strands_drafts=True),
        "restore": Verb("Restoring"),
        "repartition": Verb("Repartitioning {}", strands_drafts=True),
        "record": Verb("A record"),
        "vacuum": Verb("Vacuuming"),
        "repair": Verb("Repairing"),
        "leave": Verb(
            "Leaving {}", "Leave it in the project itself", cannot_be="left to other programs", strands_drafts=True
        ),
        "adopt": Verb("Adopting", "Adopt the table in the project itself, then fork it", cannot_be="adopted"),
        "expire": Verb("Expiring", "Drop the environment; what it wrote goes with it", cannot_be="expired"),
        "purge": Verb(
            "A purge", "Drop the environment, and purge in the project itself", cannot_be="purged", strands_drafts=True
        ),
        "erase": Verb(
            "Erasing from {}",
            "Drop the environment, and erase in the project itself",
            cannot_be="erased from",
            strands_drafts=True,
            is_unlogged=True,
        ),
        "rename table": Verb("Renaming {}", "Rename it in the project itself", strands_drafts=True),
        # of a project
        "rename project": Verb("Renaming {}", "Rename the project itself", strands_drafts=True, is_unlogged=True),
        "pin": Verb("A pin of one's own", "Pin the version in the project itself, once it is there"),
        "tag": Verb("A tag", "Make it in the project itself", is_unlogged=True),
        "drop tag": Verb("To drop a tag", "Drop it in the project itself", is_unlogged=True),
        "publish": Verb("Publishing"),
        "drop draft": Verb("Dropping a draft"),
        "promote": Verb("A promotion"),
        "abandon promotion": Verb("To abandon a promotion", "Do it in the project itself"),
        "create environment": Verb("Another environment of it", "Create it from the project itself", is_unlogged=True),
        "drop environment": Verb("To drop one", "Drop it from the project itself"),
        "rebase": Verb("A rebase", "Rebase it from the project itself", is_unlogged=True),
        # of histories of events, and of the definitions of features
        "write events": Verb("A write of events"),
        "pull": Verb("A pull"),
        "reference": Verb("A reference"),
        "name repository": Verb("A repository of one's own", "Name it in the project itself"),
        "change slices": Verb("To keep or discard slices", "Do it in the project itself"),
        "push definitions": Verb("A push of definitions", "Push them to the project itself", is_unlogged=True),
    }
)


def require(
    verb: str,
    project: ProjectContext,
    table: Subject | None = None,
    *,
    dry_run: bool = False,
    partitions: Sequence[str] | None = None,
) -> None:
    """Raise where a verb of `VERBS` is not possible in a project, or of a table or some partitions: nothing is changed.

    Raises `InvalidInput`, `GovernanceError`, `ProjectMoved`, `EnvironmentNotFound`, and `TableNotFound` where the verb
    needs to know what the table is.
    """
    known = VERBS[verb]
    of = project.name if table is None else str(table.name) if partitions is None else f"partitions of {table.name}"
    title = known.title.format(of)
    if known.instead is not None:
        project.refuse_in_environment(title, known.instead)
    if not dry_run:
        project.check_write()
    if known.is_unlogged:
        project.check_unmarked()
    if table is not None and known.cannot_be is not None and table.state.is_history:
        raise InvalidInput(
            f"{table.name} is a history of events, of which nothing is ever changed or taken away, so it cannot be "
            f"{known.cannot_be}. Nothing was changed. What is wrong is put right by later events; read older ones with "
            "as_at(…)."
        )
    if known.strands_drafts:
        refuse_parked(project.data, title, None if table is None else str(table.name), partitions)
