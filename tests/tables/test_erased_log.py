"""What the log of a table tells once rows were erased: nothing of them, and all that names an entry stays true."""

import base64
import hashlib
import json
import uuid
from datetime import timedelta

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.delta.log.redaction import outline, outline_sha256
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from support.crashes import append_as_another_program
from support.hooked_store import HookedStore

PERSON = b"person-0002"


def people(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"person-{number:04d}-planted" for number in ids]})


@pytest.fixture
def project(tmp_path):
    return Project.open("CLINIC", str(tmp_path / "data"), author="ann")


def erase(project, sql="id = 2"):
    return project.erase(sql, ["people"], why="request 17", dry_run=False)


def append(table, *ids):
    return table.write(people(*ids), options=TableOptions(mode="append")).version


def contents(folder):
    """Every file below a folder, decompressed where it is Parquet, with what a checkpoint notes of versions."""
    for file in filter(lambda file: file.is_file(), folder.rglob("*")):
        data = file.read_bytes()
        if file.suffix == ".parquet":
            table = pq.read_table(file)
            data += str(table.to_pylist()).encode()
            if note := (table.schema.metadata or {}).get(b"dagster_versioned.versions"):
                data += str(pq.read_table(pa.BufferReader(base64.b64decode(note[64:]))).to_pylist()).encode()
        yield file, data


def entries(table):
    return [table.store.get(commit_key(at)) for at in range(table.state.log_version + 1)]


def location(table):
    return str(table.store.local_path("x").parent)


def names(table):
    return [record.sha256 for record in table.state.history.records]


def test_no_file_tells_a_value_or_a_hash_of_the_person(project, tmp_path):
    table = project.table("people")
    table.write(people(1, 3))
    alone = append(table, 2)
    (line,) = [alone.facts.digest, alone.facts.added.digest][1:]
    with_person = alone.facts.digest
    append(table, 2, 5)
    for number in range(10, 14):  # until there is a checkpoint
        append(table, number)
    shown = dict(contents(tmp_path))
    hashes = [text.split(":")[1].encode() for text in (line, with_person)]
    assert all(any(text in data for data in shown.values()) for text in (PERSON, *hashes)), "or it shows nothing"
    assert any("checkpoint" in file.name and PERSON in data for file, data in shown.items())
    erase(project)
    for file, data in contents(tmp_path):
        for text in (PERSON, *hashes):
            assert text not in data, (file, text)


def test_what_expired_before_is_not_told_of_either(project, tmp_path):
    table = project.table("people")
    table.write(people(2, 9))
    table.write(people(1, 2, 3))
    table.write(people(1, 3))
    table.expire(keep_last=2, dry_run=False)
    erase(project)
    assert not [file for file, data in contents(tmp_path) if PERSON in data or b"person-0009" in data]
    assert table.verify().ok, table.verify().findings


def test_all_that_names_an_entry_stays_true(project, tmp_path):
    table = project.table("people")
    table.write(people(1, 3))
    first = append(table, 2)
    project.tag("before", why="audit")
    append(table, 4)
    before = names(table)
    stored = entries(table)
    erase(project)
    again = Project.open("CLINIC", project.store.uri)
    assert names(again.table("people"))[: len(before)] == before
    assert [old != new for old, new in zip(stored, entries(table), strict=False)] == [False, True, True]
    assert again.table("people").read("tag:before")["id"].to_pylist() == [1, 3]
    assert again.table("people").version(first.metadata_sha).metadata_sha == first.metadata_sha
    assert again.table("people").verify().ok, again.table("people").verify().findings
    again.table("people").operations.repair()
    assert names(Project.open("CLINIC", project.store.uri).table("people"))[: len(before)] == before
    create_environment(again, "trial")
    trial = again.in_environment("trial").table("people")
    assert trial.read("@0")["id"].to_pylist() == [1, 3]
    append(trial, 8)
    assert trial.verify().ok, trial.verify().findings


def forged(table, at, change):
    """A table in whose log an entry says that it was redacted, and was changed."""
    data = table.store.get(commit_key(at))
    lines = [json.loads(line) for line in data.splitlines()]
    lines[0]["commitInfo"].setdefault("dagsterVersionedRedacted", {"sha256": names(table)[at], "timestamp": 1})
    change(lines)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    table.store.put(commit_key(at), text.encode())
    return Project(table.project.name, table.project.store).table("people")


@pytest.mark.parametrize("is_redacted", [False, True])
def test_an_entry_that_lost_more_than_an_erasure_takes_is_not_believed(project, is_redacted):
    table = project.table("people")
    table.write(people(1, 2))
    if is_redacted:
        erase(project)
    table.write(people(1, 3))
    again = forged(table, 0, lambda lines: lines[0]["commitInfo"]["dagsterVersioned"]["versions"].clear())
    if not is_redacted:  # else the index is believed, which the erasure made
        with pytest.raises(LogCorrupt, match="differs from what it was in more"):
            again.read("@0")
    (finding,) = again.verify().findings
    assert "differs from what it was in more" in finding.problem


def test_an_entry_of_which_no_erasure_says_that_it_was_redacted_is_found(project):
    table = project.table("people")
    table.write(people(1, 2))
    table.write(people(1, 3))
    again = forged(table, 0, lambda lines: next(line for line in lines if "add" in line)["add"].pop("stats"))
    assert again.read("@0").num_rows == 2
    assert [found.problem for found in again.verify().findings if found.subject == "chain"] == [
        "it says that it was redacted, but no later commit does"
    ]


def test_what_an_older_release_committed_is_redacted_on_the_word_of_who_did_it(project):
    table = project.table("people")
    for ids in ([1, 2], [1, 2, 3], [1, 3]):
        table.write(people(*ids))
    for at in range(3):  # as they were before commits recorded outlines
        lines = [json.loads(line) for line in table.store.get(commit_key(at)).splitlines()]
        own = lines[0]["commitInfo"]["dagsterVersioned"]
        own.pop("prev_outline", None)
        if at:
            own["prev"] = hashlib.sha256(table.store.get(commit_key(at - 1))).hexdigest()
        table.store.put(commit_key(at), b"\n".join(json.dumps(line).encode() for line in lines))
    project = Project(project.name, project.store)
    project.table("people").operations.repair()
    erase(project)
    report = project.table("people").verify()
    assert report.ok, report.findings
    assert [gap.partition(":")[0] for gap in report.gaps] == ["@0", "@1"]


def test_what_is_redacted_twice_keeps_its_first_name(project):
    table = project.table("people")
    table.write(people(1, 2, 3, 4))
    append(table, 7)
    before = names(table)
    erase(project, "id = 2")
    erase(project, "id = 3 or id = 7")
    assert names(Project.open("CLINIC", project.store.uri).table("people"))[:2] == before
    assert table.read("@1")["id"].to_pylist() == [1, 4]
    assert table.verify().ok, table.verify().findings


def test_what_another_program_committed_keeps_its_time(project):
    table = project.table("people")
    table.write(people(1, 3))
    append_as_another_program(table, people(2, 7))
    table.adopt()
    before = [record.timestamp_ms for record in table.state.history.records]
    erase(project)
    again = Project.open("CLINIC", project.store.uri).table("people")
    assert [record.timestamp_ms for record in again.state.history.records][: len(before)] == before
    assert not [data for data in entries(again) if PERSON in data]
    assert again.verify().ok, again.verify().findings


def test_where_nothing_is_found_what_expired_is_told_of_no_more(project, tmp_path):
    table = project.table("people")
    table.write(people(2, 9))
    for ids in ([1, 3], [1, 3, 4]):
        table.write(people(*ids))
    table.expire(keep_last=2, dry_run=False)
    assert not erase(project).epochs
    assert not [file for file, data in contents(tmp_path) if PERSON in data]
    assert "dagsterVersionedErasures" in table.state.snapshot.protocol.writer_features
    assert table.verify().ok, table.verify().findings


def test_the_log_under_a_former_name_tells_nothing_either(project, tmp_path):
    table = project.table("patients")
    table.write(people(1, 2))
    for number in range(10, 15):
        append(table, number)
    table.rename("people", dry_run=False)
    erase(project)
    assert not [file for file, data in contents(tmp_path) if PERSON in data]
    assert 2 not in Project.open("CLINIC", project.store.uri).table("patients").read("@0")["id"].to_pylist()


def test_what_other_programs_put_beside_the_log_goes(project, tmp_path):
    table = project.table("people")
    table.write(people(1, 2))
    append(table, 3)
    beside = [f"{1:020}.checkpoint.{1:010}.{2:010}.parquet", f"{0:020}.crc", f".{1:020}.json.tmp"]
    for name in (*beside, f"_sidecars/{uuid.uuid4()}.parquet", f"_staged_commits/{3:020}.{uuid.uuid4()}.json"):
        table.store.put(f"_delta_log/{name}", PERSON)
    erase(project)
    left = [file for file in (tmp_path / "data").rglob("*") if file.is_file() and PERSON in file.read_bytes()]
    assert not left
    assert table.verify().ok, table.verify().findings


def test_predicates_of_other_programs_go(project, tmp_path):
    table = project.table("people")
    table.write(people(1, 3))
    append_as_another_program(table, people(2, 7))
    key = commit_key(table.state.log_version)
    info = b'"operationParameters":{"predicate":"[\\"(name = \'person-0002-planted\')\\"]"},"operation"'
    table.store.put(key, table.store.get(key).replace(b'"operation"', info))
    table.adopt()
    assert any(b"predicate" in entry and PERSON in entry for entry in entries(table))
    erase(project)
    assert not [entry for entry in entries(table) if PERSON in entry]
    assert table.verify().ok, table.verify().findings


def test_who_publishes_late_tells_nothing_for_good(project, tmp_path):
    table = project.table("people")
    table.write(people(1, 3))
    digest = append(table, 2).facts.added.digest.split(":")[1].encode()
    for number in range(10, 13):
        append(table, number)
    late = HookedStore(LocalStore(tmp_path / "data"), "put", "00005.checkpoint.parquet", lambda: erase(project))
    append(Project("CLINIC", late).table("people"), 20)
    assert not [file for file, data in contents(tmp_path) if PERSON in data or digest in data]


def test_a_checkpoint_of_what_the_log_was_is_gone_once_all_is_said(project, tmp_path):
    """Of a writer who saw nobody redact when it put it, because that was not said yet."""
    table = project.table("people")
    table.write(people(1, 3))
    digest = append(table, 2).facts.added.digest.split(":")[1].encode()
    for number in range(10, 15):
        append(table, number)
    key = f"_delta_log/{5:020}.checkpoint.parquet"
    stale = table.store.get(key)
    said = commit_key(table.state.log_version + 3)  # after the erasure, and the one that names what is redacted
    other = HookedStore(LocalStore(tmp_path / "data"), "put_if_absent", said, lambda: table.store.put(key, stale))
    erase(Project("CLINIC", other))
    assert [record.operation for record in project.table("people").state.history.records][-3:] == [
        "ERASE",
        "REDACT",
        "REDACT",
    ]
    assert not [file for file, data in contents(tmp_path) if PERSON in data or digest in data]
    assert project.table("people").verify().ok


def test_a_commit_of_somebody_else_is_not_taken_for_garbage(project, tmp_path):
    table = project.table("people")
    table.write(people(1, 2, 3))
    append(table, 2)
    other = Project("CLINIC", LocalStore(tmp_path / "data"))
    slow = HookedStore(
        LocalStore(tmp_path / "data"), "delete", "_last_checkpoint", lambda: append(other.table("people"), 77)
    )
    erase(Project("CLINIC", slow))
    assert sorted(project.table("people").read()["id"].to_pylist()) == [1, 3, 77]


def test_identities_are_what_they_were(project):
    """Whatever people say in them: versions are named by them."""
    table = project.table("people")
    digest = table.write(people(1, 2)).version.facts.digest
    custom = {
        "predicate": "id = 2",
        "stats": "x",
        "facts": {"digest": digest},
        "operationParameters": {"predicate": "y"},
    }
    first = table.write(people(2, 3), options=TableOptions(custom=custom)).version
    erase(project)
    again = Project.open("CLINIC", project.store.uri).table("people")
    assert again.version(first.metadata_sha).identity.custom == custom
    assert again.read(first.metadata_sha)["id"].to_pylist() == [3]
    assert again.verify().ok, again.verify().findings


@pytest.mark.parametrize("changed", [b'{ "commitInfo"', b'{"commitInfo" ', b'\t{"commitInfo"'])
def test_an_entry_that_is_written_otherwise_is_redacted_too(project, changed):
    table = project.table("people")
    table.write(people(1, 3))
    append_as_another_program(table, people(2, 7))
    key = commit_key(table.state.log_version)
    table.store.put(key, table.store.get(key).replace(b'{"commitInfo"', changed).replace(b"}\n", b"} //\n") + b"\n \n")
    table = Project("CLINIC", project.store).table("people")
    table.adopt()
    erase(Project("CLINIC", project.store))
    again = Project("CLINIC", project.store).table("people")
    assert not [entry for entry in entries(again) if PERSON in entry]
    assert sorted(again.read()["id"].to_pylist()) == [1, 3, 7]
    assert again.verify().ok, again.verify().findings


def test_an_entry_that_says_something_twice_is_not_believed_once_it_is_redacted(project):
    table = project.table("people")
    table.write(people(1, 2))
    erase(project)
    entry = table.store.get(commit_key(0))
    table.store.put(commit_key(0), entry.replace(b'{"path":"', b'{"path":"other","path":"', 1))
    with pytest.raises(LogCorrupt, match="has a member twice"):
        Project("CLINIC", project.store).table("people").replay()


@pytest.mark.parametrize(
    "name", ["predicate", "mergePredicate", "matchedPredicates", "updatePredicate", "deleteCondition", "replaceWhere"]
)
def test_conditions_of_operations_have_no_part_in_an_outline(name):
    entry = b'{"commitInfo":{"operation":"MERGE","operationParameters":{"%s":"%s","mode":"x"},"stats":"y"}}'
    assert PERSON not in outline(entry % (name.encode(), PERSON))
    assert outline(entry % (name.encode(), PERSON)) == outline(entry % (name.encode(), b"[]"))
    assert b'"mode":"x"' in outline(entry % (name.encode(), PERSON))


def test_a_former_log_of_which_the_redaction_died_is_looked_at_again(project, tmp_path):
    table = project.table("patients")
    table.write(people(1, 2))
    for number in range(10, 15):
        append(table, number)
    key = f"_delta_log/{5:020}.checkpoint.parquet"
    stale, former = table.store.get(key), table.store
    table.rename("people", dry_run=False)
    erase(project)
    former.put(key, stale)
    assert not erase(project).epochs
    assert not [file for file, data in contents(tmp_path) if PERSON in data]


class TestWitnesses:
    """Who saw commits before they were redacted, elsewhere."""

    @pytest.fixture
    def seen(self, project):
        table = project.table("people")
        table.write(people(1, 2, 3))
        append(table, 4)
        shas = {record.log_version: record.sha256 for record in table.state.history.records}
        outlines = {at: f"{sha}:{outline_sha256(table.store.get(commit_key(at)))}" for at, sha in shas.items()}
        erase(project)
        return shas, outlines

    def problems(self, project, witnesses):
        report = Project("CLINIC", project.store).table("people").verify(witnesses=witnesses)
        return [(found.where, found.problem) for found in report.findings]

    def test_that_saw_outlines_vouch_for_what_was_redacted(self, project, seen):
        assert self.problems(project, seen[1]) == []

    def test_that_saw_names_vouch_for_it_once_they_saw_a_later_commit(self, project, seen):
        assert {where for where, text in self.problems(project, seen[0]) if "on the word of who" in text} == {
            "@0",
            "@1",
        }
        table = project.table("people")
        append(table, 5)
        assert self.problems(project, {**seen[0], table.state.log_version: names(table)[-1]}) == []

    def test_vouch_for_nothing_below_a_commit_that_binds_nothing(self, project, seen):
        """That of another program, say; what is below is theirs who redacted it, until that was seen, too."""
        table = project.table("people")
        at = max(record.log_version for record in table.state.history.records if record.operation == "ERASE")
        whole = {
            record.log_version: record.sha256 for record in table.state.history.records if record.log_version >= at
        }
        assert self.problems(project, {**seen[0], at: whole[at]}) == []
        key = commit_key(at)
        lines = [json.loads(line) for line in table.store.get(key).splitlines()]
        lines[0]["commitInfo"]["dagsterVersioned"].pop("prev_outline")
        table.store.put(key, b"\n".join(json.dumps(line).encode() for line in lines))
        known = {at: hashlib.sha256(table.store.get(key)).hexdigest()}
        assert {where for where, text in self.problems(project, {**seen[0], **known}) if "on the word" in text} == {
            "@0",
            "@1",
        }
        last = max(whole)
        assert not [text for _, text in self.problems(project, {**seen[0], last: whole[last]}) if "on the word" in text]

    def test_see_that_another_history_was_put_under_its_names(self, project, seen, tmp_path):
        """All of it claims to be redacted, by a commit of who did it."""
        shas = seen[0]
        other = Project.open("CLINIC", str(tmp_path / "other"))
        other.table("people").write(people(666, 667, 668))
        append(other.table("people"), 669)
        table, told, before = other.table("people"), {}, None
        for at, sha in shas.items():
            lines = [json.loads(line) for line in table.store.get(commit_key(at)).splitlines()]
            info = lines[0]["commitInfo"]
            info["dagsterVersionedRedacted"] = {"sha256": sha, "timestamp": info["inCommitTimestamp"]}
            if before is not None:
                info["dagsterVersioned"] |= {"prev": shas[at - 1], "prev_outline": outline_sha256(before)}
            before = b"\n".join(json.dumps(line).encode() for line in lines)
            table.store.put(commit_key(at), before)
            told[f"{at}"] = hashlib.sha256(before).hexdigest()
        info["operation"] = "REDACT"
        del info["dagsterVersionedRedacted"], info["dagsterVersioned"]["versions"]
        info["inCommitTimestamp"] += 1
        info["dagsterVersioned"] |= {"prev": shas[1], "prev_outline": outline_sha256(before)}
        info["dagsterVersioned"]["redaction"] = {"done": True, "entries": told}
        table.store.put(commit_key(2), json.dumps({"commitInfo": info}).encode())
        other = Project("CLINIC", other.store)
        other.table("people").operations.repair()
        assert other.table("people").verify().ok  # nobody can tell who has seen nothing
        for witnesses, problem in zip(seen, ("on the word", "lost more than an erasure"), strict=True):
            found = self.problems(other, witnesses)
            assert {where for where, text in found if problem in text} == {"@0", "@1"}


@pytest.mark.parametrize("name", ["x", "-1", "1.0", "", "9" * 5000])
def test_a_redaction_of_no_log_version_is_refused_where_it_is_read(project, name):
    table = project.table("people")
    table.write(people(1, 2))
    erase(project)
    at = next(record.log_version for record in table.state.history.records if record.operation == "REDACT")
    lines = [json.loads(line) for line in table.store.get(commit_key(at)).splitlines()]
    lines[0]["commitInfo"]["dagsterVersioned"]["redaction"]["entries"][name] = "0" * 64
    table.store.put(commit_key(at), b"\n".join(json.dumps(line).encode() for line in lines))
    with pytest.raises(LogCorrupt, match="is no log version"):
        Project("CLINIC", project.store).table("people").replay()


def test_redaction_changes_no_outline(project):
    table = project.table("people")
    table.write(people(1, 3))
    append_as_another_program(table, people(2, 7))
    table.adopt()
    append(table, 2)
    before = [outline(entry) for entry in entries(table)]
    stored = entries(table)
    erase(project)
    assert [outline(entry) for entry in entries(table)][: len(before)] == before
    assert sum(old != new for old, new in zip(stored, entries(table), strict=False)) == 2


def test_other_readers_count_no_row_that_is_not_there(project):
    table = project.table("people")
    table.write(people(1, 3))
    append(table, 2, 4)
    append(table, 5)
    erase(project)
    head = deltalake.DeltaTable(location(table))
    assert sorted(head.to_pyarrow_table()["id"].to_pylist()) == [1, 3, 4, 5]
    assert pl.scan_delta(location(table)).select(pl.len()).collect().item() == 4
    assert pl.scan_delta(location(table), version=0).select(pl.len()).collect().item() == 2
    for version in (1, 2):
        with pytest.raises(Exception, match=r"(?i)not found|no such file"):
            print(pl.scan_delta(location(table), version=version).select(pl.len()).collect().item())
        with pytest.raises(Exception, match=r"(?i)not found|no such file"):
            deltalake.DeltaTable(location(table), version=version).to_pyarrow_dataset().count_rows()


def test_what_was_erased_goes_on_as_any_table(project):
    table = project.table("people")
    for number in range(12):
        append(table, number, 2)
    erase(project)
    append(table, 20)
    table.expire(keep_last=3, dry_run=False)
    table.vacuum(dry_run=False, min_age=timedelta(0))
    assert 2 not in table.read()["id"].to_pylist()
    assert table.verify().ok, table.verify().findings
