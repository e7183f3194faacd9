"""What signing adds to a commit, what a signature costs, and how long a trace over many versions takes.

Run with ``python benchmarks/proof.py [--quick]``. Signing is measured beside the same write without a key, and the
statement with its envelope beside `securesystemslib`, which signs the same bytes. The trace is over 10,000 versions of
60 tables, each built from those before it, beside `deltalake`, which reads the history of each of the tables; calls of
the store are counted, for 10,000 versions and for a tenth of them.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import pyarrow as pa
from deltalake import DeltaTable
from rounds import alternate, print_ratios, ratio
from securesystemslib.dsse import Envelope as TheirEnvelope
from securesystemslib.signer import CryptoSigner

from dagster_versioned import Project
from dagster_versioned.proof.attest import CommitSigner
from dagster_versioned.proof.envelope import PAYLOAD_TYPE, Envelope
from dagster_versioned.proof.keys import PrivateKey
from dagster_versioned.proof.statement import Place, provenance
from dagster_versioned.proof.trace import trace
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.document import encode
from support.call_log import CallLog


def signed_and_plain(folder: Path, rounds: int) -> None:
    """Print what a signature adds to the write of a small table."""
    key = PrivateKey.generate()
    signed, plain = (Project.open("P", str(folder / name)) for name in ("signed", "plain"))
    signed.observers = (CommitSigner(key),)
    seconds: dict[str, list[float]] = {"signed": [], "plain": []}
    for number in range(rounds + 5):
        for name, project in (("signed", signed), ("plain", plain))[:: 1 if number % 2 else -1]:
            rows = pa.table({"v": [number, number + 1]})
            start = time.perf_counter()
            project.table("t").write(rows)
            if number >= 5:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(each) * 1000 for name, each in seconds.items()}
    added = medians["signed"] - medians["plain"]
    print(f"a small commit  plain {medians['plain']:.2f} ms, signed {medians['signed']:.2f} ms: {added:.2f} ms more")


def envelopes(folder: Path, rounds: int) -> str:
    """The ratio of seconds of a statement with its envelope over those of the peer's envelope alone."""
    project = Project.open("P", str(folder / "one"))
    project.table("t").write(pa.table({"v": [1]}))
    record = project.table("t").state.history.record(0)
    place, key, theirs = Place("P", "t"), PrivateKey.generate(), CryptoSigner.generate_ed25519()
    payload = encode(provenance(place, record))

    def ours() -> None:
        for _ in range(200):
            Envelope.sign(encode(provenance(place, record)), key).to_bytes()

    def peer() -> None:
        for _ in range(200):
            envelope = TheirEnvelope(payload, PAYLOAD_TYPE, {})
            envelope.sign(theirs)
            encode(envelope.to_dict())

    medians = alternate({"200 statements, ours": ours, "200 envelopes, securesystemslib": peer}, rounds)
    return ratio("statement/securesystemslib's envelope", *medians.values())


def built(folder: Path, tables: int, versions: int) -> str:
    """A project of so many versions, each built from the two that were written before it, in so many tables in turn."""
    project = Project.open("P", str(folder))
    for number in range(versions):
        before = [project.table(f"t{each % tables}") for each in range(max(number - 2, 0), number)]
        parents = [upstream for table in before for upstream in table.upstream()]
        project.table(f"t{number % tables}").write(pa.table({"v": [number]}), parents=parents)
    return str(folder)


def traced(uri: str, last: int) -> tuple[int, int]:
    """How many versions a trace of the last one has, and how many calls of the store it took."""
    store = CallLog(LocalStore(Path(uri)))
    found = trace(Project("P", store), f"t{last}")
    return len(found.versions), len(store.calls)


def main() -> None:
    """Measure all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="600 versions in 20 tables, fewer rounds")
    given = parser.parse_args()
    tables, versions, rounds = (20, 600, 3) if given.quick else (60, 10_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        signed_and_plain(Path(folder), 40 if given.quick else 200)
        signing = envelopes(Path(folder), rounds)
        uri = built(Path(folder, "many"), tables, versions)
        few = built(Path(folder, "few"), tables, versions // 10)
        for place, size in ((few, versions // 10), (uri, versions)):
            count, calls = traced(place, (size - 1) % tables)
            print(f"{place.rpartition('/')[2]}: {count:,} versions in a trace, {calls:,} calls of the store")

        def ours() -> None:
            trace(Project.open("P", uri), f"t{(versions - 1) % tables}")

        def peer() -> None:
            for number in range(tables):
                DeltaTable(f"{uri}/datom/t{number}").history()

        name, other = f"trace of {versions:,} versions", "deltalake, history of each table"
        medians = alternate({name: ours, other: peer}, rounds, quick=given.quick)
        print_ratios(signing, ratio("trace/deltalake's histories", *medians.values()))


if __name__ == "__main__":
    main()
