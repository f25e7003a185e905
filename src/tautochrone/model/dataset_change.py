"""What is decided about a dataset that left its project: it is dropped, or it goes on under another name.

The store has the decision before anything of the dataset is touched, until all of it is done. Whoever comes
back after a crash goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import MetaError
from tautochrone.model.names import TableName

__all__ = ["DatasetChange", "StoredTable", "other_change_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """A table of the lake and where it is, so that its files can be deleted when no catalog knows it.

    Attributes:
        identity: tells it from another table of the same name.
        folder: of its files.
        metadata: its newest metadata file.
    """

    table: TableName
    identity: str
    folder: str
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChange:
    """A decided drop or rename.

    Attributes:
        job: that wrote the dataset.
        renamed_to: its new name; None: it is dropped.
        keeps_table: a drop leaves its table in the lake, as one of nobody.
        tables: its own table first, then its states.
    """

    dataset: TableName
    job: str
    renamed_to: TableName | None = None
    keeps_table: bool = False
    tables: tuple[StoredTable, ...] = ()

    @property
    def command(self) -> str:
        """The command that goes on with it."""
        if self.renamed_to is None:
            return f"taut drop {self.dataset.without_catalog}"
        return f"taut rename {self.dataset.without_catalog} {self.renamed_to.without_catalog}"

    def as_json(self) -> dict[str, Any]:
        """What the store keeps beside name and job of the dataset."""
        return {
            "renamed_to": None if self.renamed_to is None else str(self.renamed_to),
            "keeps_table": self.keeps_table,
            "tables": [[str(each.table), each.identity, each.folder, each.metadata] for each in self.tables],
        }

    @classmethod
    def from_json(cls, dataset: TableName, job: str, value: Mapping[str, Any]) -> DatasetChange:
        """The inverse of `as_json`."""
        renamed_to = value["renamed_to"]
        return cls(
            dataset=dataset,
            job=job,
            renamed_to=None if renamed_to is None else TableName.parse(renamed_to),
            keeps_table=value["keeps_table"],
            tables=tuple(
                StoredTable(table=TableName.parse(name), identity=identity, folder=folder, metadata=metadata)
                for name, identity, folder, metadata in value["tables"]
            ),
        )


def other_change_error(decided: DatasetChange) -> MetaError:
    """The refusal of a change while another one of the same dataset is decided."""
    return MetaError(
        "DATASET_CHANGE_UNFINISHED",
        f"Something else is decided about {decided.dataset}, and not finished",
        hint=f"`{decided.command}` goes on with it",
        sqlstate="55000",
        parameters={"dataset": str(decided.dataset)},
    )
