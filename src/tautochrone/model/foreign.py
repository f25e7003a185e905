"""Tables of other lake formats that somebody else writes, as the lake sees them: columns and data files.

A view reads such a *foreign table* by its path. The lake has a *shadow table* of it: an Iceberg table whose
metadata names the data files of the foreign table where they are. No row is copied.

Types are spelled as Iceberg's JSON of a schema spells them, and so are the values of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tautochrone.model.names import TableName, Version

__all__ = [
    "FOREIGN_PATH_KEY",
    "FOREIGN_VERSION_KEY",
    "Followed",
    "ForeignField",
    "ForeignFile",
    "ForeignList",
    "ForeignMap",
    "ForeignSource",
    "ForeignStep",
    "ForeignStruct",
    "ForeignTable",
    "ForeignType",
    "ForeignVersion",
    "ShownVersion",
]


@dataclass(frozen=True, slots=True)
class ForeignStruct:
    fields: tuple[ForeignField, ...]


@dataclass(frozen=True, slots=True)
class ForeignList:
    """
    Attributes:
        element_id: that data files may have for elements; None: they are found by their place.
    """

    element: ForeignType
    element_id: int | None = None


@dataclass(frozen=True, slots=True)
class ForeignMap:
    """
    Attributes:
        key_id, value_id: see `ForeignList`.
    """

    key: ForeignType
    value: ForeignType
    key_id: int | None = None
    value_id: int | None = None


ForeignType: TypeAlias = str | ForeignStruct | ForeignList | ForeignMap


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A column, or a field of a struct.

    Attributes:
        name: as queries call it.
        stored_name: as data files call it.
        other_names: that some data files have for it. None of them means another column in any file.
        field_id: that data files may have for it; None: columns are found by their names alone.
    """

    name: str
    stored_name: str
    type: ForeignType
    field_id: int | None = None
    other_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignSource:
    """Which foreign table a query reads.

    Attributes:
        format: `delta`, `hudi` or `paimon`.
        path: as the query gives it.
    """

    format: str
    path: str

    def __str__(self) -> str:
        """
        >>> str(ForeignSource("delta", "/data/orders"))
        'the Delta table /data/orders'
        """
        return f"the {self.format.capitalize()} table {self.path}"


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A data file.

    Attributes:
        location: as Hadoop takes it.
        partition: by name of the column its value in all rows.
        deletes: names its deleted rows: equal texts mean the same rows. Empty: none are deleted.
    """

    location: str
    bytes: int
    partition: Mapping[str, Any] = field(default_factory=dict)
    deletes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignVersion:
    """A foreign table at a version.

    Attributes:
        identity: tells the table from another one that was put into its place.
        number: of the version.
        stamp: tells it from another version that had the number, where a format may use a number again.
        partition_columns: names of columns whose values are not in data files.
        files: by location.
    """

    identity: str
    number: int
    stamp: str = ""
    fields: tuple[ForeignField, ...]
    partition_columns: tuple[str, ...] = ()
    files: Mapping[str, ForeignFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """Which version of which foreign table a shadow table shows, see `ForeignVersion`."""

    identity: str
    number: int
    stamp: str = ""

    @classmethod
    def of(cls, version: ForeignVersion) -> ShownVersion:
        return cls(version.identity, version.number, version.stamp)


@dataclass(frozen=True, slots=True)
class ForeignStep:
    """What happened to data files in one or more versions.

    Attributes:
        files: by location, each file as it is afterwards; None: it is no longer in the table.
        moves_rows: false: the same rows are in other files.
        is_complete: the table has no other files than these afterwards.
    """

    files: Mapping[str, ForeignFile | None]
    moves_rows: bool
    is_complete: bool = False


FOREIGN_PATH_KEY = "tautochrone.foreign-path"
"""A property of a shadow table: the path of the foreign table."""
FOREIGN_VERSION_KEY = "tautochrone.foreign-version"
"""In the summary of a shadow table's snapshot: the version of the foreign table that it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A shadow table at a version of its foreign table.

    Attributes:
        number: of that version; `before`: of the one that the shadow table showed before, if it did.
        files_added, files_removed: data files. None of them moved.
        files_with_deletes: those of which other rows are deleted now.
    """

    table: TableName
    version: Version
    number: int
    before: int | None = None
    files_added: int = 0
    files_removed: int = 0
    files_with_deletes: int = 0


class ForeignTable(Protocol):
    """A foreign table as its metadata says it is. Nothing is ever written to it."""

    @property
    def source(self) -> ForeignSource: ...

    def newest(self) -> ForeignVersion:
        """The newest version, read now.

        Raises:
            ForeignTableError: there is no table, or it cannot be followed.
        """

    def steps_since(self, shown: ShownVersion, *, has_same_columns: bool) -> Sequence[ForeignStep] | None:
        """What happened after a version up to the one that was read last, oldest first; None: it is not
        known.

        Args:
            shown: the version.
            has_same_columns: it had the columns and partition columns of the one that was read last.
        """

    def deleted_positions(self, file: ForeignFile) -> Sequence[int]:
        """The positions of the deleted rows of a data file.

        Raises:
            ForeignTableError: they cannot be read.
        """
