"""What a table asks of its rows is judged by Spark in the pass that writes them; rows that break it write nothing."""

import time
from decimal import Decimal

import pyarrow as pa
import pytest

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType
from dagster_versioned.delta_tables.data_files import DeltaFiles
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import (
    add_constraint,
    create_delta,
    delete_from,
    merge_delta,
    optimize_delta,
    update_delta,
    write_delta,
)
from dagster_versioned.engines.spark import by_value
from dagster_versioned.engines.spark.releases import release
from dagster_versioned.errors import InvalidInput, UnsupportedType
from dagster_versioned.storage import LocalStore
from support.delta_writes import rows_of

pytestmark = pytest.mark.spark

RULED = StructType(
    [
        StructField("id", "long", False),
        StructField("v", "integer"),
        StructField("twice", "long", True, {"delta.generationExpression": "v * 2"}),
        StructField("word", "string", True, {"CURRENT_DEFAULT": "concat('a', 'b')"}),
        StructField("s", StructType([StructField("x", "long", False)])),
        StructField(
            "n",
            "long",
            True,
            {"delta.identity.start": 5, "delta.identity.step": -3, "delta.identity.allowExplicitInsert": False},
        ),
    ]
)
PROPERTIES = {"delta.feature.allowColumnDefaults": "supported", "delta.constraints.small": "v < 100"}


@pytest.fixture
def ruled(uri):
    create_delta(uri, RULED, properties=PROPERTIES)
    return uri


def files_in(uri):
    return sorted(info.key for info in LocalStore(uri).list())


@pytest.mark.slow
def test_values_that_rows_lack_are_made(spark, ruled):
    frame = spark.range(3).selectExpr("id", "cast(id as int) as V", "named_struct('x', id) as s")
    write_delta(ruled, frame)
    first = rows_of(ruled)
    assert [(row["twice"], row["word"]) for row in first] == [(0, "ab"), (2, "ab"), (4, "ab")]
    numbers = [row["n"] for row in first]
    assert len(set(numbers)) == 3
    assert all(number <= 5 and (number - 5) % 3 == 0 for number in numbers)
    merge_delta(
        ruled,
        spark.range(2, 4),
        "target.id = source.id",
        [WhenMatched({"v": "v + 10", "word": "default"}), WhenNotMatched({"id": "source.id", "v": "7", "word": "'w'"})],
    )
    by_id = {row["id"]: row for row in read_delta(ruled).to_pylist()}  # pyarrow knows no null around what is NOT NULL
    assert (by_id[2]["v"], by_id[2]["twice"], by_id[2]["n"]) == (12, 24, {row["id"]: row for row in first}[2]["n"])
    assert (by_id[3]["twice"], by_id[3]["word"]) == (14, "w")
    assert by_id[3]["n"] < min(numbers)
    update_delta(ruled, {"v": "v + 1"}, "id = 3", session=spark)
    assert {row["id"]: row["twice"] for row in read_delta(ruled).to_pylist()}[3] == 16


@pytest.mark.parametrize(
    ("expressions", "sentence"),
    [
        (
            ["id", "cast(id + 98 as int) as v"],
            r"2 of 4 rows break the constraint 'small': v < 100, such as \(id=[23], v=",
        ),
        (["nullif(id, 2) as id", "1 as v"], r"Column 'id' must not be null \(NOT NULL\), but 1 of 4 rows are, such as"),
        (["id", "1 as v", "named_struct('x', nullif(id, 0)) as s"], r"Column 's.x' must not be null"),
        (["id", "cast(null as int) as v"], "4 of 4 rows break the constraint 'small'"),
        (
            ["id", "1 as v", "id as twice"],
            "Column 'twice' is generated as v \\* 2, but 3 of 4 rows bring another value",
        ),
        (["id", "1 as v", "1L as n"], "The identity column 'n' is always generated"),
        (["id", "1 as v", "2 as w"], r"no column 'w'.*schema_mode='merge'"),
        (["id", "1 as v", "2 as V"], "have the same name"),
        (["id", "99999999999L as v"], "'v' is int, which cannot hold the value 99999999999 without loss"),
        (
            ["id", "1 as v", "'x' as s"],
            "Column 's' is struct<x:bigint>, which a value of type string cannot be cast to",
        ),
    ],
)
def test_rows_that_break_a_rule_write_nothing(spark, ruled, expressions, sentence):
    before = files_in(ruled)
    with pytest.raises(InvalidInput, match=sentence) as raised:
        write_delta(ruled, spark.range(4).selectExpr(*expressions))
    assert "Nothing was written." in str(raised.value)
    assert files_in(ruled) == before


def test_what_is_never_null_inside_of_a_column_is_not(spark, uri):
    inner = StructType([StructField("x", "long", False)])
    fields = {
        "l": ArrayType("long", False),
        "s": ArrayType(inner),
        "m": MapType("string", ArrayType("long"), False),
        "k": MapType(inner, "long"),
    }
    create_delta(uri, StructType([StructField("id", "long"), *(StructField(*one) for one in fields.items())]))
    good = {
        "l": "array(id)",
        "s": "array(named_struct('x', id), null)",
        "m": "map('a', array(null, id))",
        "k": "map(named_struct('x', id), cast(null as long))",
    }
    bad = {
        "l": "array(id, nullif(id, 2))",
        "s": "array(named_struct('x', nullif(id, 2)))",
        "m": "map('a', if(id = 2, null, array(id)))",
        "k": "map(named_struct('x', nullif(id, 2)), id)",
    }
    write_delta(uri, spark.range(4).selectExpr("id", *(f"{sql} as {name}" for name, sql in good.items())))
    write_delta(uri, spark.range(4).selectExpr("id"))
    before = files_in(uri)
    for name, path in {"l": "l.element", "s": "s.element.x", "m": "m.value", "k": "k.key.x"}.items():
        with pytest.raises(InvalidInput, match=rf"Column '{path}' must not be null \(NOT NULL\), but 1 of 4 rows are"):
            write_delta(uri, spark.range(4).selectExpr("id", f"{bad[name]} as {name}"))
    assert files_in(uri) == before


def test_changes_that_break_a_rule_change_nothing(spark, ruled):
    write_delta(ruled, spark.range(4).selectExpr("id", "cast(id as int) as v"))
    before = files_in(ruled)
    # Where a division by zero is a null (3.5), another fault of a value.
    divided, refused = ("1 / (id - 1)", "DIVIDE_BY_ZERO") if release() >= (4, 0) else ("raise_error('no')", "no")
    for change, sentence in (
        (lambda: update_delta(ruled, {"v": "v + 97"}, "id > 1", session=spark), "1 of 2 rows break the constraint"),
        (lambda: update_delta(ruled, {"n": "1"}, session=spark), "identity column 'n' cannot be updated"),
        (lambda: update_delta(ruled, {"v": divided}, session=spark), refused),
        (lambda: update_delta(ruled, {"v": "nothing"}, session=spark), "nothing"),
        (lambda: update_delta(ruled, {"v": "1", "V": "2"}, session=spark), "'v' is assigned twice"),
        (lambda: update_delta(ruled, {"v": "3000000000"}, session=spark), "'v' is int, which cannot hold"),
        (lambda: delete_from(ruled, "id +", session=spark), "id \\+"),
        (
            lambda: merge_delta(
                ruled, spark.range(1), "target.id >= source.id", [WhenNotMatchedBySource({"v": "500"})]
            ),
            None,
        ),
        (
            lambda: merge_delta(ruled, spark.range(1, 3), "target.id <= source.id", [WhenMatched({"v": "0"})]),
            r"2 rows of the table meet more than one row of the source \(at most 2\)",
        ),
    ):
        if sentence is None:
            assert change().metrics["numTargetRowsUpdated"] == 0
            before = files_in(ruled)
            continue
        with pytest.raises(InvalidInput, match=sentence):
            change()
        assert files_in(ruled) == before
    add_constraint(ruled, "few", "id < 9", session=spark)
    with pytest.raises(InvalidInput, match="3 rows of the table do not satisfy"):
        add_constraint(ruled, "none", "id > 2", session=spark)


def test_a_task_that_outlives_a_failed_change_leaves_no_file(spark, ruled, monkeypatch):
    for first in (0, 1):  # a file each, and with it a task
        write_delta(ruled, spark.range(first, first + 1).selectExpr("id", "cast(id as int) as v"))
    before = files_in(ruled)
    written = DeltaFiles.data

    def late(self, *arguments, **options):
        import time

        time.sleep(1)  # long after the other task failed, and before Spark kills this one
        return written(self, *arguments, **options)

    monkeypatch.setattr(DeltaFiles, "data", late)
    by_value._pickled.cache_clear()
    try:
        with pytest.raises(InvalidInput, match="no"):
            update_delta(ruled, {"v": "if(id = 1, raise_error('no'), 5)"}, session=spark)
    finally:
        by_value._pickled.cache_clear()
    left = files_in(ruled)
    time.sleep(2)
    assert (left, files_in(ruled)) == (before, before)


def test_values_are_cast_as_far_as_nothing_is_lost(spark, uri):
    write_delta(uri, pa.table({"d": [Decimal("1.5")], "f": pa.array([1.5], pa.float32()), "w": ["a"]}))
    write_delta(uri, spark.sql("select 3 as d, 0.1 as f, 'x' as W"))
    assert len(rows_of(uri)) == 2
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        for value in ("1.55", "100"):
            with pytest.raises(UnsupportedType, match="without loss"):
                write_delta(uri, spark.sql(f"select {value} as d"))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.slow
def test_merges_of_every_kind(spark, uri):
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    write_delta(uri, spark.range(6).selectExpr("id", "'t' as w"), properties=properties)
    source = spark.range(4, 8).selectExpr("id", "'s' as w", "id * 1.0 as extra")
    done = merge_delta(uri, source, "target.id = source.id", [WhenNotMatched()], schema_mode="merge")
    assert done.metrics["numTargetRowsInserted"] == 2
    assert [row["extra"] is None for row in rows_of(uri)] == [True] * 6 + [False] * 2
    twice = spark.range(2).unionAll(spark.range(2))
    done = merge_delta(uri, twice, "target.id = source.id", [WhenMatched("delete")])
    assert (done.metrics["numTargetRowsDeleted"], len(rows_of(uri))) == (2, 6)
    done = merge_delta(
        uri,
        spark.range(3, 10).selectExpr("id", "'new' as w"),
        "target.id = source.id",
        [
            WhenMatched("all", "source.id < 5"),
            WhenNotMatched({"id": "id", "w": "w"}, "id > 8"),
            WhenNotMatchedBySource({"w": "concat(w, '!')"}),
        ],
    )
    words = {row["id"]: row["w"] for row in rows_of(uri)}
    assert words == {2: "t!", 3: "new", 4: "new", 5: "t", 6: "s", 7: "s", 9: "new"}
    counts = {name: done.metrics[f"numTargetRows{name}"] for name in ("Inserted", "Updated", "Deleted")}
    assert counts == {"Inserted": 1, "Updated": 3, "Deleted": 0}


@pytest.mark.parametrize(("source", "inserted"), [("1 = 0", 0), ("1 = 1", 2)], ids=["no rows", "keys that are null"])
def test_what_a_merge_brings_without_keys_meets_no_row(spark, uri, source, inserted):
    write_delta(uri, spark.range(3).selectExpr("id", "'t' as w"))
    rows = spark.range(2).selectExpr("cast(null as bigint) as id", "'s' as w").where(source)
    clauses = [WhenMatched("delete"), WhenNotMatched()]
    done = merge_delta(uri, rows, "target.id = source.id", clauses)
    assert (done.metrics["numTargetRowsInserted"], done.metrics["numTargetRowsDeleted"]) == (inserted, 0)
    assert [row["w"] for row in rows_of(uri)].count("t") == 3
    assert [row["w"] for row in rows_of(uri)].count("s") == inserted


def test_overwriting_partitions_and_schemas(spark, uri):
    frame = spark.range(6).selectExpr("id", "cast(id % 3 as string) as p")
    write_delta(uri, frame, partition_by=["p"])
    write_delta(uri, spark.sql("select 10L as id, '1' as p"), "overwrite", dynamic=True)
    assert [row["id"] for row in rows_of(uri)] == [0, 10, 2, 3, 5]
    with pytest.raises(InvalidInput, match="1 of 1 rows are not in what is replaced: p = '0', such as"):
        write_delta(uri, spark.sql("select 1L as id, '1' as p"), "overwrite", where="p = '0'")
    other = spark.sql("select 1 as other")
    write_delta(uri, other, "overwrite", schema_mode="overwrite", partition_by=[])
    assert rows_of(uri) == [{"other": 1}]
    write_delta(uri, spark.sql("select 2 as other, 'x' as more"), schema_mode="merge")
    assert rows_of(uri) == [{"other": 1, "more": None}, {"other": 2, "more": "x"}]


def test_compacting_sorts_if_asked_and_applies_vectors(spark, uri):
    properties = {"delta.enableDeletionVectors": "true"}
    for start in (0, 10, 20):
        rows = pa.table({"id": range(start, start + 10), "k": [i * 7 % 10 for i in range(10)]})
        write_delta(uri, rows, properties=None if start else properties)
    delete_from(uri, "id % 5 = 0", session=spark)
    assert load_snapshot(LocalStore(uri)).has_deletion_vectors
    done = optimize_delta(uri, order_by=["k"], session=spark)
    snapshot = load_snapshot(LocalStore(uri))
    assert (snapshot.num_files, snapshot.has_deletion_vectors, done.metrics["numRemovedFiles"]) == (1, False, 3)
    found = read_delta(uri)
    assert found["k"].to_pylist() == sorted(found["k"].to_pylist())
    assert sorted(found["id"].to_pylist()) == [i for i in range(30) if i % 5]


@pytest.mark.slow
def test_files_that_spark_would_pass_over_and_statistics_that_lie_lose_no_row(spark, uri, table):
    write_delta(uri, pa.table({"id": range(10)}))
    log = table / "_delta_log" / f"{0:020}.json"
    name = load_snapshot(LocalStore(uri)).adds()[0].path
    (table / name).rename(table / "_hidden.parquet")
    log.write_text(log.read_text().replace(name, "_hidden.parquet").replace('numRecords\\":10', 'numRecords\\":3'))
    for crc in log.parent.glob("*.crc"):
        crc.unlink()
    assert 'numRecords\\":3' in log.read_text()
    done = delete_from(uri, "id < 3", session=spark)
    assert (done.metrics["numDeletedRows"], done.metrics["numCopiedRows"]) == (3, 7)
    assert sorted(row["id"] for row in rows_of(uri)) == list(range(3, 10))


CONDITIONS = {
    "1 / target.id = 1": "Division by zero",
    "target.word RLIKE concat('(', target.word)": "Unclosed group",
    "from_json(target.word, 'a INT', map('mode', 'FAILFAST')).a = 1": "Malformed records",
    "broken(target.word)": "a function in Python raises ValueError: no such word",
}


@pytest.mark.slow
class TestAConditionThatFailsOnARow:
    """Which Spark finds out in a task, as whatever the function at fault raises."""

    @pytest.fixture
    def uri(self, spark, uri):
        def broken(_):  # in here, so that Spark's workers need not find this module
            raise ValueError("no such word")

        spark.udf.register("broken", broken, "boolean")
        write_delta(uri, pa.table({"id": [0, 1], "word": ["a", "b"]}))
        return uri

    @staticmethod
    def refused(uri, condition, reason, change):
        before = rows_of(uri), files_in(uri)
        with pytest.raises(InvalidInput, match=rf"(?s)Spark refuses.*{reason}.*Nothing was written\. Correct ") as info:
            change()
        assert repr(condition) in str(info.value)
        assert (rows_of(uri), files_in(uri)) == before

    @pytest.mark.parametrize("condition", CONDITIONS)
    def test_names_it(self, spark, uri, condition):
        reason, sql = CONDITIONS[condition], condition.replace("target.", "")
        self.refused(uri, sql, reason, lambda: delete_from(uri, sql, session=spark))

    @pytest.mark.parametrize("condition", [*CONDITIONS][::3])
    def test_in_every_verb(self, spark, uri, condition):
        reason, sql = CONDITIONS[condition], condition.replace("target.", "")
        source = spark.createDataFrame([(0, "a"), (1, "b")], "id long, word string")

        def merge(on, *clauses):
            return lambda: merge_delta(uri, source, on, list(clauses))

        on = f"source.id = target.id AND {condition}"
        theirs = condition.replace("target.", "source.")
        self.refused(uri, sql, reason, lambda: update_delta(uri, {"word": "'z'"}, sql, session=spark))
        self.refused(uri, sql, reason, lambda: write_delta(uri, source, mode="overwrite", where=sql))
        self.refused(uri, on, reason, merge(on, WhenMatched("all")))
        self.refused(uri, condition, reason, merge("source.id = target.id", WhenMatched("delete", condition)))
        self.refused(uri, theirs, reason, merge("false", WhenNotMatched("all", theirs)))
        self.refused(uri, condition, reason, merge("false", WhenNotMatchedBySource("delete", condition)))
