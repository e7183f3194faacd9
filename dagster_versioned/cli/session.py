"""The project that the options of every command open."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_versioned.cli.documents import print_json
from dagster_versioned.cli.terminal import Part, Table, plain, show
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.governance.connect import Governance
    from dagster_versioned.governance.registry import Registry
    from dagster_versioned.projects.project import Project
    from dagster_versioned.tables.table import VersionedTable


KEY_VARIABLE = "DAGSTER_VERSIONED_SIGNING_KEY"


@dataclass(frozen=True)
class Session:
    """The global options, or else the environment; `open` makes a project of it."""

    project: str | None = None
    location: str | None = None
    profile: str | None = None
    author: str | None = None
    environment: str | None = None
    governance: str | None = None
    registry: str | None = None
    clone: str | None = None
    role: str | None = None
    json: bool = False
    quiet: bool = False
    debug: bool = False

    def anywhere(self) -> "Session":
        """The same for a process that begins in another folder: paths from the root, no JSON."""
        paths = {name: absolute(getattr(self, name)) for name in ("location", "governance", "registry", "clone")}
        return replace(self, json=False, **paths)

    def open(self) -> "Project":
        """The project, or the environment of it that is named. Raises as `production` does, `EnvironmentNotFound`."""
        from dagster_versioned.tables.environment.registry import is_production

        production = self.production()
        if is_production(self.environment):
            return production
        self.note(f"Environment {self.environment}.")
        return production.in_environment(str(self.environment))

    def production(self) -> "Project":
        """The project at the location, or where governance says that it is, whatever environment is named.

        Raises `InvalidInput` where neither is given, or name and location do not fit, and `GovernanceError`.
        """
        from dagster_versioned.projects.project import Project
        from dagster_versioned.storage.opening import open_store
        from dagster_versioned.tables.documents.manifest import recorded_project

        if self.governance:
            if not self.project:
                raise InvalidInput(
                    "Governance knows many projects, and none is named. Give --project, or set "
                    "DAGSTER_VERSIONED_PROJECT; `dagster-versioned gov list` shows them."
                )
            return self._signing(self.governed().project(self.project, location=self.location, author=self.author))
        if not self.location:
            raise InvalidInput(
                "No location. Give --location (a local path, file:///…, s3://…, gs://… or abfss://…), "
                "or set DAGSTER_VERSIONED_LOCATION; or give --governance, which knows where projects are."
            )
        unnamed = Project("-", open_store(self.location, profile=self.profile), author=self.author)
        recorded = recorded_project(unnamed.data)
        if self.project is None and recorded is None:
            raise InvalidInput(
                f"No project is recorded at {unnamed.store.uri}, and none is named. Give --project, or set "
                "DAGSTER_VERSIONED_PROJECT; check the location."
            )
        if self.project is not None and recorded not in (None, self.project):
            # Under a wrong name, what kept versions were built from would not be known as this project's own.
            raise InvalidInput(
                f"{unnamed.store.uri} holds the project {recorded!r}, not {self.project!r}. Nothing was changed. "
                "Correct --project or --location."
            )
        return self._signing(Project(self.project or str(recorded), unnamed.store, author=self.author))

    def _signing(self, project: "Project") -> "Project":
        """The project, of which each commit is signed where the environment names a key."""
        if place := os.environ.get(KEY_VARIABLE):
            from dagster_versioned.proof.attest import CommitSigner

            project.observers = (CommitSigner(place),)
        return project

    def governed(self) -> "Governance":
        """The governance, in the role that was given: by default a developer's with a registry, else a reader's.

        Raises `InvalidInput`, and what opening a clone does.
        """
        from dagster_versioned.governance.connect import Governance, Role

        if not self.governance:
            raise InvalidInput(
                "No governance storage. Give --governance (a local path, file:///…, s3://…, gs://… or abfss://…), "
                "or set DAGSTER_VERSIONED_GOVERNANCE."
            )
        roles: dict[str, Role] = {"developer": "developer", "reader": "reader"}
        role = roles.get(self.role or ("developer" if self.registry or self.clone else "reader"))
        if role is None:
            raise InvalidInput(f"The role is developer or reader, not {self.role!a:.50}: --role. Nothing was opened.")
        registry = self.registry_clone() if role == "developer" else None
        return Governance(self.governance, role=role, registry=registry, profile=self.profile)

    def registry_clone(self) -> "Registry":
        """The developer's clone of the registry, which is made where it is not there.

        Raises `InvalidInput` where none is named, `GovernanceError`, and `RegistryUnavailable` where it has to be made.
        """
        from dagster_versioned.governance.registry import Registry

        if self.registry:
            return Registry.clone(self.registry, self.clone_folder())
        return Registry.open(self.clone_folder())

    def clone_folder(self) -> Path:
        """Where the clone of the registry is, or will be. Raises `InvalidInput`."""
        from dagster_versioned.governance.git_remote import cached_clone

        if self.clone:
            return Path(self.clone)
        if not self.registry:
            raise InvalidInput(
                "No registry. Give --registry (the remote's URL or folder) or --clone (a clone's folder), "
                "or set DAGSTER_VERSIONED_REGISTRY or DAGSTER_VERSIONED_CLONE."
            )
        return cached_clone("registries", self.registry)

    def table(self, name: str) -> "VersionedTable":
        """A table by its name, or by an asset key with its parts joined by ``/``."""
        return table_of(self.open(), name)

    def show(
        self, document: Mapping[str, Any], *parts: "Part | Iterator[Part] | None", note: str | None = None
    ) -> None:
        """Show what a command found or did: the document with --json, else its parts on stdout, the note on stderr."""
        if self.json:
            print_json(document)
            return
        for part in parts:
            for each in part if isinstance(part, Iterator) else [part]:
                if isinstance(each, Table) and each.none is not None and not each.rows:
                    self.note(each.none)
                elif each is not None:
                    show(each)
        if note is not None:
            self.note(note)

    def note(self, text: str) -> None:
        """Say something on stderr that is not the result."""
        if not self.quiet:
            sys.stderr.write(f"{plain(text)}\n")


def table_of(project: "Project", name: str) -> "VersionedTable":
    """A table by its name, or by an asset key with its parts joined by ``/``."""
    return project.table(name.split("/") if "/" in name else name)


def absolute(place: str | None) -> str | None:
    """A path from the root; a URL, or a remote that is no folder here, as it is."""
    return str(Path(place).absolute()) if place and Path(place).exists() else place
