"""Definitions of 13 small assets that a pull request changes; ``support.pull_request`` commits this file to git.

Each call of a function is a line in the file ``SHOP_CALLS``; sources are the CSV files of the folder ``SHOP_INBOX``.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TypeVar

import dagster as dg
import pandas as pd
import pyarrow.csv as csv

from dagster_versioned import GovernanceResource, ProjectResource, VersionedParquetIOManager, build_version_sensor

Made = TypeVar("Made", bound=Callable[..., pd.DataFrame])


def counted(made: Made) -> Made:
    """Note each call."""

    @wraps(made)
    def call(*args: pd.DataFrame, **frames: pd.DataFrame) -> pd.DataFrame:
        with Path(os.environ["SHOP_CALLS"]).open("a") as calls:
            calls.write(f"{made.__name__}\n")
        return made(*args, **frames)

    return call  # pyright: ignore[reportReturnType]


def source(name: str) -> dg.AssetsDefinition:
    """What somebody else puts into the inbox."""

    def read() -> pd.DataFrame:
        return csv.read_csv(Path(os.environ["SHOP_INBOX"], f"{name}.csv")).to_pandas()

    read.__name__ = name
    return dg.asset(counted(read), group_name="sources", code_version="1")


SOURCES = [source(name) for name in ("orders", "products", "rates", "customers")]


@dg.asset(code_version="1")
@counted
def order_lines(orders: pd.DataFrame, products: pd.DataFrame) -> pd.DataFrame:
    """What was ordered, at which price."""
    lines = orders.merge(products, on="item")
    return lines.assign(total=lines["pieces"] * lines["price"]).sort_values("order", ignore_index=True)


@dg.asset(code_version="1")
@counted
def revenue(order_lines: pd.DataFrame) -> pd.DataFrame:
    """Of each order."""
    return order_lines[["order", "customer", "month", "currency", "total"]].astype({"total": "float64"})


@dg.asset(code_version="1")
@counted
def revenue_by_month(revenue: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """In euro."""
    lines = revenue.merge(rates, on="currency")
    return lines.assign(euro=lines["total"] * lines["rate"]).groupby("month", as_index=False).agg(euro=("euro", "sum"))


@dg.asset(code_version="1")
@counted
def revenue_by_country(revenue: pd.DataFrame, people: pd.DataFrame) -> pd.DataFrame:
    """In each currency."""
    lines = revenue.merge(people, on="customer")
    return lines.groupby(["country", "currency"], as_index=False).agg(total=("total", "sum"))


@dg.asset(code_version="1")
@counted
def people(customers: pd.DataFrame) -> pd.DataFrame:
    """Customers whose country is known."""
    return customers.dropna(subset="country").reset_index(drop=True)


@dg.asset(code_version="1")
@counted
def loyalty(order_lines: pd.DataFrame, people: pd.DataFrame) -> pd.DataFrame:
    """How often each customer ordered."""
    counts = order_lines.groupby("customer", as_index=False).agg(orders=("order", "count"))
    return people.merge(counts, on="customer", how="left").fillna({"orders": 0}).astype({"orders": "int64"})


@dg.asset(code_version="1")
@counted
def best_customers(loyalty: pd.DataFrame) -> pd.DataFrame:
    """Those who ordered twice."""
    return loyalty[loyalty["orders"] > 1].reset_index(drop=True)


@dg.asset(code_version="1")
@counted
def catalogue(products: pd.DataFrame) -> pd.DataFrame:
    """By price."""
    return products.sort_values(["price", "item"], ignore_index=True)


@dg.asset(code_version="1")
@counted
def slow_sellers(catalogue: pd.DataFrame, order_lines: pd.DataFrame) -> pd.DataFrame:
    """What nobody ordered."""
    return catalogue[~catalogue["item"].isin(order_lines["item"])].reset_index(drop=True)


BUILT = [
    order_lines,
    revenue,
    revenue_by_month,
    revenue_by_country,
    people,
    loyalty,
    best_customers,
    catalogue,
    slow_sellers,
]

project = ProjectResource(
    name="SHOP",
    governance=GovernanceResource(
        storage=dg.EnvVar("DAGSTER_VERSIONED_GOVERNANCE"), registry=dg.EnvVar("DAGSTER_VERSIONED_REGISTRY")
    ),
    environment=dg.EnvVar("DAGSTER_VERSIONED_ENVIRONMENT"),
)
defs = dg.Definitions(
    assets=[*SOURCES, *BUILT],
    sensors=[
        build_version_sensor(
            "keep_current",
            dg.AssetSelection.assets(*BUILT),
            on_code_version=True,
            minimum_interval_seconds=2,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
    resources={"io_manager": VersionedParquetIOManager(project=project)},
    executor=dg.in_process_executor,
)
