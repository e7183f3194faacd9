"""Exit codes, and what a person sees when something fails: one sentence on stderr, a traceback only on request."""

import logging
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum

import typer

from dagster_versioned import errors
from dagster_versioned.cli.terminal import plain


class ExitCode(IntEnum):
    """What the process says to its caller; documented in docs/reference/cli.md."""

    OK = 0
    FINDINGS = 1
    INVALID = 2
    NOT_FOUND = 3
    INTEGRITY = 4
    STORAGE = 5
    CONFLICT = 6
    UNEXPECTED = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_CODES: tuple[tuple[type[errors.VersionedError], ExitCode], ...] = (
    # The first that fits wins: subclasses stand before their base.
    (errors.InvalidInput, ExitCode.INVALID),
    (errors.UnsupportedFeature, ExitCode.INVALID),
    (errors.VersionNotFound, ExitCode.NOT_FOUND),
    (errors.EnvironmentNotFound, ExitCode.NOT_FOUND),
    (errors.IntegrityError, ExitCode.INTEGRITY),
    (errors.ObjectNotFound, ExitCode.INTEGRITY),
    (errors.CommitConflict, ExitCode.CONFLICT),
    (errors.HeldHead, ExitCode.CONFLICT),
    (errors.AlreadyExists, ExitCode.CONFLICT),
    (errors.PreconditionFailed, ExitCode.CONFLICT),
    (errors.StorageError, ExitCode.STORAGE),
    (errors.RegistryUnavailable, ExitCode.STORAGE),
    (errors.RegistryConflict, ExitCode.CONFLICT),
    (errors.ProjectMoved, ExitCode.CONFLICT),
    (errors.GovernanceError, ExitCode.INTEGRITY),
)


def exit_code(error: errors.VersionedError) -> ExitCode:
    """The code of an error by its place in the tree."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.INVALID)


@contextmanager
def reported(*, debug: bool) -> Generator[None]:
    """Turn whatever ends the block into one message on stderr and `typer.Exit` with its code.

    ``debug`` adds the traceback. Warnings that the package logs meanwhile are shown in the same way.
    """
    logger = logging.getLogger("dagster_versioned")
    handler = _Notes(debug)
    logger.addHandler(handler)
    try:
        yield
    except errors.VersionedError as error:
        message = " ".join([str(error), *getattr(error, "__notes__", ())])
        raise _ended(message, exit_code(error), debug) from None
    except KeyboardInterrupt:
        raise _ended("Interrupted.", ExitCode.INTERRUPTED, debug) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.BROKEN_PIPE) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:  # noqa: BLE001 - the last stop before a person
        message = f"{type(error).__name__}: {error}. This is not expected; --debug shows where it came from."
        raise _ended(message, ExitCode.UNEXPECTED, debug) from None
    finally:
        logger.removeHandler(handler)


def _ended(message: str, code: ExitCode, debug: bool) -> typer.Exit:
    if debug:
        sys.stderr.write(traceback.format_exc())
    sys.stderr.write(f"Error: {plain(message)}\n" if code != ExitCode.INTERRUPTED else f"{message}\n")
    return typer.Exit(code)


class _Notes(logging.Handler):
    """Shows log records as sentences; their tracebacks only on request."""

    def __init__(self, debug: bool) -> None:
        super().__init__(logging.WARNING)
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{record.levelname.capitalize()}: {plain(record.getMessage())}\n")
        if self._debug and record.exc_info:
            sys.stderr.write("".join(traceback.format_exception(*record.exc_info)))
