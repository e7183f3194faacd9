"""Tables of a project: roots of events that are written, and datasets that are derived from them."""

import pyarrow as pa

from dagster_versioned.odf.blocks.events import ExecuteTransform
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.queries.transform import Derivation, InputAt, replay
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery
from dagster_versioned.tables.event_history import EventHistory

SCHEMA = pa.schema(
    [("event_time", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("carrier", pa.string()), ("delay", pa.int32())]
)


class House:
    """The tables ``flights`` and ``planes``, ``late`` and ``counts``, or whatever they are called."""

    def __init__(self, project):
        self.project = project

    def write(self, *rows, name="flights", schema=SCHEMA, **options):
        history = EventHistory(**options)
        names = schema.names
        table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)
        EventTable(self.project.table(name), history).write(table)

    def derive(self, text, name="late", inputs=("flights",), steps=(), options=None, **temporal):
        query = TransformQuery(tuple(inputs), (*steps, QueryStep(text)), temporal)
        found = {one: InputAt.of_table(self.project.table(one)) for one in inputs}
        return Derivation(query, found).write(self.project.table(name), options=options)

    def events(self, name="late", *columns):
        rows = EventTable(self.project.table(name)).events()
        return [tuple(row.values()) for row in rows.select(["op", *columns]).to_pylist()]

    def chain(self, name="late"):
        """Blocks, oldest first."""
        return list(EventTable(self.project.table(name)).blocks())[::-1]

    def dataset(self, name="late"):
        return RemoteDataset(self.project.table(name).store)

    def by_id(self, dataset_id):
        names = ("flights", "planes", "late", "counts")
        tables = {name: self.project.table(name) for name in names if self.project.table(name).exists()}
        return next(
            self.dataset(name)
            for name, table in tables.items()
            if EventTable(table).chain.seed.dataset_id == dataset_id
        )

    def replays(self, spark, name="late"):
        """For each run of a chain, whether it gives the same when it is done again."""
        runs = [block for _, block in self.chain(name) if isinstance(block.event, ExecuteTransform)]
        return [replay(self.dataset(name), block, self.by_id, spark) == block.event for block in runs]
