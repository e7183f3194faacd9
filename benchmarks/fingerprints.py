"""The fingerprints of 200 assets in 500 functions over 60 modules, beside cloudpickle's bytes of each, by value.

That is how frameworks tell code apart which send it elsewhere: what it pickles changes with every comment's line, and
has the values of globals in it. Each round is a process of its own, since a fingerprint is taken once in a process; its
seconds are those of all fingerprints together, without imports.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from rounds import print_ratios, ratio

MODULES, HELPERS, ASSETS = 60, 300, 200

OURS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import shop.all
from dagster_versioned.code.fingerprint import CodeOptions, KnownCode, fingerprint_of
start, known = time.perf_counter(), KnownCode()
found = [fingerprint_of(each, CodeOptions(), known) for each in shop.all.ASSETS]
seconds = time.perf_counter() - start
print(json.dumps([seconds, len({each.digest for each in found}), sum(len(each.opaque) for each in found)]))
"""

CLOUDPICKLE = """
import hashlib, json, sys, time
sys.path.insert(0, sys.argv[1])
import shop.all
from pyspark import cloudpickle
for name in [name for name in sys.modules if name.startswith("shop")]:
    cloudpickle.register_pickle_by_value(sys.modules[name])
start = time.perf_counter()
found = {hashlib.sha256(cloudpickle.dumps(each)).hexdigest() for each in shop.all.ASSETS}
print(json.dumps([time.perf_counter() - start, len(found), 0]))
"""


def write_project(folder: Path) -> None:
    """A package whose functions call those of modules before theirs."""
    random, package = Random(1), folder / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    helpers: list[tuple[str, str]] = []
    assets: list[tuple[str, str]] = []
    for number in range(MODULES):
        name, lines = f"m{number}", [f"LIMIT = {number}\n"]
        before = [each for each in helpers if each[0] != name]
        for count in range(HELPERS // MODULES):
            lines.append(function(f"h{count}", random.sample(before, min(len(before), 2)), random))
        for count in range(ASSETS // MODULES + (number < ASSETS % MODULES)):
            lines.append(function(f"a{count}", random.sample(before, min(len(before), 4)), random))
            assets.append((name, f"a{count}"))
        used = sorted({module for module, _ in before})
        (package / f"{name}.py").write_text("".join([f"from shop import {', '.join(used)}\n" if used else "", *lines]))
        helpers += [(name, f"h{count}") for count in range(HELPERS // MODULES)]
    listed = ", ".join(f"{module}.{name}" for module, name in assets)
    modules = ", ".join(sorted({module for module, _ in assets}))
    (package / "all.py").write_text(f"from shop import {modules}\n\nASSETS = [{listed}]\n")


def function(name: str, calls: list[tuple[str, str]], random: Random) -> str:
    """A function of eight lines, which calls others."""
    body = [f"    rows = {module}.{other}(rows)" for module, other in calls]
    return "\n".join(
        [
            "",
            "",
            f"def {name}(rows, scale={random.randint(1, 9)}):",
            f'    """Rows, scaled by {random.randint(1, 9)}."""',
            *body,
            "    kept = [row for row in rows if row is not None and row > LIMIT]",
            "    total = sum(row * scale for row in kept)",
            f"    return [row / (total or {random.randint(1, 9)}) for row in kept]",
            "",
        ]
    )


def measured(program: str, folder: Path) -> float:
    """The seconds of one process."""
    ran = subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True, text=True)
    seconds, different, opaque = json.loads(ran.stdout)
    assert (different, opaque) == (ASSETS, 0), (different, opaque)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 7")
    rounds = 3 if parser.parse_args().quick else 7
    seconds: dict[str, list[float]] = {"ours": [], "cloudpickle": []}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        write_project(Path(name))
        for program in (OURS, CLOUDPICKLE):
            measured(program, Path(name))  # compiles the package
        for _ in range(rounds):
            seconds["ours"].append(measured(OURS, Path(name)))
            seconds["cloudpickle"].append(measured(CLOUDPICKLE, Path(name)))
    medians = {label: statistics.median(each) for label, each in seconds.items()}
    for label, each in seconds.items():
        print(f"{label:12} {medians[label]:.3f} s   of {' '.join(f'{value:.3f}' for value in each)}")
    print_ratios(ratio("fingerprints_vs_cloudpickle", medians["ours"], medians["cloudpickle"]))


if __name__ == "__main__":
    main()
