"""Write down what Metaxy says of 50 scenarios: `increments.jsonl`.

    cd tests; METAXY_PYTHON=/venv/bin/python python -m conformance.metaxy.record_increments

``METAXY_PYTHON`` has `requirements.txt`; this script runs in the project's own environment. Scenarios that Metaxy
cannot answer, such as one in which a feature is computed from one that never had a sample, are passed over.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from conformance.metaxy.scenarios import scenario

HERE = Path(__file__).parent


def answered(seeds: Iterator[int]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Scenarios with what Metaxy says of their steps."""
    command = [os.environ["METAXY_PYTHON"], str(HERE / "run_scenarios.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as metaxy:
        assert metaxy.stdin is not None
        assert metaxy.stdout is not None
        try:
            for seed in seeds:
                asked = scenario(seed)
                metaxy.stdin.write(json.dumps(asked) + "\n")
                metaxy.stdin.flush()
                answer = json.loads(metaxy.stdout.readline())
                if isinstance(answer, list):
                    yield asked, answer
                else:
                    print(f"scenario {seed}: Metaxy has no answer: {answer.splitlines()[0]}")
        finally:
            metaxy.stdin.close()


def main() -> None:
    """Record."""
    with (HERE / "increments.jsonl").open("w", encoding="utf-8") as file:
        for asked, answer in islice(answered(count()), 50):
            line = {"scenario": asked, "metaxy": answer}
            file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
