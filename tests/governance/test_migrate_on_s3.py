"""A regulator's question, on a real S3 server: every version that ever was, after two moves, whoever asks."""

from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pytest

from dagster_versioned.errors import AccessDenied
from dagster_versioned.governance.connect import Governance
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import Location, S3Credentials, S3Store
from dagster_versioned.storage.s3 import S3Options
from support.frames import numbered
from support.governed import NAME, Governed, Opener, chain, facts
from support.readers import assert_same
from support.s3_server import S3Server

datom = pytest.importorskip("datom")

pytestmark = [pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:
    return s3_server


@pytest.fixture
def governed(registry: Registry, server: S3Server, tmp_path: Path) -> Governed:
    """A project in a folder, in a registry whose mirror is in a bucket."""
    mirror = GovernanceStore(server.store(server.new_bucket(), "governance"))
    home = Location.parse(str(tmp_path / "old"))
    return Governed.begin(registry, mirror, home, Opener({server.endpoint_url: server}))


def test_fourteen_versions_over_three_places_are_read_by_everybody(
    governed: Governed, registry: Registry, other: Registry, server: S3Server
) -> None:
    frames = {size: numbered(size) for size in range(1, 15)}
    first, second = (server.location(server.new_bucket(), "study-001") for _ in range(2))

    write(governed, frames, range(1, 8))
    before, links = facts(governed.at(governed.home)), chain(governed.at(governed.home), "flights")
    other.fetch()  # and never again: the project is where this clone knows it to be
    governed.move(first, verify="content", delete_source=True)
    assert facts(governed.at(first)) == before
    assert chain(governed.at(first), "flights")[: len(links)] == links

    write(governed, frames, range(8, 15))
    before, links = facts(governed.at(first)), chain(governed.at(first), "flights")
    report = governed.move(second, verify="content", reason="cheaper region")
    assert facts(governed.at(second)) == before
    assert chain(governed.at(second), "flights")[: len(links)] == links
    assert report.verified == "content"

    shas = {version[1]: version[0] for version in versions(governed, second)}
    assert len(shas) == 14
    assert registry.documents(NAME).ref.current == second
    assert [place.location for place in registry.documents(NAME).ref.previous] == [governed.home, first]
    stale = Governance(governed.mirror.store, role="developer", registry=other, credentials=server.credentials)
    assert stale.documents(NAME).ref.current == governed.home
    table = Governance(governed.mirror.store, credentials=server.credentials).project(NAME).table("flights")
    stale_table = stale.project(NAME).table("flights")
    for size, sha in shas.items():
        assert_same(table.read(sha[:12]), frames[size])
        assert_same(stale_table.read(sha[:12]), frames[size])
    table.verify().require_ok()
    by_delta_readers(server, second, frames, {v.log_version: v.identity.nrow for v in table.history()})
    governed.at(second).table("flights").repair()  # what is put now and then is as new as the log
    by_datom(server, second, frames, shas)


def write(governed: Governed, frames: dict[int, pa.Table], sizes: range) -> None:
    table = governed.by_developer().table("flights")
    for size in sizes:
        assert table.write(frames[size], message=f"{size} rows").change == "full"


def versions(governed: Governed, place: Location) -> list[tuple[str, int]]:
    return [(str(v.metadata_sha), v.identity.nrow) for v in governed.at(place).table("flights").history()]


def by_delta_readers(server: S3Server, place: Location, frames: dict[int, pa.Table], sizes: dict[int, int]) -> None:
    options = {
        "AWS_ENDPOINT_URL": server.endpoint_url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": server.region,
    }
    uri = f"s3://{place.root}/{place.prefix}datom/flights"
    for log_version, size in sizes.items():
        table = deltalake.DeltaTable(uri, version=log_version, storage_options=options)
        assert_same(table.to_pyarrow_table(), frames[size])
    assert_same(deltalake.DeltaTable(uri, storage_options=options).to_pyarrow_table(), frames[14])


def by_datom(server: S3Server, place: Location, frames: dict[int, pa.Table], shas: dict[int, str]) -> None:
    store = datom.store_s3(place.root, place.prefix.rstrip("/"), server.region, credentials=dict)
    store._client = server.client()  # datom itself talks to AWS alone
    conn = datom.get_conn(store, NAME)
    for size, sha in shas.items():
        assert_same(datom.read(conn, "flights", sha[:12], as_arrow=True), frames[size])
    listed = datom.history(conn, "flights", n=100)
    assert sorted(listed["version"]) == sorted(shas.values())


def test_a_server_copies_large_objects_in_parts_and_they_do_not_pass_through(
    governed: Governed, server: S3Server
) -> None:
    first, second = (server.location(server.new_bucket(), "study-001") for _ in range(2))
    numbers = np.random.default_rng(1).integers(0, 2**62, 1_000_000)
    governed.at(governed.home).table("large").write(pa.table({"n": numbers}))
    governed.move(first)
    before = governed.at(first).table("large").history()
    small = S3Options(part_bytes=5 * 1024**2, whole_copy_bytes=5 * 1024**2)
    largest = max(info.size for info in governed.open(first).list())
    assert largest > small.whole_copy_bytes

    def with_small_parts(location: Location):
        return server.store(location.root, location.prefix.rstrip("/"), small)

    with pytest.MonkeyPatch.context() as patch:
        for verb in ("put_file", "put_chunks"):
            patch.setattr(S3Store, verb, None)
        governed.move(second, open_store=with_small_parts)
    assert governed.at(second).table("large").history() == before
    governed.at(second).table("large").verify().require_ok()


def test_a_target_whose_keys_are_refused_is_an_error_before_anything_is_recorded(
    governed: Governed, server: S3Server
) -> None:
    target = server.location(server.new_bucket(), "study-001")

    def with_wrong_keys(location: Location):
        return S3Store(location, credentials=lambda: S3Credentials("nobody", "nothing"))

    commit = governed.registry.fetch()
    governed.at(governed.home).table("flights").write(numbered(3))
    with pytest.raises(AccessDenied, match="server answered 40"):
        governed.move(target, open_store=lambda at: governed.open(at) if at == governed.home else with_wrong_keys(at))
    assert governed.registry.fetch() == commit
    governed.by_developer().table("flights").write(numbered(4))
