"""``import dagster_versioned`` stays light: a notebook or a sensor daemon pays for what it uses."""

import subprocess
import sys

HEAVY = ("boto3", "dagster", "numpy", "pandas", "polars", "pyarrow", "pyspark")

OF_A_CODE_LOCATION = (
    "GovernanceResource",
    "ProjectResource",
    "TableOptions",
    "VersionedParquetIOManager",
    "build_version_sensor",
)
"""What every code location names when it loads, before it does anything."""

PROBE = """
import {after}, sys, time
start = time.process_time()
import {module}
print(time.process_time() - start, *sorted(set({heavy!r}) & set(sys.modules)))
"""


def probe(module, after="sys"):
    """Seconds of the processor to import the module in a fresh interpreter, after another; the heavy packages there."""
    command = [sys.executable, "-c", PROBE.format(module=module, after=after, heavy=HEAVY)]
    seconds, *heavy = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), heavy


def test_importing_the_package_imports_nothing_heavy():
    seconds, heavy = probe("dagster_versioned")
    print(f"import dagster_versioned: {seconds * 1000:.1f} ms")
    assert heavy == []


def test_the_probe_sees_a_heavy_import():
    assert "pyarrow" in probe("pyarrow")[1]


def test_importing_everything_public_imports_neither_spark_nor_a_frame_library():
    seconds, heavy = probe("dagster_versioned; from dagster_versioned import *")
    print(f"from dagster_versioned import *: {seconds * 1000:.0f} ms")
    assert not {"pandas", "polars", "pyspark"} & set(heavy)


def test_a_code_location_loads_no_data_library():
    seconds, heavy = probe(f"dagster_versioned; from dagster_versioned import {', '.join(OF_A_CODE_LOCATION)}")
    print(f"what a code location names: {seconds * 1000:.0f} ms, dagster with it")
    assert heavy == ["dagster"]


def test_importing_the_package_adds_at_most_300_ms_to_dagster_itself():
    """It adds 3 ms. What the processor did is counted, so that a busy machine does not decide."""
    seconds, _ = probe("dagster_versioned", after="dagster")
    print(f"import dagster_versioned after dagster: {seconds * 1000:.1f} ms")
    assert seconds <= 0.3
