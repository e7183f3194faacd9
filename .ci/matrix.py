#!/usr/bin/env python3
"""Hold the package to combinations of releases: run its tests with each, and the example of each into one store.

.ci/matrix.py [--only tests|example] [--folder FOLDER] [--store FOLDER] [COMBINATION ...]

Each combination has an environment of its own below the folder, which uv resolves and installs. What came of it goes to
.ci/matrix.json and, from there, to docs/reference/compatibility.md; `--render` does the latter alone.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".ci" / "matrix.json"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"


@dataclass(frozen=True)
class Combination:
    """Releases that one environment has: what pyproject.toml allows, narrowed by constraints or flags of uv.

    ``overrides`` stand for what any package, such as a peer in the tests, requires of another one.
    """

    title: str
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


COMBINATIONS = {
    "floor": Combination(
        "the lowest release of everything that pyproject.toml names",
        overrides=("pyarrow==19.0.1",),  # datom, which the tests read with, names a newer one
        flags=("--resolution", "lowest-direct"),
    ),
    "spark-3.5": Combination(
        "Spark 3.5, Dagster 1.11, pyarrow 21, numpy 1",
        ("pyspark<4", "dagster<1.12", "pyarrow<22", "numpy<2", "pandas<2.3"),
    ),
    "spark-4.0": Combination(
        "Spark 4.0, Dagster 1.12, pyarrow 23, Polars 1", ("pyspark<4.1", "dagster<1.13", "pyarrow<24", "polars<2")
    ),
    "newest": Combination(
        "constraints.txt, with which `make test` runs", flags=("--constraint", str(ROOT / "constraints.txt"))
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="COMBINATION", help=f"all by default: {', '.join(COMBINATIONS)}")
    parser.add_argument("--only", choices=("install", "tests", "example"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-matrix", help="of the environments")
    parser.add_argument("--store", type=Path, help="into which the example runs; by default one that is made anew")
    parser.add_argument("--render", action="store_true", help="write the page anew, and run nothing")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(COMBINATIONS)):
        parser.error(f"no combination {', '.join(unknown)}; there are {', '.join(COMBINATIONS)}")
    if given.render:
        PAGE.write_text(page(read_results()))
        return
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    store = given.store and given.store.absolute()
    if store is None:
        store = folder / "store"
        shutil.rmtree(store, ignore_errors=True)
    failed: list[str] = []
    for name in given.names or COMBINATIONS:
        print(f"== {name}: {COMBINATIONS[name].title}", flush=True)
        python = install(folder / name, COMBINATIONS[name])
        if given.only == "install":
            continue
        found = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": versions(python)}
        if given.only in (None, "tests"):
            found["tests"] = run_tests(python, folder / name / "tests.xml")
            failed += [f"{name}: {found['tests']['failed']} tests"] if found["tests"]["failed"] else []
        if given.only in (None, "example"):
            found["example"] = run_example(python, store, name)
            failed += [f"{name}: the example"] if found["example"] is None else []
        record(name, found)
    if failed:
        sys.exit(f"Failed: {'; '.join(failed)}")


def install(venv: Path, combination: Combination) -> Path:
    """The Python of an environment that has the combination, and nothing else."""
    python = venv / "bin" / "python"
    if not python.exists():
        run_uv("venv", "--quiet", "--seed", "--python", sys.executable, venv)
    constraints, overrides, requirements = (
        venv / f"{each}.txt" for each in ("constraints", "overrides", "requirements")
    )
    constraints.write_text("\n".join(combination.constraints))
    overrides.write_text("\n".join(combination.overrides))
    resolved = run_uv(
        *("pip", "compile", "--quiet", "--no-annotate", "--no-header", "--python", python),
        *("--extra", "tests", "--constraint", constraints, "--override", overrides, *combination.flags),
        ROOT / "pyproject.toml",
    )
    requirements.write_text(f"{resolved}\n-e {ROOT}\n")
    run_uv("pip", "sync", "--quiet", "--python", python, requirements)
    return python


def run_uv(*arguments: object) -> str:
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"uv ended with {done.returncode}; what it wrote is above. The command was: {' '.join(command)}")
    return done.stdout


def versions(python: Path) -> dict[str, str]:
    """The releases of Python, and of what pyproject.toml names for use."""
    frozen = dict(line.split("==") for line in run_uv("pip", "freeze", "--python", python).split() if "==" in line)
    released = {name.lower(): version for name, version in frozen.items()}
    found = {floor.name: released[floor.name.lower()] for floor in floors()}
    return {"python": platform.python_version(), **found}


def run_tests(python: Path, report: Path) -> dict[str, Any]:
    """Run the tests that `make test` runs; how they ended, as `count` has it."""
    report.unlink(missing_ok=True)
    ended = run(python, "-m", "pytest", "-n", "3", "--dist", "loadgroup", "-m", "not slow", f"--junitxml={report}")
    if not report.exists():
        sys.exit(f"pytest ended with {ended} and no report.")
    found = count(report)
    # Where pytest itself fails, no test does.
    return found | {"failed": found["failed"] or int(ended != 0)}


def count(report: Path) -> dict[str, Any]:
    """How many tests of a JUnit file passed, failed and were skipped, these by reason too."""
    cases = list(ET.parse(report).getroot().iter("testcase"))
    skips = Counter(found.get("message", "") for case in cases if (found := case.find("skipped")) is not None)
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    passed = len(cases) - failed - skips.total()
    return {"passed": passed, "failed": failed, "skipped": skips.total(), "skips": dict(sorted(skips.items()))}


def run_example(python: Path, store: Path, name: str) -> dict[str, Any] | None:
    """What `one_store.py` reports; ``None`` where it failed."""
    report = python.parents[1] / "example.json"
    if run(python, ROOT / ".ci" / "one_store.py", store, name, report):
        return None
    return json.loads(report.read_text())


def run(python: Path, *arguments: object) -> int:
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return subprocess.run([python, *map(str, arguments)], cwd=ROOT, env=environment, check=False).returncode


def read_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def record(name: str, found: Mapping[str, Any]) -> None:
    """Keep what was found, beside what an earlier run found of the rest, and write the page."""
    results = read_results()
    results[name] = results.get(name, {}) | found
    results = {each: results[each] for each in COMBINATIONS if each in results}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


@dataclass(frozen=True)
class Floor:
    """What pyproject.toml requires of one package, and why it takes no older one."""

    name: str
    oldest: str
    below: str
    reason: str


def floors() -> list[Floor]:
    """Of the package and of each of its extras for users, in the order of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    named = [extras[extra] for extra in re.findall(r"[\w-]+", everything.partition("[")[2])]
    found: dict[str, Floor] = {}
    for requirement in [*project["dependencies"], *(each for extra in named for each in extra)]:
        bounds = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<([\d.]+))?", requirement)
        if bounds is None:
            sys.exit(f"{requirement!r} in pyproject.toml has no lower bound.")
        comment = re.search(re.escape(f'"{requirement}"') + r"[^#\n]*# *(.+)", text)
        name, oldest, below = bounds.groups(default="")
        found.setdefault(name, Floor(name, oldest, below, comment[1] if comment else ""))
    return list(found.values())


TEMPLATE = """\
# Releases that were tested together

<!-- Made by .ci/matrix.py; do not edit. -->

`make test-matrix` installs each of these combinations into an environment of its own and runs the tests that are not
marked `slow`. Then it runs the example into one store that all combinations share: after the first, every asset comes
out as *none*, with the `metadata_sha` that it has. Each combination also appends rows of every type to a table of that
store, reads with Arrow and with Spark what all others appended, and verifies everything.

{combinations}

## What was found

{found}

## What each has

{versions}

## Bounds

A floor without a reason is the first release that was tried: what is below may work. What is installed against these
bounds is refused by name.

{bounds}

## What a release lacks

[Releases of Spark](spark.md) has what each release of PySpark lacks, and what is done instead. Parquet files, and with
them `data_sha`, depend on the release of pyarrow that writes them:
[what differs](../explanation/versions.md#what-differs-between-releases-of-pyarrow). Tests that were skipped, by reason:

{skips}
"""


def page(results: Mapping[str, Any]) -> str:
    """The page on what was tested together, in Markdown."""
    names = list(results)
    tests = {name: results[name].get("tests", {}) for name in names}
    skips = {name: tests[name].get("skips", {}) for name in names}
    reasons = sorted({reason for each in skips.values() for reason in each})
    return TEMPLATE.format(
        combinations=table(["", ""], [[name, COMBINATIONS[name].title] for name in names]),
        found=table(
            ["", *names],
            [
                ["on", *(results[name]["date"] for name in names)],
                *(
                    [f"tests {ended}", *(tests[name].get(ended, "") for name in names)]
                    for ended in ("passed", "failed", "skipped")
                ),
                ["the example", *(example_text(results[name].get("example")) for name in names)],
            ],
        ),
        versions=table(
            ["", *names],
            [
                [package, *(results[name]["versions"].get(package, "") for name in names)]
                for package in ["python", *(floor.name for floor in floors())]
            ],
        ),
        bounds=table(
            ["", "from", "below", "why not an older one"],
            [[floor.name, floor.oldest, floor.below, floor.reason] for floor in floors()],
        ),
        skips=table(["", *names], [[reason, *(skips[name].get(reason, "") for name in names)] for reason in reasons]),
    )


def example_text(example: Mapping[str, Any] | None) -> str:
    if example is None:
        return "failed or not run"
    return f"{example['versions']} versions, all {'new' if example['first'] else '*none*'}"


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(header), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    main()
