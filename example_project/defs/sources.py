"""The five tables as they come from outside: imported versions, where all lineage ends."""

import dagster as dg
import pandas as pd

from example_project.defs.resources import FlightData, Source


def imported(source: Source, description: str) -> dg.AssetsDefinition:
    """The asset that imports one table."""

    @dg.asset(name=source, description=description, group_name="sources", kinds={"pandas", "deltalake"})
    def table(flight_data: FlightData) -> pd.DataFrame:
        return flight_data.frame(source)

    return table


flights = imported("flights", "Every flight that left New York City in 2013: when, where to, and how late.")
weather = imported(
    "weather", "What the weather was at each airport of New York City in each hour of 2013, as reported so far."
)
planes = imported("planes", "The planes: who built them, when, and how many seats they have.")
airports = imported("airports", "The airports: the name behind each code, and where it lies.")
airlines = imported("airlines", "The airlines: the name behind each code.")
