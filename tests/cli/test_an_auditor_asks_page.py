"""The tutorial of an auditor's questions says what happens: its files, commands and outputs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("git_identity")]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/an-auditor-asks.md"
FILES = ("shop.py", "cleaning.py", "orders.csv")
VARIES = re.compile(r"\b\d+ (s|min) ago|[0-9a-f]+…|\b[0-9a-f]{8,64}\b")


def lines(said: str) -> list[str]:
    """What is said, without what varies and the spaces between columns."""
    return [" ".join(VARIES.sub("?", line).split()) for line in said.splitlines()]


def test_every_command_of_the_page_says_what_the_page_says(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(python|csv|sh|text)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    texts = [block for language, block in blocks if language in ("python", "csv")]
    for name, text in zip(FILES, texts, strict=True):
        (tmp_path / name).write_text(text)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DAGSTER", "PYTHON"))} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}.",
        "DAGSTER_HOME": "",
    }
    settings, compared, told = "set -e\n", 0, ""
    for (language, block), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "sh":
            continue
        ran = subprocess.run(
            ["bash", "-c", settings + block], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        told += ran.stdout + ran.stderr
        assert ran.returncode == 0, (block, ran.stdout + ran.stderr)
        if following == "text":
            said = lines(ran.stdout)
            assert [line for line in lines(shown) if line not in said] == [], (block, ran.stdout)
            compared += 1
        settings += "".join(f"{line}\n" for line in block.splitlines() if line.startswith("export "))
    assert compared == len([1 for language, _ in blocks if language == "text"]) > 0
    assert "<svg" in (tmp_path / "revenue.html").read_text()
