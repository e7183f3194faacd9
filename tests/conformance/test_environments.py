"""What other programs read of an exported environment, and of production while environments are promoted to it."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conformance.delta_spark import canonical
from conformance.test_delta_by_others import DUCKDB, python_with

from dagster_versioned import Project, read_delta
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.export import export_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.tables.options import TableOptions
from support.crashes import BY_VECTORS
from support.frames import ALL_TYPES, numbered
from support.readers import (
    DELTA_READERS,
    READS_WITH_POLARS,
    assert_same,
    by_datafusion,
    by_deltalake,
    by_polars,
    by_polars_lazily,
)
from support.table_histories import SMALL_PARTS

datom = pytest.importorskip("datom")

pytestmark = pytest.mark.conformance

HERE = Path(__file__).parent
READ_BY_DATOM = {"one", "types", "new", "kept"}
"""Tables without partitions, whose version is one part without a deletion vector."""


@dataclass
class Exported:
    """A place, and the rows of its tables, put together here."""

    root: Path
    expected: dict[str, pa.Table]

    def folder(self, name: str) -> Path:
        return self.root / "datom" / name


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Tables of each kind with a past in production and another one in the environment; production is taken away."""
    root = tmp_path_factory.mktemp("exported")
    project = Project.open("P", str(root / "lake"))
    project.table("kept").write(numbered(7))
    project.table("one").write(numbered(10))
    project.table("parts").write(numbered(500), options=SMALL_PARTS)
    project.table("types").write(ALL_TYPES.slice(1))
    project.table("daily").write_partitions({"a": numbered(3), "b": numbered(4)})
    columns = TableOptions(partition_columns=("day",))
    project.table("columns").write(pa.table({"day": ["x", None], "n": [1, 2]}), options=columns)
    project.table("merged").write(numbered(3_000), options=BY_VECTORS)
    create_environment(project, "pr")
    branch = project.in_environment("pr")
    branch.table("one").write(numbered(20))
    branch.table("parts").write(numbered(700), options=SMALL_PARTS)  # whose first parts are production's
    branch.table("types").write(ALL_TYPES)
    branch.table("daily").write(numbered(9), partition="b")
    branch.table("columns").write(pa.table({"day": ["x", "a b", None], "n": [3, 4, 5]}), options=columns)
    some = numbered(3_000).take(list(range(0, 3_000, 5)))
    changed = some.set_column(1, "text", pa.array(["changed"] * some.num_rows))
    branch.table("merged").write(changed, options=BY_VECTORS)
    for number in range(12):
        branch.table("new").write(numbered(number + 1))
    merged = {row["n"]: row for row in numbered(3_000).to_pylist()} | {row["n"]: row for row in changed.to_pylist()}
    export_environment(project, "pr", str(root / "out"), tables="all")
    (root / "lake").rename(root / "gone")
    return Exported(
        root / "out",
        {
            "kept": numbered(7),
            "one": numbered(20),
            "parts": numbered(700),
            "types": ALL_TYPES,
            "daily": pa.concat_tables([numbered(3), numbered(9)]),
            "columns": pa.table({"day": ["x", "a b", None], "n": [3, 4, 5]}),
            "merged": pa.Table.from_pylist(list(merged.values()), numbered(1).schema),
            "new": numbered(12),
        },
    )


def test_we_read_an_exported_environment(exported: Exported) -> None:
    project = Project.open("P", str(exported.root))
    assert sorted(map(str, project.tables())) == sorted(exported.expected)
    for name, expected in exported.expected.items():
        assert_same(project.table(name).read(), expected)
        assert_same(read_delta(str(exported.folder(name))), expected)


@pytest.mark.parametrize("read", DELTA_READERS)
def test_a_delta_reader_reads_an_exported_environment(exported: Exported, read: Callable[[Path], pa.Table]) -> None:
    for name, expected in exported.expected.items():
        if name == "merged" and read is by_deltalake:  # its own reader of Arrow refuses deletion vectors
            with pytest.raises(deltalake.exceptions.DeltaProtocolError):
                read(exported.folder(name))
            continue
        assert_same(read(exported.folder(name)), expected)


def test_datom_reads_an_exported_environment(exported: Exported) -> None:
    conn = datom.get_conn(datom.store_local(exported.root), "P")
    assert set(datom.list_artifacts(conn)["name"]) == READ_BY_DATOM
    for name in READ_BY_DATOM:
        assert_same(datom.read(conn, name, as_arrow=True), exported.expected[name])
        assert len(datom.history(conn, name)) == 1  # those of before have no bytes here


@pytest.mark.slow
def test_duckdb_reads_an_exported_environment(exported: Exported, duckdb: Path, tmp_path: Path) -> None:
    asked = {str(exported.folder(name)): str(tmp_path / name) for name in exported.expected}
    done = subprocess.run(
        [duckdb, DUCKDB / "read_tables.py"], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, expected in exported.expected.items():
        assert_same(pq.read_table(tmp_path / name), expected)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_delta_spark_reads_an_exported_environment(exported: Exported, reference: Path, tmp_path: Path) -> None:
    found = by_delta_spark(reference, [exported.folder(name) for name in exported.expected], tmp_path)
    for name, expected in exported.expected.items():
        assert found[str(exported.folder(name))] == canonical.lines(expected), name


# --- production, while environments are promoted to it ---------------------------------------------------------------

ROUNDS = 5
TABLES = ("middle", "daily", "top")


def of_round(number: int) -> pa.Table:
    """Rows that only this round has."""
    return pa.table({"n": list(range(number * 1_000, number * 1_000 + 50))})


@dataclass
class Promoted:
    """Production, and when the version of each round may be seen first, and has to be."""

    root: Path
    begun: list[float] = field(default_factory=list[float])
    ended: list[float] = field(default_factory=list[float])

    def folder(self, name: str) -> Path:
        return self.root / "datom" / name

    def run(self) -> None:
        """Promote the rounds, one environment each."""
        project = Project.open("P", str(self.root))
        for number in range(1, ROUNDS + 1):
            create_environment(project, f"pr-{number}")
            self._make(project.in_environment(f"pr-{number}"), number)
            self.begun.append(time.time())
            assert not promote(Project.open("P", str(self.root)), f"pr-{number}", dry_run=False).left
            self.ended.append(time.time())

    def begin(self) -> None:
        project = Project.open("P", str(self.root))
        project.table("raw").write(of_round(0))
        self._make(project, 0)
        self.begun.append(0.0)
        self.ended.append(0.0)

    def require_one_state(self, name: str, found: list[int], began: float, ended: float) -> int:
        """What was read is the version of one round, which was not over by when the read began, nor begun after it
        ended; returns the round."""
        number = min(found) // 1_000
        expected = sorted(of_round(number)["n"].to_pylist())
        assert found == (sorted([*expected, *expected]) if name == "daily" else expected)
        assert self.begun[number] <= ended
        assert number == ROUNDS or len(self.ended) <= number + 1 or began <= self.ended[number + 1]
        return number

    def _make(self, project: Project, number: int) -> None:
        def built_from(name: str) -> list:
            return project.table(name).upstream()

        code, rows = str(number), of_round(number)
        project.table("middle").write(rows, parents=built_from("raw"), code_version=code)
        project.table("daily").write_partitions({"a": rows, "b": rows}, parents=built_from("raw"), code_version=code)
        project.table("top").write(rows, parents=[*built_from("middle"), *built_from("daily")], code_version=code)


@pytest.fixture
def production(tmp_path: Path) -> Promoted:
    made = Promoted(tmp_path / "lake")
    made.begin()
    return made


def by_us(folder: Path) -> pa.Table:
    return Project.open("P", str(folder.parents[1])).table(folder.name).read()


def by_datom(folder: Path) -> pa.Table:
    return datom.read(datom.get_conn(datom.store_local(folder.parents[1]), "P"), folder.name, as_arrow=True)


def as_delta(folder: Path) -> pa.Table:
    return read_delta(str(folder))


def read_in(read: Callable[[Path], pa.Table], folder: Path) -> list[int]:
    return sorted(read(folder)["n"].to_pylist())


@contextmanager
def polled(production: Promoted, read: Callable[[Path], pa.Table], seen: list) -> Iterator[None]:
    """One reader that reads all tables over and over; what it read, or its error, is put into ``seen``."""
    is_over = threading.Event()

    def poll() -> None:
        while True:
            is_last = is_over.is_set()
            for name in TABLES:
                began = time.time()
                try:
                    found = read_in(read, production.folder(name))
                except Exception as error:  # noqa: BLE001 - whatever it is, the reader failed
                    seen.append((name, error, began, time.time()))
                else:
                    seen.append((name, found, began, time.time()))
            if is_last:
                return

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def require_every_read_right(production: Promoted, seen: list) -> None:
    rounds: dict[str, list[int]] = {name: [] for name in TABLES}
    for name, found, began, ended in seen:
        assert isinstance(found, list), (name, found)
        rounds[name].append(production.require_one_state(name, found, began, ended))
    for numbers in rounds.values():
        assert numbers == sorted(numbers)
        assert numbers[-1] == ROUNDS
    assert max(len(set(numbers)) for numbers in rounds.values()) > 2  # it did read in between


READERS = [by_us, as_delta, by_deltalake, by_datafusion, *[by_polars, by_polars_lazily] * READS_WITH_POLARS]


@pytest.mark.every(3)
@pytest.mark.parametrize("read", READERS)
def test_every_read_during_promotions_is_of_one_version(production: Promoted, read: Callable[[Path], pa.Table]) -> None:
    seen: list = []
    with polled(production, read, seen):
        production.run()
    require_every_read_right(production, seen)


def test_datom_reads_before_and_after_promotions(production: Promoted) -> None:
    for name in ("middle", "top"):
        assert read_in(by_datom, production.folder(name)) == of_round(0)["n"].to_pylist()
    production.run()
    for name in ("middle", "top"):
        Project.open("P", str(production.root)).table(name).repair()  # what is put now and then is as new as the log
        assert read_in(by_datom, production.folder(name)) == of_round(ROUNDS)["n"].to_pylist()


@pytest.mark.slow
def test_every_read_by_duckdb_during_promotions_is_of_one_version(production: Promoted, duckdb: Path) -> None:
    folders = {str(production.folder(name)): name for name in TABLES}
    command = [str(duckdb), str(DUCKDB / "poll_tables.py"), *folders]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as poller:
        assert poller.stdout is not None
        first = poller.stdout.readline()  # it has begun
        production.run()
        rest, _ = poller.communicate()
    answers = [json.loads(line) for line in [first, *rest.splitlines()]]
    seen = [(folders[one["folder"]], one.get("n", one.get("error")), one["began"], one["ended"]) for one in answers]
    require_every_read_right(production, seen)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_delta_spark_reads_before_and_after_promotions(production: Promoted, reference: Path, tmp_path: Path) -> None:
    folders = [production.folder(name) for name in TABLES]
    for number in (0, ROUNDS):
        found = by_delta_spark(reference, folders, tmp_path)
        for folder in folders:
            rows = [json.loads(line)["n"] for line in found[str(folder)]]
            assert production.require_one_state(folder.name, sorted(rows), time.time(), time.time()) == number
        if not number:
            production.run()


# --- programs in a venv of their own ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def duckdb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("duckdb") / "venv"
    return python_with(DUCKDB / "requirements.txt", folder, "DUCKDB_KERNEL_PYTHON")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "venv"
    return python_with(HERE / "delta_spark" / "requirements.txt", folder, "DELTA_SPARK_PYTHON")


def by_delta_spark(python: Path, folders: list[Path], work: Path) -> dict[str, list[str]]:
    """The rows of the heads, as lines."""
    command = [python, HERE / "delta_spark" / "read_heads.py", work / "heads.json"]
    asked = json.dumps({str(folder): {} for folder in folders})
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((work / "heads.json").read_text())
