"""Keys, signatures, approvals and bundles by the command line, in a plain project and in a governed one."""

import json
import subprocess
import sys

import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.proof.audit import VERIFIER
from support.command_line import in_process


def run(*arguments, code=0, **environment):
    ended = in_process(*arguments, env={name.upper(): value for name, value in environment.items()})
    assert ended.exit_code == code, ended.output + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture
def keys(tmp_path):
    for name in ("ada", "bob"):
        run("key", "new", tmp_path / name)
    return tmp_path


@pytest.fixture
def project(tmp_path):
    project = Project.open("SHOP", str(tmp_path / "shop"))
    project.table("orders").write(pa.table({"v": [1]}), code_version="1")
    return project


def test_a_version_is_signed_audited_and_proved(keys, project, tmp_path):
    at = ("--location", project.store.uri)
    assert "No key" in run(*at, "attest", "orders", code=2)
    assert "orders signed by" in run(*at, "attest", "orders", "--key", keys / "ada")
    found = json.loads(run(*at, "verify", "--json", "--trust", keys / "ada.pub"))
    assert found["tables"][0]["signatures"][0]["standing"] == "signed"
    assert "1 commit signed by" in run(*at, "verify", "--trust", keys / "ada.pub")
    assert "not trusted" in run(*at, "verify", "--trust", keys / "bob.pub", code=1)
    project.table("orders").write(pa.table({"v": [2]}), code_version="1")
    assert "unsigned" in run(*at, "verify", "--trust", keys / "ada.pub")
    run(*at, "verify", "--trust", keys / "ada.pub", "--require-signatures", code=1)
    said = run(*at, "audit", "orders", "@0", "--trust", keys / "ada.pub", "-o", tmp_path / "evidence")
    command = said.partition("python verify.py ")[2].partition("\n")[0].split()
    ran = subprocess.run([sys.executable, VERIFIER, *command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Nobody has signed it" in run(*at, "audit", "orders", "-o", tmp_path / "more")


def test_a_promotion_waits_for_its_approvals(keys, project):
    at = ("--location", project.store.uri)
    create_environment(project, "pr-1")
    branch = (*at, "--environment", "pr-1")
    written = project.in_environment("pr-1").table("fresh")
    written.write(pa.table({"v": [3]}), code_version="1")
    required = ("--require-approvals", "1", "--trust", keys / "ada.pub", "--trust", keys / "bob.pub", "--apply")
    run(*branch, "attest", "fresh", "--key", keys / "ada")
    assert "is not approved" in run(*at, "promote", "pr-1", *required, code=2)
    assert "nobody approves of their own" in run(*branch, "approve", "fresh", "--key", keys / "ada", code=2)
    assert not project.table("fresh").exists()
    run(*branch, "approve", "fresh", "--key", keys / "bob", "--days", "1")
    assert "became production's" in run(*at, "promote", "pr-1", *required)
    assert project.table("fresh").exists()


def test_what_verify_py_will_not_prove_is_said_when_the_bundle_is_written(keys, project, tmp_path):
    at = ("--location", project.store.uri)
    run(*at, "attest", "orders", "--key", keys / "ada")
    assert "No public key is in it" in run(*at, "audit", "orders", "-o", tmp_path / "a")
    assert "not trusted to sign here" in run(*at, "audit", "orders", "--trust", keys / "bob.pub", "-o", tmp_path / "b")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in run(*at, "audit", "orders", "-o", tmp_path / "file/x", code=2)
    assert "cannot be written" in run(*at, "trace", "orders", "-o", tmp_path / "file/x", code=2)


def test_a_partition_is_named_and_said(keys, project, tmp_path):
    at = ("--location", project.store.uri)
    for day in ("mon", "tue"):
        project.table("daily").write(pa.table({"v": [day]}), partition=day)
    for verb in ("attest", "approve"):
        assert "Name one: --partition" in run(*at, verb, "daily", "--key", keys / "ada", code=2)
        said = run(*at, verb, "daily", "--partition", "mon", "--key", keys / ("ada" if verb == "attest" else "bob"))
        assert "daily[mon] " in said
    assert "Name one" in run(*at, "audit", "daily", "-o", tmp_path / "a", code=2)
    assert "daily[tue] " in run(*at, "audit", "daily", "--partition", "tue", "-o", tmp_path / "a")


def test_every_commit_of_the_command_line_is_signed_where_a_key_is_set(keys, project):
    at = ("--location", project.store.uri)
    project.table("orders").write(pa.table({"v": [2]}), code_version="1")
    run(*at, "revert", "orders", "@0", dagster_versioned_signing_key=str(keys / "ada"))
    found = json.loads(run(*at, "verify", "--json", "--trust", keys / "ada.pub"))
    assert [each["standing"] for each in found["tables"][0]["signatures"]] == ["unsigned", "unsigned", "signed"]
