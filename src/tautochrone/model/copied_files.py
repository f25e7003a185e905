"""Data files of a captured table that the tasks of its first copy wrote, as the log table of a light capture
names them: one row for each file instead of a row for each row in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CAPTURE_MODE", "COPIED_FILE", "FILE_NAME", "LIGHT", "CopiedFile", "is_light"]

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
        point, sequence, snapshot: of its rows, as `sources.capture.log_schema` has them of copied rows.
    """

    name: str
    point: int
    sequence: int
    snapshot: str
