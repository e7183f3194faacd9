"""What all verbs of a project's tables share: the place, whose it is, and what this process remembers of it."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol, Self

from dagster_versioned.errors import InvalidInput, InvalidName
from dagster_versioned.identity.names import DATA_FOLDER, TableName, check_project_name, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import read_alone
from dagster_versioned.tables.documents.manifest import recorded_project
from dagster_versioned.tables.environment.registry import Environment, generations, open_environment
from dagster_versioned.tables.erased_parts import ErasureRegister
from dagster_versioned.tables.relocation.migration_mark import MigrationMark, moved, read_mark
from dagster_versioned.tables.stand_ins import stand_in_for
from dagster_versioned.tables.state import LoadedStates, TableState
from dagster_versioned.tables.write.commit import Guard

LEFT_KEY = "_delta_log/.left"
"""Beside a log that is none of a table's: the one that a rename left, or one that it has not copied in full.

It sorts before every commit, so that who lists tables sees it first.
"""
_LOG = re.compile(r".*/_delta_log/\d{20}\.(?:json|checkpoint\..+)", re.ASCII)


class PlacementAuthority(Protocol):
    """What a project asks when it is governed (seed 003, "Role-aware reads"). Both answers are read live."""

    def check_write(self) -> None:
        """Return if the bytes belong at the place that was opened.

        Raises `GovernanceError` where that cannot be known, and `ProjectMoved` where they belong elsewhere; it is asked
        before anything is written.
        """
        ...

    def relocated(self) -> ObjectStore | None:
        """The store where the bytes are now; ``None`` if that is the place that was opened.

        Where governance does not answer, it warns and gives ``None``, so that what is here can be read.
        """
        ...


class CommittedTable(Protocol):
    """A table of which something was committed: see `TableOperations`."""

    name: TableName
    project: "ProjectContext"
    store: ObjectStore


class CommitObserver(Protocol):
    """Who is told of every commit of a project's tables, once it stands and what is derived of it is published."""

    def committed(self, table: CommittedTable, state: TableState) -> None:
        """Hear of the commit at the end of a table's log; what is raised here reaches who committed."""
        ...


class ProjectContext:
    """One project at one place, as the modules below its facade (`Project`) know it.

    ``name`` is how other projects' lineage names it; ``store`` is rooted at the project's root and prefix.
    ``placement_authority`` knows where the bytes belong, if the project is governed. In an ``environment``, ``store``
    and ``data`` are what is written there, over the project as it was at the fork; its root is given as ``store``.
    """

    guards: ClassVar[Sequence[Callable[["ProjectContext", TableName, ObjectStore], Guard]]] = ()
    """What every commit to a table has to pass, made for each table; a rule for all commits is added to `Project`."""

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        *,
        author: str | None = None,
        placement_authority: PlacementAuthority | None = None,
        environment: Environment | None = None,
        observers: Sequence[CommitObserver] = (),
    ) -> None:
        self.name = check_project_name(name)
        if environment is None and stand_in_for(name) is not None:
            raise InvalidInput(
                f"In this process, something stands in for {name}, as a version saw it, and its own store is not read. "
                "Nothing was opened. Open it by Project.open(…), or by its resource."
            )
        store = read_alone(store)
        self.store = store if environment is None else environment.store()
        self.author = author
        self.placement_authority = placement_authority
        self.environment = environment
        self.observers = observers
        production = store.subfolder(DATA_FOLDER)
        self.data: ObjectStore = production if environment is None else environment.data(production)
        self.loaded = LoadedStates()
        self.erasures = ErasureRegister(production)
        self._is_named = False  # this process saw that the place is the project's own

    def in_environment(self, name: str) -> Self:
        """The project in one of its environments. Raises `InvalidInput` where there is none of that name."""
        self.refuse_in_environment("Another environment", "Open it from the project itself")
        opened = open_environment(self.store, self.name, name)
        return type(self)(self.name, self.store, author=self.author, environment=opened, observers=self.observers)

    def in_environments(self) -> Iterator[Self]:
        """The project in each of its environments, see `registry.generations`."""
        self.refuse_in_environment("Other environments", "Open the project itself")
        for each in generations(self.store, self.name):
            yield type(self)(self.name, self.store, author=self.author, environment=each, observers=self.observers)

    def at(self, store: ObjectStore) -> Self:
        """The same project, at another place."""
        self.refuse_in_environment("Another place", "Open the project there, and its environment again")
        authority = self.placement_authority
        return type(self)(self.name, store, author=self.author, placement_authority=authority, observers=self.observers)

    def refuse_in_environment(self, what: str, instead: str) -> None:
        """Raise `InvalidInput` where the project was opened in an environment."""
        if self.environment is not None:
            raise InvalidInput(
                f"{what} is not possible in the environment {self.environment.name} of {self.name}. Nothing was "
                f"changed. {instead}."
            )

    def check_write(self) -> None:
        """Whether this is the place to write to, by its name and, if there is any, by governance.

        Raises `InvalidInput` where the place holds a project of another name, and `GovernanceError`.
        """
        if self.environment is not None:
            self.environment.check_current()
            return
        if self.placement_authority is not None:
            self.placement_authority.check_write()
        self.check_name("written")

    def check_unmarked(self) -> None:
        """Refuse a place that a migration is leaving, or is not done arriving at. Raises `ProjectMoved`."""
        mark = read_mark(self.data)
        if mark is not None and self.is_barred_by(mark):
            raise moved(self.data.uri, mark)

    def is_barred_by(self, mark: MigrationMark) -> bool:
        """Whether nothing may be committed at a place with this mark.

        Where governance says that this is the place, the migration has arrived, even if it died before it could say so.
        It is asked again: who began to write before the project left may come back to see it arrive here a second time.
        Raises `GovernanceError` where it says otherwise.
        """
        if mark.state == "leaving" or self.placement_authority is None:
            return True
        self.placement_authority.check_write()
        return False

    def check_new_table(self, name: TableName) -> None:
        """Refuse to create a table beside one whose name differs only in case. Raises `InvalidName`.

        Many file systems cannot tell such names apart.
        """
        for folder in self.data.folders():
            if folder != name and folder.casefold() == name.casefold():
                raise InvalidName(
                    f"The table {name!r} cannot be created beside {folder!r}: their names differ only in case. "
                    "Nothing was written. Choose another asset key."
                )

    def check_name(self, untouched: str) -> None:
        """Refuse a place that holds a project of another name, because lineage names its project for ever.

        Asked until the name was seen, so that it costs a process one read.
        """
        if self._is_named:
            return
        known = recorded_project(self.data)
        if known is not None and known != self.name:
            raise InvalidInput(
                f"{self.store.uri} holds the project {known!r}, but was opened as {self.name!r}. "
                f"Nothing was {untouched}. Open it by its own name, choose another location, or rename the project "
                "with `dagster-versioned rename-project`."
            )
        self._is_named = known is not None

    def tables(self) -> list[TableName]:
        """Every table that has a log, by name; other folders that lie beside them are passed over."""
        return [table_name(folder) for folder in self.data.folders() if self._is_table(folder)]

    def _is_table(self, folder: str) -> bool:
        try:
            name = table_name(folder)
        except InvalidName:
            return False
        # A checkpoint without its commits is a table that cannot be read, and what cannot be read is not passed over.
        for info in self.data.list(f"{name}/_delta_log/"):
            if info.key == f"{name}/{LEFT_KEY}":
                return False
            if _LOG.fullmatch(info.key):
                return True
        return False
