"""How fast is a dataset verified, beside hashing its files twice; and how long does a walk along a long chain take?

Run with ``python benchmarks/chain.py [--quick]``. Verifying reads each file once: the peer is ``sha256sum`` and then
``openssl dgst -sha3-256`` over the same files, as whoever checks a download by hand would. The rounds alternate; the
figures are medians. What merging a dump costs is measured by ``snapshot_merge.py``, which the full form runs as well.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.odf.blocks.arrow_schema import encode_schema
from dagster_versioned.odf.blocks.block import Block, block_hash, encode_block
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks
from dagster_versioned.odf.blocks.events import (
    AddData,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    Timestamp,
)
from dagster_versioned.odf.blocks.validity import ChainState, validate
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.storage.local import LocalStore

NOON = Timestamp(2024, 1, 43_200)


class Dataset:
    """A dataset in a folder, as it is served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("blocks", "data", "refs"):
            (folder / name).mkdir(parents=True)
        self.state: ChainState | None = None

    def append(self, event: MetadataEvent) -> None:
        """One block more; the head is left to `finish`."""
        state = self.state
        number = 0 if state is None else state.sequence_number + 1
        block = Block(NOON, None if state is None else state.head, number, event)
        data = encode_block(block)
        name = block_hash(data)
        self.state = validate(state, block, name)
        (self.folder / f"blocks/{name}").write_bytes(data)

    def add(self, rows: pa.Table) -> None:
        """A slice of rows."""
        state = self.state
        assert state is not None
        digest = Arrow0(rows.schema)
        digest.update(rows)
        path = self.folder / "data/new"
        pq.write_table(rows, path, compression="none", use_dictionary=False)
        data = path.read_bytes()
        physical = Multihash.sha3_256(data)
        path.rename(self.folder / f"data/{physical}")
        interval = OffsetInterval(state.next_offset, state.next_offset + rows.num_rows - 1)
        new = DataSlice(digest.digest(), physical, interval, len(data))
        self.append(AddData(prev_offset=state.last_offset, new_data=new))

    def finish(self) -> RemoteDataset:
        assert self.state is not None
        (self.folder / "refs/head").write_text(str(self.state.head))
        return RemoteDataset(LocalStore(self.folder))


def with_slices(folder: Path, slices: int, rows: int) -> RemoteDataset:
    """A dataset of slices, each of ``rows`` rows of 48 bytes."""
    chance = np.random.default_rng(2013)
    dataset = Dataset(folder)
    dataset.append(Seed(SigningKey(bytes(32)).dataset_id, DatasetKind.ROOT))
    for number in range(slices):
        table = pa.table(
            {
                "offset": np.arange(number * rows, (number + 1) * rows),
                "op": np.zeros(rows, np.int32),
                "system_time": pa.array(np.zeros(rows, np.int64), pa.timestamp("ms", "UTC")),
                "event_time": pa.array(np.zeros(rows, np.int64), pa.timestamp("ms", "UTC")),
                "price": chance.random(rows),
                "volume": chance.integers(0, 2**62, rows),
            }
        )
        if not number:
            dataset.append(SetDataSchema(encode_schema(table.schema)))
        dataset.add(table)
    return dataset.finish()


def hashed_by_hand(files: list[Path]) -> None:
    """What the peer does: both hashes of each file, by the tools that are everywhere."""
    names = [str(path) for path in files]
    subprocess.run(["sha256sum", *names], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["openssl", "dgst", "-sha3-256", *names], check=True, stdout=subprocess.DEVNULL)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def verification(folder: Path, slices: int, rows: int, rounds: int) -> None:
    dataset = with_slices(folder, slices, rows)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        theirs.append(seconds(lambda: hashed_by_hand(files)))
        ours.append(seconds(lambda: verify(dataset).require_ok()))
    print(f"Verifying {slices} slices, {size / 1e6:.0f} MB, in {rounds} rounds")
    for name, times in (("verify", ours), ("sha256sum + openssl dgst -sha3-256", theirs)):
        print(f"  {name:36} {statistics.median(times):7.2f} s  {size / 1e6 / statistics.median(times):7.0f} MB/s")
    print(f"RATIO verify_vs_hashing_twice {statistics.median(ours) / statistics.median(theirs):.3f}")


class Counting:
    """Blocks of a dataset, and how often they were read."""

    def __init__(self, dataset: RemoteDataset) -> None:
        self._dataset = dataset
        self.reads = 0

    def block(self, name: Multihash) -> tuple[bytes, Block]:
        self.reads += 1
        return self._dataset.block(name)


def long_walk(folder: Path, blocks: int) -> None:
    dataset = Dataset(folder)
    dataset.append(Seed(SigningKey(bytes(32)).dataset_id, DatasetKind.ROOT))
    for number in range(1, blocks):
        dataset.append(SetInfo(f"entry {number}"))
    remote = dataset.finish()
    counting = Counting(remote)
    walked = seconds(lambda: sum(1 for _ in iterate_blocks(counting, remote.head())))
    verified = seconds(lambda: verify(remote).require_ok())
    print(f"A chain of {blocks} blocks: walked in {walked:.2f} s, {counting.reads / blocks:.2f} reads a block")
    print(f"  verified in {verified:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller slices and 3 rounds: ends in less than a minute")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        slices, rows, rounds = (4, 1_000_000, 3) if quick else (8, 4_000_000, 5)
        verification(Path(folder) / "slices", slices, rows, rounds)
        long_walk(Path(folder) / "blocks", 10_000)
    if not quick:  # in a process of its own, for it starts Spark
        subprocess.run([sys.executable, Path(__file__).with_name("snapshot_merge.py")], check=True)


if __name__ == "__main__":
    main()
