"""Where the environments of a project are, and how one is opened.

Each is one document below the project's root, ``environments/forks/{name}.json``, and a folder of its own,
``environments/files/{name}/{generation}/``, for what is written in it. One that is rebased, or dropped and made anew,
has another folder, so what a writer is late with reaches nobody.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dagster_versioned.errors import EnvironmentNotFound, IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.identity.names import PRODUCTION, TableName, check_environment_name, table_name
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.overlay import OverlayStore
from dagster_versioned.tables.document import is_dropped, read_document
from dagster_versioned.tables.documents.head import HEADS_FOLDER
from dagster_versioned.tables.environment.fork import EnvironmentDocument, Fork
from dagster_versioned.tables.erased_parts import ERASE, REDACT
from dagster_versioned.tables.state import TableState

FOLDER = "environments/forks/"
FILES = "environments/files/"
DATA_FOLDER = "data"
"""Where an environment's tables lie: not where a project's do, so that nobody opens the one as the other."""


_OWN_FILES = re.compile(rf"/{FILES}([a-z0-9-]+)/[0-9a-f]{{12}}/")


@dataclass(frozen=True)
class Environment:
    """An environment that a project was opened in: its fork, production's store at its root, its document's ETag."""

    fork: Fork
    base: ObjectStore
    etag: str

    @property
    def name(self) -> str:
        """Its name."""
        return self.fork.environment

    def store(self) -> ObjectStore:
        """The root of its own bytes, apart from production's files in the making where that is a local folder."""
        if isinstance(self.base, LocalStore):
            return LocalStore(self.base.local_path(self.fork.path))
        return self.base.subfolder(self.fork.path)

    def data(self, production: ObjectStore) -> OverlayStore:
        """Its tables, over those of ``production`` (a project's data folder)."""
        return OverlayStore(self.own_data(), production, self.fork)

    def own_data(self) -> ObjectStore:
        """What was written in it, without what it began with."""
        return self.store().subfolder(DATA_FOLDER)

    def written_names(self) -> list[TableName]:
        """The tables of which something was written in it, also if no commit came of it, sorted."""
        own = self.own_data().list(HEADS_FOLDER)
        return sorted(table_name(info.key[len(HEADS_FOLDER) : -len(".json")]) for info in own)

    def forked_at(self, table: TableName) -> int:
        """The log version up to which a table is production's; -1 for one that production did not have."""
        forked = self.fork.tables.get(table)
        return -1 if forked is None else forked.log_version

    def commits_in(self, table: TableName, state: TableState) -> int:
        """How many commits of a table were made in it, but for what says that rows were erased from production."""
        since = state.history.between(self.forked_at(table) + 1, state.log_version)
        return sum(record.operation not in (ERASE, REDACT) for record in since)

    def check_forked(self, table: TableName, state: TableState) -> None:
        """Raise `IntegrityError` where the table's log is not the one that was forked, but another one in its place."""
        forked = self.fork.tables.get(table)
        if forked is None or forked.is_in(state.history):
            return
        raise IntegrityError(
            f"{table} in {self.base.uri} is another table than the one that the environment {self.name} began with at "
            f"{self.fork.created}: its log has another commit {forked.log_version}, or none. Nothing was read or "
            "changed. Drop the environment, and create it anew."
        )

    def check_current(self) -> None:
        """Refuse to write what nobody would read: it was dropped, rebased, made anew. Raises `EnvironmentNotFound`."""
        if not self._is_current():
            now = self._document()
            if now is None:
                what = "dropped"
            else:
                how = "rebased" if _is_left(now, self.fork) else "rebased, or made anew,"
                what = f"{how} at {now.fork.created} by {now.fork.by or 'somebody'}"
            raise EnvironmentNotFound(
                f"The environment {self.name} was {what} since it was opened here. Nothing was committed. Open it "
                f"again, or create it: `dagster-versioned env create {self.name}`."
            )

    def check_committed(self) -> None:
        """`check_current` after a commit: what was committed while it was dropped is taken away.

        Not while a rebase leaves this generation: it deletes that once all that was committed before is carried on.
        """
        if self._is_current():
            return
        now = self._document()
        if now is None or not _is_left(now, self.fork):
            own = self.store()
            own.delete([info.key for info in own.list()])
        if now is not None:
            raise EnvironmentNotFound(
                f"The environment {self.name} was rebased, or made anew, at {now.fork.created} by "
                f"{now.fork.by or 'somebody'} while this was committed, which a rebase may or may not have carried on. "
                "Open it again, and repeat it."
            )
        self.check_current()

    def _is_current(self) -> bool:
        try:
            if self.base.head(key_of(self.name)).etag == self.etag:
                return True
        except ObjectNotFound:
            return False
        now = self._document()
        return now is not None and now.is_open(self.fork.generation)

    def _document(self) -> EnvironmentDocument | None:
        key = key_of(self.name)
        try:
            return EnvironmentDocument.from_bytes(read_document(self.base, key)[0], key)
        except ObjectNotFound:
            return None


def _is_left(now: EnvironmentDocument, fork: Fork) -> bool:
    return now.previous is not None and now.previous.generation == fork.generation


def open_environment(store: ObjectStore, project: str, name: str) -> Environment:
    """An environment of the project at this root.

    Raises `InvalidName`, `EnvironmentNotFound`, `IntegrityError`, and `InvalidInput` for one of another project.
    """
    document, etag = document_of(store, project, name)
    return Environment(document.fork, store, etag)


def document_of(store: ObjectStore, project: str, name: str) -> tuple[EnvironmentDocument, str]:
    """The document of the environment of a name, and its ETag. Raises as `open_environment` does."""
    document, etag = _read(store, name)
    if document.fork.project != project:
        raise InvalidInput(
            f"The environment {name} is one of the project {document.fork.project!r}, not of {project!r}. Nothing "
            "was opened. Open the project by the name that it has."
        )
    return document, etag


def read_environment(store: ObjectStore, name: str) -> Fork:
    """The fork of the environment of a name, below a project's root. Raises as `open_environment` does."""
    return _read(store, name)[0].fork


def names_of(store: ObjectStore) -> Iterator[str]:
    """The names of all environments below a project's root, sorted."""
    for info in store.list(FOLDER):
        name, is_document, rest = info.key.removeprefix(FOLDER).partition(".json")
        if is_document and not rest and "/" not in name and not is_dropped(info):
            yield name


def generations(store: ObjectStore, project: str) -> Iterator[Environment]:
    """Each environment of the project at this root, as it is, and as a rebase that is on its way will leave it.

    Raises `IntegrityError` where one cannot be read, and `InvalidInput` for one of another project.
    """
    for name in names_of(store):
        with suppress(EnvironmentNotFound):  # it was dropped since
            document, etag = document_of(store, project, name)
            for fork in (document.fork, document.next):
                if fork is not None:
                    yield Environment(fork, store, etag)


def environments_of(store: ObjectStore) -> list[Fork]:
    """All environments below a project's root, by name. Raises `IntegrityError` where one cannot be read."""
    return [read_environment(store, name) for name in names_of(store)]


def read_forks(store: ObjectStore, name: str) -> list[Fork]:
    """The forks that production keeps something for of the environment of a name. Raises as `open_environment` does."""
    return list(_read(store, name)[0].forks)


def refuse_environments(store: ObjectStore) -> None:
    """Raise `InvalidInput` where a project has environments, before its bytes go away below them."""
    names = list(names_of(store))
    if names:
        raise InvalidInput(
            f"{store.uri} has environments, which read the project there: {', '.join(names[:10])}. Nothing "
            f"was moved or deleted. Drop them first: `dagster-versioned env drop {names[0]} --apply`."
        )


def key_of(name: str) -> str:
    """Where an environment's document lies, below a project's root."""
    return f"{FOLDER}{name}.json"


def environment_of(uri: str) -> str | None:
    """The environment below whose files a place lies, if it does."""
    found = _OWN_FILES.search(uri)
    return None if found is None else found[1]


def is_production(name: str | None) -> bool:
    """Whether a name, or none, means the project itself."""
    return name is None or name == PRODUCTION


def _read(store: ObjectStore, name: str) -> tuple[EnvironmentDocument, str]:
    key = key_of(check_environment_name(name))
    try:
        data, info = read_document(store, key)
    except ObjectNotFound:
        there = list(names_of(store))
        known = f"There are: {', '.join(there[:10])}" if there else "There is none"
        raise EnvironmentNotFound(
            f"There is no environment {name!r} in {store.uri}. Nothing was created. {known}; `dagster-versioned env "
            "create` makes one."
        ) from None
    document = EnvironmentDocument.from_bytes(data, key)
    if document.fork.environment != name:
        raise IntegrityError(
            f"{key} is the document of the environment {document.fork.environment!r}. Nothing was changed. Drop "
            f"{name}, and create it anew."
        )
    return document, info.etag
