"""The application: its global options, and its commands."""

import inspect as inspection
from importlib import import_module
from os import environ
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from dagster_versioned.__about__ import __version__
from dagster_versioned.cli import erase, explain, inspect, maintenance, plan, promote, prove, reproduce, reshape
from dagster_versioned.cli.commands import Commands, takes_options
from dagster_versioned.cli.session import Session

GROUPS = {
    "tag": ("Tags", "Tags: names for all tables at one moment, whose versions are kept.", "tag"),
    "parked": (
        "Parked drafts",
        "Parked drafts: versions that wait for their checks, and what became of them.",
        "parked",
    ),
    "env": (
        "Environments",
        "Environments: the tables as they are now, written to elsewhere; production stays as it is.",
        "environment",
    ),
    "key": ("Prove", "Keys: make one, and say whom a project trusts to sign and to approve.", "keys"),
    "gov": (
        "Govern",
        "Govern projects: where their bytes are, who moves them, how they are read.",
        *("governance", "migration", "mirror"),
    ),
    "delta": (
        "Delta",
        "Any Delta table, by its folder: look at it, follow its changes, maintain it.",
        "delta",
    ),
    "graph": (
        "Features",
        "Features: what depends on what, what changed since it was pushed, what is to be computed.",
        "graph",
    ),
    "feature": ("Features", "Samples of features: what there is, how it came about, and their deletion.", "features"),
    "odf": (
        "Histories of events",
        "Histories of events that anybody can check: where data come from, how they are shared, what is in them.",
        *("odf", "sharing", "chain_query"),
    ),
}
"""The groups of commands: the panel of the help, what a group is about, and the modules with its commands."""


class _Group(TyperGroup):
    """A group whose modules are imported, and whose commands are made, when it is looked into."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._load()
        return super().get_command(ctx, cmd_name)

    def _load(self) -> None:
        if not self.commands:
            for module in GROUPS[str(self.name)][2:]:
                command: Commands = import_module(f"dagster_versioned.cli.{module}").command
                self.commands.update(get_group(command.app).commands)


app = typer.Typer(
    name="dagster-versioned",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EPILOG = """\
A VERSION is the start of a SHA (a3f8c1), a log version (@12), a time (2026-01-31T12:00:00Z), a pin (pin:audit)
or a tag (tag:2026-11).
A TABLE is its name, or an asset key with slashes. Begin with: dagster-versioned --location FOLDER ls

Exit codes: 0 done, 1 verification found something, 2 invalid input, 3 not found, 4 integrity, 5 storage, 6 conflict,
70 unforeseen, 130 interrupted.
"""


_FROM_ENVIRONMENT = ("project", "location", "author", "environment", "governance", "registry", "clone", "role")
"""The options that a variable ``DAGSTER_VERSIONED_…`` may stand for."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dagster-versioned {__version__}")
        raise typer.Exit


def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    **given: Any,
) -> None:
    """Look at versioned tables, prove that they are what was committed, maintain, govern and share them."""
    for name in _FROM_ENVIRONMENT:
        given[name] = _given(given[name], name)
    ctx.obj = Session(**given)


def _given(option: str | None, name: str) -> str | None:
    """An option, or else the environment's; an empty one says that there is none, whatever the environment says."""
    return (environ.get(f"DAGSTER_VERSIONED_{name.upper()}") if option is None else option) or None


takes_options(_options, [inspection.signature(_options).parameters["version"]])
app.callback(epilog=_EPILOG)(_options)
for _module in (inspect, explain, prove, reproduce, maintenance, erase, reshape, promote, plan):
    app.registered_commands += _module.command.app.registered_commands
for _name, (_panel, _about, *_) in GROUPS.items():
    _group = typer.Typer(cls=_Group, no_args_is_help=True, rich_markup_mode="rich")
    app.add_typer(_group, name=_name, help=_about, rich_help_panel=_panel)
