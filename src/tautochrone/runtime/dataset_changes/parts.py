"""What belongs to a dataset: datasets beside it, its states in the lake, the folders of its streams."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tautochrone.errors import DefinitionError, LakeError
from tautochrone.ingest.checkpoint_folder import Files
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.refresh.states import states_among
from tautochrone.runtime.streams.streams import folders_of_streams

__all__ = [
    "companion_datasets",
    "delete_folders",
    "folders_of",
    "require_known_table",
    "require_unread",
    "states_of",
]

_COMPANION = re.compile(r"(__(events|snapshots|quarantine))+")


def companion_datasets(dataset: TableName, known: Collection[TableName]) -> list[TableName]:
    """Those of the `known` datasets that were made beside `dataset`: events, snapshots and bad records of it.

    >>> orders = TableName("lake", ("shop",), "orders")
    >>> others = [TableName("lake", ("shop",), name) for name in ("orders__events", "orders_old", "orders")]
    >>> [each.table for each in companion_datasets(orders, others)]
    ['orders__events']
    """
    return sorted(
        each
        for each in known
        if (each.catalog, each.namespace) == (dataset.catalog, dataset.namespace)
        and each.table.startswith(dataset.table)
        and _COMPANION.fullmatch(each.table.removeprefix(dataset.table))
    )


def states_of(lake: LakeCatalog, dataset: TableName) -> list[TableName]:
    """The tables of the dataset's states, those too that its last commit does not name any more."""
    return states_among(lake.tables(), [dataset])


def folders_of(job: Job, dataset: TableName) -> list[str]:
    """The folders that streams into the dataset have in the storage, as far as they exist."""
    files = Files(job.base)
    return [
        folder for folder in folders_of_streams(job.settings.storage_root, dataset) if files.exists(folder)
    ]


def delete_folders(job: Job, dataset: TableName, folders: Sequence[str]) -> None:
    """Delete what `folders_of` found. Repeatable."""
    files = Files(job.base)

    def delete() -> None:
        for folder in folders:
            files.delete(folder)

    job.effects.perform(Step.INGEST_CLEAN, str(dataset), delete)


def require_known_table(job: Job, dataset: TableName) -> None:
    """Refuse a table that came after the dataset's own one and has its name."""
    known = job.store.datasets.table_id(dataset)
    if known is not None and known != job.lake.stored_table(dataset).identity:
        raise LakeError(
            "TABLE_OF_ANOTHER_PIPELINE",
            f"{dataset} is not the table that the store knows by this name",
            hint=f"the project that wrote it drops or renames it, and DROP TABLE {dataset} where none did",
            sqlstate="42P07",
        )


def require_unread(job: Job, dataset: TableName, *, hint: str) -> None:
    """Refuse a table that this project reads, whatever the store knows of it.

    Raises:
        DefinitionError: `DATASET_STILL_READ`.
    """
    locations_by_name = {name: str(each.location) for name, each in job.definitions.datasets.items()}
    locations_by_name |= {name: str(each.location) for name, each in job.definitions.sinks.items()}
    readers = [name for name in locations_by_name if dataset in job.graph.inputs(name).tables]
    locations = [locations_by_name[name] for name in readers]
    locations += [str(i.query.flow.location) for i in job.graph.invariants if dataset in i.tables]
    texts = [
        *map(str, readers),
        *(f"invariant {i.name}" for i in job.graph.invariants if dataset in i.tables),
    ]
    if texts:
        raise DefinitionError(
            "DATASET_STILL_READ",
            f"{dataset} is read by {', '.join(texts)}",
            hint=hint,
            location=locations[0],
            sqlstate="2BP01",
        )
