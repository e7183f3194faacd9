"""What Dagster loads: ``dagster dev -m example_project.definitions``."""

import os
from collections.abc import Mapping

import dagster as dg

from dagster_versioned import build_version_sensor
from example_project import defs as assets
from example_project.defs.resources import FlightData, io_manager, spark

LOCATION_VARIABLE = "EXAMPLE_LOCATION"

keep_current = build_version_sensor(
    "keep_current",
    target=dg.AssetSelection.all() - dg.AssetSelection.groups("sources"),
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Runs whatever is not built from the current versions of its upstreams. Materialize a source, and see.",
)


def definitions(location: str | None, spark_settings: Mapping[str, str] | None = None) -> dg.Definitions:
    """The project at a location (a local path or ``s3://bucket/prefix``), or, without one, where governance says."""
    return dg.Definitions(
        assets=dg.load_assets_from_package_module(assets),
        resources={"flight_data": FlightData(), "io_manager": io_manager(location, spark(spark_settings))},
        sensors=[keep_current],
        # One process, so that all steps share one Spark session.
        executor=dg.in_process_executor,
    )


defs = definitions(os.environ.get(LOCATION_VARIABLE))
