"""The same expressions in Spark and over Arrow, on values at the edges: equal, or refused over Arrow."""

import datetime as dt
import math
from collections import defaultdict
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.expression import stored
from dagster_versioned.engines.sql import Names, evaluate
from dagster_versioned.errors import InvalidInput
from support.delta_writes import schema

pytestmark = pytest.mark.spark

SCHEMA = schema(
    *(("i", "integer"), ("j", "integer"), ("n", "long"), ("d", "double"), ("c", "decimal(10,2)"), ("b", "boolean")),
    *(("s", "string"), ("u", "string"), ("day", "date"), ("other", "date"), ("at", "timestamp")),
)
UTC = dt.UTC
ROWS: dict[str, list[Any]] = {
    "i": [1, 0, -1, None, 2**31 - 1, -(2**31), 7, 3],
    "j": [2, 5, -3, 1, 1, -1, 10, None],
    "n": [10, 0, -10, None, 2**62, -(2**62), 7, 255],
    "d": [0.5, -0.0, -2.5, None, 1e300, math.inf, math.nan, 3.0],
    "c": [Decimal("0.05"), Decimal("-0.05"), Decimal("2.50"), None, *map(Decimal, ("99999999.99", "-1.15", "1", "0"))],
    "b": [True, False, None, True, False, True, False, None],
    "s": ["abc", "", "  Ab ", None, "é%_\\", "a\nb", "日本語", "2020-02-29"],
    "u": ["b", "", "A", "x", "%", "\n", "本", None],
    "day": [
        dt.date(2020, 2, 29),
        dt.date(1970, 1, 1),
        dt.date(1969, 12, 31),
        None,
        *map(dt.date.fromisoformat, ("0001-01-01", "9999-12-31", "2021-01-03", "2024-12-30")),
    ],
    "other": [
        dt.date(2020, 3, 31),
        dt.date(1970, 1, 1),
        dt.date(1970, 1, 2),
        dt.date(2000, 1, 1),
        *map(dt.date.fromisoformat, ("0001-01-02", "9999-12-30", "2020-12-27")),
        None,
    ],
    "at": [
        dt.datetime(2020, 2, 29, 23, 59, 59, 999999, UTC),
        dt.datetime(1970, 1, 1, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 500000, UTC),
        None,
        dt.datetime(1, 1, 1, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
        dt.datetime(2021, 1, 3, 12, 30, 15, tzinfo=UTC),
        dt.datetime(2024, 12, 30, 0, 0, 0, 1, UTC),
    ],
}
EXPRESSIONS = r"""
i + j | i - j | i * j | i / j | i div j | i % j | -i | +i | n + i | n * j | d + i | d * d | d / 3 | c + c | c * c
c / 3 | c - i | c % 2 | i % c | d % 2 | i & j | i ^ j | ~i | shiftleft(i, 2) | shiftright(i, 1)
shiftrightunsigned(i, 1) | bit_count(i) | i = j | i < j | i <> j | i <=> j | d = d | d < 1 | d > 1 | d <=> j | c = 1
s = u | s < u | b = true | b and i > 0 | b or i > 0 | not b | day < other | at > day | i in (1, 2, null)
i not in (1, 2) | i between 0 and j | s in ('abc', '') | i is null | i is not null | b is true | b is not false
i is distinct from j | s like 'a%' | s like '%\\_%' | s ilike 'A%' | s not like '%b%' | s rlike '^a' | s rlike 'b$'
s rlike 'a.b' | regexp_like(s, 'B') | regexp(s, '[a-c]+') | startswith(s, u) | endswith(s, u) | contains(s, u)
regexp_replace(s, '[a-c]', 'x') | regexp_extract(s, '(a)(.*)', 2) | regexp_count(s, 'a') | regexp_instr(s, 'b')
regexp_substr(s, 'b.*') | abs(i) | abs(d) | abs(c) | ceil(d) | ceil(c) | floor(d) | floor(c) | round(d) | round(d, 1)
round(c, 1) | round(i, -1) | bround(d) | sign(d) | sign(i) | signum(c) | sqrt(d) | cbrt(d) | exp(d) | ln(d) | log(d)
log(2, d) | log10(d) | log2(d) | log1p(d) | expm1(d) | pow(d, 2) | power(i, 2) | sin(d) | cos(d) | tan(d) | cot(d)
asin(d) | acos(d) | atan(d) | atan2(d, i) | sinh(d) | cosh(d) | tanh(d) | degrees(d) | radians(d) | pi() | e()
hypot(d, i) | greatest(i, j) | least(i, j) | greatest(d, 1) | least(d, 1) | greatest(s, u) | coalesce(i, j, 0)
nullif(i, j) | nvl(i, j) | nvl2(i, j, 0) | ifnull(s, u) | if(b, i, j) | case when b then i else j end
case i when 1 then 'x' end | isnan(d) | nanvl(d, 1) | mod(i, j) | pmod(i, j) | factorial(j)
width_bucket(d, 0, 10, 5) | hex(i) | hex(s) | unhex('4D') | bin(i) | conv(s, 10, 16) | positive(i) | negative(i)
rint(d) | try_add(i, j) | try_divide(i, j) | try_subtract(i, j) | try_multiply(i, j) | concat(s, u) | s || u
concat(s, i) | concat_ws('-', s, u) | length(s) | char_length(s) | octet_length(s) | bit_length(s) | lower(s)
upper(s) | initcap(s) | trim(s) | ltrim(s) | rtrim(s) | trim(both 'a' from s) | btrim(s) | substring(s, 2, 2)
substring(s, j, 2) | substr(s, -2) | left(s, 2) | right(s, 2) | substring_index(s, 'b', 1) | lpad(s, 5, 'x')
rpad(s, 5, 'x') | lpad(s, j, 'xy') | repeat(s, 2) | repeat(s, j) | reverse(s) | replace(s, 'a', 'x')
replace(s, u, 'x') | translate(s, 'ab', 'x') | instr(s, u) | locate(u, s) | locate(u, s, 2) | position(u in s)
find_in_set(u, s) | ascii(s) | chr(j) | char(j + 60) | space(2) | split(s, 'b') | split_part(s, 'b', 1) | soundex(s)
overlay(s placing 'x' from 2) | format_string('%s', s) | format_number(i, 2) | levenshtein(s, u) | elt(1, s, u)
field(s, u) | md5(s) | sha(s) | sha1(s) | sha2(s, 256) | sha2(s, 512) | crc32(s) | hash(s) | xxhash64(s) | base64(s)
unbase64('YQ==') | encode(s, 'utf-8') | decode(encode(s, 'utf-8'), 'utf-8') | url_encode(s) | url_decode(u)
year(day) | month(day) | day(day) | dayofmonth(day) | dayofyear(day) | dayofweek(day) | weekday(day) | weekofyear(day)
quarter(day) | hour(at) | minute(at) | second(at) | year(at) | month(at) | day(at) | quarter(at) | weekofyear(at)
dayofweek(at) | dayofyear(at) | extract(year from day) | extract(week from day) | extract(doy from day)
extract(second from at) | extract(dow from at) | extract(quarter from at) | extract(yearofweek from day)
date_part('month', day) | date_part('second', at) | date_add(day, 3) | date_add(day, j) | date_sub(day, j) | day + 1
day - 1 | day - other | datediff(day, other) | add_months(day, j) | add_months(day, 1) | last_day(day)
next_day(day, 'MON') | months_between(day, other) | make_date(2020, j, 1) | day + interval 1 day
day + interval 1 month | at + interval 1 hour | at - interval 2 days | trunc(day, 'MM') | trunc(day, 'YEAR')
trunc(day, 'Q') | trunc(day, 'WEEK') | date_trunc('DAY', at) | date_trunc('HOUR', at) | date_trunc('MONTH', at)
date_trunc('WEEK', at) | date_trunc('QUARTER', at) | date_trunc('MINUTE', at) | date_format(day, 'yyyy-MM-dd')
date_format(at, 'yyyy-MM-dd HH:mm:ss') | date_format(at, 'yyyyMM') | date_format(day, 'E') | date_format(day, 'MMM')
date_format(day, 'D') | date_format(at, 'SSS') | date_format(day, 'yy') | date_format(day, 'M/d') | to_date(s)
cast(s as date) | try_cast(s as date) | to_date(s, 'yyyy-MM-dd') | cast(day as timestamp) | cast(at as date)
to_date(at) | date(at) | to_timestamp(s) | cast(s as timestamp) | unix_date(day) | date_from_unix_date(j)
unix_timestamp(at) | unix_seconds(at) | unix_millis(at) | unix_micros(at) | from_unixtime(n) | timestamp_seconds(j)
timestamp_millis(j) | timestamp_micros(j) | to_unix_timestamp(at) | from_utc_timestamp(at, 'Europe/Rome')
to_utc_timestamp(at, 'Europe/Rome') | cast(at as long) | cast(at as double) | cast(i as string) | cast(n as string)
cast(c as string) | cast(b as string) | cast(day as string) | cast(at as string) | cast(d as string)
cast(i as double) | cast(c as double) | cast(c as int) | cast(d as long) | cast(b as int) | cast(i as boolean)
cast(i as decimal(5,1)) | cast(d as decimal(10,1)) | cast(s as boolean) | cast(s as double) | cast(i as smallint)
cast(n as int) | cast(s as binary) | cast(i as float) | try_cast(s as int) | try_cast(d as int) | try_cast(c as int)
try_cast(s as boolean) | cast(u as int) | string(i) | int(c) | double(i) | boolean(i) | array(i, j) | array(i, j)[0]
size(array(i, j)) | array_contains(array(i, j), i) | element_at(array(i, j), 1) | array_max(array(i, j))
array_min(array(i, j)) | sort_array(array(i, j)) | array_sort(array(i, j)) | array_join(array(s, u), ',')
array_position(array(i, j), j) | array_remove(array(i, j), 1) | array_union(array(i), array(j))
array_except(array(i), array(j)) | array_append(array(i), j) | array_compact(array(i, j)) | array_repeat(i, 2)
array_size(array(i)) | arrays_overlap(array(i), array(j)) | cardinality(array(i, j)) | concat(array(i), array(j))
flatten(array(array(i), array(j))) | slice(array(i, j), 1, 1) | sequence(1, 3) | reverse(array(i, j))
exists(array(i, j), x -> x > 0) | filter(array(i, j), x -> x > 0) | transform(array(i, j), x -> x + 0)
forall(array(i, j), x -> x > 0) | aggregate(array(i, j), 0, (a, x) -> x) | array_distinct(array(i, j))
map('a', i)['a'] | map_keys(map('a', i)) | map_values(map('a', i)) | element_at(map('a', i), 'b')
named_struct('x', i).x | struct(i, j).col1 | str_to_map(s) | map_contains_key(map('a', i), 'a') | get(array(i, j), 5)
try_element_at(array(i, j), 5) | get_json_object('{"a": 1}', '$.a') | json_array_length('[1]')
to_json(named_struct('x', i)) | typeof(i) | bool_and(b) | equal_null(i, j) | ilike(s, 'A%') | like(s, 'a%') | mask(s)
luhn_check(s) | stack(1, i) | assert_true(true) | randstr(3) | zeroifnull(i) | nullifzero(i) | decode(i, 1, 'x')
sec(d) | csc(d) | getbit(i, 0) | bit_get(i, 0) | is_valid_utf8(s) | quote(s) | sentences(s) | uniform(1, 2)
monthname(day) | dayname(day) | date_diff(day, other) | dateadd(day, 1) | dateadd(MONTH, 1, day)
timestampadd(DAY, 1, at) | window(at, '1 day') | charindex(u, s) | lcase(s) | ucase(s) | len(s) | character_length(s)
current_timezone() | version() | array_contains(array(i, j), 99) | array_contains(array(s, u), 'b') | size(array())
array(i, j)[1] | array_max(array(d, 1)) | array_min(array(d, 1)) | array_max(array(s, u))
transform(array(i, j), x -> x + 1) | filter(array(s, u), x -> x = 'b') | map_keys(map(s, i)) | map('a', i)[s]
s rlike 'b\n$' | s rlike 'c$' | concat(s, chr(10)) rlike 'c$' | s rlike '^.b' | s rlike '[^a]' | s rlike 'a|é'
s rlike '\\d+' | s rlike '\\w' | s rlike '[\\d-]' | s rlike 'a{1,2}' | s rlike '(ab)+c?' | s rlike '\\.'
s rlike '[.$]' | s rlike '' | s rlike '本.語' | upper(d) | md5(d) | length(d) | length(i) | trim(d) | left(d, 2)
left(i, 2) | substring(d, 1, 2) | substring(i, 1, 2) | d like '1%' | i like '1%' | replace(d, '1', '2') | concat(s, d)
concat(s, b) | concat(s, at) | concat(s, day) | concat(s, c) | concat(i, j) | s || d | s || i | s || at
concat_ws('-', s, d) | concat_ws('-', s, i) | hex(d) | reverse(i) | ascii(i) | repeat(i, 2) | lpad(i, 3, '0')
startswith(i, '1') | sha2(i, 256) | bit_length(i) | translate(i, '1', '2') | md5(u) | greatest(s, i) | greatest(i, d)
greatest(c, d) | greatest(day, at) | coalesce(s, d) | coalesce(i, d) | coalesce(c, i) | coalesce(day, at)
nullif(s, d) | if(b, s, d) | if(b, i, d) | if(b, s, i) | case when b then day else at end | s = d | s = i | s > i
day = s | at = s | day > at | day = at | b = i | b = s | i in ('1', 'x') | i in (1.0, 7) | d in (1, 3)
i between 0.5 and 2 | c between 0.05 and d | c = d | i = d | n = d | s in (1, 2)
day between '2020-01-01' and '2021-01-03' | at > '2020-01-01' | at between day and other | i + '1' | i + s | '2' * i
d + '1' | -s | abs(s) | i + b | d % 0.3 | c % d | n / i | n div i | c div 2 | d div 2 | n % 7 | -n | i * 2.5
c + 0.001 | c * 1.005 | n * 1.5 | chr(i) | chr(j + 250) | char(j + 100) | space(j) | left(s, j) | right(s, j)
substring(s, 0) | substring(s, -5, 3) | substring(s, 2) | substr(s, i, j) | instr(s, '') | position('' in s)
replace(s, '', 'x') | contains(s, '') | trim('x' from s) | trim(leading 'a' from s) | trim(trailing 'c' from s)
rtrim('c', s) | lpad(s, 2, 'x') | lpad(s, 8, '') | rpad(s, 8) | lpad(s, 8) | cast(' 12 ' as int) | cast('1_0' as int)
cast('1_0' as double) | cast('1e2' as double) | cast('inf' as double) | cast('Infinity' as float)
cast('0x10' as int) | cast('epoch' as date) | cast('2020-1-5' as date) | cast(' 2020-01-05 ' as date)
cast('2020-01-05 10:00:00' as timestamp) | cast('2020-01-05T10:00:00.5' as timestamp)
cast('2020-01-05' as timestamp) | cast('infinity' as timestamp) | cast('TRUE' as boolean) | cast('yes' as boolean)
cast('2020-01-05 10:00:00' as date) | cast('1.5' as decimal(5,1)) | cast(1.25 as decimal(5,1)) | cast(i as date)
cast(day as int) | cast(b as double) | cast(d as boolean) | cast(d as float) | cast(n as float) | cast(n as double)
cast(c as float) | cast(c as boolean) | cast(c as decimal(5,1)) | cast(c as bigint) | cast(d as smallint)
cast(true as string) | cast(s as int) | cast(u as boolean) | try_cast(u as double) | try_cast(s as timestamp)
try_cast(i as tinyint) | try_cast(d as decimal(5,1)) | cast(at as timestamp_ntz) | cast(s as string) | round(c)
round(c, 0) | round(i) | round(i, 2) | ceil(i) | floor(i) | ceil(n) | abs(n) | abs(-d) | sign(c) | sqrt(i) | sqrt(c)
sqrt(abs(d)) | greatest(d, -d) | isnan(i) | d = double('NaN') | d > double('NaN') | d in (double('NaN'))
d <=> double('NaN') | nullif(d, double('NaN')) | d between 0 and double('NaN') | -d = d | d = -0.0
add_months(day, 12) | add_months(day, -1) | add_months(at, 1) | date_add(at, 1) | date_add(other, -1)
date_sub(other, 1) | day + interval '1' day | day - interval 1 month | day + interval 1 year | day + interval 1 hour
other + interval 3 months | at + interval 1 month | at + interval 1 day | at - interval 90 seconds
at + interval '1 2' day to hour | last_day(other) | last_day(at) | datediff(at, day) | datediff(other, at)
trunc(other, 'MM') | trunc(other, 'MON') | trunc(at, 'MONTH') | trunc(other, 'yy') | date_trunc('YEAR', other)
date_trunc('SECOND', at) | date_trunc('month', at) | date_trunc('DAY', other) | weekofyear(other)
extract(week from other) | extract(day from at) | extract(minute from at) | extract(hour from at)
extract(month from other) | extract(dayofweek from other) | dayofweek(other) | quarter(other) | unix_date(other)
date_format(other, 'yyyy') | date_format(at, 'yyyy/MM/dd') | date_format(at, 'HH:mm')
date_format(other, 'dd.MM.yyyy') | timestampadd(MONTH, 1, at) | timestampadd(HOUR, -1, at) | dateadd(day, -1)
at = timestamp'2020-02-29T23:59:59.999999Z' | at > timestamp'1970-01-01 01:00:00+01:00'
at = to_timestamp('1970-01-01T00:00')
at < timestamp'2021-01-03 13:30:15 Europe/Paris' | at = cast('1970-01-01 00:00:00 UTC' as timestamp)
to_timestamp(concat(date_format(day, 'yyyy-MM-dd'), 'T01:30:00+05:30')) | timestamp(concat(day, ' 02:00'))
to_timestamp(date_format(at, 'yyyyMMddHHmmss'), 'yyyyMMddHHmmss')
to_date(date_format(day, 'dd/MM/yyyy'), 'dd/MM/yyyy') | to_date(cast(day as string))
to_timestamp('2020 12', 'yyyy HH') = at | to_timestamp(concat(s, '2020'), 'yyyy') | to_date('0000-01', 'yyyy-MM')
dateadd(DAY, 1, other) | to_date(other) | date(s) | timestamp(s) | hour(day) | current_date() > day
"""
"""Separated by lines and `` | ``."""

FEWEST = 250
"""At least so many of them have values over Arrow; the others are refused."""


def expressions() -> list[str]:
    return list(dict.fromkeys(text for line in EXPRESSIONS.strip().splitlines() for text in line.split(" | ")))


def plain(column: Any) -> list[Any]:
    """Values that can be compared: days and microseconds, since Python has not all of them as dates."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return [("nan" if isinstance(value, float) and math.isnan(value) else value) for value in column.to_pylist()]


def over_arrow(rows: pa.Table) -> dict[str, dict[int, Any]]:
    """By expression, its value in the rows in which it has one."""
    names = Names({"target": SCHEMA})
    found: dict[str, dict[int, Any]] = {}
    for text in expressions():
        try:
            resolved = names.resolve(text)
        except InvalidInput:
            continue
        try:
            found[text] = dict(enumerate(plain(evaluate(rows, {"v": (resolved, None)})["v"])))
        except InvalidInput:  # in some of the rows, perhaps
            found[text] = {}
            for i in range(rows.num_rows):
                with suppress(InvalidInput):
                    found[text][i] = plain(evaluate(rows.slice(i, 1), {"v": (resolved, None)})["v"])[0]
    return {text: values for text, values in found.items() if values}


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_values_are_those_of_spark(spark, every):
    types = schema_to_arrow(SCHEMA)
    table = pa.table({name: pa.array(values, types.field(name).type) for name, values in ROWS.items()})
    ours = over_arrow(table.rename_columns([stored("target", name) for name in table.column_names]))
    assert len(ours) > FEWEST
    ours = dict(islice(ours.items(), 0, None, every))
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for text, values in ours.items():
        groups[tuple(values)].append(text)
    different: dict[str, Any] = {}
    for rows, texts in groups.items():
        frame = spark.createDataFrame(table.take(pa.array(rows)).combine_chunks()).coalesce(1)
        for text, theirs in in_spark(frame, texts).items():
            mine = list(ours[text].values())
            if theirs is not None and theirs != mine:
                different[text] = {"ours": mine, "Spark's": theirs}
    assert not different, "\n".join(f"{text}: {values}" for text, values in different.items())


def in_spark(frame: Any, texts: list[str]) -> dict[str, Any]:
    """The values of each expression, or its error; ``None`` where Spark says from the types alone that it has none."""
    from pyspark.errors import AnalysisException, PySparkException

    try:
        result = frame.selectExpr(*(f"{text} AS c{i}" for i, text in enumerate(texts))).toArrow()
    except PySparkException as error:
        if len(texts) == 1:
            return {texts[0]: None if isinstance(error, AnalysisException) else str(error).partition("\n")[0]}
        half = len(texts) // 2
        return in_spark(frame, texts[:half]) | in_spark(frame, texts[half:])
    return {text: plain(result.column(i).combine_chunks()) for i, text in enumerate(texts)}
