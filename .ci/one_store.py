"""Run the example into a store that other releases have written, or an empty one, then extend the store.

python .ci/one_store.py LOCATION RELEASE REPORT

RELEASE is the name that this environment has in the store; REPORT becomes a JSON file of what happened. Ends with an
`AssertionError` where this environment does not take the store for what the others left.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from dagster_versioned import Project, TableOptions
from dagster_versioned.identity.digest import BagDigest
from example_project.__main__ import AS_IT_CAME
from example_project.definitions import definitions
from example_project.defs.resources import PROJECT, FlightData
from example_project.defs.weather_delays import MONTHS
from support.frames import ALL_TYPES


def run_example(location: str) -> Counter[str]:
    """How many versions of the example's assets came out as which change."""
    months = MONTHS.get_partition_keys()
    result = (
        definitions(location, AS_IT_CAME)
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            instance=dg.DagsterInstance.ephemeral(),
            tags={"dagster/asset_partition_range_start": months[0], "dagster/asset_partition_range_end": months[-1]},
            run_config=dg.RunConfig(
                resources={"flight_data": FlightData()}, loggers={"console": {"config": {"log_level": "ERROR"}}}
            ),
        )
    )
    made = [event.event_specific_data.materialization for event in result.get_asset_materialization_events()]
    return Counter(str(each.metadata["dagster_versioned/change"].value) for each in made)


def heads(project: Project) -> dict[str, str]:
    """The `metadata_sha` of every current version, by table and partition."""
    found: dict[str, str] = {}
    for name in project.tables():
        table = project.table(name)
        for partition, version in (table.partitions() or {"": table.version()}).items():
            found[f"{name}/{partition}"] = version.metadata_sha
    return found


def extend(project: Project, release: str) -> int:
    """Append rows of every type, from Arrow, to those that other releases appended; how many wrote some by now.

    Then have Spark write what it reads of all, and Arrow find that it is what Arrow reads.
    """
    visits, copied = project.table("visits"), project.table("visits_copied")
    rows = ALL_TYPES.append_column("release", pa.array([release] * ALL_TYPES.num_rows))
    visits.write(rows, options=TableOptions(mode="append"))
    for count, version in enumerate(reversed(visits.history()), 1):
        assert visits.read(version.metadata_sha).num_rows == count * ALL_TYPES.num_rows, version
    found = visits.read()
    releases = found["release"].unique().to_pylist()
    for each in releases:
        assert digest(found.filter(pc.equal(found["release"], each)).drop_columns("release")) == digest(ALL_TYPES), each
    ignored = TableOptions(row_order="ignored")
    assert copied.write(visits.read(as_type=DataFrame), options=ignored).change == "full"
    assert copied.write(found, options=ignored).change == "none"
    return len(releases)


def digest(rows: pa.Table) -> str:
    taken = BagDigest(rows.schema)
    for batch in rows.to_batches():
        taken.update(batch)
    return taken.finish().text


def main(location: str, release: str, report: str) -> None:
    project = Project.open(PROJECT, location)
    before = heads(project)
    changes = run_example(location)
    after = heads(project)
    assert set(changes) == {"none" if before else "full"}, changes
    assert not before or before == after, sorted(dict(before.items() ^ after.items()))
    releases = extend(project, release)
    for name in project.tables():
        project.table(name).verify().require_ok()
    Path(report).write_text(json.dumps({"first": not before, "versions": changes.total(), "releases": releases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
