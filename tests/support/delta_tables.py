"""Delta tables made by other programs, what is known of them, and what we are to make of them.

The tables and `expected.json` (what Delta Spark 4.0.0 says of each newest version) are beside the repository, in
``../shared/conformance``; a clone has them not. The documentation's page is made from what stands here, and
`tests/conformance/test_delta.py` shows that it is so.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.errors import IntegrityError, LogCorrupt, UnsupportedFeature, VersionedError

ROOT = (Path(__file__).resolve().parents[3] / "shared" / "conformance" / "delta").resolve()  # peers resolve links, too
ABSENT = "../shared/conformance/delta is not here (CI has it, a clone has not)"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "conformance.md"

EXPECTED: dict[str, Any] = json.loads((ROOT / "expected.json").read_text()) if ROOT.is_dir() else {}

MISSING_FILE = "A data file that the log lists is not there."
GAP = "The log has a gap."
NO_COLUMNS = "The table has no columns."
CATALOG = "It is owned by a catalog."
SHREDDED = (
    "Its variants are shredded. Spark's own Parquet reader puts them together since 4.1, Delta Spark 4.0.0 could not; "
    "the Arrow engine refuses them by name."
)

_TEST_DATA = "delta-rs/test/tests/data"
_ERR_LOGS = "delta-rs/core/tests/data_err_logs"

REFUSED: dict[str, tuple[type[VersionedError], str]] = {
    **dict.fromkeys([f"{_ERR_LOGS}/table_{letter}" for letter in "abg"], (IntegrityError, MISSING_FILE)),
    f"{_ERR_LOGS}/table_c": (LogCorrupt, GAP),
    **dict.fromkeys([f"{_ERR_LOGS}/table_{letter}" for letter in "defhi"], (UnsupportedFeature, CATALOG)),
    **dict.fromkeys(
        [
            f"{_TEST_DATA}/checkpoint_with_partitions",
            f"{_TEST_DATA}/checkpoints",
            f"{_TEST_DATA}/checkpoints_vacuumed",
            f"{_TEST_DATA}/latest_not_checkpointed",
            f"{_TEST_DATA}/spark-variant-stable-feature-checkpoint",
            f"{_TEST_DATA}/table-with-domain-metadata",
            f"{_TEST_DATA}/with_checkpoint_no_last_checkpoint",
            "golden/log-replay-special-characters-b/delta",
            "spark/table-with-dv-gigantic",
        ],
        (IntegrityError, MISSING_FILE),
    ),
    f"{_TEST_DATA}/simple_table_features": (UnsupportedFeature, "It needs reader version 5."),
    "golden/deltalog-commit-info/delta": (LogCorrupt, NO_COLUMNS),
    "golden/deltalog-invalid-protocol-version/delta": (UnsupportedFeature, "It needs reader version 99."),
    "golden/deltalog-state-reconstruction-from-checkpoint-missing-protocol/delta": (LogCorrupt, NO_COLUMNS),
    "golden/deltalog-state-reconstruction-without-protocol/delta": (LogCorrupt, "The log holds no protocol."),
    "golden/versions-not-contiguous/delta": (LogCorrupt, GAP),
    "spark/table-with-dv-special-char": (LogCorrupt, "The place of a deletion vector holds a placeholder."),
}
"""What neither engine reads, nor does Delta Spark: the error, and why."""

ONLY_SPARK: dict[str, int] = {
    "spark/variant-stats-nested-no-checkpoint": 10,
    "spark/variant-stats-no-checkpoint": 10,
    "spark/variant-stats-state-reconstruction": 1,
    "spark/variant-stats-with-struct-no-checkpoint": 10,
}
"""What Delta Spark does not read, the Arrow engine refuses and our Spark engine reads (so many rows): `SHREDDED`."""

READ_AFTER_ALL: dict[str, tuple[int, str]] = {
    f"{_TEST_DATA}/cdc_ict_table": (2, "Its files are there and whole, and `deltalake` reads the same rows."),
}
"""What Delta Spark does not read and both engines do: rows, and why that is right."""


@dataclass(frozen=True)
class Contents:
    """The rows that the makers of a table say it has at a version (``None``: the newest)."""

    name: str
    version: int | None
    files: tuple[Path, ...]

    def read(self, like: pa.Schema) -> pa.Table:
        """The rows, in the schema ``like``."""
        tables = [pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read() for file in self.files]
        return pa.concat_tables(tables, promote_options="permissive").select(like.names).cast(like)


def given_contents() -> Iterator[Contents]:
    """Every version of a table whose makers gave its rows as Parquet files."""
    for name in sorted(EXPECTED):
        folder = (ROOT / name).parent / "expected"
        if name.startswith("golden/") and folder.is_dir():
            yield Contents(name, None, _parquet_files(folder))
        elif name.startswith("dat/"):
            # The folder `latest` may say again what another one says.
            of = {_version(one): one for one in sorted(folder.iterdir())}
            for version in sorted(of):
                yield Contents(name, version, _parquet_files(of[version] / "table_content"))


def _version(folder: Path) -> int:
    return json.loads((folder / "table_version_metadata.json").read_text())["version"]


def _parquet_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(file for file in folder.rglob("*.parquet") if not file.name.startswith(".")))


def difference(one: pa.Table, other: pa.Table) -> list[Any]:
    """Rows that one of them has more often than the other."""
    connection = duckdb.connect()
    connection.register("one", one)
    connection.register("other", other)
    left, right = (f"(SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b})" for a, b in (("one", "other"), ("other", "one")))
    return connection.execute(f"SELECT * FROM {left} UNION ALL SELECT * FROM {right} LIMIT 3").fetchall()


def page() -> str:
    """The text of the documentation's page."""
    contents = list(given_contents())
    read = [name for name, expected in EXPECTED.items() if "error" not in expected]
    lines = [
        "# Tables of other writers",
        "",
        "<!-- Made by docs/conformance.py; do not edit. -->",
        "",
        f"{len(EXPECTED)} Delta tables that other programs made: the Delta Acceptance Tests (`dat`), the golden tables",
        "of Delta Kernel (`golden`), and the test tables of delta-rs and Delta Spark. Each is read by both engines and",
        "compared with the results of Delta Spark 4.0.0 for its newest version: schema, number of rows, and a hash",
        "over all of them. Where the makers give the rows themselves as Parquet files, every such version is compared",
        "row by row as well.",
        "",
        f"- {len(read)} tables are read by Delta Spark, and all of them by both engines, with equal rows.",
        f"- {len(REFUSED)} are refused by Delta Spark and by both engines, before any row.",
        f"- {len(ONLY_SPARK)} are refused by Delta Spark and by the Arrow engine, and read by the Spark engine.",
        f"- {len(READ_AFTER_ALL)} is refused by Delta Spark and read by both engines.",
        f"- {len(contents)} versions are compared with the rows that the makers give.",
        "",
        "| Table | Delta Spark 4.0.0 | Arrow | Spark | Row by row | |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(EXPECTED):
        versions = sum(one.name == name for one in contents)
        cells = [f"`{name}`", *_verdicts(name)]
        lines.append(f"| {' | '.join([*cells[:4], _versions(versions), cells[4]])} |")
    return "\n".join(lines) + "\n"


def _versions(count: int) -> str:
    return "" if not count else "1 version" if count == 1 else f"{count} versions"


def _verdicts(name: str) -> tuple[str, str, str, str]:
    if name in REFUSED:
        error, why = REFUSED[name]
        return "refused", f"`{error.__name__}`", f"`{error.__name__}`", why
    if name in ONLY_SPARK:
        return "refused", f"`{UnsupportedFeature.__name__}`", _rows(ONLY_SPARK[name]), SHREDDED
    if name in READ_AFTER_ALL:
        count, why = READ_AFTER_ALL[name]
        return "refused", _rows(count), _rows(count), why
    count = EXPECTED[name]["rows"]
    return _rows(count), "equal", "equal", ""


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
