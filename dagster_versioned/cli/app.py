"""The application: its global options, and the groups of verbs."""

import inspect
from os import environ
from typing import Annotated, Any

import typer

from dagster_versioned.__about__ import __version__
from dagster_versioned.cli import delta, graph, odf
from dagster_versioned.cli import environment as branching
from dagster_versioned.cli import features as sampling
from dagster_versioned.cli import governance as governing
from dagster_versioned.cli import inspect as looking
from dagster_versioned.cli import maintenance as maintaining
from dagster_versioned.cli import parked as parking
from dagster_versioned.cli import plan as planning
from dagster_versioned.cli import reshape as reshaping
from dagster_versioned.cli import tag as tagging
from dagster_versioned.cli.session import Session, takes_options

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


takes_options(_options, [inspect.signature(_options).parameters["version"]])
app.callback(epilog=_EPILOG)(_options)
looking.register(app)
maintaining.register(app)
reshaping.register(app)
tagging.register(app)
parking.register(app)
branching.register(app)
planning.register(app)
governing.register(app)
delta.register(app)
graph.register(app)
sampling.register(app)
odf.register(app)
