"""Waiting for a server, in a way that people see why a delivery does not go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.sql import text_sql
from tautochrone.sinks.clickhouse.tables import ClickHouseTables

__all__ = ["Waits", "running_statements"]

_QUIET_S = 60.0
"""How long a statement of which the answer was lost may still run."""
_MERGES_S = 60.0
"""How long a delivery waits for merges before it counts as failed and is tried again."""
_REPORT_EVERY_S = 10.0


def running_statements(engine: Engine, tables: Sequence[str]) -> int:
    """How many statements run on the server that name one of these tables."""
    used = " OR ".join(f"position(query, {text_sql(name)}) > 0" for name in tables)
    ((count,),) = engine.rows(
        "SELECT toUInt32(count()) FROM system.processes "
        f"WHERE query_id != queryID() AND query NOT LIKE '%system.processes%' AND ({used})"
    )
    return int(count)


class Waits:
    """What a delivery waits for. Set `report` to be told when a wait begins, and while it lasts."""

    def __init__(
        self, name: str, engine: Engine, tables: ClickHouseTables, options: ClickHouseOptions
    ) -> None:
        self.report: Callable[[Reason], None] = lambda _reason: None
        self._name = name
        self._engine = engine
        self._tables = tables
        self._options = options
        self._spare_chunks = 0
        self._spare_tables: set[TableName] = set()

    def quiet(self, stagings: Sequence[str]) -> None:
        """Wait until no statement uses these tables: one whose answer was lost may still run.

        Raises:
            SinkError: `SINK_BUSY`.
        """
        if not stagings:
            return
        server = self._options.address

        def running() -> Reason | None:
            count = running_statements(self._engine, stagings)
            if not count:
                return None
            return Reason.of(ReasonCode.SINK_STATEMENTS_RUNNING, statements=count, server=server)

        reason = self._until_none(running, _QUIET_S, 0.05)
        if reason is not None:
            raise SinkError(
                "SINK_BUSY",
                f"Sink {self._name}: {reason.params['statements']} statements of an earlier try still run",
                hint="See system.processes of the server.",
                retryable=True,
            )

    def merges(self, tables: Sequence[TableName]) -> None:
        """Wait until the server has merged enough: it slows down inserts with many parts, but not moves.

        Raises:
            SinkError: `SINK_TOO_MANY_PARTS`.
        """
        if not tables or (self._spare_chunks > 0 and self._spare_tables.issuperset(tables)):
            return
        limit, server = self._options.max_parts, self._options.address

        def unmerged() -> Reason | None:
            parts, table = self._tables.most_parts(tables)
            # A chunk adds a part to each partition, or two if it is large.
            self._spare_chunks, self._spare_tables = (limit - parts) // 2, set(tables)
            if parts <= limit:
                return None
            return Reason.of(
                ReasonCode.SINK_PARTS_UNMERGED, table=table, server=server, parts=parts, limit=limit
            )

        reason = self._until_none(unmerged, _MERGES_S, 0.2)
        if reason is not None:
            parts, table = reason.params["parts"], reason.params["table"]
            raise SinkError(
                "SINK_TOO_MANY_PARTS",
                f"Sink {self._name}: a partition of {table} in {server} has {parts} unmerged parts, more "
                f"than {limit}; deliveries wait until some are merged",
                hint="Deliver less often, use fewer partitions (partition_by), or look at "
                "system.merges of the server.",
                parameters={"sink": self._name, "parts": str(parts)},
                retryable=True,
            )

    def added(self, chunks: int) -> None:
        """So many chunks were staged: with enough of them the server is asked for its parts again."""
        self._spare_chunks -= chunks

    def _until_none(
        self, obstacle: Callable[[], Reason | None], limit_s: float, pause_s: float
    ) -> Reason | None:
        """Wait until there is no obstacle; the one that is left when the time is up."""
        started = time.monotonic()
        next_report = started
        while True:
            reason = obstacle()
            now = time.monotonic()
            if reason is None or now - started > limit_s:
                return reason
            if now >= next_report:
                self.report(reason)
                next_report = now + _REPORT_EVERY_S
            time.sleep(pause_s)
