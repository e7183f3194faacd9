"""The verbs for tags: names for all tables of a project at one moment. Heavy imports wait until one runs."""

from typing import Annotated

from dagster_versioned.cli.arguments import Apply, Why, argument
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Fields, Table, counted, minute

command = Commands("Tags")

Name = Annotated[str, argument("NAME", "Its name; tag:NAME then names each table's version.")]


@command("tag create 2026-11", "tag create 2026-11 --why 'monthly report'")
def create(session: Session, name: Name, why: Why = None) -> None:
    """Give the current versions of all tables at this moment a name, which keeps them from being expired."""
    tag = session.open().tag(name, by=session.author, why=why)
    tables = counted(len(tag.tables), "table")
    session.show({"tag": tag}, f"The tag {name} has {tables} of {minute(tag.at)}. tag:{name} names them.")


@command("tag ls", "tag ls --json")
def ls(session: Session) -> None:
    """List the tags of the project."""
    project = session.open()
    tags = [tag for _, tag in sorted(project.tags().items())]
    rows = [(tag.name, minute(tag.at), tag.by, tag.why, len(tag.tables)) for tag in tags]
    none = f"No tags at {project.store.uri}."
    session.show({"tags": tags}, Table(("tag", "made", "by", "why", "tables"), rows, right=("tables",), none=none))


@command("tag show 2026-11", "tag show 2026-11 --json")
def show(session: Session, name: Name) -> None:
    """Show when a tag was made, by whom and why, and the tables that it has."""
    from dagster_versioned.tables.documents.tag import read_tag

    tag = read_tag(session.open().data, name)
    members = (("tag", name), ("made", minute(tag.at)), ("by", tag.by), ("why", tag.why), ("tables", len(tag.tables)))
    tables = [(table, f"@{at.log_version}", at.commit_sha256[:12]) for table, at in sorted(tag.tables.items())]
    listed = Table(("table", "log version", "commit"), tables, right=("log version",))
    session.show({"tag": tag}, Fields(members), listed)


@command("tag drop 2026-11", "tag drop 2026-11 --apply")
def drop(session: Session, name: Name, apply: Apply = False) -> None:
    """Take a tag away, so that its versions may expire; no data is deleted. A dry run unless --apply is given."""
    from dagster_versioned.tables.documents.tag import read_tag

    project = session.open()
    if apply:
        project.drop_tag(name)
        done = f"The tag {name} is dropped; its versions may expire."
    else:
        read_tag(project.data, name)
        done = f"The tag {name} would be dropped, and its versions might expire. --apply does it."
    session.show({"tag": name, "dropped": apply}, done)
