"""What is in the data files of a lake table, for readers that look for columns by name.

Iceberg's files have ids of columns, and names of the time when they were written. So each new file is
compared by ids: where names lead to the same columns, readers of other formats see what the lake has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tautochrone.errors import SinkError
from tautochrone.model.lake import DataFile
from tautochrone.model.names import TableName
from tautochrone.model.s3 import is_on_s3
from tautochrone.sinks.common.exclusive_files import of_each, opened_parquet
from tautochrone.sinks.common.object_paths import S3Path, StoredPath

__all__ = ["FileColumns", "FileTypes", "column_id", "stored_file", "unreadable_error"]

_FIELD_ID = b"PARQUET:field_id"


@dataclass(slots=True)
class FileTypes:
    """Types of files that are narrower than the table's, by the id of the column, in Iceberg's spelling."""

    by_id: dict[int, list[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> FileTypes:
        """The inverse of `text`."""
        return cls({int(column): kinds for column, kinds in json.loads(text).items()})

    def text(self) -> str:
        return json.dumps(self.by_id)

    def add(self, column: int, kind: str) -> None:
        kinds = self.by_id.setdefault(column, [])
        if kind not in kinds:
            kinds.append(kind)


class FileColumns:
    """Compares the columns of data files with those of a table.

    Args:
        types: gets the narrower types of the files.
        by_id: readers look for columns by id, so names may differ.
        folder: of the published table.
    """

    def __init__(
        self,
        sink: str,
        table: TableName,
        columns: Sequence[Mapping[str, Any]],
        types: FileTypes,
        *,
        by_id: bool,
        folder: StoredPath,
    ) -> None:
        self._sink = sink
        self._table = table
        self._columns = columns
        self._types = types
        self._by_id = by_id
        self._folder = folder

    def require_readable(self, files: Sequence[DataFile]) -> list[pa.Schema]:
        """Refuse files in which readers would not see what the lake has. The columns of each.

        Raises:
            SinkError: as `stored_file`; `PUBLICATION_FILE_UNREADABLE`, `PUBLICATION_COLUMNS_RENAMED`.
        """
        for file in files:
            stored_file(self._sink, self._table, file, self._folder)
            if file.format != "PARQUET" or file.encrypted:
                kind = "encrypted" if file.encrypted else f"of the format {file.format}"
                raise self._unreadable_error(file, f"it is {kind}")
        stored = of_each(files, self._schema_of, on_server=isinstance(self._folder, S3Path))
        for file, schema in zip(files, stored, strict=True):
            self._compare(self._columns, list(schema), file)
        return stored

    def _schema_of(self, file: DataFile) -> pa.Schema:
        path = stored_file(self._sink, self._table, file, self._folder)
        return pq.read_schema(opened_parquet(path, file.bytes))

    def _compare(
        self, columns: Sequence[Mapping[str, Any]], fields: Sequence[pa.Field], file: DataFile
    ) -> None:
        by_id = {column_id(each): each for each in fields}
        if None in by_id:
            raise self._unreadable_error(file, f"its column {by_id[None].name} has no id")
        names = {each.name.lower(): column for column, each in by_id.items()}
        for column in columns:
            stored, name = by_id.get(column["id"]), str(column["name"])
            has_same_name = names.get(name.lower(), column["id"]) == column["id"]
            if not self._by_id and not (has_same_name and (stored is None or stored.name == name)):
                raise self._renamed_error(file, name, None if stored is None else stored.name)
            if stored is not None:
                self._compare_types(column["id"], column["type"], stored.type, file)

    def _compare_types(self, column: int, kind: Any, stored: pa.DataType, file: DataFile) -> None:
        if isinstance(kind, str):
            narrower = _stored_type(stored)
            if narrower is not None and narrower != kind:
                self._types.add(column, narrower)
        elif kind["type"] == "struct":
            self._compare(kind["fields"], [stored.field(i) for i in range(stored.num_fields)], file)
        elif kind["type"] == "list":
            self._compare_types(kind["element-id"], kind["element"], stored.value_type, file)
        else:
            self._compare_types(kind["key-id"], kind["key"], stored.key_type, file)
            self._compare_types(kind["value-id"], kind["value"], stored.item_type, file)

    def _unreadable_error(self, file: DataFile, problem: str) -> SinkError:
        return unreadable_error(self._sink, self._table, file, problem)

    def _renamed_error(self, file: DataFile, name: str, stored: str | None) -> SinkError:
        called = "something else" if stored is None else f"the column {stored}"
        return SinkError(
            "PUBLICATION_COLUMNS_RENAMED",
            f"Sink {self._sink}: the column {name} of {self._table} is {called} in its file {file.location}",
            hint="Let the table's files be written anew (taut run --full-refresh, or Iceberg's "
            "rewrite_data_files with the option rewrite-all). A publication as Delta takes the table with "
            f'[sinks.{self._sink}.options] columns = "ids", for readers that map columns by id, and one as '
            "Paimon as it is.",
            parameters={"sink": self._sink, "table": str(self._table), "column": name},
            sqlstate="0A000",
        )


def stored_file(sink: str, table: TableName, file: DataFile, folder: StoredPath) -> StoredPath:
    """A data file of the lake, where a publication can take it from.

    Args:
        folder: of the published table.

    Raises:
        SinkError: `PUBLICATION_STORAGE_NOT_REACHED`.
    """
    if file.path is not None:
        return file.path
    if isinstance(folder, S3Path) and is_on_s3(file.location):
        return S3Path.parse(file.location, folder.client)
    raise SinkError(
        "PUBLICATION_STORAGE_NOT_REACHED",
        f"Sink {sink}: a file of {table} is in a storage that {folder} cannot have it from: {file.location}",
        hint="A folder on this machine takes files of a lake on this machine, a folder on S3 also those of a "
        f"lake on S3: [sinks.{sink}.options] folder.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="0A000",
    )


def unreadable_error(sink: str, table: TableName, file: DataFile, problem: str) -> SinkError:
    """The refusal to publish a data file as it is."""
    return SinkError(
        "PUBLICATION_FILE_UNREADABLE",
        f"Sink {sink}: readers cannot read {file.location} of {table}: {problem}",
        hint="Let the table's files be written anew: taut run --full-refresh, or Iceberg's "
        "rewrite_data_files with the option rewrite-all.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="0A000",
    )


def column_id(column: pa.Field) -> int | None:
    """The id of a column in a data file."""
    metadata: Mapping[bytes, bytes] = column.metadata or {}
    return int(metadata[_FIELD_ID]) if _FIELD_ID in metadata else None


def _stored_type(stored: pa.DataType) -> str | None:
    """Iceberg's name of a type that it widens; None: it widens no such type."""
    types = pa.types
    if types.is_decimal(stored):
        return f"decimal({stored.precision}, {stored.scale})"
    names = ((types.is_int32, "int"), (types.is_float32, "float"), (types.is_date32, "date"))
    return next((name for is_type, name in names if is_type(stored)), None)
