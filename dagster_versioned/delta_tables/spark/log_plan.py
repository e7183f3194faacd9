"""A log that is too large for one machine, replayed by the cluster: its files as a Spark frame.

Tasks read checkpoint files, row groups and runs of commits with the very code that replays a log in one process, so
the same is refused in the same words; Spark then does what `snapshot` does with Arrow: the files of the checkpoint that
no later commit names, and of the others the last word. Only what is not about files reaches the driver.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from dagster_versioned.delta.actions import Action, Metadata, Protocol, encode_action, parse_line
from dagster_versioned.delta.files.external_files import ExternalFiles, reach_of
from dagster_versioned.delta.files.file_actions import FILES, TOMBSTONES, identities
from dagster_versioned.delta.files.predicate import parse_predicate
from dagster_versioned.delta.files.skipping import candidates
from dagster_versioned.delta.log.checkpoint_pieces import CheckpointPiece, checkpoint_pieces, is_larger
from dagster_versioned.delta.log.checkpoint_read import read_files
from dagster_versioned.delta.log.checksum import Checksum, require_checksum
from dagster_versioned.delta.log.commits import CheckpointFiles, LogSegment, list_log
from dagster_versioned.delta.log.history import version_at
from dagster_versioned.delta.log.replay import Header, read_changes
from dagster_versioned.delta.log.snapshot import Snapshot, snapshot_head
from dagster_versioned.delta.paths import Column
from dagster_versioned.delta_tables.change_feed import place
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.refused_expressions import translate_spark_errors
from dagster_versioned.engines.spark.releases import to_arrow
from dagster_versioned.errors import InvalidInput, LogCorrupt, ObjectNotFound, VersionedError
from dagster_versioned.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGE = 5_000_000
"""File actions in a checkpoint beyond which the cluster replays it, rather than one process."""

LARGE_VARIABLE = "DAGSTER_VERSIONED_LARGE_LOG"
"""The environment variable that sets another number than `LARGE`."""

_NOT_INSTALLED = f"No module named '{__name__.partition('.')[0]}'"

_GROUPS_PER_TASK = 4
_COMMITS_PER_TASK = 500
_ROWS_PER_BATCH = 20_000

_ONLY_TOMBSTONES = [field for field in cast("Any", TOMBSTONES) if field.name not in FILES.names]
_ROWS = pa.schema(
    [
        *cast("Any", FILES),
        *_ONLY_TOMBSTONES,
        pa.field("identity", pa.string()),
        pa.field("live", pa.bool_()),
        pa.field("version", pa.int64()),
        pa.field("refusal", pa.string()),
        pa.field("headers", pa.binary()),
    ]
)
"""What tasks return: a row for each file action, or one with the headers of commits."""


@dataclass(frozen=True, slots=True)
class _CommitsTask:
    versions: range


_Task = CheckpointPiece | _CommitsTask


@dataclass(frozen=True, slots=True)
class LogPlan:
    """A snapshot whose files are a Spark frame.

    ``head`` is the snapshot but for its files: its tables are empty. The frames ``files`` and ``tombstones`` have the
    columns of `files.FILES` and `files.TOMBSTONES`; they are lazy, and read the log again whenever they are asked.
    """

    head: Snapshot
    files: "DataFrame"
    tombstones: "DataFrame"

    def collected(self) -> Snapshot:
        """The whole snapshot, in this process. Raises `LogCorrupt` for what the tasks find in the log."""
        live = self.live()
        with translate_spark_errors():
            return replace(live, tombstones=to_arrow(self.tombstones).cast(TOMBSTONES))

    def live(self) -> Snapshot:
        """The snapshot but for its tombstones, in this process; for callers that know there are few files."""
        with translate_spark_errors():
            return replace(self.head, files=to_arrow(self.files).cast(FILES))

    def narrowed(self, condition: str | None) -> "LogPlan":
        """The plan without the files that can hold no row of which ``condition`` is true; see `delta_scan`."""
        if condition is None:
            return self
        head = self.head
        prune = partial(
            candidates,
            predicate=parse_predicate(condition, head.schema),
            schema=head.schema,
            mapping=head.column_mapping,
            partition_columns=head.partition_columns,
        )
        return replace(self, files=in_batches(self.files, prune))

    def figures(self) -> Checksum:
        """How many live files there are, of what size, and the like; now, and of all of them, so that whatever is
        wrong with one is raised here."""
        return _figures(self.files, self.head.protocol, self.head.metadata)


def in_batches(files: "DataFrame", change: Callable[[pa.Table], pa.Table]) -> "DataFrame":
    """The files that ``change`` leaves of some of them at a time, as tables with the schema `files.FILES`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from change(files_of(batch)).to_batches()

    return files.mapInArrow(self_contained(run), files.schema)


def files_of(batch: pa.RecordBatch) -> pa.Table:
    """The files of a plan, as a task gets them, with the schema `files.FILES`."""
    return pa.Table.from_batches([batch]).select(FILES.names).cast(FILES)


def large_log(default: int = LARGE) -> int:
    """What `LARGE_VARIABLE` says, else ``default``. Raises `InvalidInput` where that is no number."""
    text = os.environ.get(LARGE_VARIABLE, str(default))
    if not text.isdecimal():
        raise InvalidInput(
            f"{LARGE_VARIABLE} is {text!r:.50}. Nothing was read. Give it a number of file actions, such as {default}."
        )
    return int(text)


def plan_if_large(
    session: "SparkSession",
    store: ObjectStore,
    version: int | None = None,
    timestamp: datetime | str | None = None,
    *,
    large: int | None = None,
) -> LogPlan | None:
    """The plan of a log whose checkpoint has more than ``large`` file actions (`large_log` if left out), else ``None``.

    ``None`` also for what the cluster cannot do, and one process can: columns of variants; executors that do not have
    this package installed; a checkpoint that does not hold what it should, behind which there may be an older one.
    Raises `TableNotFound`, `VersionNotFound`, `UnsupportedFeature`.
    """
    from pyspark.errors import PySparkException

    limit = large_log() if large is None else large
    try:
        segment = list_log(store, version)
        if segment.checkpoint is None or not is_larger(store, segment.checkpoint, limit):
            return None
        if timestamp is not None:
            head = _begin(session, store, segment)[0]
            moment = place(timestamp)
            assert isinstance(moment, datetime)  # only an integer is taken for a version
            segment = list_log(store, version_at(store, head, moment))
        plan = _plan(session, store, segment)
    except (LogCorrupt, ObjectNotFound):
        return None
    except PySparkException as error:
        if _NOT_INSTALLED in str(error):
            return None
        raise
    return None if plan.head.schema.holds("variant") else plan


def plan_log(session: "SparkSession", store: ObjectStore, version: int | None = None) -> LogPlan:
    """Plan the replay of a log by the cluster; ``version`` is by default the newest.

    The commits are read, and kept by Spark, and it is checked that the checkpoint holds no file twice, and that both
    hold what their checksums say. Executors need to reach the store. Raises `TableNotFound`, `VersionNotFound`,
    `LogCorrupt` (a checkpoint that cannot be read is not passed over), `UnsupportedFeature`.
    """
    return _plan(session, store, list_log(store, version))


def _plan(session: "SparkSession", store: ObjectStore, segment: LogSegment) -> LogPlan:
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    head, actions, tasks, commits = _begin(session, store, segment)
    base = _frame(session, store, tasks).where("headers is null")
    with translate_spark_errors():
        _require_distinct(_frame(session, store, tasks, identities_only=True), segment.checkpoint)
        if segment.checkpoint is not None and segment.commits and segment.checkpoint.version in segment.checksums:
            protocol = next(action for action in actions if isinstance(action, Protocol))
            metadata = next(action for action in actions if isinstance(action, Metadata))
            require_checksum(store, segment.checkpoint.version, _figures(base.where("live"), protocol, metadata))
    newest = Window.partitionBy("identity").orderBy(sf.col("version").desc())
    recent = (
        commits.where("headers is null").withColumn("nth", sf.row_number().over(newest)).where("nth = 1").drop("nth")
    )
    state = base.join(recent.select("identity"), "identity", "left_anti").select(*base.columns).unionByName(recent)
    path = sf.when(sf.isnotnull("refusal"), sf.raise_error(sf.col("refusal"))).otherwise(sf.col("path"))
    plan = LogPlan(
        head,
        state.where("live").withColumn("path", path).select(*FILES.names),
        state.where("not live").select(*TOMBSTONES.names),
    )
    if segment.version in segment.checksums:
        require_checksum(store, segment.version, plan.figures())
    return plan


def _begin(
    session: "SparkSession", store: ObjectStore, segment: LogSegment
) -> "tuple[Snapshot, tuple[Action, ...], Sequence[_Task], DataFrame]":
    """The head of the plan, what the checkpoint says of other things than files, its tasks, and the commits."""
    actions, tasks = _checkpoint_tasks(store, segment.checkpoint)
    commits = _frame(session, store, _commit_tasks(segment)).persist()
    with translate_spark_errors():
        headers = [_headers(bytes(row[0])) for row in commits.where("headers is not null").select("headers").collect()]
    return snapshot_head(store, segment, actions, _in_order(headers)), actions, tasks, commits


def _figures(files: "DataFrame", protocol: Protocol, metadata: Metadata) -> Checksum:
    with translate_spark_errors():
        row = files.selectExpr(
            "count(path)",
            "coalesce(sum(size), 0)",
            "count(deletionVector)",
            "coalesce(sum(deletionVector.cardinality), 0)",
        ).first()
    assert row is not None  # of an aggregate there always is one
    return Checksum(row[0], row[1], protocol, metadata, None, row[2], row[3])


# --- tasks -----------------------------------------------------------------------------------------------------------


def _checkpoint_tasks(
    store: ObjectStore, checkpoint: CheckpointFiles | None
) -> tuple[tuple[Action, ...], list[CheckpointPiece]]:
    return ((), []) if checkpoint is None else checkpoint_pieces(store, checkpoint, _GROUPS_PER_TASK)


def _commit_tasks(segment: LogSegment) -> list[_Task]:
    cuts = range(0, len(segment.commits), _COMMITS_PER_TASK)
    return [_CommitsTask(segment.commits[start : start + _COMMITS_PER_TASK]) for start in cuts]


def _in_order(headers: Sequence[tuple[Header, ...]]) -> list[Header]:
    return sorted(chain.from_iterable(headers), key=lambda header: header.version)


def _frame(
    session: "SparkSession", store: ObjectStore, tasks: Sequence[_Task], *, identities_only: bool = False
) -> "DataFrame":
    """What the tasks read, one task of Spark's for each."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # What a task is travels with the code that reads it: its class in a worker is not the one that its name leads to.
    rows = [(number,) for number in range(len(tasks))]
    schema = pa.schema(cast("Any", [_ROWS.field("identity"), _ROWS.field("live")])) if identities_only else _ROWS
    frame = session.createDataFrame(rows, "task int").repartition(max(len(rows), 1))
    return frame.mapInArrow(self_contained(_reader(store, tuple(tasks), schema)), from_arrow_schema(schema))


def _reader(
    store: ObjectStore, tasks: tuple[_Task, ...], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # A plain function, because Spark asks for its argument count and wants no other callable.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in cast("list[int]", batch.column("task").to_pylist()):
                for table in _read(store, tasks[number]):
                    yield from table.select(schema.names).to_batches(_ROWS_PER_BATCH)

    return run


def _read(store: ObjectStore, task: _Task) -> Iterator[pa.Table]:
    if isinstance(task, CheckpointPiece):
        files, tombstones = read_files(store, task.key, task.row_groups, task.layout)
        version = -1
    else:
        changes = read_changes(store, task.versions)
        files, tombstones, version = changes.adds, changes.removes, task.versions[-1]
        yield _rows(pa.table({"headers": pa.array([_plain(changes.headers)], pa.binary())}))
    for table, live in ((files, True), (tombstones, False)):
        count = table.num_rows
        columns: list[tuple[str, Any]] = [
            ("refusal", _refusals(table["path"], reach_of(store)) if live else pa.nulls(count, pa.string())),
            ("identity", identities(table)),
            ("live", pa.repeat(live, count)),
            ("version", pa.repeat(pa.scalar(version, pa.int64()), count)),
        ]
        for name, values in columns:
            table = table.append_column(cast("Any", _ROWS.field(name)), values)
        yield _rows(table)


def _plain(headers: Sequence[Header]) -> bytes:
    """Headers without classes of ours, which have no names in a worker."""
    return pickle.dumps(
        [
            (
                each.version,
                each.timestamp_ms,
                each.stamped,
                each.sha256,
                list(map(encode_action, each.actions)),
                each.first,
            )
            for each in headers
        ]
    )


def _headers(plain: bytes) -> tuple[Header, ...]:
    """What `_plain` was made of."""
    found: list[tuple[int, int, bool, str | None, list[bytes], int]] = pickle.loads(plain)
    return tuple(
        Header(version, timestamp_ms, stamped, sha256, tuple(map(_action, lines)), first)
        for version, timestamp_ms, stamped, sha256, lines, first in found
    )


def _action(line: bytes) -> Action:
    action = parse_line(line, "a header")
    assert action is not None  # it was encoded from one
    return action


def _refusals(paths: Column, reach: ExternalFiles) -> "pa.Array[Any]":
    """Why a path may not be read if it is live in the end, in the form of our errors in a Python worker; else null."""
    try:
        reach.confine(paths)
    except VersionedError:
        return pa.array([_refusal(path, reach) for path in cast("list[str]", paths.to_pylist())], pa.string())
    return pa.nulls(len(paths), pa.string())


def _refusal(path: str, reach: ExternalFiles) -> str | None:
    try:
        reach.admitted(path)
    except VersionedError as error:
        return f"\ndagster_versioned.errors.{type(error).__name__}: {error}"
    return None


def _rows(table: pa.Table) -> pa.Table:
    """The table with the columns of `_ROWS`, null where it has none."""
    held = set(table.column_names)
    arrays: list[Any] = [
        table[field.name] if field.name in held else pa.nulls(table.num_rows, field.type)
        for field in cast("Any", _ROWS)
    ]
    return pa.Table.from_arrays(arrays, schema=_ROWS)


def _require_distinct(identified: "DataFrame", checkpoint: CheckpointFiles | None) -> None:
    """Raise `LogCorrupt` where a checkpoint holds a file twice: by hash, and by name where two hashes are the same."""
    from pyspark.sql import functions as sf

    if checkpoint is None:
        return
    hashed = identified.select(sf.xxhash64("identity").alias("hash"), "live")
    repeated = hashed.groupBy("hash", "live").count().where("count > 1")
    if not repeated.limit(1).count():
        return
    suspects = identified.withColumn("hash", sf.xxhash64("identity")).join(repeated.select("hash"), "hash", "left_semi")
    if suspects.groupBy("identity", "live").count().where("count > 1").limit(1).count():
        raise LogCorrupt(f"{checkpoint.keys[0]}: a file occurs twice in the checkpoint. Nothing was read.")
