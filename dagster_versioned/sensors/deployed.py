"""What has to hold of production's code and of its runs before a promotion commits its first version."""

from collections.abc import Iterable, Iterator, Sequence

import dagster as dg

from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import cell_text
from dagster_versioned.sensors.graph import all_units_of, some
from dagster_versioned.sensors.runs import RunsInProgress
from dagster_versioned.tables.history import Version


def require_deployed(
    repositories: Iterable[dg.RepositoryDefinition], project: Project, versions: Iterable[Version]
) -> None:
    """Raise `InvalidInput` where an asset of these code locations states another code version than is promoted.

    What none of them makes is passed over.
    """
    deployed = {key: version for repository in repositories for key, version in _deployed(repository, project)}
    wrong: dict[str, None] = {}
    for version in versions:
        key, made_by = dg.AssetKey(list(version.identity.asset_key)), version.identity.code_version
        if key in deployed and deployed[key] != made_by:
            wrong[f"{key.to_user_string()} ({deployed[key] or 'none'} is deployed, {made_by or 'none'} made it)"] = None
    if wrong:
        raise InvalidInput(
            f"Deployed code states other code versions than those that are to be promoted: {some(list(wrong), 10)}. "
            "Nothing was committed, and what was prepared stays so. Deploy that code first, or name the modules that "
            "are deployed."
        )


def _deployed(repository: dg.RepositoryDefinition, project: Project) -> Iterator[tuple[dg.AssetKey, str | None]]:
    """The assets of a project, with the code versions that they state."""
    graph = repository.asset_graph
    for unit in all_units_of(graph, graph.materializable_asset_keys):
        yield from ((member.key, member.code_version) for member in unit.members if member.place.key[0] == project.name)


def require_idle(
    instance: dg.DagsterInstance, repositories: Sequence[dg.RepositoryDefinition], versions: Iterable[Version]
) -> None:
    """Raise `CommitConflict` where a run in progress is going to write what is promoted.

    A run of a range of partitions counts as one of all of them.
    """
    runs, busy = RunsInProgress(instance, *repositories), list[str]()
    for version in versions:
        key = dg.AssetKey(list(version.identity.asset_key))
        if (run := runs.running(key, version.partition, {})) is not None:
            busy.append(f"{cell_text(key.to_user_string(), version.partition)} (run {run[:8]})")
    if busy:
        raise CommitConflict(
            f"Runs in progress write what is to be promoted: {some(busy, 10)}. Nothing was committed, and what was "
            "prepared stays so. Try again when they have ended, or end them."
        )
