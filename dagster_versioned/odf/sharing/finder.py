"""Where datasets are, by their identities: the tables of a project, and copies that were named."""

from collections.abc import Callable, Iterable, Iterator

from dagster_versioned.errors import VersionedError, VersionNotFound
from dagster_versioned.odf.blocks.block_iterator import state_at
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.sharing.remote import RemoteDataset, dataset_of
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.table import open_table


def datasets_of(project: ProjectContext, others: Iterable[RemoteDataset] = ()) -> Callable[[DatasetId], RemoteDataset]:
    """Finds a dataset among ``others``, else among the project's tables; each is looked at once, when first needed.

    What it returns raises `VersionNotFound` for a dataset that is nowhere among them.
    """
    known: dict[str, RemoteDataset] = {}
    unseen = _datasets(project, others, failed := [])

    def find(wanted: DatasetId) -> RemoteDataset:
        while str(wanted) not in known:
            found = next(unseen, None)
            if found is None:
                raise VersionNotFound(
                    f"The dataset {wanted} is no table of project {project.name} ({project.store.uri}). Pull it, or "
                    f"name a place where it is.{''.join(failed)}"
                )
            known.setdefault(*found)
        return known[str(wanted)]

    return find


def _datasets(
    project: ProjectContext, others: Iterable[RemoteDataset], failed: list[str]
) -> Iterator[tuple[str, RemoteDataset]]:
    """Datasets and where they are; of a place that cannot be read, a sentence goes to ``failed``."""
    for other in others:
        try:
            found = str(state_at(other, other.head()).seed.dataset_id)
        except VersionedError as error:
            failed.append(f" It may be at {other.store.uri}, which could not be read: {error}")
        else:
            yield found, other
    for name in project.tables():
        table = open_table(project, str(name))
        try:
            end = chain_head(table.state.snapshot)
        except VersionedError as error:
            failed.append(f" It may be {name}, which could not be read: {error}")
        else:
            if end is not None:
                yield end.dataset_id, dataset_of(table)
