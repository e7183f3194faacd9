#!/usr/bin/env python3
"""A table by file of what tests took, from the XML that ``pytest --junitxml`` writes: ``timings.py REPORT [LINES]``."""

import sys
from collections import defaultdict
from xml.etree import ElementTree as ET


def main(report: str, lines: str = "60") -> None:
    """Print the files that took longest, each with its longest test, and the sum of all."""
    files = defaultdict[str, list[tuple[float, str]]](list)
    for case in ET.parse(report).iter("testcase"):
        files[case.attrib["file"]].append((float(case.attrib["time"]), case.attrib["name"]))
    sums = {file: sum(seconds for seconds, _ in tests) for file, tests in files.items()}
    print(f"{'seconds':>8} {'tests':>6}  file, and its longest test")
    for file in sorted(sums, key=sums.__getitem__, reverse=True)[: int(lines)]:
        longest, name = max(files[file])
        print(f"{sums[file]:8.1f} {len(files[file]):6}  {file}  {longest:.1f} {name}")
    print(f"{sum(sums.values()):8.1f} {sum(map(len, files.values())):6}  in {len(files)} files")


if __name__ == "__main__":
    main(*sys.argv[1:])
