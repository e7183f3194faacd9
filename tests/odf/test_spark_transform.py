"""What a SQL transform appends to its output, run by run."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as sf

from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.odf.spark.query import query_session
from dagster_versioned.odf.spark.transform import Transform
from dagster_versioned.odf.transform_query import InputHistory, QueryStep, TransformQuery
from dagster_versioned.tables.event_history import EventColumns
from support.transforms import History, at, run

pytestmark = pytest.mark.spark

A, R, FROM, TO = Operation


def query(*texts, inputs=("flights",), **temporal):
    *named, last = texts
    steps = [QueryStep(text, alias) for alias, text in named]
    return TransformQuery(inputs, (*steps, QueryStep(last)), temporal)


def flights(*events):
    return History("id BIGINT, carrier STRING, delay INT", list(events))


def test_a_query_over_single_rows_carries_through_what_events_do(spark):
    source = flights((A, at(1), 1, "UA", 5), (A, at(2), 2, "AA", 7), (R, at(2), 2, "AA", 7))
    output = History("id BIGINT, late BOOLEAN")
    found = run(spark, query("SELECT event_time, id, delay > 6 AS late FROM flights"), {"flights": source}, output)
    assert found == [(A, at(1), 1, False), (A, at(2), 2, True), (R, at(2), 2, True)]


def test_it_sees_new_events_only(spark):
    source = flights((A, at(1), 1, "UA", 5))
    output = History("id BIGINT")
    text = query("SELECT event_time, id FROM flights")
    run(spark, text, {"flights": source}, output)
    source.events.append((A, at(0), 2, "UA", 5))
    assert run(spark, text, {"flights": source}, output, since={"flights": 1}) == [(A, at(0), 2)]
    assert run(spark, text, {"flights": source}, output, since={"flights": 2}) == []


def test_a_correction_is_carried_through_as_far_as_both_of_its_sides_are(spark):
    source = flights(
        *((FROM, at(1), 1, "UA", 5), (TO, at(1), 1, "UA", 9)),  # what is selected differs
        *((FROM, at(2), 2, "UA", 9), (TO, at(2), 2, "AA", 9)),  # what is selected is the same
        *((FROM, at(3), 3, "UA", 1), (TO, at(3), 3, "UA", 9)),  # comes in
        *((FROM, at(4), 4, "UA", 9), (TO, at(4), 4, "UA", 1)),  # goes out
    )
    text = query("WITH some AS (SELECT * FROM flights) SELECT event_time, id, delay FROM some WHERE delay > 4")
    output = History("id BIGINT, delay INT", [(A, at(1), 1, 5), (A, at(2), 2, 9), (A, at(4), 4, 9)])
    assert run(spark, text, {"flights": source}, output) == [
        *((FROM, at(1), 1, 5), (TO, at(1), 1, 9)),
        (A, at(3), 3, 9),
        (R, at(4), 4, 9),
    ]


def test_a_row_may_become_several(spark):
    source = flights((A, at(1), 1, "b a", 5), (FROM, at(1), 1, "b a", 5), (TO, at(1), 1, "c", 5))
    text = query("SELECT event_time, word FROM flights LATERAL VIEW explode(split(carrier, ' ')) AS word")
    found = run(spark, text, {"flights": source}, History("word STRING"))
    assert found == [(A, at(1), "a"), (A, at(1), "b"), (R, at(1), "a"), (R, at(1), "b"), (A, at(1), "c")]


@pytest.mark.slow
def test_a_group_that_changes_is_retracted_and_appended_and_others_stay(spark):
    source = flights((A, at(1), 1, "UA", 5), (A, at(2), 2, "AA", 7))
    output = History("carrier STRING, n BIGINT")
    text = query("SELECT max(event_time) AS event_time, carrier, count(*) AS n FROM flights GROUP BY carrier")
    assert run(spark, text, {"flights": source}, output) == [(A, at(1), "UA", 1), (A, at(2), "AA", 1)]
    source.events.append((A, at(0), 3, "UA", 1))
    found = run(spark, text, {"flights": source}, output, since={"flights": 2})
    assert found == [(R, at(1), "UA", 1), (A, at(1), "UA", 2)]
    source.events += [(R, at(2), 2, "AA", 7)]
    assert run(spark, text, {"flights": source}, output, since={"flights": 3}) == [(R, at(2), "AA", 1)]
    assert run(spark, text, {"flights": source}, output, since={"flights": 4}) == []


PLAIN = "SELECT max(event_time) AS event_time, carrier, count(*) AS n FROM flights GROUP BY carrier"
NESTED = """
    SELECT event_time, carrier, n FROM (
      SELECT max(event_time) AS event_time, upper(carrier) AS carrier, count(*) AS n FROM flights WHERE delay > 0
      GROUP BY 2 HAVING count(*) > 0
    )
"""
BY_ANOTHER = PLAIN.replace(" carrier,", " upper(carrier) AS carrier,")
BY_ALL = f"{PLAIN} HAVING count(*) <= (SELECT count(*) FROM flights)"


@pytest.mark.parametrize(("text", "narrow"), [(PLAIN, True), (NESTED, True), (BY_ANOTHER, False), (BY_ALL, False)])
def test_only_groups_with_new_events_are_computed_where_the_result_names_them(spark, text, narrow):
    """What was said of the others is not looked at: here, of one that was never there."""
    source = flights((A, at(1), 1, "UA", 5), (A, at(2), 2, "AA", 7))
    said = [(A, at(1), "UA", 1), (A, at(2), "ZZ", 7)]
    source.events.append((A, at(3), 3, "UA", 1))
    output = History("carrier STRING, n BIGINT", said)
    found = run(spark, query(text), {"flights": source}, output, since={"flights": 2})
    assert ((R, at(2), "ZZ", 7) not in found) is narrow
    assert {(R, at(1), "UA", 1), (A, at(3), "UA", 2)} <= set(found)


@pytest.mark.slow
def test_late_rows_of_either_side_of_a_join_come_out(spark):
    planes = History("id BIGINT, model STRING", [(A, at(0), 1, "A320")])
    source = flights((A, at(1), 1, "UA", 5), (A, at(1), 2, "UA", 6))
    inputs, output = {"flights": source, "planes": planes}, History("id BIGINT, model STRING")
    text = query(
        "SELECT f.event_time, f.id, p.model FROM flights f LEFT JOIN planes p ON f.id = p.id", inputs=tuple(inputs)
    )
    assert run(spark, text, inputs, output) == [(A, at(1), 1, "A320"), (A, at(1), 2, None)]
    planes.events.append((A, at(9), 2, "B747"))
    assert run(spark, text, inputs, output) == [(R, at(1), 2, None), (A, at(1), 2, "B747")]


@pytest.mark.slow
def test_equal_rows_are_counted(spark):
    source = flights(*[(A, at(1), 1, "UA", 5)] * 3)
    output = History("carrier STRING")
    text = query("SELECT event_time, carrier FROM flights UNION ALL SELECT event_time, carrier FROM flights")
    assert run(spark, text, {"flights": source}, output) == [(A, at(1), "UA")] * 6
    source.events.append((R, at(1), 1, "UA", 5))
    assert run(spark, text, {"flights": source}, output) == [(R, at(1), "UA")] * 2


@pytest.mark.slow
def test_steps_see_the_results_of_those_before(spark):
    source = flights((A, at(1), 1, "UA", 5), (A, at(2), 2, "AA", 9))
    text = query(
        ("late", "SELECT * FROM flights WHERE delay > 6"), ("names", "SELECT event_time, carrier FROM late"),
        "SELECT event_time, lower(carrier) AS c FROM names",
    )  # fmt: skip
    assert run(spark, text, {"flights": source}, History("c STRING")) == [(A, at(2), "aa")]


@pytest.mark.slow
def test_a_temporal_table_gives_the_version_of_the_time_and_late_versions_correct(spark):
    rates = History("code STRING, rate INT", [(A, at(0), "EUR", 10), (A, at(10), "EUR", 20), (A, at(0), "USD", 1)])
    sales = History("code STRING, n INT", [(A, at(5), "EUR", 1), (A, at(15), "EUR", 2)])
    inputs, output = {"sales": sales, "rates": rates}, History("n INT, value INT")
    text = query(
        "SELECT s.event_time, n, n * rate AS value FROM sales s JOIN rates r ON s.code = r.code "
        "AND s.event_time >= r.valid_from AND (r.valid_to IS NULL OR s.event_time < r.valid_to)",
        inputs=tuple(inputs),
        rates=("code",),
    )
    assert run(spark, text, inputs, output) == [(A, at(5), 1, 10), (A, at(15), 2, 40)]
    rates.events.append((A, at(12), "EUR", 30))
    assert run(spark, text, inputs, output) == [(R, at(15), 2, 40), (A, at(15), 2, 60)]
    rates.events.append((R, at(12), "EUR", 30))
    assert run(spark, text, inputs, output) == [(R, at(15), 2, 60), (A, at(15), 2, 40)]


@pytest.mark.slow
def test_sums_of_floats_are_the_same_in_any_run(spark):
    tenths = [(A, at(n), n, "UA", n) for n in range(200)]
    text = query("SELECT max(event_time) AS event_time, carrier, sum(delay / 10D) AS s FROM flights GROUP BY carrier")
    one, two = History("carrier STRING, s DOUBLE"), History("carrier STRING, s DOUBLE")
    run(spark, text, {"flights": flights(*tenths)}, one)
    run(spark, text, {"flights": flights(*tenths)}, two, until={"flights": 77})
    run(spark, text, {"flights": flights(*tenths)}, two)
    assert one.rows() == two.rows()
    assert run(spark, text, {"flights": flights(*tenths)}, one) == []


def test_rows_that_are_joined_are_in_the_order_of_their_offsets_however_they_are_stored(spark):
    inputs = {
        "flights": flights(*((A, at(n), 1, f"carrier {n}", 5) for n in range(9))),
        "planes": History("id BIGINT, model STRING", [(A, at(0), 1, "A320")]),
    }
    text = query(
        "SELECT max(f.event_time) AS event_time, first(f.carrier) AS c, collect_list(f.carrier) AS all "
        "FROM flights f JOIN planes p ON f.id = p.id",
        inputs=tuple(inputs),
    )
    for stored in (sf.col("offset").asc(), sf.col("offset").desc()):
        given = {
            name: InputHistory(history.frame(spark).orderBy(stored), EventColumns()) for name, history in inputs.items()
        }
        rows = Transform(spark, text, given, EventColumns()).rows(["c", "all"])
        assert rows.select("c0", "c1").collect() == [("carrier 0", [f"carrier {n}" for n in range(9)])]


def test_a_changed_query_corrects_what_the_old_one_said(spark):
    source, output = flights((A, at(1), 1, "UA", 5), (A, at(2), 2, "AA", 9)), History("id BIGINT")
    run(spark, query("SELECT event_time, id FROM flights"), {"flights": source}, output)
    output.data = "id BIGINT, delay INT"
    output.events = [(*event, None) for event in output.events]
    changed = query("SELECT event_time, id, delay FROM flights WHERE delay > 6")
    found = run(spark, changed, {"flights": source}, output, since={"flights": 2}, compare=True)
    assert found == [(R, at(1), 1, None), (R, at(2), 2, None), (A, at(2), 2, 9)]


# --- any run is the same as all at once ------------------------------------------------------------------------------

QUERIES = {
    "map": "SELECT event_time, id, delay * 2 AS d FROM flights WHERE delay > 1",
    "explode": "SELECT event_time, id, x FROM flights LATERAL VIEW explode(sequence(1, delay)) AS x WHERE delay > 0",
    "group": "SELECT max(event_time) AS event_time, carrier, count(*) AS n, sum(delay) AS s FROM flights GROUP BY carrier",  # noqa: E501
    "floats": "SELECT max(event_time) AS event_time, carrier, avg(delay / 7D) AS s FROM flights GROUP BY carrier",
    "window": "SELECT window(event_time, '2 minutes').start AS event_time, count(*) AS n FROM flights GROUP BY window(event_time, '2 minutes')",  # noqa: E501
    "join": "SELECT f.event_time, f.id, p.model FROM flights f LEFT JOIN planes p ON f.id = p.id",
    "union": "SELECT event_time, id FROM flights UNION ALL SELECT event_time, id FROM planes",
    "subquery": "SELECT event_time, id FROM flights WHERE id NOT IN (SELECT id FROM planes)",
}


@st.composite
def histories(draw, row):
    """Events of which each takes back, or corrects, a row that is there."""
    events, held = [], []
    for _ in range(draw(st.integers(0, 8))):
        new = draw(row)
        what = draw(st.sampled_from((A, A, R, FROM))) if held else A
        if what is A:
            events.append((A, *new))
        else:
            old = held.pop(draw(st.integers(0, len(held) - 1)))
            events += [(R, *old)] if what is R else [(FROM, *old), (TO, *new)]
        if what is not R:
            held.append(new)
    return events


times, ids = st.integers(0, 5).map(at), st.integers(1, 3)


def boundaries(events):
    """Where a run may end: never within a correction, which is of one block."""
    return [n for n in range(len(events) + 1) if n == len(events) or events[n][0] is not TO]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", QUERIES)
@settings(max_examples=8)
@given(data=st.data())
def test_runs_over_any_parts_of_the_inputs_come_to_what_one_over_all_of_them_gives(spark, name, data):
    parts_are_one_whole(spark, name, data)


def parts_are_one_whole(spark, name, data):
    carriers, delays = st.sampled_from(("UA", "AA", None)), st.integers(0, 3)
    inputs = {
        "flights": flights(*data.draw(histories(st.tuples(times, ids, carriers, delays)))),
        "planes": History("id BIGINT, model STRING", data.draw(histories(st.tuples(times, ids, st.just("A320"))))),
    }
    names = ("flights", "planes") if "planes" in QUERIES[name] else ("flights",)
    text, inputs = query(QUERIES[name], inputs=names), {each: inputs[each] for each in names}
    ends = {each: boundaries(history.events) for each, history in inputs.items()}
    split = {each: sorted(data.draw(st.lists(st.sampled_from(ends[each]), max_size=2))) for each in names}
    output, since = History("…"), dict.fromkeys(names, 0)
    for part in range(3):
        until = {each: (*split[each], *[ends[each][-1]] * 3)[part] for each in names}
        output.data = columns_of(spark, text, inputs)
        run(spark, text, inputs, output, since, until)
        since = until
    assert to_digits(output.rows()) == to_digits(at_once(spark, QUERIES[name], inputs))


def to_digits(rows):
    """The rows, their floats to 12 digits: Spark alone adds them in an order of its own."""
    short = (
        tuple(float(f"{value:.12g}") if isinstance(value, float) else value for value in row) for row in rows.elements()
    )
    return Counter(short)


def at_once(spark, text, inputs):
    """The query over what its inputs come to, by Spark alone."""
    own = query_session(spark)
    for name, history in inputs.items():
        schema = f"event_time TIMESTAMP, {history.data}"
        own.createDataFrame(list(history.rows().elements()), schema).createOrReplaceTempView(name)
    return Counter(tuple(row.values()) for row in own.sql(text).toArrow().to_pylist())


def columns_of(spark, query, inputs):
    """The columns of a query's result but its event time, as in SQL."""
    own = query_session(spark)
    for name, history in inputs.items():
        own.createDataFrame([], f"event_time TIMESTAMP, {history.data}").createOrReplaceTempView(name)
    fields = own.sql(query.steps[-1].query).schema.fields
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in fields if one.name != "event_time")
