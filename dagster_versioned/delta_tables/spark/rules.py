"""Making the rows of a Spark frame what a Delta table asks for: types, values filled in, rules judged.

All of it is expressions of the frame, so it happens in the pass that writes the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_versioned.delta.commit.stored_expressions import OF_DEFAULTS, require_admitted
from dagster_versioned.delta.commit.write_rules import Inside
from dagster_versioned.delta.schema.identity_columns import IdentityColumn
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.dml import Target
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.delta_tables.spark.row_locations import PREFIX
from dagster_versioned.engines.spark.assignment import quoted, spelled
from dagster_versioned.engines.spark.catalyst import is_classic
from dagster_versioned.engines.spark.types import spark_schema
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ABSENT = "DEFAULT"
"""What an assignment says for the column's default."""

_CHANGED = (delta_task.INSERT, delta_task.UPDATE)


@dataclass(frozen=True)
class Rule:
    """What rows must satisfy, as the sentence that says how many do not."""

    sentence: Callable[[int, int], str]
    is_broken: "Callable[[], Column]"


@dataclass(frozen=True)
class Completed:
    """Rows as a `DeltaTask` takes them, the rules by the numbers in the column `BROKEN`, and the steps of the identity
    columns that were generated, by place."""

    frame: "DataFrame"
    rules: tuple[Rule, ...]
    steps: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True)
class Values:
    """What each column of the table gets in a frame's rows: an expression of the column's type, and whether the rows
    bring it (else it is for the table to make)."""

    of: "Mapping[str, Column]"
    given: "Mapping[str, Column | bool]"


def completed(
    frame: "DataFrame",
    target: Target,
    values: Values,
    controls: "Mapping[str, Column]",
    within: str | None = None,
) -> Completed:
    """The rows with every column of the table and what goes with them (``controls``, by the names in `delta_task`).

    ``within`` is a predicate that new rows must satisfy.
    """
    from pyspark.sql import functions as sf

    schema, rules = target.snapshot.schema, target.rules
    types = spark_schema(schema)
    flags = {name: given for name, given in values.given.items() if not isinstance(given, bool)}
    columns = [
        values.of[name].alias(name) if name in values.of else sf.lit(None).cast(types[name].dataType).alias(name)
        for name in schema.names
    ]
    columns += [column.alias(PREFIX + name) for name, column in controls.items()]
    columns += [flag.alias(f"{PREFIX}given_{schema.names.index(name)}") for name, flag in flags.items()]
    rows = frame.select(*columns)

    def brings(name: str) -> "Column":
        given = values.given.get(name, False)
        return sf.lit(given) if isinstance(given, bool) else sf.col(f"{PREFIX}given_{schema.names.index(name)}")

    made: dict[str, Column] = {}
    numbers: dict[int, Column] = {}
    wanted = {name: column for name, column in rules.identity.items() if values.given.get(name, False) is not True}
    if wanted:
        rows, of_rows = _numbered(rows, wanted)
        for name, number in of_rows.items():
            fresh = (sf.col(PREFIX + delta_task.OPERATION) == delta_task.INSERT) & ~brings(name)
            numbers[schema.names.index(name)] = sf.when(fresh, number)
            made[name] = sf.when(fresh, number.cast(types[name].dataType)).otherwise(quoted(name))
        others = [sf.col(spelled(name)) for name in rows.columns if name not in made]
        extra = [column.alias(delta_task.generated(place)) for place, column in numbers.items()]
        rows = rows.select(*(column.alias(name) for name, column in made.items()), *others, *extra)
    generated: dict[str, Column] = {}
    for name, sql in rules.generated.items():
        if values.given.get(name, False) is not True:
            by_rule = sf.expr(_of_generated(name, sql)).cast(types[name].dataType)
            generated[name] = sf.when(brings(name), quoted(name)).otherwise(by_rule)
    if generated:
        others = [sf.col(spelled(name)) for name in rows.columns if name not in generated]
        rows = rows.select(*(column.alias(name) for name, column in generated.items()), *others)
    judged = _rules(target, values, brings, within)
    changed = sf.col(PREFIX + delta_task.OPERATION).isin(*_CHANGED)
    final = [quoted(name).alias(delta_task.new(i)) for i, name in enumerate(schema.names)]
    final += [sf.col(PREFIX + name).alias(name) for name in controls]
    final += [sf.col(delta_task.generated(place)) for place in numbers]
    if judged:
        broken = sf.coalesce(*(sf.when(rule.is_broken(), sf.lit(i)) for i, rule in enumerate(judged)))
        final.append(sf.when(changed, broken).alias(delta_task.BROKEN))
    steps = {place: rules.identity[schema.names[place]].step for place in numbers}
    return Completed(laid_out(rows.select(*final), target), tuple(judged), steps)


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


def _numbered(rows: "DataFrame", columns: Mapping[str, IdentityColumn]) -> "tuple[DataFrame, dict[str, Column]]":
    """The rows dealt to a known number of tasks, so that each can count in steps of that number."""
    from pyspark.sql import functions as sf

    tasks = _cores(rows)
    dealt = rows.repartition(tasks).withColumn(f"{PREFIX}place", sf.monotonically_increasing_id())
    place = sf.col(f"{PREFIX}place")
    task = sf.shiftright(place, 33)
    counted = task + (place - sf.shiftleft(task, 33)) * tasks
    numbers: dict[str, Column] = {}
    for name, column in columns.items():
        first = column.values(1)[0]
        numbers[name] = sf.lit(first).cast("long") + counted * sf.lit(column.step).cast("long")
    return dealt, numbers


def _cores(rows: "DataFrame") -> int:
    """How many tasks can run at once, or a guess at it."""
    session = rows.sparkSession
    if is_classic(type(rows)):
        return session.sparkContext.defaultParallelism
    return min(16, int(session.conf.get("spark.sql.shuffle.partitions") or 1))


def _rules(target: Target, values: Values, brings: "Callable[[str], Column]", within: str | None) -> list[Rule]:
    from pyspark.sql import functions as sf

    found: list[Rule] = []
    for path in target.rules.not_null:
        found.append(Rule(_must_not_be_null(path), lambda path=path: _is_null_at(path)))
    for name, sql in target.rules.checks.items():
        require_admitted(f"the constraint {name!r}", sql)
        found.append(Rule(_breaks(name, sql), lambda sql=sql: ~sf.coalesce(sf.expr(sql), sf.lit(False))))
    types = spark_schema(target.snapshot.schema)
    for name, sql in target.rules.generated.items():
        if values.given.get(name, False) is not False:
            data_type = types[name].dataType

            def differs(name: str = name, sql: str = sql, data_type: Any = data_type) -> "Column":
                return brings(name) & ~quoted(name).eqNullSafe(sf.expr(_of_generated(name, sql)).cast(data_type))

            found.append(Rule(_brings_another(name, sql), differs))
    if within is not None:
        found.append(Rule(_is_outside(within), lambda: ~sf.coalesce(sf.expr(within), sf.lit(False))))
    return found


def _of_generated(name: str, sql: str) -> str:
    return require_admitted(f"the generated column {name!r}", sql)


def _is_null_at(path: Sequence[str]) -> "Column":
    return _has_null(quoted(path[0]), path[1:])


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


def _must_not_be_null(path: Sequence[str]) -> Callable[[int, int], str]:
    return lambda count, total: (
        f"Column {'.'.join(path)!r} must not be null (NOT NULL), but {count} of {total} rows are"
    )


def _breaks(name: str, sql: str) -> Callable[[int, int], str]:
    return lambda count, total: f"{count} of {total} rows break the constraint {name!r}: {sql}"


def _brings_another(name: str, sql: str) -> Callable[[int, int], str]:
    return lambda count, total: (
        f"Column {name!r} is generated as {sql}, but {count} of {total} rows bring another value for it"
    )


def _is_outside(within: str) -> Callable[[int, int], str]:
    return lambda count, total: f"{count} of {total} rows are not in what is replaced: {within}"


def refuse_broken(rules: Sequence[Rule], broken: Mapping[int, tuple[int, str]], total: int) -> None:
    """Raise `InvalidInput` for the first rule that rows break."""
    for number, (count, example) in sorted(broken.items()):
        raise InvalidInput(f"{rules[number].sentence(count, total)}, such as ({example}). Nothing was written.")


def column_of(schema: StructType, name: str) -> tuple[str, ...]:
    """The path, as the table spells it, of a column or, with dots, of a field of a struct. Raises `InvalidInput`."""
    data_type: Any = schema
    found: list[str] = []
    rest = name
    while rest:
        fields = data_type.fields if isinstance(data_type, StructType) else ()
        known = {one.name.casefold(): one for one in fields}
        parts = rest.split(".")
        # A name may hold dots itself: the longest that is one counts.
        for length in range(len(parts), 0, -1):
            one = known.get(".".join(parts[:length]).strip("`").replace("``", "`").casefold())
            if one is not None:
                break
        else:
            raise InvalidInput(
                f"The table has no column {name!r} (it has: {', '.join(schema.names):.500}). Nothing was written."
            )
        found.append(one.name)
        data_type, rest = one.type, ".".join(parts[length:])
    return tuple(found)
