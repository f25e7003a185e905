"""What of a data file this process leaves to a Spark query, and which of its rows are deleted."""

from __future__ import annotations

from typing import Any

from tautochrone.iceberg.java.api import Iceberg
from tautochrone.iceberg.java.functions import items
from tautochrone.model import limits
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["LeftToSpark", "deleted_positions"]


class LeftToSpark(Exception):  # noqa: N818
    """A Spark query must read the rows, for this reason."""

    def __init__(self, code: ReasonCode, **params: Any) -> None:
        super().__init__(code)
        self.reason = Reason.of(code, **params)


def deleted_positions(iceberg: Iceberg, table: Any, task: Any, path: str) -> set[int]:
    """The positions of the rows of a data file that are deleted.

    Args:
        table: the Java table.
        task: the Java scan task of the file.

    Raises:
        LeftToSpark: rows of the file are deleted by value, or very many are deleted.
        Py4JError: a delete file cannot be read.
    """
    deletes = items(task.deletes())
    if not deletes:
        return set()
    if any(str(delete.content()) == "EQUALITY_DELETES" for delete in deletes):
        raise LeftToSpark(ReasonCode.ROWS_DELETED_BY_VALUE, file=path)
    loader = iceberg.api.data.BaseDeleteLoader(iceberg.functions.input_files(table.io()))
    deleted = loader.loadPositionDeletes(task.deletes(), path)
    count, limit = int(deleted.cardinality()), limits.MAX_DELETION_VECTOR_POSITIONS
    if count > limit:
        raise LeftToSpark(ReasonCode.MANY_ROWS_DELETED, file=path, rows=count, limit=limit)
    return set(iceberg.functions.positions(deleted))
