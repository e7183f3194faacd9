"""A project: one data root, the tables in it, and the pins and tags that keep versions."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import orjson

from dagster_versioned.errors import (
    ExpiredVersion,
    IntegrityError,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    VersionNotFound,
)
from dagster_versioned.identity.names import DATA_FOLDER, TableName, check_project_name, table_name, table_name_of
from dagster_versioned.storage.credentials import CredentialsSource
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.opening import open_store
from dagster_versioned.tables.document import encode, update_document
from dagster_versioned.tables.documents.manifest import recorded_project
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, find_draft, read_drafts, refuse_parked, settle
from dagster_versioned.tables.documents.tag import Tag, read_tag, read_tags
from dagster_versioned.tables.environment.registry import (
    Environment,
    is_production,
    open_environment,
    refuse_in_environment,
)
from dagster_versioned.tables.history import History
from dagster_versioned.tables.parked.publish import PublicationReport, publish_run
from dagster_versioned.tables.relocation.migration_mark import MigrationMark, moved, read_mark
from dagster_versioned.tables.relocation.placement_authority import PlacementAuthority
from dagster_versioned.tables.rename import LEFT_KEY, rename_project
from dagster_versioned.tables.state import LoadedStates
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.tags import drop_tag, make_tag

PINS_KEY = ".metadata/pins.json"
_SHA = re.compile(r"[0-9a-f]{64}")
_LOG = re.compile(r".*/_delta_log/\d{20}\.(?:json|checkpoint\..+)", re.ASCII)


@dataclass(frozen=True)
class Pin:
    """A name for one version of one table; `VersionedTable.expire` keeps what is pinned."""

    name: str
    table: str
    version: str
    by: str | None
    why: str | None
    at: str


class Project:
    """A project's data root and what is in it.

    ``name`` is how other projects' lineage names it; ``store`` is rooted at the project's root and prefix.
    ``placement_authority`` knows where the bytes belong, if the project is governed. In an ``environment``, ``store``
    and ``data`` are what is written there, over the project as it was at the fork; its root is given as ``store``.
    """

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        *,
        author: str | None = None,
        placement_authority: PlacementAuthority | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.name = check_project_name(name)
        self.store = store if environment is None else environment.store()
        self.author = author
        self.placement_authority = placement_authority
        self.environment = environment
        production = store.subfolder(DATA_FOLDER)
        self.data: ObjectStore = production if environment is None else environment.data(production)
        self.loaded = LoadedStates()
        self._is_named = False  # this process saw that the place is the project's own

    @classmethod
    def open(
        cls,
        name: str,
        location: str | Location,
        *,
        profile: str | None = None,
        credentials: CredentialsSource | None = None,
        author: str | None = None,
        environment: str | None = None,
    ) -> Self:
        """Open a project by location: a local path, ``file:///…``, ``s3://…``, ``gs://…`` or ``abfss://…``.

        ``environment`` names one of its environments; ``None`` and ``"production"`` are the project itself. Credentials
        come from the process's variables, from the named ``profile`` or from ``credentials``; never from the location.
        Raises `InvalidInput` where there is no such environment, and where the place holds a project of another name:
        what is read of it would be named in lineage as of this one. Raises `StorageError` where that cannot be asked.
        """
        production = cls(name, open_store(location, profile=profile, credentials=credentials), author=author)
        production._check_name("read or written")
        return production if is_production(environment) else production.in_environment(str(environment))

    def in_environment(self, name: str) -> Self:
        """The project in one of its environments. Raises `InvalidInput` where there is none of that name."""
        refuse_in_environment(self, "Another environment", "Open it from the project itself")
        opened = open_environment(self, name)
        return type(self)(self.name, self.store, author=self.author, environment=opened)

    def at(self, store: ObjectStore) -> "Project":
        """The same project, at another place."""
        refuse_in_environment(self, "Another place", "Open the project there, and its environment again")
        return Project(self.name, store, author=self.author, placement_authority=self.placement_authority)

    def check_write(self) -> None:
        """Whether this is the place to write to, by its name and, if there is any, by governance.

        Raises `InvalidInput` where the place holds a project of another name, and `GovernanceError`.
        """
        if self.environment is not None:
            self.environment.check_current()
            return
        if self.placement_authority is not None:
            self.placement_authority.check_write()
        self._check_name("written")

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

    def table(self, name: str | Sequence[str]) -> VersionedTable:
        """The table of a name or of an asset key (a sequence of parts); it need not exist yet."""
        if isinstance(name, str):
            return VersionedTable(self, table_name(name))
        return VersionedTable(self, table_name_of(name), asset_key=name)

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

    def rename(self, name: str) -> "Project":
        """Give the project another name, and return it opened by that; its tables stay what they are.

        Lineage that names it as before is followed. Whoever opens it by the old name is refused when it writes. Raises
        `InvalidInput` for a governed project, whose name is in the registry.
        """
        refuse_in_environment(self, "Another name", "Rename the project itself")
        refuse_parked(self.data, f"Renaming {self.name}")
        if self.placement_authority is not None:
            raise InvalidInput(
                f"{self.name} is governed, so its name is in the registry and cannot be changed. Nothing was changed."
            )
        renamed = Project(name, self.store, author=self.author)
        self.check_write()
        self.check_unmarked()
        rename_project(self, name)
        self._is_named = False
        return renamed

    def tables(self) -> list[TableName]:
        """Every table that has a log, by name; other folders that lie beside them are passed over."""
        return [table_name(folder) for folder in self.data.folders() if self._is_table(folder)]

    def pins(self) -> dict[str, Pin]:
        """The pins by name."""
        try:
            return _parse_pins(self.data.get(PINS_KEY))
        except ObjectNotFound:
            return {}

    def pin(
        self, name: str, table: str, version: str | None = None, *, by: str | None = None, why: str | None = None
    ) -> Pin:
        """Give a version (``None``: the head) a name, which keeps it from being expired.

        Raises `InvalidInput` if the name is taken by another version (unpin it first), `VersionNotFound`, and
        `ExpiredVersion`.
        """
        if not name.strip() or len(name) > 200:
            raise InvalidName(f"A pin needs a name of 1 to 200 characters, not {name!r:.100}.")
        pinned = self.table(table).version(version)
        sha = pinned.metadata_sha
        if sha is None:
            raise VersionNotFound("A foreign commit cannot be pinned. Nothing was pinned. Adopt it first: adopt().")
        if pinned.gone is not None:
            raise ExpiredVersion(f"The data of version {pinned.short} is not kept any more. Nothing was pinned.")
        new = Pin(name, table, sha, by, why, datetime.now(UTC).isoformat())

        def add(pins: dict[str, Pin]) -> dict[str, Pin]:
            old = pins.get(name)
            if old is not None and (old.table, old.version) != (new.table, new.version):
                raise InvalidInput(
                    f"The pin {name!r} already names version {old.version[:12]} of {old.table}. Nothing was changed. "
                    "Unpin it first, or choose another name."
                )
            return pins | {name: old or new}

        self._change_pins(add)
        # An expiry that was announced before the pin was there looks at pins once more; one that is through does not.
        if self.table(table).version(sha).gone is not None:
            self.unpin(name)
            raise ExpiredVersion(f"Version {pinned.short} was collected while it was being pinned. Nothing was pinned.")
        return self.pins()[name]

    def unpin(self, name: str) -> None:
        """Take a pin away. Raises `VersionNotFound` if there is none."""

        def drop(pins: dict[str, Pin]) -> dict[str, Pin]:
            if name not in pins:
                raise VersionNotFound(
                    f"No pin {name!r}. There are: {', '.join(sorted(pins)) or 'none'}. Nothing was changed."
                )
            return {key: pin for key, pin in pins.items() if key != name}

        self._change_pins(drop)

    def move_pins(self, before: str, after: str) -> None:
        """Let the pins of a table name it as it is called now; `rename` is who calls this."""
        self._change_pins(
            lambda pins: {key: replace(pin, table=after) if pin.table == before else pin for key, pin in pins.items()}
        )

    def resolve_pin(self, name: str, table: str, former: Collection[str] = ()) -> str:
        """The ``metadata_sha`` that a pin names in a table, by a name that it has or had. Raises `VersionNotFound`."""
        pin = self.pins().get(name)
        if pin is None or pin.table not in {table, *former}:
            of = "" if pin is None else f" It names a version of {pin.table}."
            raise VersionNotFound(f"No pin {name!r} of table {table}.{of} Nothing was read; `pins` lists them.")
        return pin.version

    def tags(self) -> dict[str, Tag]:
        """The tags by name. Raises `IntegrityError` where one cannot be read."""
        return read_tags(self.data)

    def tag(self, name: str, *, by: str | None = None, why: str | None = None) -> Tag:
        """Give the current versions of all tables at one moment a name, which keeps them from being expired.

        No version is among them without what it was built from. ``"tag:NAME"`` then reads each table as it was. Raises
        `InvalidName`, `InvalidInput` where there is a tag of that name or no table, `ProjectMoved`, and
        `CommitConflict` where tables do not stand still, or versions were collected meanwhile.
        """
        return make_tag(self, name, by=by or self.author, why=why)

    def drop_tag(self, name: str) -> None:
        """Take a tag away; its versions may expire. Raises `VersionNotFound` if there is none, and `ProjectMoved`."""
        drop_tag(self, name)

    def resolve_tag(self, name: str, table: str, former: Collection[str], history: History) -> int:
        """The log version of a table at a tag, by a name that it has or had.

        Raises `VersionNotFound` where there is no such tag or it does not have the table, and `IntegrityError` where
        it has another table of that name.
        """
        tag = read_tag(self.data, name)
        found = tag.find(history, (table, *former))
        if found is None:
            raise VersionNotFound(
                f"The tag {name!r} of {tag.created} has no table {table}: it had no version then, or was dropped. "
                f"Nothing was read; `dagster-versioned tag show {name}` lists the tables that it has."
            )
        return found

    def parked(self) -> list[ParkedDraft]:
        """The drafts of steps whose versions wait for their checks, and what became of those that were closed.

        What cannot be read is left out. In the order in which they were parked.
        """
        return read_drafts(self.data)[0]

    def drop_parked(self, draft_id: str, *, by: str | None = None, why: str | None = None) -> ParkedDraft:
        """Close a draft, named by the beginning of its id, so that it is never published; its parts go with `vacuum`.

        Raises `VersionNotFound` where there is none.
        """
        self.check_write()
        text = "dropped" + (f" by {by or self.author}" if by or self.author else "") + (f": {why}" if why else "")
        now, draft = datetime.now(UTC).isoformat(), find_draft(self.data, draft_id)
        return settle(self.data, draft, standing="superseded", why=text, closed_at=now, by=by or self.author)

    def publish(self, run_id: str, *, by: str | None = None) -> PublicationReport:
        """Publish what a run has parked, whatever its checks say: a decision of ``by``, or of the project's author.

        Each after those that it was built from. Raises `InvalidInput` without a name, and `GovernanceError`.
        """
        return publish_run(self, run_id, by or self.author)

    def _check_name(self, untouched: str) -> None:
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

    def _change_pins(self, change: Callable[[dict[str, Pin]], dict[str, Pin]]) -> None:
        refuse_in_environment(self, "A pin of one's own", "Pin the version in the project itself, once it is there")
        self.check_write()

        def rewrite(data: bytes | None) -> bytes | None:
            self.check_unmarked()  # between the read and the swap: see `fence`
            pins = {} if data is None else _parse_pins(data)
            changed = change(pins)
            return None if changed == pins else encode({k: _pin_json(p) for k, p in changed.items()})

        update_document(self.data, PINS_KEY, rewrite)

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


def _pin_json(pin: Pin) -> dict[str, Any]:
    return {"table": pin.table, "version": pin.version, "by": pin.by, "why": pin.why, "at": pin.at}


def _parse_pins(data: bytes) -> dict[str, Pin]:
    try:
        return {name: _parse_pin(name, raw) for name, raw in orjson.loads(data).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{PINS_KEY} cannot be read ({error!r}). Nothing was changed, and nothing expires while it is unreadable. "
            "Restore it from a backup or from the store's own versioning."
        ) from error


def _parse_pin(name: str, raw: Mapping[str, Any]) -> Pin:
    pin = Pin(name, raw["table"], raw["version"], raw.get("by"), raw.get("why"), raw.get("at", ""))
    # A version that reads find by a prefix, but that expiry does not know, would be a pin that keeps nothing.
    if not _SHA.fullmatch(pin.version):
        raise ValueError(f"pin {name!r}: the version {pin.version!r:.100} is no full metadata_sha")
    texts: tuple[Any, ...] = (pin.table, pin.at, pin.by or "", pin.why or "")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"pin {name!r}: table, by, why and at must be text")
    return pin
