"""`versioned_feature`: an asset whose function gets what is stale, and nothing else."""

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from typing import Any, cast, get_args, get_type_hints

import dagster as dg

from dagster_versioned.assets.feature_definition import feature_metadata, graph_of
from dagster_versioned.assets.feature_step import Body, FeatureConfig, FeatureStep
from dagster_versioned.assets.graph.inputs import COLUMNS_KEY, PROJECT_KEY, plain
from dagster_versioned.engines.samples import SampleHash
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field
from dagster_versioned.features.graph import SHORTEST, FeatureGraph
from dagster_versioned.features.upstream_files import UpstreamFiles

_INCREMENT = "increment"
_CONTEXT = ("context", "_context")
_ANY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD


def versioned_feature(
    *,
    id_columns: Sequence[str],
    fields: Sequence[Field | str],
    deps: Iterable[FeatureDep | Feature | dg.AssetsDefinition | str] = (),
    hash: SampleHash | None = None,  # noqa: A002 - what it is
    version_length: int | None = None,
    chunk_size: int | None = None,
    name: str | None = None,
    key_prefix: Sequence[str] | str | None = None,
    ins: Mapping[str, dg.AssetIn] | None = None,
    group_name: str | None = None,
    description: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    kinds: Set[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
    io_manager_key: str | None = None,
    required_resource_keys: Set[str] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
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

    def define(body: Callable[..., Any]) -> dg.AssetsDefinition:
        prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
        key = dg.AssetKey([*prefix, name or body.__name__])
        listed = [_as_dep(dep) for dep in deps]
        feature = Feature(key.path, id_columns, fields, listed)
        above, lengths = _above(listed)
        graph = FeatureGraph([*above, feature], _length(feature, version_length, lengths))
        upstreams = _parameters(listed)
        given = _Function(body, feature, upstreams)
        loaded = dict(ins or {})
        for parameter, upstream in upstreams.items():
            loaded[parameter] = _input(graph[upstream], loaded)
        _check_chunks(feature, chunk_size)
        step = FeatureStep(graph, feature.key, hash or SampleHash(), chunk_size, given.as_type)

        def compute(
            context: dg.AssetExecutionContext, config: FeatureConfig, **values: Any
        ) -> Generator[dg.Output[Any]]:
            files = {upstream: values.pop(parameter) for parameter, upstream in upstreams.items()}
            yield from step.run(context, config, files, given.call(context, config, values))

        compute.__name__, compute.__qualname__, compute.__module__ = body.__name__, body.__qualname__, body.__module__
        setattr(compute, "__signature__", given.signature)  # noqa: B010 - which type checkers do not know
        # Dagster before 1.11.10 finds resources by these.
        compute.__annotations__ = {one.name: one.annotation for one in given.signature.parameters.values()}
        return dg.asset(
            name=name,
            key_prefix=key_prefix,
            ins=loaded,
            group_name=group_name,
            description=description or inspect.getdoc(body),
            owners=owners,
            tags=tags,
            kinds=kinds,
            metadata={**(metadata or {}), **feature_metadata(graph, feature.key)},
            partitions_def=partitions_def,
            backfill_policy=backfill_policy,
            io_manager_key=io_manager_key,
            required_resource_keys=required_resource_keys,
            retry_policy=retry_policy,
            automation_condition=automation_condition,
            op_tags=op_tags,
            pool=pool,
            code_version=graph.versions(feature.key).feature,
            output_required=False,
        )(compute)

    return define


class _Function:
    """The user's function: what it asks for, and what Dagster sees of that.

    Raises `InvalidInput` where it has no place for what it is to get.
    """

    def __init__(self, body: Callable[..., Any], feature: Feature, upstreams: Mapping[str, str]) -> None:
        hints = get_type_hints(body)
        parameters = inspect.signature(body).parameters
        takes = _INCREMENT in parameters
        if takes != bool(feature.deps):
            what, fix = (
                ("takes an increment, but depends on no feature", "leave the parameter out, and return all samples")
                if takes
                else ("depends on features, but takes no increment", f"add the parameter {_INCREMENT!r}")
            )
            raise InvalidInput(f"The function of feature {feature.key!r} {what}. Nothing was defined; {fix}.")
        self._body = body
        self._context = next((each for each in _CONTEXT if each in parameters), None)
        self._config = "config" in parameters
        arguments = get_args(hints.get(_INCREMENT))
        self.as_type: type | None = arguments[0] if arguments and isinstance(arguments[0], type) else None
        kinds: dict[str, Any] = {
            "context": dg.AssetExecutionContext,
            "config": _config_class(feature.key, hints.get("config")) if self._config else FeatureConfig,
            **dict.fromkeys(upstreams, UpstreamFiles),
        }
        ours = {_INCREMENT, "config", *_CONTEXT}
        kinds |= {each: hints.get(each, inspect.Parameter.empty) for each in parameters if each not in ours}
        self.signature = inspect.Signature(
            [inspect.Parameter(name, _ANY_PLACE, annotation=kind) for name, kind in kinds.items()]
        )

    def call(self, context: dg.AssetExecutionContext, config: FeatureConfig, values: Mapping[str, Any]) -> Body:
        """The function with all that it asks for but the increment."""
        given = dict(values)
        if self._context is not None:
            given[self._context] = context
        if self._config:
            given["config"] = config
        return lambda increment: self._body(**given, **({} if increment is None else {_INCREMENT: increment}))


def _config_class(key: str, kind: Any) -> type[FeatureConfig]:
    """The user's config, with ours beside it."""
    if not isinstance(kind, type) or not issubclass(kind, dg.Config):
        raise InvalidInput(
            f"The parameter 'config' of feature {key!r} is annotated {kind!r:.100}. Nothing was defined; make it a "
            f"dagster.Config without {', '.join(FeatureConfig.model_fields)}, which every feature has."
        )
    taken = {name for field, info in kind.model_fields.items() for name in (field, info.alias)}
    if clashing := [name for name in FeatureConfig.model_fields if name in taken]:
        raise InvalidInput(
            f"The config {kind.__name__} of feature {key!r} has {', '.join(map(repr, clashing))}, which is a name in "
            "the run config of every feature and means something else there. Nothing was defined; rename it."
        )
    name: str = cast("Any", kind).__name__
    return type(name, (FeatureConfig, kind), {"__module__": kind.__module__})


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


def _parameters(deps: Iterable[FeatureDep]) -> dict[str, str]:
    """The upstreams by the parameters in which their files are handed over."""
    found: dict[str, str] = {}
    for dep in deps:
        name = f"upstream__{dep.feature}".replace("/", "__").replace("-", "_")
        while name in found:
            name += "_"
        found[name] = dep.feature
    return found


def _as_dep(dep: FeatureDep | Feature | dg.AssetsDefinition | str) -> FeatureDep:
    return dep if isinstance(dep, FeatureDep) else FeatureDep(dep)


def _above(deps: Iterable[FeatureDep], seen: set[int] | None = None) -> tuple[list[Feature], set[int]]:
    """The features that are depended on, and all above them; none of the ``seen`` ones, by their `id`, again.

    And how long the static versions are of those that are assets.
    """
    found: list[Feature] = []
    lengths: set[int] = set()
    seen = set() if seen is None else seen
    for dep in deps:
        source = dep.source
        if isinstance(source, Feature):
            if id(source) not in seen:
                seen.add(id(source))
                above, of_these = _above(source.deps, seen)
                found += [*above, source]
                lengths |= of_these
        elif isinstance(source, dg.AssetsDefinition):
            graph = graph_of(source)
            if graph is None:
                raise InvalidInput(
                    f"The asset {dep.feature!r} is no feature. Nothing was defined; say which columns identify its "
                    f"rows: Feature({dep.feature!r}, id_columns=[...], fields=[Field(..., columns=[...])])."
                )
            found += graph
            lengths.add(graph.hash_length)
    return found, lengths


def _length(feature: Feature, stated: int | None, above: Set[int]) -> int:
    """How many digits the static versions have; all in a graph as many."""
    found = {*above} if stated is None else {*above, stated}
    if len(found) > 1:
        raise InvalidInput(
            f"The static versions of feature {feature.key!r} and of what it depends on would have {sorted(found)} "
            "digits. Nothing was defined. Give all features of a project one version_length."
        )
    return found.pop() if found else SHORTEST


def _input(upstream: Feature, ins: dict[str, dg.AssetIn]) -> dg.AssetIn:
    """The input that hands over the files of an upstream; as ``ins`` say, from where it is taken."""
    key = dg.AssetKey(upstream.key.split("/"))
    project = {} if upstream.project is None else {PROJECT_KEY: upstream.project}
    for name, one in list(ins.items()):
        if one.key == key:
            if plain(one.metadata or {}, COLUMNS_KEY) is not None:
                raise InvalidInput(
                    f"The input of {key.to_user_string()!r} has {COLUMNS_KEY} in its metadata, but its versions are "
                    "needed as well. Nothing was defined; name the columns in FeatureDep(select=[...])."
                )
            return ins.pop(name)._replace(metadata={**(one.metadata or {}), **project})
    return dg.AssetIn(key, metadata=project)
