"""A bare clone of one branch of a remote, read and changed object by object.

There is never a work tree, so nothing in a commit (a link, a hook, an attribute, a submodule) can act on this machine.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self, TypeVar

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dagster_versioned.errors import GovernanceError, RegistryConflict, RegistryUnavailable
from dagster_versioned.governance.git_command import TIMEOUT_SECONDS, GitFailure, run_git
from dagster_versioned.governance.git_remote import RemoteUrl, remote_url
from dagster_versioned.governance.git_tree import BLOB_MODE, Entry, Tree
from dagster_versioned.storage.temporary import TemporaryFolder
from dagster_versioned.storage.wrappers import READ_ONLY_VARIABLE

T = TypeVar("T")

BRANCH = "main"
_TRACKING = f"refs/remotes/origin/{BRANCH}"
_REMOTE_REF = f"refs/heads/{BRANCH}"
_FETCHED = "dagster-versioned-fetched"
_LOCK = "dagster-versioned.lock"
_OID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_ATTEMPTS = 40
_CLOCKS_APART = timedelta(minutes=5)
_LOCKED = re.compile(r"cannot lock ref|failed to update ref|\.lock': File exists|incorrect old value", re.IGNORECASE)


class _LostRaceError(Exception):
    """Somebody else was first, or is at it: look again and decide anew."""


class GitRepository:
    """A bare clone at ``path`` of the branch ``main`` of ``remote``.

    Cheap to make, picklable, and shared by threads and processes: a lock in the clone lets one at a time fetch or push;
    to read takes no lock. ``timeout`` is in seconds, for each git command.
    """

    def __init__(self, path: Path, remote: RemoteUrl, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.path = path
        self.remote = remote
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"GitRepository({str(self.path)!r}, {str(self.remote)!r})"

    @classmethod
    def open(cls, path: Path, *, timeout: float = TIMEOUT_SECONDS) -> Self:
        """An existing clone; no network. Raises `GovernanceError`, `InvalidInput` where its remote is not allowed."""
        path = path.expanduser().absolute()
        if not (path / "HEAD").is_file():
            raise GovernanceError(
                f"{path} is no bare clone of a git repository. Nothing was changed. Clone the registry there: "
                "`dagster-versioned gov pull`."
            )
        _check_owner(path)
        try:
            url = run_git(path, ["config", "--local", "--get", "remote.origin.url"], timeout=timeout)
        except GitFailure as failure:
            raise GovernanceError(f"{path} is no clone of a git repository: {failure}. Nothing was changed.") from None
        return cls(path, remote_url(url.decode().rstrip("\n")), timeout=timeout)

    @classmethod
    def clone(cls, remote: str | RemoteUrl, path: Path, *, timeout: float = TIMEOUT_SECONDS) -> Self:
        """Clone a remote, which may be empty, into a folder that is empty or not there; all or nothing.

        Raises `GovernanceError` where something else is at ``path``, and as `fetch` does.
        """
        url = remote if isinstance(remote, RemoteUrl) else remote_url(remote)
        path = path.expanduser().absolute()
        if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
            raise GovernanceError(f"{path} is there already, and no empty folder. It was left as it is. Use another.")
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            make_bare(making, timeout=timeout)
            for name, value in (("url", str(url)), ("fetch", f"{_REMOTE_REF}:{_TRACKING}")):
                run_git(making, ["config", f"remote.origin.{name}", value], timeout=timeout)
            cls(making, url, timeout=timeout).fetch()
            try:
                making.rename(path)
            except OSError:
                return cls._reopen(url, path, timeout)  # somebody else cloned to it meanwhile
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return cls(path, url, timeout=timeout)

    @classmethod
    def open_or_clone(cls, remote: str | RemoteUrl, path: Path, *, timeout: float = TIMEOUT_SECONDS) -> Self:
        """The clone of a remote at a path, made where there is none. Raises as `open` and `clone` do."""
        url = remote if isinstance(remote, RemoteUrl) else remote_url(remote)
        if (path.expanduser() / "HEAD").is_file():
            return cls._reopen(url, path, timeout)
        return cls.clone(url, path, timeout=timeout)

    @classmethod
    def _reopen(cls, url: RemoteUrl, path: Path, timeout: float) -> Self:
        clone = cls.open(path, timeout=timeout)
        if clone.remote != url:
            raise GovernanceError(
                f"{path} is a clone of {clone.remote}, not of {url}. It was left as it is. Use another folder."
            )
        return clone

    @property
    def sha(self) -> str | None:
        """The commit that was fetched last; ``None`` where the remote was empty."""
        return self._tracked()

    @property
    def fetched_at(self) -> datetime | None:
        """When the clone was last brought up to date, in UTC.

        ``None`` if never, and if that is in the future: a clock jumped, and nobody knows.
        """
        try:
            at = datetime.fromisoformat((self.path / _FETCHED).read_text())
        except (OSError, ValueError):
            return None
        if at.tzinfo is None or at > datetime.now(UTC) + _CLOCKS_APART:
            return None
        return at

    def tree(self) -> Tree:
        """The files of the commit that was fetched last."""
        return Tree(self, self._tracked())

    def fetch(self) -> str | None:
        """Bring the clone up to date; returns the commit, ``None`` where the remote has none.

        Raises `RegistryUnavailable` where the remote does not answer in time, `RegistryConflict` where its history was
        rewritten. The clone is then as it was.
        """
        return self._alone(self._fetch)

    def change(self, compute: Callable[[Tree], str | None]) -> str | None:
        """Commit what ``compute`` writes into the newest tree, with the message it returns, and push it.

        ``compute`` may run several times, each time on a newer tree, so it must have no effect but on the tree. Returns
        the commit's SHA; ``None``, and there is no commit, where ``compute`` returns ``None`` or changes nothing.

        The commit is signed off by the user's git identity. Raises what ``compute`` does, `RegistryUnavailable` where
        the remote does not answer or refuses the push, `RegistryConflict` where its history was rewritten or every race
        was lost, and `GovernanceError` where git knows no identity. A push whose answer was lost counts by its effect.
        """
        if os.environ.get(READ_ONLY_VARIABLE):
            raise GovernanceError(f"In this process nothing is written ({READ_ONLY_VARIABLE}). Nothing was changed.")
        return self._alone(lambda: self._change(compute))

    def would_change(self, compute: Callable[[Tree], str | None]) -> bool:
        """Whether `change` would make a commit; nothing is made or pushed. Raises as `change` does until then."""
        tree = Tree(self, self.fetch())
        return compute(tree) is not None and bool(tree.changes())

    def identity(self) -> str:
        """The user's git identity, ``Name <mail>``. Raises `GovernanceError` where git knows none."""
        try:
            ident = self._git("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT").decode(errors="replace")
        except GitFailure:
            raise GovernanceError(
                "Git does not know who you are, and what is recorded says who did it. Nothing was changed. Tell it: "
                "`git config --global user.name 'Your Name'` and `git config --global user.email you@example.org`."
            ) from None
        return ident.rsplit(">", 1)[0] + ">"

    def line_changes(self, path: str) -> list[tuple[str, int, int]]:
        """Each commit that changed a text file, oldest first, with how many lines it added and removed.

        Raises `GovernanceError`.
        """
        if (tip := self._tracked()) is None:
            return []
        options = ("--reverse", "--first-parent", "--no-renames", "--format=%H", "--numstat")
        found: list[tuple[str, int, int]] = []
        sha = ""
        for line in self._read("--literal-pathspecs", "log", *options, tip, "--", path).decode().splitlines():
            if "\t" in line:
                added, removed, _ = line.split("\t", 2)
                found.append((sha, int(added), int(removed)))
            elif line:
                sha = line
        return found

    def listing(self, sha: str) -> dict[str, Entry]:
        """Every entry of a commit, folders too, by path."""
        entries: dict[str, Entry] = {}
        for line in self._read("ls-tree", "-r", "-t", "-z", "-l", "--full-tree", sha).split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, _, oid, size = facts.decode().split()
            entries[os.fsdecode(path)] = Entry(mode, oid, int(size) if size.isdecimal() else None)
        return entries

    def blobs(self, oids: Collection[str]) -> dict[str, bytes]:
        """The bytes of objects. Raises `GovernanceError` for one that is not there."""
        if not oids:
            return {}
        asked = "".join(f"{oid}\n" for oid in oids).encode()
        data, at = self._read("cat-file", "--batch", data=asked), 0
        found: dict[str, bytes] = {}
        for oid in oids:
            begin = data.index(b"\n", at) + 1
            end = begin + self._size(oid, data[at:begin].decode().split())
            found[oid], at = data[begin:end], end + 1
        return found

    def _size(self, oid: str, answer: Sequence[str]) -> int:
        if len(answer) != 3:
            raise GovernanceError(
                f"The clone {self.path} lacks the object {oid}. Nothing was changed. Delete the clone and clone again."
            )
        return int(answer[2])

    # ---- one attempt each, under the lock

    def _fetch(self) -> str | None:
        began = datetime.now(UTC)
        refspec = f"{_REMOTE_REF}:{_TRACKING}"  # without '+': a rewritten history is refused
        try:
            self._git("fetch", "--no-tags", "--no-progress", "--no-recurse-submodules", "--", str(self.remote), refspec)
        except GitFailure as failure:
            if _LOCKED.search(failure.stderr):
                raise _LostRaceError(str(failure)) from None
            if "[rejected]" in failure.stderr:
                raise self._rewritten() from None
            if "couldn't find remote ref" not in failure.stderr:
                raise RegistryUnavailable(
                    f"{self.remote} did not answer: {failure}. The clone is as it was. Check the address, the network "
                    "and your rights, and try again."
                ) from None
            if self._tracked() is not None:
                raise self._rewritten() from None
        self._note_fetch(began)
        return self._tracked()

    def _change(self, compute: Callable[[Tree], str | None]) -> str | None:
        parent = self._fetch()
        tree = Tree(self, parent)
        message = compute(tree)
        changes = tree.changes()
        if message is None or not changes:
            return None
        sha = self._commit(parent, changes, message)
        self._push(sha, parent)
        return sha

    def _commit(self, parent: str | None, changes: dict[str, bytes | None], message: str) -> str:
        signed = f"{message.rstrip()}\n\nSigned-off-by: {self.identity()}\n"
        with TemporaryFolder() as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            if parent is not None:
                self._git("read-tree", parent, environment=index)
            lines = [b"0 %s\t%s\0" % (b"0" * 40, path.encode()) for path, data in changes.items() if data is None]
            for path, oid in self._store({p: data for p, data in changes.items() if data is not None}, folder):
                lines.append(b"%s %s\t%s\0" % (BLOB_MODE.encode(), oid, path.encode()))
            self._git("update-index", "-z", "--index-info", data=b"".join(lines), environment=index)
            tree = self._git("write-tree", environment=index).decode().strip()
        parents = ["-p", parent] if parent is not None else []
        options = ["-c", "user.useConfigOnly=true", "-c", "i18n.commitEncoding=UTF-8"]
        signature = ["-S"] if self._wants_signature() else []
        try:
            return self._git(*options, "commit-tree", *signature, *parents, tree, data=signed.encode()).decode().strip()
        except GitFailure as failure:
            raise GovernanceError(f"The commit could not be made: {failure}. Nothing was recorded.") from None

    def _store(self, files: dict[str, bytes], folder: Path) -> Iterable[tuple[str, bytes]]:
        """Write blobs, by one process for all, through files in a folder; their object ids by path."""
        for number, data in enumerate(files.values()):
            (folder / str(number)).write_bytes(data)
        named = "".join(f"{folder / str(number)}\n" for number in range(len(files)))
        oids = self._git("hash-object", "-w", "--stdin-paths", "--no-filters", data=named.encode()).split()
        return zip(files, oids, strict=True)

    def _wants_signature(self) -> bool:
        try:
            return self._git("config", "--get", "--type=bool", "commit.gpgSign").strip() == b"true"
        except GitFailure:
            return False

    def _push(self, sha: str, parent: str | None) -> None:
        # The lease holds the remote to the very commit that this one was computed from.
        lease = f"--force-with-lease={_REMOTE_REF}:{parent or ''}"
        try:
            self._git("push", "--porcelain", "--no-progress", lease, "--", str(self.remote), f"{sha}:{_REMOTE_REF}")
        except GitFailure as failure:
            self._settle(sha, parent, failure)
        self._git("update-ref", _TRACKING, sha)
        self._note_fetch(datetime.now(UTC))

    def _settle(self, sha: str, parent: str | None, failure: GitFailure) -> None:
        """Return if a push that failed did land after all; else raise why it did not."""
        try:
            now = self._fetch()
        except RegistryUnavailable:
            raise RegistryUnavailable(
                f"Whether commit {sha[:12]} reached {self.remote} is not known: {failure}. Run the same again when the "
                "remote answers: what was recorded is not recorded twice."
            ) from None
        if now is not None and self._is_ancestor(sha, now):
            return
        if now != parent or _LOCKED.search(failure.stderr):
            raise _LostRaceError(str(failure)) from None
        raise RegistryUnavailable(
            f"{self.remote} did not take the push: {failure}. Nothing was recorded. Check your rights to the branch "
            f"{BRANCH}, and what its hooks say, and try again."
        ) from None

    # ---- plumbing

    def _is_ancestor(self, old: str, new: str) -> bool:
        try:
            self._git("merge-base", "--is-ancestor", old, new)
        except GitFailure:
            return False
        return True

    def _tracked(self) -> str | None:
        with suppress(OSError, UnicodeDecodeError):  # as git left it, unless it packed its refs: no call of git
            loose = (self.path / _TRACKING).read_text("ascii").strip()
            if _OID.fullmatch(loose):
                return loose
        try:
            return self._git("rev-parse", "--verify", "--quiet", _TRACKING).decode().strip()
        except GitFailure as failure:
            if failure.status == 1:
                return None
            raise self._damaged(failure) from None

    def _rewritten(self) -> RegistryConflict:
        return RegistryConflict(
            f"The history of {self.remote} was rewritten: its {BRANCH} does not contain commit {self._tracked()}, "
            f"which was fetched before. The clone {self.path} is as it was, and nothing was recorded. Ask who pushed "
            "with force; if that was meant, delete the clone and clone again."
        )

    def _damaged(self, failure: GitFailure) -> GovernanceError:
        return GovernanceError(
            f"The clone {self.path} cannot be read: {failure}. Nothing was changed. Delete it and clone again."
        )

    def _note_fetch(self, at: datetime) -> None:
        making = self.path / f"{_FETCHED}.{secrets.token_hex(4)}"
        making.write_text(at.isoformat())
        making.replace(self.path / _FETCHED)

    def _alone(self, work: Callable[[], T]) -> T:
        """Do it while nobody else on this machine does; again, while others at the remote are faster."""

        def attempt() -> T:
            with self._locked():
                return work()

        retrying = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.02, max=1),
            retry=retry_if_exception_type(_LostRaceError),
        )
        try:
            return retrying(attempt)
        except RetryError as error:
            reason = error.last_attempt.exception()
        raise RegistryConflict(
            f"{_ATTEMPTS} attempts at {self.remote} lost the race against others ({reason}). Nothing was recorded. Try "
            "again when fewer people push; a lock file that a killed git left must be deleted by hand."
        )

    @contextmanager
    def _locked(self) -> Generator[None]:
        # flock, which ends with whoever holds it; of the open file, so that it keeps threads apart too.
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self, *arguments: str, data: bytes | None = None) -> bytes:
        try:
            return self._git(*arguments, data=data)
        except GitFailure as failure:
            raise self._damaged(failure) from None

    def _git(self, *arguments: str, data: bytes | None = None, environment: dict[str, str] | None = None) -> bytes:
        allowed = {"GIT_ALLOW_PROTOCOL": self.remote.protocols, **(environment or {})}
        return run_git(self.path, arguments, data=data, environment=allowed, timeout=self.timeout)


def make_bare(path: Path, *, timeout: float = TIMEOUT_SECONDS) -> None:
    """Make an empty bare repository, without the hooks of any template; an existing one is left as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        run_git(path, ["init", "--bare", "--quiet", "--template=", f"--initial-branch={BRANCH}"], timeout=timeout)
    except (GitFailure, OSError) as failure:
        raise GovernanceError(f"No repository could be made in {path}: {failure}. Nothing was recorded.") from None


def _check_owner(path: Path) -> None:
    """Refuse another user's clone, as git does by itself where it is not given the folder: its configuration may name
    commands."""
    if path.stat().st_uid == os.geteuid():
        return
    with suppress(GitFailure):
        safe = (
            run_git(path, ["config", "--global", "--get-all", "safe.directory"], timeout=TIMEOUT_SECONDS)
            .decode()
            .split("\n")
        )
        if "*" in safe or str(path) in safe:
            return
    raise GovernanceError(
        f"{path} belongs to another user, whose configuration git would obey. Nothing was run. Clone the registry into "
        f"a folder of your own, or trust it: `git config --global --add safe.directory {path}`."
    )
