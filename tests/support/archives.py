"""Archives, unpacked."""

import tarfile
from pathlib import Path
from typing import Any


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive into a folder; releases of Python before 3.11.4 have no filter for what leads out of it."""
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(path) as archive:
        archive.extractall(folder, **options)
