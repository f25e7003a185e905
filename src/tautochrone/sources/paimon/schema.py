"""The columns of a Paimon table, in Iceberg's spelling.

Paimon finds a column in a data file by the name that it had when the file was written, and takes columns for
the same if their ids are. So a column has all the names that it ever had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import (
    ForeignField,
    ForeignList,
    ForeignMap,
    ForeignSource,
    ForeignStruct,
    ForeignType,
)
from tautochrone.sources.paimon.snapshots import Schema, names_by_id

__all__ = ["columns_of"]

_PRIMITIVES = {
    "BOOLEAN": "boolean",
    "TINYINT": "int",
    "SMALLINT": "int",
    "INT": "int",
    "INTEGER": "int",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DATE": "date",
    "STRING": "string",
    "CHAR": "string",
    "VARCHAR": "string",
    "BYTES": "binary",
    "BINARY": "binary",
    "VARBINARY": "binary",
}
_TYPE = re.compile(
    r"([A-Z_]+)(?:\((\d+)(?:, ?(\d+))?\))?( WITH LOCAL TIME ZONE| WITHOUT TIME ZONE)?(?: NOT NULL)?"
)
_TIMESTAMP_DIGITS = range(4, 7)
"""With fewer ones, files have milliseconds: Iceberg takes their statistics for microseconds, and filters by
them skip rows. With more ones, they have nanoseconds."""
_DEFAULT_DIGITS = 6


def columns_of(
    source: ForeignSource, schemas: Sequence[Schema], live: frozenset[int]
) -> tuple[ForeignField, ...]:
    """The columns of the newest schema.

    Args:
        schemas: all of them, the newest last.
        live: numbers of the schemas that data files in force have.

    Raises:
        ForeignTableError: `PAIMON_TYPE_UNSUPPORTED`, `PAIMON_COLUMN_AMBIGUOUS`.
    """
    newest = schemas[-1]
    used = [schema.fields for schema in schemas if schema.number in live or schema is newest]
    return _Converter(source).fields(newest.fields, [schema.fields for schema in schemas], used, "")


_Fields = tuple[Mapping[str, Any], ...]


_FIRST_PART, _DEPTHS = (2**31 - 1) // 4, 1024


@dataclass(frozen=True, slots=True)
class _Parts:
    """The ids that Paimon gives to the parts of lists and maps, as its `SpecialFields` does.

    Attributes:
        column: the id of the column or field.
        depth: of the list or map in it, from 1.

    >>> _Parts(2).element, _Parts(2).key
    (536872960, 536868862)
    """

    column: int
    depth: int = 1

    @property
    def element(self) -> int:
        """Of an element of a list, or a value of a map."""
        return _FIRST_PART + self.column * _DEPTHS + self.depth

    @property
    def key(self) -> int:
        return _FIRST_PART - self.column * _DEPTHS - self.depth

    @property
    def below(self) -> _Parts:
        return _Parts(self.column, self.depth + 1)


class _Converter:
    def __init__(self, source: ForeignSource) -> None:
        self._source = source

    def fields(
        self, newest: _Fields, history: Sequence[_Fields], used: Sequence[_Fields], above: str
    ) -> tuple[ForeignField, ...]:
        """
        Args:
            history, used: the same struct in all schemas, and in those that data files have.
        """
        names = names_by_id(history)
        if _ambiguous(names) is not None:
            # A name of which no file makes use does no harm.
            names = names_by_id(used)
        ambiguous = _ambiguous(names)
        if ambiguous is not None:
            raise ForeignTableError(
                "PAIMON_COLUMN_AMBIGUOUS",
                f"The name {above}{ambiguous} means one column in some files of {self._source} and another "
                "one in others: Iceberg's readers cannot tell them apart",
                hint="let Paimon write its older files anew (INSERT OVERWRITE of the table with its own "
                "rows), or write the columns that the view needs into a table of their own",
                sqlstate="0A000",
            )
        columns = []
        for field in newest:
            number, path = field["id"], f"{above}{field['name']}"
            types = _same(history, number), _same(used, number)
            kind = self._type(field["type"], *types, path, _Parts(number))
            first, *others = names[number]
            columns.append(ForeignField(field["name"], first, kind, number, tuple(others)))
        return tuple(columns)

    def _type(
        self, kind: Any, history: Sequence[Any], used: Sequence[Any], path: str, ids: _Parts
    ) -> ForeignType:
        if isinstance(kind, str):
            return self._primitive(kind, path)
        name = kind["type"].removesuffix(" NOT NULL")

        def parts(part: str) -> tuple[list[Any], list[Any]]:
            both = ([each[part] for each in types if _has(each, name)] for types in (history, used))
            first, second = both
            return first, second

        if name == "ROW":
            return ForeignStruct(self.fields(kind["fields"], *parts("fields"), f"{path}."))
        if name == "ARRAY":
            element = self._type(kind["element"], *parts("element"), f"{path}.element", ids.below)
            return ForeignList(element, ids.element)
        if name == "MAP":
            key = self._type(kind["key"], *parts("key"), f"{path}.key", ids.below)
            value = self._type(kind["value"], *parts("value"), f"{path}.value", ids.below)
            return ForeignMap(key, value, ids.key, ids.element)
        raise self._type_error(path, name)

    def _primitive(self, text: str, path: str) -> ForeignType:
        match = _TYPE.fullmatch(text)
        if match is None:
            raise self._type_error(path, text)
        name, first, second, zone = match.groups()
        if name in ("DECIMAL", "NUMERIC", "DEC"):
            return f"decimal({first or 10}, {second or 0})"
        if name in ("TIMESTAMP", "TIMESTAMP_LTZ") and int(first or _DEFAULT_DIGITS) in _TIMESTAMP_DIGITS:
            is_zoned = name == "TIMESTAMP_LTZ" or zone == " WITH LOCAL TIME ZONE"
            return "timestamptz" if is_zoned else "timestamp"
        if name not in _PRIMITIVES:
            raise self._type_error(path, text)
        return _PRIMITIVES[name]

    def _type_error(self, column: str, kind: str) -> ForeignTableError:
        return ForeignTableError(
            "PAIMON_TYPE_UNSUPPORTED",
            f"The column {column} of {self._source} has the type {kind}, which Iceberg's readers do not read "
            "from its files",
            hint="let Paimon's own program write the columns that the view needs into a table of their own, "
            "with a cast, and read that",
            sqlstate="0A000",
        )


def _has(kind: Any, name: str) -> bool:
    return isinstance(kind, Mapping) and kind["type"].removesuffix(" NOT NULL") == name


def _same(structs: Sequence[_Fields], number: int) -> list[Any]:
    """The types of one field in several versions of a struct."""
    return [field["type"] for fields in structs for field in fields if field["id"] == number]


def _ambiguous(names: Mapping[int, Sequence[str]]) -> str | None:
    """A name that several fields have; None: there is none."""
    known: dict[str, int] = {}
    for number, each in names.items():
        for name in each:
            if known.setdefault(name, number) != number:
                return name
    return None
