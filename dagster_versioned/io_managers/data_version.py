"""What Dagster calls a data version: for our assets, the SHA of what a version means."""

import dagster as dg


def set_data_version(asset_key: dg.AssetKey, sha: str) -> None:
    """Make ``sha`` the data version of the materialization that the running step is about to log.

    The method is not public in Dagster, so this is the only place that calls it, and
    tests/io_managers/test_dagster_characterization.py says what is relied on. A version that the asset returns itself
    (``Output(data_version=…)``) wins. Only inside a step.
    """
    dg.AssetExecutionContext.get().set_data_version(asset_key, dg.DataVersion(sha))
