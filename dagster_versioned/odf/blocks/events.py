"""What a metadata chain says, as values: every event of Open Data Fabric 0.39 and what they are made of.

The order of classes in a union, and of fields in a class, is that of the published schemas: it *is* the encoding of
blocks (`odf.blocks.flatbuffer`). A field that may be missing is ``None``; an empty tuple is another value,
with another encoding. Source: seed 002 ("Metadata Chain", "Reference Information").
"""

from calendar import isleap
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Self

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.data_schema import DataSchema, ExtraAttributes
from dagster_versioned.odf.blocks.marks import Int32, Uint64, Variants
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A moment in UTC, to the nanosecond, with the parts that a block stores.

    ``ordinal`` is the day of the year from 1. The constructor raises `InvalidInput` for parts that are no moment.
    """

    year: int
    ordinal: int
    seconds_from_midnight: int
    nanoseconds: int = 0

    def __post_init__(self) -> None:
        # Nanoseconds beyond a second are a leap second's.
        if not (
            1 <= self.year <= 9999
            and 1 <= self.ordinal <= 365 + isleap(self.year)
            and 0 <= self.seconds_from_midnight < 86_400
            and 0 <= self.nanoseconds < (2 if self.seconds_from_midnight % 60 == 59 else 1) * 1_000_000_000
        ):
            raise InvalidInput(
                f"There is no moment in the year {self.year}, on day {self.ordinal}, {self.seconds_from_midnight} s "
                f"and {self.nanoseconds} ns after midnight. Nothing was changed."
            )

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """The moment of a timezone-aware ``datetime``. Raises `InvalidInput` for one without a zone."""
        if moment.tzinfo is None:
            raise InvalidInput(f"{moment!r} has no time zone, so it is no moment. Nothing was changed; give it one.")
        utc = moment.astimezone(UTC)
        seconds = utc.hour * 3600 + utc.minute * 60 + utc.second
        return cls(utc.year, utc.timetuple().tm_yday, seconds, utc.microsecond * 1000)

    def to_datetime(self) -> datetime:
        """The moment in UTC, cut to microseconds."""
        return datetime(self.year, 1, 1, tzinfo=UTC) + timedelta(
            days=self.ordinal - 1, seconds=self.seconds_from_midnight, microseconds=self.nanoseconds // 1000
        )

    def __str__(self) -> str:
        """RFC 3339, with as many digits after the second as there are."""
        whole = datetime(self.year, 1, 1) + timedelta(days=self.ordinal - 1, seconds=self.seconds_from_midnight)
        leap = self.nanoseconds >= 1_000_000_000
        text = f"{whole:%Y-%m-%dT%H:%M:}60" if leap else whole.isoformat()
        fraction = f"{self.nanoseconds % 1_000_000_000:09}".rstrip("0")
        return text + (f".{fraction}" if fraction else "") + "Z"


class DatasetKind(Enum):
    """Whether a dataset's data come from outside, or from other datasets by a query."""

    ROOT = "Root"
    DERIVATIVE = "Derivative"


class CompressionFormat(Enum):
    """What a source's file is packed with."""

    GZIP = "Gzip"
    ZIP = "Zip"


class SourceOrdering(Enum):
    """By what the files of a source are put in order."""

    BY_EVENT_TIME = "ByEventTime"
    BY_NAME = "ByName"


class MqttQos(Enum):
    """MQTT's quality of service."""

    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


@dataclass(frozen=True, slots=True)
class OffsetInterval:
    """Offsets of records, both ends among them."""

    start: Uint64
    end: Uint64


@dataclass(frozen=True, slots=True)
class DataSlice:
    """One file of records: the hash of its records, that of its bytes, its offsets, and its size in bytes."""

    logical_hash: Multihash
    physical_hash: Multihash
    offset_interval: OffsetInterval
    size: Uint64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file in which an engine keeps what it needs to go on."""

    physical_hash: Multihash
    size: Uint64


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a source was read, in the source's own words: ``kind`` says whose, such as ``odf/etag``."""

    source_name: str
    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class AddData:
    """Data came into a root dataset, or its watermark or source state moved."""

    prev_checkpoint: Multihash | None = None
    prev_offset: Uint64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None
    new_source_state: SourceState | None = None
    extra: ExtraAttributes | None = None


@dataclass(frozen=True, slots=True)
class ExecuteTransformInput:
    """What of an input a transformation took: blocks in ``(prev, new]`` and offsets in ``(prev, new]``."""

    dataset_id: DatasetId
    prev_block_hash: Multihash | None = None
    new_block_hash: Multihash | None = None
    prev_offset: Uint64 | None = None
    new_offset: Uint64 | None = None


@dataclass(frozen=True, slots=True)
class ExecuteTransform:
    """A derivative dataset's query ran over new parts of its inputs."""

    query_inputs: tuple[ExecuteTransformInput, ...]
    prev_checkpoint: Multihash | None = None
    prev_offset: Uint64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class Seed:
    """The first event of every chain: who the dataset is."""

    dataset_id: DatasetId
    dataset_kind: DatasetKind


@dataclass(frozen=True, slots=True)
class EventTimeSourceFromMetadata:
    """Event time is what the source says of its file, such as ``Last-Modified``."""


@dataclass(frozen=True, slots=True)
class EventTimeSourceFromPath:
    """Event time is in the file's name: the first group of the regular expression ``pattern``."""

    pattern: str
    timestamp_format: str | None = None


@dataclass(frozen=True, slots=True)
class EventTimeSourceFromSystemTime:
    """Event time is when the file was fetched."""


EventTimeSource = Annotated[
    EventTimeSourceFromMetadata | EventTimeSourceFromPath | EventTimeSourceFromSystemTime, Variants
]


@dataclass(frozen=True, slots=True)
class SourceCachingForever:
    """What was fetched once is never fetched again."""


SourceCaching = Annotated[SourceCachingForever, Variants]


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """One HTTP header."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FetchStepUrl:
    """Fetch one file from a URL."""

    url: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    headers: tuple[RequestHeader, ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchStepFilesGlob:
    """Fetch the files whose paths match a pattern, in order."""

    path: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    order: SourceOrdering | None = None


@dataclass(frozen=True, slots=True)
class EnvVar:
    """An environment variable; without a value, the fetching environment's."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class FetchStepContainer:
    """Run a container that prints the data."""

    image: str
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None


@dataclass(frozen=True, slots=True)
class MqttTopicSubscription:
    """A topic of an MQTT broker."""

    path: str
    qos: MqttQos | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepMqtt:
    """Listen to an MQTT broker."""

    host: str
    port: Int32
    username: str | None = None
    password: str | None = None
    topics: tuple[MqttTopicSubscription, ...]


@dataclass(frozen=True, slots=True)
class FetchStepEthereumLogs:
    """Read the logs of an Ethereum node."""

    chain_id: Uint64 | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None


FetchStep = Annotated[
    FetchStepUrl | FetchStepFilesGlob | FetchStepContainer | FetchStepMqtt | FetchStepEthereumLogs, Variants
]


@dataclass(frozen=True, slots=True)
class PrepStepDecompress:
    """Unpack the file; ``sub_path`` is the member of an archive."""

    format: CompressionFormat
    sub_path: str | None = None


@dataclass(frozen=True, slots=True)
class PrepStepPipe:
    """Send the file through a shell command."""

    command: tuple[str, ...]


PrepStep = Annotated[PrepStepDecompress | PrepStepPipe, Variants]


@dataclass(frozen=True, slots=True)
class ReadStepCsv:
    """Read CSV; ``ddl_schema`` is columns in SQL, such as ``id BIGINT``, in place of a ``schema``."""

    ddl_schema: tuple[str, ...] | None = None
    separator: str | None = None
    encoding: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    infer_schema: bool | None = None
    null_value: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True)
class ReadStepGeoJson:
    """Read a GeoJSON collection of features."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True)
class ReadStepEsriShapefile:
    """Read a shapefile."""

    ddl_schema: tuple[str, ...] | None = None
    sub_path: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True)
class ReadStepParquet:
    """Read Parquet."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True)
class ReadStepJson:
    """Read a JSON array of objects, found at ``sub_path``."""

    sub_path: str | None = None
    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True)
class ReadStepNdJson:
    """Read JSON objects, one a line."""

    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True)
class ReadStepNdGeoJson:
    """Read GeoJSON features, one a line."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


ReadStep = Annotated[
    ReadStepCsv
    | ReadStepGeoJson
    | ReadStepEsriShapefile
    | ReadStepParquet
    | ReadStepJson
    | ReadStepNdJson
    | ReadStepNdGeoJson,
    Variants,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQueryStep:
    """One query of several; ``alias`` is what later ones call its result, the last one has none."""

    alias: str | None = None
    query: str


@dataclass(frozen=True, slots=True)
class TemporalTable:
    """An input that is joined as of the event time of the other's rows."""

    name: str
    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransformSql:
    """A transformation in SQL, and the engine, with its exact version, whose SQL it is."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: tuple[SqlQueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Transform = Annotated[TransformSql, Variants]


@dataclass(frozen=True, slots=True)
class MergeStrategyAppend:
    """New rows are appended as they are."""


@dataclass(frozen=True, slots=True)
class MergeStrategyLedger:
    """Rows whose primary key was seen before are dropped."""

    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeStrategySnapshot:
    """New rows are the whole present state; what changed since the last becomes events."""

    primary_key: tuple[str, ...]
    compare_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class MergeStrategyChangelogStream:
    """New rows are events already, each with its operation."""

    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeStrategyUpsertStream:
    """New rows are put in place of those with their primary key, or take them back."""

    primary_key: tuple[str, ...]


MergeStrategy = Annotated[
    MergeStrategyAppend
    | MergeStrategyLedger
    | MergeStrategySnapshot
    | MergeStrategyChangelogStream
    | MergeStrategyUpsertStream,
    Variants,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPollingSource:
    """Where a root dataset fetches its data, and how they are read and merged."""

    fetch: FetchStep
    prepare: tuple[PrepStep, ...] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, slots=True)
class TransformInput:
    """A dataset that a query reads, and what it calls it; without an alias, by its reference."""

    dataset_ref: str
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class SetTransform:
    """The query of a derivative dataset, and its inputs."""

    inputs: tuple[TransformInput, ...]
    transform: Transform


@dataclass(frozen=True, slots=True)
class SetVocab:
    """What the system columns are called; ``None`` is the usual name."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


@dataclass(frozen=True, slots=True)
class AttachmentEmbedded:
    """A text beside the data, such as a README."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class AttachmentsEmbedded:
    """Texts that the block itself holds."""

    items: tuple[AttachmentEmbedded, ...]


Attachments = Annotated[AttachmentsEmbedded, Variants]


@dataclass(frozen=True, slots=True)
class SetAttachments:
    """Texts that go with the dataset, in place of those before."""

    attachments: Attachments


@dataclass(frozen=True, slots=True)
class SetInfo:
    """What the dataset is about."""

    description: str | None = None
    keywords: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLicense:
    """Under which terms the data may be used."""

    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


@dataclass(frozen=True, slots=True)
class SetDataSchema:
    """The columns of the data from here on: logical types or, until 0.36, an Arrow schema as FlatBuffers.

    `odf.blocks.data_schema_arrow` and `odf.blocks.arrow_schema` read them. The constructor raises `InvalidInput` where
    it has both, or none.
    """

    raw_arrow_schema: bytes | None = None
    schema: DataSchema | None = None

    def __post_init__(self) -> None:
        if (self.raw_arrow_schema is None) is (self.schema is None):
            raise InvalidInput(
                "A SetDataSchema states its columns as one of schema and rawArrowSchema, and this one as "
                f"{'none' if self.schema is None else 'both'}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPushSource:
    """A way in which data are pushed into a root dataset, and how they are read and merged."""

    source_name: str
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, slots=True)
class DisablePushSource:
    """A push source is closed."""

    source_name: str


@dataclass(frozen=True, slots=True)
class DisablePollingSource:
    """The polling source is no longer asked."""


MetadataEvent = Annotated[
    AddData
    | ExecuteTransform
    | Seed
    | SetPollingSource
    | SetTransform
    | SetVocab
    | SetAttachments
    | SetInfo
    | SetLicense
    | SetDataSchema
    | AddPushSource
    | DisablePushSource
    | DisablePollingSource,
    Variants,
]
