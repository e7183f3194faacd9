"""How fast does a migration copy, beside ``aws s3 sync`` on the same S3 server and the same files?

Run with ``python benchmarks/migrate.py [--quick]``. The files are those of a project: large parts, small parts and many
commits. They go from a folder to a bucket, from there to another bucket of the server, and back to a folder; both
contestants list both ends and copy what differs, each in a process of its own, imports included.

The AWS CLI wants versions of its own of botocore and docutils, so it lives in a virtual environment of its own, beside
the one that runs this script (``.venv-awscli`` beside ``.venv``). It is made there on the first run, as by
``python -m venv .venv-awscli && .venv-awscli/bin/pip install awscli==1.46.3``, which takes a minute more.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from rounds import print_ratios, ratio

from dagster_versioned.storage import Location, open_store
from dagster_versioned.storage.transfer import Transfer
from support.s3_server import S3Server, running_s3_server

AWSCLI = "awscli==1.46.3"
MEGABYTE = 1024**2


def aws_command() -> Path:
    """The AWS CLI, installed if it is not there."""
    home = Path(f"{sys.prefix}-awscli")
    command = home / "bin" / "aws"
    if not command.exists():
        print(f"installing {AWSCLI} into {home}")
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, AWSCLI], check=True, stderr=subprocess.DEVNULL)
    return command


def fill(folder: Path, *, large: int, small: int, commits: int) -> int:
    """A table's files: returns their bytes."""
    chance = random.Random(1)
    log = folder / "datom" / "flights" / "_delta_log"
    log.mkdir(parents=True)
    for size, count in ((32 * MEGABYTE, large), (100_000, small)):
        for _ in range(count):
            data = chance.randbytes(size)
            (log.parent / f"{chance.randbytes(32).hex()}.parquet").write_bytes(data)
    for number in range(commits):
        (log / f"{number:020d}.json").write_bytes(chance.randbytes(3_000))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def copy(source: str, target: str) -> None:
    """What a migration does between two places, and what this script runs as a process of its own."""
    ends = [open_store(Location.parse(uri)) for uri in (source, target)]
    here, there = ({found.key: found for found in end.list()} for end in ends)
    Transfer(*ends).copy_all([found for key, found in here.items() if key not in there])


def seconds(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def contestants(aws: Path, server: S3Server) -> dict[str, Callable[[str, str], float]]:
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": server.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        # Neither computes checksums beyond those that the server asks for.
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }

    def ours(source: str, target: str) -> float:
        ends = [Location.parse(uri).model_copy(update=place(uri)).uri for uri in (source, target)]
        return seconds([sys.executable, __file__, "--copy", *ends], environment)

    def place(uri: str) -> dict[str, str]:
        return {"endpoint_url": server.endpoint_url} if uri.startswith("s3:") else {}

    def theirs(source: str, target: str) -> float:
        options = ["--endpoint-url", server.endpoint_url, "--no-progress", "--only-show-errors"]
        return seconds([str(aws), "s3", "sync", source, target, *options], environment)

    return {"dagster-versioned": ours, "aws s3 sync": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer files, 2 rounds: ends in less than 50 seconds")
    parser.add_argument("--copy", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.copy:
        copy(*arguments.copy)
        return
    files = (
        {"large": 2, "small": 60, "commits": 200} if arguments.quick else {"large": 10, "small": 300, "commits": 1000}
    )
    rounds = 2 if arguments.quick else 3
    aws = aws_command()
    with running_s3_server() as server, tempfile.TemporaryDirectory(dir=".") as scratch:
        origin = Path(scratch, "origin")
        size = fill(origin, **files)
        taken: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds + 1):
            for name, run in contestants(aws, server).items():
                first, second, folder = server.new_bucket(), server.new_bucket(), Path(scratch, "back")
                legs = [
                    ("local -> S3", str(origin), f"s3://{first}/"),
                    ("S3 -> S3", f"s3://{first}/", f"s3://{second}/"),
                    ("S3 -> local", f"s3://{second}/", str(folder)),
                ]
                for leg, source, target in legs:
                    spent = run(source, target)
                    if number:  # the first round is for caches
                        taken.setdefault((leg, name), []).append(spent)
                arrived = sum(
                    path.stat().st_size for path in folder.rglob("*") if path.is_file() and ".tmp" not in path.parts
                )
                assert arrived == size, f"{name} lost something"
                shutil.rmtree(folder)
    medians = {key: statistics.median(found) for key, found in taken.items()}
    for (leg, name), median in medians.items():
        print(f"{leg:<12} {name:<18} {size / median / MEGABYTE:7.1f} MiB/s  {median:.2f} s of {taken[leg, name]}")
    legs = dict.fromkeys(leg for leg, _ in medians)
    ours, theirs = (sum(medians[leg, name] for leg in legs) for name in ("dagster-versioned", "aws s3 sync"))
    print_ratios(ratio("migrate_throughput_vs_aws_s3_sync", ours, theirs))


if __name__ == "__main__":
    main()
