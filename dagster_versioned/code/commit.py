"""Which commit of a git repository code is of, as far as its files say so. No hook and no filter of it is run."""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

CLAIMED_SHA, CLAIMED_URL = "DAGSTER_CLOUD_GIT_SHA", "DAGSTER_CLOUD_GIT_URL"
_QUIETLY = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
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
    folder = paths[0].parent
    top, sha = _git(folder, "rev-parse", "--show-toplevel", "HEAD").splitlines()
    root = Path(top).resolve()
    names = {path: _name(path, root) for path in paths}
    listed = _git(root, "ls-tree", "-z", "--full-tree", "HEAD", "--", *names.values()).split("\0")
    entries = [line.partition("\t") for line in listed if line]
    blobs = {name: entry.split()[2] for entry, _, name in entries}
    modified = [name for path, name in names.items() if not _is_blob(path, blobs.get(name))]
    url = _git(root, "config", "--local", "--default", "", "--get", "remote.origin.url").strip()
    return CommitOfCode(sha, remote_place(url), sorted(modified))


def _git(folder: Path, *words: str) -> str:
    """What git says; none of these commands looks for changes, runs a hook or asks a remote.

    GitPython takes ten times as long to be imported as all of them together.
    """
    env = {**os.environ, **_QUIETLY}
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *words]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=10).stdout


def _is_blob(path: Path, sha: str | None) -> bool:
    data = path.read_bytes()
    # Where git was asked for it, files have other ends of lines than what is committed.
    return sha is not None and sha in [_blob_sha(each, sha) for each in (data, data.replace(b"\r\n", b"\n"))]


def _blob_sha(data: bytes, like: str) -> str:
    """What git calls a file with these bytes, by the kind of hash that the repository has."""
    kind = "sha1" if len(like) == hashlib.sha1(usedforsecurity=False).digest_size * 2 else "sha256"
    return hashlib.new(kind, b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _name(path: Path, root: Path) -> str:
    """How the repository calls a file; one that is outside of it has its own name, which is not committed."""
    path = path.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


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


def write_out(commit: str, remote: str | None, place: Path, folder: Path) -> Path:
    """Write the files of a commit, as they are committed, below an empty folder; returns where ``place`` is in them.

    ``place`` is in a clone that has the commit on a branch of its own, or of the remote that it follows, if that is at
    the recorded place ``remote``: nothing is fetched, and no hook, filter or submodule is heeded. Raises `ValueError`
    with why it cannot be.
    """
    if not _SHA.fullmatch(commit):
        raise ValueError(f"{commit!a:.80} is no commit")
    try:
        root = Path(_git(place, "rev-parse", "--show-toplevel").strip()).resolve()
    except (subprocess.SubprocessError, OSError) as error:
        raise ValueError(f"{place} is in no git repository that can be read") from error
    files = _files_of(commit, remote, root)
    for name, data in zip(files, _blobs(root, list(files.values())), strict=True):
        target = folder / name
        if not target.resolve().is_relative_to(folder.resolve()) or ".git" in target.parts:
            raise ValueError(f"the commit has a file {name!a:.100}, which leads out of it")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    inside = folder / place.resolve().relative_to(root)
    if not inside.is_dir():
        raise ValueError(f"the commit {commit[:12]} has no folder {place.name}")
    return inside


def _files_of(commit: str, remote: str | None, root: Path) -> dict[str, str]:
    """The files of a commit that is to be trusted, and their SHAs; links and submodules lead out of it."""
    try:
        branches = _git(root, "for-each-ref", "--format=%(refname)", "--contains", commit, "refs/heads", "refs/remotes")
        trusted = _trusted_remote(root, remote)
        if not any(name.startswith(("refs/heads/", *trusted)) for name in branches.split()):
            raise ValueError(f"no branch here, nor of the remote that this one follows, has the commit {commit[:12]}")
        listed = _git(root, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    except (subprocess.SubprocessError, OSError) as error:
        is_shallow = (root / ".git" / "shallow").exists()
        more = ", which is shallow: git fetch --unshallow" if is_shallow else ""
        raise ValueError(f"the repository at {root} does not have the commit {commit[:12]}{more}") from error
    files: dict[str, str] = {}
    for line in filter(None, listed):
        entry, _, name = line.partition("\t")
        mode, kind, sha = entry.split()
        if kind == "blob" and mode in ("100644", "100755"):
            files[name] = sha
    return files


def _trusted_remote(root: Path, recorded: str | None) -> tuple[str, ...]:
    """Where the branches are of the remote that the branch here follows (else ``origin``).

    Which that is, nobody but whoever has the clone says; what is recorded can rule it out alone.
    """
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD").strip()
    name = _git(root, "config", "--local", "--default", "origin", "--get", f"branch.{branch}.remote").strip()
    place = remote_place(_git(root, "config", "--local", "--default", "", "--get", f"remote.{name}.url").strip())
    return (f"refs/remotes/{name}/",) if recorded in (None, place) else ()


def _blobs(root: Path, shas: Sequence[str]) -> Iterator[bytes]:
    """The bytes of blobs, by one process, which fetches none. Raises `ValueError` where one is not there."""
    asked = "".join(f"{sha}\n" for sha in shas).encode()
    try:
        said = subprocess.run(
            ["git", "cat-file", "--batch"],
            cwd=root,
            env={**os.environ, **_QUIETLY},
            input=asked,
            check=True,
            capture_output=True,
            timeout=600,
        ).stdout
    except (subprocess.SubprocessError, OSError) as error:
        raise ValueError(f"git could not read the files of the commit ({type(error).__name__})") from error
    at = 0
    for sha in shas:
        end = said.index(b"\n", at)
        header = said[at:end].split()
        if len(header) != 3:
            raise ValueError(f"the repository does not have the file {sha[:12]} of the commit, and nothing is fetched")
        size = int(header[2])
        yield said[end + 1 : end + 1 + size]
        at = end + size + 2
