"""Merges that mark rows as deleted instead of writing their parts again."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.delta.files import deletion_vectors
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.errors import ExpiredVersion, IntegrityError, InvalidInput
from dagster_versioned.identity.version import data_sha
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import by_key, folder
from support.stores import contents

VECTORS = {"delta.enableDeletionVectors": "true"}
MERGE = TableOptions(mode="merge", merge_key=("key",), properties=VECTORS)
APPEND = TableOptions(mode="append")


def frame(keys: Sequence[int], value: int = 0) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array([value] * len(keys), pa.int64())})


def vectors(table: VersionedTable, version: Any = None) -> dict[str, int]:
    """How many rows of which parts are deleted."""
    adds = table.files(version).adds
    return {add.key: add.deletion_vector.cardinality for add in adds if add.deletion_vector}


def vector_files(table: VersionedTable) -> list[str]:
    return sorted(key for key in contents(table.store) if key.startswith("deletion_vector_"))


def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_vectors.named_by_content, "__defaults__", (0,))


@pytest.fixture(params=["inline", "file"])
def stored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where vectors are: small ones are in the log, and here also in files."""
    if request.param == "file":
        in_files(monkeypatch)
    return request.param


def test_a_merge_writes_only_the_rows_that_change(table: VersionedTable, stored: str) -> None:
    table.write(frame(range(100)), options=MERGE)
    (part,) = (add.key for add in table.files().adds)
    result = table.write(frame([3, 4, 200], 1), options=MERGE)
    assert result.change == "full"
    assert vectors(table) == {part: 2}
    assert [add.size for add in table.files().adds if add.key != part] == [
        result.bytes_uploaded - sum(table.store.head(key).size for key in vector_files(table))
    ]
    assert by_key(table) == {**dict.fromkeys(range(100), 0), 3: 1, 4: 1, 200: 1}
    assert by_key(table, 0) == dict.fromkeys(range(100), 0)
    assert len(vector_files(table)) == (stored == "file")
    table.verify().require_ok()
    table.write(frame([4, 5], 2), options=MERGE)
    assert vectors(table)[part] == 3
    assert by_key(table) == {**dict.fromkeys(range(100), 0), 3: 1, 4: 2, 200: 1, 5: 2}
    table.verify().require_ok()


def test_the_digest_is_that_of_the_rows(table: VersionedTable) -> None:
    table.write(frame(range(100)), options=MERGE)
    table.write(frame([3, 200], 1), options=MERGE)
    measured = ArrowEngine().measure(table.read(), table.files().scan.schema)
    facts = table.version().facts
    assert (facts.digest, tuple(facts.null_counts)) == (measured.digest.text, measured.null_counts)
    assert (facts.added and (facts.added.inserted, facts.added.updated)) == (1, 1)
    assert facts.parquet_sha is None


def test_the_data_sha_is_over_parts_and_vectors(table: VersionedTable, stored: str) -> None:
    table.write(frame(range(100)), options=MERGE)
    result = table.write(frame([3], 1), options=MERGE)
    lines: list[str] = []
    for add in table.files().adds:
        line = contents(table.store)[add.key]
        if add.deletion_vector is not None:
            vector = add.deletion_vector
            payload = deletion_vectors.z85_decode(
                deletion_vectors.inlined(table.store, vector, add.key).path_or_inline_dv
            )
            assert payload is not None
            line += " " + sha256(payload[: vector.size_in_bytes]).hexdigest()
        lines.append(f"{line}\n")
    assert result.version.data_sha == sha256("".join(sorted(lines)).encode()).hexdigest()


def test_the_vector_belongs_to_its_part() -> None:
    one, two, vector = ("1" * 64, "2" * 64, "3" * 64)
    assert data_sha([f"{one} {vector}", two], "ignored") != data_sha([one, f"{two} {vector}"], "ignored")
    assert data_sha([f"{one} {vector}"], "ignored") == sha256(f"{one} {vector}\n".encode()).hexdigest()
    with pytest.raises(InvalidInput, match="deletion vector"):
        data_sha([f"{one}{vector}"], "ignored")


def test_the_same_writes_make_the_same_versions_wherever_they_are_stored(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(name: str) -> list[str | None]:
        table = project.table(name)
        for given_rows in (frame(range(100)), frame([3, 150], 1), frame([3, 4, 5], 2)):
            table.write(given_rows, options=MERGE, asset_key=("rows",))
        return [version.data_sha for version in table.history()]

    first = written("one")
    assert written("two") == first
    in_files(monkeypatch)
    assert written("three") == first
    files = [vector_files(project.table("three")) for _ in range(2)]
    assert len(files[0]) == 2
    written("four")
    assert vector_files(project.table("four")) == files[0]


def test_a_part_that_lost_more_than_half_is_written_again(table: VersionedTable) -> None:
    table.write(frame(range(10)), options=MERGE)
    (part,) = (add.key for add in table.files().adds)
    table.write(frame(range(5), 1), options=MERGE)
    assert vectors(table) == {part: 5}
    table.write(frame([5], 1), options=MERGE)
    assert part not in {add.key for add in table.files().adds}
    assert vectors(table) == {}
    assert by_key(table) == {**dict.fromkeys(range(6), 1), **dict.fromkeys(range(6, 10), 0)}
    table.verify().require_ok()


def test_rows_that_are_there_already_make_no_version(table: VersionedTable) -> None:
    table.write(frame(range(100)), options=MERGE)
    table.write(frame([3], 1), options=MERGE)
    before = contents(table.project.store)
    assert table.write(frame([3], 1), options=MERGE).change == "none"
    assert table.write(frame([4], 0), options=MERGE).change == "none"
    assert contents(table.project.store) == before


def test_replacing_by_equal_rows_is_nothing_and_by_older_ones_uses_their_parts(table: VersionedTable) -> None:
    replaces = TableOptions(row_order="ignored")
    table.write(frame(range(100)), options=MERGE)
    merged = table.write(frame([3], 1), options=MERGE).version
    everything = table.read()
    assert table.write(everything, options=replaces).change == "none"
    table.write(frame([7]), options=replaces)
    again = table.write(everything, options=replaces)
    assert again.version.data_sha == merged.data_sha
    assert vectors(table) != {}
    assert again.bytes_uploaded == 0
    one_file = table.write(everything, options=TableOptions(row_order="ignored", single_part=True))
    assert one_file.version.facts.part_count == 1
    assert vectors(table) == {}
    assert table.read().num_rows == 100
    table.verify().require_ok()


def test_without_the_property_parts_are_written_again(table: VersionedTable) -> None:
    table.write(frame(range(100)), options=MERGE)
    table.write(frame([3], 1), options=MERGE)
    off = MERGE.model_copy(update={"properties": {"delta.enableDeletionVectors": "false"}})
    table.write(frame([5], 1), options=off)
    assert vectors(table) == {}
    assert by_key(table) == {**dict.fromkeys(range(100), 0), 3: 1, 5: 1}
    stays = TableOptions(mode="merge", merge_key=("key",))
    table.write(frame([6], 1), options=MERGE)
    table.write(frame([7], 1), options=stays)  # the table remembers
    assert len(vectors(table)) == 1
    table.verify().require_ok()


def test_a_property_that_means_nothing_is_refused(table: VersionedTable) -> None:
    unclear = MERGE.model_copy(update={"properties": {"delta.enableDeletionVectors": "yes"}})
    with pytest.raises(InvalidInput, match="'true' or 'false'"):
        table.write(frame([1]), options=unclear)
    assert not table.exists()


def test_a_revert_brings_vectors_back(table: VersionedTable, stored: str) -> None:
    table.write(frame(range(100)), options=MERGE)
    merged = table.write(frame([3], 1), options=MERGE).version
    expected, marked = by_key(table), vectors(table)
    table.write(frame([4], 2), options=MERGE)
    result = table.revert(merged.metadata_sha)
    assert (result.change, result.version.data_sha) == ("full", merged.data_sha)
    assert (by_key(table), vectors(table)) == (expected, marked)
    table.revert(0)
    assert (by_key(table), vectors(table)) == (dict.fromkeys(range(100), 0), {})
    table.verify().require_ok()


def test_a_difference_of_vectors_is_a_difference(table: VersionedTable) -> None:
    table.write(frame(range(100)), options=MERGE)
    table.write(frame([3], 1), options=MERGE)
    diff = table.diff(0, 1)
    assert (diff.same_data, diff.parts_added, diff.parts_removed, diff.parts_shared) == (False, 2, 1, 0)
    rows = table.diff_rows(0, 1, key=["key"])
    assert rows.changed_after.to_pylist() == [{"key": 3, "value": 1}]


def test_partitions_keep_vectors_of_their_own(project: Project) -> None:
    table = project.table("daily")
    table.write_partitions({"mon": frame(range(10)), "tue": frame(range(10))}, options=MERGE)
    table.write_partitions({"mon": frame([1], 1), "tue": frame([2], 1)}, options=MERGE)
    assert len(vectors(table)) == 2
    for partition, changed in (("mon", 1), ("tue", 2)):
        read = table.read(partition=partition).to_pydict()
        assert dict(zip(read["key"], read["value"], strict=True)) == {**dict.fromkeys(range(10), 0), changed: 1}
    table.verify().require_ok()


def test_partition_columns_and_vectors_go_together(table: VersionedTable) -> None:
    options = MERGE.model_copy(update={"partition_columns": ("value",)})
    table.write(frame(range(10)), options=options)
    table.write(frame([1], 1), options=options)
    assert list(vectors(table).values()) == [1]
    assert by_key(table) == {**dict.fromkeys(range(10), 0), 1: 1}
    table.verify().require_ok()


def test_a_new_constraint_is_asked_of_the_rows_that_stay(table: VersionedTable) -> None:
    table.write(pa.concat_tables([frame(range(10)), frame([99], -1)]), options=MERGE)
    for properties in (VECTORS, {"delta.enableDeletionVectors": "false"}):
        options = MERGE.model_copy(update={"constraints": {"positive": "value >= 0"}, "properties": properties})
        with pytest.raises(InvalidInput, match=r"'positive'.*1 rows"):
            table.write(frame([3], 1), options=options)
    table.write(frame([99], 1), options=MERGE)
    table.write(frame([3], 1), options=MERGE.model_copy(update={"constraints": {"positive": "value >= 0"}}))


# --- damage and collecting -------------------------------------------------------------------------------------------


def test_a_vector_that_was_altered_or_lost_is_found(table: VersionedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    in_files(monkeypatch)
    table.write(frame(range(100)), options=MERGE)
    table.write(frame([3], 1), options=MERGE)
    (key,) = vector_files(table)
    data = table.store.get(key)
    changed = bytearray(data)
    changed[-6] ^= 1
    for damage in (bytes(changed), data[:-3], None):
        if damage is None:
            table.store.delete([key])
        else:
            table.store.put(key, damage)
        findings = table.verify().findings
        assert [finding.subject for finding in findings] == ["part"]
        assert key in findings[0].problem
        with pytest.raises(IntegrityError):
            table.read()
    table.store.put(key, data)
    table.verify().require_ok()


def test_a_vector_of_other_rows_with_a_right_checksum_is_found(table: VersionedTable, monkeypatch: Any) -> None:
    in_files(monkeypatch)
    table.write(frame(range(100)), options=MERGE)
    table.write(frame([3], 1), options=MERGE)
    (key,) = vector_files(table)
    other = deletion_vectors.named_by_content({"x": np.array([4])})
    table.store.put(key, *other.files.values())
    with pytest.raises(IntegrityError, match="SHA-256"):
        table.read()
    assert "SHA-256" in table.verify().findings[0].problem


def test_vector_files_are_kept_as_long_as_a_version_needs_them(table: VersionedTable, monkeypatch: Any) -> None:
    in_files(monkeypatch)
    table.write(frame(range(100)), options=MERGE)
    merged = table.write(frame([3], 1), options=MERGE).version
    table.write(frame([4], 1), options=MERGE)
    assert len(vector_files(table)) == 2
    sizes = {info.key: info.size for info in table.store.list()}
    assert table.vacuum(min_age=timedelta(0), dry_run=False).keys == ()
    report = table.expire(keep_last=1, dry_run=False)
    (gone,) = (key for key in report.keys if key.startswith("deletion_vector_"))
    assert report.size_bytes == sum(sizes[key] for key in report.keys)
    assert vector_files(table) == sorted({key for key in sizes if key.startswith("deletion")} - {gone})
    assert table.read().num_rows == 100
    with pytest.raises(ExpiredVersion):
        table.read(merged.metadata_sha)
    table.verify().require_ok()


def test_a_purge_takes_the_vector_file_of_its_version(table: VersionedTable, monkeypatch: Any) -> None:
    in_files(monkeypatch)
    table.write(frame(range(10)), options=MERGE)
    table.write(frame([3], 1), options=MERGE)
    (key,) = vector_files(table)
    table.write(frame([77]), options=TableOptions(row_order="ignored"))
    report = table.purge([0, 1], why="erasure", dry_run=False)
    assert key in report.keys
    assert vector_files(table) == []
    table.verify().require_ok()


# --- other readers ---------------------------------------------------------------------------------------------------


def test_deltalake_reads_every_version(table: VersionedTable, stored: str) -> None:
    table.write(frame(range(100)), options=MERGE)
    table.write(frame([3, 200], 1), options=MERGE)
    table.write(frame([4, 5], 2), options=MERGE)
    for version in range(3):
        peer = QueryBuilder().register("t", DeltaTable(str(folder(table)), version=version))
        found = pa.table(peer.execute("select * from t order by key").read_all())
        assert found.to_pydict() == table.read(version).sort_by("key").to_pydict()


# --- any sequence ----------------------------------------------------------------------------------------------------

KEYS = st.integers(0, 11)
STEPS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("merge"), st.dictionaries(KEYS, st.integers(0, 3), min_size=1, max_size=4)),
    st.tuples(st.just("append"), st.dictionaries(KEYS, st.integers(0, 3), min_size=1, max_size=4)),
    st.tuples(st.just("replace"), st.dictionaries(KEYS, st.integers(0, 3), min_size=4, max_size=8)),
    st.tuples(st.just("revert"), st.integers(0, 5)),
    st.tuples(st.just("expire"), st.integers(1, 4)),
    st.tuples(st.just("vacuum"), st.none()),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=2, max_size=9), inline=st.booleans())
def test_every_version_is_what_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, Any]], inline: bool
) -> None:
    table = Project.open("P", str(tmp_path_factory.mktemp("any"))).table("rows")
    with pytest.MonkeyPatch.context() as patch:
        if not inline:
            in_files(patch)
        table.write(frame(range(8)), options=MERGE)
        expected: dict[int, Mapping[int, int]] = {0: dict.fromkeys(range(8), 0)}
        for kind, given_as in steps:
            model = _done(table, kind, given_as, expected)
            expected[table.version().log_version] = model
        for version in table.history():
            if version.gone is None:
                assert by_key(table, version.log_version) == expected[version.log_version]
                measured = ArrowEngine().measure(table.read(version.log_version), table.files().scan.schema)
                assert version.facts.digest == measured.digest.text
        table.verify().require_ok()
        assert table.vacuum(min_age=timedelta(0)).keys == ()


def _done(
    table: VersionedTable, kind: str, given_as: Any, expected: Mapping[int, Mapping[int, int]]
) -> Mapping[int, int]:
    """Do it; the rows that the table is to have then."""
    model = expected[table.version().log_version]
    match kind:
        case "merge":
            table.write(_rows(given_as), options=MERGE)
            return {**model, **given_as}
        case "append":  # of keys that are not there, so that a key has one row
            if new := {key: value for key, value in given_as.items() if key not in model}:
                table.write(_rows(new), options=APPEND)
            return {**model, **new}
        case "replace":
            table.write(_rows(given_as), options=TableOptions(row_order="ignored"))
            return given_as
        case "revert":
            kept = [version.log_version for version in table.history() if version.gone is None]
            target = kept[int(given_as) % len(kept)]
            table.revert(target)
            return expected[target]
        case "expire":
            table.expire(keep_last=given_as, dry_run=False)
        case _:
            table.vacuum(min_age=timedelta(0), dry_run=False)
    return model


def _rows(given_as: Mapping[int, int]) -> pa.Table:
    return pa.table(
        {"key": pa.array(list(given_as), pa.int64()), "value": pa.array(list(given_as.values()), pa.int64())}
    )
