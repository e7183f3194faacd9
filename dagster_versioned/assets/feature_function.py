"""The user's function of a step that computes features: what it asks for, and what Dagster sees of that."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast, get_args, get_type_hints

import dagster as dg

from dagster_versioned.assets.feature_step import FeatureConfig
from dagster_versioned.assets.graph.inputs import COLUMNS_KEY, IF_SELECTED_KEY, PROJECT_KEY, plain
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.upstream_files import UpstreamFiles

_CONTEXT = ("context", "_context")
_ANY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD


class StepFunction:
    """The function, what it asks for, and the inputs that hand over the files of ``upstreams``.

    ``increment`` is the parameter in which it gets what is stale, ``who`` names it in messages, ``ins`` are inputs that
    users say more of. Raises `InvalidInput` where it has no place for what it is to get.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        who: str,
        increment: str,
        upstreams: Iterable[Feature],
        ins: Mapping[str, dg.AssetIn] | None,
    ) -> None:
        hints = get_type_hints(body)
        parameters = inspect.signature(body).parameters
        by_key = {each.key: each for each in upstreams}
        _refuse_misfit(body, who, increment, by_key, ins or {})
        self._body = body
        self._increment = increment
        self._context = next((each for each in _CONTEXT if each in parameters), None)
        self._config = "config" in parameters
        self._upstreams = _parameters(by_key)
        self.as_type = _frame_type(hints.get(increment))
        """What increments hold; ``None`` where the annotation does not say."""
        self.ins = dict(ins or {})
        """The inputs by parameter, for Dagster."""
        for parameter, key in self._upstreams.items():
            self.ins[parameter] = _input(by_key[key], self.ins)
        kinds: dict[str, Any] = {
            "context": dg.AssetExecutionContext,
            "config": _config_class(who, hints.get("config")) if self._config else FeatureConfig,
            **dict.fromkeys(self._upstreams, UpstreamFiles),
        }
        ours = {increment, "config", *_CONTEXT}
        kinds |= {each: hints.get(each, inspect.Parameter.empty) for each in parameters if each not in ours}
        self._signature = inspect.Signature(
            [inspect.Parameter(name, _ANY_PLACE, annotation=kind) for name, kind in kinds.items()]
        )

    def presented(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """A function of context, config and values that Dagster takes for the user's own, with the inputs beside."""
        body = self._body
        compute.__name__, compute.__qualname__, compute.__module__ = body.__name__, body.__qualname__, body.__module__
        setattr(compute, "__signature__", self._signature)  # noqa: B010 - which type checkers do not know
        # Dagster before 1.11.10 finds resources by these.
        compute.__annotations__ = {
            parameter.name: parameter.annotation for parameter in self._signature.parameters.values()
        }
        return compute

    def files(self, values: dict[str, Any]) -> dict[str, UpstreamFiles]:
        """The files of the upstreams by feature, taken out of the values that Dagster gives."""
        return {upstream: values.pop(parameter) for parameter, upstream in self._upstreams.items()}

    def call(
        self, context: dg.AssetExecutionContext, config: FeatureConfig, values: Mapping[str, Any]
    ) -> Callable[[Any], Any]:
        """The function with all that it asks for but the increment."""
        given = dict(values)
        if self._context is not None:
            given[self._context] = context
        if self._config:
            given["config"] = config
        return lambda increment: self._body(**given, **({} if increment is None else {self._increment: increment}))


def _refuse_misfit(
    body: Callable[..., Any], who: str, increment: str, upstreams: Collection[str], ins: Mapping[str, dg.AssetIn]
) -> None:
    """Raise `InvalidInput` where a function has no place for what is stale, or takes an upstream itself."""
    takes = increment in inspect.signature(body).parameters
    if takes != bool(upstreams):
        what, fix = (
            (f"takes {increment!r}, but depends on no feature", "leave the parameter out, and return all samples")
            if takes
            else (f"depends on features, but takes no {increment!r}", f"add the parameter {increment!r}")
        )
        raise InvalidInput(f"The function of {who} {what}. Nothing was defined; {fix}.")
    for name, key in _asset_parameters(body, ins).items():
        if key in upstreams:
            raise InvalidInput(
                f"The function of {who} takes {name!r}, which is its upstream {key!r}. Nothing was defined; leave "
                f"the parameter out: what is stale of {key!r} is in {increment!r}."
            )


def _asset_parameters(body: Callable[..., Any], ins: Mapping[str, dg.AssetIn]) -> dict[str, str]:
    """The assets that parameters of a function are, as Dagster finds them: by their names, or as ``ins`` say."""
    found: dict[str, str] = {}
    hints = get_type_hints(body, include_extras=True)
    for name in inspect.signature(body).parameters:
        hint = hints.get(name)
        is_resource = hasattr(hint, "__metadata__") or (
            isinstance(hint, type) and issubclass(hint, dg.ConfigurableResource)
        )
        key = ins[name].key if name in ins else None
        if name in ins or not is_resource:
            found[name] = name if key is None else "/".join(dg.AssetKey.from_coercible(key).path)
    return found


def _frame_type(annotation: Any) -> type | None:
    """The type of frames in ``Increment[…]``, or in a mapping of such."""
    arguments = get_args(annotation)
    inner = get_args(arguments[1]) if len(arguments) == 2 else arguments
    return inner[0] if inner and isinstance(inner[0], type) else None


def _config_class(who: str, kind: Any) -> type[FeatureConfig]:
    """The user's config, with ours beside it."""
    if not isinstance(kind, type) or not issubclass(kind, dg.Config):
        raise InvalidInput(
            f"The parameter 'config' of {who} is annotated {kind!r:.100}. Nothing was defined; make it a "
            f"dagster.Config without {', '.join(FeatureConfig.model_fields)}, which every feature has."
        )
    taken = {name for field, info in kind.model_fields.items() for name in (field, info.alias)}
    if clashing := [name for name in FeatureConfig.model_fields if name in taken]:
        raise InvalidInput(
            f"The config {kind.__name__} of {who} has {', '.join(map(repr, clashing))}, which is a name in "
            "the run config of every feature and means something else there. Nothing was defined; rename it."
        )
    name: str = cast("Any", kind).__name__
    return type(name, (FeatureConfig, kind), {"__module__": kind.__module__})


def _parameters(keys: Iterable[str]) -> dict[str, str]:
    """The upstreams by the parameters in which their files are handed over."""
    found: dict[str, str] = {}
    for key in keys:
        name = f"upstream__{key}".replace("/", "__").replace("-", "_")
        while name in found:
            name += "_"
        found[name] = key
    return found


def _input(upstream: Feature, ins: dict[str, dg.AssetIn]) -> dg.AssetIn:
    """The input that hands over the files of an upstream; as ``ins`` say, from where it is taken."""
    key = dg.AssetKey(upstream.key.split("/"))
    asked = {IF_SELECTED_KEY: True} | ({} if upstream.project is None else {PROJECT_KEY: upstream.project})
    for name, in_ in list(ins.items()):
        if in_.key == key:
            if plain(in_.metadata or {}, COLUMNS_KEY) is not None:
                raise InvalidInput(
                    f"The input of {key.to_user_string()!r} has {COLUMNS_KEY} in its metadata, but its versions are "
                    "needed as well. Nothing was defined; name the columns in FeatureDep(select=[...])."
                )
            return ins.pop(name)._replace(metadata={**(in_.metadata or {}), **asked})
    return dg.AssetIn(key, metadata=asked)
