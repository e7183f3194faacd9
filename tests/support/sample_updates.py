"""Updates of a table of samples, done to the table and to a plain dictionary."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.samples import DATA_VERSION, DATA_VERSION_BY_FIELD, PROVENANCE, PROVENANCE_BY_FIELD
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable

UNITS, ITEMS = range(6), range(3)
PROPERTIES = {
    "vectors": {"delta.enableDeletionVectors": "true"},
    "rewriting": {"delta.enableDeletionVectors": "false"},
}
FEED = {"delta.enableChangeDataFeed": "true"}

Sample = tuple[str, int]
"""Its unit, and the number of the item in it."""


@dataclass(frozen=True)
class Row:
    """What a sample says: a value, and the version of each field."""

    value: int | None
    versions: Mapping[str, str | None]


@dataclass(frozen=True)
class Step:
    """One update: rows by sample, units that go, the fields that samples have then, and how it is stored."""

    rows: Mapping[Sample, int | None]
    gone: frozenset[str]
    fields: tuple[str, ...]
    how: str
    tiny: bool

    def frame(self) -> pa.Table:
        """The rows of the update."""
        by_field = pa.array(
            [{field: f"{field} {value}" for field in self.fields} for value in self.rows.values()],
            pa.struct([(field, pa.string()) for field in self.fields]),
        )
        whole = pa.array([f"of {value}" for value in self.rows.values()], pa.string())
        return pa.table(
            {
                "a.unit": pa.array([unit for unit, _ in self.rows], pa.string()),
                "item": pa.array([item for _, item in self.rows], pa.int32()),
                "value": pa.array(list(self.rows.values()), pa.int64()),
                PROVENANCE_BY_FIELD: by_field,
                PROVENANCE: whole,
                DATA_VERSION_BY_FIELD: by_field,
                DATA_VERSION: whole,
            }
        )

    def units(self, on: Sequence[str]) -> pa.Table:
        """The units that go: named by the unit, or by each item that it may have."""
        items = ITEMS if "item" in on else [0]
        pairs = [(unit, item) for unit in sorted(self.gone) for item in items]
        columns = {
            "a.unit": pa.array([unit for unit, _ in pairs], pa.string()),
            "item": pa.array([item for _, item in pairs], pa.int32()),
        }
        return pa.table({name: columns[name] for name in on})


SAMPLES = st.dictionaries(
    st.tuples(st.sampled_from([f"u{i}" for i in UNITS]), st.sampled_from(ITEMS)),
    st.one_of(st.none(), st.integers(0, 2)),
    max_size=6,
)
STEPS = st.lists(
    st.builds(
        Step,
        rows=SAMPLES,
        gone=st.frozensets(st.sampled_from([f"u{i}" for i in UNITS]), max_size=2),
        fields=st.sampled_from([("audio",), ("audio",), ("audio", "frames"), ("frames",)]),
        how=st.sampled_from(list(PROPERTIES)),
        tiny=st.booleans(),
    ),
    min_size=2,
    max_size=6,
)
UNIT_COLUMNS = st.sampled_from([("a.unit",), ("a.unit", "item")])


def agrees_with_a_dictionary(
    table: VersionedTable, steps: Sequence[Step], on: tuple[str, ...], given_as: Callable[[pa.Table], Any]
) -> None:
    """Do the steps, as frames of some engine; every version, its facts and its changes are what a dictionary says."""
    model: dict[Sample, Row] = {}
    expected: dict[int, dict[Sample, Row]] = {}
    fields: tuple[str, ...] | None = None
    for step in steps:
        before = _with_fields(model, step.fields)
        model = _after(before, step, on)
        head = table.version().metadata_sha if expected else None
        update = SampleUpdate(
            given_as(step.frame()),
            given_as(step.units(on)),
            on,
            ("a.unit", "item"),
            head,
            {"feature": list(step.fields)},
        )
        options = TableOptions(properties=FEED | PROPERTIES[step.how])
        if step.tiny:
            options = options.model_copy(update={"target_part_bytes": 1, "row_group_bytes": 1})
        result = table.write(update, options=options)
        assert (result.change == "none") == (model == before and step.fields == fields)
        if result.change != "none":
            added = result.version.facts.added
            assert added is not None
            assert (added.inserted, added.updated, added.removed) == (
                len(model.keys() - before.keys()),
                sum(before[key] != model[key] for key in before.keys() & model.keys()),
                len(before.keys() - model.keys()),
            )
            expected[result.version.log_version] = model
        fields = step.fields
    told: Counter[tuple[Sample, int | None]] = Counter()
    for version, rows in expected.items():
        _is_right(table, version, rows)
        _change(told, table, version)
        assert told == Counter((key, row.value) for key, row in rows.items())
    table.verify().require_ok()


def _with_fields(model: Mapping[Sample, Row], fields: Sequence[str]) -> dict[Sample, Row]:
    return {
        key: replace(row, versions={field: row.versions.get(field) for field in fields}) for key, row in model.items()
    }


def _after(before: Mapping[Sample, Row], step: Step, on: Sequence[str]) -> dict[Sample, Row]:
    def goes(sample: Sample) -> bool:
        in_units = "item" not in on and sample[0] in {unit for unit, _ in step.rows}
        return sample[0] in step.gone or in_units or sample in step.rows

    stays = {key: row for key, row in before.items() if not goes(key)}
    come = {key: Row(value, {f: f"{f} {value}" for f in step.fields}) for key, value in step.rows.items()}
    return stays | come


def _is_right(table: VersionedTable, version: int, rows: Mapping[Sample, Row]) -> None:
    read = table.read(version)
    found = {(row["a.unit"], row["item"]): Row(row["value"], row[DATA_VERSION_BY_FIELD]) for row in read.to_pylist()}
    assert (found, read.num_rows) == (rows, len(rows))
    measured = ArrowEngine().measure(read, table.files(version).scan.schema)
    facts = table.version(version).facts
    assert (facts.digest, tuple(facts.null_counts)) == (measured.digest.text, measured.null_counts)


def _change(told: Counter[tuple[Sample, int | None]], table: VersionedTable, version: int) -> None:
    path = table.store.local_path("_delta_log")
    assert path is not None
    for row in read_changes(str(path.parent), version, version).to_pylist():
        comes = row["_change_type"] in ("insert", "update_postimage")
        told[(row["a.unit"], row["item"]), row["value"]] += 1 if comes else -1
    for key in [key for key, count in told.items() if not count]:
        del told[key]
