"""What one transaction stages of one table in one server."""

from __future__ import annotations

from collections.abc import Sequence

from tautochrone.model.names import TableName
from tautochrone.model.sink import Chunk
from tautochrone.sinks.clickhouse.rows import Batch
from tautochrone.sinks.clickhouse.tables import Tables
from tautochrone.sinks.clickhouse.types import Column

__all__ = ["Staging"]


class Staging:
    """An open staging table, and the chunks that were sent to it."""

    def __init__(self, tables: Tables, name: str, table: TableName, publication: int, server: str) -> None:
        self._tables = tables
        self._name = name
        self._table = table
        self._publication = publication
        self._server = server
        self._columns: Sequence[Column] = tables.columns(table)
        self.chunks: list[Chunk] = []

    def add(self, batch: Batch, sign: int) -> None:
        """Insert some rows that came (1) or went (-1)."""
        for piece in batch.pieces(self._tables.chunk_bytes):
            number = len(self.chunks)
            rows = piece.table(self._columns, sign, self._publication, number)
            self._tables.insert(self._name, rows, self._columns)
            digest = piece.digest(sign)
            self.chunks.append(Chunk(table=self._table, number=number, digest=digest, server=self._server))
