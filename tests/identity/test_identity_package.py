"""What importing `dagster_versioned.identity` brings with it."""

import subprocess
import sys

import pytest

from dagster_versioned import identity


def test_every_public_name_can_be_imported() -> None:
    for name in identity.__all__:
        assert getattr(identity, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = identity.nothing


def test_names_and_versions_come_without_arrow_spark_or_dagster() -> None:
    code = """
import sys
import dagster_versioned.identity as identity
print(sorted({"numpy", "pyarrow", "pyspark", "dagster"} & set(sys.modules)))
identity.BagDigest
print(sorted({"pyspark", "dagster"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]
