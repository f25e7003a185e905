"""The log table of a capture: how long it keeps its rows, and the files that it names in a light capture.

In a light capture it has one row for each data file of a captured table, instead of a row for each row in it:
files that the tasks of the first copy wrote, and files with the changes of a batch.

A file of changes has the columns of its table: first the rows that keys have after the batch, then the keys
that have none, with NULL in all other columns. So a table that takes the file deletes rows by their positions
only: what it has of all these keys, and what is behind the first rows of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tautochrone.errors import DefinitionError
from tautochrone.model.lake import LakeTable

__all__ = [
    "CAPTURE_MODE",
    "CHANGE_FILE",
    "COPIED_FILE",
    "FILE_NAME",
    "LIGHT",
    "LOG_RETENTION",
    "RELATION_COLUMN",
    "ChangeFile",
    "CopiedFile",
    "KeyedTable",
    "NetRows",
    "duration_ms",
    "is_light",
    "log_retention_ms",
    "parse_log_retention",
]

LOG_RETENTION = "tautochrone.log-retention"
RELATION_COLUMN = "relation"
"""The column of a log table that says to which relation a row belongs."""

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|seconds?|minutes?|hours?|days?)\s*")


def log_retention_ms(properties: Mapping[str, str], location: str) -> int | None:
    """From the properties of a streaming table; None: it keeps all its rows.

    Raises:
        DefinitionError: `INVALID_LOG_RETENTION`.
    """
    text = properties.get(LOG_RETENTION)
    return None if text is None else parse_log_retention(text, location)


def parse_log_retention(text: str, location: str | None = None) -> int:
    """Milliseconds of a duration; 0: rows go as soon as all captured tables have them.

    Raises:
        DefinitionError: `INVALID_LOG_RETENTION`.

    >>> parse_log_retention("7 days"), parse_log_retention("90m"), parse_log_retention("0s")
    (604800000, 5400000, 0)
    """
    milliseconds = duration_ms(text)
    if milliseconds is None:
        raise DefinitionError(
            "INVALID_LOG_RETENTION",
            f"{text!r} is no duration for which a log table keeps its rows",
            location=location,
            hint="such as '7 days', '12h' or '0s'",
        )
    return milliseconds


def duration_ms(text: str) -> int | None:
    """Milliseconds; None: the text is no duration."""
    match = _TEXT.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNITS_MS[match[2][0]])


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
