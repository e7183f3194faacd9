"""The code locations that a workspace file names, or that are in a folder, as Dagster finds them."""

import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dagster_versioned.assets.code_location import CodeLocation
from dagster_versioned.dagster_internals import GrpcServerCodeLocationOrigin, location_origins_from_yaml_paths
from dagster_versioned.errors import InvalidInput

_WORKSPACES = ("workspace.yaml", "workspace.yml")
_LONGEST = 300


def locations_of_workspace(file: Path) -> list[CodeLocation]:
    """The code locations of a workspace file: paths are relative to it, modules without one are found from here.

    Raises `InvalidInput` where Dagster does not take the file, or a code location is of a server or of another Python,
    since definitions are read in this process.
    """
    file = file.absolute()
    try:
        origins = location_origins_from_yaml_paths([str(file)])
    except Exception as error:
        # Of its schema, Dagster says where it does not fit, and then all of it.
        errors: Sequence[Any] = getattr(error, "errors", None) or ()
        text = " ".join(str(errors[0].message if errors else error).split()).partition(" Expected:")[0]
        raise _refusal(file, f"cannot be read ({type(error).__name__}: {text:.{_LONGEST}})") from error
    if not origins:
        raise _refusal(file, "names no code location")
    return [_location(file, origin) for origin in origins]


def _location(file: Path, origin: Any) -> CodeLocation:
    if isinstance(origin, GrpcServerCodeLocationOrigin):
        raise _refusal(file, f"has the server {origin.location_name!r}, and definitions are read in this process")
    target = origin.loadable_target_origin
    if target.executable_path and not _is_this_python(target.executable_path):
        raise _refusal(
            file,
            f"has {origin.location_name!r} of another Python, {target.executable_path}, and definitions are read in"
            " this process",
        )
    module = target.module_name or target.package_name or target.autoload_defs_module_name
    return CodeLocation(
        module or file.parent / str(target.python_file),
        folder=file.parent / target.working_directory if target.working_directory else Path.cwd(),
        attribute=target.attribute,
        autoload=target.autoload_defs_module_name is not None,
    )


def locations_in(folder: Path) -> list[CodeLocation]:
    """The code locations that a folder is of: what its pyproject.toml, dg.toml or workspace file names; none is empty.

    Raises `InvalidInput` where one of these files cannot be read, or says something else than Dagster takes.
    """
    folder = folder.absolute()
    if names := _module_names(folder / "pyproject.toml"):
        return [CodeLocation(name, folder=folder) for name in names]
    found = _projects_in(folder)
    workspace = next((folder / name for name in _WORKSPACES if (folder / name).is_file()), None)
    return found or (locations_of_workspace(workspace) if workspace else [])


def _module_names(file: Path) -> list[str]:
    """The modules that a pyproject.toml names for Dagster."""
    own = _table(file, _toml(file), "tool", "dagster")
    names = [_text(file, own["module_name"], "module_name")] if "module_name" in own else []
    modules = [table for table in _tables(file, own, "modules") if table.get("type") == "module"]
    return names + [_text(file, module.get("name"), "modules.name") for module in modules]


def _projects_in(folder: Path) -> list[CodeLocation]:
    """The project of ``dg`` in a folder, or those of its workspace."""
    file, settings = _dg(folder)
    found = _project(file, settings)
    for table in _tables(file, _table(file, settings, "workspace"), "projects"):
        path = folder / _text(file, table.get("path"), "workspace.projects.path")
        project = _project(*_dg(path))
        if not project:
            raise _refusal(file, f"names the project {path}, which has no dg.toml or [tool.dg.project]")
        found += project
    return found


def _project(file: Path, settings: Mapping[str, Any]) -> list[CodeLocation]:
    project = _table(file, settings, "project")
    if not project:
        return []
    root = _text(file, project.get("root_module"), "project.root_module")
    autoload = project.get("autoload_defs") is True
    key, last = ("defs_module", "defs") if autoload else ("code_location_target_module", "definitions")
    module = _text(file, project.get(key, f"{root}.{last}"), f"project.{key}")
    source, top = file.parent / "src", root.partition(".")[0]
    is_in_source = (source / top).is_dir() or (source / f"{top}.py").is_file()
    return [CodeLocation(module, folder=source if is_in_source else file.parent, autoload=autoload)]


def _dg(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Where the settings of ``dg`` are, and which: where there is a dg.toml, it reads no pyproject.toml."""
    own, shared = folder / "dg.toml", folder / "pyproject.toml"
    return (own, _toml(own)) if own.is_file() else (shared, _table(shared, _toml(shared), "tool", "dg"))


def _toml(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise _refusal(file, f"cannot be read ({type(error).__name__}: {error})") from error


def _table(file: Path, within: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = within.get(key, {})
        if not isinstance(value, dict):
            raise _refusal(file, f"has {value!r:.50} for {key}, which is a table")
        within = cast("Mapping[str, Any]", value)
    return within


def _tables(file: Path, within: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = within.get(key, [])
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in cast("list[object]", value)):
        raise _refusal(file, f"has {value!r:.50} for {key}, which is a list of tables")
    return cast("list[Mapping[str, Any]]", value)


def _text(file: Path, value: object, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise _refusal(file, f"has {value!r:.50} for {key}, which is a text")
    return value


def _is_this_python(path: str) -> bool:
    """Whether it is an interpreter of this environment, which has it under several names."""
    found = shutil.which(path)
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()


def _refusal(file: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{file} {why}. Nothing was read. Correct it, or name the modules of code locations with -m, each with the"
        " Python that it runs with."
    )
