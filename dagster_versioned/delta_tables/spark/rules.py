"""Making the rows of a Spark frame what a Delta table asks for: types, values filled in, rules judged.

All of it is expressions of the frame, so it happens in the pass that writes the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_versioned.delta.commit.stored_expressions import OF_DEFAULTS, require_admitted
from dagster_versioned.delta.commit.write_rules import Inside
from dagster_versioned.delta_tables.dml import Sentence, Target, of_check, of_generated, of_nulls, of_replaced
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.delta_tables.spark.row_locations import PREFIX
from dagster_versioned.engines.spark.assignment import quoted, spelled
from dagster_versioned.engines.spark.catalyst import is_classic
from dagster_versioned.engines.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class CompletedRows:
    """Rows as a `DeltaTask` takes them, the rules by the numbers in the column `BROKEN`, and the steps of the identity
    columns that were generated, by place."""

    frame: "DataFrame"
    rules: tuple[Sentence, ...]
    steps: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True)
class Values:
    """What each column of the table gets in a frame's rows: an expression of the column's type, and whether the rows
    bring it (else it is for the table to make)."""

    of: "Mapping[str, Column]"
    given: "Mapping[str, Column | bool]"

    def flag(self, name: str) -> "Column | bool":
        """Whether rows bring a column: of all the same, or by a column of the frame that `_brought` makes."""
        from pyspark.sql import functions as sf

        given = self.given.get(name, False)
        return given if isinstance(given, bool) else sf.col(_flag(name))


def completed(
    frame: "DataFrame",
    target: Target,
    values: Values,
    controls: "Mapping[str, Column]",
    within: str | None = None,
) -> CompletedRows:
    """The rows with every column of the table and what goes with them (``controls``, by the names in `delta_task`).

    ``within`` is a predicate that new rows must satisfy.
    """
    from pyspark.sql import functions as sf

    schema, identity = target.snapshot.schema, target.rules.identity
    rows = _brought(frame, target, values, controls)
    numbered = [name for name in identity if values.flag(name) is not True]
    rows = _with_generated(_with_numbers(rows, target, values, numbered), target, values)
    places = [schema.names.index(name) for name in numbered]
    final = [*new_columns(target), *(sf.col(PREFIX + name).alias(name) for name in controls)]
    final += [sf.col(delta_task.generated(place)) for place in places]
    rules = _rules(target, values, within)
    if rules:
        final.append(_first_broken([is_broken for _, is_broken in rules]).alias(delta_task.BROKEN))
    steps = {place: identity[name].step for place, name in zip(places, numbered, strict=True)}
    return CompletedRows(laid_out(rows.select(*final), target), tuple(sentence for sentence, _ in rules), steps)


def new_columns(target: Target) -> "list[Column]":
    """The columns of the table, as a task takes what rows get."""
    return [quoted(name).alias(delta_task.new(i)) for i, name in enumerate(target.snapshot.schema.names)]


def _flag(name: str) -> str:
    return spelled(f"{PREFIX}given_{name}")


def _brought(frame: "DataFrame", target: Target, values: Values, controls: "Mapping[str, Column]") -> "DataFrame":
    """What the rows bring, by the table's names; beside it the controls, and which rows bring what not all do."""
    from pyspark.sql import functions as sf

    types = spark_schema(target.snapshot.schema)
    columns = [
        values.of.get(name, sf.lit(None).cast(types[name].dataType)).alias(name)
        for name in target.snapshot.schema.names
    ]
    columns += [column.alias(PREFIX + name) for name, column in controls.items()]
    columns += [
        flag.alias(f"{PREFIX}given_{name}") for name, flag in values.given.items() if not isinstance(flag, bool)
    ]
    return frame.select(*columns)


def _with_numbers(rows: "DataFrame", target: Target, values: Values, names: Sequence[str]) -> "DataFrame":
    """New rows with numbers of identity columns that they do not bring, which are columns of their own as well.

    The rows are dealt to a known number of tasks, so that each can count in steps of that number.
    """
    from pyspark.sql import functions as sf

    if not names:
        return rows
    schema = target.snapshot.schema
    types = spark_schema(schema)
    tasks = _cores(rows)
    dealt = rows.repartition(tasks).withColumn(f"{PREFIX}place", sf.monotonically_increasing_id())
    place = sf.col(f"{PREFIX}place")
    task = sf.shiftright(place, 33)
    counted = task + (place - sf.shiftleft(task, 33)) * tasks
    made: dict[str, Column] = {}
    for name in names:
        column = target.rules.identity[name]
        number = sf.lit(column.values(1)[0]).cast("long") + counted * sf.lit(column.step).cast("long")
        fresh = (sf.col(PREFIX + delta_task.OPERATION) == delta_task.INSERT) & ~sf.lit(values.flag(name))
        made[name] = sf.when(fresh, number.cast(types[name].dataType)).otherwise(quoted(name))
        made[delta_task.generated(schema.names.index(name))] = sf.when(fresh, number)
    return _replaced(dealt, made)


def _with_generated(rows: "DataFrame", target: Target, values: Values) -> "DataFrame":
    """The rows with the generated columns that they do not bring."""
    from pyspark.sql import functions as sf

    made = {
        name: sf.when(sf.lit(values.flag(name)), quoted(name)).otherwise(_generated(target, name))
        for name in target.rules.generated
        if values.flag(name) is not True
    }
    return _replaced(rows, made) if made else rows


def _generated(target: Target, name: str) -> "Column":
    from pyspark.sql import functions as sf

    sql = require_admitted(f"the generated column {name!r}", target.rules.generated[name])
    return sf.expr(sql).cast(spark_schema(target.snapshot.schema)[name].dataType)


def _replaced(rows: "DataFrame", made: "Mapping[str, Column]") -> "DataFrame":
    others = [quoted(name) for name in rows.columns if name not in made]
    return rows.select(*(column.alias(name) for name, column in made.items()), *others)


def laid_out(rows: "DataFrame", target: Target) -> "DataFrame":
    """The rows of each task by partition, and by the clustering columns in there."""
    schema = target.snapshot.schema
    order = [delta_task.new(schema.names.index(name)) for name in target.snapshot.partition_columns]
    for path in target.rules.clustering:
        inner = "".join(f".{spelled(name)}" for name in path[1:])
        order.append(delta_task.new(schema.names.index(path[0])) + inner)
    return rows.sortWithinPartitions(*order) if order else rows


def default_of(target: Target, name: str) -> "Column":
    """What a row gets that has no value for a column."""
    from pyspark.sql import functions as sf

    data_type = spark_schema(target.snapshot.schema)[name].dataType
    sql = target.rules.defaults.get(name)
    if sql is None:
        return sf.lit(None).cast(data_type)
    return sf.expr(require_admitted(f"the default of column {name!r}", sql, OF_DEFAULTS)).cast(data_type)


def _cores(rows: "DataFrame") -> int:
    """How many tasks can run at once, or a guess at it."""
    session = rows.sparkSession
    if is_classic(type(rows)):
        return session.sparkContext.defaultParallelism
    return min(16, int(session.conf.get("spark.sql.shuffle.partitions") or 1))


def _rules(target: Target, values: Values, within: str | None) -> "list[tuple[Sentence, Column]]":
    """What is said of rows that break a rule, and whether one does."""
    from pyspark.sql import functions as sf

    rules = target.rules
    found = [(of_nulls(path), _has_null(quoted(path[0]), path[1:])) for path in rules.not_null]
    for name, sql in rules.checks.items():
        require_admitted(f"the constraint {name!r}", sql)
        found.append((of_check(name, sql), ~sf.coalesce(sf.expr(sql), sf.lit(False))))
    for name, sql in rules.generated.items():
        if values.flag(name) is not False:
            differs = sf.lit(values.flag(name)) & ~quoted(name).eqNullSafe(_generated(target, name))
            found.append((of_generated(name, sql), differs))
    if within is not None:
        found.append((of_replaced(within), ~sf.coalesce(sf.expr(within), sf.lit(False))))
    return found


def _first_broken(rules: "Sequence[Column]") -> "Column":
    """The number of the first rule that a row breaks which is new or has new values; null for others."""
    from pyspark.sql import functions as sf

    changed = sf.col(PREFIX + delta_task.OPERATION).isin(delta_task.INSERT, delta_task.UPDATE)
    return sf.when(changed, sf.coalesce(*(sf.when(broken, sf.lit(i)) for i, broken in enumerate(rules))))


def _has_null(value: "Column", rest: Sequence[str]) -> "Column":
    """Whether something is null there, and nothing on the way."""
    from pyspark.sql import functions as sf

    if not rest:
        return value.isNull()
    step, below = rest[0], rest[1:]
    if not isinstance(step, Inside):
        return value.isNotNull() & _has_null(value.getField(step), below)
    values = value
    if step is not Inside.ELEMENT:
        values = sf.map_keys(value) if step is Inside.KEY else sf.map_values(value)
    return value.isNotNull() & sf.exists(values, lambda inner: _has_null(inner, below))


def refuse_broken(rules: Sequence[Sentence], broken: Mapping[int, tuple[int, str]], total: int) -> None:
    """Raise `InvalidInput` for the first rule that rows break."""
    for number, (count, example) in sorted(broken.items()):
        raise rules[number].refusal(count, f"{total} rows", example)
