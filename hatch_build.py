"""Compiles the digest where there is a C compiler; without one the package is pure Python, and digests with numpy."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("dagster_versioned", "identity", "bag_lanes.c")


class CompiledDigest(BuildHookInterface):
    """Adds the library to a wheel, which is then one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile beside the source, where an editable installation finds it."""
        source = Path(self.root, SOURCE)
        library = source.with_suffix(".so")
        compiler = os.environ.get("CC", "cc").split()
        flags = ["-O3", "-shared", "-fPIC", *(["-s"] if sys.platform == "linux" else [])]
        if sys.platform == "win32":
            return
        try:
            subprocess.run([*compiler, *flags, "-o", library, source], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"{SOURCE} was not compiled, so digests take longer: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(str(library.relative_to(self.root)))
