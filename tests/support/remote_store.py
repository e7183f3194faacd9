"""A store whose objects are not files of this machine, as far as anyone above the storage waist can see."""

from pathlib import Path

from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import StoreWrapper


class RemoteStore(StoreWrapper):
    """A local store that says of no key where its file is, as S3 does; nor do its subfolders."""

    def __init__(self, root: Path | str) -> None:
        super().__init__(LocalStore(root))

    def local_path(self, key: str) -> None:
        return None
