"""Two sides of a pull request: production, and a branch, each with its clone of the definitions and its own Dagster."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg

from dagster_versioned import Governance
from dagster_versioned.projects.project import Project
from support import shop
from support.dagster_dev import DagsterDev, dagster_dev, tool

LOCATION = "shop"
SENSOR = "keep_current"
PROJECT = "SHOP"
SETTLED = "All are built from current versions"

_DAGSTER = """
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""

_INBOX = {
    "orders": "order,customer,item,pieces,month\n1,1,cup,2,2026-01\n2,2,jug,1,2026-01\n3,1,jug,3,2026-02\n",
    "products": "item,price,currency\ncup,400,EUR\njug,900,USD\nbowl,700,EUR\n",
    "rates": "currency,rate\nEUR,1.0\nUSD,0.5\n",
    "customers": "customer,country\n1,NL\n2,PT\n",
}


@dataclass(frozen=True)
class Shop:
    """What both sides share, below one folder: the remote of the definitions, the inbox, the governed project."""

    folder: Path

    @property
    def remote(self) -> Path:
        """The bare repository of the definitions."""
        return self.folder / "shop.git"

    @property
    def variables(self) -> Mapping[str, str]:
        """Of the processes of either side."""
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith(("DAGSTER_", "GIT_"))},
            "GIT_CONFIG_GLOBAL": str(self.folder / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "XDG_CACHE_HOME": str(self.folder / "cache"),  # of clones of the registry
            "SHOP_INBOX": str(self.folder / "inbox"),
            "DAGSTER_VERSIONED_PROJECT": PROJECT,
            "DAGSTER_VERSIONED_REGISTRY": str(self.folder / "registry.git"),
            "DAGSTER_VERSIONED_GOVERNANCE": str(self.folder / "governance"),
        }

    def project(self) -> Project:
        """Production's tables."""
        return Governance(str(self.folder / "governance"), role="reader").project(PROJECT)

    def receive(self, source: str, rows: str | None = None) -> None:
        """Put a source into the inbox."""
        (self.folder / "inbox").mkdir(exist_ok=True)
        (self.folder / "inbox" / f"{source}.csv").write_text(_INBOX[source] if rows is None else rows)

    def side(self, branch: str) -> "Side":
        """A clone of the remote, on a branch that is made where it is not there, and an empty home of Dagster."""
        side = Side(self, branch)
        side.home.mkdir(parents=True)
        (side.home / "dagster.yaml").write_text(_DAGSTER)
        _run("git", "clone", "--quiet", str(self.remote), str(side.clone), environment=self.variables)
        if branch != "main":
            side.git("switch", "--quiet", "--create", branch)
        return side


def open_shop(folder: Path) -> Shop:
    """A remote whose ``main`` holds the definitions, a registered project without tables, and a full inbox."""
    started = Shop(folder)
    (folder / "gitconfig").write_text(
        "[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"
    )
    for source in _INBOX:
        started.receive(source)
    _run("git", "init", "--quiet", "--bare", str(started.remote), environment=started.variables)
    first = started.side("first")
    shutil.copyfile(shop.__file__, first.clone / f"{LOCATION}.py")
    first.push("The shop")
    first.git("push", "--quiet", "origin", "first:main")
    first.cli("gov", "init")
    first.cli("gov", "register", PROJECT, str(folder / "warehouse"))
    return started


def propose(shop: Shop, branch: str) -> "Side":
    """A pull request that changes revenue, and with it the two assets below it; its environment is made."""
    side = shop.side(branch)
    side.change_code("revenue", "1", "2")
    side.change('.astype({"total": "float64"})', '.assign(total=order_lines["total"] / 1.19)')
    side.push("Revenue without tax")
    side.cli("env", "create", branch)
    return side


@dataclass
class Side:
    """Production (branch ``main``), or a pull request (any other branch, which names the environment as well)."""

    shop: Shop
    branch: str
    _seen: int = field(default=0, init=False)

    @property
    def clone(self) -> Path:
        """Of the definitions."""
        return self.shop.folder / self.branch / "clone"

    @property
    def home(self) -> Path:
        """Of Dagster."""
        return self.shop.folder / self.branch / "dagster"

    @property
    def variables(self) -> Mapping[str, str]:
        """Of its processes."""
        return {
            **self.shop.variables,
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_VERSIONED_ENVIRONMENT": "production" if self.branch == "main" else self.branch,
            "SHOP_CALLS": str(self.home / "calls"),
        }

    def project(self) -> Project:
        """The tables as this side has them."""
        project = self.shop.project()
        return project if self.branch == "main" else project.in_environment(self.branch)

    def calls(self) -> list[str]:
        """Which functions this side has called since this was last asked, in order of the alphabet."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        new, self._seen = lines[self._seen :], len(lines)
        return sorted(new)

    def change(self, old: str, new: str) -> None:
        """Replace a passage of the definitions that is there once."""
        path = self.clone / f"{LOCATION}.py"
        before, found, after = path.read_text().partition(old)
        assert found, f"not there, or more than once: {old}"
        assert old not in after, f"not there, or more than once: {old}"
        path.write_text(before + new + after)

    def change_code(self, asset: str, old: str, new: str) -> None:
        """State another version of its code."""
        head = f'@dg.asset(code_version="{{}}")\n@counted\ndef {asset}('
        self.change(head.format(old), head.format(new))

    def push(self, message: str) -> None:
        """Commit all that changed, and push the branch."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        self.git("push", "--quiet", "--set-upstream", "origin", self.branch)

    def merge(self, branch: str) -> None:
        """Merge a branch of the remote into ``main`` there, as a forge's button does, and pull it."""
        self.git("fetch", "--quiet")
        self.git("merge", "--quiet", "--no-ff", "--message", f"Merge {branch}", f"origin/{branch}")
        self.git("push", "--quiet")

    def git(self, *arguments: str) -> str:
        """What git says in the clone."""
        return _run("git", *arguments, environment=self.variables, folder=self.clone)

    def cli(self, *verb: str, ends: int = 0) -> str:
        """What a verb writes to its standard output."""
        return _run(tool("dagster-versioned"), *verb, environment=self.variables, folder=self.clone, ends=ends)

    def materialize(self, selection: str) -> None:
        """Compute these by hand, in a process of its own."""
        command = (tool("dagster"), "asset", "materialize", "-m", LOCATION, "--select", selection)
        _run(*command, environment=self.variables, folder=self.clone)

    def dagster_dev(self) -> AbstractContextManager[DagsterDev]:
        """With the definitions of the clone."""
        return dagster_dev("-m", LOCATION, log=self.home / "dev.log", folder=self.clone, environment=self.variables)

    @contextmanager
    def instance(self) -> Iterator["Events"]:
        """What Dagster knows of this side."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            yield Events(instance)


@dataclass(frozen=True)
class Events:
    """The runs and ticks of an instance."""

    instance: dg.DagsterInstance

    def runs(self) -> list[dg.DagsterRun]:
        """Those that the sensor requested, newest first."""
        return list(self.instance.get_runs(dg.RunsFilter(tags={"dagster/sensor_name": SENSOR})))

    def ticks(self, since: float) -> list[str]:
        """What each tick that began later has found, newest first; of those that are over."""
        states = [one for one in self.instance.all_instigator_state() if one.instigator_name == SENSOR]
        ticks = [tick for one in states for tick in self.instance.get_ticks(one.instigator_origin_id, one.selector_id)]
        return [
            tick.skip_reason or f"{len(tick.run_ids)} runs requested {tick.error or ''}"
            for tick in ticks
            if tick.timestamp > since and tick.status.value != "STARTED"
        ]

    def is_settled(self, since: float, ticks: int = 1) -> bool:
        """Whether so many newest ticks, all begun later, found everything current, and nothing runs."""
        found = self.ticks(since)[:ticks]
        failed = [run.run_id for run in self.runs() if run.status == dg.DagsterRunStatus.FAILURE]
        assert not failed, f"runs failed: {failed}"
        return len(found) == ticks and all(SETTLED in one for one in found)


def _run(*command: str, environment: Mapping[str, str], folder: Path | None = None, ends: int = 0) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == ends, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
