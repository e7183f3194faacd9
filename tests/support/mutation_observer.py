"""A process that loads projects, each in a child of its own, and says fingerprints and outputs of their functions.

It reads a request a line, and answers with a line; `Observer` starts it and asks it. Libraries are imported once,
before children are made.
"""

import asyncio
import contextlib
import copy
import dataclasses
import enum
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from dagster_versioned.code.fingerprint import CodeOptions, KnownCode, fingerprint_of

Cases = Sequence[tuple[str, Sequence[Any]]]
"""Functions as ``module:qualified.name``, and what each is called with: tuples of arguments, or what makes one."""

SECONDS_A_CALL = 3.0
SECONDS_A_PROJECT = 30.0
MEMORY = 3 << 30
FEW_LIBRARIES = 50


@dataclass
class Observation:
    """What a project is: ``error`` where it cannot be loaded; by function its digest, why it is opaque, its outputs."""

    error: str = ""
    digests: dict[str, str] = field(default_factory=dict[str, str])
    opaque: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    shown: dict[str, str] = field(default_factory=dict[str, str])
    lines: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    called: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    libraries: list[str] = field(default_factory=list[str])


class Observer:
    """The process, for a folder and its adapter: a file that defines ``CASES``; without one, see `_without_inputs`."""

    def __init__(
        self,
        folder: Path,
        paths: Sequence[str],
        modules: Sequence[str],
        adapter: Path | None,
        libraries: Sequence[str] = (),
    ) -> None:
        given = None if adapter is None else str(adapter.resolve())
        self._request = {"folder": str(folder), "paths": list(paths), "modules": list(modules), "adapter": given}
        self._libraries = libraries

    def __enter__(self) -> Self:
        self._start()
        found = self.observe().libraries
        if len(found) > FEW_LIBRARIES:
            self._stop()
            self._libraries = [*self._libraries, *found]
            self._start()
        return self

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "support.mutation_observer", *self._libraries]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def observe(self, *, trace: bool = False) -> Observation:
        """What the project is, as its files are now; with ``trace`` which lines ran, too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._request | {"trace": trace}) + "\n")
        self._process.stdin.flush()
        return Observation(**json.loads(self._process.stdout.readline()))


def main(libraries: Iterable[str]) -> None:
    sys.dont_write_bytecode = True
    for name in libraries:
        with contextlib.suppress(Exception):  # which the project's own import of it says, if it is one
            importlib.import_module(name)
    known = KnownCode()
    fingerprint_of(main, CodeOptions(), known)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(_of_child(json.loads(line), known))), flush=True)


def _of_child(request: Mapping[str, Any], known: KnownCode) -> Observation:
    """What a child says, until it has ended or takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _child(request, known, writer)
    os.close(writer)
    text, deadline = b"", time.monotonic() + SECONDS_A_PROJECT
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        text += piece
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = Observation()
    begun = ""
    for line in text.decode().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # of a line that was cut off
            said = json.loads(line)
            begun = said.pop("begun", begun)
            for name, value in said.items():
                setattr(found, name, getattr(found, name) | value if isinstance(value, dict) else value)
    if begun and begun not in found.outputs:
        found.outputs[begun], found.shown[begun] = "did not end", "did not end"
    return found


def _child(request: Mapping[str, Any], known: KnownCode, writer: int) -> None:
    with os.fdopen(writer, "w", buffering=1) as answers:
        try:
            silence = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(silence, number)
            resource.setrlimit(resource.RLIMIT_AS, (_memory() + MEMORY, resource.RLIM_INFINITY))
            signal.signal(signal.SIGALRM, _too_long)
            for said in _observed(request, known):
                answers.write(json.dumps(said) + "\n")
        except BaseException as error:  # noqa: BLE001 - whatever a project raises is why it cannot be loaded
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}) + "\n")
        finally:
            answers.flush()
            os._exit(0)


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class TooLong(BaseException):
    """A call took too long."""


def _too_long(signal_number: int, frame: FrameType | None) -> None:
    raise TooLong


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _observed(request: Mapping[str, Any], known: KnownCode) -> Iterator[dict[str, Any]]:
    folder, before = request["folder"], set(sys.modules)
    lines: dict[str, set[int]] = {}
    called: dict[str, set[int]] = {}
    if request["trace"]:
        sys.settrace(_tracer(folder, lines))
    sys.path[:0] = [os.path.normpath(Path(folder, path)) for path in request["paths"]]
    with _at_most(SECONDS_A_PROJECT / 2):
        for name in request["modules"]:
            importlib.import_module(name)
        cases = _cases(request["adapter"]) if request["adapter"] else _without_inputs(request["modules"])
        functions = {name: _named(name) for name, _ in cases}
    for name, function in functions.items():
        if function is not None:
            found = fingerprint_of(function, CodeOptions(), known)
            yield {"digests": {name: found.digest}, "opaque": {name: list(found.opaque)} if found.opaque else {}}
    yield {"libraries": _libraries(folder, before)}
    if request["trace"]:
        sys.settrace(_tracer(folder, called))
    for name, inputs in cases:
        function = functions[name]
        if function is not None:
            yield {"begun": name}
            outputs = "\n".join(_output(function, each) for each in inputs)
            digest = hashlib.sha256(outputs.encode("utf-8", "backslashreplace")).hexdigest()
            yield {"outputs": {name: digest}, "shown": {name: outputs[:300]}}
    sys.settrace(None)
    for label, found in (("lines", lines), ("called", called)):
        yield {label: {os.path.relpath(file, folder): sorted(each) for file, each in found.items()}}


def _libraries(folder: str, before: AbstractSet[str]) -> list[str]:
    """The modules of others that a project has imported, in their order."""
    loaded = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    own = {name.partition(".")[0] for name, file in loaded if isinstance(file, str) and file.startswith(folder)}
    return [name for name, file in loaded if file and name not in before and name.partition(".")[0] not in own]


def _tracer(folder: str, lines: dict[str, set[int]]) -> Callable[..., Any]:
    def local(frame: FrameType, event: str, argument: object) -> Any:
        lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return local

    return lambda frame, event, argument: (
        local(frame, event, argument) if frame.f_code.co_filename.startswith(folder) else None
    )


def _without_inputs(modules: Iterable[str]) -> Cases:
    """The assets and ops of modules that take nothing."""
    found: list[tuple[str, Sequence[Any]]] = []
    for module in modules:
        for name, value in vars(sys.modules[module]).items():
            if hasattr(value, "op") or hasattr(value, "compute_fn"):
                function = _named(f"{module}:{name}")
                if callable(function) and not inspect.signature(function).parameters:
                    found.append((f"{module}:{name}", [()]))
    return found


def _cases(adapter: str) -> Cases:
    spec = importlib.util.spec_from_file_location("adapter_of_mutations", adapter)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


def _named(name: str) -> Any:
    """The function of a name, of an asset or op what it computes; ``None`` where it is gone."""
    module, _, qualified = name.partition(":")
    found: Any = importlib.import_module(module)
    try:
        for each in qualified.split("."):
            found = getattr(found, each)
    except AttributeError:
        return None
    found = getattr(found, "op", found)
    return getattr(getattr(found, "compute_fn", found), "decorated_fn", found)


def _output(function: Any, given: Any) -> str:
    try:
        with _at_most(SECONDS_A_CALL):
            arguments = given() if callable(given) else copy.deepcopy(given)
            return shown(_evaluated(function(*arguments)))
    except TooLong:
        return "takes too long"
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a function raises is what it gives
        return f"raises {type(error).__name__}: {_plain(str(error))}"


def _evaluated(value: Any) -> Any:
    if inspect.iscoroutine(value):
        return asyncio.run(value)
    if isinstance(value, AsyncIterator):
        return asyncio.run(_all_of(value))
    return list(itertools.islice(value, 1000)) if isinstance(value, Iterator) else value


async def _all_of(values: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in values]


def shown(value: Any, depth: int = 0) -> str:
    """A value as text that is equal for equal ones."""
    kind = type(value)
    inner = depth + 1
    if depth > 20:
        return "…"
    if kind.__module__.partition(".")[0] == "pandas" and hasattr(value, "to_json"):
        return f"{value.dtypes!r} {value.index!r} {value.to_dict()!r}"
    if kind.__module__.partition(".")[0] == "polars":
        table = value.collect() if hasattr(value, "collect") else value
        return f"{table.schema!r} {table.rows()!r}" if hasattr(table, "rows") else _plain(repr(table))
    if isinstance(value, enum.Enum):
        return _plain(repr(value))
    if isinstance(value, dict):
        return f"{kind.__name__}{{{', '.join(f'{shown(k, inner)}: {shown(v, inner)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"{kind.__name__}[{', '.join(shown(each, inner) for each in value)}]"
    if isinstance(value, set | frozenset):
        return f"{kind.__name__}{{{', '.join(sorted(shown(each, inner) for each in value))}}}"
    if isinstance(value, Iterator):
        return f"iterator {shown(list(itertools.islice(value, 1000)), inner)}"
    if kind.__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        return f"{kind.__qualname__} {shown(vars(value), inner)}"
    return _plain(repr(value))


def _plain(text: str) -> str:
    """A text without what is another in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


if __name__ == "__main__":
    main(sys.argv[1:])
