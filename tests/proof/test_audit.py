"""A bundle proves a version to somebody who has nothing of ours, and no byte of it can change unseen."""

import ast
import hashlib
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned import Project, TableOptions
from dagster_versioned.errors import ExpiredVersion, InvalidInput, VersionNotFound
from dagster_versioned.proof.attest import CommitSigner, attest
from dagster_versioned.proof.audit import VERIFIER, write_bundle
from dagster_versioned.proof.envelope import Envelope
from dagster_versioned.proof.keys import PrivateKey
from dagster_versioned.proof.signatures import TrustedKeys, check_signatures, missing_approvals
from support.crashes import foreign

KEY, STRANGER = PrivateKey.generate(), PrivateKey.generate()
PROGRAM = runpy.run_path(str(VERIFIER))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """Rows in one file; in several; in several of which some are deleted; by partition."""
    project = Project.open("SHOP", str(tmp_path_factory.mktemp("audit") / "shop"))
    project.observers = (CommitSigner(KEY),)
    project.table("plain").write(
        pa.table({"v": [1, 2]}), message="ß", options=TableOptions(custom={"x": 1e-7, "y": 0.5})
    )
    for number in range(3):
        rows = pa.table({"k": list(range(number * 5, number * 5 + 8)), "v": [number] * 8})
        options = TableOptions(mode="merge", merge_key=("k",), properties={"delta.enableDeletionVectors": "true"})
        project.table("merged").write(rows, options=options)
    for day in ("2026-01-01", "2026-01-02"):
        project.table("daily").write(pa.table({"v": [day]}), partition=day)
    return project


@pytest.fixture
def bundle(project, tmp_path):
    def make(table="merged", **how):
        return write_bundle(project, table, tmp_path / "bundle", keys=[KEY.public], **how).folder

    return make


def prove(folder, *, trust=KEY, **wanted):
    """What the program says of a bundle, in this process; its output where it proves it."""
    try:
        PROGRAM["prove"](folder, {trust.public.key_id}, PROGRAM["WANTED"] | wanted)
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        return str(error) or type(error).__name__
    return "PROVED"


@pytest.mark.parametrize(
    ("table", "how"),
    [("plain", {}), ("merged", {}), ("merged", {"version": "@1"}), ("daily", {"partition": "2026-01-01"})],
)
def test_a_bundle_proves_a_version_to_a_program_without_this_package(bundle, table, how):
    folder = bundle(table, **how)
    assert sorted(path.name for path in folder.iterdir()) == ["attestations", "bundle.json", "keys", "log", "parts"]
    packages = [path for path in sys.path if path.endswith("site-packages")]
    arguments = [str(VERIFIER), str(folder), "--trust", KEY.public.key_id]
    code = (
        f"import sys, runpy; sys.path += {packages!r}; sys.argv = {arguments!r};"
        "runpy.run_path(sys.argv[0], run_name='__main__');"
        "assert not any('dagster' in name for name in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "PROVED" in ran.stdout
    assert f"SHOP.{table} (production)" in ran.stdout


def test_the_program_is_short_enough_to_be_read():
    assert len(VERIFIER.read_text().splitlines()) <= 150


def test_it_is_of_what_was_asked_for(bundle):
    folder = bundle()
    version = json.loads((folder / "bundle.json").read_bytes())["version"]
    assert prove(folder, project="SHOP", table="merged", version=version) == "PROVED"
    assert "project: it is signed for SHOP, not BAR" in prove(folder, project="BAR")
    assert "table: it is signed for merged" in prove(folder, table="plain")
    assert "version: it is signed for" in prove(folder, version="0" * 64)
    assert "environment: it is signed for production" in prove(folder, environment="pr-1")


def test_what_is_before_another_programs_commit_is_said_not_to_be_proved(tmp_path, capsys):
    project = Project.open("SHOP", str(tmp_path / "shop"))
    project.observers = (CommitSigner(KEY),)
    foreign(project.table("t"))
    project.table("t").adopt()
    folder = write_bundle(project, "t", tmp_path / "bundle", keys=[KEY.public]).folder
    assert prove(folder) == "PROVED"
    assert "commits 1 to 2, each linked" in capsys.readouterr().out


def test_a_terminal_is_told_nothing_by_names(bundle):
    folder = bundle()
    (folder / "parts" / "\x1b[2KPROVED").write_bytes(b"")
    command = [sys.executable, VERIFIER, folder, "--trust", KEY.public.key_id]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, "\\x1b" in ran.stderr, "\x1b" in ran.stderr) == (1, True, False)
    empty = folder.parent / "empty"
    empty.mkdir()
    ran = subprocess.run([*command[:2], empty, *command[3:]], capture_output=True, text=True, check=False)
    assert (ran.returncode, "this is no bundle" in ran.stderr) == (1, True)


def test_a_strangers_word_proves_nothing(bundle, project):
    folder = bundle()
    assert "no trusted key" in prove(folder, trust=STRANGER)
    # Signed again by a stranger, with a key that calls itself by the trusted one's name.
    [document] = (folder / "attestations").iterdir()
    payload = Envelope.parse(document.read_bytes()).payload
    signed = Envelope(payload, ((KEY.public.key_id, Envelope.sign(payload, STRANGER).signatures[0][1]),))
    (folder / "keys" / f"{KEY.public.key_id}.pem").write_text(STRANGER.public.pem)
    replace(folder, document, signed.to_bytes())
    assert "no trusted key" in prove(folder)


def replace(folder: Path, path: Path, data: bytes) -> None:
    """Put other bytes into a bundle that is whole otherwise."""
    path.write_bytes(data)
    renamed(folder)


def renamed(folder: Path) -> None:
    bundle = json.loads((folder / "bundle.json").read_bytes())
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "bundle.json"]
    bundle["files"] = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    (folder / "bundle.json").write_bytes(json.dumps(bundle, indent=1, sort_keys=True).encode())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("part", "not the bytes of this version"),
        ("fewer parts", "parts/: other files"),
        ("entry", "has signed the commit"),
        ("earlier entry", "not linked"),
        ("fewer entries", "log_version"),
        ("more entries", "other files than 0 to the end"),
        ("version", "makes no version"),
        ("rows beside those of the version", "parts/: other files"),
        ("rows instead of those of the version", "parts/: other files"),
        ("rows where there are none", "parts/: other files"),
        ("a file of no kind", "no file of a bundle"),
        ("a garbled attestation", "PROVED"),
        ("statement", "has signed the commit"),
    ],
)
def test_who_writes_bundle_json_anew_is_found_out(bundle, kind, expected):  # noqa: C901 - a case for each attack
    folder = bundle(version="@1")
    document = json.loads((folder / "bundle.json").read_bytes())
    logs = sorted((folder / "log").iterdir())
    match kind:
        case "part":
            part = folder / document["parts"][0][0]
            part.write_bytes(part.read_bytes() + b"x")
        case "fewer parts":
            document["parts"] = document["parts"][:1]
        case "entry":
            logs[-1].write_bytes(logs[-1].read_bytes() + b"\n")
        case "earlier entry":
            logs[0].write_bytes(logs[0].read_bytes() + b"\n")
        case "fewer entries":
            logs[-1].unlink()
            document["log_version"] -= 1
            # What was signed of the earlier one is not in the bundle.
            expected = "has signed the commit"
        case "more entries":
            (folder / "log" / f"{2:020}.json").write_bytes(b"{}")
        case "version":
            document["version"] = "0" * 64
        case "rows beside those of the version":
            (folder / "parts/000009.parquet").write_bytes(b"other rows")
        case "rows instead of those of the version":
            document["parts"][0][0] = f"keys/{'0' * 64}.pem"
            (folder / "parts/000000.parquet").rename(folder / document["parts"][0][0])
            (folder / "parts/000000.parquet").write_bytes(b"other rows")
        case "rows where there are none":
            document["parts"] = None
        case "a file of no kind":
            (folder / "\x1b[1A\x1b[2KPROVED").write_bytes(b"")
        case "a garbled attestation":
            (folder / "attestations" / f"{'0' * 64}.json").write_bytes(b"{")
        case _:
            [path] = (folder / "attestations").iterdir()
            members = json.loads(path.read_bytes())
            members["payload"] = members["payload"][:-8] + "AAAAAAA="
            path.write_bytes(orjson.dumps(members))
    (folder / "bundle.json").write_bytes(json.dumps(document, indent=1, sort_keys=True).encode())
    renamed(folder)
    assert expected in prove(folder) or (kind == "statement" and prove(folder) != "PROVED")


@pytest.mark.parametrize("kind", ["link", "folder link", "unnamed", "missing", "twice", "not as it is written", "pipe"])
def test_what_is_no_plain_bundle_is_refused(bundle, kind, tmp_path):
    folder = bundle()
    text = (folder / "bundle.json").read_bytes()
    match kind:
        case "link":
            [path] = (folder / "attestations").iterdir()
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "folder link":
            shutil.move(folder / "log", tmp_path / "log")
            (folder / "log").symlink_to(tmp_path / "log")
        case "unnamed":
            (folder / "more").write_bytes(b"")
        case "missing":
            next((folder / "parts").iterdir()).unlink()
        case "twice":
            (folder / "bundle.json").write_bytes(text.replace(b'"format": 1,', b'"format": 1,\n "format": 1,'))
        case "pipe":
            os.mkfifo(folder / "pipe")
        case _:
            (folder / "bundle.json").write_bytes(text.replace(b"\n ", b"\n  ", 1))
    assert prove(folder) != "PROVED"


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_byte_changes_unseen(bundle, count):
    """Each change is named: by its file, or by what is wrong with it."""
    folder = bundle(version="@2")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    luck = random.Random(7)
    for number in range(count):
        path = files[number % len(files)]
        data = path.read_bytes()
        at = luck.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << luck.randrange(8)]) + data[at + 1 :])
        said = prove(folder)
        assert said != "PROVED", (path, at)
        path.write_bytes(data)
    assert prove(folder) == "PROVED"


def test_without_its_rows_a_version_is_proved_too(bundle):
    folder = bundle(with_rows=False)
    assert not (folder / "parts").exists()
    assert prove(folder) == "PROVED"


def test_nothing_is_written_where_it_cannot_be(project, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match="is not empty"):
        write_bundle(project, "plain", tmp_path / "full")
    with pytest.raises(VersionNotFound):
        write_bundle(project, "plain", tmp_path / "new", "@99")
    other = Project.open("SHOP", str(tmp_path / "other"))
    for number in range(3):
        other.table("t").write(pa.table({"v": [number]}))
    other.table("t").expire(keep_last=1, dry_run=False)
    with pytest.raises(ExpiredVersion, match="--without-rows"):
        write_bundle(other, "t", tmp_path / "new", "@0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "other"]
    attest(other, "t", "@0", signer=KEY)
    written = write_bundle(other, "t", tmp_path / "new", "@0", with_rows=False, keys=[KEY.public])
    assert prove(written.folder) == "PROVED"


def test_an_attestation_later_proves_as_well(tmp_path):
    project = Project.open("SHOP", str(tmp_path / "shop"))
    project.table("t").write(pa.table({"v": [1]}))
    first = write_bundle(project, "t", tmp_path / "first", keys=[KEY.public])
    assert first.attestations == 0
    assert "no trusted key" in prove(first.folder)
    attest(project, "t", signer=STRANGER)
    attest(project, "t", signer=KEY)
    assert prove(write_bundle(project, "t", tmp_path / "second", keys=[KEY.public]).folder) == "PROVED"


# Those between are refused in metadata: their canonical text is that of an integer that not every reader keeps.
FLOATS = st.floats(-(2**53) + 1, 2**53 - 1) | st.floats(1e21, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_the_program_hashes_as_the_rfc_says(value):
    assert PROGRAM["canonical"](json.loads(json.dumps(value))).encode() == rfc8785.dumps(value)


def test_the_page_has_the_lines_of_the_program():
    page = (Path(__file__).parents[2] / "docs/explanation/audit.md").read_text()
    listed = {
        name: (int(first), int(last)) for name, first, last in re.findall(r"^\| `(\w+)` \| (\d+)-(\d+) \|", page, re.M)
    }
    functions = [each for each in ast.parse(VERIFIER.read_text()).body if isinstance(each, ast.FunctionDef)]
    places = {each.name: (each.lineno, each.end_lineno) for each in functions}
    assert listed == {name: place for name, place in places.items() if name not in ("require", "sha256")}
    assert f"It has {len(VERIFIER.read_text().splitlines())} lines" in page


class TestAfterAnErasure:
    """Entries of the log that were redacted are what a later, signed commit says."""

    @pytest.fixture
    def erased(self, tmp_path) -> Project:
        project = Project.open("CLINIC", str(tmp_path / "clinic"))
        project.observers = (CommitSigner(KEY),)
        for ids in ([1, 2], [1, 2, 3]):
            project.table("people").write(pa.table({"id": ids}))
        project.erase("id = 2", ["people"], why="asked", dry_run=False)
        project.table("people").write(pa.table({"id": [1, 3, 4]}))
        return project

    def test_what_came_later_is_proved(self, erased, tmp_path):
        write_bundle(erased, "people", tmp_path / "bundle", keys=[KEY.public])
        assert "PROVED" in prove(tmp_path / "bundle")

    def test_what_came_before_is_refused(self, erased, tmp_path):
        with pytest.raises(InvalidInput, match="cannot be proved any more"):
            write_bundle(erased, "people", tmp_path / "bundle", version="@0", keys=[KEY.public], with_rows=False)

    def test_an_entry_that_is_redacted_otherwise_is_not_proved(self, erased, tmp_path):
        folder = write_bundle(erased, "people", tmp_path / "bundle", keys=[KEY.public]).folder
        entry = folder / "log" / f"{0:020}.json"
        entry.write_bytes(entry.read_bytes().replace(b'"size":', b'"size": '))
        document = json.loads((folder / "bundle.json").read_bytes())
        document["files"][f"log/{0:020}.json"] = hashlib.sha256(entry.read_bytes()).hexdigest()
        (folder / "bundle.json").write_bytes(json.dumps(document, indent=1, sort_keys=True).encode())
        assert prove(folder).endswith(f"{0:020}.json: redacted, which no commit tells")

    def test_a_redaction_that_nobody_trusted_signed_is_not_proved(self, tmp_path):
        unsigned = Project.open("CLINIC", str(tmp_path / "clinic"))
        unsigned.table("people").write(pa.table({"id": [1, 2]}))
        unsigned.erase("id = 2", ["people"], why="asked", dry_run=False)
        unsigned.observers = (CommitSigner(KEY),)
        unsigned.table("people").write(pa.table({"id": [1, 3]}))
        folder = write_bundle(unsigned, "people", tmp_path / "bundle", keys=[KEY.public]).folder
        assert prove(folder) == "attestations/: no trusted key, which has to be in keys/, has signed the commit"
        for record in unsigned.table("people").state.history.records:
            if record.operation == "REDACT":  # is signed later, by its log version
                attest(unsigned, "people", f"@{record.log_version}", signer=KEY)
        write_bundle(unsigned, "people", tmp_path / "later", keys=[KEY.public])
        assert "PROVED" in prove(tmp_path / "later")

    def test_what_was_signed_before_is_if_the_redaction_is(self, tmp_path):
        project = Project.open("CLINIC", str(tmp_path / "clinic"))
        project.observers = (CommitSigner(KEY),)
        project.table("people").write(pa.table({"id": [1, 2]}))
        project.observers = ()
        project.erase("id = 2", ["people"], why="asked", dry_run=False)
        table, keys = project.table("people"), TrustedKeys.of([KEY.public])
        redacts = (each for each in table.state.history.records if each.operation == "REDACT")
        by = f"@{next(redacts).log_version}"
        first = check_signatures(project, "people", keys)[0]
        said = f"it was redacted since, by {by}, which no trusted key has signed"
        assert (first.standing, first.text) == ("other", said)
        assert missing_approvals(project, "people", table.version("@0"), keys, 1) is not None
        attest(project, "people", by, signer=KEY)
        assert check_signatures(project, "people", keys)[0].standing == "signed"
