"""A Connect session in a process of its own, since it cannot share one with a classic session: see `edge_readers`."""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from support.edge_readers import asked_of_spark, where
from support.spark import SETTINGS


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Java prints
    builder = SparkSession.builder.remote("local[1]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        asked = json.loads(line)
        found = asked_of_spark(where(spark, Path(asked["folder"])), asked["conditions"])
        print(json.dumps(found), file=answers, flush=True)
