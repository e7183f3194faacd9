"""The verbs for tags: names for all tables of a project at one moment. Heavy imports wait until one runs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_versioned.cli.arguments import Apply, Why
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import counted, minute, say, show_fields, show_table

if TYPE_CHECKING:
    from dagster_versioned.tables.documents.tag import Tag

command = Commands("Tags")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name; tag:NAME then names each table's version.")]


@command("tag create 2026-11", "tag create 2026-11 --why 'monthly report'")
def create(session: Session, name: Name, why: Why = None) -> None:
    """Give the current versions of all tables at this moment a name, which keeps them from being expired."""
    from dagster_versioned.cli.documents import print_json

    made = session.open().tag(name, by=session.author, why=why)
    if session.json:
        print_json({"tag": _json_of(made)})
    else:
        say(f"The tag {name} has {counted(len(made.tables), 'table')} of {minute(made.at)}. tag:{name} names them.")


@command("tag ls", "tag ls --json")
def ls(session: Session) -> None:
    """List the tags of the project."""
    from dagster_versioned.cli.documents import print_json

    project = session.open()
    tags = [tag for _, tag in sorted(project.tags().items())]
    if session.json:
        print_json({"tags": [_json_of(tag) for tag in tags]})
    elif tags:
        show_table(
            ("tag", "made", "by", "why", "tables"),
            [(tag.name, minute(tag.at), tag.by, tag.why, len(tag.tables)) for tag in tags],
            right=("tables",),
        )
    else:
        session.note(f"No tags at {project.store.uri}.")


@command("tag show 2026-11", "tag show 2026-11 --json")
def show(session: Session, name: Name) -> None:
    """Show when a tag was made, by whom and why, and the tables that it has."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.documents.tag import read_tag

    tag = read_tag(session.open().data, name)
    if session.json:
        print_json({"tag": _json_of(tag)})
        return
    show_fields(
        [("tag", name), ("made", minute(tag.at)), ("by", tag.by), ("why", tag.why), ("tables", len(tag.tables))]
    )
    show_table(
        ("table", "log version", "commit"),
        [(table, f"@{at.log_version}", at.commit_sha256[:12]) for table, at in sorted(tag.tables.items())],
        right=("log version",),
    )


@command("tag drop 2026-11", "tag drop 2026-11 --apply")
def drop(session: Session, name: Name, apply: Apply = False) -> None:
    """Take a tag away, so that its versions may expire; no data is deleted. A dry run unless --apply is given."""
    from dagster_versioned.cli.documents import print_json
    from dagster_versioned.tables.documents.tag import read_tag

    project = session.open()
    if apply:
        project.drop_tag(name)
    else:
        read_tag(project.data, name)
    if session.json:
        print_json({"tag": name, "dropped": apply})
    elif apply:
        say(f"The tag {name} is dropped; its versions may expire.")
    else:
        say(f"The tag {name} would be dropped, and its versions might expire. --apply does it.")


def _json_of(tag: "Tag") -> dict[str, Any]:
    return {
        "name": tag.name,
        "created": tag.created,
        "by": tag.by,
        "why": tag.why,
        "tables": {
            str(table): {"log_version": at.log_version, "commit_sha256": at.commit_sha256}
            for table, at in sorted(tag.tables.items())
        },
    }
