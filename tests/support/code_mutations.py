"""Random edits of a project's source: whenever what a function gives changes, its fingerprint has to.

``python tests/support/code_mutations.py --sample 1000 --seed 1`` edits the sample project of `mutation_project`. Of a
checkout of a Dagster project ``--project PATH --module NAME --adapter FILE`` does the same: the adapter defines
``CASES``, a list of functions (``"module:name"``) and of what each is called with; without one, those assets and ops
of the modules are called that take nothing. An edit is *missed* where outputs differ and fingerprints are equal,
*needless* where it means nothing and a fingerprint differs nevertheless.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.code_project import write_project
from support.mutation_edits import Edit, Edits
from support.mutation_observer import Observation, Observer
from support.mutation_project import ADAPTER, FILES, MODULES

TEXTS = (".py", ".sql", ".json", ".yaml", ".yml", ".txt", ".jinja", ".j2", ".csv")
LARGEST = 200_000


@dataclass(frozen=True)
class Missed:
    """An edit that a fingerprint does not see, though outputs differ."""

    file: str
    line: int
    kind: str
    change: str
    function: str
    before: str
    after: str


@dataclass
class Verdict:
    """What was found: edits and pairs of edits and functions."""

    functions: int = 0
    unsteady: list[str] = field(default_factory=list[str])
    opaque: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    edits: Counter[str] = field(default_factory=Counter[str])
    effective: Counter[str] = field(default_factory=Counter[str])
    meaningless: Counter[str] = field(default_factory=Counter[str])
    unloadable: int = 0
    changed_pairs: int = 0
    seen_pairs: int = 0
    opaque_pairs: int = 0
    meaningless_pairs: int = 0
    missed: list[Missed] = field(default_factory=list[Missed])
    needless: Counter[str] = field(default_factory=Counter[str])
    needless_examples: list[Missed] = field(default_factory=list[Missed])
    seconds: float = 0.0

    @property
    def needless_share(self) -> float:
        """Of the pairs of an edit without meaning and a function."""
        return self.needless.total() / max(1, self.meaningless_pairs)


class Mutations:
    """A project in a folder, and what its functions are before any edit."""

    def __init__(self, folder: Path, observer: Observer, seed: int, parts: Sequence[str] = ("",)) -> None:
        self._folder, self._observer = folder, observer
        self._verdict = Verdict()
        before = observer.observe(trace=True)
        again = observer.observe()
        if before.error or again.error:
            raise RuntimeError(f"The project cannot be loaded: {before.error or again.error}")
        self._before = again
        steady = {name for name, output in before.outputs.items() if again.outputs.get(name) == output}
        self._verdict.unsteady = sorted(set(before.digests) - steady)
        self._verdict.opaque = again.opaque
        self._functions = sorted(steady)
        self._verdict.functions = len(steady)
        ran = {name: frozenset(lines) for name, lines in before.lines.items()}
        called = {name: frozenset(lines) for name, lines in before.called.items()}
        texts = {name: text for name, text in _texts(folder, parts) if name in ran or not name.endswith(".py")}
        self._texts = texts
        self._edits = Edits(texts, ran, called, seed)

    def judge(self, number: int, meaningless: int) -> Verdict:
        """The verdict on so many edits that may matter, and so many without meaning, that leave it loadable."""
        begun = time.monotonic()
        for is_meaningless, of in ((False, number), (True, meaningless)):
            done = 0
            while done < of:
                edit = self._edits.draw(is_meaningless=is_meaningless)
                after = self._observed(edit)
                if after.error or not after.digests:
                    self._verdict.unloadable += 1
                    continue
                self._compare(edit, after)
                done += 1
        self._verdict.seconds = time.monotonic() - begun
        return self._verdict

    def _observed(self, edit: Edit) -> Observation:
        path = self._folder / edit.file
        try:
            path.write_bytes(edit.text.encode())
            return self._observer.observe()
        finally:
            path.write_bytes(self._texts[edit.file].encode())

    def _compare(self, edit: Edit, after: Observation) -> None:
        verdict, before = self._verdict, self._before
        (verdict.meaningless if edit.is_meaningless else verdict.edits)[edit.kind] += 1
        has_effect = False
        for name in self._functions:
            if name not in after.outputs:
                continue
            is_changed = before.outputs[name] != after.outputs[name]
            is_seen = before.digests[name] != after.digests[name]
            has_effect |= is_changed
            found = Missed(edit.file, edit.line, edit.kind, edit.change, name, before.shown[name], after.shown[name])
            if is_changed:
                verdict.changed_pairs += 1
                verdict.seen_pairs += is_seen
                if not is_seen and (name in before.opaque or name in after.opaque):
                    verdict.opaque_pairs += 1
                elif not is_seen and self._observed(edit).outputs.get(name) == after.outputs[name]:
                    verdict.missed.append(found)  # what differs once, as where time ran out, is no effect of the edit
            elif edit.is_meaningless and is_seen:
                verdict.needless[edit.kind] += 1
                verdict.needless_examples.append(found)
            verdict.meaningless_pairs += edit.is_meaningless
        if not edit.is_meaningless:
            verdict.effective[edit.kind] += has_effect


def _texts(folder: Path, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in sorted({path for part in parts for path in (folder / part).rglob("*")}):
        if path.suffix in TEXTS and path.is_file() and path.stat().st_size <= LARGEST:
            text = path.read_bytes().decode("utf-8", "replace")
            if "\ufffd" not in text and "\r" not in text:
                yield path.relative_to(folder).as_posix(), text


@contextmanager
def sample(seed: int) -> Iterator[Mutations]:
    """The sample project, ready to be edited."""
    with tempfile.TemporaryDirectory() as place:
        folder, adapter = Path(place, "project"), Path(place, "adapter.py")
        write_project(folder, FILES)
        adapter.write_text(ADAPTER)
        with Observer(folder, ["."], MODULES, adapter) as observer:
            yield Mutations(folder, observer, seed)


@contextmanager
def project(
    path: Path, paths: Sequence[str], modules: Sequence[str], adapter: Path | None, seed: int, parts: Sequence[str]
) -> Iterator[Mutations]:
    """A copy of a project's checkout, ready to be edited in some of its parts."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "project")
        shutil.copytree(path, folder, ignore=shutil.ignore_patterns(".git", ".venv", "node_modules"))
        with Observer(folder, paths, modules, adapter) as observer:
            yield Mutations(folder, observer, seed, parts)


def report(verdict: Verdict) -> Mapping[str, object]:
    """The verdict as what is printed."""
    return {
        "functions": verdict.functions,
        "unsteady": verdict.unsteady,
        "opaque": verdict.opaque,
        "edits": verdict.edits.total(),
        "edits that change an output": verdict.effective.total(),
        "edits by kind": {kind: [verdict.effective[kind], verdict.edits[kind]] for kind in sorted(verdict.edits)},
        "edits without meaning": verdict.meaningless.total(),
        "without meaning by kind": dict(sorted(verdict.meaningless.items())),
        "unloadable": verdict.unloadable,
        "changed pairs": verdict.changed_pairs,
        "seen pairs": verdict.seen_pairs,
        "opaque pairs": verdict.opaque_pairs,
        "meaningless pairs": verdict.meaningless_pairs,
        "needless pairs": dict(verdict.needless),
        "needless share": round(verdict.needless_share, 4),
        "missed": len(verdict.missed),
        "seconds": round(verdict.seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sample", type=int, metavar="N", help="so many edits of the sample project")
    what.add_argument("--project", type=Path, metavar="PATH", help="the checkout of a Dagster project")
    parser.add_argument("--edits", type=int, default=100, help="so many edits of the project")
    parser.add_argument(
        "--meaningless", type=int, help="edits without meaning on top; a fifth of the others by default"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", nargs="+", default=[], help="modules of the project to import")
    parser.add_argument(
        "--adapter", type=Path, help="a file that defines CASES: functions, and what they are called with"
    )
    parser.add_argument(
        "--path", nargs="+", default=["."], help="folders of the project that modules are imported from"
    )
    parser.add_argument("--part", nargs="+", default=[""], help="folders of the project whose files are edited")
    parser.add_argument(
        "--needless", action="store_true", help="print those edits, too, after which it differs needlessly"
    )
    given = parser.parse_args()
    if given.project is not None and not given.module:
        parser.error("--project needs --module")
    number = given.edits if given.sample is None else given.sample
    meaningless = number // 5 if given.meaningless is None else given.meaningless
    made = (
        sample(given.seed)
        if given.sample is not None
        else project(given.project.resolve(), given.path, given.module, given.adapter, given.seed, given.part)
    )
    with made as mutations:
        verdict = mutations.judge(number, meaningless)
    for each in verdict.missed:
        print(json.dumps({"missed": vars(each)}, ensure_ascii=False))
    for each in verdict.needless_examples if given.needless else ():
        print(json.dumps({"needless": vars(each)}, ensure_ascii=False))
    print(json.dumps(report(verdict), indent=1, ensure_ascii=False))
    sys.exit(bool(verdict.missed))


if __name__ == "__main__":
    main()
