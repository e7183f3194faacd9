"""The Dagster resource that says which project assets belong to, and where its bytes live."""

from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from dagster_versioned.storage.location import Location
from dagster_versioned.tables.project import Project

Engine = Literal["arrow", "pandas", "polars", "spark"]
"""What an input without an annotation is read as: a pyarrow Table, or a pandas, Polars or PySpark DataFrame."""


class ProjectResource(dg.ConfigurableResource[Any]):
    """A project: its name, and the location of its data root.

    ``location`` is a local path, ``file:///…`` or ``s3://bucket/prefix?region=…&endpoint_url=…``; it never holds a
    credential. Those come from the environment or from ``profile``, a named profile of the AWS configuration files.
    ``default_engine`` is what an input without an annotation is read as, ``author`` is recorded with every version.
    Every text can be a `dagster.EnvVar`. Raises `pydantic.ValidationError`, naming the field.
    """

    # A location that is refused may be one with a secret pasted into it.
    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    name: str = Field(description="What the lineage of other projects calls this one.")
    location: str = Field(description="A local path, file:///… or s3://bucket/prefix; never with credentials in it.")
    profile: str | None = Field(default=None, description="A profile of the AWS configuration files.")
    default_engine: Engine = Field(default="arrow", description="What an input without an annotation is read as.")
    author: str | None = Field(default=None, description="Recorded with every version.")

    _project: Project | None = PrivateAttr(default=None)

    @field_validator("name")
    @classmethod
    def _a_name(cls, name: str) -> str:
        if not _is_variable(name):
            Project.open(name, ".")  # whose constructor knows what a name is; nothing is read yet
        return name

    @field_validator("location")
    @classmethod
    def _a_place(cls, location: str) -> str:
        if not _is_variable(location):
            Location.parse(location)
        return location

    def project(self) -> Project:
        """The project; opened once per resource. Raises `InvalidInput`."""
        if self._project is None:
            self._project = Project.open(self.name, self.location, profile=self.profile, author=self.author)
        return self._project


def _is_variable(text: str) -> bool:
    """Whether the text stands for an environment variable, which has no value before a run."""
    return isinstance(text, dg.EnvVar)
