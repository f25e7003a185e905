"""The rows of files that the log table of a light capture names: copied rows and changes.

The files belong to no version yet. Read by Spark, their rows are the events that they stand for.

Copied files were written by the tasks of the first copy. The log table has their names, and what the reader
of their rows saw. So where a table is built of them, its files are there already: only rows whose keys have
events in the log are deleted from them.

Change files are merged in one of two ways:

    only change files     become files of the table: the driver reads their keys, and deletes rows by position
    beside other events   are read by Spark as the events that they stand for; their rows are written again

Files that were not merged stay where they are: another refresh may need them. They are removed as orphans.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.lake import ChangeKind, Fork, LakeTable, Staged
from tautochrone.model.log_table import CHANGE_FILE, COPIED_FILE, FILE_NAME, ChangeFile, CopiedFile
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.merges.log_rows import LogRange

__all__ = [
    "FILE",
    "POSITION",
    "CopiedFileRows",
    "LightLogRows",
    "NetFiles",
    "RelationChanges",
    "as_events",
    "copied_files",
    "events_of_change_files",
    "located_rows",
    "net_files",
]


FILE, POSITION = "__taut_file", "__taut_position"
"""Columns with the name of a row's file, and the row's position in it."""
_PATTERN = re.compile(r"[\\{}\[\]*?]")
"""By these characters Hadoop takes a path for a pattern of paths; names of tables may have them."""


def located_rows(session: SparkSession, staged: Staged, events: DataFrame, apply: KeyedApply) -> DataFrame:
    """The rows of staged files with `FILE` and `POSITION`.

    Args:
        events: of the same table.
    """
    columns = [field for field in events.schema.fields if field.name not in apply.dropped]
    locations = [_PATTERN.sub(r"\\\g<0>", str(file.location())) for file in staged.files]
    # Read by their names: a column that the table got since is NULL in all rows.
    stored = session.read.schema(type(events.schema)(columns)).parquet(*locations)
    metadata = stored.metadataColumn("_metadata")
    return stored.select("*", metadata["file_name"].alias(FILE), metadata["row_index"].alias(POSITION))


def as_events(
    located: DataFrame,
    files: Mapping[str, Mapping[str, Any]],
    values: Mapping[str | None, Column],
    events: DataFrame,
    apply: KeyedApply,
) -> DataFrame:
    """Located rows with the columns of events.

    Args:
        files: by name, values of a file, which are columns of `files` for `values`.
        values: of columns that the table does not have; of others they are NULL.
    """
    types = ", ".join(
        f"{name} {'STRING' if isinstance(value, str) else 'BIGINT'}"
        for name, value in next(iter(files.values())).items()
    )
    named = located.sparkSession.createDataFrame(
        [(name, *of_file.values()) for name, of_file in files.items()], f"{FILE} STRING, {types}"
    )
    return (
        located.alias("rows")
        .join(sf.broadcast(named).alias("files"), FILE)
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


def copied_files(log_rows: DataFrame) -> Sequence[CopiedFile]:
    """The files that rows of a log table name."""
    named = log_rows.where(sf.col("operation") == COPIED_FILE).select(
        sf.col("columns")[FILE_NAME], "point", "sequence", "snapshot"
    )
    return [CopiedFile(*row) for row in named.collect()]


@dataclass(frozen=True, slots=True)
class CopiedFileRows:
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
    def read(
        cls,
        session: SparkSession,
        files: Sequence[CopiedFile],
        staged: Staged,
        events: DataFrame,
        apply: KeyedApply,
    ) -> CopiedFileRows:
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


_NUMBER = "__taut_number"
_TRUNCATE, _COMPLETED = "truncate", "completed"
_NAMES_FILES_OR_ENDS_THEM = (CHANGE_FILE, _TRUNCATE)
_COLUMNS = ("operation", "point", "sequence", "columns")


class LightLogRows:
    """The new rows of the log tables of light captures, read once by the driver for all tables. Safe to use
    from the threads of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[LogRange, pa.Table | Reason] = {}

    def changes_of(self, log: LakeTable, log_range: LogRange, relation: str) -> RelationChanges | Reason:
        """Of the rows that came to the log between two versions; or why only Spark reads them."""
        with self._lock:
            if log_range not in self._rows:
                self._rows[log_range] = _new_rows(log, log_range)
            rows = self._rows[log_range]
        return rows if isinstance(rows, Reason) else RelationChanges.of(rows, relation)

    def forget(self) -> None:
        """Drop the rows that were held for a checkpoint."""
        with self._lock:
            self._rows.clear()


def _new_rows(log: LakeTable, log_range: LogRange) -> pa.Table | Reason:
    assert log_range.old is not None
    change = log.change_between(log_range.old, log_range.new)
    if change.kind is not ChangeKind.APPEND and not change.appended:
        return change.reason
    collected = log.collected_change(log_range.old, log_range.new)
    if isinstance(collected, Reason):
        return collected
    # Without rows the commits only had positions.
    return Reason.of(ReasonCode.NO_NEW_ROWS) if collected.added is None else collected.added


@dataclass(frozen=True, slots=True)
class RelationChanges:
    """What new rows of a log say about the change files of one relation.

    Attributes:
        files: in their order, without those from before an event that removed all rows.
        has_others: other events are beside them.
    """

    files: Sequence[ChangeFile]
    has_others: bool

    @classmethod
    def of(cls, rows: pa.Table, relation: str) -> RelationChanges:
        """
        Args:
            rows: of the log table, of any relations.
        """
        is_change = pc.and_(pc.equal(rows["relation"], relation), pc.not_equal(rows["operation"], _COMPLETED))
        rows = rows.filter(is_change)
        special = rows.filter(pc.is_in(rows["operation"], pa.array(_NAMES_FILES_OR_ENDS_THEM)))
        columns = (special[name].to_pylist() for name in _COLUMNS)
        files = _files((*row, dict(pairs or ())) for *row, pairs in zip(*columns, strict=True))
        return cls(files, not pc.all(pc.equal(rows["operation"], CHANGE_FILE), min_count=0).as_py())

    @classmethod
    def of_frame(cls, rows: DataFrame) -> RelationChanges:
        """
        Args:
            rows: of the relation, which Spark reads.
        """
        special = rows.where(sf.col("operation").isin(*_NAMES_FILES_OR_ENDS_THEM))
        return cls(_files(special.select(*_COLUMNS).collect()), has_others=True)


def _files(rows: Iterable[Sequence[Any]]) -> list[ChangeFile]:
    files, truncated = [], (-1, -1)
    for operation, point, sequence, columns in rows:
        if operation == _TRUNCATE:
            truncated = max(truncated, (point, sequence))
        else:
            files.append(ChangeFile.of_log(point, sequence, columns))
    return sorted(file for file in files if (file.point, file.sequence) > truncated)


@dataclass(frozen=True, slots=True)
class NetFiles:
    """What change files do to a table together.

    Attributes:
        staged: the files.
        without: in them, rows that are not the table's: data file → positions.
        keys: an Arrow table of all their keys, each once.
        rows: so many are left.
    """

    staged: Staged
    without: Mapping[str, Sequence[int]]
    keys: Any
    rows: int


def net_files(
    table: LakeTable, fork: Fork, files: Sequence[ChangeFile], staged: Staged, keys: Sequence[str]
) -> NetFiles | Reason:
    """
    Args:
        files: in their order, so that the last one with a key says what becomes of it.
        staged: the same files.
        keys: columns of the table.
    """
    limit = limits.MAX_HELD_LOG_ROWS
    if staged.rows > limit:
        return Reason.of(ReasonCode.VERY_MANY_EVENTS, rows=staged.rows, limit=limit)
    parts = table.columns_of(fork, staged, keys)
    if isinstance(parts, Reason):
        return parts
    all_keys = pa.concat_tables(parts)
    ranked = all_keys.append_column(_NUMBER, pa.array(range(all_keys.num_rows), pa.int64()))
    # A file has a key once.
    last = ranked.group_by(all_keys.column_names).aggregate([(_NUMBER, "max")])[f"{_NUMBER}_max"]
    last = last.combine_chunks().sort()
    is_last = pc.is_in(ranked[_NUMBER], value_set=last).combine_chunks()
    without: dict[str, Sequence[int]] = {}
    first = rows = 0
    for file, part, data_file in zip(files, parts, staged.files, strict=True):
        of_file = is_last.slice(first, part.num_rows)
        is_row = pc.and_(of_file, pc.less(pa.array(range(part.num_rows), pa.int64()), file.kept))
        positions = pc.indices_nonzero(pc.invert(is_row)).to_pylist()
        if positions:
            without[str(data_file.location())] = positions
        first += part.num_rows
        rows += part.num_rows - len(positions)
    return NetFiles(staged, without, all_keys.take(last), rows)


def events_of_change_files(
    session: SparkSession,
    files: Sequence[ChangeFile],
    staged: Staged,
    events: DataFrame,
    apply: KeyedApply,
) -> DataFrame:
    """The rows of files as events of their table: updates, and deletes.

    Args:
        staged: the same files.
        events: of the same table.
    """
    located = located_rows(session, staged, events, apply)
    named = {file.name: {"point": file.point, "sequence": file.sequence, "kept": file.kept} for file in files}
    point, sequence = apply.sequence
    is_row = sf.col(f"rows.{POSITION}") < sf.col("files.kept")
    values: Mapping[str | None, Column] = {
        point: sf.col("files.point"),
        sequence: sf.col("files.sequence"),
        apply.operation: sf.when(is_row, "update").otherwise("delete"),
        apply.invalid: sf.array(),
    }
    return as_events(located, named, values, events, apply)
