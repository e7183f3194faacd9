"""Tables with a past, written by us from Arrow or from Spark, and what each of their log versions holds.

What is expected never comes from our reader: it is the frames that were written, put together here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.write import WriteResult
from support.frames import ALL_TYPES, ODD_NAMES, ODD_PARTITIONS, ONLY_NULLS, equal_rows, numbered

SMALL_PARTS = TableOptions(row_group_bytes=4_000, target_part_bytes=1)
"""A part for every 4,000 bytes of rows in memory."""

ToFrame = Callable[[pa.Table], Any]


class TableHistory:
    """Writes to one table, and remembers what every log version must hold."""

    def __init__(self, project: Project, name: str, to_frame: ToFrame) -> None:
        self.table: VersionedTable = project.table(name)
        self.expected: dict[int, pa.Table] = {}
        self._to_frame = to_frame
        self._now: dict[str | None, pa.Table] = {}

    @property
    def folder(self) -> Path:
        path = self.table.store.local_path("x")
        assert path is not None
        return path.parent

    def write(self, rows: pa.Table, partition: str | None = None, **given: Any) -> WriteResult:
        return self.write_partitions({partition: rows}, **given)[0]

    def write_partitions(self, rows: Mapping[str | None, pa.Table], **given: Any) -> list[WriteResult]:
        results = self.table.write_partitions({key: self._to_frame(one) for key, one in rows.items()}, **given)
        self._now |= rows
        self._remember()
        return results

    def revert(self, log_version: int) -> WriteResult:
        result = self.table.revert(log_version)
        self._now = {None: self.expected[log_version]}
        self._remember()
        return result

    def _remember(self) -> None:
        whole = pa.concat_tables([self._now[key] for key in sorted(self._now, key=str)], promote_options="permissive")
        self.expected[self.table.state.log_version] = whole


def one_part(history: TableHistory) -> None:
    history.write(numbered(20))
    history.write(numbered(30))


def many_parts(history: TableHistory) -> None:
    history.write(numbered(500), options=SMALL_PARTS)
    history.write(numbered(700), options=SMALL_PARTS)  # for Arrow, the first parts stay and only later ones change
    assert history.table.version().facts.part_count > 3


def equal_parts(history: TableHistory) -> None:
    history.write(equal_rows(600), options=SMALL_PARTS)
    history.write(equal_rows(1_200), options=SMALL_PARTS)
    facts = history.table.version().facts
    assert facts.part_count > 3


def equal_partitions(history: TableHistory) -> None:
    history.write(numbered(10), "2013-01-01")
    history.write(numbered(10), "2013-01-02")
    history.write_partitions({"2013-01-03": numbered(10), "2013-01-04": numbered(10)})
    history.write(numbered(11), "2013-01-02")
    history.write(equal_rows(900).append_column("new", pa.nulls(900, pa.int32())), "2013-01-05", options=SMALL_PARTS)


def odd_partitions(history: TableHistory) -> None:
    history.write_partitions({key: numbered(3, at) for at, key in enumerate(ODD_PARTITIONS)})
    history.write(numbered(4), ODD_PARTITIONS[2])


def all_types(history: TableHistory) -> None:
    history.write(ALL_TYPES)
    history.write(ONLY_NULLS)
    history.write(pa.concat_tables([ALL_TYPES, ONLY_NULLS, ALL_TYPES]))


def odd_names(history: TableHistory) -> None:
    history.write(ODD_NAMES)
    history.write(ODD_NAMES.slice(1))


def there_and_back(history: TableHistory) -> None:
    a, b = numbered(5), numbered(6)
    shas = [history.write(rows).version.metadata_sha for rows in (a, b, a)]
    assert shas[0] == shas[2]
    history.write(a, code_version="2")
    history.write(a, code_version="3", message="said twice")
    assert history.revert(1).change == "full"
    assert history.revert(3).change == "full"


def other_schemas(history: TableHistory) -> None:
    rows = numbered(8)
    history.write(rows)
    history.write(rows.append_column("new", pa.array(range(8), pa.int16())))
    history.write(rows.drop_columns("text"))
    history.write(rows.set_column(0, "n", rows["n"].cast(pa.string())))
    history.write(rows.select(["at", "n"]))
    history.revert(0)


def wider_partitions(history: TableHistory) -> None:
    """Types that every reader has widened, in a table that does not ask for it."""

    def rows(whole: pa.DataType, real: pa.DataType) -> pa.Table:
        return pa.table({"n": pa.array([1, -2, None], whole), "x": pa.array([0.5, None, -0.25], real)})

    history.write(rows(pa.int8(), pa.float32()), "a")
    history.write(rows(pa.int32(), pa.float64()), "b")
    history.write(rows(pa.int64(), pa.float32()), "c")
    history.write(rows(pa.int16(), pa.float64()), "b")


def no_rows(history: TableHistory) -> None:
    empty = TableOptions(allow_empty=True)
    history.write(ALL_TYPES.slice(0, 0), options=empty)
    history.write(ALL_TYPES)
    history.write(ALL_TYPES.slice(0, 0), options=empty)
    history.write(ALL_TYPES)


def grows_to_many_parts(history: TableHistory) -> None:
    history.write(numbered(5))
    history.write(numbered(500), options=SMALL_PARTS)


def shrinks_to_one_part(history: TableHistory) -> None:
    history.write(numbered(5))
    history.write(numbered(500), options=SMALL_PARTS)
    history.write(numbered(6))


def clustered(history: TableHistory) -> None:
    """By other columns each time, without ones that the rows lack, and as it was."""
    history.write(numbered(500), options=SMALL_PARTS.model_copy(update={"cluster_by": ("text", "n")}))
    history.write(numbered(700), options=SMALL_PARTS.model_copy(update={"cluster_by": ("n",)}))
    history.write(numbered(600).drop_columns("n"), options=SMALL_PARTS)
    history.revert(1)


def long(history: TableHistory) -> None:
    for commit in range(103):
        history.write(numbered(1 + commit % 7, commit))
    history.write(numbered(500), options=TableOptions(single_part=True))


FROM_ARROW: dict[str, Callable[[TableHistory], None]] = {
    one.__name__: one
    for one in (
        one_part,
        many_parts,
        equal_parts,
        equal_partitions,
        odd_partitions,
        all_types,
        odd_names,
        there_and_back,
        other_schemas,
        wider_partitions,
        no_rows,
        grows_to_many_parts,
        shrinks_to_one_part,
        clustered,
        long,
    )
}

FROM_SPARK: dict[str, Callable[[TableHistory], None]] = {
    one.__name__: one
    for one in (
        many_parts,
        equal_parts,
        equal_partitions,
        all_types,
        odd_names,
        there_and_back,
        wider_partitions,
        no_rows,
    )
}

READABLE_BY_DATOM = {"one_part", "all_types", "odd_names", "there_and_back", "other_schemas", "no_rows", "long"} | {
    "shrinks_to_one_part"
}
"""Histories whose head is one part, of a table without partitions; the others must not be in datom's list."""
