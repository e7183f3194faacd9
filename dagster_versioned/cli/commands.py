"""How a module declares commands, and the options that every command takes, before or after its name."""

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from dagster_versioned.cli.failures import ExitCode, reported
from dagster_versioned.cli.session import Session

_Command = TypeVar("_Command", bound=Callable[..., ExitCode | None])

_PANEL = "Options of every command"


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
    # What typer declares options by; type checkers do not know that a function has it.
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {p.name: p.annotation for p in parameters}


class Commands:
    """The commands of a module, which it declares at their functions: ``@command("tag ls", "tag ls --json")``."""

    def __init__(self, panel: str) -> None:
        self._panel = panel
        self.app = typer.Typer(rich_markup_mode="rich")

    def __call__(self, *examples: str, name: str | None = None) -> Callable[[_Command], _Command]:
        """Declare a command whose first parameter is the `Session`; it returns its exit code, ``None`` for 0.

        The command gets the global options beside its own; one given after its name wins over one given before.
        """

        def declare(command: _Command) -> _Command:
            @wraps(command)
            def run(ctx: typer.Context, **given: Any) -> None:
                before = ctx.find_object(Session) or Session()
                after = {name: value for name in _EVERYWHERE if (value := given.pop(name)) not in (None, False)}
                session = replace(before, **after)
                # Typer before 0.20 passes over what is missing where click is 8.3 or newer.
                for missing in (each for each in ctx.command.params if each.required and given[str(each.name)] is None):
                    ctx.fail(f"Missing {missing.param_type_name} {missing.opts[0]!r}.")
                with reported(debug=session.debug):
                    code = command(session, **given)
                    sys.stdout.flush()
                if code:
                    raise typer.Exit(code)

            takes_options(run, [p for p in inspect.signature(command).parameters.values() if p.name != "session"])
            epilog = "\n\n".join(["Examples:", *(f"  dagster-versioned {example}" for example in examples)])
            self.app.command(name, rich_help_panel=self._panel, epilog=epilog)(run)
            return command

        return declare
