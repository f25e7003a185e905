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

from tautochrone.model.copied_files import COPIED_FILE, FILE_NAME, CopiedFile
from tautochrone.model.keyed_apply import KeyedApply
from tautochrone.model.lake import Staged
from tautochrone.model.names import quoted

__all__ = ["RowsInFiles", "copied_files"]

_FILE, _POSITION = "__taut_file", "__taut_position"


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
        locations = [str(file.location()) for file in staged.files]
        columns = [field for field in events.schema.fields if field.name not in apply.dropped]
        # Read by their names: a column that the table got since is NULL in all rows.
        stored = session.read.schema(type(events.schema)(columns)).parquet(*locations)
        metadata = stored.metadataColumn("_metadata")
        located = stored.select(
            "*", metadata["file_name"].alias(_FILE), metadata["row_index"].alias(_POSITION)
        )
        copies = session.createDataFrame(
            [(file.name, file.point, file.sequence, file.snapshot) for file in files],
            f"{_FILE} STRING, point BIGINT, sequence BIGINT, snapshot STRING",
        )
        point, sequence = apply.sequence
        values: Mapping[str | None, Column] = {
            point: sf.col("copies.point"),
            sequence: sf.col("copies.sequence"),
            apply.snapshot: sf.col("copies.snapshot"),
            apply.invalid: sf.array(),
        }
        rows = (
            located.alias("rows")
            .join(sf.broadcast(copies).alias("copies"), _FILE)
            .select(
                *(
                    (
                        sf.col(f"rows.{quoted(field.name)}")
                        if field.name not in apply.dropped
                        else values.get(field.name, sf.lit(None)).cast(field.dataType)
                    ).alias(field.name)
                    for field in events.schema.fields
                )
            )
        )
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
        positions: Any = rows.select(_FILE, _POSITION).toArrow()
        by_name = positions.group_by(_FILE).aggregate([(_POSITION, "list")]).to_pylist()
        location = {
            str(file.location()).rpartition("/")[2]: str(file.location()) for file in self.staged.files
        }
        return {location[row[_FILE]]: sorted(row[f"{_POSITION}_list"]) for row in by_name}
