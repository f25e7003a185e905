"""The data files of one version of a table, for those who publish them in another format."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tautochrone.errors import LakeError
from tautochrone.iceberg.commits.compare_and_set import NO_VERSION, Loaded
from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.calls import iceberg_calls
from tautochrone.model.lake import ColumnStatistics, DataFile, DeletionVector, local_folder
from tautochrone.model.names import TableName, Version
from tautochrone.spark.jvm.driver_calls import split_texts

__all__ = ["IcebergVersionFiles"]


class IcebergVersionFiles:
    """See `model.lake.VersionFiles`.

    Args:
        loaded: has the version.
    """

    def __init__(self, iceberg: Iceberg, name: TableName, loaded: Loaded, version: Version) -> None:
        self._iceberg = iceberg
        self._name = name
        self._loaded = loaded
        self._version = version

    @property
    def table(self) -> TableName:
        return self._name

    @property
    def version(self) -> Version:
        return self._version

    @cached_property
    def columns(self) -> Sequence[Mapping[str, Any]]:
        text = str(self._iceberg.api.SchemaParser.toJson(self._schema))
        fields: Sequence[Mapping[str, Any]] = json.loads(text)["fields"]
        return fields

    @cached_property
    def files(self) -> Mapping[str, DataFile]:
        if self._version == NO_VERSION:
            return {}
        texts = split_texts(str(iceberg_calls().dataFiles(self._tasks)))
        rows = zip(*(texts[i::7] for i in range(7)), strict=True)
        return {
            location: DataFile(
                location=location,
                path=local_folder(location),
                format=file_format,
                bytes=int(size),
                rows=int(count),
                encrypted=encrypted == "+",
                deletes=deletes,
                sequence=int(sequence),
            )
            for location, file_format, size, count, encrypted, deletes, sequence in rows
        }

    def statistics(self, locations: Sequence[str]) -> Sequence[Mapping[int, ColumnStatistics]]:
        if not locations:
            return []
        texts = iter(
            split_texts(
                str(iceberg_calls().columnStatistics(self._schema, self._tasks, self._numbers(locations)))
            )
        )
        return [
            {int(next(texts)): _column_statistics(texts) for _ in range(int(next(texts)))} for _ in locations
        ]

    def deletion_vectors(self, locations: Sequence[str]) -> Sequence[DeletionVector]:
        if not locations:
            return []
        for location in locations:
            if "EQUALITY_DELETES" in self.files[location].deletes:
                raise LakeError(
                    "ROWS_DELETED_BY_VALUE",
                    f"{self._name}: another writer deleted rows of {location} by value",
                    hint=f"Let Iceberg rewrite the table's files: CALL system.rewrite_data_files("
                    f"table => '{self._name}', options => map('delete-file-threshold', '1'))",
                )
        numbers = self._numbers(locations)
        texts = split_texts(str(iceberg_calls().deletionVectors(self._loaded.table, self._tasks, numbers)))
        return [
            DeletionVector(int(count), base64.b64decode(content))
            for count, content in zip(texts[::2], texts[1::2], strict=True)
        ]

    @cached_property
    def _tasks(self) -> Any:
        functions = self._iceberg.functions
        scan = self._loaded.table.newScan().useSnapshot(int(self._version)).includeColumnStats()
        with contextlib.closing(scan.planWith(functions.this_thread).planFiles()) as tasks:
            return functions.tasks(tasks)

    @cached_property
    def _schema(self) -> Any:
        metadata = self._loaded.metadata
        snapshot = None if self._version == NO_VERSION else metadata.snapshot(int(self._version))
        schema_id = None if snapshot is None else snapshot.schemaId()
        return metadata.schema() if schema_id is None else metadata.schemasById().get(schema_id)

    @cached_property
    def _number_by_location(self) -> Mapping[str, int]:
        return {location: number for number, location in enumerate(self.files)}

    def _numbers(self, locations: Sequence[str]) -> str:
        numbers = self._number_by_location
        return ",".join(str(numbers[location]) for location in locations)


def _column_statistics(texts: Iterator[str]) -> ColumnStatistics:
    nulls, nans, lower, upper = (
        json.loads(value) if is_known == "+" else None
        for is_known, value in ((next(texts), next(texts)) for _ in range(4))
    )
    return ColumnStatistics(nulls=nulls, nans=nans, lower=lower, upper=upper)
