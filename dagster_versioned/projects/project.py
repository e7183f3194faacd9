"""A project: one data root, the tables in it, and the pins and tags that keep versions."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from dagster_versioned.errors import ExpiredVersion, InvalidInput, InvalidName, VersionNotFound
from dagster_versioned.projects.tags import drop_tag, make_tag
from dagster_versioned.publication.guard import PublishedParents
from dagster_versioned.publication.publish import PublicationReport, publish_run
from dagster_versioned.storage.credentials import CredentialsSource
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.opening import open_store
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, find_draft, read_drafts, settle
from dagster_versioned.tables.documents.tag import Tag, read_tags
from dagster_versioned.tables.environment.registry import is_production
from dagster_versioned.tables.erasure.commit import ErasedRows
from dagster_versioned.tables.own_files import OwnFiles
from dagster_versioned.tables.ownership import Ownership
from dagster_versioned.tables.pins import Pin, change_pins, read_pins
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.rename import rename_project
from dagster_versioned.tables.stand_ins import stand_in_for
from dagster_versioned.tables.table import VersionedTable, open_table

if TYPE_CHECKING:
    from dagster_versioned.projects.erase import Condition, EraseReport


class Project(ProjectContext):
    """A project's data root and what is in it: the verbs, over what they share (`ProjectContext`)."""

    guards = (Ownership, ErasedRows, PublishedParents, OwnFiles)

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
        if (stand_in := stand_in_for(name)) is not None:
            return stand_in
        production = cls(name, open_store(location, profile=profile, credentials=credentials), author=author)
        production.check_name("read or written")
        return production if is_production(environment) else production.in_environment(str(environment))

    def table(self, name: str | Sequence[str]) -> VersionedTable:
        """The table of a name or of an asset key (a sequence of parts); it need not exist yet."""
        return open_table(self, name)

    def rename(self, name: str) -> "Project":
        """Give the project another name, and return it opened by that; its tables stay what they are.

        Lineage that names it as before is followed. Whoever opens it by the old name is refused when it writes. Raises
        `InvalidInput` for a governed project, whose name is in the registry.
        """
        if self.placement_authority is not None:
            raise InvalidInput(
                f"{self.name} is governed, so its name is in the registry and cannot be changed. Nothing was changed."
            )
        renamed = Project(name, self.store, author=self.author, observers=self.observers)
        require("rename project", self)
        rename_project(self, name)
        self._is_named = False
        if renamed.observers:
            for table in renamed.tables():
                operations = renamed.table(table).operations
                operations.tell(operations.cache.existing_state())  # the commits have another place now
        return renamed

    def pins(self) -> dict[str, Pin]:
        """The pins by name."""
        return read_pins(self)

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

        change_pins(self, add)
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

        change_pins(self, drop)

    def erase(
        self,
        condition: "str | Condition",
        tables: Sequence[str],
        *,
        why: str,
        by: str | None = None,
        dry_run: bool = True,
        all_rows: bool = False,
        downstream: bool = False,
        progress: "Callable[[int, int], None] | None" = None,
    ) -> "EraseReport":
        """Erase the rows of which a condition (SQL) is true from every kept version of tables; their names stay.

        See `projects.erase.erase`, which says what is raised.
        """
        from dagster_versioned.projects.erase import Condition, erase

        meant = Condition(condition) if isinstance(condition, str) else condition
        return erase(
            self,
            meant,
            tables,
            why,
            by or self.author,
            dry_run=dry_run,
            all_rows=all_rows,
            downstream=downstream,
            progress=progress,
        )

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

    def parked(self) -> list[ParkedDraft]:
        """The drafts of steps whose versions wait for their checks, and what became of those that were closed.

        What cannot be read is left out. In the order in which they were parked.
        """
        return read_drafts(self.data)[0]

    def drop_parked(self, draft_id: str, *, by: str | None = None, why: str | None = None) -> ParkedDraft:
        """Close a draft, named by the beginning of its id, so that it is never published; its parts go with `vacuum`.

        Raises `VersionNotFound` where there is none.
        """
        require("drop draft", self)
        text = "dropped" + (f" by {by or self.author}" if by or self.author else "") + (f": {why}" if why else "")
        now, draft = datetime.now(UTC).isoformat(), find_draft(self.data, draft_id)
        return settle(self.data, draft, standing="superseded", why=text, closed_at=now, by=by or self.author)

    def publish(self, run_id: str, *, by: str | None = None) -> PublicationReport:
        """Publish what a run has parked, whatever its checks say: a decision of ``by``, or of the project's author.

        Each after those that it was built from. Raises `InvalidInput` without a name, and `GovernanceError`.
        """
        return publish_run(self, run_id, by or self.author)
