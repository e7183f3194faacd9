"""What a table does on a disk that is full: run as a script, on the root of a file system that only it sees."""

import random
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from dagster_versioned.errors import StoreUnavailable
from dagster_versioned.storage import LocalStore
from support.crashes import SMALL_PARTS, table_in
from support.stores import contents

PAGE = 4096
MOST = 24
"""Pages; more than a write needs until it is committed."""


def rows_of(seed: int) -> pa.Table:
    """Three rows, each a part of its own of two pages."""
    chance = random.Random(seed)
    return pa.table({"n": [chance.randbytes(4_500).hex() for _ in range(3)]})


def fill(disk: Path, left: int) -> None:
    """Fill the disk until ``left`` bytes are left."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(PAGE))
        file.truncate(max(0, file.tell() - left))


def main(disk: Path) -> None:
    root = disk / "store"
    now = rows_of(-1)
    table_in(LocalStore(root)).write(now)
    refused: list[str] = []
    for pages in range(MOST):
        versions = table_in(LocalStore(root)).history()
        before = contents(LocalStore(root), without=(".parquet", "/heads/"))
        fill(disk, pages * PAGE)
        try:
            assert table_in(LocalStore(root)).write(rows_of(pages), options=SMALL_PARTS).change == "full"
        except StoreUnavailable as error:
            refused.append(str(error))
            assert contents(LocalStore(root), without=(".parquet", "/heads/")) == before
            assert not list(root.glob("datom/flights/_staging/*"))
        else:
            now = rows_of(pages)
            assert len(table_in(LocalStore(root)).history()) == len(versions) + 1
        assert table_in(LocalStore(root)).read().equals(now)
        assert table_in(LocalStore(root)).resolve().head
        (disk / "ballast").unlink()
        now = rows_of(MOST + pages)
        table_in(LocalStore(root)).write(now)
        table_in(LocalStore(root)).verify().require_ok()
        assert table_in(LocalStore(root)).read().equals(now)
    assert all("disk is full" in error for error in refused), refused
    print(len(refused), MOST - len(refused))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
