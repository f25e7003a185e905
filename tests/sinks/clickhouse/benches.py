"""ClickHouse's embedded engine as a bench of the suite of all sinks, with faults between its statements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import Operation, Sink
from tautochrone.sinks.clickhouse.comparison import ChunkCheck, ComparisonPolicy
from tautochrone.sinks.clickhouse.engines import Engine, ReadingEngine, open_engine
from tautochrone.sinks.clickhouse.options import clickhouse_options
from tautochrone.sinks.clickhouse.server import Server
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.sinks.clickhouse.statements import name_sql
from tautochrone.sinks.clickhouse.tables import plain_name
from tautochrone.testing.sqlite_sink import ListRows


class BrokenConnectionError(Exception):
    """The connection broke: whether the statement was done is not known."""


class FaultyEngine:
    """Passes statements on, and breaks the connection before or after one of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.before: Callable[[str], bool] | None = None
        self.after: Callable[[str], bool] | None = None
        self.loses_row = False
        self.statements: list[str] = []

    def run(self, statement: str) -> None:
        self._break("before", statement)
        self._engine.run(statement)
        self._break("after", statement)

    def rows(self, query: str) -> list[list[Any]]:
        self.statements.append(query)
        return self._engine.rows(query)

    def insert(self, table: str, rows: pa.Table, types: Sequence[str]) -> None:
        statement = f"INSERT INTO {table}"
        self._break("before", statement)
        if self.loses_row:
            self.loses_row, rows = False, rows.slice(0, rows.num_rows - 1)
        self._engine.insert(table, rows, types)
        self._break("after", statement)

    @property
    def settings(self) -> Mapping[str, str]:
        return self._engine.settings

    def renew_settings(self) -> None:
        self._engine.renew_settings()

    def close(self) -> None:
        self._engine.close()

    def _break(self, moment: str, statement: str) -> None:
        if moment == "before":
            self.statements.append(statement)
        condition = getattr(self, moment)
        if condition is not None and condition(statement):
            setattr(self, moment, None)
            raise BrokenConnectionError(f"{moment} {statement[:60]}")


class CountingComparisonPolicy(ComparisonPolicy):
    """Counts from the first chunk on, as if the server had been proven before."""

    def of(self, *arguments: Any, **named: Any) -> tuple[ChunkCheck, Reason]:
        check, reason = super().of(*arguments, **named)
        if not check.hashes_first:
            return check, reason
        return ChunkCheck(counts=True, hashes_first=False), Reason.of(ReasonCode.SINK_ROWS_COUNTED)


BREAKS = {
    Operation.WRITE: ("after", "INSERT INTO"),
    Operation.COMMIT: ("before", "MOVE PARTITION"),
    Operation.ABORT: ("before", "DROP TABLE"),
}


class EmbeddedBench:
    """One folder, opened by several sinks as by several processes."""

    takes_any_columns = False

    def __init__(self, folder: Path, **options: str) -> None:
        self.options = clickhouse_options(
            "mirror", {"url": f"clickhouse://embedded/{folder}", "chunk_rows": "1", **options}
        )
        self.reader = open_engine("reader", self.options)
        self._engines: list[FaultyEngine] = []
        self._sinks: list[Sink] = []

    def open(self) -> Sink:
        engine = FaultyEngine(open_engine("mirror", self.options))
        self._engines.append(engine)
        sink = ClickHouseSink("mirror", [Server("mirror", engine, self.options)])
        self._sinks.append(sink)
        return sink

    def observe(self) -> Sink:
        engine = ReadingEngine("mirror", open_engine("mirror", self.options), self.options.database)
        try:
            return ClickHouseSink("mirror", [Server("mirror", engine, self.options)])
        except BaseException:
            engine.close()
            raise

    def objects(self) -> object:
        tables = self.reader.rows(
            "SELECT database, name, toString(uuid), toString(total_rows) FROM system.tables "
            "WHERE database NOT IN ('system', 'information_schema', 'INFORMATION_SCHEMA') ORDER BY 1, 2"
        )
        return self.reader.rows("SELECT name FROM system.databases ORDER BY 1"), tables

    def schema(self, *columns: str) -> Any:
        texts = [StructField(name, StringType()) for name in ("word", *columns)]
        return StructType([StructField("id", LongType()), *texts])

    def numbers(self) -> Any:
        return StructType([StructField(name, LongType()) for name in ("id", "word")])

    def frame(self, rows: Sequence[tuple[Any, ...]]) -> ListRows:
        return ListRows(["id", "word"], rows)

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        return self.read_server(self.options.database, table)

    def ids(self, table: TableName) -> Sequence[int]:
        return [row[0] for row in self.read(table)]

    def read_server(self, database: str, table: TableName) -> Sequence[tuple[Any, ...]]:
        view = f"{name_sql(database)}.{name_sql(plain_name(table, database))}"
        return [(int(key), *values) for key, *values in self.reader.rows(f"SELECT * FROM {view}")]

    def break_during(self, operation: Operation) -> type[Exception] | None:
        if operation not in BREAKS:
            return None
        moment, text = BREAKS[operation]
        for engine in self._engines:
            setattr(engine, moment, lambda statement: text in statement)
        return BrokenConnectionError

    def break_when(self, moment: str, condition: Callable[[str], bool] | None) -> None:
        """Break the connection before or after the next statement that meets the condition, once."""
        for engine in self._engines:
            setattr(engine, moment, condition)

    def lose_answer(self) -> type[Exception]:
        for engine in self._engines:
            engine.after = lambda statement: True
        return BrokenConnectionError

    def lose_row(self) -> None:
        for engine in self._engines:
            engine.loses_row = True

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
        # Tables that stay cost the engine time in its background threads.
        self.reader.run(f"DROP DATABASE IF EXISTS {name_sql(self.options.database)} SYNC")
        self.reader.close()


class CountingBench(EmbeddedBench):
    """Sinks that only count what they stage."""

    def open(self) -> Sink:
        sink = super().open()
        assert isinstance(sink, ClickHouseSink)
        sink._first._comparison = CountingComparisonPolicy("mirror", self.options)
        return sink


class ShardedBench(EmbeddedBench):
    """Three databases of one engine as the servers of one sink. A fault strikes whichever is used first."""

    def __init__(self, folder: Path, **options: str) -> None:
        super().__init__(folder, **options)
        names = [f"{self.options.database}_{letter}" for letter in "abc"]
        self.servers = [dataclasses.replace(self.options, database=name) for name in names]

    def open(self) -> Sink:
        engine = FaultyEngine(open_engine("mirror", self.options))
        self._engines.append(engine)
        servers = [
            Server("mirror", engine, options, f"{number}/{len(self.servers)}")
            for number, options in enumerate(self.servers, 1)
        ]
        sink = ClickHouseSink("mirror", servers)
        self._sinks.append(sink)
        return sink

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        parts = [self.read_server(options.database, table) for options in self.servers]
        return [row for part in parts for row in part]

    def close(self) -> None:
        for options in self.servers:
            self.reader.run(f"DROP DATABASE IF EXISTS {name_sql(options.database)} SYNC")
        super().close()
