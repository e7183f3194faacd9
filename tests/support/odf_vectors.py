"""What other programs made of Open Data Fabric's encodings: beside the repository, in ``../shared/conformance/odf``."""

import json
from pathlib import Path
from typing import Any

ROOT = (Path(__file__).resolve().parents[3] / "shared" / "conformance" / "odf").resolve()
ABSENT = "../shared/conformance/odf is not here (CI has it, a clone has not)"

BLOCKS: list[dict[str, Any]] = json.loads((ROOT / "blocks.json").read_text()) if ROOT.is_dir() else []
ARROW0: dict[str, Any] = json.loads((ROOT / "arrow0.json").read_text()) if ROOT.is_dir() else {}
