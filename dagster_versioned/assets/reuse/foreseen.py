"""The keys of computations: of those that a step makes, and of those that it would make now."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_versioned.assets.asset_code import key_code_version
from dagster_versioned.assets.graph.inputs import VERSION_KEY, plain
from dagster_versioned.assets.graph.partitions import partitioning_of, upstream_partitions
from dagster_versioned.assets.graph.places import Places
from dagster_versioned.assets.reuse.lazy_input import LazyType, asked_of, type_text
from dagster_versioned.dagster_internals import AssetGraph
from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.computation import ComputationInput, computation_key
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable


def key_of(
    assets: dg.AssetsDefinition,
    asset_key: dg.AssetKey,
    partition: str | None,
    *,
    config: Any,
    message: str | None,
    inputs: Mapping[str, ComputationInput],
    code_version: str,
) -> str:
    """The key under which an asset, or a partition of it, is computed by a code. Raises `InvalidMetadata`."""
    definition = assets.partitions_def
    return computation_key(
        asset_key.path,
        partition,
        code_version,
        config=config,
        options=TableOptions.from_metadata(assets.metadata_by_key[asset_key]).model_dump(
            mode="json", exclude_defaults=True
        ),
        message=message,
        partitioning=None if definition is None else partitioning_of(definition).to_json(),
        inputs=inputs,
    )


class ForeseenReuse:
    """What steps of one code location would reuse if they ran now, without run config, tags and a message."""

    def __init__(self, graph: AssetGraph, instance: dg.DagsterInstance) -> None:
        self._graph = graph
        self._places = Places(graph, instance)
        self._instance = instance
        self._tables: dict[tuple[dg.AssetKey, dg.AssetKey | None], VersionedTable | None] = {}

    def version(self, asset_key: dg.AssetKey, partition: str | None) -> Version | None:
        """The version that would be kept, or made current again; ``None`` where the function would be called.

        What its blocking checks found is not asked. ``None`` also where the key cannot be known.
        """
        assets = self._graph.get(asset_key).assets_def if self._graph.has(asset_key) else None
        if assets is None or not _can_reuse(assets, asset_key):
            return None
        try:
            key, table = self._key(assets, asset_key, partition), self._table(asset_key)
            found = None if key is None or table is None else table.computed({partition: key}).get(partition)
            return found if found is not None and table is not None and table.kept(found) is not None else None
        except VersionedError:
            return None  # the step finds that out, and says it

    def _key(self, assets: dg.AssetsDefinition, asset_key: dg.AssetKey, partition: str | None) -> str | None:
        inputs = {
            def_.name: self._input(asset_key, partition, assets.keys_by_input_name[def_.name], def_)
            for def_ in assets.node_def.input_defs
        }
        known = {name: input_ for name, input_ in inputs.items() if input_ is not None}
        code_version = key_code_version(assets, asset_key)
        if code_version is None or len(known) < len(inputs):
            return None
        field: Any = assets.op.config_field
        config = field.default_value if field is not None and field.default_provided else None
        return key_of(
            assets, asset_key, partition, config=config, message=None, inputs=known, code_version=code_version
        )

    def _table(self, asset_key: dg.AssetKey, reader: dg.AssetKey | None = None) -> VersionedTable | None:
        if (asset_key, reader) not in self._tables:
            place = self._places.of(asset_key, reader)
            project = None if place is None or isinstance(place.project, ExternalTable) else place.project
            self._tables[asset_key, reader] = None if project is None else project.table(asset_key.path)
        return self._tables[asset_key, reader]

    def _input(
        self, asset_key: dg.AssetKey, partition: str | None, upstream: dg.AssetKey, definition: Any
    ) -> ComputationInput | None:
        table, resource = self._table(upstream, asset_key), self._places.resource(upstream, asset_key)
        if table is None or resource is None:
            return None
        wanted = upstream_partitions(self._graph, asset_key, partition, upstream, self._instance)
        pin = plain(definition.metadata, VERSION_KEY) or self._places.pin(upstream, table.name, asset_key)
        versions = table.upstream(pin, partitions=None if wanted is None else sorted(wanted))
        annotation = definition.dagster_type.typing_type
        read_as = type_text(resource.frame_type() if annotation is Any else annotation)
        parents = [version.parent for version in versions]
        return ComputationInput(upstream.path, parents, read_as, asked_of(definition.metadata))


def _can_reuse(assets: dg.AssetsDefinition, asset_key: dg.AssetKey) -> bool:
    """Whether an asset keeps what it has computed, and needs no config that a run has to say."""
    if not isinstance(assets.node_def, dg.OpDefinition):
        return False
    config = assets.node_def.config_field
    output = assets.node_def.output_dict[assets.get_output_name_for_asset_key(asset_key)]
    return isinstance(output.dagster_type, LazyType) and not (config is not None and config.is_required)
