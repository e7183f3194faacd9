"""A git that knows nobody's real configuration, but Ada's."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def git_identity(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The global configuration of git, for this test alone: Ada's; and a cache of its own for clones."""
    return isolated_git(tmp_path_factory, monkeypatch)


def isolated_git(folders: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have git know Ada alone, until ``monkeypatch`` ends; its global configuration."""
    config = folders.mktemp("git") / "config"
    config.write_text("[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n")
    for name in [name for name in os.environ if name.startswith("GIT_") and name != "GIT_SSL_CAINFO"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders.mktemp("cache")))
    return config
