"""What is installed by choice, and the sentence that says what to install where it is missing."""

from collections.abc import Generator
from contextlib import contextmanager

from dagster_versioned.errors import MissingExtra

_PACKAGE = __name__.partition(".")[0]


@contextmanager
def requiring(extra: str, what: str) -> Generator[None]:
    """Within it, a library that cannot be imported is named with the extra that installs it: raises `MissingExtra`.

    ``what`` is what needs the library, as the beginning of a sentence: ``"A store on S3"``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", _PACKAGE):
            raise
        raise MissingExtra(
            f"{what} needs {missing}, which is not installed here. Nothing was read or written. Install it with "
            f"`pip install 'dagster-versioned[{extra}]'`."
        ) from error
