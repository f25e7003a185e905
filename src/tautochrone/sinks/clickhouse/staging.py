"""What one transaction stages of one table in one server."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tautochrone.model.names import TableName
from tautochrone.model.sink import SentChunk
from tautochrone.sinks.clickhouse.comparison import ChunkCheck
from tautochrone.sinks.clickhouse.rows import Batch
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.clickhouse.types import MirroredColumn

__all__ = ["Staging"]


_PIPELINED_ROWS = 5_000
"""With fewer rows an insert takes too short a time to do something else meanwhile."""


class Staging:
    """An open staging table, and the chunks that were sent to it.

    While rows are inserted, by a thread, they are hashed and the next ones are encoded. There is one insert
    at a time, and none after the context ended.

    Attributes:
        chunks: complete once the context ended without an error.
    """

    def __init__(
        self,
        tables: ClickHouseTables,
        name: str,
        table: TableName,
        publication: int,
        server: str,
        check: ChunkCheck,
    ) -> None:
        self._check = check
        self._tables = tables
        self._name = name
        self._table = table
        self._publication = publication
        self._server = server
        self._columns: Sequence[MirroredColumn] = tables.columns(table)
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="tautochrone-insert")
        self._sending: Future[None] | None = None
        self.chunks: list[SentChunk] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.shutdown()
        if error is None:
            self._await_sent()

    def add(self, batch: Batch, sign: int) -> None:
        """Insert some rows that came (1) or went (-1).

        Raises:
            SinkError: this insert failed, or the one before.
        """
        for piece in batch.pieces(self._tables.chunk_bytes):
            number = len(self.chunks)
            rows = piece.table(self._columns, sign, self._publication, number)
            self._await_sent()
            if len(piece) < _PIPELINED_ROWS:
                self._tables.insert(self._name, rows, self._columns)
            else:
                self._sending = self._sender.submit(self._tables.insert, self._name, rows, self._columns)
            is_hashed = self._check.is_hashed(piece, is_first=not number)
            digest = piece.digest(sign, is_hashed=is_hashed)
            self.chunks.append(
                SentChunk(table=self._table, number=number, digest=digest, server=self._server)
            )

    def _await_sent(self) -> None:
        if self._sending is not None:
            self._sending.result()
            self._sending = None
