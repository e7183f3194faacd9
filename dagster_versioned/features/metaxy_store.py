"""Reading a Metaxy store of Delta tables: its features, as it recorded them, and their samples with their versions.

Static versions are hashed as Metaxy hashes them, and those of samples are with the store's `SampleHash`, so nothing
that is taken over is computed again. Source: seed 004; Metaxy 0.1, its store of Delta tables.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic import Field as Member

from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.engines.samples import (
    DATA_VERSION_BY_FIELD,
    LONGEST,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SEPARATOR,
    SYSTEM_COLUMNS,
    SYSTEM_PREFIX,
    SampleHash,
    require_columns,
)
from dagster_versioned.engines.sql import arrow_rows, database, register
from dagster_versioned.errors import IntegrityError, InvalidInput, TableNotFound, UnsupportedFeature
from dagster_versioned.features.arrow.samples import hashed, member_of, quoted
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, FieldsMapping, Lineage
from dagster_versioned.features.graph import LONGEST as LONGEST_STATIC
from dagster_versioned.features.graph import SHORTEST, FeatureGraph
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.opening import open_store

NEWEST = (0, 1)
"""The newest series of Metaxy whose stores are read."""

_DEFINITIONS = "metaxy-system/feature_versions"
_FEATURE_VERSION, _UPDATED, _DELETED = "metaxy_feature_version", "metaxy_updated_at", "metaxy_deleted_at"
_HASHES_CHECKED = 1000


class MetaxyStore:
    """A Metaxy store, by the folder that it keeps its tables in; it is only read."""

    def __init__(self, location: str | ObjectStore, *, profile: str | None = None) -> None:
        """``location``: a local path or a URI (``s3://…``, ``gs://…``, ``abfss://…``); ``profile``: of AWS's files.

        Raises `InvalidInput` for a location that is none.
        """
        self._store = open_store(location, profile=profile) if isinstance(location, str) else location

    def graph(self) -> FeatureGraph:
        """The definitions that were pushed to the store: of each feature the last.

        Raises `InvalidInput` where none were, `UnsupportedFeature` for a store of a newer Metaxy, and `IntegrityError`
        where the versions that it recorded are not those that follow from the definitions.
        """
        raw = self._read(_DEFINITIONS).to_pylist()
        for members in raw:
            self._check_version(members)
        rows = map(self._recorded, raw)
        latest = {row.feature_key: row for row in sorted(rows, key=lambda row: row.recorded_at)}
        recorded = {key: row for key, row in latest.items() if row.deleted_at is None}
        length = max((len(row.metaxy_feature_version) for row in recorded.values()), default=SHORTEST)
        graph = FeatureGraph(map(self._feature, recorded.values()), length)
        for key, row in recorded.items():
            found = graph.versions(key).feature
            if found != row.metaxy_feature_version:
                raise IntegrityError(
                    f"{self._store.uri} recorded the version {row.metaxy_feature_version!r} of feature {key!r}, but"
                    f" {found} follows from its definition. Nothing was taken over. If an upstream of it changed since,"
                    " push the whole graph with Metaxy once more."
                )
        return graph

    def samples(self, graph: FeatureGraph, key: str) -> pa.Table:
        """The samples of a feature's present version, each as it was written last, without those that were deleted.

        The columns are the user's own and `SYSTEM_COLUMNS`; what Metaxy says of time and runs is left out. Raises
        `TableNotFound`, and `InvalidInput` for a table that lacks columns or versions.
        """
        import duckdb

        feature = graph[key]
        rows = self._read(key, f"{_FEATURE_VERSION} = '{graph.versions(key).feature}'")
        what = f"The table of {key!r} in {self._store.uri}"
        times = (_UPDATED, _DELETED)
        require_columns(what, rows.column_names, (*feature.id_columns, *SYSTEM_COLUMNS, _FEATURE_VERSION, *times))
        ids = ", ".join(map(quoted, feature.id_columns))
        latest = (
            f"row_number() OVER (PARTITION BY {ids} ORDER BY coalesce({_DELETED}, {_UPDATED}) DESC, {_DELETED} DESC)"
        )
        with database() as connection:
            register(connection, "written", rows)
            try:
                present = arrow_rows(
                    connection.execute(
                        f"SELECT * FROM (SELECT * FROM written QUALIFY {latest} = 1)"
                        f" WHERE {_DELETED} IS NULL ORDER BY {ids}"
                    )
                )
            except duckdb.Error as error:
                reason = str(error).partition("\n")[0]
                raise InvalidInput(
                    f"{what} has columns of other types than Metaxy gives them: {reason:.200}. Nothing was taken over."
                    " Leave the feature out: it will be computed anew."
                ) from error
        own = [name for name in present.column_names if not name.startswith(SYSTEM_PREFIX)]
        table = present.select(own)
        members = sorted(field.member for field in feature.fields)
        for name in SYSTEM_COLUMNS:
            values = present.column(name)
            if name in (PROVENANCE_BY_FIELD, DATA_VERSION_BY_FIELD):
                values = pa.StructArray.from_arrays([_version(present, name, each) for each in members], members)
            elif values.null_count:
                raise _without_version(what, name)
            table = table.append_column(name, values)
        return table

    def hash(self, graph: FeatureGraph) -> SampleHash:
        """How the store's samples were hashed; it is found out from them, since the store does not say.

        Raises `InvalidInput` where no feature has samples, and `UnsupportedFeature` where it is no algorithm of
        `SampleHash`.
        """
        for feature in graph:
            try:
                samples = self.samples(graph, feature.key).slice(0, _HASHES_CHECKED)
            except TableNotFound:
                continue
            if samples.num_rows:
                return _hash_of(samples, f"The samples of {feature.key!r} in {self._store.uri}", graph.hash_length)
        raise InvalidInput(f"No feature has samples in {self._store.uri}. Nothing was read that could tell their hash.")

    def _read(self, key: str, condition: str | None = None) -> pa.Table:
        nested, flat = f"{key}.delta", f"{key.replace('/', '__').replace('-', '_')}.delta"
        for folder in (nested, flat):
            try:
                return read_delta(self._store.subfolder(folder), filter=condition)
            except TableNotFound:
                continue
        raise TableNotFound(
            f"{self._store.uri} has no table of {key!r}: neither {nested} nor {flat}. Nothing was read. Check the "
            "location, and that Metaxy wrote to it."
        )

    def _check_version(self, row: Mapping[str, Any]) -> None:
        try:
            version = str(orjson.loads(orjson.loads(row["tags"])["metaxy"])["version"])
        except (ValueError, KeyError, TypeError):
            return  # unknown: what follows from the definitions is compared with what was recorded
        numbers = re.match(r"(\d{1,6})\.(\d{1,6})", version)
        if numbers is None or (int(numbers[1]), int(numbers[2])) > NEWEST:
            raise UnsupportedFeature(
                f"{self._store.uri} was written by Metaxy {version:.50}, and stores up to Metaxy "
                f"{'.'.join(map(str, NEWEST))} are known. Nothing was read. Upgrade: `pip install --upgrade "
                "dagster-versioned`."
            )

    def _recorded(self, members: Mapping[str, Any]) -> "_RecordedFeature":
        try:
            return _RecordedFeature.model_validate(members)
        except ValidationError as error:
            raise self._not_understood(members.get("feature_key"), error) from None

    def _feature(self, row: "_RecordedFeature") -> Feature:
        try:
            return _Spec.model_validate_json(row.feature_spec).feature()
        except ValidationError as error:
            raise self._not_understood(row.feature_key, error) from None

    def _not_understood(self, key: object, error: ValidationError) -> UnsupportedFeature:
        faults = error.errors(include_input=False, include_url=False, include_context=False)[:5]
        described = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        return UnsupportedFeature(
            f"The definition of {key!r:.100} that {self._store.uri} recorded cannot be understood: {described}. Nothing"
            " was read. State the feature in Python, and take its samples over with that."
        )


def _version(rows: pa.Table, column: str, member: str) -> Any:
    """One member of a column of versions; Metaxy may keep them as maps."""
    kind = cast("pa.DataType", rows.schema.field(column).type)
    texts: Any
    if pa.types.is_map(kind):
        found: Any = pc.call_function("map_lookup", [rows[column]], pc.MapLookupOptions(pa.scalar(member), "first"))
        texts = found.cast(pa.string()).combine_chunks()
    else:
        texts = member_of(rows, column, member).combine_chunks()
    if texts.null_count:
        raise _without_version(f"{texts.null_count} samples", f"{column}.{member}")
    return texts


def _without_version(what: str, column: str) -> InvalidInput:
    return InvalidInput(
        f"{what} have no {column}. Nothing was taken over. Have Metaxy compute them, or leave the feature out: it will "
        "be computed anew."
    )


def _hash_of(samples: pa.Table, what: str, static: int) -> SampleHash:
    """How samples were hashed; ``static`` is the length of static versions, to which Metaxy cuts both."""
    versions: Any = samples.column(PROVENANCE_BY_FIELD).combine_chunks()
    texts = pc.call_function("binary_join_element_wise", [*versions.flatten(), pa.scalar(SEPARATOR)])
    known = list(map(str, samples.column(PROVENANCE).to_pylist()))
    for algorithm, longest in LONGEST.items():
        whole = hashed(SampleHash(cast("Any", algorithm), longest), texts).to_pylist()
        # As numbers, some are shorter than they could be, and not because they were cut.
        cut = {len(each) for each, full in zip(known, whole, strict=True) if len(each) < len(full)}
        length = min(cut or {static if static >= max(map(len, known)) else longest})
        if length >= SHORTEST and known == [full[:length] for full in whole]:
            return SampleHash(cast("Any", algorithm), min(length, longest))
    raise UnsupportedFeature(
        f"{what} are hashed by none of {', '.join(LONGEST)}: {known[0]!r:.100}, for one. Nothing was read. They look "
        "like stale ones, so the feature has to be computed anew."
    )


# --- definitions as Metaxy writes them: what it does not know of is refused by name ----------------------------------


def _as_text(key: object) -> object:
    """A key as text; it may be a list of its parts."""
    return "/".join(map(str, cast("list[object]", key))) if isinstance(key, list) else key


_Key = Annotated[str, BeforeValidator(_as_text)]
_ALL = "__METAXY_ALL_DEP__"


class _Members(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _RecordedFeature(BaseModel):
    """A row of the table of definitions, as far as it is needed."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    feature_key: str
    metaxy_feature_version: Annotated[str, Member(pattern=f"^[0-9a-f]{{{SHORTEST},{LONGEST_STATIC}}}$")]
    recorded_at: datetime
    feature_spec: str
    deleted_at: datetime | None = None


class _FieldDep(_Members):
    feature: _Key
    fields: list[_Key] | Literal["__METAXY_ALL_DEP__"] = _ALL


class _Field(_Members):
    key: _Key
    code_version: str
    deps: list[_FieldDep] | Literal["__METAXY_ALL_DEP__"] = []


class _Mapping(_Members):
    type: Literal["default", "specific", "all", "none"]
    match_suffix: bool = False
    exclude_fields: list[_Key] = []
    mapping: dict[str, list[_Key]] = {}


class _FieldsMapping(_Members):
    mapping: _Mapping


class _Relationship(_Members):
    type: Literal["1:1", "N:1", "1:N"]
    on: list[str] | None = None
    id_generation_pattern: str | None = None


class _Lineage(_Members):
    relationship: _Relationship


class _FeatureDep(_Members):
    feature: _Key
    select: list[str] | None = None
    rename: dict[str, str] | None = None
    fields_mapping: _FieldsMapping = _FieldsMapping(mapping=_Mapping(type="default"))
    filters: Annotated[list[str] | None, Member(validation_alias=AliasChoices("sql_filters", "filters"))] = None
    lineage: _Lineage = _Lineage(relationship=_Relationship(type="1:1"))
    optional: bool = False

    def dep(self) -> FeatureDep:
        mapping, relationship = self.fields_mapping.mapping, self.lineage.relationship
        kinds: dict[str, Literal["identity", "aggregation", "expansion"]]
        kinds = {"1:1": "identity", "N:1": "aggregation", "1:N": "expansion"}
        return FeatureDep(
            self.feature,
            self.rename,
            self.select,
            " AND ".join(f"({each})" for each in self.filters) if self.filters else None,
            self.optional,
            Lineage(kinds[relationship.type], None if relationship.on is None else tuple(relationship.on)),
            FieldsMapping(
                mapping.type,
                mapping.match_suffix,
                frozenset(mapping.exclude_fields),
                {key: frozenset(fields) for key, fields in mapping.mapping.items()},
            ),
        )


class _Spec(_Members):
    key: _Key
    id_columns: list[str]
    deps: list[_FeatureDep] = []
    fields: list[_Field]
    metadata: dict[str, Any] = {}
    description: str | None = None

    def feature(self) -> Feature:
        fields: list[Field] = []
        for field in self.fields:
            if isinstance(field.deps, list):
                found = [FieldDep(dep.feature, None if dep.fields == _ALL else dep.fields) for dep in field.deps]
            else:
                found = [FieldDep.all()] if self.deps else []
            fields.append(Field(field.key, field.code_version, found or None))
        return Feature(self.key, self.id_columns, fields, [dep.dep() for dep in self.deps])
