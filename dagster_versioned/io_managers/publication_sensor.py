"""`build_publication_sensor`: parked versions become current once their checks have passed."""

import dagster as dg

from dagster_versioned.dagster_internals import CoercibleToAssetSelection


def build_publication_sensor(
    name: str,
    target: CoercibleToAssetSelection = "*",
    *,
    minimum_interval_seconds: int = 10,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """A sensor that publishes what assets with ``publish="after_checks"`` have parked, as soon as their checks passed.

    It looks at the parked drafts, not at events: whatever happened since the last tick, a draft is published if and
    only if its step has succeeded and every blocking check of its asset, as the definitions have them now, has passed
    for it (a failure with severity WARN counts as passed); each after those that it was built from. One that cannot be
    published keeps no other one. It requests no runs. ``target``: the assets whose drafts are published.
    """
    selection = dg.AssetSelection.from_coercible(target)

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dagster_versioned.io_managers.publication import publish_tick

        return publish_tick(context, selection)

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=tick,
        asset_selection=selection,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or "Publishes parked versions once every blocking check has passed for them.",
    )
