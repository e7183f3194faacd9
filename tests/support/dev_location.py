"""A code location for ``dagster dev``: one target, and a sensor that keeps it current."""

import dagster as dg
import pyarrow as pa

from dagster_versioned import ProjectResource, VersionedParquetIOManager, build_version_sensor


@dg.asset
def delays(flights: pa.Table) -> pa.Table:
    return flights


project = ProjectResource(name="HOUSE", location=dg.EnvVar("DEV_LOCATION"))

defs = dg.Definitions(
    assets=[dg.AssetSpec("flights"), delays],
    resources={"io_manager": VersionedParquetIOManager(project=project)},
    sensors=[
        build_version_sensor(
            "keep_current",
            dg.AssetSelection.assets(delays),
            minimum_interval_seconds=1,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
    executor=dg.in_process_executor,
)
