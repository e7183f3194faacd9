"""The five tables as they come from outside: imported versions, where all lineage ends."""

import dagster as dg
import pandas as pd

from example_project.defs.resources import FlightData, Source


def imported(source: Source) -> dg.AssetsDefinition:
    """The asset that imports one table."""

    @dg.asset(name=source, group_name="sources", kinds={"pandas"})
    def table(flight_data: FlightData) -> pd.DataFrame:
        return flight_data.frame(source)

    return table


flights = imported("flights")
weather = imported("weather")
planes = imported("planes")
airports = imported("airports")
airlines = imported("airlines")
