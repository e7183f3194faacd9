"""datom's connections to buckets that hold a store of ours, on a real server of S3: what its own tests ask of one.

datom signs for AWS and takes no other endpoint; what it signed goes to the server here, which checks the signature.
"""

import json
import os
import pickle
import stat
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from dagster_versioned import Project
from dagster_versioned.bounds import release_of
from dagster_versioned.storage import S3Store
from support.datom_cases import PROJECT, Place, sent_to
from support.frames import numbered
from support.readers import assert_same
from support.s3_server import S3Server

datom = pytest.importorskip("datom")

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.s3,
    pytest.mark.skipif(release_of(version("botocore")) < (1, 40), reason="datom's reader of S3: from botocore 1.40 on"),
]

TABLE = "Lab results (v2)"


@pytest.fixture(scope="module")
def place(s3_server: S3Server) -> Place:
    """A project with one table of two versions."""
    location = s3_server.location(s3_server.new_bucket(), "team/proj")
    table = Project(PROJECT, S3Store(location, credentials=s3_server.credentials)).table(TABLE)
    for rows in (3, 4):
        table.write(numbered(rows))
    table.repair()
    return Place(location, s3_server)


def keys(place: Place, **other: Any) -> Mapping[str, Any]:
    assert place.server is not None
    return {"access_key": place.server.access_key, "secret_key": place.server.secret_key, **other}


def requests_of(store: Any) -> list[str]:
    sent: list[str] = []
    store._get_client().meta.events.register_first(
        "before-send.s3", lambda event_name, **_: sent.append(event_name.rsplit(".", 1)[-1])
    )
    return sent


def test_every_call_of_its_reader_needs_to_read_alone(place: Place) -> None:
    store = place.store()
    sent = requests_of(store)
    conn = datom.get_conn(store, PROJECT)
    versions = list(datom.history(conn, TABLE)["version"])
    assert_same(datom.read(conn, TABLE, as_arrow=True), numbered(4))
    assert_same(datom.read(conn, TABLE, versions[1][:9], as_arrow=True), numbered(3))
    assert list(datom.list_artifacts(conn)["name"]) == [TABLE]
    assert set(sent) == {"GetObject", "HeadObject", "HeadBucket"}


def test_a_key_outside_the_project_is_refused_and_one_that_is_not_there_not_found(place: Place) -> None:
    store = place.store()
    with pytest.raises(datom.InvalidAddress):
        store.read_bytes(f"../datom/{TABLE}/.metadata/metadata.json")
    with pytest.raises(datom.NotFound, match="team/proj/datom/dm"):
        store.read_bytes("dm/.metadata/metadata.json")
    assert not store.exists("dm/.metadata/metadata.json")
    assert store.exists(f"{TABLE}/.metadata/metadata.json")


def test_wrong_keys_open_nothing(place: Place) -> None:
    store = place.store(lambda: keys(place, secret_key="wrong"))
    with pytest.raises(datom.AccessDenied):
        datom.get_conn(store, PROJECT)
    with pytest.raises(datom.AccessDenied):
        store.read_bytes(f"{TABLE}/.metadata/metadata.json")


def test_a_bucket_that_is_not_there_is_unreachable(place: Place) -> None:
    assert place.server is not None
    store = sent_to(place.server, datom.store_s3("not-a-bucket-of-ours", credentials=lambda: keys(place)))
    with pytest.raises(datom.StoreUnreachable, match="does not exist"):
        datom.get_conn(store, PROJECT)


def test_keys_are_asked_for_when_they_are_needed_and_once_while_they_hold(place: Place) -> None:
    asked: list[int] = []

    def credentials() -> Mapping[str, Any]:
        asked.append(1)
        return keys(place, expiration=datetime.now(UTC) + timedelta(hours=2))

    store = place.store(credentials)
    assert not asked
    conn = datom.get_conn(store, PROJECT)
    for _ in range(3):
        datom.read(conn, TABLE)
    assert asked == [1]


@pytest.fixture
def signed_in(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Credentials of single sign-on: an ``aws`` on the path that answers as AWS's does to who is signed in."""
    assert place.server is not None
    expiry = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    answer = {
        "Version": 1,
        "AccessKeyId": place.server.access_key,
        "SecretAccessKey": place.server.secret_key,
        "Expiration": expiry,
    }
    command = tmp_path / "aws"
    wanted = ["configure", "export-credentials", "--profile", "study", "--format", "process"]
    command.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == {wanted}, sys.argv\nprint({json.dumps(answer)!r})\n"
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return datom.sso_credentials("study")


def test_who_is_signed_in_reads_also_with_a_connection_that_was_pickled(place: Place, signed_in: Any) -> None:
    assert place.server is not None
    conn = datom.get_conn(place.store(signed_in), PROJECT)
    assert_same(datom.read(conn, TABLE, as_arrow=True), numbered(4))
    stored = pickle.dumps(conn)
    assert place.server.secret_key.encode() not in stored
    again = pickle.loads(stored)
    sent_to(place.server, again.store)
    assert_same(datom.read(again, TABLE, as_arrow=True), numbered(4))
