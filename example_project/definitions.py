"""What Dagster loads: ``dagster dev -m example_project.definitions``."""

import os

import dagster as dg

from example_project import defs as assets
from example_project.defs.resources import FlightData, io_manager

LOCATION_VARIABLE = "EXAMPLE_LOCATION"


def definitions(location: str | None) -> dg.Definitions:
    """The project at a location (a local path or ``s3://bucket/prefix``), or, without one, where governance says."""
    return dg.Definitions(
        assets=dg.load_assets_from_package_module(assets),
        resources={"flight_data": FlightData(), "io_manager": io_manager(location)},
        # One process, so that all steps share one Spark session.
        executor=dg.in_process_executor,
    )


defs = definitions(os.environ.get(LOCATION_VARIABLE))
