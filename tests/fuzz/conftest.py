"""How long to fuzz: ``pytest tests/fuzz --seconds 600``, or ``FUZZ_SECONDS``; each test for so long, by luck."""

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, help="how long each fuzzing test runs")


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float | None:
    """How long a test tries its luck; ``None`` in a run of all tests, where it does the same every time."""
    slow = request.node.get_closest_marker("slow") is not None
    asked = request.config.getoption("--seconds", None) or os.environ.get("FUZZ_SECONDS")
    return float(asked or 20) if asked or slow else None
