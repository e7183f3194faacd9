"""Which queries may be a SQL transform's: those that have one result, whoever runs them, and whenever."""

import pytest

from dagster_versioned.engines.spark.releases import release
from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.spark.query import analyse, query_session
from dagster_versioned.odf.spark.transform import Transform
from dagster_versioned.odf.transform_query import QueryKind, QueryStep, TransformQuery
from dagster_versioned.tables.event_history import EventColumns
from support.transforms import empty_history

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def own(spark):
    """A session of transforms that sees two inputs, in the session of a user who has other things besides."""
    spark.sql("SELECT 1 AS secret").createOrReplaceTempView("elsewhere")
    spark.sql("SELECT 1L AS id").createOrReplaceGlobalTempView("everywhere")
    for name in ("kept", "flights"):
        spark.sql(f"CREATE OR REPLACE VIEW default.{name} AS SELECT 1L AS id")
    spark.udf.register("shout", lambda text: text.upper())
    session = query_session(spark)
    for name in ("flights", "planes"):
        session.sql(
            "SELECT current_timestamp() AS event_time, 1L AS id, 'x' AS name, 1.5D AS delay, 2.50 AS price"
        ).limit(0).createOrReplaceTempView(name)
    yield session
    spark.catalog.dropTempView("elsewhere")
    spark.catalog.dropGlobalTempView("everywhere")
    for name in ("kept", "flights"):
        spark.sql(f"DROP VIEW default.{name}")


def analysed(own, *queries):
    steps = [text if isinstance(text, tuple) else (None, text) for text in queries]
    return analyse(own, TransformQuery(("flights", "planes"), tuple(QueryStep(text, alias) for alias, text in steps)))


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT *, rand() AS r FROM flights", r"rand\(\)"),
        ("SELECT * FROM flights WHERE randn(3) > 0", r"randn\(\)"),
        ("SELECT uuid() AS u FROM flights", r"uuid\(\)"),
        ("SELECT current_timestamp() AS event_time FROM flights", r"current_timestamp\(\)"),
        ("SELECT now() AS event_time FROM flights", r"now\(\)"),
        ("SELECT id FROM flights WHERE date(event_time) < current_date", r"current_date\(\)"),
        ("SELECT unix_timestamp() AS u FROM flights", r"current_timestamp\(\)"),
        ("SELECT timestamp'now' AS t FROM flights", "timestamp'now'"),
        ("SELECT * FROM flights WHERE event_time < DATE 'today'", "DATE'today'"),
        ("SELECT cast('yesterday' AS date) AS d FROM flights", r"cast\('yesterday' AS date\)"),
        ("SELECT cast(concat('no', 'w') AS timestamp) AS d FROM flights", r"cast\('concat' AS timestamp\)"),
        ("SELECT to_timestamp('now') AS d FROM flights", r"cast\('now' AS timestamp\)"),
        ("SELECT to_date(' TODAY ') AS d FROM flights", r"cast\(' TODAY ' AS date\)"),
        ("SELECT try_to_timestamp('now') AS d FROM flights", r"cast\('now' AS timestamp\)"),
        ("SELECT try_to_date('now') AS d FROM flights", r"cast\('now' AS date\)"),
        ("SELECT to_timestamp_ntz('now') AS d FROM flights", r"cast\('now' AS timestamp_ntz\)"),
        ("SELECT id FROM flights WHERE event_time < 'now'", r"cast\('now' AS timestamp\)"),
        (r"SELECT timestamp'no\w' AS t FROM flights", "timestamp'no.?w'"),
        (r"SELECT timestamp'n\u006fw' AS t FROM flights", "timestamp'n"),
        (r"SELECT timestamp 'n\157w' AS t FROM flights", "timestamp'n"),
        (r"SELECT r'\', timestamp r'now' AS t, '\'' FROM flights", "timestamp'now'"),
        ("SELECT x FROM flights, (VALUES (version())) AS v(x)", r"version\(\)"),
        ("SELECT x FROM flights, (VALUES (current_user())) AS v(x)", r"current_user\(\)"),
        ("SELECT x FROM flights, (VALUES (aes_encrypt('a', '0000111122223333'))) AS v(x)", r"aes_encrypt\(\)"),
        ("SELECT current_path() AS p FROM flights", r"current_path\(\)"),
        ("SELECT kll_sketch_agg_bigint(id) AS k FROM flights", r"kll_sketch_agg_bigint\(\)"),
        ("SELECT transform(array(id), x -> x + rand()) AS s FROM flights", r"rand\(\)"),
        ("SELECT id, sum(id) OVER (ORDER BY rand()) AS s FROM flights", r"rand\(\)"),
        ("SELECT event_time, x FROM flights LATERAL VIEW explode(array(rand())) AS x", r"rand\(\)"),
        ("SELECT try_reflect('java.util.UUID', 'randomUUID') AS r FROM flights", "(?:try_reflect|reflection)"),
        ("SELECT current_user() AS u FROM flights", r"current_user\(\)"),
        ("SELECT version() AS v FROM flights", r"version\(\)"),
        ("SELECT monotonically_increasing_id() AS i FROM flights", "monotonically_increasing_id"),
        ("SELECT input_file_name() AS f FROM flights", "input_file_name"),
        ("SELECT reflect('java.util.UUID', 'randomUUID') AS r FROM flights", "call_method_via_reflection"),
        ("SELECT shuffle(array(id)) AS s FROM flights", r"shuffle\(\)"),
        ("SELECT id FROM flights WHERE id IN (SELECT cast(rand() AS bigint) FROM planes)", r"rand\(\)"),
        ("SELECT max(delay + rand()) AS m FROM flights", r"rand\(\)"),
        ("SELECT shout(name) AS n FROM flights", "shout"),
        ("SELECT * FROM elsewhere", "elsewhere"),
        ("SELECT * FROM global_temp.everywhere", "everywhere"),
        ("SELECT * FROM kept", "kept"),
        ("SELECT * FROM default.flights", "flights"),
        ("SELECT id FROM flights WHERE EXISTS (SELECT 1 FROM kept)", "kept"),
        ("SELECT * FROM parquet.`/etc`", "parquet"),
        ("SELECT * FROM flights TABLESAMPLE (10 PERCENT)", "sample"),
        ("SELECT /*+ REPARTITION(3) */ id FROM flights", "repartition"),
        ("SELECT transform(id) USING 'cat' AS (id STRING) FROM flights", "(?:Script|TRANSFORM|script_transformation)"),
        ("SELECT ${env:HOME} FROM flights", "[Ss]yntax"),
        ("SELECT offset FROM flights", "offset"),
        ("DROP TABLE flights", "drop_temp_view_command"),
        ("SET spark.sql.ansi.enabled=false", "set_command"),
        ("BEGIN SELECT 1; END", "script"),
        ("EXECUTE IMMEDIATE 'DROP VIEW planes'", "script"),
        ("SELECT 1; SELECT 2", "[Ss]yntax"),
        ("SELECT nothing FROM flights", "nothing"),
    ],
)
def test_a_query_that_could_have_another_result_is_refused_by_the_expression(own, query, named):
    # What an older Spark does not know is refused as that.
    older = "|(?i:syntax error|cannot resolve (?:function|routine)|sql scripting)" if release() < (4, 1) else ""
    with pytest.raises(InvalidInput, match=rf"is refused: .*(?:{named}{older}).*\. Nothing was run"):
        analysed(own, query)


def test_what_spark_was_started_with_does_not_change_what_a_query_means(spark):
    started_with = spark.sparkContext._jsc.sc().conf()
    started_with.set("spark.sql.legacy.sizeOfNull", "true")
    started_with.set("spark.sql.legacy.setopsPrecedence.enabled", "true")
    try:
        own = query_session(spark)
        assert own.sql("SELECT size(NULL) AS n").collect()[0]["n"] is None
        assert own.conf.get("spark.sql.legacy.setopsPrecedence.enabled") == "false"
    finally:
        started_with.remove("spark.sql.legacy.sizeOfNull")
        started_with.remove("spark.sql.legacy.setopsPrecedence.enabled")


def test_a_query_over_rows_one_by_one_is_known_as_such(own):
    for query in (
        "SELECT * FROM flights",
        "SELECT event_time, upper(name) AS n FROM flights WHERE id > 1 AND event_time > timestamp'2020-01-01'",
        "WITH late AS (SELECT * FROM flights WHERE delay > 1) SELECT id FROM late AS l WHERE name LIKE 'today%'",
        "SELECT event_time, word FROM flights LATERAL VIEW explode(split(name, ' ')) AS word",
        "SELECT 'now' AS text, cast(name AS timestamp) AS t FROM flights",
        "SELECT to_timestamp('2020-01-01', 'yyyy-MM-dd') AS t, to_date(name) AS d FROM flights",
    ):
        assert analysed(own, query).kind is QueryKind.MAP, query
    steps = analysed(own, ("late", "SELECT * FROM flights WHERE delay > 1"), "SELECT id FROM late")
    assert steps.kind is QueryKind.MAP


def test_a_query_over_several_rows_or_inputs_is_known_as_such(own):
    for query in (
        "SELECT DISTINCT id FROM flights",
        "SELECT name, count(*) AS n FROM flights GROUP BY name",
        "SELECT f.id FROM flights f JOIN planes p ON f.id = p.id",
        "SELECT id FROM flights UNION ALL SELECT id FROM planes",
        "SELECT id FROM flights WHERE id IN (SELECT id FROM planes)",
        "SELECT id, lag(id) OVER (ORDER BY id) AS before FROM flights",
    ):
        assert analysed(own, query).kind is QueryKind.WHOLE, query


def test_what_depends_on_the_order_of_rows_is_known(own):
    for query, expected in (
        ("SELECT sum(delay) AS s FROM flights", True),
        ("SELECT avg(id) AS s FROM flights", True),
        ("SELECT first(name) AS s FROM flights", True),
        ("SELECT collect_list(name) AS s FROM flights", True),
        ("SELECT * FROM flights LIMIT 3", True),
        ("SELECT row_number() OVER (ORDER BY id) AS r FROM flights", True),
        ("SELECT max(delay) AS m FROM flights", True),  # of -0.0 and 0.0 either
        *[("SELECT DISTINCT name COLLATE UTF8_LCASE AS n FROM flights", True)] * (release() >= (4, 0)),  # 'a' or 'A'
        ("SELECT sum(id) AS s, count(*) AS n, max(name) AS m, avg(price) AS p, sum(price) AS q FROM flights", False),
        ("SELECT f.id, x FROM flights f, (VALUES (1), (2)) AS v(x)", False),
        ("SELECT f.id FROM flights f JOIN planes p ON f.id = p.id", False),
    ):
        assert analysed(own, query).in_order is expected, query


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT id FROM flights", "no column 'event_time'"),
        ("SELECT event_time, id AS offset FROM flights", "'offset', a column that events are given"),
        ("SELECT event_time, id, name AS ID FROM flights", "two columns of its result are called 'id'"),
        ("SELECT cast(event_time AS string) AS event_time, id FROM flights", "no moment and no date"),
        ("SELECT cast(event_time AS timestamp_ntz) AS event_time, id FROM flights", "no moment and no date"),
    ],
)
def test_a_result_that_is_no_table_of_events_is_refused(spark, query, reason):
    with pytest.raises(InvalidInput, match=reason):
        Transform(
            spark,
            TransformQuery(("flights",), (QueryStep(query),)),
            {"flights": empty_history(spark, "id BIGINT, name STRING")},
            EventColumns(),
        )


@pytest.mark.parametrize(
    ("inputs", "steps", "temporal", "reason"),
    [
        ((), ["SELECT 1"], {}, "no inputs"),
        (("a",), [], {}, "no query"),
        (("a",), [" "], {}, "empty"),
        (("a",), [("x", "SELECT 1")], {}, "each but the last needs an alias"),
        (("a",), ["SELECT 1", "SELECT 2"], {}, "each but the last needs an alias"),
        (("a", "A"), ["SELECT 1"], {}, "'a' names two"),
        (("a",), [("A", "SELECT 1"), "SELECT 2"], {}, "'a' names two"),
        (("a`b",), ["SELECT 1"], {}, "no name of a table"),
        (("a",), ["SELECT 1"], {"b": ("id",)}, "'b' is no input"),
        (("a",), ["SELECT 1"], {"a": ()}, "'a' is without a primary key"),
    ],
)
def test_a_transform_that_cannot_be_is_refused(inputs, steps, temporal, reason):
    told = tuple(QueryStep(*reversed(step)) if isinstance(step, tuple) else QueryStep(step) for step in steps)
    with pytest.raises(InvalidInput, match=reason):
        TransformQuery(inputs, told, temporal)
