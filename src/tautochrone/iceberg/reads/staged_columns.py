"""Columns of data files that belong to no version yet, read by this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError

from tautochrone.iceberg.java.api import Iceberg, first_line
from tautochrone.iceberg.reads.arrow_columns import TableColumn, in_file, table_columns
from tautochrone.iceberg.reads.left_to_spark import LeftToSpark
from tautochrone.iceberg.reads.parquet_files import opened
from tautochrone.model.lake import Staged
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["columns_of_files"]


def columns_of_files(
    iceberg: Iceberg, table: Any, staged: Staged, names: Sequence[str]
) -> list[pa.Table] | Reason:
    """See `model.lake.LakeTable.columns_of`.

    Args:
        table: the Java table.
    """
    try:
        by_name = {column.name.lower(): column for column in table_columns(iceberg, table)}
        columns = []
        for name in names:
            if name.lower() not in by_name:
                return Reason.of(ReasonCode.KEY_COLUMN_NOT_IN_TABLE, column=name)
            columns.append(by_name[name.lower()])
        return [_columns_of(table, str(file.location()), columns) for file in staged.files]
    except LeftToSpark as left:
        return left.reason


def _columns_of(table: Any, path: str, columns: Sequence[TableColumn]) -> pa.Table:
    """
    Raises:
        LeftToSpark: Spark must read the file.
    """
    try:
        with opened(table, path) as file:
            names = in_file(columns, file, path)
            for name, column in zip(names, columns, strict=True):
                if name is None:
                    raise LeftToSpark(ReasonCode.KEY_COLUMN_NOT_IN_FILE, column=column.name, file=path)
            rows = file.read(columns=names)
    except (pa.ArrowException, OSError, Py4JError) as error:
        raise LeftToSpark(ReasonCode.FILE_NOT_READ, file=path, text=first_line(error)) from error
    return pa.table(
        {column.name: rows[name].cast(column.arrow_type) for name, column in zip(names, columns, strict=True)}
    )
