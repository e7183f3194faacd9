"""What code runs on: the release of Python, the platform, and every distribution that is installed."""

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster_versioned.code.ownership import Distributions, normalized

_MINUTES = 20
_PYTHON = re.compile(r"3\.\d{1,2}\.\d{1,2}", re.ASCII)
_RELEASE = re.compile(r"[0-9][0-9a-zA-Z.!+]{0,99}", re.ASCII)
"""Nothing else that a log may hold: no marker, no option, no address, no line of its own."""


def runtime_of(distributions: Distributions) -> dict[str, Any]:
    """That of this process. Distributions are known by their folders' names; nothing of them is read."""
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": f"{platform.system()} {platform.machine()}".lower(),
        "distributions": distributions.installed(),
    }


def requirements_of(runtime: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The recorded releases of what is installed here from an index, as requirements; and the names of all else.

    A name that is not installed here is never asked for: a log may name anything, and whoever owns the name on an index
    would be run.
    """
    distributions = Distributions()
    here = {each.name: each for each in distributions.of_paths(sys.path)}
    recorded: Mapping[str, object] = runtime.get("distributions") or {}
    known = {normalized(str(name)): str(release) for name, release in recorded.items()}
    taken = {
        name
        for name, release in known.items()
        if name in here and not here[name].is_local and _RELEASE.fullmatch(release)
    }
    return [f"{name}=={known[name]}" for name in sorted(taken)], sorted(known.keys() - taken)


def make_environment(runtime: Mapping[str, Any], folder: Path) -> Path:
    """Make an environment with the recorded releases, by ``uv``; returns its Python.

    What is installed here from a folder is read from there, by the caller's ``PYTHONPATH``. Raises `ValueError` with
    why it cannot be made.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise ValueError("uv is not installed, which makes the environment (pip install uv)")
    wanted = str(runtime.get("python", ""))
    if not _PYTHON.fullmatch(wanted):
        raise ValueError(f"no release of Python is recorded, but {wanted!a:.80}")
    interpreter = sys.executable if wanted == platform.python_version() else wanted
    requirements = folder.with_suffix(".txt")
    requirements.write_text("".join(f"{line}\n" for line in requirements_of(runtime)[0]), "utf-8")
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    for words in (
        ["venv", "--quiet", "--python", interpreter, str(folder)],
        ["pip", "install", "--quiet", "--no-deps", "--python", str(python), "--requirement", str(requirements)],
    ):
        try:
            ended = subprocess.run(
                [uv, *words],
                capture_output=True,
                text=True,
                timeout=_MINUTES * 60,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"uv was not done after {_MINUTES} minutes") from error
        if ended.returncode:
            raise ValueError(f"uv could not make the environment: {ended.stderr.strip()[-600:]}")
    return python
