"""Who commits, as the log has it: how far an application is, and what a person remarks."""

from dataclasses import dataclass
from typing import Any, Self

from dagster_versioned.delta.actions import Txn
from dagster_versioned.delta.commit.transaction import now_ms
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Provenance:
    """``txn``: the identifier under which a write is committed at most once; ``user_metadata``: a remark of one's own.

    Protocol: *Transaction Identifiers*, *Commit Provenance Information*.
    """

    txn: Txn | None = None
    user_metadata: str | None = None

    @classmethod
    def of(cls, app_id: str | None, version: int | None, user_metadata: str | None) -> Self:
        """Raises `InvalidInput` where only one of ``app_id`` and ``version`` is given, or something is of no use."""
        # Calls of users are not checked for their types.
        if user_metadata is not None and not isinstance(user_metadata, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"user_metadata is {user_metadata!r:.50}; it is text. Nothing was written.")
        if app_id is None and version is None:
            return cls(None, user_metadata)
        if not app_id or version is None:
            raise InvalidInput(
                f"app_id ({app_id!r:.100}) and version ({version!r}) go together: the application, and how far it is"
                " with this write. Nothing was written. Pass both, or none."
            )
        if type(version) is not int or not 0 <= version < 2**63:
            raise InvalidInput(
                f"The version of {app_id!r:.100} is {version!r:.50}, which is no number of 0 or more. Nothing was"
                " written."
            )
        return cls(Txn(app_id, version, now_ms()), user_metadata)

    @property
    def commit_info(self) -> dict[str, Any]:
        """What of it is in the ``commitInfo``, by the reference's name."""
        return {} if self.user_metadata is None else {"userMetadata": self.user_metadata}

    def is_committed(self, read: Snapshot | None) -> bool:
        """Whether the table has this write of the application already, or a later one."""
        known = None if read is None or self.txn is None else read.txns.get(self.txn.app_id)
        return known is not None and self.txn is not None and known.version >= self.txn.version


UNNAMED = Provenance()
