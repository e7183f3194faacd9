"""Drops the lines with which a JVM and Spark greet on stderr, and passes on all others."""

import os
import re
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from dagster_versioned.process_state import PROCESS

_GREETING = re.compile(
    rb"^WARNING: Using incubator modules"  # Spark asks for one itself, and no option of Java keeps the line back
    rb"|^Using Spark's default log4j profile"
    rb"|^Setting (default|Spark) log level to |^To adjust logging level use "
    rb"|WARN NativeCodeLoader: |WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
)


class Stderr:
    """Who holds its lock may set stderr: two threads that take turns would set it to each other's pipe in the end."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


@contextmanager
def without_greeting() -> Generator[None]:
    """A JVM that is started within it is not heard to greet.

    It keeps the stderr that it is started with for as long as it lives, so that is a pipe, and a thread passes on what
    comes out of it. A process that was started without stderr gets none.
    """
    if sys.stderr is None:
        yield
        return
    with PROCESS.of(Stderr).lock:
        yield from _through_a_pipe()


def _through_a_pipe() -> Generator[None]:
    sys.stderr.flush()
    stderr = os.dup(2)
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading, stderr), name="stderr of the JVM", daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)


def _pass_on(reading: int, stderr: int) -> None:
    """Pass on lines, and what ends as a progress bar does, until nobody can write any more."""
    rest = b""
    while data := os.read(reading, 1 << 16):
        *lines, rest = re.split(rb"(?<=[\r\n])", rest + data)
        for line in lines:
            if not _GREETING.search(line):
                _write(stderr, line)
    _write(stderr, rest)
    os.close(reading)
    os.close(stderr)


def _write(stderr: int, line: bytes) -> None:
    with suppress(OSError):  # nobody listens any more; but a JVM whose pipe is full would wait for ever
        os.write(stderr, line)
