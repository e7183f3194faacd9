"""One git command on a bare repository, with an end: it is killed with all that it started when its time is up.

Git runs as GitPython runs it, without a work tree, a terminal, hooks, or a protocol that was not allowed.
"""

import os
import re
import signal
import subprocess
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import cast

from dagster_versioned.errors import GovernanceError
from dagster_versioned.governance.git_remote import without_credentials

TIMEOUT_SECONDS = 60.0
"""How long one git command may take."""

_GRACE_SECONDS = 2.0
# A clone that somebody was given may hold hooks; ours has none, and needs none.
_SETTINGS = ("-c", "gc.autoDetach=false", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false")
_MESSAGE = re.compile(r"^(?:fatal|error|remote|ssh|kex_\w+|Permission denied|Host key).*$|^ ! .*$", re.MULTILINE)


class GitFailure(Exception):
    """A git command that ended badly; ``status`` is ``None`` where its time was up."""

    def __init__(self, status: int | None, stderr: str) -> None:
        super().__init__(status, stderr)
        self.status = status
        self.stderr = stderr

    def __str__(self) -> str:
        if self.status is None:
            return self.stderr
        messages = [line.strip() for line in _MESSAGE.findall(self.stderr)] or self.stderr.strip().splitlines()[-3:]
        return without_credentials("; ".join(messages))[:600].rstrip(".") or f"git ended with {self.status}"


def run_git(
    path: Path,
    arguments: Collection[str],
    *,
    data: bytes | None = None,
    environment: dict[str, str] | None = None,
    timeout: float,
) -> bytes:
    """Run git on a bare repository; its output. Raises `GitFailure`, `GovernanceError` where there is no git."""
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
        raise GitFailure(None, f"no end after {timeout:g} seconds") from None
    finally:
        _end(process)
    if process.returncode != 0:
        raise GitFailure(process.returncode, errors.decode(errors="replace"))
    return output


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is still running of a command; gently first, so that git takes its lock files away."""
    if process.poll() is not None:
        return
    # The second for all that outlive the first: git may have gone, and left a helper that does not heed it.
    for ending, grace in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _no_git() -> GovernanceError:
    return GovernanceError("There is no `git` on this machine. Nothing was changed. Install it.")
