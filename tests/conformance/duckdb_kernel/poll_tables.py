"""Run in a venv that has DuckDB: read the column `n` of Delta tables over and over, until standard input is closed.

Takes the tables' folders as arguments. Prints for each read one line of JSON: the folder, the times at which it began
and ended, and what was read, sorted; or the error.
"""

import json
import sys
import threading
import time
from pathlib import Path

import duckdb
import duckdb_extension_delta

connection = duckdb.connect()
connection.execute("set autoinstall_known_extensions = false")
(extension,) = Path(duckdb_extension_delta.__file__).parent.glob("extensions/*/delta.duckdb_extension")
connection.execute(f"load '{extension}'")
closed = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
while True:
    is_last = closed.is_set()
    for folder in sys.argv[1:]:
        began = time.time()
        try:
            found = connection.execute(f"select n from delta_scan('{folder}')").fetchall()
            answer = {"n": sorted(n for (n,) in found)}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        print(json.dumps({"folder": folder, "began": began, "ended": time.time(), **answer}), flush=True)
    if is_last:
        break
