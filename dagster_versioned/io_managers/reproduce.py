"""Computing a version again, in this process, in which projects are what the version saw of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_versioned.assets.asset_code import code_of
from dagster_versioned.assets.code_location import CodeLocation, repositories_of
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.io_managers.computations import RECOMPUTE_TAG
from dagster_versioned.io_managers.parquet import VersionedParquetIOManager
from dagster_versioned.process_state import PROCESS
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.stand_ins import StandIns
from dagster_versioned.proof.lineage import OpenProject, ProjectLineage, first_sentence
from dagster_versioned.proof.reproduction import Reproduction, compare
from dagster_versioned.proof.stand_in import NotPossible, stand_ins_for
from dagster_versioned.tables import code_details
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.history import Version


def reproduce(
    project: Project,
    table: str,
    version: VersionLike,
    locations: Iterable[CodeLocation],
    folder: Path,
    *,
    partition: str | None = None,
    allowed: Collection[str] = (),
    open_project: OpenProject | None = None,
    needs_recorded_code: bool = False,
) -> tuple[Reproduction, Mapping[str, Any]]:
    """Run the function of a version's asset on what the version was built from, and compare; also the rows of both.

    From then on this process has stand-ins for the projects; what is written goes to ``folder``. ``allowed`` are the
    resources that it may use beside IO managers. Raises `VersionNotFound`, `InvalidInput`, `StorageError`.
    """
    opened = project.table(table)
    found = opened.version(version, partition=partition)
    before = opened.read(f"@{found.log_version}", partition=found.partition) if found.gone is None else None
    lineage = ProjectLineage(project, open_project)
    try:
        if before is None:
            raise NotPossible(f"its rows are gone ({found.gone}), so there is nothing to compare with")
        if opened.state.is_history:
            raise NotPossible("its events carry the time at which they were added: `odf verify --replay` is for them")
        stand_ins = stand_ins_for(lineage, lineage.own_table(str(opened.name)), [found], folder)
        PROCESS.of(StandIns).update(stand_ins)
        repository, assets = _asset_of(opened.asset_key, locations)
        same_code = _is_same_code(found, assets)
        if needs_recorded_code and not same_code:
            raise NotPossible("the code at the recorded commit is not the recorded code")
        _refuse_resources(repository, assets, allowed)
        again = _computed(repository, assets, dg.AssetKey(list(opened.asset_key)), found, stand_ins[project.name])
        rows = {"before": before, "again": stand_ins[project.name].table(table).read(partition=found.partition)}
        return compare(found, again, rows, same_code, table), rows
    except NotPossible as error:
        outcome = Reproduction(table, str(found.metadata_sha), found.partition, "not possible", str(error))
        return outcome, {}


def _asset_of(
    asset_key: Sequence[str], locations: Iterable[CodeLocation]
) -> tuple[dg.RepositoryDefinition, dg.AssetsDefinition]:
    key = dg.AssetKey(list(asset_key))
    for repository in repositories_of(locations):
        assets = repository.assets_defs_by_key.get(key)
        if assets is not None and assets.is_executable:
            return repository, assets
    raise NotPossible(f"no definition of the asset {key.to_user_string()} is in what was loaded")


def _is_same_code(version: Version, assets: dg.AssetsDefinition) -> bool | None:
    recorded, now = code_details.code_of(version), code_of(assets)
    return None if recorded is None or now is None else recorded.fingerprint == str(now)


def _refuse_resources(
    repository: dg.RepositoryDefinition, assets: dg.AssetsDefinition, allowed: Collection[str]
) -> None:
    """Refuse what is no IO manager of ours, and nobody has allowed: it may write, or call a service."""
    resources = repository.get_top_level_resources()
    managers = {assets.get_io_manager_key_for_asset_key(key) for key in assets.keys}
    for name in sorted(managers):
        kind = getattr(resources.get(name), "configurable_resource_cls", None)
        if not (isinstance(kind, type) and issubclass(kind, VersionedParquetIOManager)):
            raise NotPossible(f"its IO manager {name!r} is none of this package")
    others = sorted(set(assets.required_resource_keys) - managers - set(allowed))
    if others:
        raise NotPossible(f"it needs {', '.join(others)}, which is not allowed here: --allow-resource {others[0]}")


def _computed(
    repository: dg.RepositoryDefinition, assets: dg.AssetsDefinition, key: dg.AssetKey, found: Version, here: Project
) -> Version:
    every = repository.get_implicit_global_asset_job_def()
    job = every.get_subset(asset_selection=frozenset(assets.keys), asset_check_selection=frozenset())
    with dg.DagsterInstance.ephemeral() as instance:
        _add_partition(instance, assets, found.partition)
        try:
            result = job.execute_in_process(
                instance=instance,
                partition_key=found.partition,
                tags={RECOMPUTE_TAG: "true"},
                raise_on_error=False,
            )
        except dg.DagsterInvalidConfigError as error:
            raise NotPossible(f"it needs config, which is not recorded: {first_sentence(error)}") from error
        if not result.success:
            failures = [event.event_specific_data for event in result.all_events if event.is_step_failure]
            error = getattr(failures[0], "error", None) if failures else None
            cause = getattr(error, "cause", None) or error
            raise NotPossible(f"its function failed: {str(getattr(cause, 'message', cause)).strip()[:300]}")
        made = {event.asset_key for event in result.get_asset_materialization_events()}
        if key not in made:
            raise NotPossible("its function made nothing")
        run_id = result.run_id
    for draft in here.parked():
        if draft.is_living:
            here.publish(run_id, by="reproduction")
            break
    try:
        return here.table(list(key.path)).version(partition=found.partition)
    except VersionedError as error:
        raise NotPossible(f"what its function made cannot be read: {first_sentence(error)}") from error


def _add_partition(instance: dg.DagsterInstance, assets: dg.AssetsDefinition, partition: str | None) -> None:
    """Dynamic partitions are in an instance, and this one knows none."""
    definition = assets.partitions_def
    if partition is None and definition is not None:
        raise InvalidInput("The version is of no partition, and its asset has partitions now. Nothing was run.")
    if partition is None or definition is None:
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
