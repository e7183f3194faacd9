"""``import dagster_versioned`` stays light: a notebook or a sensor daemon pays for what it uses."""

import subprocess
import sys

import pytest

HEAVY = ("boto3", "dagster", "pandas", "polars", "pyarrow", "pyspark")

PROBE = """
import sys, time
start = time.perf_counter()
import {module}
print(time.perf_counter() - start, *sorted(set({heavy!r}) & set(sys.modules)))
"""


def probe(module):
    """Seconds that a fresh interpreter takes to import the module, and which heavy packages came with it."""
    command = [sys.executable, "-c", PROBE.format(module=module, heavy=HEAVY)]
    seconds, *heavy = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), heavy


def test_importing_the_package_imports_nothing_heavy():
    seconds, heavy = probe("dagster_versioned")
    print(f"import dagster_versioned: {seconds * 1000:.1f} ms")
    assert heavy == []


def test_the_probe_sees_a_heavy_import():
    assert "pyarrow" in probe("pyarrow")[1]


@pytest.mark.slow
def test_importing_everything_public_adds_little_to_dagster_itself():
    """At most 0.3 s more than ``import dagster``, on the best of three each, and still no Spark."""
    everything = "dagster, dagster_versioned; from dagster_versioned import *"
    plain = min(probe("dagster")[0] for _ in range(3))
    ours, heavy = min(probe(everything) for _ in range(3))
    print(f"import dagster: {plain * 1000:.0f} ms; with everything public of ours: {ours * 1000:.0f} ms")
    assert "pyspark" not in heavy
    assert ours - plain <= 0.3
