"""AUTO CDC: how a flow's change events become the rows of its streaming table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tautochrone.errors import DefinitionError

__all__ = [
    "DELETE_COLUMN",
    "END_COLUMN",
    "SEQUENCE_COLUMN",
    "START_COLUMN",
    "TRUNCATE_COLUMN",
    "AutoCdc",
    "ColumnChoice",
    "MergeColumns",
    "column_named",
    "common_auto_cdc",
]

START_COLUMN, END_COLUMN = "__START_AT", "__END_AT"
"""Columns of a table of SCD type 2: from which sequence value on, and up to which, a row was current."""

SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN = "__taut_sequence", "__taut_delete", "__taut_truncate"
"""What the query of an AUTO CDC flow yields besides the columns of its table."""


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Some columns, or all but some."""

    names: tuple[str, ...]
    is_except: bool = False

    def of(self, columns: Sequence[str], location: str) -> tuple[str, ...]:
        """The chosen ones of these columns, in their order; case does not matter, as in Spark.

        Raises:
            DefinitionError: `AUTO_CDC_COLUMN_NOT_FOUND`.
        """
        for name in self.names:
            column_named(name, columns, location)
        lowered = {name.lower() for name in self.names}
        return tuple(column for column in columns if (column.lower() in lowered) != self.is_except)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCdc:
    """What a flow says. Expressions are SQL text or Columns of PySpark, over the columns of the source.

    Attributes:
        keys: columns that identify a row of the table.
        sequence: orders the events of a key.
        delete: an event that meets this condition removes the row.
        truncate: an event that meets this condition removes all rows.
        columns: which columns of the source the table has; None: all.
        is_ignoring_nulls: a NULL in an event leaves the column as it was.
        null_ignoring: in which columns NULL is ignored, if it is; None: in all.
        scd_type: 1, the table holds the newest row of each key; 2, it holds all of them.
        tracked: changes of which columns begin a new row of type 2; None: of all.
        snapshots_of: the parts of the source's name, if its rows are no events. At each checkpoint the table
            takes what changed in them since the last one; the sequence value is the time of the checkpoint.
        takes_snapshots: the events are the differences of snapshots.
        is_once: the source is to be read once.
    """

    keys: tuple[str, ...]
    sequence: Any
    delete: Any = None
    truncate: Any = None
    columns: ColumnChoice | None = None
    is_ignoring_nulls: bool = False
    null_ignoring: ColumnChoice | None = None
    scd_type: int = 1
    tracked: ColumnChoice | None = None
    snapshots_of: tuple[str, ...] | None = None
    takes_snapshots: bool = False
    is_once: bool = False

    def check(self, location: str) -> None:
        """What can be checked without the source's columns.

        Raises:
            DefinitionError: `AUTO_CDC_WITHOUT_KEYS`, `AUTO_CDC_SCD_TYPE`, `AUTO_CDC_ONLY_SCD_TYPE_2`,
                `AUTO_CDC_ONLY_SCD_TYPE_1`.
        """
        if not self.keys:
            raise DefinitionError(
                "AUTO_CDC_WITHOUT_KEYS",
                "An AUTO CDC flow names no keys",
                location=location,
                hint="name the columns that identify a row: KEYS (id), or keys=['id']",
            )
        if self.scd_type not in (1, 2):
            raise DefinitionError(
                "AUTO_CDC_SCD_TYPE",
                f"An AUTO CDC flow stores its table as SCD type {self.scd_type}",
                sqlstate="0A000",
                location=location,
                hint="there are types 1 (the newest row of each key) and 2 (all of them)",
            )
        if self.tracked is not None and self.scd_type != 2:
            raise DefinitionError(
                "AUTO_CDC_ONLY_SCD_TYPE_2",
                "TRACK HISTORY is for tables of SCD type 2, and the flow's table is of type 1",
                location=location,
                hint="add STORED AS SCD TYPE 2, or leave the tracked columns out",
            )
        if self.truncate is not None and self.scd_type != 1:
            raise DefinitionError(
                "AUTO_CDC_ONLY_SCD_TYPE_1",
                "APPLY AS TRUNCATE is for tables of SCD type 1, and the flow's table is of type 2",
                sqlstate="0A000",
                location=location,
                hint="a table of type 2 keeps what was there; send an event of deletion for each key",
            )

    def merge_columns(self, query_columns: Sequence[str], location: str) -> MergeColumns:
        """The roles of the columns that the flow's query yields.

        Raises:
            DefinitionError: `AUTO_CDC_COLUMN_NOT_FOUND`.
        """
        special = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
        columns = [name for name in query_columns if name not in special]
        keys = tuple(column_named(name, columns, location) for name in self.keys)
        values = tuple(name for name in columns if name not in keys)
        tracked = self._chosen(self.tracked, columns, location)
        null_ignoring = self._chosen(self.null_ignoring, columns, location) if self.is_ignoring_nulls else ()
        return MergeColumns(
            keys=keys,
            values=values,
            tracked=tuple(name for name in tracked if name not in keys),
            null_ignoring=tuple(name for name in null_ignoring if name not in keys),
        )

    def _chosen(self, choice: ColumnChoice | None, columns: Sequence[str], location: str) -> tuple[str, ...]:
        """The chosen columns of the table. One that the table leaves out may be named after EXCEPT too."""
        if choice is None:
            return tuple(columns)
        if self.columns is not None and self.columns.is_except and choice.is_except:
            left_out = {name.lower() for name in self.columns.names}
            names = tuple(name for name in choice.names if name.lower() not in left_out)
            choice = replace(choice, names=names)
        return choice.of(columns, location)

    @property
    def text(self) -> str:
        """The same in every process."""
        return repr(
            (
                [name.lower() for name in self.keys],
                *(str(expression) for expression in (self.sequence, self.delete, self.truncate)),
                self.columns,
                self.is_ignoring_nulls,
                self.scd_type,
                self.tracked,
                *(["snapshots"] if self.snapshots_of else []),
                *([] if self.null_ignoring is None else [self.null_ignoring]),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeColumns:
    """Columns of the table by what they do in a merge. `values` are those that are no keys.

    A change of `tracked` ones begins a new row of type 2. NULL in an event leaves `null_ignoring` ones as
    they were.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    tracked: tuple[str, ...]
    null_ignoring: tuple[str, ...] = ()


def column_named(name: str, columns: Sequence[str], location: str) -> str:
    """The column as the source spells it.

    Raises:
        DefinitionError: `AUTO_CDC_COLUMN_NOT_FOUND`.
    """
    column = next((column for column in columns if column.lower() == name.lower()), None)
    if column is None:
        raise DefinitionError(
            "AUTO_CDC_COLUMN_NOT_FOUND",
            f"An AUTO CDC flow names the column {name}, which its source or table does not have",
            sqlstate="42703",
            location=location,
            hint=f"the columns are {', '.join(columns)}; keys must be among the table's columns",
        )
    return column


def common_auto_cdc(flows: Sequence[tuple[str, AutoCdc | None, str]]) -> AutoCdc | None:
    """How the flows of one table merge; None: they append.

    Args:
        flows: name, what it says, and location of each.

    Raises:
        DefinitionError: `AUTO_CDC_FLOWS_DIFFER`.
    """
    first = next((auto_cdc for _, auto_cdc, _ in flows if auto_cdc is not None), None)
    if first is None:
        return None
    for name, auto_cdc, location in flows:
        is_alone = len(flows) == 1 or auto_cdc is None or not auto_cdc.takes_snapshots
        if auto_cdc is None or _shared(auto_cdc) != _shared(first) or not is_alone:
            raise DefinitionError(
                "AUTO_CDC_FLOWS_DIFFER",
                f"Flow {name} writes a table that another flow writes by AUTO CDC in another way",
                location=location,
                hint="flows into one table agree on keys, SCD type, tracked columns and treatment of NULL; "
                "a table of snapshots has one flow",
            )
    return first


def _shared(auto_cdc: AutoCdc) -> tuple[object, ...]:
    keys = tuple(name.lower() for name in auto_cdc.keys)
    return keys, auto_cdc.scd_type, auto_cdc.is_ignoring_nulls, auto_cdc.null_ignoring, auto_cdc.tracked
