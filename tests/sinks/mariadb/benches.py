"""A database of its own on one MariaDB server, opened by several sinks as by several processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from tests.sinks.benches import LosesAnswers, SparkBench
from tests.support.mariadb import SINK_PASSWORD, open_connection, sink_url

from tautochrone.model.names import TableName
from tautochrone.model.sink import Sink
from tautochrone.sinks.common.mirrored import NameRules, mirror_name, quoted
from tautochrone.sinks.mariadb.options import mariadb_options
from tautochrone.sinks.mariadb.sink import MariadbSink

_databases = count(1)


class FaultySink(LosesAnswers, MariadbSink):
    """Loses a row or an answer when its bench says so."""

    bench: MariadbBench

    def _insert(self, cursor: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        super()._insert(cursor, statement, self.bench.without_lost_row(rows))


class MariadbBench(SparkBench):
    """What the suite of all sinks needs.

    Attributes:
        key: of every table, in place of the one that `ensure` is given.
    """

    def __init__(self, key: Sequence[str] = ()) -> None:
        super().__init__()
        self.database = f"mirror_{next(_databases)}"
        self.options = mariadb_options(
            "mirror", {"url": sink_url(self.database), "password": SINK_PASSWORD, "chunk_rows": "1"}
        )
        self._key = key

    def open(self) -> Sink:
        sink: FaultySink = self.opened(FaultySink("mirror", self.options))
        ensure = sink.ensure
        sink.ensure = (  # type: ignore[method-assign]
            lambda table, schema, key, fence: ensure(table, schema, key or self._key, fence)
        )
        return sink

    def observe(self) -> Sink:
        return MariadbSink("mirror", self.options, only_looks=True)

    def objects(self) -> object:
        tables = self.query(
            # The server makes tables of its own schemas anew whenever they are read.
            "SELECT table_schema, table_name, create_time FROM information_schema.tables"
            " WHERE table_schema NOT IN ('information_schema', 'performance_schema', 'sys')"
            " ORDER BY 1, 2"
        )
        is_created = (self.database, "taut_sinks") in [table[:2] for table in tables]
        rows = self.query(f"SELECT * FROM {quoted(self.database, 'taut_sinks')}") if is_created else ()
        return self.query("SHOW DATABASES"), tables, rows

    def read(self, table: TableName) -> Sequence[tuple[Any, ...]]:
        name = quoted(self.database, mirror_name(table, NameRules(longest=64)))
        return self.query(f"SELECT {', '.join(map(quoted, self.columns))} FROM {name}")

    def query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        """What the administrator gets."""
        with open_connection() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def close(self) -> None:
        super().close()
        self.query(f"DROP DATABASE IF EXISTS {self.database}")
