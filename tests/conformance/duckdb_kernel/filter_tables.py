"""Run in a venv that has DuckDB: the ids of the rows of Delta tables of which conditions are true.

Reads lines of JSON, `{"folder": "<table>", "conditions": ["<SQL>", …]}`, and prints for each a line with a list of ids
(the column `n`), or the error, for each condition.
"""

import json
import sys
from pathlib import Path

import duckdb
import duckdb_extension_delta

(extension,) = Path(duckdb_extension_delta.__file__).parent.glob("extensions/*/delta.duckdb_extension")


def connect():
    made = duckdb.connect()
    made.execute("set autoinstall_known_extensions = false")
    made.execute("set TimeZone = 'UTC'")
    made.execute(f"load '{extension}'")
    return made


connection = connect()
for line in sys.stdin:
    asked = json.loads(line)
    answers = []
    for condition in asked["conditions"]:
        try:
            found = connection.execute(f"select n from delta_scan('{asked['folder']}') where {condition}").fetchall()
            answers.append(sorted(n for (n,) in found))
        except duckdb.Error as error:
            answers.append(str(error)[:300])
            if isinstance(error, (duckdb.FatalException, duckdb.InternalException)):  # it answers nothing any more
                connection = connect()
    print(json.dumps(answers), flush=True)
