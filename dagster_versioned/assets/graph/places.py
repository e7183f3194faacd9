"""Where assets are stored: which IO manager they are defined with, hence which project and table."""

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from dagster_versioned.assets.graph.inputs import URI_KEY, plain
from dagster_versioned.dagster_internals import AssetGraph, AssetNode
from dagster_versioned.errors import InvalidName
from dagster_versioned.identity.names import TableName, table_name_of
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.project import Project


@dataclass(frozen=True)
class Place:
    """Where an asset is stored: a table of a project, or a Delta table of none."""

    project: Project | ExternalTable
    table: TableName

    @property
    def key(self) -> tuple[str, str]:
        """As lineage names it."""
        return self.project.key if isinstance(self.project, ExternalTable) else (self.project.name, str(self.table))

    @property
    def is_in_environment(self) -> bool:
        """Whether it is in an environment of its project."""
        return not isinstance(self.project, ExternalTable) and self.project.environment is not None

    @property
    def forked_at(self) -> int:
        """In an environment, the log version up to which the table is production's; else -1."""
        environment = None if isinstance(self.project, ExternalTable) else self.project.environment
        return -1 if environment is None else environment.forked_at(self.table)


class Places:
    """Where assets are stored, by the IO managers that they are defined with; each is made once.

    They are made with ``instance``; without it, with one that is made for that and remembers nothing.
    """

    def __init__(self, graph: AssetGraph, instance: dg.DagsterInstance | None = None) -> None:
        self._graph = graph
        self._instance = instance
        self._managers: dict[int, tuple[dg.ResourceDefinition, ProjectResource | None, Mapping[str, str]]] = {}
        self._projects: dict[tuple[str, str], Project] = {}
        self._external: dict[dg.AssetKey, ExternalTable] = {}

    def of(self, key: dg.AssetKey) -> Place | None:
        """Where an asset is stored; ``None`` if that is no versioned table."""
        external = self.external(key)
        if external is not None:
            return Place(external, external.name)
        resource = self.resource(key)
        if resource is None:
            return None
        try:
            table = table_name_of(key.path)
        except InvalidName:
            return None  # no version of it can have been written
        project = resource.project()
        return Place(self._projects.setdefault((project.name, project.store.uri), project), table)

    def external(self, key: dg.AssetKey) -> ExternalTable | None:
        """The Delta table that a source is, if it is one of no project; reached as its IO manager reaches a project."""
        uri = plain(self._graph.get(key).metadata, URI_KEY) if self._graph.has(key) else None
        if uri is None:
            return None
        if key not in self._external:
            self._external[key] = external_table(str(uri), key, self._manager(key)[0])
        return self._external[key]

    def resource(self, key: dg.AssetKey) -> ProjectResource | None:
        """The project that an asset is stored in, without opening it; ``None`` as for `of`."""
        if not self._graph.has(key) or _is_nothing(self._graph.get(key)):
            return None
        return self._manager(key)[0]

    def project_for(self, key: dg.AssetKey, reader: dg.AssetKey, own: Project) -> Project:
        """The project in which a dependency of ``reader``, which is stored in ``own``, is looked for.

        That of its IO manager. Where this is the reader's as well, it may be configured otherwise in a run than here,
        so ``own`` counts; as it does where the dependency has no IO manager, or none of ours.
        """
        if not self._graph.has(key) or self.definition(key) is self.definition(reader):
            return own
        resource = self.resource(key)
        return own if resource is None or resource.name == own.name else resource.project()

    def beside(self, place: Place, key: dg.AssetKey) -> Place | None:
        """Where an asset is looked for that somebody depends on and that nothing here defines: in the same project."""
        if self._graph.has(key) and self._graph.get(key).assets_def.resource_defs:
            return None
        try:
            return Place(place.project, table_name_of(key.path))
        except InvalidName:
            return None

    def pin(self, key: dg.AssetKey, table: TableName) -> str | None:
        """What the configuration of the asset's IO manager pins its table to."""
        return self._manager(key)[1].get(str(table))

    def _manager(self, key: dg.AssetKey) -> tuple[ProjectResource | None, Mapping[str, str]]:
        definition = self.definition(key)
        if definition is None:
            return None, {}
        if id(definition) not in self._managers:
            assets = self._graph.get(key).assets_def
            name = assets.get_io_manager_key_for_asset_key(key)
            self._managers[id(definition)] = (
                definition,
                *_made(name, definition, assets.resource_defs, self._instance),
            )
        return self._managers[id(definition)][1:]

    def definition(self, key: dg.AssetKey) -> dg.ResourceDefinition | None:
        """The IO manager that an asset is defined with; ``None`` without one."""
        assets = self._graph.get(key).assets_def
        return assets.resource_defs.get(assets.get_io_manager_key_for_asset_key(key))


def external_table(uri: str, key: dg.AssetKey, resource: ProjectResource | None) -> ExternalTable:
    """The table of a source, with the keys of the project that its IO manager is on, if it has one of ours."""
    name = table_name_of(key.path)
    return resource.external(uri, name) if resource is not None else ExternalTable(uri, name)


def _made(
    name: str,
    definition: dg.ResourceDefinition,
    others: Mapping[str, dg.ResourceDefinition],
    instance: dg.DagsterInstance | None,
) -> tuple[ProjectResource | None, Mapping[str, str]]:
    """The project and the pins of an IO manager, if it is one of ours: one with a `ProjectResource`."""
    fields = getattr(getattr(definition, "configurable_resource_cls", None), "model_fields", {})
    if "project" not in fields:
        return None, {}
    needed, keys = {name: definition}, [name]
    while keys:
        for key in needed[keys.pop()].required_resource_keys - needed.keys():
            needed[key] = others[key]
            keys.append(key)
    with dg.build_resources(needed, instance) as resources:
        manager = getattr(resources, name)
        project = getattr(manager, "project", None)
        return (project, getattr(manager, "pins", {})) if isinstance(project, ProjectResource) else (None, {})


def _is_nothing(node: AssetNode) -> bool:
    """Whether what the asset returns never reaches an IO manager."""
    if not node.is_materializable:
        return False
    assets = node.assets_def
    return assets.node_def.output_def_named(assets.get_output_name_for_asset_key(node.key)).dagster_type.is_nothing
