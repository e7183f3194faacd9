"""The code of assets: which functions it is of, and what stands for it in keys, facts and Dagster's UI."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from dagster_versioned.code.fingerprint import ALGORITHM, CodeOptions, Fingerprint, KnownCode, fingerprint_of
from dagster_versioned.identity.version import Code
from dagster_versioned.process_state import PROCESS
from dagster_versioned.tables.code_details import CodeDetails

_OPTIONS = "__dagster_versioned_code__"
_FOUND = re.compile(r"code:\d+:[0-9a-f]{12}", re.ASCII)
_OURS = __name__.partition(".")[0]


def note_loaded_code() -> None:
    """Remember how the files of loaded modules are now, so that it is seen if one is edited before its code is asked
    for."""
    PROCESS.of(KnownCode).modules.note()


def with_options(function: Callable[..., Any], options: CodeOptions) -> Callable[..., Any]:
    """The function of an asset, with what else counts as its code."""
    setattr(function, _OPTIONS, options)
    return function


def code_of(assets: dg.AssetsDefinition, more: CodeOptions | None = None) -> Fingerprint | None:
    """The fingerprint of the functions that compute assets; ``None`` where this package, or nothing, computes them.

    ``more`` counts beside what the definition says.
    """
    functions = _functions(assets)
    if not functions:
        return None
    options = [getattr(each, _OPTIONS, CodeOptions()) for each in functions] + ([] if more is None else [more])
    bodies = [_body(each) for each in functions]
    whole = CodeOptions(
        also=[*bodies[1:], *(member for each in options for member in each.also)],
        files=[member for each in options for member in each.files],
        libraries=sorted({member for each in options for member in each.libraries}),
        follow=sorted({member for each in options for member in each.follow}),
    )
    return fingerprint_of(bodies[0], whole, PROCESS.of(KnownCode))


def stated_code_version(code_version: str | None) -> str | None:
    """The code version of an asset, if its definition states it; one that `with_code_versions` found is none."""
    return None if code_version is None or _FOUND.fullmatch(code_version) else code_version


def key_code_version(assets: dg.AssetsDefinition, asset_key: dg.AssetKey) -> str | None:
    """What stands for the code in the key of a computation: what is stated, else what is found; ``None`` where the code
    cannot be followed, so that nobody may say that it is what it was."""
    stated = stated_code_version(assets.specs_by_key[asset_key].code_version)
    if stated is not None:
        return stated
    found = code_of(assets)
    return None if found is None or found.opaque else f"code:{found}"


def with_code_versions(
    definitions: dg.Definitions, *, follow: Sequence[str] = (), libraries: Sequence[str] = ()
) -> dg.Definitions:
    """The same definitions, whose assets have the fingerprint of their code as code version, where they state none.

    So Dagster's UI says *code changed*, and conditions on the code version hold. The fingerprint is taken of what is
    loaded, so call it last, where all modules are. It is no part of what a version is: equal rows of other code are the
    same version, and nothing below is computed again. What cannot be followed has no code version.
    """
    more = CodeOptions(follow=follow, libraries=libraries)
    found: dict[dg.AssetKey, str] = {}
    for assets in {id(each): each for each in definitions.resolve_asset_graph().assets_defs}.values():
        code = code_of(assets, more) if assets.is_executable else None
        if code is not None and not code.opaque:
            found |= dict.fromkeys(assets.keys, f"code:{ALGORITHM}:{code.digest[:12]}")

    def versioned(spec: dg.AssetSpec) -> dg.AssetSpec:
        if spec.code_version is not None or spec.key not in found:
            return spec
        return spec.replace_attributes(code_version=found[spec.key])

    return definitions.map_resolved_asset_specs(func=versioned)


def made_by(assets: dg.AssetsDefinition) -> tuple[Code, CodeDetails] | None:
    """What versions record of the code that computes assets; ``None`` where no function of users does."""
    found, known = code_of(assets), PROCESS.of(KnownCode)
    if found is None:
        return None
    commit = known.commit(found.sources)
    details = CodeDetails(found.functions, found.constants, known.runtime)
    code = Code(
        str(found),
        details.sha,
        found.opaque,
        commit=None if commit is None or commit.is_claimed else commit.sha,
        remote=None if commit is None else commit.remote,
        modified=() if commit is None else commit.modified,
        claimed_commit=commit.sha if commit is not None and commit.is_claimed else None,
    )
    return code, details


def _functions(assets: dg.AssetsDefinition) -> list[Callable[..., Any]]:
    """The functions that users wrote, in the order of the graph's ops."""
    node = assets.node_def if assets.is_executable else None
    if node is None:
        return []
    ops = [node] if isinstance(node, dg.OpDefinition) else list(node.iterate_op_defs())
    functions: list[Any] = [getattr(op.compute_fn, "decorated_fn", op.compute_fn) for op in ops]
    return [each for each in functions if not _is_ours(_body(each))]


def _body(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the user in one that this package made of it."""
    return inspect.unwrap(function, stop=lambda each: not _is_ours(each))


def _is_ours(function: Any) -> bool:
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return str(module).partition(".")[0] == _OURS
