"""`versioned_multi_feature`: one function for several features, each with its own increment and its own commit."""

import inspect
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, Unpack, cast

import dagster as dg

from dagster_versioned.assets.asset_options import PartitionedOptions, refuse_unknown
from dagster_versioned.assets.feature_definition import feature_metadata, graph_over
from dagster_versioned.assets.feature_function import StepFunction
from dagster_versioned.assets.feature_step import FeatureConfig, FeatureStep, Files
from dagster_versioned.engines.samples import SampleHash
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import FeatureGraph


def versioned_multi_feature(
    *,
    features: Iterable[Feature],
    specs: Iterable[dg.AssetSpec] = (),
    hash: SampleHash | None = None,  # noqa: A002 - what it is
    version_length: int | None = None,
    name: str | None = None,
    ins: Mapping[str, dg.AssetIn] | None = None,
    can_subset: bool = False,
    io_manager_key: str | None = None,
    **options: Unpack[PartitionedOptions],
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """`versioned_feature` of several ``features``, which are computed by one call of the function.

    Its parameter ``increments`` has, by feature key, the `Increment` of each that the run is to compute; it returns
    frames by feature key, of those at least that have samples to compute; others are not looked at. Where no feature
    has any, it is not called. Each frame is checked and committed by itself, in the order of ``features``: where one is
    refused, those before it are written, and a retry computes the rest. Features without ``deps`` have no increments,
    and the function returns the samples of each; one asset has features of one of these kinds, and none that depends on
    another of it.

    ``specs`` say more of some of the features, by asset key: metadata, owners, tags, a condition. With ``can_subset`` a
    run computes those that were selected, and a sensor requests each by itself; else all run together. The other
    parameters are those of `versioned_feature` and `dagster.multi_asset`. Raises `InvalidInput`.
    """
    refuse_unknown("versioned_multi_feature", options, PartitionedOptions)
    listed = list(features)
    described = _described(listed, specs, options.get("group_name"))
    _check(listed)
    graphs = {feature.key: graph_over(feature, version_length) for feature in listed}
    lengths = {graph.hash_length for graph in graphs.values()}
    if len(lengths) > 1:
        raise _refused(listed, f"have static versions of {sorted(lengths)} digits", "give all one version_length")
    together = FeatureGraph([each for graph in graphs.values() for each in graph], *lengths)
    above = {dep.feature: together[dep.feature] for feature in listed for dep in feature.deps}

    def define(body: Callable[..., Any]) -> dg.AssetsDefinition:
        function = StepFunction(body, f"features {[each.key for each in listed]}", "increments", above.values(), ins)
        how = hash or SampleHash()
        steps = {key: FeatureStep(graphs[key], key, how, None, function.as_type, _output_name(key)) for key in graphs}

        def compute(
            context: dg.AssetExecutionContext, config: FeatureConfig, **values: Any
        ) -> Generator[dg.Output[Any]]:
            wanted = [
                step
                for step in steps.values()
                if context.asset_key_for_output(step.output) in context.selected_asset_keys
            ]
            files = function.files(values)
            yield from _run(wanted, context, config, files, function.call(context, config, values))

        outs: dict[str, dg.AssetOut] = {}
        for key, step in steps.items():
            spec = described.get(key) or dg.AssetSpec(key.split("/"))
            spec = spec.replace_attributes(code_version=graphs[key].versions(key).feature)
            spec = spec.merge_attributes(metadata=feature_metadata(graphs[key], key))
            outs[step.output] = dg.AssetOut.from_spec(spec, is_required=False, io_manager_key=io_manager_key)
        given = options.copy()
        given["description"] = options.get("description") or inspect.getdoc(body)
        given["required_resource_keys"] = set(options.get("required_resource_keys") or ())
        multi_asset = dg.multi_asset(
            outs=outs, name=name or body.__name__, ins=function.ins, can_subset=can_subset, **given
        )
        asset = multi_asset(function.presented(compute))
        return asset.map_asset_specs(lambda spec: _own_deps(spec, graphs["/".join(spec.key.path)], above))

    return define


def _run(
    steps: Sequence[FeatureStep],
    context: dg.AssetExecutionContext,
    config: FeatureConfig,
    files: Files,
    call: Callable[[Any], Any],
) -> Generator[dg.Output[Any]]:
    """Compute what is stale of some features; each output is all that is left to be committed of one."""
    keys = [step.key for step in steps]

    @cache
    def samples() -> Mapping[str, Any]:
        return _by_feature(call(None), keys)

    @cache
    def computed(partition: str | None) -> Mapping[str, Any]:
        return _by_feature(call({key: step.resolved[partition].increment for key, step in begun.items()}), keys)

    with ExitStack() as kept:  # until the outputs were handled
        begun = {
            step.key: step.begin(
                context,
                config,
                {dep.feature: files[dep.feature] for dep in step.graph[step.key].deps},
                lambda _, key=step.key: samples().get(key),
                kept,
            )
            for step in steps
        }
        for key, step in begun.items():
            if config.dry_run:
                step.observe()
            else:
                yield step.finish(
                    lambda increment, key=key: computed(None if increment is None else increment.partition).get(key)
                )


def _by_feature(given: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    frames = cast("Mapping[str, Any]", given)
    if not isinstance(given, Mapping) or not set(frames) <= set(keys):
        what = f"frames of {sorted(map(str, frames))}" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise InvalidInput(
            f"The function of the features {keys} returned {what}. Nothing more was written. Return a dict of frames "
            "by the keys of those features that the run computes."
        )
    return frames


def _own_deps(spec: dg.AssetSpec, graph: FeatureGraph, above: Mapping[str, Feature]) -> dg.AssetSpec:
    """The asset without the upstreams of the others."""
    feature = graph["/".join(spec.key.path)]
    others = above.keys() - {dep.feature for dep in feature.deps}
    return spec.replace_attributes(deps=[dep for dep in spec.deps if "/".join(dep.asset_key.path) not in others])


def _output_name(key: str) -> str:
    return key.replace("/", "__").replace("-", "_")


def _described(
    features: Sequence[Feature], specs: Iterable[dg.AssetSpec], group_name: str | None
) -> dict[str, dg.AssetSpec]:
    """The specs by feature, checked."""
    listed = list(specs)
    _require_each(features, Feature)
    _require_each(listed, dg.AssetSpec)
    keys, found = {feature.key for feature in features}, dict[str, dg.AssetSpec]()
    for spec in listed:
        key = "/".join(spec.key.path)
        if key not in keys:
            raise _refused(features, f"have a spec of {key!r}, which is none of them", "define a Feature for it")
        if key in found:
            raise _refused(features, f"have two specs of {key!r}", "make them one")
        names = ("deps", "code_version", "partitions_def", *(["group_name"] if group_name else []))
        if taken := [name for name in names if getattr(spec, name)]:
            raise _refused(
                features,
                f"have a spec that describes {key!r} by {', '.join(taken)}",
                "leave that out: partitions and group are one for all, the code version is the feature's, and what else"
                " the function reads are its inputs",
            )
        found[key] = spec
    return found


def _require_each(given: Iterable[object], kind: type) -> None:
    if strange := [f"{each!r:.100}" for each in given if not isinstance(each, kind)]:
        raise InvalidInput(f"{', '.join(strange)} is no {kind.__name__}. Nothing was defined; name one of these.")


def _check(features: Sequence[Feature]) -> None:
    keys = [feature.key for feature in features]
    if not keys or len(set(map(_output_name, keys))) < len(keys):
        raise _refused(features, "are none, or two have one name", "give each a key of its own")
    if len({bool(feature.deps) for feature in features}) > 1:
        raise _refused(features, "depend on others, and some on none", "make those that depend on none another asset")
    for feature in features:
        _check_owned(feature, features, keys)


def _check_owned(feature: Feature, features: Sequence[Feature], keys: Collection[str]) -> None:
    """Raise `InvalidInput` where one of the features is another project's, or depends on others of them."""
    inner = [dep.feature for dep in feature.deps if dep.feature in keys]
    if inner:
        raise _refused(
            features,
            f"depend on each other: {feature.key!r} on {inner}, which is written when the function has returned",
            "make it another asset",
        )
    if feature.project is not None:
        raise _refused(features, f"have {feature.key!r}, which {feature.project} computes", "leave it out")


def _refused(features: Sequence[Feature], what: str, fix: str) -> InvalidInput:
    return InvalidInput(f"The features {[each.key for each in features]} {what}. Nothing was defined; {fix}.")
