"""Data files of captured tables that the log table of a light capture names, one row for each file.

Data files of a captured table that the tasks of its first copy wrote, as the log table of a light capture
names them: one row for each file instead of a row for each row in it.

Data files of captured tables with the changes of a batch, as the log table of a light capture names them:
one row for each file instead of a row for each change.

A file has the columns of its table: first the rows that keys have after the batch, then the keys that have
none, with NULL in all other columns. So a table that takes the file deletes rows by their positions only:
what it has of all these keys, and what is behind the first rows of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tautochrone.model.lake import LakeTable

__all__ = [
    "CAPTURE_MODE",
    "CHANGE_FILE",
    "COPIED_FILE",
    "FILE_NAME",
    "LIGHT",
    "ChangeFile",
    "CopiedFile",
    "KeyedTable",
    "NetRows",
    "is_light",
]


CAPTURE_MODE, LIGHT = "tautochrone.capture-mode", "light"
"""A property of the log table, and its value where the first copy goes into the captured tables."""

COPIED_FILE = "copied file"
"""The operation of a row of the log table that names a file."""
FILE_NAME = "file"
"""What the map `columns` of such a row has."""


def is_light(properties: Mapping[str, str]) -> bool:
    """Whether these are the properties of the log table of a light capture."""
    return properties.get(CAPTURE_MODE) == LIGHT


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """
    Attributes:
        name: of the file, in the table's folder of data.
        point, sequence, snapshot: of its rows, as `sources.capture.log_table` has them of copied rows.
    """

    name: str
    point: int
    sequence: int
    snapshot: str


CHANGE_FILE = "change file"
"""The operation of a row of the log table that names a file."""
_NAME, _ROWS, _KEPT = "file", "rows", "kept"


@dataclass(frozen=True, slots=True, order=True)
class ChangeFile:
    """
    Attributes:
        point, sequence: of the last change in it, as `sources.capture.log_table` has them.
        name: of the file, in the table's folder of data.
        rows: of the file.
        kept: its first so many rows are rows of the table; the others are keys without rows.
    """

    point: int
    sequence: int
    name: str
    rows: int
    kept: int

    @classmethod
    def of_log(cls, point: int, sequence: int, columns: Mapping[str, str]) -> ChangeFile:
        """What a row of the log table says."""
        return cls(point, sequence, columns[_NAME], int(columns[_ROWS]), int(columns[_KEPT]))

    def columns(self) -> dict[str, str]:
        """What the map `columns` of its row has."""
        return {_NAME: self.name, _ROWS: str(self.rows), _KEPT: str(self.kept)}


class NetRows(NamedTuple):
    """What the keys of some changes have after them.

    Attributes:
        rows: a pyarrow Table, as a change file has its rows.
        kept: so many of them are rows of the table.
    """

    rows: Any
    kept: int


class KeyedTable(NamedTuple):
    """A table that takes change files, and the columns of its key."""

    table: LakeTable
    keys: tuple[str, ...]
