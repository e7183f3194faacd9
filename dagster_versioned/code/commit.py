"""Which commit of a git repository code is of, as far as its files say so. No program is run, no hook, no filter."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CLAIMED_SHA, CLAIMED_URL = "DAGSTER_CLOUD_GIT_SHA", "DAGSTER_CLOUD_GIT_URL"
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_SCP = re.compile(r"(?:[^@/\s]+@)?([^:/\s]+):(?!//)(\S+)")


@dataclass(frozen=True)
class CommitOfCode:
    """A commit by its SHA, ``remote`` as host and path alone, and the files that are not as it has them.

    ``is_claimed``: the environment says so, and there is no repository to compare with.
    """

    sha: str
    remote: str | None = None
    modified: Sequence[str] = ()
    is_claimed: bool = False


def commit_of(sources: Iterable[str], environment: Mapping[str, str] = os.environ) -> CommitOfCode | None:
    """The commit that is checked out where source files are; ``None`` where none is known.

    Never raises: a repository that is bare, empty or broken is none.
    """
    paths = [Path(source) for source in sources]
    if not paths:
        return None
    try:
        found = _checked_out(paths)
    except Exception:  # noqa: BLE001 - whatever is wrong with a repository, code runs without one
        found = None
    if found is not None:
        return found
    claimed = environment.get(CLAIMED_SHA, "")
    if not _SHA.fullmatch(claimed):
        return None
    return CommitOfCode(claimed, remote_place(environment.get(CLAIMED_URL)), is_claimed=True)


def _checked_out(paths: Sequence[Path]) -> CommitOfCode | None:
    from git import GitDB, InvalidGitRepositoryError, Repo

    try:
        # This object database reads files; the other one starts git, which does what the repository's settings say.
        repository = Repo(paths[0].parent, odbt=GitDB, search_parent_directories=True)
    except InvalidGitRepositoryError:
        return None
    with repository:
        root = Path(str(repository.working_tree_dir))
        commit = repository.head.commit
        modified = [_name(path, root) for path in paths if not _is_as_committed(path, root, commit.tree)]
        with repository.config_reader("repository") as settings:
            url = settings.get_value('remote "origin"', "url", "")
        return CommitOfCode(commit.hexsha, remote_place(str(url)), sorted(modified))


def _is_as_committed(path: Path, root: Path, tree: Any) -> bool:
    try:
        blob = tree / path.resolve().relative_to(root.resolve()).as_posix()
    except (KeyError, ValueError):
        return False  # not committed, or of elsewhere
    data = path.read_bytes()
    # Where git was asked for it, files have other ends of lines than what is committed.
    return any(_blob_sha(each) == blob.hexsha for each in (data, data.replace(b"\r\n", b"\n")))


def _blob_sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _name(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.name


def remote_place(url: str | None) -> str | None:
    """Host and path of a remote, without who may read it: ``github.com/acme/shop.git``; ``None`` of a local one."""
    if not url:
        return None
    if "://" not in url:
        scp = _SCP.fullmatch(url)
        return f"{scp[1]}/{scp[2].lstrip('/')}" if scp else None
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}{parts.path}" if parts.hostname else None
    except ValueError:
        return None
