"""Which absolute paths a table's log may have its readers follow."""

import pickle
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.delta.actions import Add, Metadata, Protocol, Remove, encode_action
from dagster_versioned.delta.files.external_files import NOWHERE, ExternalFiles, with_external_files
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.table import Table
from dagster_versioned.errors import InvalidInput, InvalidName, LogCorrupt, ObjectNotFound, UnsupportedFeature
from dagster_versioned.storage import LocalStore, open_store

SCHEMA = '{"type":"struct","fields":[{"name":"x","type":"long","nullable":true,"metadata":{}}]}'
S3 = ExternalFiles(("s3://lake/table", "s3://other/base"))


@pytest.fixture
def reach(tmp_path: Path) -> ExternalFiles:
    """A table in ``table``, which may read ``base``; beside both there is ``secret``."""
    for name in ("table", "base", "secret"):
        (tmp_path / name / "in").mkdir(parents=True)
    return ExternalFiles((str(tmp_path / "table"), str(tmp_path / "base")))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("{root}/table/f", (0, "f")),
        ("file:{root}/table/in/a%20b", (0, "in/a b")),
        ("file://{root}/base//./f", (1, "f")),
        ("{root}/base/../base/in/../f", (1, "f")),
        ("{root}/secret/../table/f", (0, "f")),
        ("{root}/base/..f", (1, "..f")),
    ],
)
def test_a_file_below_a_root_is_found_however_it_is_spelled(reach, tmp_path, path, found):
    key = reach.admitted(path.format(root=tmp_path))
    assert reach.located(key) == found


@pytest.mark.parametrize(
    "path",
    [
        "{root}/secret/f",
        "{root}/base/../secret/f",
        "{root}/table/%2e%2e/secret/f",
        "file:{root}/table/in/../../secret/f",
        "{root}/base-2/f",
        "{root}/base",
        "{root}",
        "/",
        "file://host{root}/base/f",
        "s3://lake/f",
        "https://host{root}/base/f",
        "hdfs:{root}/base/f",
    ],
)
def test_a_file_below_no_root_is_refused_with_its_path_and_the_way_to_allow_it(reach, tmp_path, path):
    path = path.format(root=tmp_path)
    with pytest.raises(UnsupportedFeature, match=r"absolutePaths.*allow=\[") as refused:
        reach.admitted(path)
    assert path in str(refused.value)
    with pytest.raises(UnsupportedFeature):
        reach.confine(pa.chunked_array([["plain", path]]))


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_objects_of_a_bucket_are_found_by_each_scheme_that_means_s3(scheme):
    assert S3.located(S3.admitted(f"{scheme}://lake/table/p=1/f%20g")) == (0, "p=1/f g")
    assert S3.located(S3.admitted(f"{scheme}://other/base/f")) == (1, "f")
    for path in ("other/base/../f", "other/base-2/f", "other/f", "lake/f", "lake/table", "lake/../other/f", "../f"):
        with pytest.raises(UnsupportedFeature, match="absolutePaths"):
            S3.admitted(f"{scheme}://{path}")
    with pytest.raises(UnsupportedFeature, match=r"allow=\['s3://elsewhere/a'\]"):
        S3.admitted(f"{scheme}://elsewhere/a/f")


@pytest.mark.parametrize(
    ("roots", "path", "found"),
    [
        (("gs://lake/table", "gs://other/base"), "gs://other/base/a/f", (1, "a/f")),
        (("abfss://c@a.dfs.core.windows.net/table",), "abfss://c@a.dfs.core.windows.net/table/f", (0, "f")),
        (("abfss://c@a.dfs.core.windows.net/table",), "abfs://c@a.dfs.core.windows.net/table/f", (0, "f")),
    ],
)
def test_objects_of_other_clouds_are_found_below_their_roots_alone(roots, path, found):
    reach = ExternalFiles(roots)
    assert reach.located(reach.admitted(path)) == found
    for other in ("gs://lake/table2/f", "s3://lake/table/f", "gs://lake/table/../f", "abfss://d@a/table/f"):
        with pytest.raises(UnsupportedFeature, match="allow="):
            reach.admitted(other)


@pytest.mark.parametrize("path", ["../f", "a/../../f", "", "/x\\f", "/x%00f", "s3%3A/lake/table/f"])
def test_paths_that_make_no_sense_are_refused_as_ever(reach, path):
    with pytest.raises(LogCorrupt):
        reach.admitted(path)


def test_without_roots_every_absolute_path_is_refused(tmp_path):
    assert NOWHERE.admitted("a%20b") == "a b"
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        NOWHERE.admitted(f"{tmp_path}/f")


def test_links_are_followed_before_it_is_judged_and_never_out_of_a_root(reach, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "base")
    (tmp_path / "base" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "base" / "f").write_bytes(b"base")
    (tmp_path / "secret" / "f").write_bytes(b"secret")
    store = with_external_files(LocalStore(tmp_path / "table"), [str(tmp_path / "link")])
    for spelling in ("link/f", "base/f", "link/in/../f"):
        assert store.get(f"{tmp_path}/{spelling}") == b"base"
    with pytest.raises(UnsupportedFeature):
        reach.admitted(f"{tmp_path}/base/out/../f")  # where the system would find secret's neighbour
    with pytest.raises(InvalidName, match="symbolic link"):
        store.get(f"{tmp_path}/base/out/f")


def test_a_reaching_store_reads_what_it_may_and_writes_to_its_own_folder_alone(tmp_path):
    base, table = LocalStore(tmp_path / "base"), LocalStore(tmp_path / "table")
    base.put("f", b"base")
    table.put("f", b"own")
    store = pickle.loads(pickle.dumps(with_external_files(table, [str(tmp_path / "base")])))
    for key, data in ((f"{tmp_path}/base/f", b"base"), (f"{tmp_path}/table/f", b"own"), ("f", b"own")):
        assert store.get(key) == store.get_range(key, 0, 9) == store.get_with_info(key)[0] == data
        assert store.head(key).size == len(data)
        assert store.local_path(key).read_bytes() == data
        assert Path(store.url(key)).read_bytes() == data
    with pytest.raises(ObjectNotFound):
        store.get(f"{tmp_path}/base/g")
    with pytest.raises(InvalidName):
        store.get("/etc/passwd")
    for write in (lambda key: store.put(key, b""), lambda key: store.delete([key])):
        with pytest.raises(InvalidName):
            write(f"{tmp_path}/base/f")
    assert base.get("f") == b"base"
    assert [info.key for info in store.list()] == ["f"]


def test_one_folder_is_not_taken_for_a_list_of_letters(tmp_path):
    with pytest.raises(InvalidInput, match="list of folders"):
        with_external_files(open_store(str(tmp_path)), "/base")


def put(folder: Path, *commits: list) -> LocalStore:
    store = LocalStore(folder)
    first = [Protocol(1, 2), Metadata("id", SCHEMA)]
    for version, actions in enumerate([first, *commits]):
        store.put(commit_key(version), b"\n".join(map(encode_action, actions)))
    return store


def test_a_snapshot_follows_the_same_paths_after_new_commits(tmp_path):
    outside = str(tmp_path / "base" / "f")
    store = put(tmp_path / "table")
    allowed = Table(str(tmp_path / "table"), allow=[str(tmp_path / "base")])
    strict = Table(str(tmp_path / "table"))
    assert allowed.snapshot().num_files == strict.snapshot().num_files == 0
    put(tmp_path / "table", [Add(outside, {}, 1, 1, True)])
    assert allowed.snapshot().adds()[0].key == outside
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        strict.snapshot()
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        load_snapshot(store)
    assert Table(store, allow=[str(tmp_path / "base")]).snapshot().num_files == 1


def test_vacuum_keeps_files_of_its_folder_that_are_named_by_absolute_paths_and_touches_no_other_folder(tmp_path):
    table, base = tmp_path / "table", LocalStore(tmp_path / "base")
    adds = [Add(f"file://{table}/kept", {}, 1, 1, True), Add(str(tmp_path / "base" / "live"), {}, 1, 1, True)]
    gone = Remove(str(tmp_path / "base" / "gone"), True, 1)
    store = put(table, [*adds, gone])
    for name in ("kept", "live", "gone", "nobodys"):
        store.put(name, b"x")
        base.put(name, b"x")
    opened = Table(str(table), allow=[base.uri])
    report = opened.vacuum(timedelta(0), dry_run=False, force=True)
    assert sorted(report.keys) == ["gone", "live", "nobodys"]
    assert [info.key for info in base.list()] == ["gone", "kept", "live", "nobodys"]
