"""How places are written down, and that no secret gets into one."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage import LocalStore, Location, S3Store, location, open_store
from dagster_versioned.storage.keys import is_key

prefixes = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40).filter(
    lambda text: "?" not in text and (not text or is_key(text))
)
s3_locations = st.builds(
    Location,
    type=st.just("s3"),
    root=st.from_regex(r"[a-z0-9][a-z0-9.-]{1,30}[a-z0-9]", fullmatch=True),
    prefix=prefixes,
    region=st.none() | st.sampled_from(["eu-west-1", "us-east-1"]),
    endpoint_url=st.none() | st.sampled_from(["http://127.0.0.1:9000", "https://s3.example.com/a+b", "http://[::1]:1"]),
)


@given(s3_locations)
def test_an_s3_location_survives_its_uri_and_its_json(location: Location):
    assert Location.parse(location.uri) == location
    assert Location.from_json(location.to_json()) == location


cloud_locations = st.one_of(
    st.builds(
        Location,
        type=st.just("gcs"),
        root=st.from_regex(r"[a-z0-9][a-z0-9.-]{1,30}[a-z0-9]", fullmatch=True),
        prefix=prefixes,
        endpoint_url=st.none() | st.just("http://127.0.0.1:9000"),
    ),
    st.builds(
        Location,
        type=st.just("azure"),
        root=st.from_regex(r"[a-z0-9]{3}(-[a-z0-9]{1,5}){0,3}", fullmatch=True),
        account=st.from_regex(r"[a-z0-9]{3,24}", fullmatch=True),
        prefix=prefixes,
        endpoint_url=st.none() | st.just("http://127.0.0.1:10000/account"),
    ),
)


@given(cloud_locations)
def test_a_location_in_another_cloud_survives_its_uri_and_its_json(location: Location):
    assert Location.parse(location.uri) == location
    assert Location.from_json(location.to_json()) == location


@given(prefixes.filter(bool))
def test_a_local_location_survives_its_uri_and_its_json(path: str):
    location = Location(type="local", root=f"/{path}")
    assert Location.parse(location.uri).uri == location.uri
    assert Location.from_json(location.to_json()) == location


def test_the_json_is_that_of_the_seed():
    current = {"type": "s3", "root": "your-org-datom-data-eu", "prefix": "study-001/", "region": "eu-west-1"}
    location = Location.from_json(current)
    assert location.to_json() == current
    assert location.uri == "s3://your-org-datom-data-eu/study-001/?region=eu-west-1"
    assert Location.from_json({**current, "prefix": "study-001"}) == location


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("/data/root", "/data/root"),
        ("/data/with space/and%20percent?", "/data/with space/and%20percent?"),
        ("file:///data/with%20space", "/data/with space"),
        ("relative/folder", str(Path.cwd() / "relative/folder")),
        ("~/folder", str(Path.home() / "folder")),
        (".", str(Path.cwd())),
        ("./s3:x", str(Path.cwd() / "s3:x")),
        ("a/b:c", str(Path.cwd() / "a/b:c")),
        ("~", str(Path.home())),
    ],
)
def test_local_paths(uri: str, root: str):
    assert Location.parse(uri) == Location(type="local", root=root)


def test_s3_uris():
    assert Location.parse("s3://bucket") == Location(type="s3", root="bucket")
    assert Location.parse("s3a://bucket/a") == Location.parse("s3://bucket/a")
    assert Location.parse("S3://bucket/a/b/") == Location(type="s3", root="bucket", prefix="a/b/")
    assert Location.parse("s3://bucket/a?endpoint_url=http://localhost:8333&region=r-1") == Location(
        type="s3", root="bucket", prefix="a/", region="r-1", endpoint_url="http://localhost:8333"
    )


def test_uris_of_other_clouds():
    assert Location.parse("gs://bucket/a/b/") == Location(type="gcs", root="bucket", prefix="a/b/")
    there = Location(type="azure", root="container", account="account", prefix="a/")
    assert Location.parse("abfss://container@account.dfs.core.windows.net/a") == there
    assert Location.parse("az://container/a?account=account") == there
    assert there.uri == "abfss://container@account.dfs.core.windows.net/a/"


def test_a_volume_of_databricks_is_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The folder itself cannot be made by a test: it is at the root of the machine.
    monkeypatch.setattr(location, "_VOLUMES", tmp_path)
    assert Location.parse("dbfs:/Volumes/main/default/x") == Location(type="local", root="/Volumes/main/default/x")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:hunter2@bucket/prefix",
        "s3://hunter2@bucket",
        "s3://bucket/prefix?secret_key=hunter2",
        "s3://bucket/prefix?endpoint_url=http://user:hunter2@host",
        "s3://bucket/prefix?endpoint_url=http://host?key=hunter2",
        "s3://bucket/prefix?endpoint_url=hunter2",
        "s3://bucket/prefix?region=hunter2/!",
        "hunter2+AKIAKEY://bucket",
        "gs://hunter2@bucket/prefix",
        "az://container/prefix?account=account&sas=hunter2",
        "abfss://container:hunter2@account.dfs.core.windows.net/prefix",
    ],
)
def test_a_secret_in_a_uri_is_refused_and_not_repeated(uri: str):
    with pytest.raises(InvalidInput, match="Nothing was touched") as refused:
        Location.parse(uri)
    assert "hunter2" not in f"{refused.value!r}{refused.value.__cause__!r}{refused.value.__context__!r}"


def test_a_secret_in_a_document_is_refused_and_not_repeated():
    document = {"type": "s3", "root": "bucket", "secret_key": "hunter2"}
    with pytest.raises(InvalidInput, match="secret_key: Extra inputs") as refused:
        Location.from_json(document)
    with pytest.raises(ValidationError) as invalid:
        Location.model_validate(document)
    assert "hunter2" not in f"{refused.value!r}{invalid.value}"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("", "empty"),
        ("hdfs://host/path", "unknown scheme 'hdfs'.*gs://.*abfss://"),
        ("gs://b", "bucket name"),
        ("gs://bucket/a?region=r", "options other than endpoint_url"),
        ("az://container/p", "storage account"),
        ("az://container/p?account=A-B", "storage account"),
        ("az://Container/p?account=account", "container name"),
        ("abfss://container@account.example.com/p", "core.windows.net"),
        ("file://host/path", "absolute"),
        ("s3://", "bucket name"),
        ("s3://b", "bucket name"),
        ("s3://bucket/../other", "could leave the root"),
        ("s3://bucket//a", "empty segment"),
        ("file:///a%00b", "absolute path"),
        ("   ", "empty"),
        (" s3://bucket/prefix", "unknown scheme"),
        (" /data", "begins with a space"),
        ("~nobody-of-this-name/data", "who has no home"),
        ("dbfs:/mnt/x", "not taken for a folder"),
        ("dbfs:/Volumes/a/b", "not taken for a folder"),  # there are none on this machine
        ("s3:/bucket/prefix", "not taken for a folder"),
        ("s3:bucket", "not taken for a folder"),
        ("abfss:container@account/p", "not taken for a folder"),
        ("abfss://container@account/p", "core.windows.net"),
        ("file:/data", "not taken for a folder"),
        ("C:\\data", "not taken for a folder"),
        ("c:/data", "not taken for a folder"),
        ("d:", "not taken for a folder"),
        ("\\\\server\\share", "not taken for a folder"),
    ],
)
def test_what_is_no_place_is_refused(uri: str, reason: str):
    with pytest.raises(InvalidInput, match=reason):
        open_store(uri)


@pytest.mark.parametrize(
    ("uri", "library", "extra"),
    [
        ("s3://bucket", "boto3", "s3"),
        ("gs://bucket", "obstore", "gcs"),
        ("az://container?account=account", "obstore", "azure"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(uri: str, library: str, extra: str):
    # A process in which the library cannot be found, as where it was never installed.
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from dagster_versioned.errors import MissingExtra
from dagster_versioned.storage import open_store
try:
    open_store({uri!r})
except MissingExtra as error:
    assert "needs {library}, which is not installed" in str(error) and "dagster-versioned[{extra}]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "document",
    [
        {"type": "local", "root": "relative"},
        {"type": "local", "root": "/data", "region": "eu-west-1"},
        {"type": "local", "root": "/data", "prefix": "../up"},
        {"type": "s3", "root": "bucket", "prefix": "a?b"},
        {"type": "hdfs", "root": "bucket"},
        {"type": "gcs", "root": "bucket", "region": "eu-west-1"},
        {"type": "azure", "root": "container"},
        {"type": "s3", "root": "bucket", "account": "account"},
        {"type": "local", "root": "/data", "endpoint_url": "http://host"},
        {"type": "s3"},
    ],
)
def test_a_document_that_is_no_place_is_refused(document: dict[str, str]):
    with pytest.raises(InvalidInput, match="location is refused"):
        Location.from_json(document)


def test_open_store_makes_the_store_of_the_place(tmp_path: Path):
    local = open_store(Location(type="local", root=str(tmp_path), prefix="study-001"))
    assert isinstance(local, LocalStore)
    local.put("a", b"data")
    assert (tmp_path / "study-001/a").read_bytes() == b"data"
    remote = open_store("s3://bucket/prefix?region=eu-west-1")
    assert isinstance(remote, S3Store)
    assert remote.uri == "s3://bucket/prefix"
    with pytest.raises(InvalidInput, match="not an S3 location"):
        S3Store(Location(type="local", root=str(tmp_path)))


def test_the_package_imports_the_clouds_libraries_when_they_are_needed():
    code = (
        "import sys, dagster_versioned.storage as s; s.open_store('/tmp'); "
        "assert not {'boto3', 'obstore'} & set(sys.modules); s.S3Store; assert 'boto3' in sys.modules; "
        "assert 'obstore' not in sys.modules; s.open_store('gs://bucket/prefix'); assert 'obstore' in sys.modules; "
        "assert all(getattr(s, name) for name in s.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
