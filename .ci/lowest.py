"""Print a constraints file that pins every dependency of the package to the lowest version pyproject.toml allows."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
optional = project["optional-dependencies"]
requirements = [*project["dependencies"], *optional["pandas"], *optional["polars"]]
floor = re.compile(r"(?P<name>[\w.-]+)>=(?P<version>[\w.]+)")
for requirement in requirements:
    match = floor.match(requirement)
    if match is None:
        sys.exit(f"{requirement!r} in pyproject.toml has no lower bound")
    sys.stdout.write(f"{match['name']}=={match['version']}\n")
