"""Whom a project trusts: keys in its registry, what a witness has seen of what they signed, and the verbs."""

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.errors import GovernanceError, InvalidInput, RegistryUnavailable
from dagster_versioned.governance.connect import Governance
from dagster_versioned.governance.documents import KeyRevocation, Keys, RegisteredKey
from dagster_versioned.governance.governance_marker import MARKER_KEY
from dagster_versioned.governance.registry import now
from dagster_versioned.governance.version_mirror import VersionMirror
from dagster_versioned.proof.attest import attest
from dagster_versioned.proof.keys import PrivateKey
from dagster_versioned.proof.signatures import check_signatures, registered_keys
from dagster_versioned.storage import Location
from support.command_line import in_process
from support.governed import NAME

ADA = "Ada <ada@example.org>"
KEY = PrivateKey.generate()


def registered(key=KEY, name="Ada", roles=("sign",)) -> RegisteredKey:
    public = key.public
    return RegisteredKey(id=public.key_id, name=name, public_key=public.pem, roles=roles, added_at=now(), added_by=ADA)


@pytest.fixture
def governed(registry, mirror, tmp_path):
    """A registered project with a table of one version."""
    registry.register(NAME, Location.parse(str(tmp_path / "store")), actor=ADA)
    mirror.publish(registry)
    project = Governance(mirror.store, role="developer", registry=registry).project(NAME)
    project.table("orders").write(pa.table({"v": [1]}), code_version="1")
    return project


@pytest.fixture
def run(governed, mirror, registry):
    where = ("--project", NAME, "--governance", mirror.store.uri, "--registry", registry.remote)

    def call(*arguments, code=0, signing=""):
        ended = in_process(*where, *arguments, env={"DAGSTER_VERSIONED_SIGNING_KEY": str(signing)})
        assert ended.exit_code == code, ended.output + ended.stderr
        return ended.stdout + ended.stderr

    return call


def test_keys_are_changed_by_commits_and_nothing_is_none(governed, registry, other, log):
    assert registry.keys(NAME) == Keys()
    assert registry.change_keys(NAME, "trust Ada", lambda keys: keys.with_key(registered())) is not None
    assert registry.change_keys(NAME, "nothing", lambda keys: keys) is None
    other.change_keys(NAME, "require", lambda keys: keys.replaced(required_approvals=2))
    registry.fetch()
    found = registry.keys(NAME)
    assert ([key.name for key in found.keys], found.required_approvals) == (["Ada"], 2)
    assert log()[-2:] == [f"Keys: trust Ada for {NAME}", f"Keys: require for {NAME}"]


def test_keys_are_of_registered_projects(registry):
    with pytest.raises(GovernanceError, match="not registered"):
        registry.change_keys("NOBODY", "trust Ada", lambda keys: keys.with_key(registered()))


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["keys"][0].update(id="0" * 64),
        lambda document: document["keys"][0].update(roles=["sign", "rule"]),
        lambda document: document["keys"][0].update(public_key="no key"),
        lambda document: document.update(required_approvals=-1),
        lambda document: document["keys"].append(document["keys"][0]),
    ],
    ids=["another id", "another role", "no key", "less than none", "twice"],
)
def test_what_somebody_edited_is_refused(governed, registry, by_hand, change):
    registry.change_keys(NAME, "trust Ada", lambda keys: keys.with_key(registered()))

    def edit(folder: Path) -> None:
        (path,) = folder.rglob("keys.json")
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document, indent=2))

    by_hand(edit)
    registry.fetch()
    with pytest.raises((GovernanceError, InvalidInput)):
        registered_keys(registry.keys(NAME))


def test_what_a_witness_had_seen_of_a_revoked_key_holds(governed, registry, tmp_path):
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", tmp_path / "witness.git"], check=True)
    witness = VersionMirror.open(governed, str(tmp_path / "witness.git"), tmp_path / "clone.git")
    attest(governed, "orders", signer=KEY)
    seen = witness.update().commit
    governed.table("orders").write(pa.table({"v": [2]}), code_version="1")
    attest(governed, "orders", signer=KEY)  # after it was stolen, dated back or not
    revoked = KeyRevocation(at=now(), by=ADA, reason="stolen", witness=seen)
    registry.change_keys(
        NAME, "revoke", lambda keys: keys.with_key(registered().model_copy(update={"revoked": revoked}))
    )

    def standings(of=witness.attested):
        keys = registered_keys(registry.keys(NAME), of)
        return [each.standing for each in check_signatures(governed, "orders", keys)]

    assert standings() == ["signed", "revoked"]
    assert standings(None) == ["revoked", "revoked"]
    later = witness.update()
    assert later.commit != seen
    assert standings() == ["signed", "revoked"]
    with pytest.raises(GovernanceError):
        witness.attested("0" * 40)


def test_the_verbs_of_keys(run, governed, tmp_path, monkeypatch):
    for name in ("anna", "bob"):
        run("key", "new", tmp_path / name)
    assert "trusts no key" in run("key", "ls", NAME)
    run("key", "trust", NAME, tmp_path / "anna.pub", "--name", "Ada", "--dry-run")
    assert "trusts no key" in run("key", "ls", NAME)
    assert "to sign: recorded as" in run("key", "trust", NAME, tmp_path / "anna.pub", "--name", "Ada")
    assert "nothing to record" in run("key", "trust", NAME, tmp_path / "anna.pub", "--name", "Ada")
    run("key", "trust", NAME, tmp_path / "bob.pub", "--name", "Bob", "--may", "approve")
    assert "not to rule" in run("key", "trust", NAME, tmp_path / "bob.pub", "--name", "Bob", "--may", "rule", code=2)
    assert "cannot be read" in run("key", "trust", NAME, tmp_path / "nobody.pub", "--name", "B", code=2)
    assert "unsigned" in run("verify", "orders")
    assert "every version signed" in run("key", "require", NAME, "--signatures", "--approvals", "1")
    assert "1 finding" in run("verify", "orders", code=1)
    run("key", "new", tmp_path / "eve")
    run("attest", "orders", "--key", tmp_path / "eve")
    assert "not trusted to sign here" in run("verify", "orders", code=1)
    run("attest", "orders", "--key", tmp_path / "anna")
    assert "signed by Ada" in run("verify", "orders")
    run("approve", "orders", "--key", tmp_path / "bob")
    assert "approved to promote by Bob" in run("verify", "orders")
    assert "revoke Ada: recorded" in run("key", "revoke", NAME, "Ada", "--reason", "laptop stolen")
    assert "laptop stolen" in run("key", "ls", NAME)
    assert "laptop stolen" in run("verify", "orders", code=1)
    assert "stays so" in run("key", "trust", NAME, tmp_path / "anna.pub", "--name", "Ada", code=2)
    assert "Nothing was recorded" in run("key", "require", NAME, code=2)
    assert "There are: Ada" in run("key", "revoke", NAME, "Eve", code=2)


def test_a_registry_that_cannot_be_asked_trusts_nobody(run, governed, registry, remote):
    remote.rename(remote.with_name("away.git"))
    assert "registry" in run("verify", "orders", code=5).lower()
    with pytest.raises(RegistryUnavailable):
        registry.fetch()


def test_environments_need_the_approvals_that_the_registry_says(run, governed, tmp_path):
    for name in ("anna", "bob"):
        run("key", "new", tmp_path / name)
        run("key", "trust", NAME, tmp_path / f"{name}.pub", "--name", name, "--may", "sign", "--may", "approve")
    run("key", "require", NAME, "--approvals", "1")
    run("env", "create", "pr-1")
    branch = Project.open(NAME, governed.store.uri).in_environment("pr-1")
    parents = branch.table("orders").upstream()
    branch.table("daily").write(pa.table({"v": [3]}), code_version="1", parents=parents)
    run("--environment", "pr-1", "attest", "daily", "--key", tmp_path / "anna")
    refused = run("promote", "pr-1", "--require-approvals", "0", "--apply", code=2)
    assert "is not approved" in refused
    run("--environment", "pr-1", "approve", "daily", "--key", tmp_path / "bob")
    assert "how it came here is not signed" not in run("promote", "pr-1", "--apply", signing=tmp_path / "bob")
    assert "signed by bob" in run("verify", "daily")


@pytest.fixture
def branch(run, governed, tmp_path):
    """An environment with a version of a derived table, and keys of four people, of whom the registry knows three."""
    for name, roles in {"anna": ("sign", "approve"), "bob": ("approve",), "carol": ("approve",), "mallory": ()}.items():
        run("key", "new", tmp_path / name)
        may = [word for role in roles for word in ("--may", role)]
        if roles:
            run("key", "trust", NAME, tmp_path / f"{name}.pub", "--name", name, *may)
    run("env", "create", "pr-1")
    branch = Project.open(NAME, governed.store.uri).in_environment("pr-1")
    parents = branch.table("orders").upstream()
    branch.table("daily").write(pa.table({"v": [3]}), code_version="1", parents=parents)
    return "--environment", "pr-1"


def test_nobody_approves_of_what_they_or_nobody_knows_who_made(run, branch, tmp_path):
    run("key", "require", NAME, "--approvals", "1")
    run(*branch, "approve", "daily", "--key", tmp_path / "carol")
    assert "whose it is" in run("promote", "pr-1", code=2)  # nobody has signed it
    run(*branch, "attest", "daily", "--key", tmp_path / "carol")
    assert "no trusted key has signed it" in run("promote", "pr-1", code=2)  # who may approve alone
    run(*branch, "attest", "daily", "--key", tmp_path / "anna")
    assert "who made it does not count" in run("promote", "pr-1", code=2)
    run(*branch, "approve", "daily", "--key", tmp_path / "bob")
    assert "would become production's" in run("promote", "pr-1")


def test_keys_that_are_named_never_widen_what_the_registry_says(run, branch, tmp_path):
    run("key", "require", NAME, "--approvals", "1")
    said = run(*branch, "approve", "daily", "--key", tmp_path / "mallory")
    assert "does not know that key" in said
    for how in ((), ("--require-approvals", "1"), ("--require-approvals", "0")):
        run("promote", "pr-1", *how, "--trust", tmp_path / "mallory.pub", code=2)


def test_an_option_asks_for_more_approvals_than_the_registry_and_never_for_fewer(run, branch, tmp_path):
    run("key", "require", NAME, "--approvals", "2")
    run(*branch, "attest", "daily", "--key", tmp_path / "anna")
    run(*branch, "approve", "daily", "--key", tmp_path / "bob")
    assert "of 2 that are required" in run("promote", "pr-1", "--require-approvals", "1", code=2)
    run(*branch, "approve", "daily", "--key", tmp_path / "carol")
    assert "would become production's" in run("promote", "pr-1", "--require-approvals", "1")
    assert "of 3 that are required" in run("promote", "pr-1", "--require-approvals", "3", code=2)


def test_what_has_to_be_signed_is_not_promoted_unsigned(run, branch, tmp_path):
    run("key", "require", NAME, "--signatures")
    assert "is not signed: unsigned" in run("promote", "pr-1", code=2)
    run(*branch, "attest", "daily", "--key", tmp_path / "anna")
    assert "would become production's" in run("promote", "pr-1")


def test_without_the_registry_nothing_is_passed_over_in_silence(run, branch, governed, mirror):
    reader = in_process("--project", NAME, "--governance", mirror.store.uri, "promote", "pr-1")
    assert (reader.exit_code, "in the registry" in reader.stderr) == (2, True)
    Project.open(NAME, governed.store.uri).data.put(MARKER_KEY, b"{}")
    by_place = in_process("--location", governed.store.uri, "promote", "pr-1")
    assert (by_place.exit_code, "in the registry" in by_place.stderr) == (2, True)
    for where in (("--governance", mirror.store.uri), ("--location", governed.store.uri)):
        looked = in_process("--project", NAME, *where, "verify", "orders")
        assert (looked.exit_code, "Signatures are not checked" in looked.stderr) == (0, True)


def test_names_are_those_of_living_keys(run, branch, tmp_path):
    assert "is the name of another key" in run("key", "trust", NAME, tmp_path / "mallory.pub", "--name", "bob", code=2)
    run("key", "revoke", NAME, "bob")
    run("key", "trust", NAME, tmp_path / "mallory.pub", "--name", "bob")
    said = run("key", "trust", NAME, tmp_path / "mallory.pub", "--name", "bob", "--may", "approve")
    assert "Before, it was bob's, to sign" in said
    assert "not registered" in run("key", "ls", "NOBODY", code=4)
    assert "a commit of the git mirror" in run("key", "revoke", NAME, "bob", "--witness", "zzz", code=2)


def test_an_audit_names_no_key_that_is_not_believed(run, branch, governed, tmp_path):
    run("attest", "orders", "--key", tmp_path / "anna")
    said = run("audit", "orders", "-o", tmp_path / "a")
    assert said.count("--trust") == 1
    run("key", "revoke", NAME, "anna")
    assert "No public key is in it" in run("audit", "orders", "-o", tmp_path / "b")
    assert not (tmp_path / "b/keys").exists()


def test_a_person_with_two_keys_is_one_person(run, branch, tmp_path):
    run("key", "require", NAME, "--approvals", "1")
    run(*branch, "attest", "daily", "--key", tmp_path / "anna")
    run("key", "new", tmp_path / "ci")
    run("key", "trust", NAME, tmp_path / "ci.pub", "--name", "ci")
    run(*branch, "attest", "daily", "--key", tmp_path / "ci")
    run("key", "revoke", NAME, "anna")
    run("key", "trust", NAME, tmp_path / "mallory.pub", "--name", "anna", "--may", "approve")
    run(*branch, "approve", "daily", "--key", tmp_path / "mallory")
    assert "who made it does not count" in run("promote", "pr-1", code=2)
