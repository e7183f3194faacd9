"""Names of the release before: importing one gives what it is called now, and a warning."""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

MOVED: Mapping[str, str] = MappingProxyType(
    {
        "dagster_versioned.tables.environment_diff": "dagster_versioned.branches.diff",
        "dagster_versioned.tables.environments": "dagster_versioned.branches.environments",
        "dagster_versioned.tables.export": "dagster_versioned.branches.export",
        "dagster_versioned.tables.open_promotion": "dagster_versioned.branches.open_promotion",
        "dagster_versioned.tables.promote": "dagster_versioned.branches.promote",
        "dagster_versioned.tables.rebase": "dagster_versioned.branches.rebase",
        "dagster_versioned.tables.downstream": "dagster_versioned.projects.downstream",
        "dagster_versioned.tables.moment": "dagster_versioned.projects.moment",
        "dagster_versioned.tables.project": "dagster_versioned.projects.project",
        "dagster_versioned.tables.staleness": "dagster_versioned.projects.staleness",
        "dagster_versioned.tables.tags": "dagster_versioned.projects.tags",
        "dagster_versioned.tables.parked": "dagster_versioned.publication",
        "dagster_versioned.tables.parked.park": "dagster_versioned.publication.park",
        "dagster_versioned.tables.parked.publish": "dagster_versioned.publication.publish",
        "dagster_versioned.tables.maintenance.verify": "dagster_versioned.tables.verify",
        "dagster_versioned.assets.feature_report": "dagster_versioned.assets.feature_step",
        "dagster_versioned.assets.reuse.narrowed_context": "dagster_versioned.assets.reuse.reuse_step",
        "dagster_versioned.cli.graph_lock": "dagster_versioned.cli.graph",
        "dagster_versioned.components.yaml_schema": "dagster_versioned.components.project",
        "dagster_versioned.delta.missing_features": "dagster_versioned.delta.features",
        "dagster_versioned.engines.spark.batches": "dagster_versioned.engines.spark.write",
        "dagster_versioned.engines.untyped": "dagster_versioned.engines.arrow.engine",
        "dagster_versioned.io_managers.transform_run": "dagster_versioned.io_managers.outputs",
        "dagster_versioned.io_managers.version_diff": "dagster_versioned.io_managers.materialization",
        "dagster_versioned.odf.ingest.event_time": "dagster_versioned.odf.ingest.fetch",
        "dagster_versioned.odf.ingest.prepare": "dagster_versioned.odf.ingest.poll",
        "dagster_versioned.odf.ingest.read_parquet": "dagster_versioned.odf.ingest.read",
        "dagster_versioned.odf.spark.groups": "dagster_versioned.odf.spark.transform",
        "dagster_versioned.odf.verification.taken_back": "dagster_versioned.odf.verification.files",
        "dagster_versioned.tables.relocation.placement_authority": "dagster_versioned.tables.context",
    }
)
"""What a module was called, and what it is called."""


class MovedModules(MetaPathFinder, Loader):
    """Finds modules by the names that they had."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that goes by another name now; ``None`` of all others."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that it is now in its place."""
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(f"{old} is {new} now. Import it by that name.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def find_moved_modules() -> None:
    """Have `MOVED` imported by either name, in this process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())


def find_moved_function(module: str, name: str) -> Callable[..., Any]:
    """A function of `dagster_versioned.delta_tables` by the module that had it, ``.arrow`` or ``.spark``.

    That of ``.spark`` takes the session first. Raises `AttributeError`.
    """
    if name not in MOVED_FUNCTIONS:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new = f"dagster_versioned.delta_tables.{MOVED_FUNCTIONS[name]}"
    warnings.warn(f"{module}.{name} is {new}.{name} now. Import it from there.", DeprecationWarning, stacklevel=3)
    function: Callable[..., Any] = getattr(importlib.import_module(new), name)
    if not module.endswith(".spark"):
        return function

    @wraps(function)
    def with_session(session: Any, *args: Any, **options: Any) -> Any:
        has_frame = name in ("write_delta", "merge_delta")
        return function(*args, **options) if has_frame else function(*args, session=session, **options)

    return with_session


MOVED_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "add_constraint": "write",
        "create_delta": "write",
        "delete_from": "write",
        "merge_delta": "write",
        "optimize_delta": "write",
        "read_changes": "change_feed",
        "read_delta": "read",
        "update_delta": "write",
        "write_delta": "write",
    }
)
"""Functions that each engine had for itself, and the module below `dagster_versioned.delta_tables` that they are in."""
