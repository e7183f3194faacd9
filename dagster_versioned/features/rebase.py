"""Rows that exist, accepted under new definitions: stamped anew instead of computed again.

A sample is accepted if it was current under the definitions that it was computed by, compared with what its upstreams
are now; what had really changed stays stale. All features are compared before the first is written, so that one that is
refused leaves all as they were. Source: seed 004 ("data version reconciliation").
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_versioned.engines.dispatch import diff_rows
from dagster_versioned.engines.samples import EXAMPLES, Counts
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.accepted_samples import AcceptedSamples, FeatureToRebase, ShownTable, without_versions
from dagster_versioned.features.arrow.sample_rows import ARROW_ROWS
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.feature_table import field_versions
from dagster_versioned.features.graph import FeatureGraph, FieldRef
from dagster_versioned.features.increment import Increment
from dagster_versioned.features.snapshots import GraphHistory, Push
from dagster_versioned.features.upstream_files import is_own, table_of
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.upstream import Upstream

Compute = Callable[[Increment[pa.Table]], Any]
"""The function of a feature: rows for the samples of an increment."""


@dataclass(frozen=True, slots=True)
class RebasedFeature:
    """What becomes of a feature: ``samples`` are accepted, ``left`` are still to be computed.

    ``compared`` of the accepted were computed, and were equal. ``before`` is the version that the rebase starts from:
    `VersionedTable.revert` goes back to it. ``after`` is the version with the new stamps, ``None`` in a dry run.
    """

    key: str
    before: Version
    samples: int
    left: int
    compared: int = 0
    after: Version | None = None


@dataclass(frozen=True, slots=True)
class RebaseReport:
    """What a rebase did: the features in their order, and the ``push`` that records it, ``None`` in a dry run."""

    features: tuple[RebasedFeature, ...]
    push: Push | None = None


def rebase(
    project: Project,
    graph: FeatureGraph,
    *,
    renamed: Mapping[str, str] | None = None,
    compute: Mapping[str, Compute] | None = None,
    unchecked: Collection[str] = (),
    compare: int = 100,
    before: FeatureGraph | None = None,
    upstreams: Iterable[Project] = (),
    why: str | None = None,
    dry_run: bool = True,
) -> RebaseReport:
    """Accept the samples of a project under new definitions, as far as they were current under those before.

    ``renamed`` maps fields (``feature.field``, by their old keys) to new keys. Where more than names changed in what a
    feature is computed from, ``compute`` has its function: it is called for ``compare`` of the accepted samples, and a
    row that differs from the stored one refuses the rebase. ``unchecked`` features are believed without. ``before`` are
    the definitions by which the tables were computed, by default those of the last push that has them. Fields keep
    their data versions, so that features below an accepted one stay current; an added field has its provenance.
    ``upstreams`` are the other projects whose features the graph names; they are read.

    The definitions are pushed with the rebase, then each feature is one commit. Dead in between, it goes on when run
    again. Raises `InvalidInput` for what is refused, before anything is written.
    """
    history, names, others = GraphHistory(project), dict(renamed or {}), list(upstreams)
    if compare < 1:
        raise InvalidInput(f"compare is {compare}; at least 1 is needed. Nothing was written.")
    functions = compute or {}
    _require_features("compute", functions, graph)
    _require_features("unchecked", unchecked, graph)
    _require_new_names(names, graph)
    plans: dict[str, AcceptedSamples] = {}
    features: list[RebasedFeature] = []
    for feature in (each for each in graph if is_own(each, project)):
        stage = FeatureToRebase(project, graph, feature, names, plans, others)
        if stage.is_current:
            continue
        known = before or _definitions(history, stage)
        _require_old_names(names, known, feature)
        found = stage.derived(known) if feature.deps else stage.root(known)
        if found is not None:
            alone = _names_alone(feature.key, known, graph, names)
            compared = _checked(found, alone, functions.get(feature.key), feature.key in unchecked, compare)
            plans[feature.key] = found
            features.append(RebasedFeature(feature.key, found.head, found.samples, found.left, compared))
    if dry_run or not features:
        return RebaseReport(tuple(features))
    record = {
        "renamed": names,
        "features": {
            each.key: {"before": each.before.metadata_sha, "samples": each.samples, "compared": each.compared}
            for each in features
        },
    }
    push = history.push(graph, why=why, rebase=record).push
    written = (replace(each, after=_written(project, graph, plans[each.key], others, why)) for each in features)
    return RebaseReport(tuple(written), push)


_NAMES = "Nothing was written. Write feature.field, by the field's old key, and its new key."


# --- what is refused -------------------------------------------------------------------------------------------------


def _require_features(what: str, keys: Iterable[str], graph: FeatureGraph) -> None:
    for key in keys:
        if key not in graph:
            raise InvalidInput(f"{what} names the feature {key!r}, which is not in the graph. Nothing was written.")


def _definitions(history: GraphHistory, stage: FeatureToRebase) -> FeatureGraph:
    """The definitions of the last push by which a feature was computed."""
    key = stage.feature.key
    assert stage.record is not None
    for push in history.pushes():
        graph = history.graph(push)
        if key in graph and field_versions(graph, key) == stage.record.fields:
            return graph
    raise InvalidInput(
        f"The definitions by which feature {key!r} was computed were never pushed, so nobody knows which of its "
        "samples were current. Nothing was written. Push them from the code that computed it (graph "
        "push), or give before=."
    )


def _require_new_names(names: Mapping[str, str], graph: FeatureGraph) -> None:
    for text, new in names.items():
        key = text.rpartition(".")[0]
        known = [each.key for each in graph[key].fields] if key in graph else []
        if new not in known:
            has = f"feature {key!r} has the fields {known}" if known else f"{key!r} is no feature of the graph"
            raise InvalidInput(f"renamed has {text!r} as {new!r}, but {has}. {_NAMES}")


def _require_old_names(names: Mapping[str, str], before: FeatureGraph, feature: Feature) -> None:
    had = {FieldRef.of(feature.key, each.key).text for each in before[feature.key].fields}
    for text, new in names.items():
        if text.rpartition(".")[0] == feature.key and text not in had:
            raise InvalidInput(f"renamed has {text!r} as {new!r}, but there was no such field: {sorted(had)}. {_NAMES}")


def _names_alone(key: str, before: FeatureGraph, after: FeatureGraph, names: Mapping[str, str]) -> bool:
    """Whether a feature is computed from the same by the same code, apart from how fields are called."""

    def described(graph: FeatureGraph, called: Callable[[str], str]) -> object:
        feature = graph[key]
        fields = {
            called(FieldRef.of(key, each.key).text): (
                each.code_version,
                sorted(called(ref.text) for ref in graph.parents(key, each.key)),
            )
            for each in feature.fields
        }
        # Mappings have done their work: it is in the parents.
        deps = [{**dep.to_json(), "fields_mapping": None} for dep in feature.deps]
        return fields, feature.id_columns, deps

    def new(text: str) -> str:
        return f"{text.rpartition('.')[0]}.{names[text]}" if text in names else text

    return described(before, new) == described(after, str)


def _checked(plan: AcceptedSamples, names_alone: bool, compute: Compute | None, believed: bool, compare: int) -> int:
    """How many of the accepted samples were computed and found equal. Raises `InvalidInput` where they are not."""
    key, increment = plan.feature.feature.key, plan.increment
    if increment is None:
        return 0
    if compute is None:
        if not (names_alone or believed):
            raise InvalidInput(
                f"Feature {key!r} is computed by other code or from other fields than its {plan.samples} samples "
                f"were. Nothing was written. Give its function (compute={{{key!r}: …}}), which is called for some of "
                "them, or have them believed (unchecked)."
            )
        return 0
    asked = increment.asked
    count = min(compare, asked.counts.stale)
    chosen = np.sort(np.random.default_rng(0).choice(asked.counts.stale, count, replace=False))
    units = asked.stale.take(pa.array(chosen))
    feature = plan.feature.plan
    computed = ARROW_ROWS.own(
        compute(increment.of(replace(asked, stale=units, counts=Counts(stale=count), left=0))), None
    )
    ARROW_ROWS.finished(feature, units, computed)  # which refuses rows of other samples
    stored, computed = (without_versions(each) for each in (ARROW_ROWS.within(feature, plan.stored, units), computed))
    different = {*computed.column_names} ^ {*stored.column_names}
    found = diff_rows(stored, computed, feature.ids)
    counts = found.counts()
    wrong = counts["added"] + counts["removed"] + counts["changed"]
    if different or wrong:
        examples = pa.concat_tables(
            [each.select(list(feature.ids)) for each in (found.changed_before, found.added, found.removed)]
        )
        what = (
            f"the columns {sorted(different)} are in one of them alone"
            if different
            else (f"{wrong} rows differ, for example {', '.join(map(str, examples.slice(0, EXAMPLES).to_pylist()))}")
        )
        raise InvalidInput(
            f"Of the {plan.samples} samples of feature {key!r} that would be accepted, {count} were computed and "
            f"compared with what is stored: {what}. The rebase would hide that. Nothing was written. Have the feature "
            "computed, or correct its function."
        )
    return count


# --- what is written -------------------------------------------------------------------------------------------------


def _written(
    project: Project, graph: FeatureGraph, plan: AcceptedSamples, others: Iterable[Project], why: str | None
) -> Version:
    key = plan.feature.feature.key
    parents: list[Upstream] = []
    for dep in graph[key].deps:
        above, seen = table_of(graph[dep.feature], project, others), plan.upstreams.get(dep.feature)
        if seen is not None:
            parents += above.upstream() if isinstance(seen, ShownTable) else above.upstream_of(seen.files)
    code_version = graph.versions(key).feature
    return plan.feature.table.write(plan.update, parents=parents, code_version=code_version, message=why).version
