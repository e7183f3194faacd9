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


@pytest.mark.parametrize(
    "define",
    [
        lambda **options: polling_source("manifest.yaml", **options),
        lambda **options: sql_asset("delays", inputs={}, query="SELECT 1", **options),
        lambda **options: versioned_asset(**options),
        lambda **options: versioned_feature(id_columns=["id"], fields=["x"], **options),
        lambda **options: versioned_multi_asset(outs={}, **options),
        lambda **options: versioned_multi_feature(features=[], **options),
    ],
)
def test_an_option_that_there_is_not_is_refused_as_python_does(define: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"\(\) got an unexpected keyword argument 'partition_def'"):
        define(partition_def=dg.StaticPartitionsDefinition(["a"]))
