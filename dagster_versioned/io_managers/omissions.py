"""What a report leaves out: the version that it describes is committed, whatever cannot be read of it afterwards."""

from collections.abc import Generator
from contextlib import contextmanager
from logging import Logger

from dagster_versioned.identity.names import TableName


class Omissions:
    """The parts of one report that could not be read.

    An error would fail the step, though its version is committed; and if rows are appended, what is repeated by hand
    then is doubled.
    """

    def __init__(self) -> None:
        self._errors: dict[str, list[Exception]] = {}

    @contextmanager
    def leave_out(self, what: str) -> Generator[None]:
        """Leave a part out where the block fails, whatever the reason."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a report is no reason to fail, so neither is any fault in making it
            self._errors.setdefault(what, []).append(error)

    def log(self, log: Logger, table: TableName) -> None:
        """Warn of what was left out, once for each part, however many partitions lack it."""
        for what, errors in self._errors.items():
            times = f" ({len(errors)} times)" if len(errors) > 1 else ""
            log.warning(
                f"{table}: what was written is committed, but {what} could not be read, so the materialization lacks "
                f"it{times}. {type(errors[0]).__name__}: {errors[0]}"
            )
