"""The verbs of keys: make one, and say whom a project trusts. Heavy imports wait until a verb runs."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dagster_versioned.cli.arguments import argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.developer import DRY, DryRun, ProjectArgument, Reason
from dagster_versioned.cli.session import Session
from dagster_versioned.cli.terminal import Table, minute
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_versioned.governance.documents import Keys, RegisteredKey
    from dagster_versioned.proof.keys import PublicKey

command = Commands("Prove")

KeyName = Annotated[str, argument("NAME", "Whose key it is, or the first digits of its id.")]


@command("key new release.pem")
def new(session: Session, path: Annotated[Path, argument("FILE", "Where the private half goes.")]) -> None:
    """Make an ed25519 key: FILE, for its owner alone, and FILE.pub; encrypted with DAGSTER_VERSIONED_KEY_PASSPHRASE."""
    from dagster_versioned.proof.keys import PASSPHRASE_VARIABLE, PrivateKey, write_new

    key = PrivateKey.generate()
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    public = write_new(path, key, passphrase)
    session.show(
        {"private": path, "public": public, "key_id": key.public.key_id, "encrypted": bool(passphrase)},
        f"{path}: keep it. {public}: give it to whoever is to trust it.",
        f"Its id: {key.public.key_id}",
        note=None if passphrase else f"It is not encrypted: {PASSPHRASE_VARIABLE} is not set.",
    )


@command("key id release.pem.pub", name="id")
def show_id(session: Session, path: Annotated[Path, argument("FILE", "The public half, in PEM.")]) -> None:
    """Print the id of a key: the SHA-256 of its public half, by which others name it."""
    key_id = _public_key(path).key_id
    session.show({"key_id": key_id}, key_id)


@command("key ls NYC --registry git@git.example.org:acme/registry.git")
def ls(session: Session, name: ProjectArgument) -> None:
    """List the keys that a project trusts, what for, and what it requires."""
    registry = session.registry_clone()
    registry.fetch()
    registry.documents(name)  # which refuses a name that is not registered
    document = registry.keys(name)
    rows = [(key.name, key.id[:16], ", ".join(key.roles), minute(key.added_at), _revoked(key)) for key in document.keys]
    session.show(
        {"project": name, **document.model_dump(mode="json", exclude_none=True)},
        Table(["name", "id", "may", "since", ""], rows, none=f"{name} trusts no key."),
        _required(document),
    )


@command("key trust NYC alice.pub --name 'Alice' --may sign --may approve")
def trust(
    session: Session,
    name: ProjectArgument,
    path: Annotated[Path, argument("FILE", "The public half, in PEM.")],
    called: Annotated[str, option("--name", "NAME", "Whose key it is.")],
    may: Annotated[list[str] | None, option("--may", "ROLE", "sign or approve; repeatable; sign if left out.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Have a project trust a key: to sign versions, or to approve of promotions. One commit in the registry."""
    from dagster_versioned.governance.documents import RegisteredKey
    from dagster_versioned.governance.registry import now

    roles: tuple[Any, ...] = tuple(dict.fromkeys(may or ["sign"]))
    if not set(roles) <= {"sign", "approve"}:
        raise InvalidInput(f"A key is trusted to sign or to approve, not to {', '.join(roles)}. Nothing was recorded.")
    key = _public_key(path)
    registry = session.registry_clone()
    actor = session.author or registry.identity()
    registered = RegisteredKey(
        id=key.key_id, name=called, public_key=key.pem, roles=roles, added_at=now(), added_by=actor
    )

    def add(document: "Keys") -> "Keys":
        known = next((other for other in document.keys if other.id == key.key_id), None)
        if known is not None and known.revoked is not None:
            raise InvalidInput(
                f"The key {key.key_id[:16]} of {known.name} was revoked, and stays so. Nothing was recorded. Make a "
                "new one: `dagster-versioned key new`."
            )
        if (other := document.living(called)) is not None and other.id != key.key_id:
            raise InvalidInput(
                f"{called} is the name of another key, {other.id[:16]}. Nothing was recorded. Revoke that, or give "
                "this one another name."
            )
        same = known is not None and (known.name, known.roles) == (called, roles)
        if known is not None and not same:
            session.note(f"Before, it was {known.name}'s, to {' and '.join(known.roles)}.")
        return document if same else document.with_key(registered)

    _change(session, name, f"trust {called} ({key.key_id[:16]}) to {' and '.join(roles)}", add, dry_run)


@command("key revoke NYC Alice --reason 'laptop stolen' --witness 3f2a…")
def revoke(
    session: Session,
    name: ProjectArgument,
    called: KeyName,
    reason: Reason = None,
    witness: Annotated[
        str | None,
        option("--witness", "COMMIT", "The mirror's commit up to which what it signed is believed; without: nothing."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Trust a key no more; what it signed holds only as far as the git mirror had seen it at a commit."""
    from dagster_versioned.governance.documents import KeyRevocation
    from dagster_versioned.governance.registry import now

    if witness is not None and not re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", witness):
        raise InvalidInput(
            f"--witness is a commit of the git mirror, in full, not {witness!a:.80}. Nothing was recorded."
        )
    actor = session.author or session.registry_clone().identity()
    made = KeyRevocation(at=now(), by=actor, reason=reason, witness=witness)

    def mark(document: "Keys") -> "Keys":
        key = document.key(called)
        return document if key.revoked is not None else document.with_key(key.model_copy(update={"revoked": made}))

    _change(session, name, f"revoke {called}", mark, dry_run)


@command("key require NYC --approvals 2 --signatures")
def require(
    session: Session,
    name: ProjectArgument,
    approvals: Annotated[int | None, flag("--approvals", "People who approve of a promotion.", min=0, max=100)] = None,
    signatures: Annotated[
        bool | None, flag("--signatures/--no-signatures", "Whether verify finds fault with unsigned versions.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Say what a project requires: approvals for promotions, signatures for versions."""
    if approvals is None and signatures is None:
        raise InvalidInput("Say what is required: --approvals, --signatures. Nothing was recorded.")
    given = {"required_approvals": approvals, "signatures_required": signatures}
    members = {member: value for member, value in given.items() if value is not None}
    _change(session, name, "require", lambda document: document.replaced(**members), dry_run)


def _public_key(path: Path) -> "PublicKey":
    from dagster_versioned.proof.keys import PublicKey

    try:
        return PublicKey.parse(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"The key {path} cannot be read ({error.strerror}). Nothing was changed.") from None


def _change(session: Session, name: str, subject: str, change: "Callable[[Keys], Keys]", dry_run: bool) -> None:
    registry = session.registry_clone()
    registry.fetch()
    target = registry.rehearsal() if dry_run else registry
    commit = target.change_keys(name, subject, change)
    document = change(registry.keys(name)) if dry_run else registry.keys(name)
    session.show(
        {"project": name, "applied": not dry_run, "commit": commit, **document.model_dump(mode="json")},
        f"{subject}: {'nothing to record' if commit is None else DRY if dry_run else f'recorded as {commit[:12]}'}",
        _required(document),
    )


def _required(document: "Keys") -> str:
    count = document.required_approvals
    signatures = "every version signed" if document.signatures_required else "no signatures"
    return f"Required: {count or 'no'} approval{'' if count == 1 else 's'} of a promotion, {signatures}."


def _revoked(key: "RegisteredKey") -> str:
    if key.revoked is None:
        return ""
    reason = f": {key.revoked.reason}" if key.revoked.reason else ""
    return f"revoked {minute(key.revoked.at)} by {key.revoked.by}{reason}"
