"""Have the reference read the head of each table: `{"<folder>": …}` on standard input, the rows as lines to a file.

Runs in a venv with `requirements.txt`.
"""

import json
import sys
from pathlib import Path

import canonical
from reference import reference_session

with reference_session() as spark:
    asked = json.load(sys.stdin)
    found = {folder: canonical.lines_of_frame(spark.read.format("delta").load(folder)) for folder in asked}
Path(sys.argv[1]).write_text(json.dumps(found))
