"""Computing a version again, in this process, in which projects are what the version saw of them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import dagster as dg

from dagster_versioned.assets.asset_code import code_of
from dagster_versioned.assets.code_location import CodeLocation, repositories_of
from dagster_versioned.io_managers.computations import RECOMPUTE_TAG
from dagster_versioned.io_managers.materialization import OURS
from dagster_versioned.io_managers.parquet import VersionedParquetIOManager
from dagster_versioned.process_state import PROCESS
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.attest import named_version
from dagster_versioned.proof.lineage import OpenProject, ProjectLineage, first_sentence
from dagster_versioned.proof.reproduction import Reproduction, compare_with, not_possible, read_before
from dagster_versioned.proof.stand_in import NotPossible, stand_ins_for
from dagster_versioned.tables import code_details
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.stand_ins import StandIns


@dataclass(frozen=True)
class Ran:
    """What is known of a function that was called again: whether its code is the recorded one, and of its config."""

    same_code: bool | None
    takes_config: bool = False


class RunOptions(TypedDict, total=False):
    """How a function is called again.

    ``allowed`` are the resources that it may use beside IO managers, ``config`` is that of the run;
    ``needs_recorded_code`` says that no other code may be called.
    """

    allowed: Collection[str]
    config: Mapping[str, Any] | None
    needs_recorded_code: bool


def reproduce(
    project: Project,
    table: str,
    version: VersionLike,
    locations: Iterable[CodeLocation],
    folder: Path,
    *,
    partition: str | None = None,
    open_project: OpenProject | None = None,
    **how: Unpack[RunOptions],
) -> tuple[Reproduction, Mapping[str, Any]]:
    """Run the function of a version's asset on what the version was built from, and compare; also the rows of both.

    All in this process, which has stand-ins for the projects from then on; see `run_again` and `compare_with`. Raises
    `VersionNotFound`, `InvalidInput`, `StorageError`.
    """
    found = named_version(project.table(table), version, partition)
    before = read_before(project, table, found)
    try:
        if isinstance(before, NotPossible):
            raise before
        stand_ins, ran = run_again(project, table, found, locations, folder, open_project=open_project, **how)
        return compare_with(stand_ins[project.name], table, found, before, ran.same_code, ran.takes_config)
    except NotPossible as error:
        return not_possible(table, found, str(error)), {}


def run_again(
    project: Project,
    table: str,
    found: Version,
    locations: Iterable[CodeLocation],
    folder: Path,
    *,
    open_project: OpenProject | None = None,
    **how: Unpack[RunOptions],
) -> tuple[Mapping[str, Project], Ran]:
    """Run the function of a version's asset, in this process, which has stand-ins for the projects from then on.

    What is written goes to ``folder``. Raises `NotPossible`, `InvalidInput`, `StorageError`.
    """
    opened = project.table(table)
    lineage = ProjectLineage(project, open_project)
    stand_ins = stand_ins_for(lineage, lineage.own_table(str(opened.name)), [found], folder)
    PROCESS.of(StandIns).update(stand_ins)
    key = dg.AssetKey(list(opened.asset_key))
    repository, assets = _asset_of(key, locations)
    same_code = _is_same_code(found, assets)
    if how.get("needs_recorded_code") and not same_code:
        raise NotPossible("the code at the recorded commit is not the recorded code")
    _refuse_resources(repository, assets, how.get("allowed", ()))
    config = how.get("config")
    _compute(repository, assets, key, found, stand_ins[project.name], config)
    schema: Any = getattr(assets.node_def.config_schema, "config_type", None)
    return stand_ins, Ran(same_code, bool(getattr(schema, "fields", None)) and not config)


def _asset_of(
    key: dg.AssetKey, locations: Iterable[CodeLocation]
) -> tuple[dg.RepositoryDefinition, dg.AssetsDefinition]:
    for repository in repositories_of(locations):
        assets = repository.assets_defs_by_key.get(key)
        if assets is not None and assets.is_executable:
            return repository, assets
    raise NotPossible(f"no definition of the asset {key.to_user_string()} is in what was loaded")


def _is_same_code(version: Version, assets: dg.AssetsDefinition) -> bool | None:
    """Nobody knows of code that cannot be followed."""
    recorded, now = code_details.code_of(version), code_of(assets)
    if recorded is None or now is None or recorded.opaque or now.opaque:
        return None
    return recorded.fingerprint == str(now)


def _refuse_resources(
    repository: dg.RepositoryDefinition, assets: dg.AssetsDefinition, allowed: Collection[str]
) -> None:
    """Refuse what is no IO manager of ours, and nobody has allowed: it may write, or call a service."""
    resources = repository.get_top_level_resources()

    def is_ours(name: str) -> bool:
        kind = getattr(resources.get(name), "configurable_resource_cls", None)
        return isinstance(kind, type) and issubclass(kind, VersionedParquetIOManager)

    managers = {assets.get_io_manager_key_for_asset_key(key) for key in assets.keys}
    for name in sorted(managers):
        if not is_ours(name):
            raise NotPossible(f"its IO manager {name!r} is none of this package")
    loaded = dict(_loaded_by(repository, assets))
    for key, name in loaded.items():
        if not is_ours(name):
            raise NotPossible(f"its input {key.to_user_string()} has no versions: the IO manager {name!r} loads it")
    others = sorted(set(assets.required_resource_keys) - managers - set(loaded.values()) - set(allowed))
    if others:
        raise NotPossible(f"it needs {', '.join(others)}, which is not allowed here: --allow-resource {others[0]}")


def _loaded_by(repository: dg.RepositoryDefinition, assets: dg.AssetsDefinition) -> Iterator[tuple[dg.AssetKey, str]]:
    """The assets that are loaded for the function, with the key of the IO manager that loads each."""
    for input_ in assets.node_def.input_defs:
        key = assets.keys_by_input_name.get(input_.name)
        if key is None or input_.dagster_type.is_nothing:
            continue
        upstream = repository.assets_defs_by_key.get(key)
        source = repository.source_assets_by_key.get(key)
        if input_.input_manager_key is not None:
            yield key, input_.input_manager_key
        elif upstream is not None and upstream.is_executable:
            yield key, upstream.get_io_manager_key_for_asset_key(key)
        else:
            yield key, "io_manager" if source is None else source.get_io_manager_key()


def _compute(
    repository: dg.RepositoryDefinition,
    assets: dg.AssetsDefinition,
    key: dg.AssetKey,
    found: Version,
    here: Project,
    config: Mapping[str, Any] | None,
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = _executed(instance, repository, assets, found.partition, config)
    if not result.success:
        raise NotPossible(f"its function failed: {_failure_of(result)}")
    events = [event for event in result.get_asset_materialization_events() if event.asset_key == key]
    made = [event.step_materialization_data.materialization for event in events]
    if not any(name.startswith(f"{OURS}/") for each in made for name in each.metadata):
        raise NotPossible("its function made nothing that an IO manager of this package stored")
    if any(draft.is_living for draft in here.parked()):
        here.publish(result.run_id, by="reproduction")


def _failure_of(result: dg.ExecuteInProcessResult) -> str:
    failures = [event.event_specific_data for event in result.all_events if event.is_step_failure]
    error = getattr(failures[0], "error", None) if failures else None
    cause = getattr(error, "cause", None) or error
    return str(getattr(cause, "message", cause)).strip()[:300]


def _executed(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    assets: dg.AssetsDefinition,
    partition: str | None,
    config: Mapping[str, Any] | None,
) -> dg.ExecuteInProcessResult:
    every = repository.get_implicit_global_asset_job_def()
    job = every.get_subset(asset_selection=frozenset(assets.keys), asset_check_selection=frozenset())
    try:
        _add_partition(instance, assets, partition)
        return job.execute_in_process(
            instance=instance,
            partition_key=partition,
            run_config=config,
            tags={RECOMPUTE_TAG: "true"},
            raise_on_error=False,
        )
    except dg.DagsterInvalidConfigError as error:
        what = "which is not recorded: --config FILE" if config is None else f"and not this: {error.errors[0].message}"
        raise NotPossible(f"it needs config, {what}") from error
    except NotPossible:
        raise
    except Exception as error:  # whatever Dagster has against it; what the function raises is in the result
        of = "" if partition is None else f" for the partition {partition!r}"
        raise NotPossible(f"Dagster would not run it{of}: {first_sentence(error)[:300]}") from error


def _add_partition(instance: dg.DagsterInstance, assets: dg.AssetsDefinition, partition: str | None) -> None:
    """Dynamic partitions are in an instance, and this one knows none."""
    definition = assets.partitions_def
    if partition is None or definition is None:
        if partition is not None:
            raise NotPossible("it is of a partition, and its asset has none now")
        if definition is not None:
            raise NotPossible("it is of no partition, and its asset has partitions now")
        return
    dimensions = {"": definition}
    keys: Mapping[str, str] = {"": partition}
    if isinstance(definition, dg.MultiPartitionsDefinition):
        dimensions = {each.name: each.partitions_def for each in definition.partitions_defs}
        multi = definition.get_partition_key_from_str(partition)
        keys = multi.keys_by_dimension
    for name, each in dimensions.items():
        if isinstance(each, dg.DynamicPartitionsDefinition) and each.name is not None:
            instance.add_dynamic_partitions(each.name, [keys[name]])
