"""The Dagster resource that says which project assets belong to, and where its bytes live."""

import hashlib
import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from dagster_versioned.errors import InvalidInput
from dagster_versioned.extras import requiring
from dagster_versioned.identity.names import PRODUCTION, check_environment_name, check_project_name
from dagster_versioned.process_state import PROCESS
from dagster_versioned.resources.credentials import S3CredentialsResource
from dagster_versioned.resources.field_values import is_variable, unless_variable, value_of
from dagster_versioned.resources.governance import GovernanceResource
from dagster_versioned.storage.location import Location

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project
    from dagster_versioned.tables.external import ExternalTable

Engine = Literal["arrow", "pandas", "polars", "spark"]
"""What an input without an annotation is read as: a pyarrow Table, or a pandas, Polars or PySpark DataFrame."""


ENVIRONMENT_VARIABLE = "DAGSTER_VERSIONED_ENVIRONMENT"

_FRAME_TYPES: Mapping[Engine, tuple[str, str]] = {
    "arrow": ("pyarrow", "Table"),
    "pandas": ("pandas", "DataFrame"),
    "polars": ("polars", "DataFrame"),
    "spark": ("pyspark.sql", "DataFrame"),
}


class ProjectResource(dg.ConfigurableResource[Any]):
    """A project: its name, and the location of its data root or the governance that knows it.

    ``location`` is a local path, ``file:///…`` or ``s3://bucket/prefix?region=…&endpoint_url=…``; it never holds a
    credential. With ``governance`` it can be left out: ref.json says where the project is, and where it is not any more
    is warned of. Keys come from boto3's own chain, from ``profile``, a named profile of the AWS configuration files, or
    from ``credentials``; without either, a governed project is reached with those of its governance.
    ``default_engine`` is what an input without an annotation is read as, ``author`` is recorded with every version.
    With a ``signing_key``, every commit is signed as it is made; one that cannot be opened is refused before that.
    ``environment`` names an environment of the project; ``"production"`` is the project itself, as is stating none.
    Every text can be a `dagster.EnvVar`, also where the resource is used without a run; one that is not set is named.
    Raises `pydantic.ValidationError`, naming the field.
    """

    # A location that is refused may be one with a secret pasted into it.
    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    name: str = Field(description="What the lineage of other projects calls this one.")
    governance: GovernanceResource | None = Field(default=None, description="Who knows where the project is.")
    location: str | None = Field(
        default=None,
        validate_default=True,
        description="A local path, file:///…, s3://…, gs://… or abfss://…; never with credentials in it.",
    )
    profile: str | None = Field(default=None, description="A profile of the AWS configuration files.")
    credentials: S3CredentialsResource | None = Field(default=None, description="Keys, instead of a profile.")
    default_engine: Engine = Field(default="arrow", description="What an input without an annotation is read as.")
    author: str | None = Field(default=None, description="Recorded with every version.")
    environment: str | None = Field(
        default=None, description='One of its environments, such as "pr-142"; "production" is the project itself.'
    )
    signing_key: str | None = Field(
        default=None, description="Signs every version: a file with a private key, or awskms:…, gcpkms:…, azurekms:…."
    )

    _project: "Project | None" = PrivateAttr(default=None)

    _name = field_validator("name", mode="wrap")(unless_variable(check_project_name))
    _texts = field_validator("profile", "author", "signing_key", mode="wrap")(unless_variable())
    _in_environment = field_validator("environment", mode="wrap")(
        unless_variable(lambda name: name in (None, PRODUCTION) or check_environment_name(name))
    )

    @field_validator("location", mode="wrap")
    @classmethod
    def _a_place(cls, location: Any, parse: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if is_variable(location):
            return location
        if parse(location) is not None:
            Location.parse(location)
        elif info.data.get("governance") is None:
            raise ValueError("a project without governance needs a location")
        return location

    def project(self) -> "Project":
        """The project; opened once per resource. Raises `InvalidInput`, and `GovernanceError` for a governed one."""
        if self._project is None:
            from dagster_versioned.tables.state import SharedStates

            self._project = self._opened()
            self._project.loaded = PROCESS.of(SharedStates).by(self._opener())
        return self._project

    def external(self, uri: str, name: str) -> "ExternalTable":
        """A Delta table of no project, reached with the keys of this one. Raises `InvalidInput`."""
        from dagster_versioned.tables.external import ExternalTable

        credentials = self.credentials.credentials if self.credentials else None
        return ExternalTable(uri, name, profile=self.profile, credentials=credentials)

    def frame_type(self) -> type:
        """What the default engine reads as. Raises `MissingExtra`."""
        module, name = _FRAME_TYPES[self.default_engine]
        with requiring(self.default_engine, f"default_engine={self.default_engine!r} of a project"):
            return getattr(import_module(module), name)

    def _opened(self) -> "Project":
        from dagster_versioned.tables.stand_ins import stand_in_for

        if (stand_in := stand_in_for(value_of("name", self.name))) is not None:
            return stand_in
        environment = self._environment()
        production = self._production()
        if key := value_of("signing_key", self.signing_key):
            from dagster_versioned.proof.attest import CommitSigner
            from dagster_versioned.proof.keys import open_signer

            production.observers = (CommitSigner(open_signer(key)),)
        return production if environment is None else production.in_environment(environment)

    def _opener(self) -> str:
        """What two resources have in common that reach the same tables with the same rights; names no key."""
        fields = self.model_dump(exclude={"default_engine", "author", "signing_key"})
        kinds = [
            f"{type(part).__module__}.{type(part).__qualname__}" for part in (self, self.governance, self.credentials)
        ]
        return hashlib.sha256(repr((kinds, fields)).encode()).hexdigest()

    def _environment(self) -> str | None:
        """The environment that is stated, ``None`` for production.

        Raises `InvalidInput` where none is, but the shell's variable names one: who set it does not mean production.
        """
        name = value_of("environment", self.environment)
        shell = os.environ.get(ENVIRONMENT_VARIABLE)
        if name is None and shell and shell != PRODUCTION:
            raise InvalidInput(
                f"{ENVIRONMENT_VARIABLE} is {shell!r}, but the project {value_of('name', self.name)} states no "
                f'environment, so it would be production. Nothing was opened. State environment=EnvVar("'
                f'{ENVIRONMENT_VARIABLE}"), or unset the variable.'
            )
        return None if name == PRODUCTION else name

    def _production(self) -> "Project":
        name, location = value_of("name", self.name), value_of("location", self.location)
        profile, author = value_of("profile", self.profile), value_of("author", self.author)
        credentials = self.credentials.credentials if self.credentials else None
        if self.governance is not None:
            return self.governance.governance().project(
                name, location=location, author=author, profile=profile, credentials=credentials
            )
        from dagster_versioned.projects.project import Project

        assert location is not None  # the validator of a project without governance
        return Project.open(name, location, profile=profile, credentials=credentials, author=author)


def project_of(resource: Any, resource_key: str, untouched: str) -> "Project":
    """The project of an IO manager, or of the resource itself; what is ``untouched`` where it has none, the error says.

    Raises `InvalidInput`.
    """
    found = resource if isinstance(resource, ProjectResource) else getattr(resource, "project", None)
    if not isinstance(found, ProjectResource):
        raise InvalidInput(
            f"The resource {resource_key!r} is a {type(cast('object', resource)).__name__}, which has no project. "
            f"Nothing was {untouched}. Name the VersionedParquetIOManager or a ProjectResource: resource_key='…'."
        )
    return found.project()
