"""Folding of history: rows that only older checkpoints needed go; kept checkpoints read as before.

A publication below the *floor* can no longer be read. Of the rows up to the floor each partition keeps the
net rows, with the number of the floor: a row that came and went is gone, and so is what a rebuild replaced.

1. The floor is recorded. Whoever pins a checkpoint afterwards can see that it is too late.
2. Pins are read again: one that was written before the floor stops the folding.
3. Of each partition the rows that stay are written to a folding table, named after the owner's fence, and
   compared with the partition by content.
4. `REPLACE PARTITION` exchanges them at once. A partition of which nothing stays moves to the folding
   table.
5. Ledger rows below the floor are deleted.

Each step can be repeated, and a crash leaves partitions that are folded and others that are not, which read
alike. A statement of an older owner that comes late finds no folding table: the next owner drops it first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.errors import SinkContentError
from tautochrone.model.names import Fence, TableName
from tautochrone.model.sink import FoldedTable
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.ledger import Ledger
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.rows import CHUNK, NULLS, PUBLICATION, SIGN
from tautochrone.sinks.clickhouse.statements import name_sql, text_sql
from tautochrone.sinks.clickhouse.tables import ClickHouseTables

__all__ = ["Folding"]

_WORTH = 0.2
"""A partition is folded when at least this part of its rows goes, so that rows are not rewritten often."""


@dataclass(frozen=True, slots=True)
class _Partition:
    id: str
    rows: int


class Folding:
    """See the module docstring."""

    def __init__(
        self, name: str, engine: Engine, options: ClickHouseOptions, ledger: Ledger, tables: ClickHouseTables
    ) -> None:
        self._name = name
        self._engine = engine
        self._options = options
        self._ledger = ledger
        self._tables = tables

    def floor(self) -> int:
        """Below which publication nothing needs to be readable; 0 for none."""
        return self._ledger.oldest_needed(self._options.keep_checkpoints, self._options.keep_minutes)

    def raise_floor(self, floor: int, fence: Fence) -> None:
        """Step 1.

        Raises:
            SinkFencedError
        """
        self._ledger.require(fence)
        self._ledger.raise_floor(floor)

    def is_pinned_below(self, floor: int) -> bool:
        """Step 2."""
        return self._ledger.oldest_pinned() < floor

    def fold(self, floor: int, fence: Fence) -> list[FoldedTable]:
        """Fold what is below the floor, where it is worth it, and forget what the ledger has of it.

        Raises:
            SinkFencedError
            SinkContentError: a folding table does not have the content of its partition.
        """
        if floor == 0:
            return []
        work = {table: partitions for table in self._tables.mirrored()
                if (partitions := self._worthwhile(table, floor))}  # fmt: skip
        folded = [self._fold_table(table, work[table], floor, fence) for table in work]
        self._ledger.forget_below(floor, fence)
        return folded

    def _worthwhile(self, table: TableName, floor: int) -> list[_Partition]:
        replaced = f"{PUBLICATION} < {self._tables.replaced_sql(table, floor)}"
        rows = self._engine.rows(
            f"SELECT _partition_id, toString(count()) AS total, "
            f"countIf({replaced}) + 2 * countIf(NOT ({replaced}) AND {SIGN} < 0 AND {PUBLICATION} <= {floor})"
            f" AS gone FROM {self._tables.rows(table)} GROUP BY _partition_id "
            f"HAVING gone > 0 AND gone >= {_WORTH} * count() ORDER BY _partition_id"
        )
        return [_Partition(partition, int(total)) for partition, total, _ in rows]

    def _fold_table(
        self, table: TableName, partitions: list[_Partition], floor: int, fence: Fence
    ) -> FoldedTable:
        remaining = 0
        folding = self._tables.folding_name(table, fence)
        for partition in partitions:
            self._tables.create_staging(folding, table)
            # A newer owner that raised its fence before this check may not have seen the folding table.
            self._ledger.require(fence)
            remaining += self._fold_partition(table, folding, partition.id, floor)
        self._tables.drop(folding)
        before = sum(partition.rows for partition in partitions)
        return FoldedTable(table=table, rows_before=before, rows_after=remaining, oldest=floor)

    def _fold_partition(self, table: TableName, folding: str, partition: str, floor: int) -> int:
        """How many rows remain."""
        rows, target = self._tables.rows(table), self._tables.qualified_staging(folding)
        names = [name_sql(column.name) for column in self._tables.columns(table)]
        listed, grouped = ", ".join((*names, PUBLICATION, SIGN, NULLS, CHUNK)), ", ".join((*names, NULLS))
        is_partition = f"_partition_id = {text_sql(partition)}"
        self._engine.run(
            f"INSERT INTO {target} ({listed}) "
            f"SELECT {', '.join(names)}, toUInt64({floor}), toInt8(sign(_taut_copies)), {NULLS}, toUInt32(0) "
            f"FROM (SELECT {grouped}, sum(toInt64({SIGN})) AS _taut_copies FROM {rows} "
            f"WHERE {is_partition} AND {self._tables.visible_sql(table, floor)} "
            f"GROUP BY {grouped} HAVING _taut_copies != 0) "
            "ARRAY JOIN range(toUInt64(abs(_taut_copies))) AS _taut_copy "
            f"UNION ALL SELECT {listed} FROM {rows} WHERE {is_partition} AND {PUBLICATION} > {floor}"
        )
        expected = self._tables.net_digests(rows, table, floor, partition)
        arrived = self._tables.net_digests(target, table, floor)
        if arrived != expected:
            raise SinkContentError(
                "SINK_CONTENT_DIFFERS",
                f"Sink {self._name}, history of {table} up to publication {floor}: "
                f"the partition {partition} has {expected}, folded {arrived}",
                hint="Nothing was changed. A partition key must be computed from columns of the table.",
                parameters={"sink": self._name, "table": str(table)},
            )
        ((count,),) = self._engine.rows(f"SELECT toString(count()) FROM {target}")
        if count == "0":
            self._engine.run(f"ALTER TABLE {rows} MOVE PARTITION ID {text_sql(partition)} TO TABLE {target}")
        else:
            self._engine.run(f"ALTER TABLE {rows} REPLACE PARTITION ID {text_sql(partition)} FROM {target}")
        return int(count)
