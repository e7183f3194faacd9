"""Keys for S3 where neither boto3's own chain nor a named profile has them."""

from typing import Any, NoReturn

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_versioned.storage.credentials import S3Credentials


class S3CredentialsResource(dg.ConfigurableResource[Any]):
    """One set of S3 keys, each a `dagster.EnvVar`, so that Dagster stores and shows the variable's name alone.

    Not shown by ``repr``, and refused by pickle. A subclass may get keys from anywhere else: it gives the fields a
    default and overrides `credentials`, which is asked again before an expiration.
    """

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    access_key: str = Field(repr=False, description="The access key id; a dg.EnvVar.")
    secret_key: str = Field(repr=False, description="The secret access key; a dg.EnvVar.")
    session_token: str | None = Field(default=None, repr=False, description="A session token; a dg.EnvVar.")

    def credentials(self) -> S3Credentials:
        """The keys; called when they are first needed."""
        return S3Credentials(self.access_key, self.secret_key, self.session_token)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "An S3CredentialsResource is not pickled, because it holds keys. Send the names of the variables, and make "
            "it where it is needed."
        )
