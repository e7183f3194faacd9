import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.actions import DomainMetadata, Metadata, Protocol
from dagster_versioned.delta.commit.transaction import Committed, Transaction
from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.clustering import DOMAIN, clustering_columns, clustering_domain
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.storage.local import LocalStore


def field(name: str, data_type: str | StructType = "long") -> StructField:
    return StructField(name, data_type, True, {"delta.columnMapping.physicalName": f"col-{name}"})


SCHEMA = StructType([field("a"), field("s", StructType([field("b"), field("c", "string")]))])


@given(st.lists(st.sampled_from([("a",), ("s", "b"), ("s", "c")])), st.sampled_from(["none", "name"]))
def test_columns_come_back(columns: list[tuple[str, ...]], mapping: str) -> None:
    domain = clustering_domain(columns, SCHEMA, mapping)
    assert domain.domain == DOMAIN
    assert clustering_columns({DOMAIN: domain.configuration}, SCHEMA, mapping) == tuple(columns)


def test_columns_go_by_physical_names() -> None:
    assert clustering_domain([("s", "b")], SCHEMA, "name") == DomainMetadata(
        DOMAIN, '{"clusteringColumns":[["col-s","col-b"]]}'
    )
    with pytest.raises(KeyError):
        clustering_domain([("s", "x")], SCHEMA, "name")


@pytest.mark.parametrize(
    "columns", ['["a"]', '[["a"]]', '[{"physicalName":["a"]}]'], ids=["the protocol", "the reference", "others"]
)
def test_every_spelling_is_read(columns: str) -> None:
    domains = {DOMAIN: f'{{"clusteringColumns":{columns},"domainName":"delta.clustering"}}'}
    assert clustering_columns(domains, SCHEMA, "none") == (("a",),)
    assert clustering_columns({}, SCHEMA, "none") == ()


@pytest.mark.parametrize(
    "configuration", ["", "[]", "{}", '{"clusteringColumns":[[]]}', '{"clusteringColumns":[[1]]}',
                      '{"clusteringColumns":[["x"]]}', '{"clusteringColumns":[{}]}', '{"clusteringColumns":3}']
)  # fmt: skip
def test_a_domain_that_names_no_columns(configuration: str) -> None:
    with pytest.raises(LogCorrupt, match=r"delta\.clustering"):
        clustering_columns({DOMAIN: configuration}, SCHEMA, "none")


def test_a_clustered_table(store: LocalStore) -> None:
    protocol = Protocol(1, 7, None, ("clustering", "domainMetadata"))
    metadata = Metadata("i", SCHEMA.json(), (), {"delta.dataSkippingNumIndexedCols": "1"})
    actions = [protocol, metadata, clustering_domain([("s", "c")], SCHEMA, "none")]
    assert isinstance(Transaction(None, actions, "CREATE").attempt(store), Committed)
    rules = WriteRules.of_snapshot(load_snapshot(store))
    assert rules.clustering == (("s", "c"),)
    assert rules.statistics == (("a",), ("s", "c"))
