"""Where the changes began that a run is requested because of: what `why` would say of the upstreams."""

import logging
from collections.abc import Iterable

from dagster_versioned.errors import VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import Change, StaleCell
from dagster_versioned.proof.lineage import OpenProject, ProjectLineage, VersionName
from dagster_versioned.proof.why import Cause, causes_between
from dagster_versioned.sensors.graph import Edge, Unit

logger = logging.getLogger("dagster_versioned")

_EXPLAINED = 3
_CAUSES = 3
_TABLES = 24
"""Of each project, in one tick: a tick has to end in a minute, however much has changed."""
_CHARACTERS = 600
"""Of a tag, which the UI shows on one line."""


class ChangeCauses:
    """The causes of changes of upstreams.

    The logs of a few tables are read, each once and no further back than is needed; what is in others is not followed.
    """

    def __init__(self, projects: Iterable[Project]) -> None:
        self._known = {project.name: project for project in projects if project.environment is None}
        self._lineages: dict[int, ProjectLineage] = {}

    def text(self, unit: Unit, finding: StaleCell) -> str:
        """Why a cell is to run: which upstreams went from which version to which, and where that began."""
        causes = self._of(unit, finding.changes[:_EXPLAINED])
        shown = "; ".join(map(str, causes[:_CAUSES]))
        more = f"; and {len(causes) - _CAUSES} more" if len(causes) > _CAUSES else ""
        text = f"{finding.why}: {shown}{more}" if causes else finding.why
        return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"

    def _of(self, unit: Unit, changes: Iterable[Change]) -> list[Cause]:
        edges = {edge.upstream.to_user_string(): edge for member in unit.members for edge in member.edges}
        found: dict[tuple[str, str], Cause] = {}
        for change in changes:
            edge = edges.get(change.upstream or "")
            if edge is None or change.before is None or change.after is None:
                continue
            try:
                causes = self._between(edge, change.partition, change.before, change.after)
            except VersionedError:  # the run is requested all the same
                logger.warning("%s: where its change began could not be read.", change, exc_info=True)
                continue
            found |= {(cause.kind, cause.text): cause for cause in causes}
        return list(found.values())

    def _between(self, edge: Edge, partition: str | None, before: str, after: str) -> tuple[Cause, ...]:
        project = edge.place.project
        if not isinstance(project, Project):
            return ()
        lineage = self._lineages.setdefault(id(project), ProjectLineage(project, self._open, most_tables=_TABLES))
        environment = None if project.environment is None else project.environment.name
        names = (
            VersionName(project.name, str(edge.place.table), sha, partition, environment) for sha in (before, after)
        )
        return causes_between(lineage, *names)

    @property
    def _open(self) -> OpenProject:
        def opened(name: str) -> Project:
            if name not in self._known:
                raise VersionedError(f"The project {name} is none that the sensor watches.")
            return self._known[name]

        return opened
