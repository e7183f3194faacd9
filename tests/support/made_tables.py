"""Tables that we make, feature by feature, for others to read and to append to; each with either engine's verbs."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from dagster_versioned.delta import Table
from dagster_versioned.delta.commit import checkpoint
from dagster_versioned.delta.log.commits import checksum_key, commit_key
from dagster_versioned.delta.schema.types import ArrayType, StructField, StructType
from dagster_versioned.delta_tables import write as delta_writes
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from support.spark import spark_frame


@dataclass
class Maker:
    """The verbs of one engine on one table; frames are Arrow tables."""

    uri: str
    spark: Any = None

    @property
    def table(self) -> Table:
        return Table(self.uri)

    def create(self, *fields: StructField, **options: Any) -> None:
        delta_writes.create_delta(self.uri, StructType(fields), **options)

    def write(
        self, mode: str = "append", /, *, data: pa.Table | None = None, columns: Any = None, **options: Any
    ) -> None:
        self._run("write_delta", self._frame(pa.table(columns) if data is None else data), mode, **options)

    def delete(self, where: str | None = None) -> None:
        self._run("delete_from", where)

    def update(self, where: str | None = None, /, **values: str) -> None:
        self._run("update_delta", values, where)

    def merge(self, source: pa.Table, on: str, *clauses: Any, **options: Any) -> None:
        self._run("merge_delta", self._frame(source), on, list(clauses), **options)

    def optimize(self, where: str | None = None) -> None:
        self._run("optimize_delta", where)

    def _frame(self, rows: pa.Table) -> Any:
        return rows if self.spark is None else spark_frame(self.spark, rows)

    def _run(self, verb: str, *given: Any, **options: Any) -> None:
        if verb not in ("write_delta", "merge_delta"):
            options["session"] = self.spark
        getattr(delta_writes, verb)(self.uri, *given, **options)


@dataclass
class Made:
    """How a table is made, and the SQL by which the reference appends a row to it (``{t}`` is the table)."""

    make: Callable[[Maker], None]
    append: str


TABLES: dict[str, Made] = {}


def made(
    append: str = "INSERT INTO {t} (a) VALUES (100)",
) -> Callable[[Callable[[Maker], None]], Callable[[Maker], None]]:
    def register(make: Callable[[Maker], None]) -> Callable[[Maker], None]:
        TABLES[make.__name__] = Made(make, append)
        return make

    return register


def build(name: str, folder: Path, spark: Any = None) -> Path:
    """Make a table; the folder that it is in."""
    TABLES[name].make(Maker(str(folder / name), spark))
    return folder / name


def numbers(*values: int | None) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int32())})


def pairs(*rows: tuple[int | None, str | None]) -> pa.Table:
    return pa.table({"a": pa.array([a for a, _ in rows], pa.int32()), "b": pa.array([b for _, b in rows], pa.string())})


def on(*properties: str) -> dict[str, str]:
    """Boolean properties that are set."""
    return {f"delta.enable{name}": "true" for name in properties}


NAME = {"delta.columnMapping.mode": "name"}
NOON = dt.datetime(2024, 2, 29, 12, 34, 56, 789012)
DAY = dt.date(2024, 2, 29)


# --- values ----------------------------------------------------------------------------------------------------------


def every_type() -> pa.Table:
    inner = pa.struct([("c", pa.string()), ("d", pa.list_(pa.struct([("e", pa.date32())])))])
    schema = pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.bool_()),
            ("i8", pa.int8()),
            ("i16", pa.int16()),
            ("i64", pa.int64()),
            ("f32", pa.float32()),
            ("f64", pa.float64()),
            ("d", pa.decimal128(38, 10)),
            ("s", pa.string()),
            ("x", pa.binary()),
            ("dt", pa.date32()),
            ("ts", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.decimal128(5, 2))),
            ("st", pa.struct([("a", pa.int32()), ("b", inner)])),
        ]
    )
    utc = NOON.replace(tzinfo=dt.UTC)
    old = dt.datetime(1500, 1, 1, tzinfo=dt.UTC)
    nested = {"a": 1, "b": {"c": "x", "d": [{"e": dt.date(1999, 12, 31)}, None]}}
    full = [1, True, 1, 2, 4, 1.5, 2.5, Decimal("1234567890.0123456789"), "ü 🐘", b"\0\xff", DAY, utc, [1, None]]
    full += [[("a", Decimal("1.25")), ("b", None)], nested]
    edge = [2, False, -128, -32768, -(2**63), float("nan"), float("-inf"), Decimal("-1e-10"), "", b"", dt.date(1, 1, 1)]
    edge += [old, [], [], {"a": None, "b": {"c": None, "d": []}}]
    rows: list[list[Any]] = [full, [None] * 15, edge]
    return pa.table([[row[i] for row in rows] for i in range(15)], schema=schema)


@made()
def types(m: Maker) -> None:
    m.write(data=every_type())
    m.write(data=every_type().slice(1, 1))
    m.delete("i8 = 1")


@made("INSERT INTO {t} (a, dt) VALUES (100, DATE'2030-01-01')")
def partition_types(m: Maker) -> None:
    rows = every_type().select(["a", "b", "i8", "i16", "i64", "f32", "f64", "d", "s", "dt", "ts"])
    rows = rows.append_column("tn", pa.array([NOON, None, NOON], pa.timestamp("us")))
    rows = rows.set_column(8, "s", pa.array(["plain", None, "other"]))
    m.write(data=rows.slice(0, 2), partition_by=rows.column_names[1:])
    m.write(data=rows.slice(2, 1))


@made("INSERT INTO {t} VALUES (100, 'a/b=c %41+:?#&')")
def partition_escaping(m: Maker) -> None:
    values = ["a/b=c %41+:?#&", "ü 🐘", None, "x y", "a'b\"c\\d", "."]
    m.write(data=pairs(*enumerate(values)), partition_by=["b"])
    m.delete("b = 'ü 🐘'")


@made("INSERT INTO {t} VALUES (100, 'a/b=c %41+:?#&')")
def partition_mapped(m: Maker) -> None:
    m.write(data=pairs((1, "a/b"), (2, None), (3, "c")), partition_by=["b"], properties=NAME)
    m.table.rename_column("b", "p q")
    m.delete("`p q` = 'c'")


@made()
def timestamp_ntz(m: Maker) -> None:
    m.write(data=numbers(1))
    m.table.add_columns({"t": pa.timestamp("us"), "s": pa.struct([("u", pa.timestamp("us"))])})
    m.write(data=numbers(2).append_column("t", pa.array([NOON], pa.timestamp("us"))))


# --- the log ---------------------------------------------------------------------------------------------------------


def checkpointed(m: Maker, **properties: str) -> None:
    m.write(data=pairs((1, "x"), (2, None)), partition_by=["b"], properties=properties)
    m.write(data=pairs((3, "x")))
    m.delete("a = 1")
    m.table.checkpoint()
    m.write(data=pairs((4, "y")))


@made()
def checkpoint_classic(m: Maker) -> None:
    checkpointed(m)


@made()
def checkpoint_struct_statistics(m: Maker) -> None:
    checkpointed(m, **{"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpoint.writeStatsAsJson": "false"})


@made()
def checkpoint_v2(m: Maker) -> None:
    checkpointed(m, **{"delta.checkpointPolicy": "v2", "delta.enableDeletionVectors": "true"})


def without_commits(m: Maker, before: int) -> None:
    """Leave readers nothing but the checkpoint for what was before a version."""
    for version in range(before):
        m.table.store.delete([commit_key(version), checksum_key(version)])


@made()
def checkpoint_classic_alone(m: Maker) -> None:
    checkpointed(m)
    without_commits(m, 2)


@made()
def checkpoint_sidecars_alone(m: Maker) -> None:
    with patch.multiple(checkpoint, _INLINE=0, _PER_SIDECAR=1):
        checkpointed(m, **{"delta.checkpointPolicy": "v2", "delta.enableDeletionVectors": "true"})
    assert len(list(m.table.store.list("_delta_log/_sidecars/"))) > 1
    without_commits(m, 2)


@made()
def in_commit_timestamps(m: Maker) -> None:
    m.write(data=numbers(1), properties=on("InCommitTimestamps"))
    m.write(data=numbers(2))


@made()
def in_commit_timestamps_late(m: Maker) -> None:
    m.write(data=numbers(1))
    m.table.set_properties(on("InCommitTimestamps"))
    m.write(data=numbers(2))


@made()
def legacy_protocol(m: Maker) -> None:
    m.write(data=pairs((1, "x")), properties={"delta.minReaderVersion": "1", "delta.minWriterVersion": "2"})
    m.table.set_properties({"delta.minReaderVersion": "2", "delta.minWriterVersion": "5", **NAME})
    m.table.rename_column("b", "c")
    m.write(data=numbers(2))


@made()
def protocol_features(m: Maker) -> None:
    m.write(data=numbers(1), properties={"delta.feature.vacuumProtocolCheck": "supported"})
    m.table.upgrade_protocol("deletionVectors", "v2Checkpoint", "appendOnly", "domainMetadata")
    m.delete("a = 7")
    m.write(data=numbers(2))


@made()
def statistics(m: Maker) -> None:
    properties = {"delta.dataSkippingStatsColumns": "b,s.e"}
    inner = pa.array([{"d": "x", "e": 1}, {"d": None, "e": None}], pa.struct([("d", pa.string()), ("e", pa.int32())]))
    m.write(data=pairs((1, "ü" * 40), (2, "a" * 100)).append_column("s", inner), properties=properties)
    m.table.set_properties({"delta.dataSkippingNumIndexedCols": "0"})
    m.table.unset_properties("delta.dataSkippingStatsColumns")
    m.write(data=pairs((3, "z")))


# --- column mapping --------------------------------------------------------------------------------------------------


@made()
def mapping_name(m: Maker) -> None:
    m.write(data=pairs((1, "x"), (2, None)), properties=NAME)
    m.table.rename_column("b", "b c,;")
    m.table.add_columns({"d": pa.float64()})
    m.write(data=numbers(3).append_column("d", pa.array([1.5])))
    m.table.drop_column("d")
    m.table.add_columns({"d": pa.int32()})
    m.update("a < 3", d="a * 2")


@made()
def mapping_id(m: Maker) -> None:
    m.write(data=every_type().select(["a", "s", "l", "m", "st"]), properties={"delta.columnMapping.mode": "id"})
    m.table.rename_column("s", "t")
    m.table.rename_column("st.b.c", "cc")
    m.table.checkpoint()
    m.write(data=numbers(7))
    m.delete("a = 1")


@made()
def mapping_upgraded(m: Maker) -> None:
    m.write(data=pairs((1, "x")))
    m.table.set_properties(NAME)
    m.table.rename_column("b", "c")
    m.table.add_columns({"b": pa.int32()})
    m.write(data=pa.table({"a": pa.array([2], pa.int32()), "b": pa.array([7], pa.int32()), "c": ["y"]}))


@made()
def mapping_nested(m: Maker) -> None:
    m.write(data=every_type().select(["a", "st"]), properties=NAME)
    m.table.rename_column("st.b.d.element.e", "day")
    m.table.drop_column("st.b.c")
    m.table.add_columns({"st.b.n": pa.string(), "st.b.d.element.k": pa.int64()})
    m.write(data=numbers(5))


# --- rows that go ----------------------------------------------------------------------------------------------------


@made()
def deletion_vectors(m: Maker) -> None:
    m.write(data=pairs(*((i, f"r{i}") for i in range(10))), properties=on("DeletionVectors"))
    m.delete("a IN (1, 3)")
    m.delete("a = 5")
    m.update("a = 7", b="'u'")
    m.merge(
        pairs((8, "m"), (9, "m"), (10, "m"), (11, "m")),
        "source.a = target.a",
        WhenMatched("all"),
        WhenNotMatched("all"),
    )


@made("INSERT INTO {t} (n, p) VALUES (100, 'p0')")
def deletion_vectors_mapped(m: Maker) -> None:
    rows = pairs(*((i, f"p{i % 3}") for i in range(9))).rename_columns(["a", "p"])
    m.write(data=rows, partition_by=["p"], properties=on("DeletionVectors") | NAME)
    m.delete("a = 3")
    m.table.rename_column("a", "n")
    m.table.checkpoint()
    m.delete("n = 6")
    m.delete("p = 'p1'")


@made()
def optimize(m: Maker) -> None:
    m.write(data=pairs((1, "x"), (2, "y")), properties=on("DeletionVectors"))
    m.write(data=pairs((3, "z"), (4, "w")))
    m.delete("a = 2")
    m.optimize()


@made()
def restore(m: Maker) -> None:
    m.write(data=pairs((1, "x"), (2, "y")), properties=NAME | on("DeletionVectors"))
    m.delete("a = 1")
    m.table.drop_column("b")
    m.write("overwrite", data=numbers(9))
    m.table.restore(0)
    m.write(data=pairs((3, "z")))


@made()
def merge(m: Maker) -> None:
    def rows(*values: tuple[int | None, str, int]) -> pa.Table:
        names = {"a": pa.int32(), "v": pa.string(), "n": pa.int32()}
        return pa.table({n: pa.array([v[i] for v in values], t) for i, (n, t) in enumerate(names.items())})

    m.write(data=rows((1, "a", 1), (2, "b", 2), (3, "c", 3), (None, "n", 0)))
    m.merge(
        rows((1, "A", 10), (2, "B", 20), (5, "E", 50), (6, "F", 60)),
        "source.a = target.a",
        WhenMatched("delete", "source.n > 15"),
        WhenMatched({"v": "source.v", "n": "target.n + source.n"}),
        WhenNotMatched({"a": "source.a", "v": "source.v"}, "source.n < 60"),
        WhenNotMatchedBySource({"v": "'orphan'"}, "target.a = 3"),
    )


@made("INSERT INTO {t} VALUES (100, 1)")
def overwrite(m: Maker) -> None:
    def rows(*values: tuple[int, int]) -> pa.Table:
        return pa.table({n: pa.array([v[i] for v in values], pa.int32()) for i, n in enumerate("ap")})

    m.write(data=rows((1, 1), (2, 2), (3, 3)), partition_by=["p"])
    m.write("overwrite", data=rows((20, 2)), where="p = 2")
    m.write("overwrite", data=rows((30, 3), (40, 4)), dynamic=True)
    m.write("overwrite", data=rows((50, 5)))
    m.delete()


@made()
def append_only(m: Maker) -> None:
    m.write(data=numbers(1, 2), properties={"delta.appendOnly": "true"})
    m.write(data=numbers(3))


# --- changes and ids -------------------------------------------------------------------------------------------------


@made()
def change_feed(m: Maker) -> None:
    m.write(data=pairs((1, "a"), (2, "b"), (3, "c")), properties=on("ChangeDataFeed"))
    m.update("a = 2", b="'B'")
    m.delete("a = 1")
    by_key = (WhenMatched("all"), WhenNotMatched("all"), WhenNotMatchedBySource("delete"))
    m.merge(pairs((2, "M"), (4, "d")), "source.a = target.a", *by_key)
    m.write("overwrite", data=pairs((9, "z")))
    m.delete("a = 9")


@made()
def change_feed_deletion_vectors(m: Maker) -> None:
    properties = on("ChangeDataFeed", "DeletionVectors") | NAME
    m.write(data=pairs(*((i, f"r{i}") for i in range(6))), properties=properties)
    m.delete("a = 1")
    m.update("a = 2", b="'u'")
    m.write(data=pairs((7, "n")))
    m.optimize()
    m.delete("a > 3")


@made()
def row_tracking(m: Maker) -> None:
    m.write(data=pairs((1, "a"), (2, "b"), (3, "c")), properties=on("RowTracking"))
    m.write(data=pairs((4, "d")))
    m.update("a = 2", b="'B'")
    m.merge(pairs((3, "M"), (5, "e")), "source.a = target.a", WhenMatched("all"), WhenNotMatched("all"))
    m.optimize()
    m.delete("a = 4")


@made()
def row_tracking_late(m: Maker) -> None:
    m.write(data=numbers(1, 2), properties=on("DeletionVectors"))
    m.write(data=numbers(3))
    m.table.set_properties(on("RowTracking"))
    m.update("a = 1", a="10")


# --- rules for rows --------------------------------------------------------------------------------------------------


@made("INSERT INTO {t} (a, b, s) VALUES (100, 'x', STRUCT(1))")
def constraints(m: Maker) -> None:
    inner = StructType([StructField("c", "integer", nullable=False)])
    m.create(
        StructField("a", "integer", nullable=False), StructField("b", "string"), StructField("s", inner, nullable=False)
    )
    delta_writes.add_constraint(m.uri, "positive", "a > 0")
    delta_writes.add_constraint(m.uri, "short", "length(b) < 5 OR b IS NULL")
    struct = pa.struct([("c", pa.int32())])
    m.write(data=pairs((1, "x"), (2, None)).append_column("s", pa.array([{"c": 1}, {"c": 2}], struct)))
    m.table.drop_constraint("short")
    m.write(data=pairs((3, "longer than five")).append_column("s", pa.array([{"c": 3}], struct)))
    m.table.drop_not_null("a")


@made("INSERT INTO {t} (at, v) VALUES (TIMESTAMP'2030-01-01 00:00:00', 100)")
def generated(m: Maker) -> None:
    m.create(
        StructField("at", "timestamp"),
        StructField("v", "integer"),
        StructField("day", "date", metadata={"delta.generationExpression": "CAST(at AS DATE)"}),
        StructField("twice", "integer", metadata={"delta.generationExpression": "v * 2"}),
        partition_by=["day"],
    )
    at = pa.array([NOON.replace(tzinfo=dt.UTC), None], pa.timestamp("us", "UTC"))
    m.write(data=pa.table({"at": at, "v": pa.array([1, None], pa.int32())}))
    m.update("v = 1", v="5")


@made()
def defaults(m: Maker) -> None:
    m.create(
        StructField("a", "integer"),
        StructField("b", "string", metadata={"CURRENT_DEFAULT": "'none'"}),
        StructField("c", "date", metadata={"CURRENT_DEFAULT": "DATE'2024-01-01'"}),
        properties={"delta.feature.allowColumnDefaults": "supported"},
    )
    m.write(data=numbers(1))
    m.write(data=pairs((2, None)))


@made("INSERT INTO {t} (v) VALUES ('z')")
def identity(m: Maker) -> None:
    always = {"delta.identity.start": 10, "delta.identity.step": 5, "delta.identity.allowExplicitInsert": False}
    default = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": True}
    m.create(
        StructField("id", "long", metadata=always),
        StructField("other", "long", metadata=default),
        StructField("v", "string"),
    )
    m.write(data=pa.table({"v": ["a", "b"]}))
    m.write(data=pa.table({"other": [100], "v": ["c"]}))
    m.write(data=pa.table({"v": ["d"]}))


@made()
def iceberg_compat_v1(m: Maker) -> None:
    m.write(data=pairs((1, "x"), (2, "y")), partition_by=["b"], properties=NAME | on("IcebergCompatV1"))
    m.delete("a = 1")


@made()
def iceberg_compat_v2(m: Maker) -> None:
    rows = every_type().select(["a", "l", "m", "st"])
    m.write(data=rows, properties=NAME | on("IcebergCompatV2"))
    m.table.rename_column("l", "k")
    m.update("a = 2", a="20")


# --- schemas ---------------------------------------------------------------------------------------------------------


@made()
def clustering(m: Maker) -> None:
    m.write(data=pairs((1, "x"), (2, "y")), cluster_by=["a"])
    m.write(data=pairs((3, "z")))
    m.optimize()
    m.table.cluster_by("b", "a")
    m.write(data=pairs((4, None)))
    m.table.cluster_by()


@made("INSERT INTO {t} (i) VALUES (100)")
def type_widening(m: Maker) -> None:
    narrow = StructType([StructField("a", "short")])
    m.create(
        StructField("i", "byte"),
        StructField("f", "float"),
        StructField("d", "decimal(6,2)"),
        StructField("dt", "date"),
        StructField("n", "integer"),
        StructField("x", "short"),
        StructField("s", narrow),
        StructField("l", ArrayType("integer")),
        properties=on("TypeWidening"),
    )
    first = {
        "i": pa.array([1], pa.int8()),
        "f": pa.array([1.5], pa.float32()),
        "d": pa.array([Decimal("12.34")], pa.decimal128(6, 2)),
        "dt": pa.array([DAY]),
        "n": pa.array([5], pa.int32()),
        "x": pa.array([6], pa.int16()),
        "s": pa.array([{"a": 7}], pa.struct([("a", pa.int16())])),
        "l": pa.array([[8, None]], pa.list_(pa.int32())),
    }
    m.write(data=pa.table(first))
    wider = {"i": "short", "f": "double", "d": "decimal(12,4)", "dt": "timestamp_ntz", "n": "double"}
    for name, kind in {**wider, "x": "decimal(10,0)", "s.a": "integer", "l.element": "long"}.items():
        m.table.change_type(name, kind)
    m.table.change_type("i", "long")
    second = {
        "i": pa.array([9_000_000_000]),
        "f": pa.array([1e300]),
        "d": pa.array([Decimal("12345678.1234")], pa.decimal128(12, 4)),
        "dt": pa.array([NOON], pa.timestamp("us")),
        "n": pa.array([0.5]),
        "s": pa.array([{"a": 70000}], pa.struct([("a", pa.int32())])),
        "l": pa.array([[9_000_000_000]], pa.list_(pa.int64())),
    }
    m.write(data=pa.table(second))


@made("INSERT INTO {t} (v) VALUES (100)")
def type_widening_partition(m: Maker) -> None:
    def rows(v: int, p: int | None, kind: pa.DataType) -> pa.Table:
        return pa.table({"v": pa.array([v], pa.int32()), "p": pa.array([p], kind)})

    m.write(data=rows(1, 1, pa.int8()), partition_by=["p"], properties=on("TypeWidening"))
    m.table.change_type("p", "integer")
    m.write(data=rows(3, 70000, pa.int32()))


@made("INSERT INTO {t} VALUES (100, 'q')")
def schema_evolution(m: Maker) -> None:
    m.write(data=pairs((1, "x")))
    m.write(data=numbers(2).append_column("extra", pa.array([True])), schema_mode="merge")
    m.table.add_columns({"s": pa.struct([("x", pa.int32())])})
    m.table.add_columns({"s.y": pa.date32()})
    source = pairs((3, "m")).append_column("more", pa.array([1.5]))
    m.merge(source, "source.a = target.a", WhenNotMatched("all"), schema_mode="merge")
    m.write("overwrite", data=pa.table({"w": [1], "q": ["q"]}), schema_mode="overwrite")


@made("INSERT INTO {t} (id, name, price) VALUES (100, 'hundred', 1.0)")
def everything(m: Maker) -> None:
    properties = on("DeletionVectors", "ChangeDataFeed", "RowTracking", "InCommitTimestamps", "TypeWidening")
    rows = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": ["one", "two", "three"],
        "amount": pa.array([Decimal("1.50"), None, Decimal("3.25")], pa.decimal128(10, 2)),
        "tags": pa.array([["a"], None, []], pa.list_(pa.string())),
        "region": ["eu", "us", None],
    }
    m.write(data=pa.table(rows), partition_by=["region"], properties=properties | NAME)
    delta_writes.add_constraint(m.uri, "known", "id > 0")
    m.table.rename_column("amount", "price")
    m.update("id = 2", price="2.00")
    m.table.change_type("price", "decimal(14,4)")
    m.table.set_not_null("name")
    source = pa.table({"id": [3, 4], "name": ["drei", "vier"]})
    insert = {"id": "source.id", "name": "source.name", "price": "4.1234", "region": "'eu'"}
    m.merge(source, "source.id = target.id", WhenMatched({"name": "source.name"}), WhenNotMatched(insert))
    m.table.drop_column("tags")
    m.table.checkpoint()
    m.delete("id = 1")
    m.optimize()
