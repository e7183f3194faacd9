"""Promotion again, after production went on; beside another environment; and of what somebody forged."""

import hashlib

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.promotion_document import PROMOTION_KEY
from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.identity.version import data_sha
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from support.chain import forked, left, rows
from support.chain import sorted_numbers as numbers
from support.crashes import append_as_another_program
from support.frames import ALL_TYPES, ODD_NAMES, ONLY_NULLS
from support.hooked_store import HookedStore
from support.stores import contents


def build(project: Project, table: str, frame: pa.Table, **given):
    """A version that is built from the head of ``raw``."""
    given.setdefault("code_version", "1")
    return project.table(table).write(frame, parents=project.table("raw").upstream(), **given).version


@pytest.fixture
def project(tmp_path) -> Project:
    made = Project.open("NYC", str(tmp_path / "lake"))
    made.table("raw").write(rows(1, 2))
    build(made, "top", rows(3))
    build(made, "daily", rows(1), partition="a")
    return made


@pytest.fixture
def branch(project) -> Project:
    return forked(project)


class TestAgain:
    """What was promoted before is production's: whatever became of it there is a decision."""

    def test_another_programs_rows_stay(self, project, branch):
        build(branch, "top", rows(30), code_version="2")
        promote(project, "pr-1", dry_run=False)
        append_as_another_program(project.table("top"), rows(99))
        report = promote(project, "pr-1", dry_run=False)
        assert "another program" in left(report)["top"]
        assert numbers(project, "top") == [30, 99]

    def test_a_new_table_that_was_dropped_stays_so(self, project, branch):
        build(branch, "fresh", rows(1))
        promote(project, "pr-1", dry_run=False)
        project.table("fresh").drop(dry_run=False)
        assert "has dropped it" in left(promote(project, "pr-1", dry_run=False))["fresh"]
        assert not project.table("fresh").state.history.heads

    def test_a_new_partition_that_was_dropped_stays_so(self, project, branch):
        build(branch, "daily", rows(2), partition="b")
        promote(project, "pr-1", dry_run=False)
        project.table("daily").drop_partitions(["b"], dry_run=False)
        assert "has dropped it" in left(promote(project, "pr-1", dry_run=False))["daily[b]"]
        assert list(project.table("daily").state.history.heads) == ["a"]

    def test_properties_and_constraints_stay(self, project, branch):
        build(branch, "fresh", rows(1), options=TableOptions(properties={"owner": "Ada"}, constraints={"p": "n > 0"}))
        promote(project, "pr-1", dry_run=False)
        build(project, "fresh", rows(1), options=TableOptions(properties={"owner": "Bob"}, constraints={"q": "n < 9"}))
        before = project.table("fresh").state
        assert not promote(project, "pr-1", dry_run=False).left
        after = project.table("fresh").state
        assert after.log_version == before.log_version
        assert after.snapshot.metadata == before.snapshot.metadata


def test_made_and_dropped_between_the_judgement_and_the_commit(project, branch, tmp_path):
    build(branch, "daily", rows(2), partition="b")

    def make_and_drop() -> None:
        build(project, "daily", rows(3), partition="b")
        project.table("daily").drop_partitions(["b"], dry_run=False)

    ending = "daily/_delta_log/00000000000000000001.json"
    store = HookedStore(LocalStore(tmp_path / "lake"), "put_if_absent", ending, make_and_drop)
    assert "has dropped it" in left(promote(Project("NYC", store), "pr-1", dry_run=False))["daily[b]"]
    assert list(project.table("daily").state.history.heads) == ["a"]


def test_two_environments_with_a_new_table_of_one_name(project):
    """The second one's is not mixed with the first one's, nor are its properties put in their place."""
    for name, key in (("pr-1", "a"), ("pr-2", "b")):
        create_environment(project, name)
        options = TableOptions(properties={"owner": name})
        build(project.in_environment(name), "fresh", rows(1), partition=key, options=options)
    promote(project, "pr-1", dry_run=False)
    assert "made a table of this name" in left(promote(project, "pr-2", dry_run=False))["fresh"]
    state = project.table("fresh").state
    assert list(state.history.heads) == ["a"]
    assert state.snapshot.metadata.configuration["owner"] == "pr-1"


def test_a_table_that_production_renamed_is_left_by_a_dry_run_too(project, branch):
    build(branch, "top", rows(30), code_version="2")
    project.table("top").rename("summit", dry_run=False)
    for dry_run in (True, False):
        report = promote(project, "pr-1", dry_run=dry_run)
        assert not report.promoted
        assert "is called summit now" in left(report)["top"]
    assert numbers(project, "summit") == [3]


def test_a_parent_by_the_name_that_the_project_had(project):
    parents = project.table("raw").upstream()
    renamed = project.rename("NEW")
    create_environment(renamed, "pr-1")
    renamed.in_environment("pr-1").table("fresh").write(rows(5), parents=parents, code_version="1")
    assert [str(one.table) for one in promote(renamed, "pr-1").promoted] == ["fresh"]
    renamed.table("raw").write(rows(9))
    assert "raw" in left(promote(renamed, "pr-1", dry_run=False))["fresh"]


@pytest.mark.parametrize("verify", ["rows", "bytes"])
def test_forged_rows_that_do_not_satisfy_the_constraints(project, tmp_path, verify):
    """The log of the environment says that they were checked."""
    small = TableOptions(constraints={"small": "n < 5"})
    build(project, "low", rows(1), options=small)
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1").table("low")
    build(branch.project, "low", rows(2), options=small)
    other = Project.open("NYC", str(tmp_path / "other"))
    other.table("raw").write(rows(1, 2))
    build(other, "low", rows(1))
    build(other, "low", rows(77), code_version="2")
    forged = {line_kind(line): line for line in log_of(other.table("low"))}
    for line in log_of(branch):
        if (kind := line_kind(line)) == "commitInfo":
            forged[kind][kind]["dagsterVersioned"]["prev"] = line[kind]["dagsterVersioned"]["prev"]
        elif kind == "remove":
            forged[kind] = line
    for add in other.table("low").state.snapshot.adds():
        branch.store.put(add.key, other.table("low").store.get(add.key))
    branch.store.put(_FIRST, b"\n".join(map(orjson.dumps, forged.values())) + b"\n")
    assert numbers(project.in_environment("pr-1"), "low") == [77]
    assert "'small' (n < 5) is false" in left(promote(project, "pr-1", dry_run=False, verify=verify))["low"]
    assert numbers(project, "low") == [1]


def with_part(table, change, **identity) -> None:
    """Have the head of an environment's table consist of other bytes, with all names that follow from them."""
    (add,) = table.state.snapshot.adds()
    forged = change(table.store.get(add.key))
    sha = hashlib.sha256(forged).hexdigest()
    table.store.put(f"{sha}.parquet", forged)
    lines = {line_kind(line): line for line in log_of(table)}
    lines["add"]["add"] |= {"path": f"{sha}.parquet", "size": len(forged)}
    (entry,) = lines["commitInfo"]["commitInfo"]["dagsterVersioned"]["versions"]
    entry["identity"] |= {"data_sha": data_sha([sha], "significant"), **identity}
    entry["facts"]["parquet_sha"] = sha
    entry["metadata_sha"] = hashlib.sha256(canonical_json(entry["identity"])).hexdigest()
    table.store.put(_FIRST, b"\n".join(map(orjson.dumps, lines.values())) + b"\n")


def test_a_footer_that_lies(project, branch):
    """Its bytes have the SHA-256 of their name, and the identity follows from them; a filter would not find the row."""
    build(branch, "top", rows(1010, 2020), code_version="2")
    table, before = branch.table("top"), contents(project.data, without=(PROMOTION_KEY,))

    def lie(data: bytes) -> bytes:
        end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        return data[:end] + data[end:].replace((2020).to_bytes(8, "little"), (1011).to_bytes(8, "little"))

    with_part(table, lie)
    assert numbers(project.in_environment("pr-1"), "top") == [1010, 2020]
    with pytest.raises(IntegrityError, match="its footer does not tell the truth about n"):
        promote(project, "pr-1", dry_run=False)
    assert contents(project.data, without=(PROMOTION_KEY,)) == before


def test_a_part_that_another_writer_encoded_is_promoted(project, branch):
    build(branch, "top", rows(1010, 2020), code_version="2")

    def encode(data: bytes) -> bytes:
        sink, parquet = pa.BufferOutputStream(), pq.ParquetFile(pa.BufferReader(data))
        schema = parquet.schema_arrow.with_metadata(parquet.metadata.metadata)
        with pq.ParquetWriter(sink, schema, compression="snappy", store_schema=False) as writer:
            writer.write_table(parquet.read())
            if hasattr(writer, "add_key_value_metadata"):  # pyarrow 14 and 15 write what the schema has
                writer.add_key_value_metadata(parquet.metadata.metadata)
        return sink.getvalue().to_pybytes()

    with_part(branch.table("top"), encode)
    assert not promote(project, "pr-1", dry_run=False).left
    assert numbers(project, "top") == [1010, 2020]
    assert not project.table("top").verify().findings


@pytest.mark.parametrize("frame", [ALL_TYPES, ONLY_NULLS, ODD_NAMES, ALL_TYPES.slice(0, 0)], ids=range(4))
def test_footers_of_every_type_are_true(project, branch, frame):
    version = build(branch, "types", frame, code_version="2", options=TableOptions(allow_empty=True))
    assert not promote(project, "pr-1", dry_run=False).left
    assert project.table("types").version().metadata_sha == version.metadata_sha


class TestBytes:
    """Nothing is believed of names and identities; what is said of rows is."""

    def test_the_same_version_as_by_rows(self, project, branch):
        table = pa.table({"n": [1, None], "x": [1.5, float("nan")], "y": [1.5, 2.5], "s": [{"z": 1.0}, None]})
        build(branch, "fresh", table, options=TableOptions(constraints={"p": "y > 1"}))
        build(branch, "daily", rows(7), partition="b", code_version="2")
        assert not promote(project, "pr-1", dry_run=False, verify="bytes").left
        for name in ("fresh", "daily"):
            here, there = project.table(name), branch.table(name)
            stated = {add.key: add.stats for add in there.state.snapshot.adds()}
            assert all(add.stats == stated[add.key] for add in here.state.snapshot.adds())
            assert not here.verify().findings
        here, there = project.table("fresh").version(), branch.table("fresh").version()
        assert (here.metadata_sha, here.facts.digest) == (there.metadata_sha, there.facts.digest)
        assert here.facts.null_counts == there.facts.null_counts

    def test_changed_bytes(self, project, branch):
        build(branch, "top", rows(30), code_version="2")
        store, before = branch.table("top").store, contents(project.data, without=(PROMOTION_KEY,))
        (add,) = branch.table("top").state.snapshot.adds()
        data = store.get(add.key)
        store.put(add.key, data[:50] + bytes([data[50] ^ 1]) + data[51:])
        with pytest.raises(IntegrityError, match="with bytes of the SHA-256"):
            promote(project, "pr-1", dry_run=False, verify="bytes")
        assert contents(project.data, without=(PROMOTION_KEY,)) == before

    @pytest.mark.parametrize("identity", [{"nrow": 3}, {"data_sha": "0" * 64}])
    def test_an_identity_that_does_not_follow(self, project, branch, identity):
        build(branch, "top", rows(30), code_version="2")
        before = contents(project.data, without=(PROMOTION_KEY,))
        with_part(branch.table("top"), bytes, **identity)
        with pytest.raises(IntegrityError, match="rows of bytes with"):
            promote(project, "pr-1", dry_run=False, verify="bytes")
        assert contents(project.data, without=(PROMOTION_KEY,)) == before

    def test_counts_that_cannot_be(self, project, branch):
        build(branch, "top", rows(30), code_version="2")
        lines = log_of(branch.table("top"))
        for line in lines:
            if line_kind(line) == "commitInfo":
                line["commitInfo"]["dagsterVersioned"]["versions"][0]["facts"]["null_counts"] = [2]
        branch.table("top").store.put(_FIRST, b"\n".join(map(orjson.dumps, lines)) + b"\n")
        with pytest.raises(IntegrityError, match="null counts"):
            promote(project, "pr-1", dry_run=False, verify="bytes")

    def test_a_parent_that_is_not_current(self, project, branch):
        build(branch, "top", rows(30), code_version="2")
        project.table("raw").write(rows(9))
        assert "raw" in left(promote(project, "pr-1", dry_run=False, verify="bytes"))["top"]
        assert numbers(project, "top") == [3]

    def test_another_word(self, project, branch):
        with pytest.raises(InvalidInput, match="verify is one of rows, bytes"):
            # A wrong word is the point.
            promote(project, "pr-1", verify="nothing")  # pyright: ignore[reportArgumentType]


_FIRST = "_delta_log/00000000000000000001.json"


def log_of(table) -> list[dict]:
    return [orjson.loads(line) for line in table.store.get(_FIRST).splitlines()]


def line_kind(line: dict) -> str:
    return next(iter(line))
