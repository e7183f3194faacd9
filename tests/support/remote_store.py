"""A store whose objects are not files of this machine, as far as anyone above the storage waist can see."""

from typing import Any

from dagster_versioned.storage import LocalStore


class RemoteStore:
    """A local store that says of no key where its file is, as S3 does."""

    def __init__(self, root: Any) -> None:
        self._inner = LocalStore(root)

    def local_path(self, key: str) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
