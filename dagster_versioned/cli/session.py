"""The options that every verb takes, before or after its name, and the project that they open."""

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.failures import ExitCode, reported
from dagster_versioned.cli.terminal import plain
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from dagster_versioned.governance.connect import Governance
    from dagster_versioned.governance.registry import Registry
    from dagster_versioned.tables.project import Project
    from dagster_versioned.tables.table import VersionedTable

_PANEL = "Options of every command"


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
        from dagster_versioned.storage.opening import open_store
        from dagster_versioned.tables.documents.manifest import recorded_project
        from dagster_versioned.tables.project import Project

        if self.governance:
            if not self.project:
                raise InvalidInput(
                    "Governance knows many projects, and none is named. Give --project, or set "
                    "DAGSTER_VERSIONED_PROJECT; `dagster-versioned gov list` shows them."
                )
            return self.governed().project(self.project, location=self.location, author=self.author)
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
        return Project(self.project or str(recorded), unnamed.store, author=self.author)

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
        from dagster_versioned.governance.cached_clone import cached_clone

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

    def note(self, text: str) -> None:
        """Say something on stderr that is not the result."""
        if not self.quiet:
            sys.stderr.write(f"{plain(text)}\n")


def table_of(project: "Project", name: str) -> "VersionedTable":
    """A table by its name, or by an asset key with its parts joined by ``/``."""
    return project.table(name.split("/") if "/" in name else name)


def _text(name: str, metavar: str, says: str) -> tuple[Any, Any]:
    option = typer.Option(f"--{name}", metavar=metavar, help=says, rich_help_panel=_PANEL)
    return Annotated[str | None, option], None


def _flag(name: str, says: str) -> tuple[Any, Any]:
    return Annotated[bool, typer.Option(f"--{name}", help=says, rich_help_panel=_PANEL)], False


_EVERYWHERE: dict[str, tuple[Any, Any]] = {
    "project": _text("project", "NAME", "Its name (or DAGSTER_VERSIONED_PROJECT); by default the recorded one."),
    "location": _text(
        "location", "URI", "A local path, file:///…, s3://…, gs://… or abfss://… (or DAGSTER_VERSIONED_LOCATION)."
    ),
    "profile": _text("profile", "NAME", "A profile of the AWS configuration files."),
    "author": _text("author", "TEXT", "Recorded with what is committed (or DAGSTER_VERSIONED_AUTHOR)."),
    "environment": _text(
        "environment", "NAME", "Work in an environment of the project (or DAGSTER_VERSIONED_ENVIRONMENT)."
    ),
    "governance": _text(
        "governance",
        "URI",
        "The governance storage, which knows where projects are (or DAGSTER_VERSIONED_GOVERNANCE).",
    ),
    "registry": _text("registry", "URL", "The remote of the governance registry (or DAGSTER_VERSIONED_REGISTRY)."),
    "clone": _text("clone", "FOLDER", "Your clone of it (or DAGSTER_VERSIONED_CLONE); by default in your cache."),
    "role": _text(
        "role",
        "ROLE",
        "developer or reader (or DAGSTER_VERSIONED_ROLE); by default a developer with a registry, else a reader.",
    ),
    "json": _flag("json", "Nothing but JSON on stdout."),
    "quiet": _flag("quiet", "No progress and no notes on stderr."),
    "debug": _flag("debug", "Show tracebacks."),
}
"""The options of every command, by the member of the `Session` that they fill: annotation and default."""


def takes_options(run: Callable[..., None], own: Iterable[inspect.Parameter]) -> None:
    """Let the command line see a function with a context, parameters of its own, and the options of every command."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", kind, annotation=typer.Context),
        *(p.replace(kind=kind) for p in own),
        *(inspect.Parameter(n, kind, default=d, annotation=a) for n, (a, d) in _EVERYWHERE.items()),
    ]
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {p.name: p.annotation for p in parameters}


def verb(
    app: typer.Typer, *, panel: str, examples: Sequence[str], name: str | None = None
) -> Callable[[Callable[..., ExitCode | None]], Callable[..., None]]:
    """Register a command whose first parameter is the `Session`; it returns its exit code, ``None`` for 0.

    The command gets the global options beside its own; one given after the verb wins over one given before.
    """

    def register(command: Callable[..., ExitCode | None]) -> Callable[..., None]:
        @wraps(command)
        def run(ctx: typer.Context, **given: Any) -> None:
            before = ctx.find_object(Session) or Session()
            after: dict[str, Any] = {
                name: value for name in _EVERYWHERE if (value := given.pop(name)) not in (None, False)
            }
            session = replace(before, **{name: value for name, value in after.items() if value not in (None, False)})
            # Typer before 0.20 passes over what is missing where click is 8.3 or newer.
            for missing in (one for one in ctx.command.params if one.required and given[str(one.name)] is None):
                ctx.fail(f"Missing {missing.param_type_name} {missing.opts[0]!r}.")
            with reported(debug=session.debug):
                code = command(session, **given)
                sys.stdout.flush()
            if code:
                raise typer.Exit(code)

        takes_options(run, [p for p in inspect.signature(command).parameters.values() if p.name != "session"])
        epilog = "\n\n".join(["Examples:", *(f"  dagster-versioned {example}" for example in examples)])
        app.command(name, rich_help_panel=panel, epilog=epilog)(run)
        return run

    return register
