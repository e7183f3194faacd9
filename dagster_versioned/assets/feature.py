"""`versioned_feature`: an asset whose function gets what is stale, and nothing else."""

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Unpack

import dagster as dg

from dagster_versioned.assets.asset_options import PartitionedAssetOptions, refuse_unknown
from dagster_versioned.assets.feature_definition import feature_metadata, graph_over
from dagster_versioned.assets.feature_function import StepFunction
from dagster_versioned.assets.feature_step import FeatureConfig, FeatureStep
from dagster_versioned.engines.samples import SampleHash
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field


def versioned_feature(
    *,
    id_columns: Sequence[str],
    fields: Sequence[Field | str],
    deps: Iterable[FeatureDep | Feature | dg.AssetsDefinition | str] = (),
    hash: SampleHash | None = None,  # noqa: A002 - what it is
    version_length: int | None = None,
    chunk_size: int | None = None,
    name: str | None = None,
    ins: Mapping[str, dg.AssetIn] | None = None,
    **options: Unpack[PartitionedAssetOptions],
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Make a function an asset that is a feature: a table of samples, of which only what is stale is computed.

    The function gets an `Increment` in its parameter ``increment``: what the features that it depends on say of samples
    that are new or stale. It returns a frame with at least one row for each: the id columns, and what it computed.
    These rows take their places in the table, those of orphaned samples go, all others stay; it is one commit, against
    the version that the increment was computed from. Where nothing is to be computed, the function is not called.
    Besides, it may have the parameters of any asset: ``context``, ``config``, resources, and inputs, which are no
    upstream features: what they say makes nothing stale.

    A feature without ``deps`` has no increment. Its function returns all samples; they bring the column
    ``metaxy_provenance_by_field``, or the version of each field is that of what is in its ``columns``.

    ``deps`` are assets that are features, and `FeatureDep` of such. An ordinary versioned table becomes one by a
    `Feature` of its asset key, whose fields name columns; a `FeatureLock` has those of other projects. ``ins`` may say
    more of an upstream: an `AssetIn` of its key with a partition mapping, or a version that it is pinned to. ``hash``
    is how versions of samples are computed; it can be changed only by computing everything again. ``version_length`` is
    how many digits static versions have, by default as many as those of the upstreams, else 8; all features of a
    project have one.

    With a ``chunk_size`` the function is called for at most so many samples at a time, and each chunk is committed
    before the next, so that a crash loses one chunk. In a run of several partitions it is called for each
    (`Increment.partition`), and all are committed at once.

    In run config, ``full: true`` computes every sample again, and ``dry_run: true`` writes nothing and only says what
    would be computed. Increments have frames as `Increment` is annotated (``Increment[pl.DataFrame]``), else as the
    project's default engine says. Dagster's code version is the feature version: it changes if and only if a code
    version does on which one of the fields depends. The other parameters are those of `dagster.asset`. Raises
    `InvalidInput`.
    """

    refuse_unknown("versioned_feature", options, PartitionedAssetOptions)

    def define(body: Callable[..., Any]) -> dg.AssetsDefinition:
        key_prefix = options.get("key_prefix")
        prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
        key = dg.AssetKey([*prefix, name or body.__name__])
        feature = Feature(key.path, id_columns, fields, deps)
        graph = graph_over(feature, version_length)
        above = [graph[dep.feature] for dep in feature.deps]
        function = StepFunction(body, f"feature {feature.key!r}", "increment", above, ins)
        _check_chunks(feature, chunk_size)
        step = FeatureStep(graph, feature.key, hash or SampleHash(), chunk_size, function.as_type)

        def compute(
            context: dg.AssetExecutionContext, config: FeatureConfig, **values: Any
        ) -> Generator[dg.Output[Any]]:
            files = function.files(values)
            yield from step.run(context, config, files, function.call(context, config, values))

        given = options.copy()
        given["description"] = options.get("description") or inspect.getdoc(body)
        given["metadata"] = {**(options.get("metadata") or {}), **feature_metadata(graph, feature.key)}
        version = graph.versions(feature.key).feature
        asset = dg.asset(name=name, ins=function.ins, code_version=version, output_required=False, **given)
        return asset(function.presented(compute))

    return define


def _check_chunks(feature: Feature, size: int | None) -> None:
    if size is not None and size < 1:
        raise InvalidInput(
            f"chunk_size of feature {feature.key!r} is {size}; at least 1 is needed. Nothing was defined."
        )
    if size is not None and not feature.deps:
        raise InvalidInput(
            f"Feature {feature.key!r} depends on no feature, so its function returns all samples at once, and "
            "chunk_size has no meaning. Nothing was defined. Leave it out."
        )
