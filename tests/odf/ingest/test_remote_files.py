"""Sources in buckets and on FTP servers: fetched once, in order, with no word of their credentials anywhere."""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from glob import glob
from pathlib import Path

import pytest

from dagster_versioned.errors import (
    AccessDenied,
    InvalidInput,
    ObjectNotFound,
    StorageError,
    StoreUnavailable,
    VersionedError,
)
from dagster_versioned.odf.blocks.events import (
    EventTimeSourceFromPath,
    FetchStepFilesGlob,
    FetchStepUrl,
    SourceOrdering,
    SourceState,
)
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.ingest.declare import declare, event_table, source_of
from dagster_versioned.odf.ingest.fetch import ETAG, FetchOptions, fetch
from dagster_versioned.odf.ingest.poll import Polling, poll
from dagster_versioned.odf.ingest.remote_files import objects_like
from dagster_versioned.odf.manifest import read_snapshot
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import backoff, ftp, public_network
from dagster_versioned.storage.ftp import FtpAddress, FtpClient
from dagster_versioned.storage.http import HttpClient
from support.ftp_server import PASSWORD, USER, ftp_server, scripted_ftp_server
from support.s3_server import S3Server

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "s3cr3t/@:x"
FILES = (
    "a.csv",
    "b.csv",
    "c.txt",
    ".hidden.csv",
    "2020/a1.csv",
    "2020/b1.csv",
    "2020/deep/a2.csv",
    "2020/data/a3.csv",
    "2021/data/a4.csv",
    ".git/a5.csv",
    "[x]/a6.csv",
)
PATTERNS = (
    "*.csv",
    "?.csv",
    "[ab].csv",
    "20??/*.csv",
    "**/*.csv",
    "**",
    "2020/**/a*.csv",
    "**/data/*.csv",
    "*/*/*.csv",
)

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: {kind}
        {member}: {address}
      read:
        kind: Csv
        header: true
        schema:
          - id BIGINT NOT NULL
      merge:
        kind: Append
"""


def manifest(address: str, kind: str = "Url"):
    return read_snapshot(MANIFEST.format(kind=kind, member="url" if kind == "Url" else "path", address=address))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "DOWNLOAD", backoff.Backoff(0, 0))
    monkeypatch.setattr(ftp, "DOWNLOAD", backoff.Backoff(0, 0))


@pytest.fixture
def fetching(tmp_path: Path) -> FetchOptions:
    (tmp_path / "fetched").mkdir()
    client = FtpClient(attempts=2, timeout=30)
    variables = {"USER": USER, "PASSWORD": PASSWORD}
    http = HttpClient(attempts=2, timeout=30)
    return FetchOptions(
        folder=tmp_path / "fetched", now=NOW, client=http, variables=variables, max_bytes=1000, ftp=client
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for index, name in enumerate(FILES):
        path = tmp_path / "served" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id\n{index}\n")
        os.utime(path, (1_577_836_800 - index, 1_577_836_800 - index))
    return tmp_path / "served"


@pytest.fixture
def server(tree: Path) -> Iterator[str]:
    with ftp_server(tree) as place:
        yield place


@pytest.fixture
def bucket(s3_server: S3Server, tree: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = s3_server.new_bucket()
    client = s3_server.client()
    for path in FILES:
        client.put_object(Bucket=name, Key=f"in/{path}", Body=(tree / path).read_bytes())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    return name


def at(server: S3Server, path: str) -> str:
    return f"s3://{path}?region={server.region}&endpoint_url={server.endpoint_url}"


def contents(step, states, fetching) -> list[str]:
    return [found.file.path.read_text() for found in fetch(step, states, fetching)]


def below(root: str, found) -> list[str]:
    return sorted(one.file.name.partition(root)[2].replace("%5B", "[").replace("%5D", "]") for one in found)


def expected(tree: Path, pattern: str) -> list[str]:
    found = (Path(path) for path in glob(str(tree / pattern), recursive=True))  # noqa: PTH207 - the product does as it does
    return sorted(str(path.relative_to(tree)) for path in found if path.is_file())


# --- FTP -------------------------------------------------------------------------------------------------------------


def test_a_file_of_an_ftp_server_is_fetched_again_when_it_changed(server: str, tree: Path, fetching: FetchOptions):
    step = FetchStepUrl(f"ftp://{server}/2020/a1.csv")
    (found,) = fetch(step, [], fetching)
    assert found.file.path.read_text() == "id\n4\n"
    assert found.event_time == datetime(2019, 12, 31, 23, 59, 56, tzinfo=UTC)
    assert (found.state.kind, found.file.name) == (ETAG, step.url)
    assert contents(step, [found.state], fetching) == []
    (tree / "2020/a1.csv").write_text("id\n5\n")
    assert contents(step, [found.state], fetching) == ["id\n5\n"]
    with pytest.raises(ObjectNotFound, match=r"FTP 550.*Check the address"):
        contents(FetchStepUrl(f"ftp://{server}/none.csv"), [], fetching)
    with pytest.raises(StorageError, match="has more than 2 bytes"):
        contents(step, [], replace(fetching, max_bytes=2))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_on_an_ftp_server_what_it_means_in_a_folder(
    server: str, tree: Path, fetching: FetchOptions, pattern: str
):
    step = FetchStepFilesGlob(f"ftp://{server}/{pattern}")
    assert below(f"{server}/", fetch(step, [], fetching)) == expected(tree, pattern)


def test_files_of_an_ftp_server_come_once_in_their_order(server: str, tree: Path, fetching: FetchOptions):
    step = FetchStepFilesGlob(f"ftp://{server}/?.csv")
    first = list(fetch(step, [], fetching))
    assert [one.state.value for one in first] == ["a.csv", "b.csv"]
    (tree / "z.csv").write_text("id\n9\n")
    assert contents(step, [one.state for one in first], fetching) == ["id\n9\n"]
    (tree / "A.csv").write_text("id\n9\n")
    with pytest.raises(InvalidInput, match=r"comes before 'b.csv'"):
        contents(step, [one.state for one in first], fetching)
    by_time = replace(step, order=SourceOrdering.BY_EVENT_TIME, event_time=EventTimeSourceFromPath("none"))
    with pytest.raises(InvalidInput, match="has no event time"):
        contents(by_time, [], fetching)
    (tree / "2021/a.csv").write_text("id\n")
    with pytest.raises(InvalidInput, match="two files with the name"):
        contents(FetchStepFilesGlob(f"ftp://{server}/**/a.csv"), [], fetching)


def test_a_user_and_a_password_are_variables(server: str, fetching: FetchOptions):
    login = "${{ env.USER }}:${{ env.PASSWORD }}"
    (found,) = fetch(FetchStepUrl(f"ftp://{login}@{server}/a.csv"), [], fetching)
    assert found.file.name == f"ftp://{server}/a.csv"
    assert len(contents(FetchStepFilesGlob(f"ftp://{login}@{server}/*.csv"), [], fetching)) == 2
    assert contents(FetchStepUrl(f"ftp://{USER}:${{{{env.PASSWORD}}}}@{server}/a.csv"), [], fetching)
    wrong = replace(fetching, variables={"USER": USER, "PASSWORD": SECRET})
    with pytest.raises(AccessDenied, match="refused the user or the password") as refused:
        contents(FetchStepUrl(f"ftp://{login}@{server}/a.csv"), [], wrong)
    assert SECRET not in str(refused.value)
    with pytest.raises(InvalidInput, match="asks for the variable 'PASSWORD'"):
        contents(FetchStepUrl(f"ftp://{login}@{server}/a.csv"), [], replace(fetching, variables={"USER": USER}))


def test_a_stranger_s_source_reaches_no_local_ftp_server(
    server: str, fetching: FetchOptions, monkeypatch: pytest.MonkeyPatch
):
    stranger = replace(fetching, local_files=False)
    with scripted_ftp_server([b"220 hello\r\n", b"331 more\r\n"]) as (place, asked):
        for step in (FetchStepUrl(f"ftp://{place}/a.csv"), FetchStepFilesGlob(f"ftp://{place}/*.csv")):
            with pytest.raises(StorageError, match=r"127\.0\.0\.1, an address of this machine"):
                contents(step, [], stranger)
        assert asked == []
    step = FetchStepUrl(f"ftp://{server}/a.csv")
    assert contents(step, [], replace(stranger, local_addresses=True)) == ["id\n0\n"]
    monkeypatch.setattr(public_network, "is_public", lambda address: True)
    monkeypatch.setattr(public_network, "_is_here", lambda connected: False)
    assert contents(step, [], stranger) == ["id\n0\n"]


def test_a_server_that_leads_to_another_address_is_not_followed(fetching: FetchOptions):
    with scripted_ftp_server([b""]) as (other, asked_of_other):
        port = int(other.rpartition(":")[2])
        leads = f"227 there (10,255,255,1,{port // 256},{port % 256})\r\n".encode()
        answers = [b"220 hello\r\n", b"230 in\r\n", b"200 binary\r\n", leads]
        client = FtpClient(attempts=1, timeout=60)
        with scripted_ftp_server(answers) as (place, asked), pytest.raises(StoreUnavailable):
            client.download(FtpAddress.parse(f"ftp://{place}/x"), fetching.folder / "x", max_bytes=10)
        # It connected to this machine, whose server that is, and not to 10.255.255.1, which would time out.
        assert asked[-1].startswith((b"RETR", b"PASV"))
        assert asked_of_other == []


@pytest.mark.parametrize(
    "answers",
    [
        [b""],
        [b"220 hello\r\n"],
        [b"nonsense\r\n"],
        [b"421 too busy\r\n"],
        [b"220-endless\r\n" + b"220-more\r\n" * 2000],
        [b"220 " + b"x" * 20_000 + b"\r\n"],
    ],
)
def test_a_server_that_does_not_answer_as_one_is_tried_again_and_given_up(answers, fetching: FetchOptions):
    with scripted_ftp_server(answers) as (place, _), pytest.raises(StoreUnavailable, match="2 times"):
        contents(FetchStepUrl(f"ftp://{place}/a.csv"), [], fetching)


def test_a_server_that_lacks_a_command_is_reported(fetching: FetchOptions):
    answers = [b"220 hello\r\n", b"230 in\r\n", b"500 what\r\n"]
    with (
        scripted_ftp_server(answers) as (place, _),
        pytest.raises(StorageError, match=r"FTP 500.*Name single files"),
    ):
        contents(FetchStepUrl(f"ftp://{place}/a.csv"), [], fetching)


@pytest.mark.parametrize(
    "address", ["ftp:///a", "ftp://host:0/a", "ftp://host:x/a", "ftp://host/a%0d%0aDELE%20b", "ftp://a%0ab@host/a"]
)
def test_an_address_that_is_none_is_refused(address: str, fetching: FetchOptions):
    with pytest.raises(InvalidInput, match="Nothing was fetched"):
        contents(FetchStepUrl(address), [], fetching)


# --- buckets ---------------------------------------------------------------------------------------------------------

s3 = pytest.mark.s3


@s3
def test_an_object_is_fetched_again_when_it_changed(s3_server: S3Server, bucket: str, fetching: FetchOptions):
    step = FetchStepUrl(at(s3_server, f"{bucket}/in/a.csv"))
    (found,) = fetch(step, [], fetching)
    assert found.file.path.read_text() == "id\n0\n"
    assert (found.state.kind, found.file.name) == (ETAG, f"s3://{bucket}/in/a.csv")
    assert found.event_time is not None
    assert contents(step, [found.state], fetching) == []
    s3_server.client().put_object(Bucket=bucket, Key="in/a.csv", Body=b"id\n7\n")
    assert contents(step, [found.state], fetching) == ["id\n7\n"]
    with pytest.raises(ObjectNotFound):
        contents(FetchStepUrl(at(s3_server, f"{bucket}/in/none.csv")), [], fetching)
    with pytest.raises(StorageError, match="has more than 2 bytes"):
        contents(step, [], replace(fetching, max_bytes=2))
    with pytest.raises(InvalidInput, match="is a bucket, and no object"):
        contents(FetchStepUrl(at(s3_server, bucket)), [], fetching)


@s3
def test_a_pattern_means_in_a_bucket_what_it_means_in_a_folder(
    s3_server: S3Server, bucket: str, tree: Path, fetching: FetchOptions
):
    for pattern in ("[ab].csv", "20??/*.csv", "**/*.csv"):
        found = objects_like(at(s3_server, f"{bucket}/in/{pattern}"), fetching.places)
        assert sorted(one.path.partition("/in/")[2] for one in found) == expected(tree, pattern), pattern
    step = FetchStepFilesGlob(at(s3_server, f"{bucket}/in/?.csv"))
    states = [SourceState("default", ETAG, "a.csv")]
    assert contents(step, states, fetching) == ["id\n1\n"]


@s3
def test_a_stranger_s_source_reads_no_bucket(s3_server: S3Server, bucket: str, fetching: FetchOptions):
    stranger = replace(fetching, local_files=False, local_addresses=True)
    for step in (
        FetchStepUrl(at(s3_server, f"{bucket}/in/a.csv")),
        FetchStepFilesGlob(at(s3_server, f"{bucket}/in/*")),
    ):
        with pytest.raises(InvalidInput, match=r"a bucket.*which your credentials would open.*--manifest"):
            contents(step, [], stranger)


# --- credentials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "ftp://me:hunter2@host/a",
        "ftp://me:hun/ter2@host/a",
        "ftp://${{ env.USER }}:x${{ env.PASSWORD }}@host/a",
        "https://me:hunter2@host/a",
        "https://hunter2@host/a",
        "https://${{ env.USER }}:${{ env.PASSWORD }}@host/a",
        "s3://me:hunter2@bucket/a",
    ],
)
def test_no_password_gets_into_a_chain_or_an_error(tmp_path: Path, address: str):
    events_of = Project.open("P", str(tmp_path / "store")).table("t")
    snapshot = manifest(address)
    (step,) = snapshot.metadata
    (tmp_path / "a.csv").write_text("id\n1\n")
    attempts = [
        lambda: source_of(snapshot),
        lambda: event_table(events_of, snapshot),
        lambda: list(poll(EventTable(events_of), step, Polling())),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput, match=r"Nothing was (changed|fetched)") as refused:
            attempt()
        assert "hunter2" not in str(refused.value)
        assert "ter2" not in str(refused.value)
    assert not events_of.exists()


@s3
def test_what_was_polled_says_nothing_of_its_credentials(
    s3_server: S3Server, bucket: str, server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """In all that the table has on disk, in all that is logged, and in errors."""
    variables = {"USER": USER, "PASSWORD": PASSWORD}
    sources = [
        manifest(f"ftp://${{{{ env.USER }}}}:${{{{ env.PASSWORD }}}}@{server}/?.csv", "FilesGlob"),
        manifest(at(s3_server, f"{bucket}/in/a.csv")),
    ]
    answers: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for number, snapshot in enumerate(sources):
            events = event_table(Project.open("P", str(tmp_path / "store")).table(f"t{number}"), snapshot)
            source = source_of(snapshot)
            answers += [one.file for one in poll(events, source, Polling(variables=variables))]
            assert list(poll(events, source, Polling(variables=variables))) == []
            declare(events, snapshot)
            assert events.events()["id"].to_pylist() == [[0, 1], [0]][number]
        missing = manifest(f"ftp://{USER}:${{{{ env.PASSWORD }}}}@{server}/gone.csv")
        with pytest.raises(VersionedError) as failed:
            list(poll(event_table(events.table, missing), source_of(missing), Polling(variables=variables)))
    stored = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    for secret in (PASSWORD, s3_server.secret_key, s3_server.access_key):
        own = [record.getMessage() for record in caplog.records if record.name.startswith("dagster_versioned")]
        assert not any(secret in text for text in (*answers, *own, str(failed.value)))
        assert not any(secret.encode() in data for data in stored)
    (chain,) = (data for data in stored if b"env.PASSWORD" in data)
    assert b"ftp://${{ env.USER }}:${{ env.PASSWORD }}@" in chain
