"""Who writes a table: whether two versions were made by one definition of its asset, or by two that share its name."""

from bisect import bisect_left

from dagster_versioned.identity.version import Run
from dagster_versioned.tables.history import History, Version


def version_before(history: History, version: Version) -> Version | None:
    """The newest own version of the table, of whichever partition, that an earlier commit made."""
    end = bisect_left(history.versions, version.log_version, key=lambda version: version.log_version)
    return next((version for version in reversed(history.versions[:end]) if version.raw is not None), None)


def other_definition(before: Version, after: Version) -> str | None:
    """Which other definition of the asset made the version before, in words; ``None`` where it was the same.

    Of two code locations, those differ that state another code version or have another function. Where nobody knows the
    code location, as in a test or a notebook, another function is another definition; within one, it is a change.
    """
    first, second = before.facts.run, after.facts.run
    if first is None or second is None or (first.code_location is None) != (second.code_location is None):
        return None
    if first.code_location is not None and first.code_location == second.code_location:
        return None
    functions = first.function != second.function and None not in (first.function, second.function)
    versions = before.identity.code_version != after.identity.code_version
    if not functions and (first.code_location is None or not versions):
        return None
    return (
        f"{_named(first, before)} made version {before.short} (run {first.run_id}), the one before this of "
        f"{_named(second, after)}"
    )


def _named(run: Run, version: Version) -> str:
    stated = version.identity.code_version
    of = [
        *([f"code location {run.code_location!r}"] if run.code_location is not None else []),
        *([f"code version {stated!r}"] if stated is not None else []),
    ]
    name = run.function or "a definition"
    return f"{name} ({', '.join(of)})" if of else name
