"""The rows of files that the tasks of a light capture's first copy wrote, as copied rows of the log table.

The log table has the names of the files, and what the reader of their rows saw. So where a table is built of
them, its files are there already: only rows whose keys have events in the log are deleted from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.capture_files import COPIED_FILE, FILE_NAME, CopiedFile
from tautochrone.model.lake import Staged
from tautochrone.runtime.refresh.staged_rows import FILE, POSITION, as_events, located_rows

__all__ = ["RowsInFiles", "copied_files"]


def copied_files(log_rows: DataFrame) -> Sequence[CopiedFile]:
    """The files that rows of a log table name."""
    named = log_rows.where(sf.col("operation") == COPIED_FILE).select(
        sf.col("columns")[FILE_NAME], "point", "sequence", "snapshot"
    )
    return [CopiedFile(*row) for row in named.collect()]


@dataclass(frozen=True, slots=True)
class RowsInFiles:
    """
    Attributes:
        staged: the files.
        rows: of all files, with the columns of the events of the table.
    """

    staged: Staged
    rows: DataFrame
    _located: DataFrame
    _copies: frozenset[int]

    @classmethod
    def of(
        cls,
        session: SparkSession,
        files: Sequence[CopiedFile],
        staged: Staged,
        events: DataFrame,
        apply: KeyedApply,
    ) -> RowsInFiles:
        """
        Args:
            files: the staged ones, in their order.
            events: of the same table.
        """
        located = located_rows(session, staged, events, apply)
        named = {
            file.name: {"point": file.point, "sequence": file.sequence, "snapshot": file.snapshot}
            for file in files
        }
        point, sequence = apply.sequence
        values: Mapping[str | None, Column] = {
            point: sf.col("files.point"),
            sequence: sf.col("files.sequence"),
            apply.snapshot: sf.col("files.snapshot"),
            apply.invalid: sf.array(),
        }
        rows = as_events(located, named, values, events, apply)
        return cls(staged, rows, located, frozenset(file.sequence for file in files))

    @property
    def copies(self) -> Collection[int]:
        """The numbers of the copies that their rows are of."""
        return self._copies

    def positions(self, keys: DataFrame, is_equal: Column) -> Mapping[str, Sequence[int]]:
        """Where the rows with some keys are: data file → positions.

        Args:
            is_equal: a condition over `rows` and `keys`.
        """
        rows = self._located.alias("rows").join(sf.broadcast(keys.alias("keys")), is_equal, "left_semi")
        positions: Any = rows.select(FILE, POSITION).toArrow()
        by_name = positions.group_by(FILE).aggregate([(POSITION, "list")]).to_pylist()
        location = {
            str(file.location()).rpartition("/")[2]: str(file.location()) for file in self.staged.files
        }
        return {location[row[FILE]]: sorted(row[f"{POSITION}_list"]) for row in by_name}
