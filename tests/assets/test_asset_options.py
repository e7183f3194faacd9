"""The parameters that assets of this package share with Dagster's are Dagster's, and no others."""

import inspect
from collections.abc import Callable

import dagster as dg
import pytest

from dagster_versioned import (
    polling_source,
    sql_asset,
    versioned_asset,
    versioned_feature,
    versioned_multi_asset,
    versioned_multi_feature,
)
from dagster_versioned.assets.asset_options import VersionedAssetOptions, VersionedMultiAssetOptions


@pytest.mark.parametrize(
    ("options", "decorator"), [(VersionedAssetOptions, dg.asset), (VersionedMultiAssetOptions, dg.multi_asset)]
)
def test_every_option_is_one_of_dagsters(options: type, decorator: Callable[..., object]) -> None:
    assert set(options.__annotations__) < set(inspect.signature(decorator).parameters)


DEFINITIONS: dict[str, Callable[..., object]] = {
    "polling_source": lambda **options: polling_source("manifest.yaml", **options),
    "sql_asset": lambda **options: sql_asset("delays", inputs={}, query="SELECT 1", **options),
    "versioned_asset": versioned_asset,
    "versioned_feature": lambda **options: versioned_feature(id_columns=["id"], fields=["x"], **options),
    "versioned_multi_asset": lambda **options: versioned_multi_asset(outs={}, **options),
    "versioned_multi_feature": lambda **options: versioned_multi_feature(features=[], **options),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_an_option_that_there_is_not_is_refused_as_python_does(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'partition_def'"):
        DEFINITIONS[name](partition_def=dg.StaticPartitionsDefinition(["a"]))
