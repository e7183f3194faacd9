"""Have the reference read, and append to, the tables that we make; write its answers to `ours.json`.

    PYTHONPATH=tests python tests/conformance/delta_spark/record_ours.py PYTHON

`PYTHON` is that of a venv with `requirements.txt`.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from support.made_tables import TABLES, build

HERE = Path(__file__).parent


def main(python: str) -> None:
    """Make the tables, and ask."""
    with TemporaryDirectory() as root:
        asked = {
            name: {"folder": str(build(name, Path(root))), "append": table.append} for name, table in TABLES.items()
        }
        command = [python, str(HERE / "read_tables.py"), str(HERE / "ours.json")]
        subprocess.run(command, input=json.dumps(asked), text=True, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
