"""The part cache: what it hands out is what was committed, each part is fetched once, and it stays bounded."""

import os
from dataclasses import replace
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.schema.types import schema_from_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.part_cache import IN_USE_SECONDS, PartCache
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.storage.wrappers import CountingStore
from support.remote_store import RemoteStore

TABLES = [pa.table({"n": pa.array(range(start, start + 10), pa.int64())}) for start in (0, 10, 20)]


@pytest.fixture
def cache(tmp_path):
    return PartCache(tmp_path / "cache", max_bytes=2**30)


@pytest.fixture
def scan(tmp_path):
    """Three parts in a store that is elsewhere and counts what is asked of it."""
    (tmp_path / "table").mkdir()
    files = []
    for table in TABLES:
        pq.write_table(table, tmp_path / "part")
        data = (tmp_path / "part").read_bytes()
        sha = sha256(data).hexdigest()
        (tmp_path / "table" / f"{sha}.parquet").write_bytes(data)
        files.append(ScanFile(f"{sha}.parquet", len(data), sha))
    store = CountingStore(RemoteStore(tmp_path / "table"))
    return Scan(store, schema_from_arrow(TABLES[0].schema).all_nullable(), tuple(files))


def stored(tmp_path, file):
    return tmp_path / "table" / file.key


def rows(scan):
    return ArrowEngine().read(scan)["n"].to_pylist()


def test_parts_are_fetched_once_and_come_in_their_order(scan, cache):
    assert rows(cache.localized(scan, "bytes")) == list(range(30))
    assert scan.store.bytes_read == sum(file.size for file in scan.files)
    scan.store.reset()
    assert rows(cache.localized(replace(scan, files=scan.files[::-1]), "bytes"))[:10] == list(range(20, 30))
    assert scan.store.calls == []


def test_columns_and_values_of_partitions_are_those_of_the_scan(scan, cache):
    files = tuple(replace(file, partition_values={"p": "x"}) for file in scan.files)
    schema = schema_from_arrow(pa.schema([("n", pa.int64()), ("p", pa.string())]))
    partitioned = replace(scan, files=files, schema=schema, columns=("p",))
    assert ArrowEngine().read(cache.localized(partitioned)).to_pydict() == {"p": ["x"] * 30}


@pytest.mark.parametrize("check", ["size", "bytes"])
def test_an_altered_part_is_refused_and_not_taken_in(scan, cache, tmp_path, check):
    path = stored(tmp_path, scan.files[1])
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(IntegrityError, match=scan.files[1].key):
        cache.localized(scan, check)
    assert scan.files[1].key not in {path.name for path in cache.root.iterdir()}


@pytest.mark.parametrize("check", ["size", "bytes"])
def test_a_missing_part_is_an_integrity_error_that_names_it(scan, cache, tmp_path, check):
    stored(tmp_path, scan.files[1]).unlink()
    with pytest.raises(IntegrityError, match=f"{scan.files[1].key} is missing"):
        cache.localized(scan, check)


def test_a_file_that_rotted_in_the_cache_is_fetched_again(scan, cache):
    cache.localized(scan)
    rotten = cache.root / scan.files[0].key
    rotten.write_bytes(rotten.read_bytes()[::-1])
    assert rows(cache.localized(scan, "bytes")) == list(range(30))
    rotten.write_bytes(b"short")
    assert rows(cache.localized(scan, "size")) == list(range(30))


def test_a_file_that_nobody_hashed_is_known_by_its_place_and_etag(scan, cache, tmp_path):
    foreign = replace(scan, files=tuple(replace(file, sha256=None) for file in scan.files))
    assert rows(cache.localized(foreign, "bytes")) == list(range(30))
    pq.write_table(TABLES[2], tmp_path / "other")
    (tmp_path / "other").replace(stored(tmp_path, foreign.files[0]))
    assert rows(cache.localized(foreign, "bytes"))[0] == 20


def test_the_oldest_use_is_forgotten_first_but_nothing_in_use(scan, cache):
    cache.root.mkdir()
    for name, hours in (("a", 100), ("b", 90), ("c", 80), ("d", 1)):
        path = cache.root / f"{name}.parquet"
        path.write_bytes(b"x" * 100)
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))
    PartCache(cache.root, max_bytes=250).localized(replace(scan, files=()))
    assert sorted(path.name for path in cache.root.iterdir()) == ["c.parquet", "d.parquet"]
    PartCache(cache.root, max_bytes=0).localized(replace(scan, files=()))
    assert [path.name for path in cache.root.iterdir()] == ["d.parquet"]
    assert IN_USE_SECONDS > 3600


def test_a_hit_counts_as_a_use(scan, cache):
    cache.localized(scan)
    for path in cache.root.iterdir():
        os.utime(path, (0, 0))
    PartCache(cache.root, max_bytes=0).localized(replace(scan, files=scan.files[:1]))
    assert [path.name for path in cache.root.iterdir()] == [scan.files[0].key]


def test_a_bound_that_is_no_number_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE_BYTES", "20GB")
    with pytest.raises(InvalidInput, match="DAGSTER_VERSIONED_CACHE_BYTES is '20GB'"):
        PartCache.default()


def test_the_environment_says_where_and_how_much(monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path))
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE_BYTES", "5")
    assert PartCache.default() == PartCache(tmp_path, 5)


def test_what_is_cached_is_for_its_owner_alone(scan, cache):
    cache.localized(scan)
    assert cache.root.stat().st_mode & 0o077 == 0
