"""What a feature's table lacks of what its upstreams say. Source: seed 004 ("Incremental Computations")."""

from dagster_versioned.engines.samples import FieldText, SampleHash, SamplePlan, UpstreamSamples
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep
from dagster_versioned.features.graph import FeatureGraph, FieldRef


def sample_plan(graph: FeatureGraph, key: str, how: SampleHash) -> SamplePlan:
    """All that decides which samples of a feature are stale, for an engine."""
    feature = graph[key]
    parents = {field.key: graph.parents(key, field.key) for field in feature.fields}
    used = {ref for refs in parents.values() for ref in refs}
    upstreams = tuple(_upstream(graph, feature, dep, used) for dep in feature.deps)
    texts = tuple(
        FieldText(field.member, (field.key, field.code_version, *_pieces(graph, parents[field.key])))
        for field in feature.fields
    )
    on = _matched_by(feature, upstreams)
    return SamplePlan(feature.key, feature.id_columns, on, _units(feature, upstreams), upstreams, texts, how)


def _pieces(graph: FeatureGraph, parents: tuple[FieldRef, ...]) -> list[str | tuple[str, str]]:
    pieces: list[str | tuple[str, str]] = []
    for ref in parents:
        pieces += [ref.text, (ref.feature, _member(graph, ref))]
    return pieces


def _member(graph: FeatureGraph, ref: FieldRef) -> str:
    return next(field.member for field in graph[ref.feature].fields if field.key == ref.field)


def _upstream(graph: FeatureGraph, feature: Feature, dep: FeatureDep, used: set[FieldRef]) -> UpstreamSamples:
    ids = tuple(dep.rename.get(name, name) for name in graph[dep.feature].id_columns)
    match dep.lineage.kind:
        case "identity":
            on = ids
        case "aggregation":
            on = dep.lineage.on or feature.id_columns
        case "expansion":
            on = dep.lineage.on or ids
    return UpstreamSamples(
        dep.feature,
        ids,
        on,
        tuple(sorted(_member(graph, ref) for ref in used if ref.feature == dep.feature)),
        dep.rename,
        dep.select,
        dep.filter,
        dep.optional,
        dep.lineage.kind == "aggregation",
    )


def _matched_by(feature: Feature, upstreams: tuple[UpstreamSamples, ...]) -> tuple[str, ...]:
    """The columns that all upstreams have in common."""
    if not upstreams:
        return feature.id_columns
    common = [name for name in upstreams[0].on if all(name in each.on for each in upstreams)]
    if not common:
        names = ", ".join(f"{list(each.on)} of {each.name!r}" for each in upstreams)
        raise InvalidInput(
            f"Feature {feature.key!r} cannot match the samples of its upstreams: {names} have no column in common."
            " Nothing was computed or written. Rename some in its FeatureDeps, or state their lineage."
        )
    return tuple(common)


def _units(feature: Feature, upstreams: tuple[UpstreamSamples, ...]) -> tuple[str, ...]:
    """The feature's ids that come from its upstreams: what distinguishes its units.

    Raises `InvalidInput` where several samples of an upstream, or groups of them, would be one unit, and where a unit
    might lack an id.
    """
    if not upstreams:
        return feature.id_columns
    found = {name for each in upstreams for name in each.on}
    units = tuple(name for name in feature.id_columns if name in found)
    for each in upstreams:
        _require_told_apart(feature, each, units)
    _require_ids_of_all(feature, upstreams, units)
    return units


def _require_ids_of_all(feature: Feature, upstreams: tuple[UpstreamSamples, ...], units: tuple[str, ...]) -> None:
    required = {name for each in upstreams if not each.optional for name in each.on}
    for known in [required] if required else [{*each.on} for each in upstreams]:
        if lost := [name for name in units if name not in known]:
            raise InvalidInput(
                f"Feature {feature.key!r} has the id columns {lost} from optional upstreams only, so some samples "
                "would have none. Nothing was computed or written. Make one of these upstreams required."
            )


def _require_told_apart(feature: Feature, upstream: UpstreamSamples, units: tuple[str, ...]) -> None:
    wanted = upstream.on if upstream.grouped else upstream.ids
    if lost := [name for name in wanted if name not in units]:
        raise InvalidInput(
            f"Feature {feature.key!r} has the id columns {list(feature.id_columns)}, so samples of {upstream.name!r} "
            f"that differ in {lost} would be one. Nothing was computed or written. Make these columns ids of the "
            "feature, or state Lineage.aggregation() in its FeatureDep."
        )
