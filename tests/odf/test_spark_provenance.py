"""Of which rows, columns and steps a row of a transform's result came."""

import random
from collections import Counter

import pytest

from dagster_versioned.errors import UnsupportedFeature
from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.odf.spark.provenance import row_origin
from dagster_versioned.odf.spark.transform import Transform
from dagster_versioned.odf.transform_query import InputHistory, QueryStep, TransformQuery
from dagster_versioned.tables.event_history import EventColumns
from support.transforms import History, at, run

pytestmark = pytest.mark.spark

A, R, FROM, TO = Operation
FLIGHTS = History(
    "id BIGINT, carrier STRING, delay INT",
    [(A, at(1), 1, "UA", 5), (A, at(2), 2, "AA", 9), (A, at(3), 3, "UA", 7), (R, at(3), 3, "UA", 7)],
)
PLANES = History("id BIGINT, model STRING", [(A, at(0), 1, "A320"), (A, at(0), 9, "B747")])


def origin(spark, text, row, data, **options):
    inputs = {"flights": FLIGHTS, "planes": PLANES}
    names = tuple(name for name in inputs if name in text)
    steps = (QueryStep(text),)
    given = {name: InputHistory(inputs[name].frame(spark), EventColumns()) for name in names}
    asked = spark.createDataFrame([row], f"event_time TIMESTAMP, {data}")
    return row_origin(spark, TransformQuery(names, steps), given, EventColumns(), asked, **options)


def told(found):
    return {one.column: (list(one.sources), one.expression) for one in found.columns}


def test_of_a_map_and_a_filter(spark):
    text = "WITH late AS (SELECT * FROM flights WHERE delay > 6) SELECT event_time, id, delay * 2 AS d FROM late"
    found = origin(spark, text, (at(2), 2, 18), "id BIGINT, d INT")
    assert found.rows == (("flights", 1),)
    columns = told(found)
    assert columns["id"] == ([("flights", "id")], None)
    assert columns["d"][0] == [("flights", "delay")]
    assert "* 2" in columns["d"][1]
    assert [step.partition(" ")[0] for step in found.steps] == ["read", "keep", "select", "select"]
    assert "delay > 6" in found.steps[1]


def test_of_a_group(spark):
    text = "SELECT max(event_time) AS event_time, carrier, count(*) AS n FROM flights GROUP BY carrier"
    found = origin(spark, text, (at(1), "UA", 1), "carrier STRING, n BIGINT")
    assert found.rows == (("flights", 0),)  # what was retracted is none of it
    columns = told(found)
    assert columns["carrier"] == ([("flights", "carrier")], None)
    assert columns["event_time"][0] == [("flights", "event_time")]
    assert columns["n"] == ([], "count(1)")
    assert "group by flights.carrier" in found.steps
    text = "SELECT max(event_time) AS event_time, count(*) AS n FROM flights"
    assert origin(spark, text, (at(2), 2), "n BIGINT").rows == (("flights", 0), ("flights", 1))


@pytest.mark.slow
def test_of_a_join(spark):
    text = "SELECT f.event_time, f.id, p.model FROM flights f LEFT JOIN planes p ON f.id = p.id"
    found = origin(spark, text, (at(1), 1, "A320"), "id BIGINT, model STRING")
    assert found.rows == (("flights", 0), ("planes", 0))
    assert told(found)["model"] == ([("planes", "model")], None)
    assert "left outer join on (f.id = p.id)" in found.steps
    assert origin(spark, text, (at(2), 2, None), "id BIGINT, model STRING").rows == (("flights", 1),)


@pytest.mark.slow
def test_of_a_union_of_distinct_rows_and_of_a_table_that_is_used_twice(spark):
    text = (
        "WITH f AS (SELECT event_time, id FROM flights) "
        "SELECT DISTINCT a.event_time, a.id FROM f AS a JOIN f AS b ON a.id = b.id "
        "UNION ALL SELECT event_time, id FROM planes"
    )
    assert origin(spark, text, (at(1), 1), "id BIGINT").rows == (("flights", 0),)
    found = origin(spark, text, (at(0), 9), "id BIGINT")
    assert found.rows == (("planes", 1),)
    assert told(found)["id"] == ([("flights", "id"), ("planes", "id")], None)


def test_a_row_that_is_not_in_the_result_has_no_origin(spark):
    text = "SELECT event_time, id FROM flights"
    assert origin(spark, text, (at(1), 77), "id BIGINT").rows == ()


@pytest.mark.parametrize(
    ("text", "through"),
    [
        ("SELECT event_time, lag(id) OVER (ORDER BY id) AS id FROM flights", "Window"),
        ("SELECT event_time, id FROM flights EXCEPT SELECT event_time, id FROM planes", "Except"),
        ("SELECT event_time, id FROM flights INTERSECT SELECT event_time, id FROM planes", "Intersect"),
        ("SELECT event_time, id FROM flights LEFT SEMI JOIN planes USING (id)", "a semi join"),
        ("SELECT event_time, id FROM flights WHERE id IN (SELECT id FROM planes)", "a subquery"),
        ("SELECT event_time, id FROM flights f WHERE EXISTS (SELECT 1 FROM planes p WHERE p.id = f.id)", "a subquery"),
        ("SELECT event_time, (SELECT max(id) FROM planes) AS id FROM flights", "a subquery"),
        ("SELECT event_time, id FROM flights ORDER BY id LIMIT 1 OFFSET 1", "Offset"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(spark, text, through):
    with pytest.raises(UnsupportedFeature, match=f"through {through}, of which"):
        origin(spark, text, (at(1), 1), "id BIGINT")


FOLLOWED = {
    "filter": "SELECT event_time, id, delay FROM flights WHERE delay > 5",
    "join": "SELECT f.event_time, f.id, p.model FROM flights f LEFT JOIN planes p ON f.id = p.id",
    "anti join": "SELECT f.event_time, f.id FROM flights f LEFT ANTI JOIN planes p ON f.id = p.id",
    "self join": "SELECT a.event_time, a.id, b.id AS other FROM flights a JOIN flights b ON a.carrier = b.carrier",
    "group": "SELECT max(event_time) AS event_time, carrier, count(*) AS n FROM flights GROUP BY carrier",
    "having": """
        SELECT max(f.event_time) AS event_time, model, count(*) AS n, sum(delay) AS s
        FROM flights f JOIN planes p ON f.id = p.id WHERE delay < 9 GROUP BY model HAVING count(*) > 1
    """,
    "distinct union": "SELECT DISTINCT event_time, id FROM (SELECT * FROM flights UNION ALL SELECT * FROM flights)",
    "explode": "SELECT event_time, id, x FROM flights LATERAL VIEW explode(sequence(1, id)) AS x",
    "groups of groups": """
        SELECT max(event_time) AS event_time, n, count(*) AS m
        FROM (SELECT max(event_time) AS event_time, carrier, count(*) AS n FROM flights GROUP BY carrier) GROUP BY n
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWED)
def test_of_the_rows_that_a_row_was_made_of_alone_it_is_made_again_and_without_any_of_them_it_is_not(spark, name):
    chance, text = random.Random(name), FOLLOWED[name]
    carriers = ["UA", "AA", None]

    def drawn():
        flights = [(A, at(n), chance.randint(1, 3), chance.choice(carriers), chance.randint(4, 9)) for n in range(4)]
        planes = [(A, at(n), n + 1, chance.choice("ab")) for n in range(2)]
        found = {
            "flights": History("id BIGINT, carrier STRING, delay INT", flights),
            "planes": History("id BIGINT, model STRING", planes),
        }
        return {each: history for each, history in found.items() if each in text}

    def result(kept):
        parts = {
            each: History(one.data, [row for offset, row in enumerate(one.events) if (each, offset) in kept])
            for each, one in inputs.items()
        }
        return [row[1:] for row in run(spark, query, parts, History("…"))]

    rows = []
    while not rows:
        inputs = drawn()
        query = TransformQuery(tuple(inputs), (QueryStep(text),))
        everything = {(each, offset) for each, one in inputs.items() for offset in range(len(one.events))}
        rows = result(everything)
    given = {each: InputHistory(history.frame(spark), EventColumns()) for each, history in inputs.items()}
    schema = Transform(spark, query, given, EventColumns()).schema
    for row in chance.sample(sorted(set(rows), key=repr), min(2, len(set(rows)))):
        asked = spark.createDataFrame([row], f"event_time TIMESTAMP, {data_of(schema)}")
        why = set(row_origin(spark, query, given, EventColumns(), asked).rows)
        assert why
        if name != "distinct union":
            assert Counter(result(why))[row] == rows.count(row)
        for one in why if rows.count(row) == 1 else ():
            assert row not in result(why - {one})
            assert row not in result(everything - {one})


def data_of(schema):
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in schema if one.name != "event_time")
