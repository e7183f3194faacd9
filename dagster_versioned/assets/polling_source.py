"""`polling_source`: an asset whose data come from elsewhere, as a manifest says."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import dagster as dg

from dagster_versioned.assets.asset_options import AssetOptions, refuse_unknown
from dagster_versioned.assets.graph.materialization_keys import LOG_VERSION_KEY, METADATA_SHA_KEY, URI_KEY
from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import SetInfo, SetPollingSource
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.ingest.declare import declare, declared_history, event_table, source_of
from dagster_versioned.odf.ingest.fetch import MAX_BYTES
from dagster_versioned.odf.ingest.poll import IngestedFile, Polling, Watermark, poll
from dagster_versioned.odf.manifest import read_snapshot
from dagster_versioned.resources.project import project_of
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable

OURS = "dagster_versioned"
_FILES_SHOWN = 20


def polling_source(
    manifest: str | Path,
    *,
    name: str | None = None,
    variables: Mapping[str, str | dg.EnvVar] | None = None,
    private_key: dg.EnvVar | None = None,
    watermark: Watermark = "latest",
    max_bytes: int = MAX_BYTES,
    resource_key: str = "io_manager",
    **options: Unpack[AssetOptions],
) -> dg.AssetsDefinition:
    """Define an asset that polls the source of a manifest (`DatasetSnapshot` in YAML, with `SetPollingSource`).

    Each materialization fetches what is new, unpacks and reads it, reshapes it by the source's query, and merges it
    into the asset's history of events: one file, one block, one version at a time. How far the source was read is part
    of the same commit, so that a run that is repeated neither loses a file nor adds one twice; where nothing is new,
    nothing is written.

    The asset is called as the dataset is, with ``_`` for what Dagster's names cannot have. ``variables`` are what the
    manifest may ask for in URLs and headers, by ``${{ env.NAME }}``; it gets nothing else of the environment. The chain
    is signed by ``private_key``, if there is one. ``watermark`` is `EventHistory`'s. ``resource_key`` names the
    `VersionedParquetIOManager`, or a `ProjectResource`, whose project has the table. The other parameters are those of
    `dagster.asset`.

    The manifest is read now: raises `InvalidInput` with all that is wrong in it.
    """
    refuse_unknown("polling_source", options, AssetOptions)
    path = Path(manifest)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The manifest {path} cannot be read: {error}. Nothing was defined.") from None
    snapshot = read_snapshot(text, str(path))
    source = source_of(snapshot)
    if not isinstance(source, SetPollingSource):
        raise InvalidInput(
            f"The manifest {path} has a push source, which nothing polls. Nothing was defined. Give it a "
            "SetPollingSource, or push rows with `dagster-versioned odf ingest`."
        )

    def compute(context: dg.AssetExecutionContext) -> Any:
        table = project_of(getattr(context.resources, resource_key), resource_key, "fetched").table(
            context.asset_key.path
        )
        events = event_table(table, snapshot, watermark=watermark, key=_key(private_key))
        described: dict[str, Any] = {"asset_key": list(context.asset_key.path)}
        added: list[IngestedFile] = []
        for addition in poll(events, source, Polling(variables=_values(variables), max_bytes=max_bytes), **described):
            context.log.info("%s: %s", addition.file, addition.result.change)
            added.append(addition)
        declare(events, snapshot, **described)
        return dg.MaterializeResult(
            metadata=_poll_metadata(table, added), data_version=dg.DataVersion(str(table.version().metadata_sha))
        )

    compute.__name__ = name or re.sub(r"\W", "_", snapshot.name)
    info = next((event for event in snapshot.metadata if isinstance(event, SetInfo)), None)
    shown = {
        f"{OURS}/manifest": dg.MarkdownMetadataValue(f"```yaml\n{text}\n```"),
        **TableOptions(history=declared_history(snapshot, watermark)).as_metadata(),
    }
    options["description"] = options.get("description") or (info.description if info is not None else None)
    options["metadata"] = {**shown, **(options.get("metadata") or {})}
    return dg.asset(name=compute.__name__, required_resource_keys={resource_key}, **options)(compute)


def _poll_metadata(table: VersionedTable, added: Sequence[IngestedFile]) -> dict[str, Any]:
    version = table.version()
    shown = [f"{addition.file}: {addition.result.change}" for addition in added[:_FILES_SHOWN]]
    more = [f"and {len(added) - _FILES_SHOWN} more"] if len(added) > _FILES_SHOWN else []
    return {
        "dagster/row_count": version.identity.nrow,
        URI_KEY: table.store.uri,
        f"{OURS}/change": "full" if any(addition.result.change != "none" for addition in added) else "none",
        f"{OURS}/version": version.short,
        METADATA_SHA_KEY: version.metadata_sha,
        LOG_VERSION_KEY: version.log_version,
        f"{OURS}/files": dg.MarkdownMetadataValue("\n".join(f"- {line}" for line in (shown + more) or ["nothing new"])),
    }


def _key(secret: dg.EnvVar | None) -> SigningKey | None:
    if secret is None:
        return None
    return SigningKey.from_secret(secret.env_var_name, {secret.env_var_name: secret.get_value() or ""})


def _values(variables: Mapping[str, str | dg.EnvVar] | None) -> dict[str, str]:
    """What variables stand for. Raises `InvalidInput` for a variable of the environment that is not set."""
    values: dict[str, str] = {}
    for name, value in (variables or {}).items():
        found = value.get_value() if isinstance(value, dg.EnvVar) else value
        if found is None:
            raise InvalidInput(f"The variable {name!r} of a source is not set in the environment. Nothing was fetched.")
        values[name] = found
    return values
