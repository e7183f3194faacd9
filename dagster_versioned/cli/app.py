"""The application: its global options, and the verbs that look, that maintain and that govern."""

from os import environ
from typing import Annotated

import typer

from dagster_versioned.__about__ import __version__
from dagster_versioned.cli import governing, looking, maintaining
from dagster_versioned.cli.session import (
    AsJson,
    Author,
    CloneFolder,
    Debug,
    GovernanceUri,
    LocationUri,
    Profile,
    ProjectName,
    Quiet,
    RegistryUrl,
    RoleName,
    Session,
)

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
    governance: GovernanceUri = None,
    registry: RegistryUrl = None,
    clone: CloneFolder = None,
    role: RoleName = None,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Look at versioned tables, prove that they are what was committed, and maintain them."""
    ctx.obj = Session(
        project=_given(project, "PROJECT"),
        location=_given(location, "LOCATION"),
        profile=profile,
        author=_given(author, "AUTHOR"),
        governance=_given(governance, "GOVERNANCE"),
        registry=_given(registry, "REGISTRY"),
        clone=_given(clone, "CLONE"),
        role=_given(role, "ROLE"),
        json=json,
        quiet=quiet,
        debug=debug,
    )


def _given(option: str | None, variable: str) -> str | None:
    """An option, or else the environment's; an empty one says that there is none, whatever the environment says."""
    return (environ.get(f"DAGSTER_VERSIONED_{variable}") if option is None else option) or None


looking.register(app)
maintaining.register(app)
governing.register(app)
