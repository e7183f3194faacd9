"""The verbs that prove: sign a version, approve of one, write what proves it to others. Heavy imports wait."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dagster_versioned.cli.arguments import MaybeVersion, Partition, TableArgument, argument, flag, option
from dagster_versioned.cli.commands import Commands
from dagster_versioned.cli.documents import members
from dagster_versioned.cli.explain import Upstreams, opener
from dagster_versioned.cli.session import KEY_VARIABLE, Session
from dagster_versioned.cli.terminal import cell_name, counted, human_size, progress, short, write_text
from dagster_versioned.errors import InvalidInput, ObjectNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_versioned.projects.project import Project
    from dagster_versioned.proof.audit import Bundle
    from dagster_versioned.proof.keys import PublicKey, Signer
    from dagster_versioned.proof.report import ReportOptions
    from dagster_versioned.proof.signatures import TrustedKeys

command = Commands("Prove")

SigningKey = Annotated[
    str | None,
    option(
        "--key",
        "FILE",
        f"A private key in PEM, or awskms:…, gcpkms:…, azurekms:…, hv:… (or {KEY_VARIABLE}).",
    ),
]
Trust = Annotated[
    list[Path] | None,
    option(
        "--trust", "FILE", "A public key in PEM; repeatable. Without: those of the registry, of a governed project."
    ),
]


@command("attest daily_delays --key release.pem", "attest daily_delays @4 --key awskms:alias/release")
def attest(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    partition: Partition = None,
    key: SigningKey = None,
) -> None:
    """Sign that a version was made as its log says: which rows, from what, by which code, when, by whom."""
    from dagster_versioned.proof.attest import attest as sign

    signer = signing_key(key)
    stored = sign(session.open(), table, version, signer=signer, partition=partition)
    session.show(
        {"table": table, "partition": partition, "key_id": signer.public.key_id, "attestation": stored},
        f"{cell_name(table, partition)} signed by {signer.public.key_id[:16]}: {stored}",
    )


@command("approve daily_delays --environment pr-142 --key me.pem --message 'checked with finance'")
def approve(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    partition: Partition = None,
    key: SigningKey = None,
    action: Annotated[str, option("--action", "ACTION", "What is agreed to.")] = "promote",
    days: Annotated[int, flag("--days", "For how long it holds.", min=1, max=3650)] = 30,
    message: Annotated[str | None, option("--message", "TEXT", "What was looked at; part of what is signed.")] = None,
) -> None:
    """Sign that a version may be promoted, for some days. Who made it cannot approve of it."""
    from dagster_versioned.proof.attest import approve as sign

    signer, expires = signing_key(key), datetime.now(UTC) + timedelta(days=days)
    stored = sign(
        session.open(),
        table,
        version,
        signer=signer,
        partition=partition,
        action=action,
        expires=expires,
        message=message,
    )
    key_id = signer.public.key_id
    session.show(
        {"table": table, "partition": partition, "key_id": key_id, "attestation": stored, "expires": expires},
        f"{cell_name(table, partition)} approved by {key_id[:16]} until {expires:%Y-%m-%d}: {stored}",
        note=_why_it_does_not_count(session, key_id),
    )


@command(
    "audit daily_delays --output evidence --verifier verify.py", "audit flights @12 --without-rows --output evidence"
)
def audit(
    session: Session,
    table: TableArgument,
    version: MaybeVersion = None,
    partition: Partition = None,
    output: Annotated[Path, option("--output", "-o", "FOLDER", "A folder that is not there yet.")] = Path("audit"),
    trust: Trust = None,
    without_rows: Annotated[
        bool, flag("--without-rows", "Leave the files of the rows out; the log has minima and maxima of columns.")
    ] = False,
    verifier: Annotated[
        Path | None, option("--verifier", "FILE", "Write verify.py there as well, to be given on another way.")
    ] = None,
    upstream: Upstreams = None,
) -> None:
    """Write what proves a version to somebody who has nothing but Python: the log, signatures, rows, a report.

    They check it with verify.py, which they have from elsewhere.
    """
    from dagster_versioned.proof.audit import VERIFIER, write_bundle
    from dagster_versioned.proof.report import report_of

    project = session.open()
    options = _report_options(session, trust, upstream, with_bytes=not without_rows)
    keys = _believed(options.keys)

    def write_report(path: Path) -> None:
        path.write_text(report_of(project, table, version, partition=partition, options=options), "utf-8")

    with progress("files", quiet=session.quiet) as advance:
        written = write_bundle(
            project,
            table,
            output,
            version,
            partition=partition,
            keys=keys,
            with_rows=not without_rows,
            report=write_report,
            progress=advance,
        )
    _note_what_is_signed(session, project, table, written, options.keys, keys)
    if verifier is not None:
        write_text(verifier, VERIFIER.read_text("utf-8"))
    ids = [key.key_id for key in keys]
    trusting = " ".join(f"--trust {key_id}" for key_id in ids or ["KEY_ID"])
    session.show(
        {**members(written), "verifier": verifier or VERIFIER, "key_ids": ids},
        f"{cell_name(table, written.partition)} {short(written.version)}: {counted(written.files, 'file')}, "
        f"{human_size(written.size_bytes)}, in {written.folder}.",
        f"Checked by: python {verifier or 'verify.py'} {written.folder} {trusting}",
        note=f"verify.py is {verifier or VERIFIER}. Give it, and the key's id, on another way than the folder.",
    )


@command(
    "report daily_delays -o delays.html",
    "report daily_delays @4 --trust release.pub -o delays-4.html",
    "report -o site",
)
def report(
    session: Session,
    table: Annotated[str | None, argument("TABLE", "A table; without one, a page for each, and a list.")] = None,
    version: MaybeVersion = None,
    partition: Partition = None,
    output: Annotated[Path, option("--output", "-o", "FILE", "The page; of all tables, a folder.")] = Path("report"),
    trust: Trust = None,
    without_bytes: Annotated[bool, flag("--without-bytes", "Do not read and compare the bytes.")] = False,
    upstream: Upstreams = None,
) -> None:
    """Write what is known of a version as a page: lineage, causes, timeline, columns, code, signatures, verification.

    One HTML file that asks for nothing from anywhere. It is for reading; `audit` is what proves.
    """
    from dagster_versioned.proof.report import report_of, write_project_report

    project, options = session.open(), _report_options(session, trust, upstream, with_bytes=not without_bytes)
    if table is None:
        with progress("tables", quiet=session.quiet) as advance:
            pages = write_project_report(project, output, options=options, progress=advance)
        session.show({"files": pages}, f"{counted(len(pages), 'page')}: {pages[0]}")
        return
    file = output if output.suffix else output.with_suffix(".html")
    text = report_of(project, table, version, partition=partition, options=options)
    write_text(file, text)
    session.show({"files": [file]}, f"{file}, {human_size(len(text.encode()))}.")


def _believed(trusted: "TrustedKeys | None") -> "list[PublicKey]":
    """The keys that verify.py may believe."""
    return [each.key for each in trusted.keys if "sign" in each.roles and not each.revoked] if trusted else []


def _note_what_is_signed(
    session: Session,
    project: "Project",
    table: str,
    written: "Bundle",
    trusted: "TrustedKeys | None",
    keys: "Sequence[PublicKey]",
) -> None:
    """Say what verify.py will not prove."""
    from dagster_versioned.proof.signatures import check_signatures

    if not written.attestations:
        session.note("Nobody has signed it, and verify.py will say so. Sign it: dagster-versioned attest.")
    elif trusted is None or not keys:
        session.note("No public key is in it, and verify.py needs one: give --trust FILE.")
    else:
        version = project.table(table).version(f"@{written.log_version}", partition=written.partition)
        (found,) = check_signatures(project, table, trusted, [version])
        if found.standing != "signed" or not found.by:
            session.note(f"verify.py will not prove it: {found.text}. Sign it here: dagster-versioned attest.")


def _report_options(
    session: Session, trust: "Sequence[Path] | None", upstream: "list[str] | None", *, with_bytes: bool
) -> "ReportOptions":
    from dagster_versioned.proof.report import ReportOptions

    keys = trusted_keys(session, trust) if trust or is_governed(session) else None
    return ReportOptions(keys=keys, with_bytes=with_bytes, open_project=opener(session, upstream))


def _why_it_does_not_count(session: Session, key_id: str) -> str | None:
    """What the registry says against an approval by a key."""
    if not is_governed(session):
        return None
    known = next((each for each in trusted_of_registry(session).keys if each.key.key_id == key_id), None)
    if known is None or known.revoked is not None:
        return f"It does not count: the registry {'does not know' if known is None else 'has revoked'} that key."
    return None if "approve" in known.roles else "It does not count: the registry does not let that key approve."


def signing_key(place: str | None) -> "Signer":
    """The key to sign with. Raises `InvalidInput` where none is named."""
    from dagster_versioned.proof.keys import open_signer

    named = place or os.environ.get(KEY_VARIABLE)
    if not named:
        raise InvalidInput(
            f"No key. Nothing was signed. Give --key (a PEM file, or the name of a key in a service), or set "
            f"{KEY_VARIABLE}; `dagster-versioned key new` makes one."
        )
    return open_signer(named)


def trusted_keys(session: Session, files: "Sequence[Path] | None") -> "TrustedKeys":
    """The keys in files, or else those that the registry has for the project, as it is now.

    Raises `InvalidInput` where there is neither, `GovernanceError`, and `RegistryUnavailable` where it cannot be asked:
    a key may have been revoked a minute ago.
    """
    from dagster_versioned.proof.signatures import named_keys

    if files:
        return named_keys(_read(path) for path in files)
    if not is_governed(session):
        raise InvalidInput(
            "Whom to trust is not known. Nothing was checked. Give --trust (public keys in PEM); of a governed "
            "project, --registry or --clone knows them."
        )
    return trusted_of_registry(session)


def trusted_of_registry(session: Session) -> "TrustedKeys":
    """Whom the registry trusts for the project, as it is now. Raises `GovernanceError`, `RegistryUnavailable`."""
    from dagster_versioned.proof.signatures import registered_keys

    registry = session.registry_clone()
    registry.fetch()
    return registered_keys(registry.keys(str(session.project)), _witness(session))


def is_governed(session: Session) -> bool:
    """Whether there is a registry, which knows whom the project trusts."""
    return bool(session.governance and session.project and (session.registry or session.clone))


def is_marked(session: Session, project: "Project") -> bool:
    """Whether the project is governed, as the session or its place says."""
    from dagster_versioned.governance.governance_marker import MARKER_KEY

    if session.governance:
        return True
    try:
        project.data.head(MARKER_KEY)
    except ObjectNotFound:
        return False
    return True


def note_ungoverned(session: Session, project: "Project") -> None:
    """Say that signatures are not looked at, where the project is governed and no registry was named."""
    if is_marked(session, project):
        session.note("Signatures are not checked: the project is governed, and no registry is named (--registry).")


def _witness(session: Session) -> "Callable[[str], frozenset[str]] | None":
    from dagster_versioned.governance.version_mirror import VersionMirror

    remote = os.environ.get("DAGSTER_VERSIONED_MIRROR")
    if not remote:
        return None
    mirror = VersionMirror.open(session.production(), remote)
    mirror.fetch()
    return mirror.attested


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"The key {path} cannot be read ({error.strerror}). Nothing was checked.") from None
