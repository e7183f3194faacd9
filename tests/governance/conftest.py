"""A registry on disk with a bare repository as its remote, and a git that knows nobody's real configuration."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_versioned.governance.git_remote import remote_url
from dagster_versioned.governance.git_repository import GitRepository
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import LocalStore, Location
from dagster_versioned.storage.wrappers import CountingStore
from support.git_identity import git_identity, isolated_git
from support.governed import Governed, Opener, fill
from support.tmpfs import scratch

__all__ = ["git_identity"]

GitLog = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _isolated(git_identity: Path) -> None:
    """Every test has a git of its own."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that is possible, the registry included."""
    with scratch() as folder:
        yield folder


@pytest.fixture
def git() -> Callable[..., str]:
    """Run git in a folder; what it says."""

    def run(folder: Path, *arguments: str, data: str | None = None) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, input=data).stdout

    return run


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """Where the registry's bare repository is, or will be."""
    return tmp_path / "registry.git"


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new registry, ``registry.git``, and Ada's clone of it, ``ada``: to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as monkeypatch:
        isolated_git(tmp_path_factory, monkeypatch)
        Registry.init(str(folder / "registry.git"), folder / "ada")
    return folder


@pytest.fixture
def registry(begun: Path, remote: Path, tmp_path: Path) -> Registry:
    """A new registry and Ada's clone of it."""
    shutil.copytree(begun / "registry.git", remote, dirs_exist_ok=True)
    ada = shutil.copytree(begun / "ada", tmp_path / "ada")
    config = ada / "config"
    config.write_text(config.read_text().replace(str(begun / "registry.git"), str(remote)))
    return Registry(GitRepository(ada, remote_url(str(remote))))


@pytest.fixture
def other(registry: Registry, tmp_path: Path) -> Registry:
    """Another developer's clone."""
    return Registry.clone(registry.remote, tmp_path / "grace")


@pytest.fixture
def mirror(tmp_path: Path) -> GovernanceStore:
    return GovernanceStore(LocalStore(tmp_path / "governance"))


@pytest.fixture
def governed(registry: Registry, mirror: GovernanceStore, tmp_path: Path) -> Governed:
    """A project in the local folder ``old``."""
    begun = Governed.begin(registry, mirror, Location.parse(str(tmp_path / "old")), Opener())
    fill(begun.at(begun.home))
    return begun


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def storage(tmp_path: Path) -> CountingStore:
    """The governance storage; it counts what is asked of it."""
    return CountingStore(LocalStore(tmp_path / "governance"))


@pytest.fixture
def log(remote: Path, git: Callable[..., str]) -> Callable[[], list[str]]:
    """The subjects of the registry's commits, oldest first."""
    return lambda: git(remote, "log", "--reverse", "--format=%s", "main").splitlines()


@pytest.fixture
def by_hand(tmp_path: Path, remote: Path, git: Callable[..., str]) -> Callable[[Callable[[Path], object]], None]:
    """Change the files of the registry as a person with an editor would, and push."""

    def edit(change: Callable[[Path], object]) -> None:
        work = tmp_path / "by-hand"
        if not work.exists():
            git(tmp_path, "clone", "--quiet", str(remote), str(work))
        git(work, "pull", "--quiet")
        change(work)
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "--message", "By hand")
        git(work, "push", "--quiet", "origin", "HEAD:main")

    return edit
