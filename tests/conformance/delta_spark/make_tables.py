"""Have the reference make the tables of `scripts/`, and write down what it reads from them.

    python make_tables.py [NAME …]

Run it in a venv with `requirements.txt`. Where no table is named, those are made that are not there yet.

A table goes to `tables/NAME`, what it holds to `expected/NAME.json`: for each version the operation, the schema, the
number of rows and the rows as `canonical.lines`; the change feed as far as the table has one; the row ids of the last
version where the table tracks rows.
"""

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import canonical
from reference import reference_session

HERE = Path(__file__).parent


def statements(script: str) -> list[str]:
    """The statements of a script, and its directives (`-- ! …`), in order."""
    parts = re.split(r";\s*$|^(-- ! .*)$", script, flags=re.MULTILINE)
    return [
        part.strip()
        for text in parts
        if text and (part := re.sub(r"^-- (?!!).*$", "", text, flags=re.MULTILINE)).strip()
    ]


def make(spark: Any, name: str, folder: Path) -> None:
    """Run the script of one table."""
    shutil.rmtree(folder, ignore_errors=True)
    touched: dict[str, str | None] = {}
    for statement in statements((HERE / "scripts" / f"{name}.sql").read_text()):
        if statement.startswith("-- ! age "):
            age(folder, int(statement.rpartition(" ")[2]))
        elif statement.startswith("-- ! create "):
            create(spark, folder, json.loads(statement.removeprefix("-- ! create ")))
        elif setting := re.fullmatch(r"SET (\S+) = (\S+)", statement):
            touched.setdefault(setting[1], spark.conf.get(setting[1], None))
            spark.conf.set(setting[1], setting[2])
        else:
            filled = statement.replace("{t}", f"delta.`{folder}`").replace("{path}", str(folder))
            spark.sql(filled.replace("{name}", name)).collect()
    for key, value in touched.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)
    for checksum in folder.rglob(".*.crc"):  # of Hadoop's local file system
        checksum.unlink()


def age(folder: Path, days: int) -> None:
    """Move the times of all files of a log into the past, a minute apart."""
    for number, file in enumerate(sorted((folder / "_delta_log").iterdir())):
        then = time.time() - days * 86400 + number * 60
        os.utime(file, (then, then))


def create(spark: Any, folder: Path, table: dict[str, Any]) -> None:
    """Create a table with columns that SQL does not know: generated ones, and identity columns by start and step."""
    from delta.tables import DeltaTable, IdentityGenerator

    builder = DeltaTable.create(spark).location(str(folder)).partitionedBy(*table.get("partitionedBy", []))
    for name, kind, *more in table["columns"]:
        options = {
            key: IdentityGenerator(*value) if isinstance(value, list) else value
            for options in more
            for key, value in options.items()
        }
        builder = builder.addColumn(name, kind, **options)
    builder.execute()


def expected(spark: Any, folder: Path) -> dict[str, Any]:
    """What the reference reads from a table."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{folder}`").collect()
    versions = {str(row["version"]): state(spark, folder, row) for row in sorted(history, key=lambda r: r["version"])}
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{folder}`").first()
    return {
        "protocol": [detail["minReaderVersion"], detail["minWriterVersion"]],
        "features": sorted(detail["tableFeatures"] or []),
        "versions": versions,
        "changes": changes(spark, folder, detail["properties"], versions),
        "row_ids": row_ids(spark, folder, detail["properties"]),
    }


def state(spark: Any, folder: Path, entry: Any) -> dict[str, Any]:
    """One version; `error` where the reference cannot read it."""
    found = {"operation": entry["operation"]}
    try:
        frame = spark.read.format("delta").option("versionAsOf", entry["version"]).load(str(folder))
        lines = canonical.lines_of_frame(frame)
        return found | {
            "schema": json.loads(frame.schema.json()),
            "rows": len(lines),
            "lines": lines,
        }
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the reference's answer
        return found | {"error": str(error).splitlines()[0][:300]}


def changes(spark: Any, folder: Path, properties: dict[str, str], versions: dict[str, Any]) -> dict[str, Any] | None:
    """The change feed of all the versions that have one."""
    if properties.get("delta.enableChangeDataFeed") != "true":
        return None
    failure: Exception | None = None
    for first in map(int, versions):
        reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first)
        try:
            lines = canonical.lines_of_frame(reader.load(str(folder)).drop("_commit_timestamp"))
        except Exception as error:  # noqa: BLE001 - the feed begins later, or never, which is raised below
            failure = error
            continue
        return {"from": first, "lines": lines}
    raise failure or ValueError(f"{folder} has no versions")


def row_ids(spark: Any, folder: Path, properties: dict[str, str]) -> list[str] | None:
    """The rows of the last version with their ids and commit versions."""
    if properties.get("delta.enableRowTracking") != "true":
        return None
    frame = spark.read.format("delta").load(str(folder))
    return canonical.lines_of_frame(frame.selectExpr("*", "_metadata.row_id", "_metadata.row_commit_version"))


def main(names: list[str]) -> None:
    """Make the tables of these names."""
    scripts = sorted(script.stem for script in (HERE / "scripts").glob("*.sql"))
    wanted = names or [name for name in scripts if not (HERE / "expected" / f"{name}.json").exists()]
    (HERE / "expected").mkdir(exist_ok=True)
    failed: list[str] = []
    with reference_session() as spark:
        for name in wanted:
            folder = HERE / "tables" / name
            begun = time.monotonic()
            try:
                make(spark, name, folder)
                found = expected(spark, folder)
            except Exception as error:  # noqa: BLE001 - the others are made all the same
                print(f"{name}: {error}".replace("\n", "\n    ")[:1500], file=sys.stderr, flush=True)
                shutil.rmtree(folder, ignore_errors=True)
                failed.append(name)
                continue
            text = json.dumps(found, indent=1, ensure_ascii=False)
            (HERE / "expected" / f"{name}.json").write_text(text + "\n")
            print(f"{name}: {len(found['versions'])} versions, {time.monotonic() - begun:.0f} s", flush=True)
    if failed:
        sys.exit(f"Not made: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
