"""The harnesses, each for a bounded time, from the corpus beside this file and from the tables made by others."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fuzz_harnesses import HARNESSES, chosen_by

HERE = Path(__file__).parent
CONFORMANCE = Path(__file__).parents[3] / "shared" / "conformance" / "delta"


@cache
def seeds() -> tuple[tuple[str, bytes], ...]:
    """Pairs of a harness and bytes to begin with."""
    return tuple(read_seeds())


def read_seeds() -> Iterator[tuple[str, bytes]]:
    for file in sorted((HERE / "corpus").glob("*/*")):
        yield file.parent.name, file.read_bytes()
        if file.parent.name == "stats":
            yield "skipping", file.read_bytes()
    for log in sorted(CONFORMANCE.rglob("_delta_log"))[::5]:
        for file in sorted(log.glob("*.json"))[:3]:
            if file.stat().st_size < 10_000:
                yield "commit", file.read_bytes()
                yield from inside(file.read_bytes())
        if (hint := log / "_last_checkpoint").exists():
            yield "last_checkpoint", hint.read_bytes()


def inside(commit: bytes) -> Iterator[tuple[str, bytes]]:
    for line in commit.splitlines():
        try:
            action = json.loads(line)
        except ValueError:
            continue
        if metadata := action.get("metaData"):
            yield "schema", metadata.get("schemaString", "").encode()
        if add := action.get("add"):
            if add.get("stats"):
                yield from ((name, add["stats"].encode()) for name in ("stats", "skipping"))
            for text in (add.get("partitionValues") or {}).values():
                yield from (("values", bytes([kind]) + (text or "").encode()) for kind in range(4, 14, 3))


RUNS = 1_500
"""Seeds and a few seconds of others, where nobody says how long."""


def own_megabytes() -> int:
    """What this process had at its largest, which Linux passes on to what it starts as the peak of that."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def fuzz(name: str, corpus: Path, artifacts: Path, seconds: float | None) -> None:
    pytest.importorskip("atheris", reason="atheris is there for Linux, up to CPython 3.13")
    if seconds is None:
        # Neither luck nor a clock has a say: an old bug is not found in the middle of another change.
        effort = ["-seed=1", f"-runs={RUNS}", "-reload=0", "-timeout=120"]
    else:
        effort = [f"-max_total_time={max(1, round(seconds))}", "-timeout=20"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "support.fuzz_program", name, str(corpus)),
            *(
                *effort,
                "-max_len=4096",
                f"-rss_limit_mb={own_megabytes() + 2048}",
                "-close_fd_mask=0",
                f"-artifact_prefix={artifacts}/",
            ),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=None if seconds is None else seconds + 600,
        cwd=HERE.parent,
        check=False,
    )
    found = [file.read_bytes() for file in artifacts.iterdir()]
    assert done.returncode == 0, f"{name} by {found}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Done" in done.stderr, done.stderr[-3000:]


@pytest.mark.timeout(1200)
def test_every_parser_a_little(tmp_path: Path, seconds: float | None) -> None:
    corpus, artifacts = tmp_path / "corpus", tmp_path / "artifacts"
    corpus.mkdir()
    artifacts.mkdir()
    for i, (name, data) in enumerate(seeds()):
        (corpus / f"{i}").write_bytes(chosen_by(name) + data)
    fuzz("any", corpus, artifacts, seconds)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", HARNESSES)
def test_one_parser_for_longer(tmp_path: Path, name: str, seconds: float | None) -> None:
    corpus, artifacts = tmp_path / "corpus", tmp_path / "artifacts"
    corpus.mkdir()
    artifacts.mkdir()
    for i, (of, data) in enumerate(seeds()):
        if of == name:
            (corpus / f"{i}").write_bytes(data)
    fuzz(name, corpus, artifacts, seconds)


@pytest.mark.parametrize("name", HARNESSES)
def test_the_corpus(name: str) -> None:
    """What was found once stays found, where there is no fuzzer, too."""
    known = [data for of, data in seeds() if of == name]
    assert known
    for data in known:
        HARNESSES[name](data)


@pytest.mark.parametrize("name", HARNESSES)
@given(data=st.data())
def test_mutated_seeds(name: str, data: st.DataObject) -> None:
    """Without a fuzzer's patience, and everywhere: seeds cut, joined and overwritten."""
    known = [seed[:2_000] for of, seed in seeds() if of == name]
    mutated = bytearray(data.draw(st.sampled_from(known)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        mutated[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6) | st.sampled_from(TOKENS))
    HARNESSES[name](bytes(mutated))


TOKENS = [b"null", b"{}", b"[]", b'"', b"\\ud800", b"-1", b"1e999", b"9" * 25, b"\xff", b"\0", b"true", b"{", b"}\n{"]
