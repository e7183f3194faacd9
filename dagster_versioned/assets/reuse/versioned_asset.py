"""`versioned_asset`: an asset whose function is not called again for what it has computed.

What its parameters mean, and what of them is refused, is Dagster's word.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack, cast, get_type_hints, overload

import dagster as dg

from dagster_versioned.assets.asset_code import note_loaded_code, with_options
from dagster_versioned.assets.asset_options import (
    VersionedAssetOptions,
    VersionedMultiAssetOptions,
    refuse_unknown,
)
from dagster_versioned.assets.reuse.lazy_input import lazy_type
from dagster_versioned.assets.reuse.reuse_step import reusing
from dagster_versioned.code.fingerprint import CodeOptions
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.options import TableOptions

Definition = Callable[[Callable[..., Any]], dg.AssetsDefinition]


@overload
def versioned_asset(compute_fn: Callable[..., Any]) -> dg.AssetsDefinition: ...


@overload
def versioned_asset(
    *,
    ignore_resources: Iterable[str] = ...,
    code_also: Sequence[Any] = ...,
    code_files: Sequence[str] = ...,
    libraries: Sequence[str] = ...,
    follow: Sequence[str] = ...,
    **options: Unpack[VersionedAssetOptions],
) -> Definition: ...


def versioned_asset(
    compute_fn: Callable[..., Any] | None = None,
    *,
    ignore_resources: Iterable[str] = (),
    code_also: Sequence[Any] = (),
    code_files: Sequence[str] = (),
    libraries: Sequence[str] = (),
    follow: Sequence[str] = (),
    **options: Unpack[VersionedAssetOptions],
) -> dg.AssetsDefinition | Definition:
    """`dagster.asset` for a function of its inputs, its config and its code: it is never called twice for the same.

    Where the version that it would make is the table's head, or an older version of it, that one is kept or made
    current again: no input is loaded and the function is not called. The same are asset, partition, code, config,
    `TableOptions`, the run's message, and of each input the exact versions, the type, and what its metadata asks for. A
    version whose blocking check failed, or whose computation once gave other rows, is not reused; nor is any with the
    run tag ``dagster_versioned/recompute`` (``true``, or keys of assets).

    The code is the function and everything of your project that it reaches: helpers, constants, classes, files beside
    it. What it reaches unseen is named: functions, classes and modules in ``code_also``; files that it reads, as
    patterns below its module's folder, in ``code_files``; distributions whose release counts in ``libraries``, and
    those that are followed as your own code in ``follow``. Where it cannot be followed, a warning says why, and nothing
    is reused. With a ``code_version`` that is what counts, and nothing of the code.

    Every dependency is an input that a `VersionedParquetIOManager` loads. Resources
    are no part of the key: those that the function asks for are named in ``ignore_resources``. In a run of several
    partitions the function is called for those alone that are not there, if it takes an `AssetExecutionContext`, which
    says which they are. The other parameters are those of `dagster.asset`.

    Raises `InvalidInput` for a definition whose results could depend on something else.
    """

    def define(body: Callable[..., Any]) -> dg.AssetsDefinition:
        # Dagster judges the definition, and finds keys and types, before anything is put in its place.
        plain = asset(**options)(body)
        _check(plain, options, ignore_resources)
        note_loaded_code()
        inner = plain.op.output_dict[plain.get_output_name_for_asset_key(plain.key)].dagster_type
        name = {} if "key" in options else {"name": options.get("name") or body.__name__}
        given = {**options, **name, "ins": _ins(plain, options), "dagster_type": lazy_type(inner)}
        return asset(**given)(with_options(_typed(body, plain), code))

    code = CodeOptions(code_also, code_files, libraries, follow)
    asset = cast("Callable[..., Definition]", dg.asset)
    refuse_unknown("versioned_asset", options, VersionedAssetOptions)
    return define if compute_fn is None else define(compute_fn)


def versioned_multi_asset(
    *,
    outs: Mapping[str, dg.AssetOut],
    ignore_resources: Iterable[str] = (),
    code_also: Sequence[Any] = (),
    code_files: Sequence[str] = (),
    libraries: Sequence[str] = (),
    follow: Sequence[str] = (),
    **options: Unpack[VersionedMultiAssetOptions],
) -> Definition:
    """`versioned_asset` of several outputs: the function is called unless every output that is asked for is there.

    The other parameters are those of `dagster.multi_asset`. Raises `InvalidInput` as `versioned_asset` does.
    """
    refuse_unknown("versioned_multi_asset", options, VersionedMultiAssetOptions)
    code = CodeOptions(code_also, code_files, libraries, follow)

    def define(body: Callable[..., Any]) -> dg.AssetsDefinition:
        plain = dg.multi_asset(outs=outs, **options)(body)
        _check(plain, options, ignore_resources)
        note_loaded_code()
        typed = {key: _typed_out(out, plain.op.output_dict[key].dagster_type) for key, out in outs.items()}
        given: dict[str, Any] = {
            **options,
            "name": options.get("name") or body.__name__,
            "ins": _ins(plain, options),
            "outs": typed,
        }
        return dg.multi_asset(**given)(with_options(_typed(body, plain), code))

    return define


def _check(plain: dg.AssetsDefinition, options: Mapping[str, Any], ignored: Iterable[str]) -> None:
    """Raise `InvalidInput` where the function could see what its key does not cover."""
    op, ignored = plain.op, set(ignored)
    names = ", ".join(key.to_user_string() for key in sorted(plain.keys))
    for key in plain.keys:
        _check_output(plain, key)
    loaded = {plain.keys_by_input_name[def_.name] for def_ in op.input_defs if not def_.dagster_type.is_nothing}
    unloaded = sorted(set(plain.keys_by_input_name.values()) - loaded - set(plain.keys))
    if unloaded or options.get("deps"):
        listed = ", ".join(key.to_user_string() for key in unloaded) or "its own"
        raise _refused(
            names,
            f"depends on {listed} without loading it, so nobody sees which version the function reads",
            "make it a parameter of the function (annotated with UpstreamFiles, if it reads the files itself)",
        )
    undeclared = sorted(op.required_resource_keys - ignored)
    if undeclared:
        raise _refused(
            names,
            f"asks for the resource {undeclared[0]!r}, whose configuration and answers are no part of its key",
            f"say that they do not matter: ignore_resources=[{undeclared[0]!r}], or pass what matters as config",
        )
    if strange := sorted(ignored - op.required_resource_keys):
        raise _refused(
            names, f"ignores the resource {strange[0]!r}, which it does not ask for", "leave it out of ignore_resources"
        )


def _check_output(plain: dg.AssetsDefinition, key: dg.AssetKey) -> None:
    options = TableOptions.from_metadata(plain.metadata_by_key[key])
    if options.mode != "replace" or options.history is not None:
        how = "history=…" if options.history is not None else f"mode={options.mode!r}"
        raise _refused(
            key.to_user_string(),
            f"has TableOptions({how}), so what it makes depends on the rows that are there",
            "use @dg.asset, or mode='replace'",
        )
    if plain.op.output_dict[plain.get_output_name_for_asset_key(key)].dagster_type.is_nothing:
        raise _refused(
            key.to_user_string(),
            "stores nothing: annotated as it is, its value does not reach the IO manager",
            "annotate the function with what it returns (MaterializeResult[pl.DataFrame] with value=…)",
        )


def _refused(asset: str, why: str, fix: str) -> InvalidInput:
    return InvalidInput(f"The versioned asset {asset} {why}. Nothing was defined; {fix}.")


def _ins(plain: dg.AssetsDefinition, options: Mapping[str, Any]) -> dict[str, dg.AssetIn]:
    """The inputs as they are, but of lazy types."""
    stated: Mapping[str, dg.AssetIn] = options.get("ins") or {}
    found: dict[str, dg.AssetIn] = {}
    for def_ in plain.op.input_defs:
        given = stated.get(def_.name, dg.AssetIn())
        found[def_.name] = dg.AssetIn(
            key=plain.keys_by_input_name[def_.name],
            metadata=given.metadata,
            input_manager_key=given.input_manager_key,
            partition_mapping=given.partition_mapping,
            dagster_type=lazy_type(def_.dagster_type),
        )
    return found


def _typed_out(out: dg.AssetOut, inner: dg.DagsterType) -> dg.AssetOut:
    replace = getattr(out, "_replace", None)  # a named tuple in some releases
    if replace is not None:
        return replace(dagster_type=lazy_type(inner))
    typed = copy.copy(out)
    object.__setattr__(typed, "dagster_type", lazy_type(inner))
    return typed


def _typed(body: Callable[..., Any], plain: dg.AssetsDefinition) -> Callable[..., Any]:
    """What Dagster calls in place of the function: of the same signature, with inputs of lazy types."""
    compute = functools.wraps(body)(reusing(body))
    inputs = {def_.name: lazy_type(def_.dagster_type) for def_ in plain.op.input_defs}
    hints = get_type_hints(body, include_extras=True)
    signature = inspect.signature(body)
    parameters = [
        parameter.replace(annotation=inputs.get(parameter.name, hints.get(parameter.name, parameter.annotation)))
        for parameter in signature.parameters.values()
    ]
    returns = hints.get("return", inspect.Signature.empty)
    # By setattr, since type checkers do not know that a function has it.
    setattr(compute, "__signature__", signature.replace(parameters=parameters, return_annotation=returns))  # noqa: B010
    # Dagster before 1.11.10 finds resources by these, and get_type_hints never looks at the signature.
    annotations = {
        parameter.name: parameter.annotation
        for parameter in parameters
        if parameter.annotation is not inspect.Parameter.empty
    }
    compute.__annotations__ = annotations | ({} if returns is inspect.Signature.empty else {"return": returns})
    return cast("Callable[..., Any]", compute)
