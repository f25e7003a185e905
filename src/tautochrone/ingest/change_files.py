"""Writes the changes of a light capture into data files of the captured tables.

The log table takes one row for each file. The commit that has this row and the position of its batch makes
the file count; a file of a batch that was not committed belongs to nobody and is removed as an orphan.
Changes that cannot be in files stay rows of the log table, as in a full capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tautochrone.model.lake import Fork
from tautochrone.model.log_table import CHANGE_FILE, ChangeFile, KeyedTable
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason
from tautochrone.model.source import ChangeLog, NetsChanges, SourceRows

__all__ = ["ChangeFileWriter", "WrittenChanges"]


@dataclass(frozen=True, slots=True)
class WrittenChanges:
    """The rows of a batch for the log table, after changes went into files.

    Attributes:
        begun: by relation with a file, when it was begun (epoch ms).
    """

    rows: SourceRows
    begun: Mapping[str, int]


@dataclass(slots=True)
class ChangeFileWriter:
    """
    Args:
        log_table: where the log's rows go.
        tables: those of some relations that take files once they are built.
        report: gets a relation and why its changes go through the log table, when the reason is another one.
    """

    log: ChangeLog
    log_table: TableName
    tables: Callable[[Collection[str]], Mapping[str, KeyedTable]]
    report: Callable[[str, Reason], None]
    _reported: dict[str, Reason] = field(default_factory=dict)

    def write(self, rows: SourceRows, waiting: Collection[str]) -> WrittenChanges:
        """
        Args:
            rows: of a batch, as rows of the log table.
            waiting: relations that are being copied: their changes are compared with copied rows.
        """
        if not rows.num_rows or not isinstance(self.log, NetsChanges):
            return WrittenChanges(rows, {})
        changed = {*pc.unique(rows["relation"]).to_pylist()} - {*waiting}
        parts, begun = [], {}
        for relation, table in self.tables(changed).items():
            fork = table.table.fork()
            if fork.commit_metadata is None or str(self.log_table) not in fork.commit_metadata.inputs:
                continue
            begun_ms = time.time_ns() // 1_000_000
            named = _written(self.log, rows.filter(pc.equal(rows["relation"], relation)), table, fork)
            if isinstance(named, Reason):
                self._report(relation, named)
                continue
            parts.append(named)
            begun[relation] = begun_ms
        if not parts:
            return WrittenChanges(rows, {})
        others = rows.filter(pc.invert(pc.is_in(rows["relation"], pa.array(begun, pa.string()))))
        # In one piece: Spark takes no rows behind an empty chunk.
        return WrittenChanges(pa.concat_tables([others, *parts]).combine_chunks(), begun)

    def _report(self, relation: str, reason: Reason) -> None:
        if self._reported.get(relation) != reason:
            self._reported[relation] = reason
            self.report(relation, reason)


def _written(log: NetsChanges, events: pa.Table, table: KeyedTable, fork: Fork) -> pa.Table | Reason:
    """The row of the log table that stands for events of one relation, which are in a file now; or why they
    cannot be."""
    lake_table = table.table
    writer = lake_table.task_writer(fork)
    if isinstance(writer, Reason):
        return writer
    net = log.net_rows(events, writer.schema, table.keys)
    if isinstance(net, Reason):
        return net
    staged = lake_table.stage_arrow(fork, net.rows)
    if isinstance(staged, Reason):
        return staged
    (data_file,) = staged.files
    last = events.slice(events.num_rows - 1)
    (point,), (sequence,) = last["point"].to_pylist(), last["sequence"].to_pylist()
    name = str(data_file.location()).rpartition("/")[2]
    file = ChangeFile(point, sequence, name, net.rows.num_rows, net.kept)
    values = {"operation": CHANGE_FILE, "columns": [*file.columns().items()], "unchanged": None}
    return pa.table(
        [
            pa.array([values[name]], column.type) if name in values else column
            for name, column in zip(last.column_names, last.columns, strict=True)
        ],
        last.schema,
    )
