"""Which of a table's SQL expressions speak of a column, so that it is not changed below them."""

from collections.abc import Mapping

from dagster_versioned.delta.commit.column_path import Path
from dagster_versioned.delta.commit.write_rules import WriteRules, named_columns


def references(rules: WriteRules, path: Path) -> list[str]:
    """The CHECK constraints, invariants and generated columns whose SQL names the column, a part of it, or its whole.

    An expression that cannot be parsed is taken to name every column.
    """
    expressions: Mapping[str, str] = {
        **{f"the constraint {name!r}": sql for name, sql in rules.checks.items()},
        **{f"the generated column {name!r}": sql for name, sql in rules.generated.items()},
    }
    wanted = _folded(path)
    return [
        name for name, sql in expressions.items() if any(_touch(wanted, _folded(other)) for other in named_columns(sql))
    ]


def _folded(path: Path) -> Path:
    return tuple(part.casefold() for part in path)


def _touch(one: Path, other: Path) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]
