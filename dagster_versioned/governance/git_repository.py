"""A bare clone of one branch of a remote, read and changed object by object.

There is never a work tree, so nothing in a commit (a link, a hook, an attribute, a submodule) can act on this machine.
Git runs as GitPython runs it, each command with an end: it is killed with all that it started when its time is up.
"""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self, TypeVar, cast

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dagster_versioned.errors import GovernanceError, RegistryConflict, RegistryUnavailable
from dagster_versioned.governance.git_remote import RemoteUrl, remote_url, without_credentials
from dagster_versioned.storage.keys import check_key

T = TypeVar("T")

BRANCH = "main"
TIMEOUT_SECONDS = 60.0
"""How long one git command may take."""
MAX_BLOB_BYTES = 1 << 28
"""What is larger is no document; never read."""

_TRACKING = f"refs/remotes/origin/{BRANCH}"
_REMOTE_REF = f"refs/heads/{BRANCH}"
_FETCHED = "dagster-versioned-fetched"
_LOCK = "dagster-versioned.lock"
_ATTEMPTS = 40
_GRACE_SECONDS = 2.0
_CLOCKS_APART = timedelta(minutes=5)
_BLOB_MODE = "100644"
_KINDS = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a folder"}
# A clone that somebody was given may hold hooks; ours has none, and needs none.
_SETTINGS = ("-c", "gc.autoDetach=false", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")
_MESSAGE = re.compile(r"^(?:fatal|error|remote|ssh|kex_\w+|Permission denied|Host key).*$|^ ! .*$", re.MULTILINE)
_LOCKED = re.compile(r"cannot lock ref|failed to update ref|\.lock': File exists|incorrect old value", re.IGNORECASE)


class _LostRaceError(Exception):
    """Somebody else was first, or is at it: look again and decide anew."""


class _Failure(Exception):
    """A git command that ended badly; ``status`` is ``None`` where its time was up."""

    def __init__(self, status: int | None, stderr: str) -> None:
        super().__init__(status, stderr)
        self.status = status
        self.stderr = stderr

    def __str__(self) -> str:
        if self.status is None:
            return self.stderr
        said = [line.strip() for line in _MESSAGE.findall(self.stderr)] or self.stderr.strip().splitlines()[-3:]
        return without_credentials("; ".join(said))[:600].rstrip(".") or f"git ended with {self.status}"


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: str
    oid: str


class Tree:
    """The files of one commit (``sha``; ``None``: of none), and changes to them that are not yet a commit."""

    def __init__(self, repository: "GitRepository", sha: str | None) -> None:
        self._repository = repository
        self.sha = sha
        self._entries: dict[str, _Entry] | None = None
        self._changes: dict[str, bytes | None] = {}

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, ``None`` where there is none. Raises as `read_all` does."""
        return self.read_all([path])[path]

    def read_all(self, paths: Iterable[str], *, at_most: int = MAX_BLOB_BYTES) -> dict[str, bytes | None]:
        """The bytes of files, ``None`` where there is none.

        Raises `GovernanceError` for what is no plain file (a link, a submodule, something executable, a folder), and,
        unread, for more than ``at_most`` bytes.
        """
        found: dict[str, bytes | None] = {}
        oids: dict[str, str] = {}
        for path in paths:
            found[path] = self._changes.get(path)
            entry = None if path in self._changes else self._file(path)
            if entry is not None:
                oids[path] = entry.oid
        sizes = self._repository.sizes(set(oids.values()))
        for path, oid in oids.items():
            if sizes[oid] > at_most:
                raise self._refused(path, f"a file of {sizes[oid]} bytes", f"one of at most {at_most}")
        blobs = self._repository.blobs(sizes)
        return found | {path: blobs[oid] for path, oid in oids.items()}

    def paths(self, folder: str = "") -> list[str]:
        """The paths of all below a folder that is no folder itself, sorted; of any kind, so `read` may refuse some."""
        prefix = f"{folder}/" if folder else ""
        there = {path for path, entry in self._listing().items() if entry.mode != "040000"}
        there |= {path for path, data in self._changes.items() if data is not None}
        gone = {path for path, data in self._changes.items() if data is None}
        return sorted(path for path in there - gone if path.startswith(prefix))

    def write(self, path: str, data: bytes | None) -> None:
        """Give a file other bytes; ``None``: remove it. Raises `InvalidName`."""
        self._changes[check_key(path)] = data

    def changes(self) -> dict[str, bytes | None]:
        """What was written here and differs from the commit."""
        committed = Tree(self._repository, self.sha)
        committed._entries = self._listing()
        return {path: data for path, data in self._changes.items() if not committed.holds(path, data)}

    def holds(self, path: str, data: bytes | None) -> bool:
        """Whether a path is a plain file with these bytes; with ``None``, whether nothing is there."""
        try:
            entry = self._file(path)
        except GovernanceError:
            return False
        if entry is None or data is None or path in self._changes:
            return self.read(path) == data
        return entry.oid == _blob_id(data, entry.oid)

    def _file(self, path: str) -> _Entry | None:
        listing = self._listing()
        parts = path.split("/")
        for end in range(1, len(parts)):
            above = listing.get("/".join(parts[:end]))
            if above is None:
                return None
            if above.mode != "040000":
                raise self._refused("/".join(parts[:end]), _KINDS.get(above.mode, "a file"), "a folder")
        entry = listing.get(path)
        if entry is None:
            return None
        if entry.mode != _BLOB_MODE:
            raise self._refused(path, _KINDS.get(entry.mode, f"a file of mode {entry.mode}"), "a plain file")
        return entry

    def _refused(self, path: str, what: str, expected: str) -> GovernanceError:
        return GovernanceError(
            f"{path!a:.300} in commit {self.sha} of {self._repository.remote} is {what}, not {expected}. It was not "
            "read. Somebody put it there by hand: `git log` shows who; revert that commit."
        )

    def _listing(self) -> dict[str, _Entry]:
        if self._entries is None:
            self._entries = self._repository.listing(self.sha) if self.sha is not None else {}
        return self._entries


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
            url = _run(path, ["config", "--local", "--get", "remote.origin.url"], timeout=timeout).decode().rstrip("\n")
        except _Failure as failure:
            raise GovernanceError(f"{path} is no clone of a git repository: {failure}. Nothing was changed.") from None
        return cls(path, remote_url(url), timeout=timeout)

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
                _run(making, ["config", f"remote.origin.{name}", value], timeout=timeout)
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

        ``None`` if never, and if that is said to be in the future: a clock jumped, and nobody knows.
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
        return self._alone(lambda: self._change(compute))

    def would_change(self, compute: Callable[[Tree], str | None]) -> bool:
        """Whether `change` would make a commit; nothing is made or pushed. Raises as `change` does until then."""
        tree = Tree(self, self.fetch())
        return compute(tree) is not None and bool(tree.changes())

    def identity(self) -> str:
        """The user's git identity, ``Name <mail>``. Raises `GovernanceError` where git knows none."""
        try:
            said = self._git("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT").decode(errors="replace")
        except _Failure:
            raise GovernanceError(
                "Git does not know who you are, and what is recorded says who did it. Nothing was changed. Tell it: "
                "`git config --global user.name 'Your Name'` and `git config --global user.email you@example.org`."
            ) from None
        return said.rsplit(">", 1)[0] + ">"

    def listing(self, sha: str) -> dict[str, _Entry]:
        """Every entry of a commit, folders too, by path."""
        entries: dict[str, _Entry] = {}
        for line in self._read("ls-tree", "-r", "-t", "-z", "--full-tree", sha).split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, _, oid = facts.decode().split()
            entries[os.fsdecode(path)] = _Entry(mode, oid)
        return entries

    def sizes(self, oids: Collection[str]) -> dict[str, int]:
        """The sizes of objects in bytes."""
        if not oids:
            return {}
        answers = self._read("cat-file", "--batch-check", data=_lines(oids)).decode().splitlines()
        return {oid: self._size(oid, answer.split()) for oid, answer in zip(oids, answers, strict=True)}

    def blobs(self, oids: Collection[str]) -> dict[str, bytes]:
        """The bytes of objects."""
        if not oids:
            return {}
        data, at = self._read("cat-file", "--batch", data=_lines(oids)), 0
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
        except _Failure as failure:
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
        with tempfile.TemporaryDirectory(prefix="dagster-versioned-") as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            if parent is not None:
                self._git("read-tree", parent, environment=index)
            lines = [b"0 %s\t%s\0" % (b"0" * 40, path.encode()) for path, data in changes.items() if data is None]
            for path, oid in self._store({p: data for p, data in changes.items() if data is not None}, Path(folder)):
                lines.append(b"%s %s\t%s\0" % (_BLOB_MODE.encode(), oid, path.encode()))
            self._git("update-index", "-z", "--index-info", data=b"".join(lines), environment=index)
            tree = self._git("write-tree", environment=index).decode().strip()
        parents = ["-p", parent] if parent is not None else []
        options = ["-c", "user.useConfigOnly=true", "-c", "i18n.commitEncoding=UTF-8"]
        signature = ["-S"] if self._wants_signature() else []
        try:
            return self._git(*options, "commit-tree", *signature, *parents, tree, data=signed.encode()).decode().strip()
        except _Failure as failure:
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
        except _Failure:
            return False

    def _push(self, sha: str, parent: str | None) -> None:
        # The lease holds the remote to the very commit that this one was computed from.
        lease = f"--force-with-lease={_REMOTE_REF}:{parent or ''}"
        try:
            self._git("push", "--porcelain", "--no-progress", lease, "--", str(self.remote), f"{sha}:{_REMOTE_REF}")
        except _Failure as failure:
            self._settle(sha, parent, failure)
        self._git("update-ref", _TRACKING, sha)
        self._note_fetch(datetime.now(UTC))

    def _settle(self, sha: str, parent: str | None, failure: _Failure) -> None:
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
        except _Failure:
            return False
        return True

    def _tracked(self) -> str | None:
        try:
            return self._git("rev-parse", "--verify", "--quiet", _TRACKING).decode().strip()
        except _Failure as failure:
            if failure.status == 1:
                return None
            raise self._damaged(failure) from None

    def _rewritten(self) -> RegistryConflict:
        return RegistryConflict(
            f"The history of {self.remote} was rewritten: its {BRANCH} does not contain commit {self._tracked()}, "
            f"which was fetched before. The clone {self.path} is as it was, and nothing was recorded. Ask who pushed "
            "with force; if that was meant, delete the clone and clone again."
        )

    def _damaged(self, failure: _Failure) -> GovernanceError:
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
        except _Failure as failure:
            raise self._damaged(failure) from None

    def _git(self, *arguments: str, data: bytes | None = None, environment: dict[str, str] | None = None) -> bytes:
        allowed = {"GIT_ALLOW_PROTOCOL": self.remote.protocols, **(environment or {})}
        return _run(self.path, arguments, data=data, environment=allowed, timeout=self.timeout)


def _blob_id(data: bytes, like: str) -> str:
    """The object id that git gives to bytes; of the same kind of hash as another id."""
    algorithm = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return algorithm(b"blob %d\0" % len(data) + data).hexdigest()


def _lines(oids: Iterable[str]) -> bytes:
    return "".join(f"{oid}\n" for oid in oids).encode()


def make_bare(path: Path, *, timeout: float = TIMEOUT_SECONDS) -> None:
    """Make an empty bare repository, without the hooks of any template; an existing one is left as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _run(path, ["init", "--bare", "--quiet", "--template=", f"--initial-branch={BRANCH}"], timeout=timeout)
    except (_Failure, OSError) as failure:
        raise GovernanceError(f"No repository could be made in {path}: {failure}. Nothing was recorded.") from None


def _check_owner(path: Path) -> None:
    """Refuse another user's clone, as git does by itself where it is not told the folder: its configuration may name
    commands."""
    if path.stat().st_uid == os.geteuid():
        return
    with suppress(_Failure):
        safe = (
            _run(path, ["config", "--global", "--get-all", "safe.directory"], timeout=TIMEOUT_SECONDS)
            .decode()
            .split("\n")
        )
        if "*" in safe or str(path) in safe:
            return
    raise GovernanceError(
        f"{path} belongs to another user, whose configuration git would obey. Nothing was run. Clone the registry into "
        f"a folder of your own, or trust it: `git config --global --add safe.directory {path}`."
    )


def _run(
    path: Path,
    arguments: Collection[str],
    *,
    data: bytes | None = None,
    environment: dict[str, str] | None = None,
    timeout: float,
) -> bytes:
    """Run git on a bare repository; its output. Raises `_Failure`, `GovernanceError` where there is no git."""
    try:
        from git import Git
        from git.exc import GitCommandNotFound
    except ImportError:  # GitPython looks for git when it is imported
        raise _no_git() from None
    settings = {
        # A hook's environment names the repository it runs in; ours is another.
        "GIT_DIR": str(path),
        "GIT_COMMON_DIR": str(path),
        "GIT_OBJECT_DIRECTORY": str(path / "objects"),
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GCM_INTERACTIVE": "never",
        "GIT_ALLOW_PROTOCOL": "none",
        **(environment or {}),
    }
    # In a session of its own: without a terminal nobody is asked for a password, and its end is the end of them all.
    try:
        started = Git(path).execute(
            ["git", *_SETTINGS, *arguments],
            istream=subprocess.PIPE,
            as_process=True,
            env=settings,
            start_new_session=True,
        )
    except GitCommandNotFound:
        raise _no_git() from None
    process = cast("subprocess.Popen[bytes]", started.proc)
    try:
        output, errors = process.communicate(data, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise _Failure(None, f"no end after {timeout:g} seconds") from None
    finally:
        _end(process)
    if process.returncode != 0:
        raise _Failure(process.returncode, errors.decode(errors="replace"))
    return output


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is still running of a command; gently first, so that git takes its lock files away."""
    if process.poll() is not None:
        return
    for ending, grace in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            break
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _no_git() -> GovernanceError:
    return GovernanceError("There is no `git` on this machine. Nothing was changed. Install it.")
