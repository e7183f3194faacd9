"""Which commit code is of, whatever the repository is like; nothing of it is run."""

import subprocess
from pathlib import Path

import pytest

from dagster_versioned.code.commit import commit_of, remote_place

SOURCE = "shop/assets.py"


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "shop").mkdir(parents=True)
    (folder / SOURCE).write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def sha_of(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD").strip()


def test_files_that_are_not_as_committed_are_named(repository: Path) -> None:
    other = repository / "shop/new.py"
    other.write_text("y = 1\n")
    outside = repository.parent / "outside.py"
    outside.write_text("z = 1\n")
    (repository / SOURCE).write_text("x = 2\n")
    found = commit_of([str(repository / SOURCE), str(other), str(outside)], {})
    assert found is not None
    assert (found.sha, found.modified) == (sha_of(repository), ["outside.py", SOURCE, "shop/new.py"])


def test_other_ends_of_lines_are_no_change(repository: Path) -> None:
    (repository / SOURCE).write_bytes(b"x = 1\r\n")
    found = commit_of([str(repository / SOURCE)], {})
    assert found is not None
    assert found.modified == []


def test_a_worktree_a_shallow_clone_and_a_submodule(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "shallow")
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", repository.as_uri(), "inner")
    for folder in (tmp_path / "tree", tmp_path / "shallow", outer / "inner"):
        found = commit_of([str(folder / SOURCE)], {})
        assert found is not None
        assert (found.sha, found.modified) == (sha_of(repository), [])


def test_no_repository_is_none_unless_one_is_claimed(tmp_path: Path) -> None:
    source = tmp_path / "assets.py"
    source.write_text("x = 1\n")
    assert commit_of([str(source)], {}) is None
    git(tmp_path, "init", "-q")  # without a commit
    assert commit_of([str(source)], {}) is None
    sha = "a" * 40
    claimed = commit_of(
        [str(source)], {"DAGSTER_CLOUD_GIT_SHA": sha, "DAGSTER_CLOUD_GIT_URL": "https://u:canary@example.com/a.git"}
    )
    assert claimed is not None
    assert (claimed.sha, claimed.remote, claimed.is_claimed) == (sha, "example.com/a.git", True)
    assert commit_of([str(source)], {"DAGSTER_CLOUD_GIT_SHA": "$(canary)"}) is None


def test_nothing_of_a_hostile_repository_is_run(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    for hook in ("post-checkout", "post-index-change", "fsmonitor-watchman", "reference-transaction"):
        path = repository / ".git/hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {trap}\n")
        path.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py filter=trap diff=trap\n")
    for name in ("core.fsmonitor", "filter.trap.clean", "filter.trap.smudge", "diff.trap.textconv", "core.pager"):
        git(repository, "config", name, f"touch {trap}")
    git(repository, "config", "alias.ls-tree", f"!touch {trap}")
    trap.unlink(missing_ok=True)
    found = commit_of([str(repository / SOURCE)], {})
    assert found is not None
    assert not trap.exists()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("git@github.com:acme/shop.git", "github.com/acme/shop.git"),
        ("https://token:x-oauth@github.com/acme/shop.git?key=canary#canary", "github.com/acme/shop.git"),
        ("ssh://git@example.com:2222/acme/shop.git", "example.com/acme/shop.git"),
        ("/srv/git/shop.git", None),
        ("file:///srv/git/shop.git", None),
        ("https://[canary", None),
        ("", None),
    ],
)
def test_of_a_remote_its_host_and_path_are_kept(url: str, place: str | None) -> None:
    assert remote_place(url) == place
