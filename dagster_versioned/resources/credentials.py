"""Keys for S3 where neither boto3's own chain nor a named profile has them."""

from typing import Any, NoReturn

import dagster as dg
from pydantic import ConfigDict, Field, field_validator

from dagster_versioned.resources.field_values import unless_variable, value_of
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

    _texts = field_validator("access_key", "secret_key", "session_token", mode="wrap")(unless_variable())

    def credentials(self) -> S3Credentials:
        """The keys; called when they are first needed. Raises `InvalidInput` for a variable that is not set."""
        return S3Credentials(
            value_of("access_key", self.access_key),
            value_of("secret_key", self.secret_key),
            value_of("session_token", self.session_token),
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "An S3CredentialsResource is not pickled, because it holds keys. Send the names of the variables, and make "
            "it where it is needed."
        )
