"""What is installed by choice, and the sentence that says what to install where it is missing."""

import re
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
    except ImportError as error:
        missing = _missing(error)
        if missing is None:
            raise
        raise MissingExtra(
            f"{what} needs {missing}, which is not installed here. Nothing was read or written. Install it with "
            f"`pip install 'dagster-versioned[{extra}]'`."
        ) from error


def _missing(error: ImportError) -> str | None:
    """What could not be imported; ``None`` for what is wrong otherwise."""
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        return None if name in ("", _PACKAGE) else name
    # PySpark looks for the versions of what it needs by itself.
    found = re.search(r"(\S+ >= \S+) must be installed", str(error))
    return found[1] if found else None
