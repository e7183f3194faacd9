"""What a source's file says becomes rows of the declared types, or an error says where it does not."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.data_schema import (
    DataField,
    DataSchema,
    DataTypeDecimal,
    DataTypeInt64,
    DataTypeOption,
    DataTypeTime,
    DataTypeTimestamp,
    DataTypeUInt8,
    TimeUnit,
)
from dagster_versioned.odf.blocks.events import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from dagster_versioned.odf.ingest.columns import declared_schema
from dagster_versioned.odf.ingest.fetch import SourceFile
from dagster_versioned.odf.ingest.read import read

TWO = ("id BIGINT NOT NULL", "name STRING")
CSV = ReadStepCsv(ddl_schema=TWO, header=True)
ND_JSON = ReadStepNdJson(ddl_schema=(*TWO, "at TIMESTAMP(3)", "price DECIMAL(5,2)"))
JSON = ReadStepJson(ddl_schema=TWO, sub_path="a.b")


@pytest.fixture
def parse(tmp_path: Path):
    def parse(data: str | bytes, step: ReadStep) -> pa.Table:
        path = tmp_path / "file"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return read(SourceFile("cities.file", path), step)

    return parse


@pytest.mark.parametrize(
    ("data", "step", "rows"),
    [
        ('id,name\n1,a\n2,"b\nc"\n\n3,\n4,""\n', CSV, [(1, "a"), (2, "b\nc"), (3, None), (4, "")]),
        ("name,id\na,1\n", CSV, [(1, "a")]),
        ("\ufeffid,name\n1,a\n", CSV, [(1, "a")]),
        ("\n\nid,name\n1,a\n", CSV, [(1, "a")]),
        ("id,name\n", CSV, []),
        ("1,a\n", ReadStepCsv(ddl_schema=TWO), [(1, "a")]),
        ("1,a\n", ReadStepCsv(), [("1", "a")]),
        ("a;b\n1;NA\n", ReadStepCsv(header=True, separator=";", null_value="NA", infer_schema=True), [(1, None)]),
        ("id,name\n1,\xff\n".encode("latin1"), ReadStepCsv(TWO, header=True, encoding="latin1"), [(1, "ÿ")]),
        ('id,name\n1,"a\\"b"\n', ReadStepCsv(TWO, header=True, escape="\\"), [(1, 'a"b')]),
        ('id,name\n1,"a""b"\n', ReadStepCsv(TWO, header=True, escape='"'), [(1, 'a"b')]),
        ('{"id":1,"name":"a"}\n\n{"id":2}\n', ReadStepNdJson(ddl_schema=TWO), [(1, "a"), (2, None)]),
        ('{"a":{"b":[{"id":1},{"name":"x","id":2}]}}', JSON, [(1, None), (2, "x")]),
        ('[{"id":1}]', ReadStepJson(), [(1,)]),
        ("[]", ReadStepJson(ddl_schema=TWO), []),
    ],
)
def test_rows(parse, data, step, rows):
    assert [tuple(row.values()) for row in parse(data, step).to_pylist()] == rows


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("x TIMESTAMP", "2020-01-31", datetime(2020, 1, 31, tzinfo=UTC)),
        ("x TIMESTAMP", "2020-01-31 10:00:00", datetime(2020, 1, 31, 10, tzinfo=UTC)),
        ("x TIMESTAMP(3)", "2020-01-31T10:00:00.123+02:00", datetime(2020, 1, 31, 8, 0, 0, 123_000, tzinfo=UTC)),
        ("x TIMESTAMP(6)", "2020-01-31T10:00:00.123456Z", datetime(2020, 1, 31, 10, 0, 0, 123_456, tzinfo=UTC)),
        ("x DATE", "2020-01-31", date(2020, 1, 31)),
        ("x DECIMAL(5, 2)", "1.5", Decimal("1.50")),
        ("`a b` BOOLEAN", "true", True),
        ("x UUID", "0A1B2C3D-0000-4000-8000-00000000FFFF", "0a1b2c3d-0000-4000-8000-00000000ffff"),
        ("x TIME(0)", "09:30", "09:30:00"),
        ("x TIME(3)", "09:30:15.5", "09:30:15.500"),
        ("x TIME", "09:30:15.5", "09:30:15.500000"),
        ("x TIME(9)", "23:59:59.123456789", "23:59:59.123456789"),
        ("x DOUBLE", "1e5", 100_000.0),
    ],
)
def test_values_of_every_type(parse, column, text, value):
    assert parse(f"{text}\n", ReadStepCsv(ddl_schema=(column,))).column(0).to_pylist() == [value]
    quoted = f'"{text}"' if isinstance(value, date | Decimal | str) else text
    name = declared_schema([column]).names[0]
    assert parse(f'{{"{name}": {quoted}}}\n', ReadStepNdJson(ddl_schema=(column,))).column(0).to_pylist() == [value]


LOGICAL = DataSchema(
    (
        DataField("id", DataTypeInt64()),
        DataField("at", DataTypeOption(DataTypeTimestamp())),
        DataField("opens", DataTypeOption(DataTypeTime(TimeUnit.SECOND))),
        DataField("small", DataTypeOption(DataTypeUInt8())),
    )
)


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_columns_may_be_declared_by_their_logical_types(parse, form):
    expected = [{"id": 1, "at": datetime(2020, 1, 31, tzinfo=UTC), "opens": "09:30:00", "small": 255}]
    if form == "csv":
        table = parse("1,2020-01-31,09:30,255\n", ReadStepCsv(schema=LOGICAL))
    elif form == "json":
        data = '{"id":1,"at":"2020-01-31T00:00:00Z","opens":"09:30","small":255}\n'
        table = parse(data, ReadStepNdJson(schema=LOGICAL))
    else:
        written = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([{**expected[0], "opens": time(9, 30)}]), written)
        table = parse(written.getvalue().to_pybytes(), ReadStepParquet(schema=LOGICAL))
    assert table.to_pylist() == expected
    assert table.schema.types == [pa.int64(), pa.timestamp("ms", "UTC"), pa.string(), pa.uint8()]
    assert not any(field.metadata for field in table.schema)


def test_dates_and_timestamps_have_the_formats_that_are_declared(parse):
    step = ReadStepCsv(ddl_schema=("d DATE", "t TIMESTAMP"), date_format="%d/%m/%Y", timestamp_format="%d/%m/%Y %H:%M")
    table = parse("31/01/2020,31/01/2020 10:00\n,\n", step)
    assert table.to_pylist()[0] == {"d": date(2020, 1, 31), "t": datetime(2020, 1, 31, 10, tzinfo=UTC)}
    assert table.to_pylist()[1] == {"d": None, "t": None}
    with pytest.raises(InvalidInput, match=r"line 2, column 't': '13/13/2020 10:00'"):
        parse("31/01/2020,31/01/2020 10:00\n,13/13/2020 10:00\n", step)
    with pytest.raises(InvalidInput, match="strftime"):
        parse("x\n", ReadStepCsv(ddl_schema=("d DATE",), date_format="yyyy-MM-dd"))


def test_columns_of_csv_are_found_by_their_names_as_people_write_them(parse):
    step = ReadStepCsv(ddl_schema=("adj_close DOUBLE", "Volume BIGINT"), header=True)
    for header in ("volume,Adj Close", "VOLUME,AdjClose", "Volume,adj-close"):
        assert parse(f"{header}\n7,1.5\n", step).to_pylist() == [{"adj_close": 1.5, "Volume": 7}]
    with pytest.raises(InvalidInput, match="'Adj Close ': the column is not declared"):
        parse("adj_close,Volume,Adj Close \n1.5,7,2\n", step)
    with pytest.raises(InvalidInput, match="'adj_close': the column is there twice"):
        parse("Adj Close,AdjClose\n1.5,2\n", step)
    with pytest.raises(InvalidInput, match="'a_b': the column is not declared"):  # either may be meant
        parse("a_b,c\n1,2\n", ReadStepCsv(ddl_schema=("`a b` INT", "ab INT"), header=True))
    with pytest.raises(InvalidInput, match="'a_b': the column is declared and not there"):
        parse("ab\n1\n", ReadStepCsv(ddl_schema=("a_b INT", "ab INT"), header=True))


@pytest.mark.parametrize(
    ("data", "step", "reason"),
    [
        ('id,name\n1,a\n2,"b\nc"\n\n3x,d\n', CSV, r"cities\.file, line 6, column 'id': '3x' is no int64"),
        ("id,name\n1,a\n99999999999999999999,b\n", CSV, "line 3, column 'id'"),
        ("id,name,x\n1,a,2\n", CSV, "line 1, column 'x': the column is not declared"),
        ("id\n1\n", CSV, "line 1, column 'name': the column is declared and not there"),
        ("id,id\n1,2\n", CSV, "line 1, column 'id': the column is there twice"),
        ("id,name\n1,a\n2,b,c\n", CSV, "line 3, column 'number 3': 3 values where there are 2 columns"),
        ("id,name\n1,a\n2\n", CSV, "line 3, column 'name': 1 values where there are 2 columns"),
        ("id,name\n1,a\n,b\n", CSV, "line 3, column 'id': there is no value"),
        ('id,name\n1,"a\n2,b\n', CSV, "line 3: it cannot be read as CSV"),
        (b"id,name\n1,a\n2,\xff\n", CSV, "line 3: not text in utf8"),
        ("", CSV, "there are no columns"),
        ("id,name\n", ReadStepCsv(TWO, header=True, encoding="klingon"), "encoding 'klingon' is not known"),
        ("1\n", ReadStepCsv(ddl_schema=("id",)), "schema of a source declares 'id'"),
        ("1\n", ReadStepCsv(ddl_schema=("id GEOMETRY",)), "declares 'id GEOMETRY'"),
        ("1,2\n", ReadStepCsv(ddl_schema=("id INT", "id INT")), "the column 'id' twice"),
        ("1234.5\n", ReadStepCsv(ddl_schema=("x DECIMAL(5, 2)",)), "line 1, column 'x': '1234.5' is no decimal128"),
        ("a\n1-2\n", ReadStepCsv(("a UUID",), header=True), "line 2, column 'a': '1-2' is no uuid"),
        ("a\n25:00\n", ReadStepCsv(("a TIME",), header=True), r"line 2, column 'a': '25:00' is no time64\[us\]"),
        ("a\n09:00:00.5\n", ReadStepCsv(("a TIME(0)",), header=True), r"column 'a': '09:00:00.5' is no time32\[s\]"),
        ("1\n", ReadStepCsv(("a TIME(10)",)), r"declares 'a TIME\(10\)'"),
        ("1\n", ReadStepCsv(TWO, schema=LOGICAL), "declares its columns twice, as schema and as ddlSchema"),
        ("1\n", ReadStepCsv(schema=DataSchema(())), "declares no column"),
        ("1\n", ReadStepCsv(schema=DataSchema(LOGICAL.fields[:1] * 2)), "the column 'id' twice"),
        ("1\n", ReadStepCsv(schema=DataSchema((DataField("d", DataTypeDecimal(99, 0)),))), "'d' is of a type that"),
        ("1\n", ReadStepCsv(separator="||"), "must be one character"),
        ('{"id":1}\n\n{"id":"x"}\n', ND_JSON, "line 3, column 'id': \"x\" is no int64"),
        ('{"id":1}\n{"id":1.5}\n', ND_JSON, "line 2, column 'id': 1.5 is no int64"),
        ('{"id":1}\n{"id":2,"nme":1}\n', ND_JSON, "line 2, column 'nme': the column is not declared"),
        ('{"id":1}\n{"id":2,"at":"yesterday"}\n', ND_JSON, "line 2, column 'at': 'yesterday' is no timestamp"),
        ('{"id":1,"price":1.5}\n', ND_JSON, "line 1, column 'price': 1.5 is no text in quotes"),
        ('{"id":1}\n{"id":2\n', ND_JSON, "line 2: not JSON"),
        ('{"id":1}\n3\n', ND_JSON, "line 2: not an object"),
        ('{"id":1}\n{}\n', ND_JSON, "line 2, column 'id': there is no value"),
        ('{"id":1}\n{"id":2} {"id":3}\n', ND_JSON, "line 2: not JSON"),
        ('{"id":1,"id":2}\n', ND_JSON, "line 1"),
        (b'{"id":1}\n{"id":2,"name":"\xff"}\n', ND_JSON, "line 2: not text in utf8"),
        ('{"id":1}\n{"id":"a"}\n', ReadStepNdJson(), "line 2"),
        ('{"a":{"b":[{"id":1},{"id":2,"nme":1}]}}', JSON, "element 2, column 'nme'"),
        ('{"a":{}}', JSON, "nothing at 'a.b': no member 'b'"),
        ('{"a":{"b":{"id":1}}}', JSON, "no array of objects at 'a.b', but a dict"),
        ('{"a":\n{"b":[}', JSON, "line 2: not JSON"),
        ('[{"id":1},{"id":2,"id":3}]', ReadStepJson(ddl_schema=TWO), "column 'id': it is there twice in one object"),
        ('[{"id":99999999999999999999}]', ReadStepJson(ddl_schema=TWO), "element 1, column 'id'"),
        (f'[{{"id":{"[" * 500}{"]" * 500}}}]', ReadStepJson(ddl_schema=TWO), "element 1, column 'id'"),
        ("[" * 1000 + "]" * 1000, ReadStepJson(ddl_schema=TWO), "nests too deep|not an object"),
        ("[" * 100_000, ReadStepJson(ddl_schema=TWO), "not JSON"),
        (f'{{"a":1}}\n{{"a":{"[" * 2000}{"]" * 2000}}}\n', ReadStepNdJson(), "line 2: it nests deeper than 100"),
        (f'{{"id":{"[" * 2000}{"]" * 2000}}}\n', ReadStepNdJson(ddl_schema=TWO), "line 1: not JSON"),
        ("id\n1\n", ReadStepCsv(encoding="utf8\0"), r"encoding 'utf8.x00' is not known"),
        ('{"id":1}\n', ReadStepNdJson(encoding="utf8\0"), r"encoding 'utf8.x00' is not known"),
        ("1\n", ReadStepCsv(separator="\n"), "which separates its values or its lines"),
        ("1\n", ReadStepCsv(separator='"'), "which separates its values or its lines"),
        ("1\n", ReadStepCsv(escape=","), "which separates its values or its lines"),
        ("not parquet", ReadStepParquet(), "cannot be read as Parquet"),
    ],
)
def test_what_does_not_parse_is_an_error_with_its_place(parse, data, step, reason):
    with pytest.raises(InvalidInput, match=reason):
        parse(data, step)


def test_parquet_has_the_declared_columns_and_types(parse, tmp_path: Path):
    def stored(table: pa.Table) -> bytes:
        pq.write_table(table, tmp_path / "made.parquet")
        return (tmp_path / "made.parquet").read_bytes()

    data = stored(pa.table({"name": ["a", None], "id": pa.array([1, 2], pa.int32())}))
    assert parse(data, ReadStepParquet(ddl_schema=TWO)).schema == declared_schema(TWO)
    assert parse(data, ReadStepParquet()).column_names == ["name", "id"]
    with pytest.raises(InvalidInput, match="column 'id': it is not of the type int16"):
        parse(stored(pa.table({"id": [70_000]})), ReadStepParquet(ddl_schema=("id SMALLINT",)))
    with pytest.raises(InvalidInput, match="row 2, column 'name': there is no value"):
        parse(data, ReadStepParquet(ddl_schema=("id INT", "name STRING NOT NULL")))
    with pytest.raises(InvalidInput, match="column 'name': the column is not declared"):
        parse(data, ReadStepParquet(ddl_schema=("id INT",)))
    naive = parse(stored(pa.table({"t": [datetime(2020, 1, 1)]})), ReadStepParquet())
    assert naive["t"].to_pylist() == [datetime(2020, 1, 1, tzinfo=UTC)]


def test_parquet_that_is_small_and_holds_much_is_not_read_to_its_end(tmp_path: Path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": pa.nulls(3_000_000, pa.int64())}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(InvalidInput, match="its rows have more than 1000000 bytes"):
        read(SourceFile("x", path), ReadStepParquet(), max_bytes=1_000_000)


def test_the_folders_above_a_parquet_file_are_no_columns_of_it(tmp_path: Path):
    path = tmp_path / "year=2020/x.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"id": [1]}), path)
    assert read(SourceFile("x", path), ReadStepParquet()).column_names == ["id"]


@pytest.mark.parametrize("step", [ReadStepGeoJson(), ReadStepNdGeoJson(), ReadStepEsriShapefile()])
def test_geometries_are_refused_in_a_sentence(parse, step):
    with pytest.raises(InvalidInput, match=r"recorded but not read here.*Convert it"):
        parse("{}", step)


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs", "Cc"])))),
    st.integers(0, 50),
)
def test_any_rows_survive_csv_and_a_broken_one_is_found(tmp_path_factory, rows, broken):
    path = tmp_path_factory.mktemp("csv") / "x"
    quoted = [f'{number},"{text.replace(chr(34), chr(34) * 2)}"' for number, text in rows]
    path.write_text("\n".join(["id,name", *quoted, ""]))
    assert read(SourceFile("x", path), CSV).to_pylist() == [{"id": n, "name": t} for n, t in rows]
    if rows:
        at = broken % len(rows)
        quoted[at] = "no number," + quoted[at].partition(",")[2]
        path.write_text("\n".join(["id,name", *quoted, ""]))
        with pytest.raises(InvalidInput, match=f"line {at + 2}, column 'id': 'no number'"):
            read(SourceFile("x", path), CSV)
