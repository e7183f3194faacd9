"""Run in a venv that has DuckDB: the head of each Delta table, as DuckDB's kernel reads it, into a Parquet file.

Takes `{"<table folder>": "<file to write>", …}` on standard input. Needs no network: the signed extension comes from
its wheel.
"""

import json
import sys
from pathlib import Path

import duckdb
import duckdb_extension_delta


def main() -> None:
    connection = duckdb.connect()
    connection.execute("set autoinstall_known_extensions = false")
    (extension,) = Path(duckdb_extension_delta.__file__).parent.glob("extensions/*/delta.duckdb_extension")
    connection.execute(f"load '{extension}'")
    for folder, target in json.load(sys.stdin).items():
        source = folder.replace("'", "''")
        connection.execute(f"copy (select * from delta_scan('{source}')) to '{target}' (format parquet)")


main()
