"""Have Metaxy hash by each of its algorithms, and write down what it has: `hashes.json`.

    python record_hashes.py

Run it in a venv with `requirements.txt`. ``texts`` has texts and the versions that Metaxy's engine gives them.
``stores`` has the rows of the tables of small stores, one for each algorithm and length: a root, and what is computed
from it one by one, in groups, and from all its fields.
"""

import json
import logging
import shutil
import tempfile
import warnings
from pathlib import Path

import metaxy as mx
import narwhals as nw
import polars as pl
from deltalake import DeltaTable
from metaxy.config import MetaxyConfig
from metaxy.ext.polars.handlers.delta import DeltaMetadataStore
from metaxy.ext.polars.versioning import PolarsVersioningEngine
from metaxy.metadata_store.system.storage import SystemTableStorage
from metaxy.versioning.types import HashAlgorithm

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

LENGTHS = {"xxhash32": (8, 16), "md5": (8, 64), "sha256": (16, 64), "wyhash": (8, 19, 20)}
SENTENCE = "Übung macht den Meister; 0123456789 | "


def texts() -> list[str]:
    """Of each length up to 68 bytes, and of some around where an algorithm takes another way."""
    ascii_only = (SENTENCE * 20).encode("ascii", "replace").decode()
    return [ascii_only[:n] for n in (*range(69), 95, 96, 97, 127, 128, 129, 239, 240, 241, 600)] + [SENTENCE * 9]


def hashed(algorithm: HashAlgorithm) -> list[str]:
    frame = nw.from_native(pl.DataFrame({"text": texts()}))
    engine = object.__new__(PolarsVersioningEngine)
    return engine.hash_string_column(frame, "text", "hash", algorithm)["hash"].to_list()


def graph() -> mx.FeatureGraph:
    found = mx.FeatureGraph()
    with found.use():
        field = mx.FieldSpec

        class Video(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="video",
                id_columns=["video_id", "part"],
                fields=[field(key="audio", code_version="1"), field(key="frames", code_version="2")],
            ),
        ):
            video_id: str
            part: int

        class Crop(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="crop", id_columns=["video_id", "part"], deps=[Video], fields=[field(key="audio"), field(key="all")]
            ),
        ):
            video_id: str
            part: int

        class Summary(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="summary",
                id_columns=["video_id"],
                deps=[
                    mx.FeatureDep(feature=Crop, lineage=mx.LineageRelationship.aggregation(on=["video_id"])),
                ],
                fields=[field(key="audio", code_version="7")],
            ),
        ):
            video_id: str

    return found


def stored(algorithm: HashAlgorithm, length: int, folder: Path) -> dict:
    MetaxyConfig.set(MetaxyConfig(project="demo", auto_create_tables=True, hash_truncation_length=length))
    store, found = DeltaMetadataStore(folder, hash_algorithm=algorithm), graph()
    samples = pl.DataFrame(
        [
            {"video_id": f"v{n % 3}", "part": n, "metaxy_provenance_by_field": {"audio": f"a{n}", "frames": f"f{n}"}}
            for n in range(6)
        ]
    )
    with found.use(), store.open(mode="w"):
        for key in ("video", "crop", "summary"):
            rows = store.resolve_update(key, samples=samples if key == "video" else None).new
            rows = nw.from_native(rows).to_polars()
            store.write(key, rows.unique(["video_id"], keep="first").drop("part") if key == "summary" else rows)
        SystemTableStorage(store).push_graph_snapshot()
    tables = {}
    for table in sorted(folder.rglob("*.delta")):
        rows = DeltaTable(table).to_pyarrow_table().to_pylist()
        rows = [{name: value for name, value in row.items() if name != "feature_schema"} for row in rows]
        rows.sort(key=lambda row: json.dumps(row, default=str))
        tables[table.relative_to(folder).as_posix()] = rows
    return {"algorithm": algorithm.value, "length": length, "tables": tables}


def main(file: Path) -> None:
    algorithms = PolarsVersioningEngine.supported_hash_algorithms()
    stores = []
    for algorithm in sorted(algorithms, key=lambda each: each.value):
        for length in LENGTHS.get(algorithm.value, (8, 20)):
            folder = Path(tempfile.mkdtemp())
            stores.append(stored(algorithm, length, folder))
            shutil.rmtree(folder)
    vectors = {each.value: hashed(each) for each in algorithms}
    found = {"metaxy": "0.1.11", "texts": texts(), "hashes": vectors, "stores": stores}
    file.write_text(json.dumps(found, sort_keys=True, ensure_ascii=False, default=lambda each: each.isoformat()) + "\n")


if __name__ == "__main__":
    main(Path(__file__).parent / "hashes.json")
