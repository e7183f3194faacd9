"""The tutorial of publication and reuse says what happens, beside Dagster's daemon: its files, commands and outputs."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.dagster_dev import dagster_dev

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/checked-and-reused.md"
DEV = "dagster dev -m lake\n"
RELEASED = re.compile(r"@versioned_asset.*?(?=\n\n\n)", re.S)

ID = r"\b[0-9a-f]{8}\b"
VARIES = re.compile(rf"\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\dZ)?|\d+ bytes|\d+\.\d s\b|{ID}")
"""Times, sizes, seconds and ids."""


def lines(said: str) -> list[str]:
    """What is said, without what varies and the spaces between columns."""
    return [" ".join(VARIES.sub("?", line).split()) for line in said.splitlines()]


def test_every_command_of_the_page_says_what_the_page_says(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(python|sh|text)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    code = [block for language, block in blocks if language == "python"]
    (tmp_path / "lake.py").write_text(code[0])
    (tmp_path / "seen.py").write_text(code[1])
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DAGSTER", "PYTHON"))} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "160",
    }
    settings, ids, compared = "set -e\n", dict[str, str](), 0

    def run(block: str) -> "subprocess.CompletedProcess[str]":
        script = settings + re.sub(ID, lambda found: ids.get(found[0], found[0]), block)
        return subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)

    with ExitStack() as started:
        for (language, block), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
            if block == code[2]:
                lake = tmp_path / "lake.py"
                lake.write_text(RELEASED.sub(lambda _, new=block: new.rstrip(), lake.read_text()))
            elif block == DEV:
                started.enter_context(
                    dagster_dev(
                        *("-m", "lake"),
                        log=tmp_path / "dev.log",
                        folder=tmp_path,
                        environment=environment | {"DAGSTER_HOME": str(tmp_path / "dagster")},
                    )
                )
            elif language == "sh":
                ran = run(block)
                until = time.monotonic() + 150
                # What only reads is asked again until the sensors have looked.
                while (
                    following == "text"
                    and " materialize " not in block
                    and lines(ran.stdout) != lines(shown)
                    and time.monotonic() < until
                ):
                    time.sleep(1)
                    ran = run(block)
                assert (ran.returncode != 0) == ("# fails" in block), (block, ran.stdout + ran.stderr)
                if following == "text":
                    assert lines(ran.stdout) == lines(shown), (block, ran.stdout + ran.stderr)
                    ids |= dict(zip(re.findall(ID, shown), re.findall(ID, ran.stdout), strict=True))
                    compared += 1
                settings += "".join(f"{line}\n" for line in block.splitlines() if line.startswith("export "))
    assert compared == len([1 for language, _ in blocks if language == "text"]) > 0
