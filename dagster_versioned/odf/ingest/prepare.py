"""Files as they were fetched into files that can be read: unpacked, and never larger than was allowed."""

import gzip
import zipfile
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import CompressionFormat, PrepStep, PrepStepDecompress, PrepStepPipe
from dagster_versioned.odf.ingest.source_file import SourceFile

_PIECE_BYTES = 1024**2


def prepare(file: SourceFile, steps: Sequence[PrepStep], folder: Path, *, max_bytes: int) -> SourceFile:
    """The file after all steps, in ``folder``; of at most ``max_bytes`` after each.

    Raises `InvalidInput` for a file that cannot be unpacked, and for steps that run a command.
    """
    for number, step in enumerate(steps):
        match step:
            case PrepStepDecompress():
                file = _unpacked(file, step, folder / f"prepared-{number}", max_bytes)
            case PrepStepPipe():
                raise InvalidInput(
                    f"{file.name} is to be sent through the command {list(step.command)!r:.200}, which is recorded but "
                    "not run here: a manifest may come from anyone. Nothing was added. Convert the file before it is "
                    "fetched."
                )
    return file


def _unpacked(file: SourceFile, step: PrepStepDecompress, target: Path, max_bytes: int) -> SourceFile:
    try:
        match step.format:
            case CompressionFormat.GZIP:
                if step.sub_path is not None:
                    raise file.error(f"a gzip file has no members, but {step.sub_path!r} is named")
                with gzip.open(file.path) as packed:
                    return _copied(file, packed, target, max_bytes)
            case CompressionFormat.ZIP:
                with zipfile.ZipFile(file.path) as archive:
                    member = _member(file, archive, step.sub_path)
                    with archive.open(member) as packed:
                        return _copied(SourceFile(f"{file.name}#{member}", file.path), packed, target, max_bytes)
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error, RuntimeError) as error:
        # With RuntimeError (and NotImplementedError, which is one) zipfile says that a member is encrypted, or packed
        # in a way that it does not know.
        raise file.error(f"it cannot be unpacked as {step.format.value} ({error})") from None


def _member(file: SourceFile, archive: zipfile.ZipFile, pattern: str | None) -> str:
    members = [info.filename for info in archive.infolist() if not info.is_dir()]
    found = [name for name in members if pattern is None or name == pattern or fnmatchcase(name, pattern)]
    if len(found) != 1:
        of = "" if pattern is None else f" that match {pattern!r}"
        there = ", ".join(map(repr, members[:20]))
        raise file.error(f"the archive has {len(found)} members{of}, and one is to be read; there are {there}")
    return found[0]


def _copied(file: SourceFile, packed: IO[bytes] | gzip.GzipFile, target: Path, max_bytes: int) -> SourceFile:
    size = 0
    with target.open("wb") as unpacked:
        while piece := packed.read(_PIECE_BYTES):
            size += len(piece)
            if size > max_bytes:
                raise file.error(f"it is larger than {max_bytes} bytes when it is unpacked")
            unpacked.write(piece)
    return SourceFile(file.name, target)
