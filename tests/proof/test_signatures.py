"""What signatures prove, and what nobody can make them prove."""

import base64
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from dagster_versioned import Project
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.export import export_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.proof.attest import CommitSigner, approve, attest
from dagster_versioned.proof.envelope import Envelope
from dagster_versioned.proof.keys import PASSPHRASE_VARIABLE, PrivateKey, PublicKey, open_signer, write_new
from dagster_versioned.proof.signatures import (
    Revocation,
    TrustedKey,
    TrustedKeys,
    check_signatures,
    missing_approvals,
    named_keys,
)
from dagster_versioned.tables.attestations import list_attestations, put_attestation
from support.crashes import append_as_another_program

KEY, STRANGER, SECOND = PrivateKey.generate(), PrivateKey.generate(), PrivateKey.generate()


def trusted(*keys):
    return named_keys(key.public.pem.encode() for key in keys or (KEY,))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project.open("SHOP", str(tmp_path / "shop"))
    project.observers = (CommitSigner(KEY),)
    return project


def write(project, name="orders", rows=2, **described):
    return project.table(name).write(pa.table({"v": list(range(rows))}), code_version="1", **described)


def standings(project, name="orders", keys=None):
    return [each.standing for each in check_signatures(project, name, keys or trusted())]


def test_each_commit_that_makes_versions_is_signed_as_it_is_made(project):
    write(project)
    write(project, rows=3)
    project.table("orders").revert("@0")
    assert standings(project) == ["signed"] * 3
    write(Project.open("SHOP", project.store.uri), rows=4)
    assert standings(project) == ["signed"] * 3 + ["unsigned"]
    attest(project, "orders", signer=KEY)
    assert standings(project) == ["signed"] * 4


def test_a_stranger_signs_nothing(project):
    write(Project.open("SHOP", project.store.uri))
    attest(project, "orders", signer=STRANGER)
    assert standings(project) == ["stranger"]
    assert standings(project, keys=trusted(STRANGER)) == ["signed"]


def test_a_signature_is_of_one_commit_at_one_place(project, tmp_path):
    write(project)
    [keys] = list_attestations(project.table("orders").store).values()
    document = project.table("orders").store.get(keys[0])
    for other, name in ((project, "bills"), (Project.open("BAR", str(tmp_path / "bar")), "orders")):
        plain = Project.open(other.name, other.store.uri)
        write(plain, name)
        sha = plain.table(name).state.history.record(0).sha256
        put_attestation(plain.table(name).store, sha, document)
        assert standings(plain, name) == ["other"]


def test_equal_rows_with_other_facts_are_another_commit(project, tmp_path):
    write(project)
    [[key]] = list_attestations(project.table("orders").store).values()
    forged = Project.open("SHOP", str(tmp_path / "forged"), author="somebody else")
    write(forged)
    assert forged.table("orders").version().metadata_sha == project.table("orders").version().metadata_sha
    sha = forged.table("orders").state.history.record(0).sha256
    put_attestation(forged.table("orders").store, sha, project.table("orders").store.get(key))
    assert standings(forged) == ["other"]


@pytest.mark.parametrize("change", ["subject", "versions", "builder", "type"])
def test_a_statement_that_says_anything_else_is_of_something_else(project, change):
    write(Project.open("SHOP", project.store.uri))
    store, record = project.table("orders").store, project.table("orders").state.history.record(0)
    attest(project, "orders", signer=KEY)
    [[key]] = list_attestations(store).values()
    statement = Envelope.parse(store.get(key)).statement()
    store.delete([key])
    definition = statement["predicate"]["buildDefinition"]
    match change:
        case "subject":
            statement["subject"][0]["digest"]["sha256"] = "0" * 64
        case "versions":
            definition["externalParameters"]["versions"][0]["rows"] = 99
        case "builder":
            statement["predicate"]["runDetails"]["builder"]["id"] = "https://example.org/"
        case _:
            statement["predicateType"] = "https://example.org/"
    put_attestation(store, record.sha256, Envelope.sign(orjson.dumps(statement), KEY).to_bytes())
    assert standings(project) == ["other"]


def test_what_a_revoked_key_signed_holds_where_a_witness_had_seen_it(project):
    write(project)
    write(project, rows=3)
    [seen, _] = [key for keys in list_attestations(project.table("orders").store).values() for key in keys]
    witnessed = frozenset([seen.rpartition("/")[2].removesuffix(".json")])
    for shas, expected in ((frozenset(), {"revoked"}), (witnessed, {"revoked", "signed"})):
        revoked = Revocation(datetime.now(UTC), "stolen", shas)
        keys = TrustedKeys((TrustedKey(KEY.public, "Ada", frozenset({"sign"}), revoked),))
        assert {*standings(project, keys=keys)} == expected


def test_a_key_that_may_approve_alone_signs_nothing(project):
    write(project)
    keys = TrustedKeys((TrustedKey(KEY.public, "Ada", frozenset({"approve"})),))
    assert standings(project, keys=keys) == ["stranger"]


def test_signatures_go_where_the_table_goes(project, tmp_path):
    write(project)
    project.table("orders").rename("bills", dry_run=False)
    assert standings(project, "bills") == ["signed"]
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1")
    write(branch, "bills", rows=4)
    write(branch, "fresh", rows=4)
    assert standings(branch, "bills") == ["signed"] * 2
    there = Project.open("SHOP", str(tmp_path / "export"))
    export_environment(project, "pr-1", str(tmp_path / "export"), dry_run=False)
    # What an environment signed is no word for the place that it was exported to, until something there is signed.
    assert standings(there, "bills") == ["signed", "elsewhere"]
    assert standings(there, "fresh") == ["elsewhere"]
    there.observers = (CommitSigner(KEY),)
    there.table("bills").write(pa.table({"v": [9]}))
    assert standings(there, "bills") == ["signed"] * 3
    project.observers = ()
    promote(project, "pr-1", dry_run=False)
    [promoted] = check_signatures(project, "fresh", trusted())
    assert promoted.standing == "elsewhere"
    assert "in pr-1; how it came here is not signed" in promoted.text


def test_a_project_of_another_name_is_signed_for_once_its_owner_says_so(project, tmp_path):
    write(project)
    copied = tmp_path / "copied"
    shutil.copytree(project.store.uri, copied)
    stolen = Project.open("SHOP", str(copied)).rename("PAYROLL")
    assert standings(stolen) == ["elsewhere"]
    assert standings(project.rename("STORE")) == ["signed"]


def test_what_nobody_signed_at_the_end_is_said(project):
    write(project)
    plain = Project.open("SHOP", project.store.uri)
    append_as_another_program(plain.table("orders"), pa.table({"v": [9]}))
    assert standings(project) == ["signed", "unsigned"]
    assert "another program (APPEND)" in check_signatures(project, "orders", trusted())[-1].text
    plain.table("orders").adopt()
    assert standings(project) == ["signed", "unsigned", "unsigned"]
    write(project, rows=7)
    assert standings(project) == ["signed", "unsigned", "signed"]
    plain.table("orders").drop(dry_run=False)
    assert standings(project) == ["signed", "unsigned", "signed", "unsigned"]
    project.table("orders").restore()
    project.table("orders").drop(dry_run=False)
    assert standings(project)[-1] == "signed"


def test_an_altered_promoted_version_is_not_signed(project):
    write(project)
    create_environment(project, "pr-1")
    write(project.in_environment("pr-1"), "fresh", rows=4)
    promote(project, "pr-1", dry_run=False)
    assert standings(project, "fresh") == ["signed"]


class TestApprovals:
    @pytest.fixture
    def branch(self, project):
        write(project)
        create_environment(project, "pr-1")
        branch = project.in_environment("pr-1")
        write(branch, rows=5)
        return branch

    def missing(self, branch, count=1, *keys):
        return missing_approvals(branch, "orders", branch.table("orders").version(), trusted(KEY, SECOND, *keys), count)

    def test_somebody_else_has_to_approve(self, branch):
        assert "0 trusted keys" in self.missing(branch)
        approve(branch, "orders", signer=STRANGER)
        assert "0 trusted keys" in self.missing(branch)
        with pytest.raises(InvalidInput, match="nobody approves of their own"):
            approve(branch, "orders", signer=KEY)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dagster_versioned.proof.attest._has_signed", lambda *_: False)
            approve(branch, "orders", signer=KEY)
        assert "who made it does not count" in self.missing(branch)
        approve(branch, "orders", signer=SECOND)
        approve(branch, "orders", signer=SECOND, message="twice")
        assert self.missing(branch) is None
        assert "of 2" in self.missing(branch, 2)
        assert self.missing(branch, 2, STRANGER) is None

    def test_none_is_of_another_version_environment_or_generation(self, branch, project):
        approve(branch, "orders", signer=SECOND)
        write(branch, rows=6)
        assert self.missing(branch) is not None
        approve(branch, "orders", signer=SECOND)
        assert self.missing(branch) is None
        rebase_environment(project, "pr-1", dry_run=False)
        assert self.missing(project.in_environment("pr-1")) is not None

    def test_none_is_for_ever(self, branch):
        with pytest.raises(InvalidInput, match="of no use"):
            approve(branch, "orders", signer=SECOND, expires=datetime.now(UTC) - timedelta(seconds=1))
        with pytest.raises(InvalidInput, match="not of 'anything'"):
            approve(branch, "orders", signer=SECOND, action="anything")

    def test_one_that_has_expired_counts_no_more(self, branch, monkeypatch):
        class Later(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + timedelta(days=2)

        approve(branch, "orders", signer=SECOND, expires=datetime.now(UTC) + timedelta(days=1))
        assert self.missing(branch) is None
        monkeypatch.setattr("dagster_versioned.proof.signatures.datetime", Later)
        assert "1 expired" in self.missing(branch)


class TestKeys:
    def test_a_key_is_written_for_its_owner_and_read_again(self, tmp_path, monkeypatch):
        write_new(tmp_path / "key", KEY)
        assert (tmp_path / "key").stat().st_mode & 0o077 == 0
        assert open_signer(tmp_path / "key").public == KEY.public
        assert PublicKey.parse((tmp_path / "key.pub").read_text()) == KEY.public
        with pytest.raises(InvalidInput, match="File exists"):
            write_new(tmp_path / "key", STRANGER)
        write_new(tmp_path / "locked", KEY, "correct horse")
        with pytest.raises(InvalidInput, match="is encrypted"):
            open_signer(tmp_path / "locked")
        monkeypatch.setenv(PASSPHRASE_VARIABLE, "correct horse")
        assert open_signer(tmp_path / "locked").public == KEY.public
        monkeypatch.setenv(PASSPHRASE_VARIABLE, "wrong")
        with pytest.raises(InvalidInput, match="the passphrase is wrong"):
            open_signer(tmp_path / "locked")

    def test_ecdsa_is_taken_and_rsa_is_not(self, tmp_path):
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (tmp_path / "ec").write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(*form))
        signer = open_signer(tmp_path / "ec")
        assert signer.public.algorithm == "ecdsa-p256-sha256"
        assert signer.public.has_signed(signer.sign(b"x"), b"x")
        assert not signer.public.has_signed(signer.sign(b"x"), b"y")
        (tmp_path / "rsa").write_bytes(rsa.generate_private_key(65537, 2048).private_bytes(*form))
        with pytest.raises(InvalidInput, match="is not taken"):
            open_signer(tmp_path / "rsa")
        (tmp_path / "p384").write_bytes(ec.generate_private_key(ec.SECP384R1()).private_bytes(*form))
        with pytest.raises(InvalidInput, match="is not taken"):
            open_signer(tmp_path / "p384")

    @pytest.mark.parametrize("text", [b"", b"no key", KEY.public.pem.encode()])
    def test_what_is_no_private_key_is_refused_unrepeated(self, tmp_path, text):
        (tmp_path / "key").write_bytes(text)
        with pytest.raises(InvalidInput, match="no private key"):
            open_signer(tmp_path / "key")
        with pytest.raises(InvalidInput, match="cannot be read"):
            open_signer(tmp_path / "none")


ENVELOPE = Envelope.sign(b'{"a": 1}', KEY).to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        ENVELOPE[:-1],
        ENVELOPE.replace(b'"payload":', b'"payload":"","payload":'),
        ENVELOPE.replace(b"in-toto", b"out-toto"),
        ENVELOPE.replace(b'"payload":"', b'"payload":"*'),
        orjson.dumps({**json.loads(ENVELOPE), "signatures": 1}),
    ],
)
def test_what_is_no_envelope_is_refused(data):
    with pytest.raises(IntegrityError):
        Envelope.parse(data)


def test_base64_that_is_written_otherwise_is_refused():
    text = base64.b64encode(b'{"a":1} \n ').decode()
    assert text.endswith("==")
    members = {**json.loads(ENVELOPE), "payload": f"{text[:-3]}{chr(ord(text[-3]) + 1)}=="}
    assert base64.b64decode(members["payload"]) == base64.b64decode(text)
    with pytest.raises(IntegrityError):
        Envelope.parse(orjson.dumps(members))


def test_what_is_put_beside_another_programs_commit_says_nothing(project):
    write(project)
    plain = Project.open("SHOP", project.store.uri)
    append_as_another_program(plain.table("orders"), pa.table({"v": [9]}))
    table = project.table("orders")
    first, foreign = table.history()[1], table.history()[0]
    (key,) = list_attestations(table.store, first.record.sha256)[first.record.sha256]
    put_attestation(table.store, foreign.record.sha256, table.store.get(key))
    (found,) = check_signatures(project, "orders", trusted(), [foreign])
    assert found.standing == "other"
