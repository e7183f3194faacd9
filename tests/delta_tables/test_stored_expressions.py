"""What a table's own SQL may be made of where Spark evaluates it: only what is admitted by name."""

import json
import re

import pyarrow as pa
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.commit.stored_expressions import FUNCTIONS, OF_DEFAULTS, require_admitted
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta_tables.write import add_constraint, create_delta, write_delta
from dagster_versioned.errors import InvalidInput
from support.spark import needs_spark

CODE = "reflect('java.lang.System', 'setProperty', 'reached', 'yes') IS NULL"


@pytest.mark.parametrize(
    "sql",
    [
        "a > 0 AND (b IS NULL OR b IN ('x', 'reflect(1)')) -- reflect(1)",
        "NOT (lower(a) LIKE 'x%') and a not in ('b') and (a) between (1) and (2)",
        "case when (a) then (b) else (c) end = cast(a as decimal(10, 2))",
        "`select` + `from` > 0 AND s.user = 1 AND values > 0",
        "EXTRACT(day FROM d) = 1 and trim(both 'x' from a) = substring(a from 2)",
        "exists(array(1, a), x -> (x) > 0) and map('a', 1)['a'] = 1",
        "t <= current_timestamp() and d <= current_date",
        "date '2020-01-01' + interval (1) day > d and a::int % (2) = 0 and a like any ('x')",
    ],
)
def test_what_is_made_of_the_row_is_admitted(sql):
    assert require_admitted("the constraint 'c'", sql) == sql


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        (CODE, "the function reflect"),
        ("`reflect`('a', 'b') = 'c'", "the function reflect"),
        ("Java_Method /* x */ ('a', 'b') = 'c'", "the function Java_Method"),
        ("main.tools.abs(a) > 0", "the function abs"),
        ("identifier('reflect')('a', 'b') = 'c'", "the function identifier"),
        ("my_function(a) > 0", "the function my_function"),
        ("`and`(a) > 0", "the function and"),
        ("rand() < 1", "the function rand"),
        ("a <> '${env:HOME}'", "a variable ${…}"),
        ("a <> ${system:user.home}", "a variable ${…}"),
        ("sum(a) > 0", "the function sum"),
        ("row_number() OVER (ORDER BY a) = 1", "the function row_number"),
        ("a IN (SELECT b FROM c)", "a query"),
        ("a = (FROM c |> SELECT b)", "a query"),
        ("a = (TABLE c)", "a query"),
        ("a = (VALUES (1))", "a query"),
        ("a = (WITH x AS (TABLE c) TABLE x)", "a query"),
        ("a = (MAP a USING 'cat' FROM c)", "a query"),
        ("owner = current_user", "current_user"),
        ("a = 'no end", "what cannot be read as SQL"),
    ],
)
def test_what_is_not_admitted_is_refused_by_name(sql, named):
    with pytest.raises(
        InvalidInput, match=rf"^The constraint 'c' of the table is .*{re.escape(named)} is not admitted.*written"
    ):
        require_admitted("the constraint 'c'", sql)


def test_a_default_is_computed_once_and_may_be_another_each_time():
    assert require_admitted("x", "concat(uuid(), current_user)", OF_DEFAULTS)
    with pytest.raises(InvalidInput, match="the function reflect"):
        require_admitted("x", CODE, OF_DEFAULTS)


@pytest.mark.parametrize("sql", ["", " ", "'open"])
def test_what_is_no_sql_is_refused(sql):
    with pytest.raises(InvalidInput, match="what cannot be read as SQL is not admitted"):
        require_admitted("the constraint 'c'", sql)


def test_no_constraint_is_added_that_nobody_may_evaluate(tmp_path):
    write_delta(str(tmp_path), pa.table({"a": [1]}))
    with pytest.raises(InvalidInput, match="the function reflect is not admitted"):
        add_constraint(str(tmp_path), "c", CODE)
    assert Table(str(tmp_path)).version == 0


def with_rule(place, **rules):
    """A table of somebody else's with one column that has these members, or this constraint."""
    checks = {"delta.constraints.c": rules.pop("check")} if "check" in rules else {}
    harmless = {key: sql.replace(CODE, "1 > 0" if key == "CURRENT_DEFAULT" else "b > 0") for key, sql in rules.items()}
    fields = [StructField("a", "string", True, harmless), StructField("b", "long")]
    create_delta(str(place), StructType(fields), properties=dict.fromkeys(checks, "b > 0"))
    log = place / "_delta_log" / f"{0:020}.json"  # no table of ours has such a rule
    log.write_text("\n".join(_with(json.loads(line), rules, checks) for line in log.read_text().splitlines()))
    return str(place)


def _with(action, rules, checks):
    if "metaData" in action:
        schema = json.loads(action["metaData"]["schemaString"])
        schema["fields"][0]["metadata"] = rules
        action["metaData"]["schemaString"] = json.dumps(schema)
        action["metaData"]["configuration"].update(checks)
    return json.dumps(action)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"check": CODE}, "The constraint 'c'"),
        ({"delta.generationExpression": CODE}, "The generated column 'a'"),
        ({"CURRENT_DEFAULT": CODE}, "The default of column 'a'"),
        ({"delta.invariants": json.dumps({"expression": {"expression": CODE}})}, "The constraint 'invariant of a'"),
    ],
)
def test_a_table_runs_no_code_in_the_session_of_who_writes_to_it(spark, tmp_path, rules, named):
    place = with_rule(tmp_path / "t", **rules)
    with pytest.raises(InvalidInput, match=f"{named} of the table is .*the function reflect is not admitted"):
        write_delta(place, spark.createDataFrame([(1,)], "b long"))
    assert Table(place).version == 0
    with pytest.raises(InvalidInput, match="the function reflect is not admitted"):
        add_constraint(place, "d", CODE, session=spark)


@pytest.mark.spark
@needs_spark(4, 3, "the functions of the newest release")
def test_what_is_admitted_are_functions_of_spark_that_compute_one_value(spark):
    of_syntax = {"try_cast", "timestampadd", "timestampdiff", "charindex"}
    registry = spark._jsparkSession.sessionState().functionRegistry()
    groups = {}
    listed = registry.listFunction().iterator()
    while listed.hasNext():
        one = listed.next()
        groups[one.funcName()] = registry.lookupFunction(one).get().getGroup()
    assert FUNCTIONS - groups.keys() - of_syntax == set()
    assert {groups[name] for name in FUNCTIONS - of_syntax} & {
        *("agg_funcs", "window_funcs", "generator_funcs", "misc_funcs", "avro_funcs", "protobuf_funcs")
    } == {"misc_funcs"}
    assert {name for name in FUNCTIONS if groups.get(name) == "misc_funcs"} == {"typeof"}
