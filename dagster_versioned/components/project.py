"""`VersionedProjectComponent`: where assets are stored, and what keeps them current, in YAML."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, cast

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field, field_validator

from dagster_versioned.extras import requiring
from dagster_versioned.identity.version import Scope
from dagster_versioned.io_managers.open_lineage import OpenLineageResource
from dagster_versioned.io_managers.parquet import VersionedParquetIOManager
from dagster_versioned.resources.governance import GovernanceResource
from dagster_versioned.resources.project import Engine, ProjectResource
from dagster_versioned.sensors.version_sensor import build_version_sensor

Schema = dict[str, Any]
"""What the YAML of a component may hold, as JSON schema: `dg check yaml` names file and line of what does not fit."""

IS_TEMPLATE: Schema = {"type": "string", "pattern": r"\{\{[\s\S]*\}\}"}
"""Text that becomes a value, of whatever type, when the component is loaded."""

LOCATION: Schema = {
    # Text that begins as a URI does, but not as one of these, is no path: `dagster_versioned.storage.location` has why.
    "pattern": r"^(s3a?://[^/]|gs://[^/]|az://[^/]|abfss?://[^/]|file:///|dbfs:/Volumes/"
    r"|(?![A-Za-z][A-Za-z0-9+.-]*:|\\\\)\S)"
}
PROJECT_NAME: Schema = {"pattern": r"^[^\s/]([^/]*[^\s/])?$"}
DAGSTER_NAME: Schema = {"pattern": "^[A-Za-z0-9_]+$"}
TEXT: Schema = {"minLength": 1}

_OF_THE_FIELD = ("title", "description", "default", "examples")


@cache
def checked(model: type[BaseModel]) -> type[BaseModel]:
    """The model that Dagster derives of a component, with a schema that holds its values to what they may be.

    Dagster's own lets every value be text, since any can be a template, so that it refuses no wrong text at all.
    """

    class CheckedModel(model):
        @classmethod
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> Schema:
            return _tightened(super().model_json_schema(*args, **kwargs))

    CheckedModel.__name__ = CheckedModel.__qualname__ = model.__name__
    return CheckedModel


def _tightened(schema: Schema) -> Schema:
    models = (schema, *schema.get("$defs", {}).values())
    for model in models:
        if "properties" in model:
            model["properties"] = {name: _or_template(field) for name, field in model["properties"].items()}
    # A project that no governance knows says where it is.
    location = {"required": ["location"], "properties": {"location": {"type": "string"}}}
    needs = {"project": {"if": {"type": "object"}, "then": location}}
    return {**schema, "if": {"properties": {"governance": {"type": "null"}}}, "then": {"properties": needs}}


def _or_template(field: Schema) -> Schema:
    """The schema of a field whose text is a template or fits; with `else` in the place of `anyOf`, a fault in what the
    field holds is reported where it is."""
    shown = {key: value for key, value in field.items() if key in _OF_THE_FIELD}
    rules = {key: value for key, value in field.items() if key not in _OF_THE_FIELD}
    allowed = IS_TEMPLATE
    if (kinds := cast("list[Schema]", rules.pop("anyOf", []))) != []:
        if {"type": "null"} in kinds:
            allowed = {**IS_TEMPLATE, "type": ["string", "null"]}
        kinds = [kind for kind in kinds if kind != {"type": "null"}]
        values = [kind for kind in kinds if kind != {"type": "string"}] or kinds  # a field of text is of text alone
        rules |= values[0] if len(values) == 1 else {"anyOf": values}
    return {**shown, "if": allowed, "then": {}, "else": rules}


def _texts(context: dg.ResolutionContext, tags: Mapping[str, Any]) -> dict[str, str]:
    """Tags with text for values, which YAML and templates take for numbers; truth as Dagster's own tags spell it."""
    values = {name: context.resolve_value(value, as_type=object) for name, value in tags.items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


class ProjectSettings(dg.Model, dg.Resolvable):
    """The project, as `ProjectResource` takes it; keys for S3 are the environment's, or those of a profile."""

    name: str = Field(json_schema_extra=PROJECT_NAME, description="What the lineage of other projects calls this one.")
    location: str | None = Field(
        default=None,
        json_schema_extra=LOCATION,
        description="A local path, file:///…, s3://…, gs://… or abfss://…; with governance it can be left out.",
    )
    profile: str | None = Field(
        default=None, json_schema_extra=TEXT, description="A profile of the AWS configuration files."
    )
    default_engine: Engine = Field(default="arrow", description="What an input without an annotation is read as.")
    author: str | None = Field(default=None, json_schema_extra=TEXT, description="Recorded with every version.")
    environment: str | None = Field(
        default=None,
        json_schema_extra=TEXT,
        description="One of its environments, such as pr-142; production is the project itself.",
    )

    @field_validator("environment", mode="before")
    @classmethod
    def _not_null(cls, name: Any) -> Any:
        """What is given and null is a variable that is not set, by which nobody means production."""
        if name is None:
            raise ValueError("it is given and null: set its variable, or say production")
        return name


class GovernanceSettings(dg.Model, dg.Resolvable):
    """The governance that knows where the project is, as `GovernanceResource` takes it."""

    storage: str = Field(
        json_schema_extra=LOCATION,
        description="The governance storage: a local path, file:///…, s3://…, gs://… or abfss://….",
    )
    role: Literal["developer", "reader"] = Field(default="developer", description="A reader only reads.")
    registry: str | None = Field(
        default=None, json_schema_extra=TEXT, description="The registry's git remote, for a developer."
    )
    clone: str | None = Field(
        default=None, json_schema_extra=TEXT, description="The folder of a developer's clone of the registry."
    )
    profile: str | None = Field(
        default=None, json_schema_extra=TEXT, description="A profile of the AWS configuration files."
    )


class PySparkSettings(dg.Model, dg.Resolvable):
    """The session of Spark, as dagster-pyspark's ``LazyPySparkResource`` takes it: started where Spark is needed."""

    spark_config: Mapping[str, Any] = Field(
        default={}, description="Spark's configuration, such as spark.master, or spark.remote for Connect."
    )

    def resource(self) -> dg.ConfigurableResource[Any]:
        """The resource. Raises `MissingExtra`."""
        with requiring("spark", "A component with pyspark:"):
            from dagster_pyspark import LazyPySparkResource
        return LazyPySparkResource(spark_config=dict(self.spark_config))


class OpenLineageSettings(dg.Model, dg.Resolvable):
    """Events of OpenLineage, as `OpenLineageResource` takes it; where they go is in the client's own variables."""

    namespace: str = Field(default="dagster", json_schema_extra=TEXT, description="The namespace of jobs.")


class SensorSettings(dg.Model, dg.Resolvable):
    """A sensor over a selection of assets, as `build_version_sensor` takes it."""

    name: str = Field(json_schema_extra=DAGSTER_NAME, description="The sensor's name.")
    target: str = Field(
        json_schema_extra=TEXT,
        description="A selection of assets to keep current, as in the UI: 'group:delays', 'key:daily*'.",
    )
    # Called `on` everywhere else, which YAML 1.1 takes for true.
    compare: Literal["metadata_sha", "data_sha"] = Field(
        default="metadata_sha", description="What of an upstream counts; data_sha: its data alone."
    )
    on_code_version: bool = Field(default=False, description="Whether another code version makes a target stale.")
    wait_for_checks: bool = Field(
        default=True, description="Whether a version is handed on only once its asset's blocking checks have passed."
    )
    scope: Scope = Field(
        default="changed",
        description="In an environment: what is not current because of it, or (all) also what was not when it began.",
    )
    max_runs_per_tick: int = Field(
        default=25, json_schema_extra={"minimum": 1}, description="The rest follows on later ticks."
    )
    minimum_interval_seconds: int = Field(
        default=30, json_schema_extra={"minimum": 0}, description="Seconds between two ticks."
    )
    running: bool = Field(default=False, description="Whether the sensor runs before somebody turns it on.")
    run_tags: Annotated[Mapping[str, str], dg.Resolver(_texts, model_field_type=Mapping[str, str | int | bool])] = (
        Field(default={}, description="Tags of the runs, such as dagster/max_retries.")
    )
    description: str | None = Field(default=None, description="What the UI says of it.")

    def sensor(self) -> dg.SensorDefinition:
        """The sensor. Raises `InvalidInput`."""
        return build_version_sensor(
            self.name,
            dg.AssetSelection.from_string(self.target),
            on=self.compare,
            on_code_version=self.on_code_version,
            wait_for_checks=self.wait_for_checks,
            scope=self.scope,
            max_runs_per_tick=self.max_runs_per_tick,
            minimum_interval_seconds=self.minimum_interval_seconds,
            default_status=dg.DefaultSensorStatus.RUNNING if self.running else dg.DefaultSensorStatus.STOPPED,
            run_tags=self.run_tags,
            description=self.description,
        )


class ScaffoldSettings(BaseModel):
    """What `dg scaffold defs` asks for."""

    name: str = Field(default="PROJECT", description="What the lineage of other projects calls this one.")
    location: str = Field(default="warehouse", description="A local path, file:///…, s3://…, gs://… or abfss://….")


class VersionedProjectScaffolder(dg.Scaffolder[ScaffoldSettings]):
    """Writes a component with a project, and a sensor over everything that is not running yet."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldSettings]:
        return ScaffoldSettings

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldSettings]) -> None:
        """Write ``defs.yaml``, or ``component.py`` where Python is asked for."""
        sensor = {"name": "keep_current", "target": "*", "compare": "metadata_sha", "running": False}
        project = {"name": request.params.name, "location": request.params.location}
        scaffold_component(request, {"project": project, "sensors": [sensor]})


@dg.scaffold_with(VersionedProjectScaffolder)
class VersionedProjectComponent(dg.Component, dg.Model, dg.Resolvable):
    """Assets as versions of the tables of a project, and sensors that keep them current.

    Defines the IO manager (`VersionedParquetIOManager`) that every asset of the code location uses, unless it names
    another, and a sensor (`build_version_sensor`) for each entry of ``sensors``.
    """

    project: ProjectSettings = Field(description="Where the tables are.")
    governance: GovernanceSettings | None = Field(default=None, description="Who knows where the project is.")
    io_manager_key: str = Field(
        default="io_manager", json_schema_extra=DAGSTER_NAME, description="The resource key of the IO manager."
    )
    preview_rows: int = Field(
        default=0,
        json_schema_extra={"minimum": 0, "maximum": 100},
        description="Rows that a materialization shows in Dagster; they go into its event log.",
    )
    pyspark: PySparkSettings | None = Field(default=None, description="The session of Spark, where one is needed.")
    open_lineage: OpenLineageSettings | None = Field(
        default=None, description="Sends events of each output to OpenLineage; with {}, in the namespace dagster."
    )
    sensors: Sequence[SensorSettings] = Field(default=[], description="What keeps which assets current.")

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """What the YAML is read as, and checked against by ``dg check yaml``."""
        return checked(cls.model())

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The IO manager and the sensors. Raises `InvalidInput`, and `pydantic.ValidationError` naming the field."""
        governance = GovernanceResource(**self.governance.model_dump()) if self.governance is not None else None
        project = ProjectResource(governance=governance, **self.project.model_dump())
        manager = VersionedParquetIOManager(
            project=project,
            preview_rows=self.preview_rows,
            pyspark=self.pyspark.resource() if self.pyspark is not None else None,
            open_lineage=OpenLineageResource(**self.open_lineage.model_dump())
            if self.open_lineage is not None
            else None,
        )
        return dg.Definitions(
            resources={self.io_manager_key: manager},
            sensors=[settings.sensor() for settings in self.sensors],
        )
