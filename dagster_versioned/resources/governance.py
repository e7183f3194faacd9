"""The Dagster resource that says where an organization's governance is, and in which role it is used."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from dagster_versioned.governance.connect import STALE_AFTER, Governance, Role
from dagster_versioned.governance.git_remote import cached_clone, remote_url
from dagster_versioned.resources.credentials import S3CredentialsResource
from dagster_versioned.resources.field_values import is_variable, unless_variable, value_of
from dagster_versioned.storage.location import Location

if TYPE_CHECKING:
    from dagster_versioned.governance.registry import Registry

_ROLES: tuple[Role, ...] = get_args(Role)


def _require_role(role: str) -> None:
    if role not in _ROLES:
        raise ValueError(f"the role is {' or '.join(map(repr, _ROLES))}")


def _require_hour(hours: int) -> None:
    if hours < 1:
        raise ValueError("it is at least 1 hour")


class GovernanceResource(dg.ConfigurableResource[Any]):
    """The governance of an organization's projects: its storage, and the registry for a developer.

    A ``developer`` writes, and has a clone of the registry: the folder ``clone``, which is cloned from ``registry``
    where it is not there yet (without ``clone``: a folder in the user's cache). A ``reader`` only reads, and has
    neither. Keys come from boto3's own chain, from ``profile``, or from ``credentials``; no other field may hold one.
    Every field can be a `dagster.EnvVar`. Raises `pydantic.ValidationError`, naming the field.
    """

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    storage: str = Field(description="The governance storage: a local path, file:///…, s3://…, gs://… or abfss://….")
    role: str = Field(default="developer", description="'developer' (writes, has a clone) or 'reader'.")
    registry: str | None = Field(default=None, description="The registry's git remote, for a developer.")
    clone: str | None = Field(
        default=None, validate_default=True, description="The folder of a developer's clone of the registry."
    )
    stale_after_hours: int = Field(
        default=int(STALE_AFTER / timedelta(hours=1)),
        description="How long ago the clone may have been fetched before each connection warns.",
    )
    profile: str | None = Field(default=None, description="A profile of the AWS configuration files.")
    credentials: S3CredentialsResource | None = Field(default=None, description="Keys, instead of a profile.")

    _governance: Governance | None = PrivateAttr(default=None)

    _storage = field_validator("storage", mode="wrap")(unless_variable(Location.parse))
    _profile = field_validator("profile", mode="wrap")(unless_variable())
    _role = field_validator("role", mode="wrap")(unless_variable(_require_role))
    _remote = field_validator("registry", mode="wrap")(unless_variable(lambda url: url is None or remote_url(url)))
    _age = field_validator("stale_after_hours", mode="wrap")(unless_variable(_require_hour))

    @field_validator("clone", mode="wrap")
    @classmethod
    def _one_that_the_role_has(cls, clone: Any, parse: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        role = info.data.get("role")
        if not is_variable(clone):
            parse(clone)
        if is_variable(role) or "registry" not in info.data:
            return clone
        has_one = clone is not None or info.data["registry"] is not None
        if role == "developer" and not has_one:
            raise ValueError("a developer needs a clone of the registry: give clone, or registry to clone from")
        if role == "reader" and has_one:
            raise ValueError("a reader has no clone: leave clone and registry out, or use role='developer'")
        return clone

    def governance(self) -> Governance:
        """The governance; opened once per resource. Raises `GovernanceError`, `RegistryUnavailable`, `InvalidInput`."""
        if self._governance is None:
            role: Role = "developer" if value_of("role", self.role) == "developer" else "reader"
            self._governance = Governance(
                value_of("storage", self.storage),
                role=role,
                registry=self._registry() if role == "developer" else None,
                stale_after=timedelta(hours=value_of("stale_after_hours", self.stale_after_hours)),
                profile=value_of("profile", self.profile),
                credentials=self.credentials.credentials if self.credentials else None,
            )
        return self._governance

    def _registry(self) -> "Registry":
        """The developer's clone; a network is only used to make it."""
        from dagster_versioned.governance.registry import Registry  # a reader needs no git

        remote, clone = value_of("registry", self.registry), value_of("clone", self.clone)
        if remote is None:
            return Registry.open(Path(str(clone)))
        return Registry.clone(remote, Path(clone) if clone else cached_clone("registries", remote))
