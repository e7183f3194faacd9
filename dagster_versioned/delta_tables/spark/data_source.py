"""Delta tables as a format of Spark, with no JAR: ``spark.read.format("versioned").load(uri)``.

`register` makes the format known to a session. Spark runs what is here in Python processes of its own: planning beside
the driver, where this package is installed, and reading and writing on the executors, where it need not be.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from dagster_versioned.delta.files.external_files import with_external_files
from dagster_versioned.delta_tables.change_feed import feed_scan
from dagster_versioned.delta_tables.spark.data_source_tasks import TableReader
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.by_value import ship_by_value
from dagster_versioned.engines.spark.releases import pushes_filters, require
from dagster_versioned.engines.spark.types import spark_schema
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage import open_store
from dagster_versioned.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql import types as spark_types
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

    from dagster_versioned.delta.log.snapshot import Snapshot
    from dagster_versioned.delta_tables.change_feed import Place

FORMAT = "versioned"
STREAM_OPTIONS = frozenset(
    {
        "startingVersion",
        "startingTimestamp",
        "maxFilesPerTrigger",
        "maxBytesPerTrigger",
        "ignoreDeletes",
        "ignoreChanges",
        "skipChangeCommits",
        "readChangeFeed",
    }
)
"""Options of a stream, for which a batch does not refuse them where Spark asks for the schema."""


def register(session: "SparkSession") -> None:
    """Make the format ``versioned`` known to a session, classic or Connect.

    Reading, as a batch: the options ``version`` or ``timestamp`` (ISO 8601, with a zone), ``columns`` (names with
    commas between them, or a JSON list), ``profile`` (of the AWS configuration files), ``allow`` (folders outside the
    table's own that its files may be in, listed as columns are); or ``readChangeFeed`` with ``startingVersion`` or
    ``startingTimestamp``, and ``endingVersion`` or ``endingTimestamp``. The log of a batch is replayed by one process,
    however large it is: where Spark plans such a read, there is no session that it could ask. (`read_delta` has the
    cluster replay large logs.) As a stream: see `log_tail`, and its `StreamOptions`. Filters reach the files'
    statistics where ``spark.sql.python.filterPushdown.enabled`` is ``true`` when this is called (and while queries
    run).

    Writing, with the modes ``append`` and ``overwrite``, and streams in the output modes ``append`` and ``complete``:
    see `data_source_write.WriteJob`.

    A frame is pinned to the version that was the newest when it was loaded, except one that was given a schema of its
    own: that reads what is the newest whenever it is computed.
    """
    pushes = pushes_filters(session)
    session.dataSource.register(FilteredVersionedSource if pushes else VersionedSource)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for, out of the options of the format."""

    uri: str
    version: int | None = None
    timestamp: str | None = None
    columns: tuple[str, ...] | None = None
    profile: str | None = None
    allow: tuple[str, ...] = ()
    feed: "tuple[Place, Place | None] | None" = None
    """Where the changes to read begin and end."""

    @classmethod
    def of(cls, options: Mapping[str, str], others: Iterable[str] = ()) -> "ReadOptions":
        """Parse the options of a batch; those named in ``others`` are somebody else's. Raises `InvalidInput`."""
        known = {"path", "version", "timestamp", "columns", "profile", "allow", "readChangeFeed", *others}
        feed = options.get("readChangeFeed", "false").lower() == "true"
        if feed:
            known |= {"startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp"}
        if unknown := sorted(set(map(str.lower, options)) - {name.lower() for name in known}):
            raise InvalidInput(
                f"The format {FORMAT!r} has no option {unknown[0]!r}. It has: {', '.join(sorted(known))}."
            )
        if not options.get("path"):
            raise InvalidInput(f"The format {FORMAT!r} was given no path: pass the table's folder to load() or save().")
        columns = options.get("columns")
        return cls(
            options["path"],
            _version(options),
            options.get("timestamp"),
            None if columns is None else _names(columns),
            options.get("profile"),
            _names(options["allow"]) if options.get("allow") else (),
            _range(options) if feed else None,
        )

    def store(self) -> ObjectStore:
        return with_external_files(open_store(self.uri, profile=self.profile), self.allow, profile=self.profile)


def _version(options: Mapping[str, str]) -> int | None:
    version, timestamp = options.get("version"), options.get("timestamp")
    if version is None:
        return None
    if timestamp is not None:
        raise InvalidInput(f"A version ({version}) and a timestamp ({timestamp}) are asked for. Pass one of them.")
    if not version.isdecimal():
        raise InvalidInput(f"The version {version!r} is no number of a commit. Pass 0 or more.")
    return int(version)


def _range(options: Mapping[str, str]) -> "tuple[Place, Place | None]":
    start, end = _place(options, "starting"), _place(options, "ending")
    return 0 if start is None else start, end


def _place(options: Mapping[str, str], prefix: str) -> "Place | None":
    version, timestamp = options.get(f"{prefix}Version"), options.get(f"{prefix}Timestamp")
    if version is not None and timestamp is not None:
        raise InvalidInput(f"{prefix}Version ({version}) and {prefix}Timestamp ({timestamp}): pass one of them.")
    if version is not None and version.isdecimal():
        return int(version)
    return timestamp if version is None else version


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        import json

        return tuple(json.loads(text))
    return tuple(name.strip() for name in text.split(","))


class VersionedSource(DataSource):
    """A Delta table in the folder that the option ``path`` names."""

    _version: int | None = None
    """The version whose schema Spark has: an instance travels to where the read is planned."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> "spark_types.StructType":
        asked = ReadOptions.of(self.options, STREAM_OPTIONS)
        snapshot = head_of(asked)
        self._version = snapshot.version
        scan = scan_of(asked.store(), snapshot, asked.columns)
        return spark_schema((scan if asked.feed is None else with_feed(scan)).selected)

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        return TableReader(self._planned(schema)[0])

    def writer(self, schema: "spark_types.StructType", overwrite: bool) -> "DataSourceWriter":
        from dagster_versioned.delta_tables.spark.data_source_write import table_writer

        ship_by_value()
        return table_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - PySpark's name
        self, schema: "spark_types.StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        instead = "Write the batches by `foreachBatch` and `write_delta`, with `app_id` and `version`."
        require((4, 1), "A stream into the format 'versioned'", instead)
        from dagster_versioned.delta_tables.spark.data_source_stream_write import stream_writer

        ship_by_value()
        return stream_writer(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: "spark_types.StructType") -> "DataSourceStreamReader":  # noqa: N802 - PySpark's name
        require((4, 2), "A stream of the format 'versioned'", "Read the changes with `read_changes`.")
        from dagster_versioned.delta_tables.spark.log_tail import LogTail, StreamOptions

        ship_by_value()
        asked = ReadOptions.of(self.options, STREAM_OPTIONS)
        if asked.version is not None or asked.timestamp is not None:
            raise InvalidInput(
                "A stream has no end, so it is not read at a version or timestamp. Say where it begins:"
                " startingVersion or startingTimestamp."
            )
        snapshot = head_of(replace(asked, version=self._version))
        store = asked.store()
        base = scan_of(store, snapshot, asked.columns)
        scan = _chosen(base if asked.feed is None else with_feed(base), schema)
        return LogTail(store, snapshot, replace(scan, files=()), StreamOptions.of(self.options))

    def _planned(self, schema: "spark_types.StructType") -> "tuple[Scan, Snapshot]":
        ship_by_value()
        asked = ReadOptions.of(self.options)
        if self._version is not None:
            asked = replace(asked, version=self._version, timestamp=None)
        snapshot = snapshot_of(asked)
        if asked.feed is not None:
            return _chosen(feed_scan(asked.store(), *asked.feed, asked.columns, snapshot.version), schema), snapshot
        return _chosen(scan_of(asked.store(), snapshot, asked.columns), schema), snapshot


class FilteredVersionedSource(VersionedSource):
    """`VersionedSource` for sessions that push filters, since its reader fails in others."""

    def reader(self, schema: "spark_types.StructType") -> DataSourceReader:
        from dagster_versioned.delta_tables.spark.data_source_filters import FilteringTableReader

        return FilteringTableReader(*self._planned(schema))


def snapshot_of(asked: ReadOptions) -> "Snapshot":
    """The table as it was at the version or time that is asked for."""
    from dagster_versioned.delta.table import Table

    return Table(asked.store()).snapshot(asked.version, asked.timestamp)


def head_of(asked: ReadOptions) -> "Snapshot":
    """`snapshot_of` without its files, for who needs the columns alone."""
    from dagster_versioned.delta.table import Table

    return Table(asked.store()).head(asked.version, asked.timestamp)


def scan_of(store: ObjectStore, snapshot: "Snapshot", columns: Sequence[str] | None) -> Scan:
    from dagster_versioned.delta_tables.read import delta_scan

    return delta_scan(store, snapshot, columns)


def with_feed(scan: Scan) -> Scan:
    """The scan with the columns of the change feed behind the others."""
    from dagster_versioned.delta.log.change_feed import FEED

    columns = None if scan.columns is None else (*scan.columns, *(field.name for field in FEED))
    return replace(scan, schema=type(scan.schema)((*scan.schema.fields, *FEED)), columns=columns)


def _chosen(scan: Scan, given: "spark_types.StructType") -> Scan:
    """The columns that Spark has, or that the user's own schema names. Raises `InvalidInput` for another type:
    values are never cast on the way."""
    chosen = replace(scan, columns=tuple(given.names))
    table = spark_schema(chosen.selected)
    if given != table:
        raise InvalidInput(
            f"The schema that was given, {given.simpleString()}, is not that of the table's columns,"
            f" {table.simpleString()} (all nullable). Nothing was read. Cast the columns after reading them."
        )
    return chosen
