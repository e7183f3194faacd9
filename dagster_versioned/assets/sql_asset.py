"""`sql_asset`: an asset that is a query over event tables, and nothing else."""

import hashlib
import inspect
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Unpack

import dagster as dg

from dagster_versioned.assets.asset_options import AssetOptions, refuse_unknown
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.odf.queries.transform import Derivation, InputAt
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery

_ANY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD
QUERY_KEY = "dagster_versioned/query"
"""Asset metadata that shows the query."""

Upstream = dg.AssetsDefinition | dg.AssetKey | dg.AssetIn | Sequence[str] | str
"""What names an asset that is read."""


def sql_asset(
    name: str,
    *,
    inputs: Mapping[str, Upstream],
    query: str | None = None,
    queries: Iterable[QueryStep | tuple[str, str] | str] = (),
    temporal_tables: Mapping[str, Sequence[str]] | None = None,
    **options: Unpack[AssetOptions],
) -> dg.AssetsDefinition:
    """Define an asset that is a pure query, in Spark's SQL, over event tables.

    ``inputs`` are the assets that it reads, by what the query calls them; each is an event table, or another SQL
    transform. A query sees their event time and their data. Its result has an event time, too, and at least one column
    beside it. Instead of one ``query`` there may be several ``queries``, each with an alias (``("late", "SELECT …")``)
    for those that come after it; the last has none. ``temporal_tables`` are inputs that are joined as of a time, with
    the columns that identify what is versioned: such an input has a row for each version, and ``valid_from`` and
    ``valid_to`` (null: still valid) beside its columns.

    Each materialization takes what is new in its inputs, and appends what follows from it: rows that were wrong are
    retracted, so that what the asset's events come to is what the query gives over what its inputs' events come to. The
    query, the exact version of Spark, and the exact intervals of the inputs are recorded, so that `verify` can repeat
    it. After a change of the query, everything is computed once more, and the difference appended.

    Queries are refused, when they first run, that could have another result in another run: those that ask for the
    present time, the user or random numbers, that call functions in Python or Java, or that read other tables. The
    other parameters are those of `dagster.asset`. Raises `InvalidInput`.
    """
    refuse_unknown("sql_asset", options, AssetOptions)
    steps = _steps(name, query, queries)
    asked = TransformQuery(tuple(inputs), steps, {table: tuple(key) for table, key in (temporal_tables or {}).items()})
    names = {alias: f"input__{number}" for number, alias in enumerate(inputs)}

    def compute(**values: UpstreamFiles) -> Generator[dg.Output[Derivation]]:
        found = {alias: InputAt.of_table(values[name].table, values[name].files) for alias, name in names.items()}
        yield dg.Output(Derivation(asked, found))

    compute.__name__ = name
    parameters = [inspect.Parameter(name, _ANY_PLACE, annotation=UpstreamFiles) for name in names.values()]
    setattr(compute, "__signature__", inspect.Signature(parameters))  # noqa: B010 - which type checkers do not know
    shown = "\n\n".join(f"-- {step.alias}\n{step.query}" if step.alias else step.query for step in steps)
    kinds = options.get("kinds")
    options["kinds"] = {"sql"} if kinds is None else kinds
    options["metadata"] = {
        **(options.get("metadata") or {}),
        QUERY_KEY: dg.MarkdownMetadataValue(f"```sql\n{shown}\n```"),
    }
    ins = {names[alias]: _as_input(asset) for alias, asset in inputs.items()}
    return dg.asset(name=name, ins=ins, code_version=_code_version(asked), **options)(compute)


def _steps(name: str, query: str | None, queries: Iterable[QueryStep | tuple[str, str] | str]) -> tuple[QueryStep, ...]:
    steps = tuple(_as_step(step) for step in queries)
    if (query is None) == (not steps):
        raise InvalidInput(
            f"The asset {name!r} has {'neither a query nor queries' if query is None else 'a query and queries'}. "
            "Nothing was defined. Give one of the two."
        )
    return steps if query is None else (QueryStep(query),)


def _as_step(step: QueryStep | tuple[str, str] | str) -> QueryStep:
    if isinstance(step, QueryStep):
        return step
    return QueryStep(step) if isinstance(step, str) else QueryStep(step[1], step[0])


def _as_input(asset: Upstream) -> dg.AssetIn:
    match asset:
        case dg.AssetIn():
            return asset
        case dg.AssetsDefinition():
            return dg.AssetIn(asset.key)
        case dg.AssetKey():
            return dg.AssetIn(asset)
        case _:
            return dg.AssetIn(dg.AssetKey(asset))


def _code_version(query: TransformQuery) -> str:
    """Another one if and only if the query is another."""
    definition = {
        "inputs": list(query.inputs),
        "steps": [[step.alias, step.query] for step in query.steps],
        "temporal_tables": {name: list(key) for name, key in query.temporal_tables.items()},
    }
    return hashlib.sha256(canonical_json(definition)).hexdigest()[:12]
