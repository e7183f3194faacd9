"""Whose a module is: of the project, whose changes count, or of a library, of which its name does."""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

_SITE = re.compile(r"^(.*[/\\](?:site|dist)-packages)[/\\](.+)$", re.DOTALL)
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_NEVER = frozenset({"dagster", "dagster_versioned", "dagster_pipes"})


class Ownership:
    """What counts as the project's own, for the code of one function.

    That is what is of no distribution, what is of one that was installed from a folder or from version control, of the
    one that the function itself is of, or of one that ``follow`` names, as it names packages; never Dagster nor this
    package, and never Python's library.
    """

    def __init__(self, distributions: "Distributions", origin: str, follow: Iterable[str] = ()) -> None:
        self._distributions = distributions
        self._origin = distributions.of(origin)
        self._follow = frozenset(map(normalized, follow))

    def owns(self, name: str, path: str) -> bool:
        """Whether a module of this name and file is the project's own."""
        quick = self._by_name(name, path)
        if quick is not None:
            return quick
        distribution = self._distributions.of(path)
        return distribution is None or (
            distribution == self._origin or distribution.name in self._follow or distribution.is_local
        )

    def seems_to_own(self, name: str, path: str) -> bool:
        """The same, without a search for the distribution of a library: what was installed and is of none is none."""
        quick = self._by_name(name, path)
        return any(path in each for each in self._own) if quick is None else quick

    def _by_name(self, name: str, path: str) -> bool | None:
        """What name and place tell; ``None`` of what is installed."""
        top = name.partition(".")[0]
        if top in _NEVER or (top in sys.stdlib_module_names and path.startswith(_STANDARD)):
            return False
        return True if normalized(top) in self._follow or not is_installed(path) else None

    @cached_property
    def _own(self) -> list["Distribution"]:
        every = self._distributions.of_paths(sys.path)
        return [each for each in every if each == self._origin or each.name in self._follow or each.is_local]


class Distribution:
    """An installed distribution, by its ``.dist-info`` folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        self.name, self.version = normalized(name), version

    @cached_property
    def files(self) -> bytes:
        """The list of its files, as pip wrote it."""
        try:
            return b"\n" + (self.folder / "RECORD").read_bytes()
        except OSError:
            return b""

    def __contains__(self, path: str) -> bool:
        inner = os.path.relpath(path, self.folder.parent).replace(os.sep, "/")
        return f"\n{inner},".encode() in self.files

    @cached_property
    def is_local(self) -> bool:
        """Whether it was installed from a folder, a file, or version control, and not from an index."""
        try:
            origin: Any = orjson.loads((self.folder / "direct_url.json").read_bytes())
            return "vcs_info" in origin or "dir_info" in origin or str(origin["url"]).startswith("file:")
        except (OSError, ValueError, LookupError, TypeError):
            return False


class Distributions:
    """The distributions of this Python; each folder is looked at once, lists of files where names do not tell."""

    def __init__(self) -> None:
        self._folders: dict[str, list[Distribution]] = {}
        self._of: dict[str, Distribution | None] = {}

    def of(self, path: str) -> Distribution | None:
        """The distribution that a file is of; ``None`` for one that was not installed."""
        match = _SITE.match(path)
        if match is None:
            return None
        folder, inner = match[1], match[2].replace(os.sep, "/")
        package = inner if "/" not in inner else self._package(folder, inner)
        key = f"{folder}/{package}"
        if key not in self._of:
            self._of[key] = self._find(folder, package)
        return self._of[key]

    def installed(self) -> dict[str, str]:
        """Every distribution of this Python and its release, from the names of their folders."""
        found: dict[str, str] = {}
        for each in self.of_paths([*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]):
            found.setdefault(each.name, each.version)
        return dict(sorted(found.items()))

    def of_paths(self, folders: Iterable[str]) -> list[Distribution]:
        """The distributions that are installed in folders."""
        return [each for folder in dict.fromkeys(folders) for each in self._in(folder)]

    def _package(self, folder: str, inner: str) -> str:
        """The outermost folder on the way to a file that is a package of its own, and no namespace of several."""
        parts = inner.split("/")
        for number in range(1, len(parts)):
            if Path(folder, *parts[:number], "__init__.py").exists():
                return "/".join(parts[:number]) + "/"
        return inner

    def _find(self, folder: str, package: str) -> Distribution | None:
        every = self._in(folder)
        name = normalized(package.rstrip("/").removesuffix(".py").partition("/")[0])
        first = [each for each in every if each.name == name]
        sought = f"\n{package}".encode()
        for distribution in (*first, *every):
            if sought in distribution.files:
                return distribution
        return None

    def _in(self, folder: str) -> list[Distribution]:
        if folder not in self._folders:
            try:
                found = sorted(Path(folder or ".").glob("*.dist-info"))
            except OSError:
                found = []
            self._folders[folder] = [Distribution(each) for each in found]
        return self._folders[folder]


def is_installed(path: str) -> bool:
    """Whether a file is where distributions are installed."""
    return _SITE.match(path) is not None


def normalized(name: str) -> str:
    """The name of a distribution or package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
