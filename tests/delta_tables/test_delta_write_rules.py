"""What a Delta table asks of its rows, obeyed by every verb that writes from Arrow."""

import dataclasses
import datetime as dt
import json

import pyarrow as pa
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.actions import encode_action
from dagster_versioned.delta.log.commits import commit_key, parse_commit
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType
from dagster_versioned.delta_tables.arrow.rules import nullable_type
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
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
from dagster_versioned.errors import InvalidInput, TableNotFound, UnsupportedFeature
from dagster_versioned.storage import LocalStore
from support.delta_writes import files_of, rows_of, schema

ON = "source.id = target.id"
UPSERT = [WhenMatched("all"), WhenNotMatched("all")]


def refused(uri, reason, *attempts):
    """Each attempt is refused for the reason, and leaves nothing."""
    before = files_of(uri), load_snapshot(LocalStore(uri)).version
    for attempt in attempts:
        with pytest.raises(InvalidInput, match=reason):
            attempt()
    assert (files_of(uri), load_snapshot(LocalStore(uri)).version) == before


def every_verb(uri, **bad):
    """Attempts to bring one row of these values into a table that has the row ``id`` 1."""
    columns = {name: pa.array([value], type_of(value)) for name, value in bad.items()}
    fresh = pa.table({"id": [2], **columns})
    known = pa.table({"id": [1], **columns})
    literals = {name: sql_of(value) for name, value in bad.items()}
    return [
        lambda: write_delta(uri, fresh),
        lambda: write_delta(uri, fresh, "overwrite"),
        lambda: update_delta(uri, literals),
        lambda: merge_delta(uri, known, ON, UPSERT),
        lambda: merge_delta(uri, fresh, ON, [WhenNotMatched({"id": "source.id", **literals})]),
    ]


def type_of(value):
    return pa.string() if isinstance(value, str) else pa.int64()


def sql_of(value):
    return "null" if value is None else repr(value)


def test_constraints_hold_for_every_verb_and_for_null(uri):
    write_delta(uri, pa.table({"id": [1], "v": [5]}))
    add_constraint(uri, "Positive", "v > 0")
    for bad in (-1, None):
        refused(uri, "1 of 1 rows break the constraint 'positive': v > 0", *every_verb(uri, v=bad))
    write_delta(uri, pa.table({"id": [2], "v": [1]}))


def test_a_constraint_that_rows_do_not_satisfy_is_not_added(uri):
    write_delta(uri, pa.table({"id": [1, 2, 3], "v": [5, -5, None]}))
    refused(uri, "2 rows of the table do not satisfy v > 0", lambda: add_constraint(uri, "positive", "v > 0"))
    add_constraint(uri, "known", "id is not null")
    refused(uri, "has a constraint 'KNOWN' already", lambda: add_constraint(uri, "KNOWN", "v > 0"))


def test_a_constraint_is_true_or_false(uri):
    write_delta(uri, pa.table({"v": [1], "w": ["a"], "ok": [True]}))
    for sql in ("v + 1", "w", "null", "'true'"):
        refused(uri, "is no condition: its value is", lambda sql=sql: add_constraint(uri, "c", sql))
    refused(uri, "cannot be evaluated", lambda: add_constraint(uri, "c", "ok > array(1)"))
    for name, sql in {"c": "ok", "d": "v is not null", "e": "coalesce(w = 'a', false)"}.items():
        add_constraint(uri, name, sql)
    write_delta(uri, pa.table({"v": [2], "w": ["a"], "ok": [True]}))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("v + 1", "no condition"),
        ("nope > 1", "nope"),
        ("v > 1 garbage", "v > 1 garbage"),
        ("", "read as SQL|no single expression"),
        ("reflect('java.lang.System', 'exit') > 1", "the function reflect"),
    ],
)
def test_no_table_is_created_with_a_constraint_that_no_row_can_be_judged_by(uri, sql, reason):
    properties = {"delta.constraints.c": sql}
    for attempt in (
        lambda: create_delta(uri, schema(("v", "long")), properties=properties),
        lambda: write_delta(uri, pa.table({"v": [1]}), properties=properties),
    ):
        with pytest.raises(InvalidInput, match=reason):
            attempt()
    with pytest.raises(TableNotFound):
        load_snapshot(LocalStore(uri))
    create_delta(uri, schema(("v", "long")), properties={"delta.constraints.c": "v > 1"})
    refused(uri, "break the constraint 'c'", lambda: write_delta(uri, pa.table({"v": [1]})))


@pytest.mark.parametrize(
    ("noted", "reason"),
    [
        ({"delta.identity.start": 1, "delta.identity.step": 0}, "identity column 'v' makes no sense: start 1, step 0"),
        ({"delta.identity.start": 1}, "identity column 'v' makes no sense"),
        ({"delta.invariants": "v > 1"}, "invariant of column 'v' holds no expression"),
        ({"delta.generationExpression": 3}, "generationExpression of column 'v' is no SQL"),
    ],
)
def test_no_table_is_created_with_a_rule_that_makes_no_sense(uri, noted, reason):
    with pytest.raises(InvalidInput, match=rf"{reason}.*Nothing was written"):
        create_delta(uri, schema(("id", "long"), ("v", "long", True, noted)))
    with pytest.raises(TableNotFound):
        load_snapshot(LocalStore(uri))


def test_invariants_hold_for_every_verb(uri):
    invariant = json.dumps({"expression": {"expression": "v < 10"}})
    create_delta(uri, schema(("id", "long"), ("v", "long", True, {"delta.invariants": invariant})))
    write_delta(uri, pa.table({"id": [1], "v": [5]}))
    refused(uri, "constraint 'invariant of v': v < 10", *every_verb(uri, v=10))


def test_columns_that_must_not_be_null_are_not(uri):
    inner = schema(("x", "long", False))
    create_delta(uri, schema(("id", "long"), ("v", "long", False), ("s", inner)))
    write_delta(uri, pa.table({"id": [1], "v": [5], "s": [{"x": 1}]}))
    refused(
        uri, "Column 'v' must not be null", *every_verb(uri, v=None), lambda: write_delta(uri, pa.table({"id": [1]}))
    )
    null_inside = pa.table({"id": [2], "v": [1], "s": [{"x": None}]}, schema=None)
    null_inside = null_inside.set_column(2, "s", pa.array([{"x": None}], pa.struct([("x", pa.int64())])))
    refused(uri, "Column 's.x' must not be null", lambda: write_delta(uri, null_inside))
    write_delta(uri, pa.table({"id": [2], "v": [1]}))  # no struct, so no field of it is null


INNER = StructType([StructField("x", "long", False)])
X = pa.struct([("x", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "good", "bad", "name"),
    [
        (ArrayType("long", False), [[1], [], None], [[1], [2, None]], "c.element"),
        (ArrayType(ArrayType("long", False)), [[[1]], [None]], [[[1], [None]]], "c.element.element"),
        (MapType("string", "long", False), [[("a", 1)], None], [[("a", None)], [("b", 1)]], "c.value"),
        (MapType("string", ArrayType("long", False)), [[("a", None)]], [[("a", [None])]], "c.value.element"),
        (ArrayType(INNER), [[{"x": 1}, None], []], [[{"x": 1}], [{"x": None}]], "c.element.x"),
        (MapType("long", INNER), [[(1, {"x": 1})]], [[(1, {"x": None}), (2, {"x": 1})]], "c.value.x"),
        (MapType(INNER, "long"), [[({"x": 1}, None)]], [[({"x": None}, 1)]], "c.key.x"),
        (StructType([StructField("element", ArrayType("long", False))]), [{"element": [1]}], [{"element": [None]}],
         "c.element.element"),
    ],
)  # fmt: skip
def test_what_is_never_null_inside_of_a_column_is_not(uri, kind, good, bad, name):
    def rows(values):
        return pa.table({"id": range(len(values)), "c": pa.array(values, nullable_type(kind))})

    create_delta(uri, schema(("id", "long"), ("c", kind)))
    write_delta(uri, rows(good))
    one = rf"Column '{name}' must not be null \(NOT NULL\), but 1 of its values are"
    for frame in (rows(bad), rows([*good, *bad]), rows([*bad, *bad]).slice(len(bad))):
        refused(
            uri,
            one,
            lambda frame=frame: write_delta(uri, frame),
            lambda frame=frame: merge_delta(uri, frame, ON, UPSERT),
        )
    assert read_delta(uri)["c"].to_pylist() == good  # the peer takes a field of a struct that is null for a null


def test_a_table_whose_rules_are_not_enforced_everywhere_is_not_written(uri):
    write_delta(uri, pa.table({"id": [1], "l": [[{"x": 1}]]}))
    read = load_snapshot(LocalStore(uri))
    x = StructField("x", "long", True, {"delta.invariants": json.dumps({"expression": {"expression": "x > 3"}})})
    ruled = schema(("id", "long"), ("l", ArrayType(StructType([x]))))
    metadata = dataclasses.replace(read.metadata, schema_string=ruled.json())
    LocalStore(uri).put(commit_key(1), encode_action(metadata) + b"\n")
    before = files_of(uri)
    for attempt in (
        lambda: write_delta(uri, pa.table({"id": [2], "l": [[{"x": 1}]]})),
        lambda: delete_from(uri, "id = 1"),
        lambda: create_delta(f"{uri}2", ruled),
    ):
        with pytest.raises(UnsupportedFeature, match=r"'l\.element\.x' has a rule of the feature invariants"):
            attempt()
    assert files_of(uri) == before
    assert not files_of(f"{uri}2")
    assert rows_of(uri) == [{"id": 1, "l": [{"x": 1}]}]


def test_a_table_is_not_created_with_columns_that_are_generated_from_generated_ones(uri):
    first, second = ({"delta.generationExpression": sql} for sql in ("b + 1", "id + 1"))
    with pytest.raises(UnsupportedFeature, match="'a' is generated from 'b', which is generated itself"):
        create_delta(uri, schema(("a", "long", True, first), ("b", "long", True, second), ("id", "long")))
    assert not files_of(uri)


def test_generated_columns_are_filled_in_and_kept_right(uri):
    double = {"delta.generationExpression": "v * 2"}
    create_delta(uri, schema(("id", "long"), ("v", "integer"), ("w", "long", True, double)), partition_by=["w"])
    write_delta(uri, pa.table({"id": [1], "v": [5]}))
    write_delta(uri, pa.table({"id": [2], "v": [6], "w": [12]}))
    refused(
        uri, r"'w' is generated as v \* 2, but 1 of 1 rows", lambda: write_delta(uri, pa.table({"v": [1], "w": [3]}))
    )
    refused(uri, "generated as", lambda: update_delta(uri, {"w": "0"}))
    update_delta(uri, {"v": "v + 1"}, "id = 1")
    merge_delta(uri, pa.table({"id": [2, 3], "v": [0, None]}), ON, UPSERT)
    assert rows_of(uri) == [
        {"id": 1, "v": 6, "w": 12},
        {"id": 2, "v": 0, "w": 0},
        {"id": 3, "v": None, "w": None},
    ]


def test_generated_columns_stay_where_nothing_that_they_are_made_from_changes(uri):
    today = {"delta.generationExpression": "current_date()"}
    create_delta(uri, schema(("id", "long"), ("v", "long"), ("made", "date", True, today)))
    write_delta(uri, pa.table({"id": [1], "v": [1]}))
    with pytest.MonkeyPatch.context() as later:
        later.setattr("dagster_versioned.engines.sql.datetime", Later)
        update_delta(uri, {"v": "2"})
        merge_delta(uri, pa.table({"id": [1, 2]}), ON, UPSERT)
    first, second = (row["made"] for row in rows_of(uri))
    assert second == dt.date(2100, 1, 1)
    assert first != second


class Later(dt.datetime):
    """Another day."""

    @classmethod
    def now(cls, tz=None):
        return cls(2100, 1, 1, tzinfo=tz)


def test_what_cannot_be_written_is_refused_before_a_file_is(uri):
    write_delta(uri, pa.table({"id": [1]}))
    store = LocalStore(uri)
    commit = parse_commit(0, store.get(commit_key(0)), 0)
    assert commit.protocol is not None
    needs_more = dataclasses.replace(commit.protocol, min_writer_version=7, writer_features=("notYetKnown",))
    store.put(commit_key(1), encode_action(needs_more) + b"\n")
    before = files_of(uri)
    for attempt in (lambda: write_delta(uri, pa.table({"id": [2]})), lambda: delete_from(uri, "id = 1")):
        with pytest.raises(UnsupportedFeature, match="notYetKnown"):
            attempt()
    assert files_of(uri) == before


def test_defaults_fill_what_is_left_out_and_null_is_a_value(uri):
    fields = schema(
        ("id", "long"),
        ("v", "string", True, {"CURRENT_DEFAULT": "'new'"}),
        ("t", "long", True, {"CURRENT_DEFAULT": "1 + 1"}),
    )
    create_delta(uri, fields, properties={"delta.feature.allowColumnDefaults": "supported"})
    write_delta(uri, pa.table({"id": [1]}))
    write_delta(uri, pa.table({"id": [2], "v": pa.array([None], pa.string())}))
    merge_delta(uri, pa.table({"id": [3]}), ON, [WhenNotMatched({"id": "id", "t": "default"})])
    update_delta(uri, {"v": "DEFAULT", "t": "0"}, "id = 2")
    assert rows_of(uri) == [
        {"id": 1, "v": "new", "t": 2},
        {"id": 2, "v": "new", "t": 0},
        {"id": 3, "v": "new", "t": 2},
    ]


@pytest.mark.parametrize(
    ("kind", "sql", "reason"),
    [
        ("long", "nope(1)", "the function nope is not admitted"),
        ("long", "id + 1", "needs the column 'id' of a row"),
        ("long", "'abc'", "it is no long"),
        ("byte", "300 + 1", "out of range"),
        ("date", "upper('abc')", "invalid date"),
    ],
)
def test_a_table_is_not_created_with_a_default_by_which_no_row_could_be_written(uri, kind, sql, reason):
    with pytest.raises(InvalidInput, match=reason) as refused:
        create_delta(uri, schema(("id", "long"), ("v", kind, True, {"CURRENT_DEFAULT": sql})))
    assert "Nothing was written" in str(refused.value)
    assert not files_of(uri)


def test_a_default_that_spark_alone_makes_is_kept_for_it(uri):
    create_delta(uri, schema(("id", "long"), ("v", "string", True, {"CURRENT_DEFAULT": "uuid()"})))
    Table(uri).set_default("id", "factorial(transform(array(1), x -> x + 1)[0])")
    assert Table(uri).schema.field("v").metadata["CURRENT_DEFAULT"] == "uuid()"


def identity(start, step, *, explicit):
    return {
        "delta.identity.start": start,
        "delta.identity.step": step,
        "delta.identity.allowExplicitInsert": explicit,
    }


def test_identity_columns_number_rows_and_never_twice(uri):
    create_delta(uri, schema(("n", "long", True, identity(10, 5, explicit=False)), ("id", "long")))
    write_delta(uri, pa.table({"id": [1, 2]}))
    write_delta(uri, pa.table({"id": [3]}), "overwrite")
    merge_delta(uri, pa.table({"id": [3, 4]}), ON, UPSERT)
    assert {row["id"]: row["n"] for row in rows_of(uri)} == {3: 20, 4: 25}
    (number, _) = load_snapshot(LocalStore(uri)).schema.fields
    assert number.metadata["delta.identity.highWaterMark"] == 25
    numbered = pa.table({"id": [3], "n": [1]})
    refused(
        uri,
        "always generated",
        lambda: write_delta(uri, numbered),
        lambda: merge_delta(uri, numbered, ON, [WhenNotMatched("all")]),  # whether or not it would insert a row
    )
    refused(uri, "'n' cannot be updated", lambda: update_delta(uri, {"n": "1"}))


def test_identity_columns_that_take_values_of_the_rows(uri):
    create_delta(uri, schema(("n", "long", True, identity(1, -1, explicit=True)), ("id", "long")))
    write_delta(uri, pa.table({"id": [1], "n": [99]}))
    write_delta(uri, pa.table({"id": [2, 3]}))
    assert [row["n"] for row in rows_of(uri, "id", "n")] == [99, 1, 0]


def test_append_only_tables_lose_no_row(uri):
    write_delta(uri, pa.table({"id": [1], "v": [1]}), properties={"delta.appendOnly": "true"})
    refused(
        uri,
        "append-only",
        lambda: delete_from(uri, "id = 1"),
        lambda: update_delta(uri, {"v": "2"}),
        lambda: write_delta(uri, pa.table({"id": [1]}), "overwrite"),
        lambda: merge_delta(uri, pa.table({"id": [1]}), ON, [WhenMatched("delete")]),
    )
    write_delta(uri, pa.table({"id": [2], "v": [1]}))
    merge_delta(uri, pa.table({"id": [2, 3], "v": [1, 1]}), ON, [WhenNotMatched("all")])
    optimize_delta(uri)
    assert [row["id"] for row in rows_of(uri)] == [1, 2, 3]
