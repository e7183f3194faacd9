"""What code runs on: the release of Python, the platform, and every distribution that is installed."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster_versioned.code.ownership import Distributions, normalized

_MINUTES = 20


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
    taken = {name for name in known if name in here and not here[name].is_local}
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
    if not wanted:
        raise ValueError("no runtime is recorded")
    interpreter = sys.executable if wanted == platform.python_version() else wanted
    requirements = folder.with_suffix(".txt")
    requirements.write_text("".join(f"{line}\n" for line in requirements_of(runtime)[0]), "utf-8")
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    for words in (
        ["venv", "--quiet", "--python", interpreter, str(folder)],
        ["pip", "install", "--quiet", "--no-deps", "--python", str(python), "--requirement", str(requirements)],
    ):
        ended = subprocess.run(
            [uv, *words], capture_output=True, text=True, timeout=_MINUTES * 60, check=False, stdin=subprocess.DEVNULL
        )
        if ended.returncode:
            raise ValueError(f"uv could not make the environment: {ended.stderr.strip()[-600:]}")
    return python
