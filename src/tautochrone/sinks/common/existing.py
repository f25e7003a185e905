"""What the system of a sink already has of a mirrored table, compared with what it shall be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason

__all__ = ["ExistingTable", "TableToCompare", "compared_tables"]


@dataclass(frozen=True, slots=True)
class TableToCompare:
    """A table of the lake, as it shall be mirrored. `schema` is a pyspark StructType."""

    table: TableName
    schema: Any
    key: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTable:
    """
    Attributes:
        name: of the sink's table, for people.
        is_absent: there is none, so the first delivery creates it.
        lacks: columns that the next delivery adds.
        rebuild: why it cannot go on with its columns or its key: the next delivery writes all its rows.
    """

    table: TableName
    name: str
    is_absent: bool = False
    lacks: Sequence[str] = ()
    rebuild: Reason | None = None

    def __str__(self) -> str:
        if self.is_absent:
            return f"{self.name} is created by the first delivery"
        if self.rebuild is not None:
            return f"{self.name} is written anew by the next delivery: {self.rebuild}"
        added = f", and gets {', '.join(self.lacks)}" if self.lacks else ""
        return f"{self.name} is there with the same columns{added}"


def compared_tables(
    tables: Sequence[TableToCompare], compare: Callable[[TableToCompare], ExistingTable]
) -> Iterator[ExistingTable | SinkError]:
    """Of each table what there is, or what is against it, which does not hide another one."""
    for each in tables:
        try:
            yield compare(each)
        except SinkError as error:
            yield error
