"""Reading by name alone: project -> ref.json -> store -> version -> the method that dispatch.json names.

A dispatch document is data that others may edit, so what it names is never imported because it is named there: only our
own methods, and those on the operator's allow-list, are (`ALLOWED_VARIABLE`).
"""

import os
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from dagster_versioned.engines.part_cache import PartCache
from dagster_versioned.errors import GovernanceError, InvalidInput, MethodRefused
from dagster_versioned.governance.connect import Governance, GovernedPlacement
from dagster_versioned.governance.documents import DEFAULT_DISPATCH
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.choose import VersionLike

ALLOWED_VARIABLE = "DAGSTER_VERSIONED_ALLOWED_METHODS"
"""Environment variable with the dotted names, separated by commas, that dispatch documents may name here."""

GOVERNANCE_VARIABLE = "DAGSTER_VERSIONED_GOVERNANCE"
"""Environment variable with the location of the governance storage, for who reads without naming it."""

LANGUAGE = "python"


class Method(Protocol):
    """What a dispatch document may name: called with the project, opened where it is now, it returns a frame.

    ``options`` are what the caller of `read` passed on, such as ``as_type``, ``columns`` and ``partition``.
    """

    def __call__(self, project: Project, table: str, version: VersionLike = None, **options: Any) -> Any: ...


def read(
    project: str | Project,
    table: str,
    *,
    version: VersionLike = None,
    context: str | None = None,
    governance: Governance | str | None = None,
    allow: Collection[str] = (),
    **options: Any,
) -> Any:
    """The rows of a version of a table, wherever the project is now, read as its dispatch document says.

    ``project`` is a name, or an open project. A name needs ``governance``: a `Governance`, or for readers just the
    location of the governance storage, which may stand in ``DAGSTER_VERSIONED_GOVERNANCE`` instead. ``version`` is what
    `VersionedTable.read` takes, and so are the ``options`` for our own methods. ``context`` is a named way of reading,
    by default ``default``; a project without governance knows ``default`` and ``cached``. ``allow`` adds to the methods
    that may be called here.

    Raises `MethodRefused` for a method that is not allowed or not installed, `GovernanceError`, `VersionNotFound`, and
    what the method raises. Source: seed 003, "What ref.json is not"; FORMAT.md, "Governance".
    """
    opened, name = _resolve(project, governance, context)
    return _method(name, opened.name, allow)(opened, table, version, **options)


def read_directly(project: Project, table: str, version: VersionLike = None, **options: Any) -> Any:
    """The method ``dagster_versioned.read``: `VersionedTable.read`."""
    return project.table(table).read(version, **options)


def read_cached(
    project: Project, table: str, version: VersionLike = None, *, as_type: type | None = None, **options: Any
) -> Any:
    """`VersionedTable.read` through the local part cache: a part that was read before is not fetched again.

    The log is read where the project is, so the head is the head; the parts, whose names are the SHA-256 of their
    bytes, come from the cache, and each is checked before its first row. Bounded by ``DAGSTER_VERSIONED_CACHE_BYTES``
    (`PartCache`). Parts on this machine are read where they are.
    """
    opened = project.table(table)
    files = opened.files(version, **options)
    scan = files.scan
    if scan.files and scan.store.local_path(scan.files[0].key) is None:
        files = replace(files, scan=PartCache.default().localized(scan, "bytes"))
    return opened.read_files(files, as_type)


_OURS: Mapping[str, Method] = {"dagster_versioned.read": read_directly, "dagster_versioned.read_cached": read_cached}
_UNGOVERNED = DEFAULT_DISPATCH.methods[LANGUAGE]


def _resolve(project: str | Project, governance: Governance | str | None, context: str | None) -> tuple[Project, str]:
    """The project, open, and the dotted name of the method for the context; the documents are read once."""
    if governance is None and isinstance(project, str):
        governance = os.environ.get(GOVERNANCE_VARIABLE) or None
    if isinstance(governance, str):
        governance = Governance(governance)
    if isinstance(project, Project):
        if governance is None and isinstance(project.placement_authority, GovernedPlacement):
            governance = project.placement_authority.governance
        if governance is None:
            return project, _ungoverned(project.name, context)
        return project, governance.documents(project.name).dispatch.method(LANGUAGE, context)
    if governance is None:
        raise InvalidInput(
            f"Where the project {project!r:.100} is, only governance knows. Nothing was read. Pass governance= (such "
            f"as 's3://bucket/prefix' of the governance storage), set {GOVERNANCE_VARIABLE}, or pass an open Project."
        )
    documents = governance.documents(project)
    name = documents.dispatch.method(LANGUAGE, context)
    return governance.project_at(project, documents.ref.current), name


def _ungoverned(project: str, context: str | None) -> str:
    name = _UNGOVERNED.get(context or "default")
    if name is None:
        raise GovernanceError(
            f"{project} has no governance, so it has no context {context!r:.100}. Nothing was read. There are: "
            f"{', '.join(_UNGOVERNED)}."
        )
    return name


def _method(name: str, project: str, allow: Collection[str]) -> Method:
    """The method of a dotted name, imported only if it may be. Raises `MethodRefused`."""
    if name in _OURS:
        return _OURS[name]
    if isinstance(allow, str):  # whose letters would all be allowed
        raise InvalidInput(f"allow must be a collection of names: [{allow!r:.100}]. Nothing was read.")
    if name not in allow and name not in _operators():
        raise MethodRefused(
            f"The dispatch document of {project} names the method {name!r}, which is not allowed here. It was "
            f"neither imported nor called. If you trust it with your own rights, allow it: {ALLOWED_VARIABLE}={name}, "
            f"or read(…, allow=[{name!r}])."
        )
    try:
        method = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise MethodRefused(
            f"The dispatch document of {project} names the method {name!r}, which is allowed but not installed "
            f"here ({error}). Nothing was read. Install the package that has it, or choose another context."
        ) from error
    if not callable(method):
        raise MethodRefused(
            f"The dispatch document of {project} names {name!r}, which is a {type(method).__name__} and cannot be "
            "called. Nothing was read. Correct it with `dagster-versioned gov dispatch`."
        )
    return method


def _operators() -> set[str]:
    return {name.strip() for name in os.environ.get(ALLOWED_VARIABLE, "").split(",") if name.strip()}
