"""The registry over every kind of remote, and what happens when a remote is down, slow, refuses, or was rewritten."""

import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned.errors import GovernanceError, InvalidInput, RegistryConflict, RegistryUnavailable
from dagster_versioned.governance import git_command, git_repository
from dagster_versioned.governance.git_remote import cached_clone
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import Location
from support.git_server import GitServer, git_server, make_certificate, make_ssh

Git = Callable[..., str]
HERE = Location.parse("/data/nyc")
PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "localhost,127.0.0.1")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def bare(tmp_path: Path, git: Git) -> Path:
    """An empty bare repository that exists before the registry."""
    root = tmp_path / "served"
    root.mkdir()
    git(root, "init", "--bare", "--quiet", "registry.git")
    return root / "registry.git"


@pytest.fixture
def server(bare: Path) -> Iterator[GitServer]:
    with git_server(bare.parent) as server:
        yield server


@pytest.fixture
def guarded(bare: Path) -> Iterator[GitServer]:
    with git_server(bare.parent, password=PASSWORD) as server:
        yield server


def hook(remote: Path, name: str, script: str) -> None:
    path = remote / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def impatient_with(patch: pytest.MonkeyPatch, command: str) -> None:
    """Only this command of git has the time that its registry allows; others, which ask nobody, have more."""
    run = git_repository.run_git

    def patient(path: Path, arguments: Collection[str], *, timeout: float, **options: Any) -> bytes:
        return run(path, arguments, timeout=timeout if command in arguments else 60, **options)

    patch.setattr(git_repository, "run_git", patient)


def losing_answers(patch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None) -> None:
    """What is pushed arrives, ``then`` something happens, and nothing is said until the time is up."""
    run = git_repository.run_git

    def losing(path: Path, arguments: Collection[str], **options: Any) -> bytes:
        said = run(path, arguments, **options)
        if "push" not in arguments:
            return said
        then()
        raise git_command.GitFailure(None, "no end after 1 seconds")

    patch.setattr(git_repository, "run_git", losing)


def wait_until_gone(text: str) -> None:
    """Return when no process has the text in its command line; the system hears of an end a little later."""
    end = time.monotonic() + 60
    while text in subprocess.run(["ps", "-A", "-o", "args="], check=True, capture_output=True, text=True).stdout:
        assert time.monotonic() < end, f"{text} is still there"
        time.sleep(0.1)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["folder", "file", "http", "https", "ssh", "scp"])
def test_every_kind_of_remote_works_the_same(
    kind: str, bare: Path, certificate: Path, tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
    monkeypatch.setenv("GIT_SSH_COMMAND", make_ssh(tmp_path))
    monkeypatch.setenv("GIT_SSH_VARIANT", "ssh")
    with git_server(bare.parent, certificate=certificate if kind == "https" else None) as server:
        url = {
            "folder": str(bare),
            "file": f"file://{bare}",
            "ssh": f"ssh://git@localhost:22{bare}",
            "scp": f"git@localhost:{bare}",
        }.get(kind, f"{server.url}/registry.git")
        ada = Registry.init(url, tmp_path / "ada")
        grace = Registry.clone(url, tmp_path / "grace")
        sha = ada.register("NYC", HERE)
        assert grace.projects() == []
        assert grace.fetch() == sha == grace.commit_sha
        assert grace.register("NYC", HERE) is None
        assert grace.register("LAX", Location.parse("/data/lax")) == git(bare, "rev-parse", "main").strip()
        assert Registry.open(tmp_path / "grace").documents("NYC").ref.current == HERE
        assert ada.fetch() == grace.commit_sha
    subjects = git(bare, "log", "--reverse", "--format=%s", "main").splitlines()
    assert subjects == ["Begin the registry", "Registered: NYC at /data/nyc", "Registered: LAX at /data/lax"]
    if kind in ("ssh", "scp"):
        assert "git-receive-pack" in (tmp_path / "ssh.log").read_text()


# ---- credentials


def test_a_credential_helper_opens_a_guarded_remote_and_leaves_no_trace(
    guarded: GitServer, git_identity: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    git_identity.write_text(
        git_identity.read_text()
        + f'[credential]\n\thelper = "!f() {{ echo username=ada; echo password={PASSWORD}; }}; f"\n'
    )
    caplog.set_level(logging.DEBUG)
    registry = Registry.init(f"{guarded.url}/registry.git", tmp_path / "ada")
    registry.register("NYC", HERE)
    files = [path.read_bytes() for path in (tmp_path / "ada").rglob("*") if path.is_file()]
    assert PASSWORD.encode() not in b"".join(files)
    assert PASSWORD not in caplog.text + repr(registry)


def test_a_guarded_remote_without_a_credential_asks_nobody(guarded: GitServer, tmp_path: Path):
    with pytest.raises(RegistryUnavailable, match=r"could not read Username.*Check the address"):
        Registry.clone(f"{guarded.url}/registry.git", tmp_path / "ada")
    assert not (tmp_path / "ada").exists()
    assert list(tmp_path.glob(".*")) == []


def test_a_wrong_credential_of_the_users_own_configuration_is_not_repeated(
    guarded: GitServer, git_identity: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    secret = guarded.url.replace("//", "//ada:wrong-hunter3@")
    git_identity.write_text(git_identity.read_text() + f'[url "{secret}/"]\n\tinsteadOf = {guarded.url}/\n')
    with pytest.raises(RegistryUnavailable, match="Authentication failed") as refused:
        Registry.clone(f"{guarded.url}/registry.git", tmp_path / "ada")
    shown = f"{refused.value!r}{refused.value.__cause__!r}{refused.value.__context__!r}{caplog.text}"
    assert "hunter3" not in shown


def test_a_configuration_that_rewrites_the_url_to_a_command_is_not_obeyed(
    server: GitServer, git_identity: Path, tmp_path: Path
):
    mark = tmp_path / "executed"
    git_identity.write_text(git_identity.read_text() + f'[url "ext::touch {mark} "]\n\tinsteadOf = {server.url}/\n')
    with pytest.raises(RegistryUnavailable, match="transport 'ext' not allowed"):
        Registry.clone(f"{server.url}/registry.git", tmp_path / "ada")
    assert not mark.exists()


def test_a_clone_whose_configured_remote_was_edited_to_a_command_is_refused(
    registry: Registry, git: Git, tmp_path: Path
):
    mark = tmp_path / "executed"
    git(registry.path, "config", "remote.origin.url", f"ext::touch {mark}")
    with pytest.raises(ValueError, match="remote helper"):
        Registry.open(registry.path)
    assert not mark.exists()


# ---- down, slow, in the way


def test_a_remote_that_is_down_is_unavailable_and_reads_go_on(registry: Registry, remote: Path):
    registry.register("NYC", HERE)
    before = registry.fetched_at, registry.commit_sha
    remote.rename(remote.with_name("gone"))
    for attempt in (registry.fetch, lambda: registry.register("LAX", Location.parse("/x"))):
        with pytest.raises(RegistryUnavailable, match=r"did not answer.*The clone is as it was"):
            attempt()
    again = Registry.open(registry.path)
    assert again.documents("NYC").ref.current == HERE
    assert (again.fetched_at, again.commit_sha) == before


def test_nobody_listens(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RegistryUnavailable, match="did not answer"):
        Registry.clone(f"http://127.0.0.1:{port}/registry.git", tmp_path / "ada")


def test_a_slow_remote_is_given_up_in_time_and_its_processes_ended(
    server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"{server.url}/registry.git"
    Registry.init(url, tmp_path / "ada")
    impatient_with(monkeypatch, "fetch")
    registry = Registry.open(tmp_path / "ada", timeout=0.5)
    server.hangs = True
    with pytest.raises(RegistryUnavailable, match=r"no end after 0.5 seconds"):
        registry.register("NYC", HERE)
    wait_until_gone(url)  # else it would wait for that server for ten minutes
    server.hangs = False
    assert Registry.open(tmp_path / "ada").register("NYC", HERE) is not None


def test_an_ssh_that_does_not_want_to_die_is_killed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GIT_SSH_COMMAND", make_ssh(tmp_path, first="trap '' TERM; sleep 601.7 & wait; sleep 601.7"))
    monkeypatch.setenv("GIT_SSH_VARIANT", "ssh")
    monkeypatch.setattr(git_command, "_GRACE_SECONDS", 0.2)
    impatient_with(monkeypatch, "fetch")
    with pytest.raises(RegistryUnavailable, match="no end after"):
        Registry.clone("git@localhost:registry.git", tmp_path / "x", timeout=0.5)
    wait_until_gone("sleep 601.7")  # it would have ended by itself after ten minutes


def test_a_push_that_is_rejected_says_why_and_leaves_the_clone_usable(
    registry: Registry, remote: Path, log: Callable[[], list[str]]
):
    hook(remote, "pre-receive", "echo 'policy: ask the registrar' >&2; exit 1")
    before = registry.commit_sha
    with pytest.raises(
        RegistryUnavailable, match=r"did not take the push.*policy: ask the registrar.*Nothing was recorded"
    ):
        registry.register("NYC", HERE)
    assert log() == ["Begin the registry"]
    assert registry.commit_sha == before
    assert registry.projects() == []
    (remote / "hooks/pre-receive").unlink()
    assert registry.register("NYC", HERE) is not None


def test_a_remote_that_may_only_be_read_is_said_to_refuse(bare: Path, tmp_path: Path, git: Git):
    Registry.init(str(bare), tmp_path / "ada")
    git(bare, "config", "http.receivepack", "false")
    with git_server(bare.parent) as server:
        registry = Registry.clone(f"{server.url}/registry.git", tmp_path / "grace")
        with pytest.raises(RegistryUnavailable, match=r"did not take the push.*403"):
            registry.register("NYC", HERE)


def test_a_push_whose_answer_was_lost_counts(
    registry: Registry, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        losing_answers(patch)
        assert registry.register("NYC", HERE) == registry.commit_sha
        assert log() == ["Begin the registry", "Registered: NYC at /data/nyc"]
        assert registry.register("NYC", HERE) is None


def test_a_push_of_which_nothing_is_known_can_be_run_again(
    registry: Registry, remote: Path, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
):
    away = Path(f"{remote}.away")
    with monkeypatch.context() as patch:
        losing_answers(patch, then=lambda: remote.rename(away))
        with pytest.raises(RegistryUnavailable, match=r"is not known.*Run the same again"):
            registry.register("NYC", HERE)
    away.rename(remote)
    assert registry.register("NYC", HERE) is None
    assert log() == ["Begin the registry", "Registered: NYC at /data/nyc"]


# ---- rewritten


@pytest.mark.parametrize("how", ["another commit", "an ancestor", "no branch", "another repository"])
def test_a_rewritten_history_is_reported_and_not_followed(
    how: str, registry: Registry, other: Registry, remote: Path, tmp_path: Path, git: Git
):
    registry.register("NYC", HERE)
    known = registry.commit_sha
    assert known is not None
    other.fetch()
    if how == "another commit":
        git(
            remote,
            "update-ref",
            "refs/heads/main",
            git(remote, "commit-tree", f"{known}^{{tree}}", "-m", "Rewritten").strip(),
        )
    elif how == "an ancestor":
        git(remote, "update-ref", "refs/heads/main", f"{known}^")
    elif how == "no branch":
        git(remote, "update-ref", "-d", "refs/heads/main")
    else:
        shutil.rmtree(remote)
        Registry.init(str(remote), tmp_path / "third")
    there = git(remote, "for-each-ref")
    for attempt in (registry.fetch, lambda: registry.register("LAX", Location.parse("/data/lax"))):
        if how == "an ancestor" and attempt == registry.fetch:
            continue
        with pytest.raises(RegistryConflict, match=rf"rewritten.*does not contain commit {known}.*as it was"):
            attempt()
    assert git(remote, "for-each-ref") == there
    assert registry.commit_sha == known
    assert registry.documents("NYC").ref.current == HERE


def test_a_lock_file_that_a_killed_git_left_is_named(
    registry: Registry, other: Registry, monkeypatch: pytest.MonkeyPatch
):
    other.register("NYC", HERE)
    monkeypatch.setattr(git_repository, "_ATTEMPTS", 3)
    lock = registry.path / "refs/remotes/origin/main.lock"
    lock.touch()
    with pytest.raises(RegistryConflict, match=r"main\.lock.*deleted by hand"):
        registry.fetch()
    lock.unlink()
    assert registry.fetch() == other.commit_sha


# ---- the clone


def test_an_identity_is_asked_for_by_name(registry: Registry, git_identity: Path, log: Callable[[], list[str]]):
    git_identity.write_text("")
    with pytest.raises(GovernanceError, match=r"git config --global user.name.*user.email"):
        registry.register("NYC", HERE)
    with pytest.raises(GovernanceError, match="does not know who you are"):
        registry.register("NYC", HERE, actor="Ada")
    assert log() == ["Begin the registry"]


def test_commits_are_signed_off_and_signed_where_the_user_signs(
    registry: Registry, remote: Path, git_identity: Path, git: Git, tmp_path: Path
):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    git_identity.write_text(
        git_identity.read_text() + f"\tsigningKey = {key}\n[commit]\n\tgpgSign = true\n[gpg]\n\tformat = ssh\n"
    )
    registry.register("NYC", HERE, reason="a first study")
    commit = git(remote, "cat-file", "commit", "main")
    assert "\ngpgsig -----BEGIN SSH SIGNATURE" in commit
    assert "\nauthor Ada Lovelace <ada@example.org> " in commit
    assert commit.endswith("\n\na first study\n\nSigned-off-by: Ada Lovelace <ada@example.org>\n")


def test_a_hooks_environment_does_not_lead_git_elsewhere(
    registry: Registry, tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch
):
    git(tmp_path, "init", "--quiet", "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere/.git/index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "elsewhere/.git/objects"))
    registry.register("NYC", HERE)
    assert Registry.clone(registry.remote, tmp_path / "third").projects() == ["NYC"]
    assert list((tmp_path / "elsewhere").iterdir()) == [tmp_path / "elsewhere/.git"]
    assert not any((tmp_path / "elsewhere/.git/objects").glob("??"))


def test_a_folder_that_is_gone_below_the_process_does_not_matter(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert registry.register("NYC", HERE) is not None


def test_what_is_no_clone_is_left_alone(registry: Registry, tmp_path: Path, git: Git):
    with pytest.raises(GovernanceError, match="no bare clone"):
        Registry.open(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    for path in (tmp_path / "full", tmp_path / "full/file"):
        with pytest.raises(GovernanceError, match="no empty folder"):
            Registry.clone(registry.remote, path)
    assert (tmp_path / "full/file").read_text() == "mine"
    git(tmp_path, "init", "--bare", "--quiet", "empty")
    with pytest.raises(GovernanceError, match="no clone"):
        Registry.open(tmp_path / "empty")
    other = Registry.init(str(tmp_path / "second.git"), tmp_path / "second")
    with pytest.raises(GovernanceError, match="is a clone of"):
        Registry.clone(registry.remote, other.path)
    assert Registry.clone(registry.remote, registry.path).commit_sha == registry.commit_sha


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_clone_of_another_user_is_not_obeyed_unless_it_is_trusted(registry: Registry, git_identity: Path):
    os.chown(registry.path, 12345, -1)
    with pytest.raises(GovernanceError, match=r"another user.*safe\.directory"):
        Registry.open(registry.path)
    git_identity.write_text(git_identity.read_text() + f"[safe]\n\tdirectory = {registry.path}\n")
    assert Registry.open(registry.path).projects() == []


def test_a_repository_that_is_no_registry_is_not_taken_for_one(bare: Path, tmp_path: Path, git: Git):
    git(tmp_path, "clone", "--quiet", str(bare), str(tmp_path / "work"))
    (tmp_path / "work/app.py").write_text("print()")
    git(tmp_path / "work", "add", "app.py")
    git(tmp_path / "work", "commit", "--quiet", "--message", "An application")
    git(tmp_path / "work", "push", "--quiet", "origin", "HEAD:main")
    with pytest.raises(GovernanceError, match=r"no registry.*gov init"):
        Registry.clone(str(bare), tmp_path / "ada")
    assert not (tmp_path / "ada").exists()
    registry = Registry.init(str(bare), tmp_path / "ada")
    assert registry.tree().paths() == ["app.py", "registry.json"]


def test_a_newer_registry_asks_for_an_upgrade(registry: Registry, by_hand: Callable[..., None]):
    by_hand(lambda work: (work / "registry.json").write_text('{"schema_version": 2}'))
    registry.fetch()
    with pytest.raises(GovernanceError, match="newer dagster-versioned"):
        registry.projects()
    with pytest.raises(GovernanceError, match="newer dagster-versioned"):
        registry.register("NYC", HERE)


def test_no_git_on_this_machine_is_said(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GovernanceError, match="no `git` on this machine"):
        registry.projects()


def test_a_remote_has_one_clone_however_its_folder_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    spelled = ["registry.git", "./registry.git", f"{tmp_path}/registry.git", f"file://{tmp_path}/registry.git"]
    assert len({cached_clone("registries", text) for text in spelled}) == 1
    assert cached_clone("registries", "other.git") != cached_clone("registries", "registry.git")
    with pytest.raises(InvalidInput, match="remote helper"):
        cached_clone("mirrors", "ext::sh -c x")
