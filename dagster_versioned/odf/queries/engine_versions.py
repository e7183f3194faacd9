"""Which versions of an engine are known to give the same as those that a chain records, which are then needed no more.

Blocks are never changed, and no event says this: it is a domain of the table's log. Source: seed 002 ("Engine
Deprecation").
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.engines.spark.session import default_session
from dagster_versioned.errors import IntegrityError, InvalidInput, LogCorrupt
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks, state_at
from dagster_versioned.odf.blocks.events import ExecuteTransform
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.queries.transform import ENGINE, replay
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.table import VersionedTable

if TYPE_CHECKING:
    from dagster_versioned.engines.spark.session import SparkSession

ENGINES_DOMAIN = "dagster_versioned.engines"


def known_to_agree(table: VersionedTable) -> dict[str, tuple[str, ...]]:
    """By each version of Spark that the chain records, those that gave the same for all runs. Raises `LogCorrupt`."""
    configuration = table.state.snapshot.domains.get(ENGINES_DOMAIN)
    if configuration is None:
        return {}
    try:
        document: Any = orjson.loads(configuration)
        return {str(version): tuple(map(str, others)) for version, others in document[ENGINE].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise LogCorrupt(f"{ENGINES_DOMAIN} cannot be parsed: {error!r}. Nothing was read.") from error


def deprecate_engines(
    table: VersionedTable, inputs: Callable[[DatasetId], RemoteDataset], session: "SparkSession | None" = None
) -> dict[str, tuple[str, ...]]:
    """Do every run of a chain again with the present Spark and, if all give what is recorded, record that it agrees.

    Returns what is known then (`known_to_agree`). Raises `IntegrityError`, naming the first block that differs, and
    `InvalidInput` for a table without a chain; then nothing is recorded.
    """
    session = session or default_session()
    present = session.version
    end = chain_head(table.state.snapshot)
    if end is None:
        raise InvalidInput(f"{table.name} is no history of events, so no engine made it. Nothing was recorded.")
    versions = _replayed_versions(table, Multihash.parse(end.head), inputs, session)
    known = known_to_agree(table)
    agreed = {version: tuple(sorted({*known.get(version, ()), present})) for version in versions - {present}}
    if any(known.get(version) != others for version, others in agreed.items()):
        table.record_domain(DomainMetadata(ENGINES_DOMAIN, encode({ENGINE: {**known, **agreed}}).decode(), False))
    return {**known, **agreed}


def _replayed_versions(
    table: VersionedTable, head: Multihash, inputs: Callable[[DatasetId], RemoteDataset], session: "SparkSession"
) -> set[str]:
    """The versions that the chain records for its runs, each done again. Raises `IntegrityError` if one differs."""
    dataset = RemoteDataset(table.store)
    versions: set[str] = set()
    for link in reversed(list(iterate_blocks(dataset, head))):
        if not isinstance(link.block.event, ExecuteTransform):
            continue
        if replay(dataset, link.block, inputs, session) != link.block.event:
            raise IntegrityError(
                f"Block {link.block.sequence_number} ({link.name}) of {table.name} is not what Spark {session.version} "
                "gives. Nothing was recorded. Verify the table with the version that it records."
            )
        transform = state_at(dataset, link.name).transform
        if transform is not None and transform.transform.version is not None:
            versions.add(transform.transform.version)
    return versions
