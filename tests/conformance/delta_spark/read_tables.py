"""Have the reference read tables, every version of them, and append a row to each.

Takes `{"<name>": {"folder": "…", "append": "INSERT INTO {t} …"}, …}` on standard input, in a venv with
`requirements.txt`, and writes what it found to the file that is named: as `make_tables.expected` gives it, with
`appended`: the rows after the append, or the error instead.
"""

import json
import sys
from pathlib import Path
from typing import Any

import canonical
from make_tables import expected
from reference import reference_session


def appended(spark: Any, folder: Path, statement: str) -> dict[str, Any]:
    """The rows once one was appended; `error` where the reference cannot append."""
    try:
        spark.sql(statement.replace("{t}", f"delta.`{folder}`")).collect()
        return {"lines": canonical.lines_of_frame(spark.read.format("delta").load(str(folder)))}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the reference's answer
        return {"error": str(error).splitlines()[0][:300]}


def main(target: Path) -> None:
    """Read what standard input asks for."""
    answers: dict[str, Any] = {}
    with reference_session() as spark:
        for name, table in json.load(sys.stdin).items():
            folder = Path(table["folder"])
            try:
                answers[name] = expected(spark, folder)
            except Exception as error:  # noqa: BLE001 - the others are read all the same
                answers[name] = {"error": str(error).splitlines()[0][:300]}
                continue
            answers[name]["appended"] = appended(spark, folder, table["append"])
    target.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
