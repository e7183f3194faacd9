"""Have the reference make a shallow clone, and write down what it reads from it: `clone/`.

    python make_clone.py

Run it in a venv with `requirements.txt`. ``clone/base`` is the table that was cloned, ``clone/table`` the clone, and
``clone/expected.json`` what the clone holds, as `make_tables` has it. The clone names the files of the base by where
they were; in what is kept, that place is called `PLACE`, and who reads the clone puts its own instead.
"""

import json
import shutil
import tempfile
from pathlib import Path

from make_tables import expected
from reference import reference_session

HERE = Path(__file__).parent / "clone"
PLACE = "/the/place/of/the/clone"
STATEMENTS = """
CREATE TABLE {base} (n INT, p STRING) USING delta PARTITIONED BY (p)
TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true');
INSERT INTO {base} SELECT /*+ COALESCE(1) */ id, concat('p ', id % 3) FROM range(30);
DELETE FROM {base} WHERE n = 3;
CREATE TABLE {table} SHALLOW CLONE {base};
INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, 'p 1' FROM range(100, 103);
DELETE FROM {table} WHERE n IN (3, 4, 6, 101);
UPDATE {table} SET n = n + 1000 WHERE p = 'p 2' AND n < 10;
DELETE FROM {table} WHERE p = 'p 0'
"""


def main() -> None:
    """Make both tables."""
    with tempfile.TemporaryDirectory() as place, reference_session() as spark:
        names = {name: f"delta.`{place}/{name}`" for name in ("base", "table")}
        for statement in STATEMENTS.split(";"):
            spark.sql(statement.format(**names)).collect()
        found = expected(spark, Path(place, "table"))
        shutil.rmtree(HERE, ignore_errors=True)
        # Without what cannot be edited; the log is whole without it.
        derived = shutil.ignore_patterns("*.crc", "*.checkpoint.parquet", "_last_checkpoint")
        shutil.copytree(place, HERE, ignore=derived)
    for commit in (HERE / "table" / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace(place, PLACE))
    (HERE / "expected.json").write_text(json.dumps(found, indent=1, ensure_ascii=False).replace(place, PLACE) + "\n")


if __name__ == "__main__":
    main()
