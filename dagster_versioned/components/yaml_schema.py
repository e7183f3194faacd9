"""What the YAML of a component may hold, as JSON schema: `dg check yaml` names file and line of what does not fit."""

from functools import cache
from typing import Any, cast

from pydantic import BaseModel

Schema = dict[str, Any]

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

    class Checked(model):
        @classmethod
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> Schema:
            return _tightened(super().model_json_schema(*args, **kwargs))

    Checked.__name__ = Checked.__qualname__ = model.__name__
    return Checked


def _tightened(schema: Schema) -> Schema:
    models = (schema, *schema.get("$defs", {}).values())
    for one in models:
        if "properties" in one:
            one["properties"] = {name: _or_template(field) for name, field in one["properties"].items()}
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
