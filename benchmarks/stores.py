"""Would obstore be faster than our own stores on a local disk and on S3?

Run with ``python benchmarks/stores.py [--quick]``. Each operation is done by ours and by obstore in turn, on the disk
of the working directory and on the S3 server of the tests; the figures are medians in milliseconds.

obstore does less: its local store neither flushes a file to the disk nor its folder, and a lost answer to a conditional
write is an error.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import obstore
from obstore.store import LocalStore as TheirLocalStore
from obstore.store import S3Store as TheirS3Store
from rounds import print_ratios, ratio

from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.object_store import ObjectStore

Operation = Callable[[int], object]

COMMIT, PART = os.urandom(2_000), os.urandom(2**20)
LISTED = 1_000


def ours(store: ObjectStore) -> dict[str, Operation]:
    """What a write and a read ask of a store, by our own."""
    return {
        "put_if_absent 2 kB": lambda n: store.put_if_absent(f"log/{n}", COMMIT),
        "put 1 MiB": lambda n: store.put(f"part/{n}", PART),
        "get 2 kB": lambda n: store.get(f"log/{n}"),
        "get 1 MiB": lambda n: store.get(f"part/{n}"),
        f"list {LISTED:,}": lambda _: list(store.list("many/")),
    }


def theirs(client: Any) -> dict[str, Operation]:
    """The same by obstore."""
    return {
        "put_if_absent 2 kB": lambda n: obstore.put(client, f"log/{n}", COMMIT, mode="create", use_multipart=False),
        "put 1 MiB": lambda n: obstore.put(client, f"part/{n}", PART, use_multipart=False),
        "get 2 kB": lambda n: bytes(obstore.get(client, f"log/{n}").bytes()),
        "get 1 MiB": lambda n: bytes(obstore.get(client, f"part/{n}").bytes()),
        f"list {LISTED:,}": lambda _: [meta for batch in obstore.list(client, "many") for meta in batch],
    }


@contextmanager
def on_disk() -> Generator[tuple[ObjectStore, Any]]:
    """Two folders beside each other."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        yield LocalStore(f"{folder}/ours"), TheirLocalStore(f"{folder}/theirs", mkdir=True)


@contextmanager
def on_s3() -> Generator[tuple[ObjectStore, Any]]:
    """Two buckets of one server."""
    from support.s3_server import running_s3_server

    with running_s3_server() as server:
        client = TheirS3Store(
            server.new_bucket(),
            config={
                "endpoint": server.endpoint_url,
                "access_key_id": server.access_key,
                "secret_access_key": server.secret_key,
                "region": server.region,
                "conditional_put": "etag",
            },
            client_options={"allow_http": True},
        )
        yield server.store(server.new_bucket()), client


def measured(where: str, store: ObjectStore, client: Any, rounds: int) -> list[str]:
    """Print the medians of each operation; the lines with their ratios."""
    for number in range(LISTED):
        store.put(f"many/{number:04d}", b"x")
        obstore.put(client, f"many/{number:04d}", b"x")
    lines: list[str] = []
    by_both = zip(ours(store).items(), theirs(client).values(), strict=True)
    for (name, our_operation), their_operation in by_both:
        taken: dict[str, list[float]] = {"ours": [], "obstore": []}
        for number in range(rounds):
            for who, operation in (("ours", our_operation), ("obstore", their_operation)):
                start = time.perf_counter()
                operation(number)
                taken[who].append((time.perf_counter() - start) * 1000)
        medians = {who: statistics.median(each) for who, each in taken.items()}
        print(f"{where} {name:<20} ours {medians['ours']:6.2f} ms, obstore {medians['obstore']:6.2f} ms")
        lines.append(ratio(f"{where}_{name.replace(' ', '_').replace(',', '')}", medians["ours"], medians["obstore"]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="30 rounds instead of 200")
    rounds = 30 if parser.parse_args().quick else 200
    lines: list[str] = []
    for where, place in (("disk", on_disk), ("s3", on_s3)):
        with place() as (store, client):
            lines += measured(where, store, client, rounds)
    print_ratios(*lines)


if __name__ == "__main__":
    main()
