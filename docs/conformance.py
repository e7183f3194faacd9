"""Write the page on tables of other writers, or with --check say whether it is current.

python docs/conformance.py [--check]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.delta_tables import ABSENT, EXPECTED, PAGE, page

if __name__ == "__main__":
    if not EXPECTED:
        sys.exit(ABSENT)
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE.name} is not current; run: python docs/conformance.py")
