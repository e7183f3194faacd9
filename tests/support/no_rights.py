"""What a table does for somebody who may only read it: run as a script, where root counts as anybody."""

import ctypes
import os
import sys
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest

from dagster_versioned.errors import AccessDenied
from dagster_versioned.storage import LocalStore
from support.crashes import table_in

_CAPABILITIES_V3 = 0x20080522  # of Linux, <linux/capability.h>


def give_up_every_capability() -> None:
    """Root may write where no mode permits it, by a capability; without it the modes count."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    none = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def refused(use: Callable[[], object]) -> None:
    with pytest.raises(AccessDenied, match=r"Permission denied|Read-only"):
        use()


def main(root: str) -> None:
    def table():
        return table_in(LocalStore(root))

    rows = table().read()
    assert rows.num_rows == 3
    assert table().read(0).num_rows == 2
    assert table().head().head
    assert table().resolve().head
    assert table().verify().ok
    assert table().vacuum(min_age=timedelta(0)).dry_run
    assert table().write(rows).change == "none"  # what is there already needs no right
    refused(lambda: table().write(pa.table({"n": [9]})))
    refused(lambda: table().revert(0))
    refused(lambda: table().expire(keep_last=1, dry_run=False))
    refused(lambda: table().repair())
    refused(lambda: table().project.pin("mine", "flights"))
    refused(lambda: table().project.table("new").write(rows))


if __name__ == "__main__":
    if os.getuid() == 0:
        give_up_every_capability()
    main(sys.argv[1])
