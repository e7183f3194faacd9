"""A user's script. It names project, table and version, but no place."""

import sys

from dagster_versioned import read

if __name__ == "__main__":
    governance = ".example/governance"
    weather = read("NYC_FLIGHTS", "weather", version=sys.argv[1], governance=governance)
    print(f"{weather.num_rows} weather reports, at {weather['temp'].null_count} the thermometer failed")
