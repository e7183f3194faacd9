"""The application: its global options, and the verbs that look and that maintain."""

from os import environ
from typing import Annotated

import typer

from dagster_versioned.__about__ import __version__
from dagster_versioned.cli import looking, maintaining
from dagster_versioned.cli.session import AsJson, Author, Debug, LocationUri, Profile, ProjectName, Quiet, Session

app = typer.Typer(
    name="dagster-versioned",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EPILOG = """\
A VERSION is the start of a SHA (a3f8c1), a log version (@12), a time (2026-01-31T12:00:00Z) or a pin (pin:audit).
A TABLE is its name, or an asset key with slashes.

Exit codes: 0 done, 1 verification found something, 2 invalid input, 3 not found, 4 integrity, 5 storage, 6 conflict.
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dagster-versioned {__version__}")
        raise typer.Exit


@app.callback(epilog=_EPILOG)
def options(
    ctx: typer.Context,
    project: ProjectName = None,
    location: LocationUri = None,
    profile: Profile = None,
    author: Author = None,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Look at versioned tables, prove that they are what was committed, and maintain them."""
    ctx.obj = Session(
        project=project or environ.get("DAGSTER_VERSIONED_PROJECT") or None,
        location=location or environ.get("DAGSTER_VERSIONED_LOCATION") or None,
        profile=profile,
        author=author or environ.get("DAGSTER_VERSIONED_AUTHOR") or None,
        json=json,
        quiet=quiet,
        debug=debug,
    )


looking.register(app)
maintaining.register(app)
