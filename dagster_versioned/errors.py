"""Every error that this package raises on purpose, as one small tree.

A message says what happened, the value that caused it, what is untouched, and what to do next.
"""


class VersionedError(Exception):
    """Root of the tree: catch this to catch everything the package raises on purpose."""


class InvalidInput(VersionedError, ValueError):
    """What the caller passed cannot be used; nothing was written."""


class InvalidName(InvalidInput):
    """A table name, asset key, partition key or storage key that is refused."""


class InvalidExpression(InvalidInput):
    """A condition or another expression (SQL) cannot be used; the message quotes it, and values that it met."""


class InvalidReference(InvalidInput):
    """A version reference that cannot be parsed (too short, not hex, not a time)."""


class InvalidMetadata(InvalidInput):
    """User metadata that has no canonical JSON form."""


class UnsupportedFrame(InvalidInput):
    """A value, or an annotation, that no engine can write or read."""


class UnsupportedType(InvalidInput):
    """A column whose type cannot be stored without loss; names the column and the type."""


class EmptyTable(InvalidInput):
    """A frame with no columns, or with no rows where ``allow_empty`` was not given."""


class VersionNotFound(VersionedError, LookupError):
    """No version answers to the reference, or the table does not exist."""


class TableNotFound(VersionNotFound):
    """The table has no log, so nothing was ever written under this name; or it was dropped."""


class AmbiguousVersion(VersionNotFound):
    """A prefix that several versions share; the message lists them."""


class ExpiredVersion(VersionNotFound):
    """The version is in the history, but its bytes were expired or purged."""


class EnvironmentNotFound(VersionedError, LookupError):
    """A project has no environment of the name, or has it no more."""


class IntegrityError(VersionedError):
    """Stored bytes are not what was committed (altered, truncated or missing)."""


class LogCorrupt(IntegrityError):
    """The transaction log breaks its protocol; names the file, the line and the reason."""


class ChainCorrupt(IntegrityError):
    """A metadata chain breaks its rules, or a block cannot be decoded; names the block and the reason."""


class UnsupportedFeature(VersionedError):
    """The table needs a feature of Delta, or of the metadata chain, that is not implemented; names the feature."""


class MissingExtra(VersionedError, ImportError):
    """A library that is installed by choice is not there, or is too old or too new; names it and how to install it."""


class CommitConflict(VersionedError):
    """A concurrent commit makes this one invalid; nothing of it was committed."""


class HeldHead(VersionedError):
    """The head is held by a person; release it first."""


class StorageError(VersionedError):
    """A storage operation failed; names the operation, the key and the place."""


class ObjectNotFound(StorageError, LookupError):
    """No object under the key."""


class AlreadyExists(StorageError):
    """``put_if_absent`` found an object with other bytes under the key."""


class PreconditionFailed(StorageError):
    """``put_if_match`` found another ETag than the one expected."""


class AccessDenied(StorageError):
    """The store refused the operation (403, read-only folder, missing permission)."""


class StoreUnavailable(StorageError):
    """The store did not answer, or ran out of room, after the configured retries."""


class GovernanceError(VersionedError):
    """A governance document, or the registry that holds it, cannot be used; names the document and the reason."""


class ProjectMoved(GovernanceError):
    """The bytes do not belong at the place that was opened (any more, or not yet); nothing was written there."""


class RegistryUnavailable(GovernanceError):
    """The registry's remote did not answer, or refused; what was to be recorded is not recorded."""


class RegistryConflict(GovernanceError):
    """Somebody else recorded what contradicts this, or the remote's history was rewritten; nothing was recorded."""


class MethodRefused(InvalidInput):
    """A dispatch document names a method that is not allowed here, or not installed; it was not called."""
