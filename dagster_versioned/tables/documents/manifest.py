"""The manifest, datom's catalogue of a project: the tables that its readers can open, and the project's name."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import orjson

from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, read_if_any, update_document

logger = logging.getLogger("dagster_versioned")

MANIFEST_KEY = ".metadata/manifest.json"
DATOM_SCHEMA_VERSION = 2


def recorded_project(data: ObjectStore) -> str | None:
    """The name of the project that a data folder belongs to, as its manifest records it; ``None`` where it has none."""
    return _parse(read_if_any(data, MANIFEST_KEY))[0]


def record_project(data: ObjectStore, before: str, after: str) -> None:
    """Let the manifest name the project as it is called from now on.

    Raises `InvalidInput` where it names a third one.
    """

    def change(stored: bytes | None) -> bytes | None:
        name, artifacts = parse_manifest(stored, before)
        if name not in (before, after):
            raise InvalidInput(
                f"{data.uri} holds the project {name!r} by now, not {before!r}. Nothing was changed. Open it by its "
                "own name."
            )
        return encode_manifest(after, artifacts)

    update_document(data, MANIFEST_KEY, change)


def encode_manifest(project: str, artifacts: Mapping[str, Any]) -> bytes:
    """The manifest as datom's readers of both of its formats read it (FORMAT.md, datom readers)."""
    stated = [cast("dict[str, Any]", entry) for entry in artifacts.values() if isinstance(entry, dict)]
    updated = [entry["last_updated"] for entry in stated if isinstance(entry.get("last_updated"), str)]
    versions = sum(entry["version_count"] for entry in stated if isinstance(entry.get("version_count"), int))
    return encode(
        {
            "schema_version": DATOM_SCHEMA_VERSION,
            "project_name": project,
            "artifacts": artifacts,
            "tables": artifacts,
            "updated_at": max(updated, default=None),
            "summary": {"total_tables": len(artifacts), "total_versions": versions},
        }
    )


def parse_manifest(data: bytes | None, project: str) -> tuple[str, dict[str, Any]]:
    """The project and artifacts of the stored manifest; the name that is recorded stays, whoever publishes."""
    recorded, artifacts = _parse(data)
    if recorded is not None and recorded != project:
        logger.warning(
            "The project %r was written to as %r, which it is not called any more. Open it by its own name.",
            recorded,
            project,
        )
    return project if recorded is None else recorded, artifacts


def _parse(data: bytes | None) -> tuple[str | None, dict[str, Any]]:
    """The name and the artifacts that are recorded; none in a manifest that cannot be read, which is derived."""
    name, artifacts = None, None
    with suppress(ValueError, AttributeError):
        manifest: dict[str, Any] = orjson.loads(data or b"{}")
        name, artifacts = manifest.get("project_name"), manifest.get("artifacts")
    known = cast("dict[str, Any]", artifacts) if isinstance(artifacts, dict) else {}
    return name if isinstance(name, str) else None, known
