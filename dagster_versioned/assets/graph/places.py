"""Where assets are stored: which IO manager they are defined with, hence which project and table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.inputs import URI_KEY, inputs_by_upstream, plain
from dagster_versioned.dagster_internals import AssetGraph, AssetNode
from dagster_versioned.errors import InvalidName
from dagster_versioned.identity.names import TableName, table_name_of
from dagster_versioned.projects.project import Project
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.external import ExternalTable


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


@dataclass(frozen=True)
class _Manager:
    """An IO manager: the project that it is on and its pins, if it is one of ours, or why it is not."""

    definition: dg.ResourceDefinition | None
    project: ProjectResource | None = None
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    why_none: str = ""


class Places:
    """Where assets are stored, by the IO managers that they are defined with; each is made once.

    They are made with ``instance``; without it, with one that is made for that and remembers nothing.
    """

    def __init__(self, graph: AssetGraph, instance: dg.DagsterInstance | None = None) -> None:
        self._graph = graph
        self._instance = instance
        self._managers: dict[int, _Manager] = {}
        self._projects: dict[tuple[str, str], Project] = {}
        self._external: dict[dg.AssetKey, ExternalTable] = {}

    def of(self, key: dg.AssetKey, reader: dg.AssetKey | None = None) -> Place | None:
        """Where an asset is stored, or where ``reader`` loads it from; ``None`` if that is no versioned table."""
        external = self.external(key)
        if external is not None:
            return Place(external, external.name)
        resource = self.resource(key, reader)
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
        uri = self._uri(key)
        if uri is None:
            return None
        if key not in self._external:
            self._external[key] = external_table(uri, key, self._manager(key).project)
        return self._external[key]

    def resource(self, key: dg.AssetKey, reader: dg.AssetKey | None = None) -> ProjectResource | None:
        """The project that an asset is stored in, or loaded from, without opening it; ``None`` as for `of`."""
        if not self._graph.has(key) or _is_nothing(self._graph.get(key)):
            return None
        return self._manager(key, reader).project

    def may_be_table(self, key: dg.AssetKey, reader: dg.AssetKey | None = None) -> bool:
        """Whether `of` may say where an asset is, as far as that is known before anything is made or opened."""
        if self._uri(key) is not None:
            return True
        if not self._graph.has(key) or _is_nothing(self._graph.get(key)):
            return False
        definitions = [definition for _, definition in self._definitions(key, reader)]
        return any(_may_be_ours(definition) for definition in definitions)

    def require_name(self, key: dg.AssetKey) -> None:
        """Raise `InvalidName` where an asset can have no table, but is to have one: it is annotated with a value."""
        definition, assets = self.definition(key), self._graph.get(key).assets_def
        output = assets.node_def.output_def_named(assets.get_output_name_for_asset_key(key))
        if definition is not None and _is_on_project(definition) and output.dagster_type.key != "Any":
            table_name_of(key.path)

    def why_none(self, key: dg.AssetKey) -> str:
        """Why an asset is no versioned table, for people."""
        if _is_nothing(self._graph.get(key)):
            return "what it returns reaches no IO manager"
        for name, definition in self._definitions(key, None):
            cls = getattr(definition, "configurable_resource_cls", None)
            if cls is None:
                return f"its IO manager {name} is made by a function: if it is on a project, make it a resource itself"
            return self._manager(key).why_none or f"its IO manager {name} is a {cls.__name__}"
        return "it has no IO manager"

    def project_for(self, key: dg.AssetKey, reader: dg.AssetKey, own: ProjectContext) -> ProjectContext:
        """The project in which a dependency of ``reader``, which is stored in ``own``, is looked for.

        That of the IO manager that loads it, or of its own. Where this is the reader's as well, it may be configured
        otherwise in a run than here, so ``own`` counts; as it does where there is no IO manager, or none of ours.
        """
        if not self._graph.has(key) or self._manager(key, reader).definition is self.definition(reader):
            return own
        resource = self.resource(key, reader)
        return own if resource is None or resource.name == own.name else resource.project()

    def beside(self, place: Place, key: dg.AssetKey) -> Place | None:
        """Where an asset is looked for that somebody depends on and that nothing here defines: in the same project."""
        if self.is_defined(key):
            return None
        try:
            return Place(place.project, table_name_of(key.path))
        except InvalidName:
            return None

    def is_defined(self, key: dg.AssetKey) -> bool:
        """Whether something here says where an asset is stored."""
        return self._graph.has(key) and bool(self._graph.get(key).assets_def.resource_defs)

    def pin(self, key: dg.AssetKey, table: TableName, reader: dg.AssetKey | None = None) -> str | None:
        """What the configuration of the IO manager, of the asset or of who loads it, pins its table to."""
        return self._manager(key, reader).pins.get(str(table))

    def definition(self, key: dg.AssetKey) -> dg.ResourceDefinition | None:
        """The IO manager that an asset is defined with; ``None`` without one."""
        return next((definition for _, definition in self._definitions(key, None)), None)

    def _uri(self, key: dg.AssetKey) -> str | None:
        uri = plain(self._graph.get(key).metadata, URI_KEY) if self._graph.has(key) else None
        return None if uri is None else str(uri)

    def _definitions(self, key: dg.AssetKey, reader: dg.AssetKey | None) -> Iterator[tuple[str, dg.ResourceDefinition]]:
        """The IO managers that an asset is loaded by, with their names: the one that an input names, then its own."""
        for owner, name in self._names(key, reader):
            if (definition := owner.resource_defs.get(name)) is not None:
                yield name, definition

    def _names(self, key: dg.AssetKey, reader: dg.AssetKey | None) -> Iterator[tuple[dg.AssetsDefinition, str]]:
        if reader is not None:
            node = self._graph.get(reader)
            for input_ in inputs_by_upstream(node).get(key, ()):
                if input_.input_manager_key is not None:
                    yield node.assets_def, input_.input_manager_key
        own = self._graph.get(key).assets_def
        yield own, own.get_io_manager_key_for_asset_key(key)

    def _manager(self, key: dg.AssetKey, reader: dg.AssetKey | None = None) -> _Manager:
        """The first of the IO managers that an asset is loaded by that is one of ours."""
        found = _Manager(None)
        for owner, name in self._names(key, reader):
            definition = owner.resource_defs.get(name)
            if definition is None:
                continue
            if id(definition) not in self._managers:
                self._managers[id(definition)] = _made(name, definition, owner.resource_defs, self._instance)
            found = self._managers[id(definition)]
            if found.project is not None:
                return found
        return found


def external_table(uri: str, key: dg.AssetKey, resource: ProjectResource | None) -> ExternalTable:
    """The table of a source, with the keys of the project that its IO manager is on, if it has one of ours."""
    name = table_name_of(key.path)
    return resource.external(uri, name) if resource is not None else ExternalTable(uri, name)


def _may_be_ours(definition: dg.ResourceDefinition) -> bool:
    """Whether an IO manager can be one of ours: one on a project, around one that is, or made by a factory.

    What a function makes is known only once it is called, and it may be anything.
    """
    cls = getattr(definition, "configurable_resource_cls", None)
    if cls is None:
        return False
    if _is_on_project(definition):
        return True
    is_factory = issubclass(cls, dg.ConfigurableIOManagerFactory) and not issubclass(cls, dg.IOManager)
    return is_factory and not cls.__module__.startswith("dagster.")


def _is_on_project(resource: Any) -> bool:
    """Whether a resource, or one that it is made with, is a project."""
    kinds: list[Any] = [getattr(resource, name, None) for name in ("configurable_resource_cls", "resource_cls")]
    if any(isinstance(kind, type) and issubclass(kind, ProjectResource) for kind in kinds):
        return True
    if isinstance(resource, ProjectResource):
        return True
    nested = {**getattr(resource, "nested_resources", {}), **getattr(resource, "nested_partial_resources", {})}
    return any(map(_is_on_project, nested.values()))


def _made(
    name: str,
    definition: dg.ResourceDefinition,
    others: Mapping[str, dg.ResourceDefinition],
    instance: dg.DagsterInstance | None,
) -> _Manager:
    """An IO manager with its project and pins, if it is one of ours."""
    if not _may_be_ours(definition):
        return _Manager(definition)
    needed, keys = {name: definition}, [name]
    while keys:
        for key in needed[keys.pop()].get_required_resource_keys(others) - needed.keys():
            needed[key] = others[key]
            keys.append(key)
    try:
        with dg.build_resources(needed, instance) as resources:
            found = list(_on_projects(getattr(resources, name)))
    except dg.DagsterInvalidConfigError:
        return _Manager(definition, why_none=f"its IO manager {name} is configured by runs alone")
    if len({id(project) for project, _ in found}) != 1:
        return _Manager(definition, why_none=f"its IO manager {name} is on {len(found) or 'no'} projects")
    return _Manager(definition, *found[0])


def _on_projects(manager: Any) -> Iterator[tuple[ProjectResource, Mapping[str, str]]]:
    """The IO managers of ours that one is, or is a wrapper of."""
    if isinstance(getattr(manager, "project", None), ProjectResource):
        yield manager.project, getattr(manager, "pins", {})
        return
    attributes: Mapping[str, Any] = getattr(manager, "__dict__", {})
    for inner in attributes.values():
        if isinstance(inner, dg.IOManager):
            yield from _on_projects(inner)


def _is_nothing(node: AssetNode) -> bool:
    """Whether what the asset returns never reaches an IO manager."""
    if not node.is_materializable:
        return False
    assets = node.assets_def
    return assets.node_def.output_def_named(assets.get_output_name_for_asset_key(node.key)).dagster_type.is_nothing
