"""What change logs of databases have in common: a connection, the captured tables, and their first copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.model.log_table import NetRows
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import CHANGE_LOG_LIMITS, RateLimitOptions
from tautochrone.model.source_position import BulkProgress, LogPosition
from tautochrone.sources.capture.copied_rows import (
    CHUNK_BYTES,
    ReadChunk,
    chunks_for_tasks,
    connection_lost_error,
    copy_by_tasks,
)
from tautochrone.sources.capture.log_table import SPARK_SCHEMA
from tautochrone.sources.capture.set_aside import NewTables
from tautochrone.sources.capture.typed_rows import TextFormat, net_rows

__all__ = ["IDLE_BYTES", "CapturedLog", "ignored_column_reasons"]

IDLE_BYTES = 16 * 1024 * 1024
"""So far the log may run ahead without changes of captured tables until the table's position follows. Each
such move is a commit of the log table."""
T = TypeVar("T")


class _NamedTable(Protocol):
    @property
    def name(self) -> str: ...


class _CaptureValues(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def given_url(self) -> str: ...

    @property
    def copy_tasks(self) -> int: ...

    @property
    def patterns(self) -> Sequence[str]: ...

    @property
    def exclude(self) -> Sequence[str]: ...

    @property
    def aside(self) -> Mapping[str, Reason]: ...


_Capture = TypeVar("_Capture", bound=_CaptureValues)
_Table = TypeVar("_Table", bound=_NamedTable)


class CapturedLog(ABC, Generic[_Capture, _Table]):
    """The part of a `model.source.ChangeLog` that does not depend on the database. It connects when it is
    first asked for something.

    Attributes:
        text_format: of the texts in the log.
        extra: of the package, with the database's driver.
    """

    text_format: ClassVar[TextFormat]
    extra: ClassVar[str]

    def __init__(self, capture: _Capture, tables: Sequence[_Table]) -> None:
        self._capture = capture
        self._tables = {table.name: table for table in tables}
        self._aside = dict(capture.aside)
        self._new_tables = NewTables(self._tables, capture.patterns, capture.exclude, self._aside)
        self._lake_columns: dict[str, frozenset[str]] = {}
        """In lower case, the columns of the lake's tables that get no others."""
        self._connection: Any = None

    # -- the database's own part ------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """The capture, for people."""

    @abstractmethod
    def _connect(self) -> Any:
        """A new connection."""

    @abstractmethod
    def _translated_errors(self) -> AbstractContextManager[None]:
        """Errors of the database become ours."""

    @abstractmethod
    def _forget_server(self) -> None:
        """Forget what is known of the server: the next connection may lead to another one."""

    @abstractmethod
    def _disconnect(self, connection: Any) -> None:
        """Close a connection, also one that had an error."""

    @abstractmethod
    def _read_chunk(self, connection: Any, table: _Table, chunk: str) -> tuple[pa.Table, int]:
        """See `model.source.ChangeLog.read_chunk`."""

    @abstractmethod
    def _chunk_reader(self, connection: Any, chunks: tuple[tuple[_Table, str], ...]) -> ReadChunk:
        """Reads these chunks of tables by connections of its own."""

    @abstractmethod
    def _check_readable(self, connection: Any, relations: Collection[str]) -> None:
        """Raises what is wrong with the database, these tables or rights."""

    @abstractmethod
    def lag(self, position: LogPosition) -> Mapping[str, int]:
        """See `model.source.ChangeLog.lag`."""

    @abstractmethod
    def _log_end(self, connection: Any) -> int:
        """A point behind everything that was read so far."""

    @property
    def capture_name(self) -> str:
        """As the definition names the capture."""
        return self._capture.name

    @property
    def given_url(self) -> str:
        """As the definition gives it. It may have a password."""
        return self._capture.given_url

    # -- tables -----------------------------------------------------------------------------------

    def supported_limits(self) -> RateLimitOptions:
        return CHANGE_LOG_LIMITS

    def schema(self) -> StructType:
        return SPARK_SCHEMA

    def relations(self) -> Sequence[str]:
        return tuple(self._tables)

    def set_aside(self) -> Mapping[str, Reason]:
        return self._aside

    def set_lake_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        self._lake_columns = {name: frozenset(map(str.lower, names)) for name, names in columns.items()}

    def net_rows(self, events: pa.Table, schema: pa.Schema, keys: Sequence[str]) -> NetRows | Reason:
        """See `model.source.NetsChanges`."""
        return net_rows(events, schema, keys, self.text_format)

    # -- the first copy ---------------------------------------------------------------------------

    def read_chunk(self, relation: str, chunk: str) -> tuple[pa.Table, int]:
        return self._on_connection(
            lambda connection: self._read_chunk(connection, self._tables[relation], chunk)
        )

    def next_chunks(self, bulk: BulkProgress) -> Sequence[tuple[str, str]]:
        tasks = self._capture.copy_tasks
        return chunks_for_tasks(bulk, tasks, tasks * CHUNK_BYTES)

    def copy_chunks(
        self, session: SparkSession, chunks: Sequence[tuple[str, str]], stage: Callable[[DataFrame], T]
    ) -> tuple[T, int]:
        """See `BulkOnExecutors`.

        Raises:
            IngestError: `CAPTURE_COPY_FAILED`; and what `_on_connection` and `_check_readable` raise.
        """
        of_tables = tuple((self._tables[relation], chunk) for relation, chunk in chunks)
        relations = {relation for relation, _ in chunks}
        opened, reader = self._on_connection(lambda opened: (opened, self._chunk_reader(opened, of_tables)))
        staged = copy_by_tasks(
            session,
            self._capture.name,
            len(chunks),
            self._capture.copy_tasks,
            reader,
            stage,
            lambda: self._on_connection(lambda connection: self._check_readable(connection, relations)),
            self.extra,
        )
        return staged, self._on_connection(lambda connection: self._end_of_copy(connection, opened))

    def _end_of_copy(self, connection: Any, opened: Any) -> int:
        """A connection ends when the server crashes, so what was read while it was open is not lost."""
        if connection is not opened:
            raise connection_lost_error(self.name)
        return self._log_end(connection)

    # -- the connection ---------------------------------------------------------------------------

    def close(self) -> None:
        self._forget_server()
        if self._connection is not None:
            self._disconnect(self._connection)
            self._connection = None

    def _on_connection(self, question: Callable[[Any], T]) -> T:
        """After an error the connection is not used again."""
        try:
            with self._translated_errors():
                if self._connection is None:
                    self._connection = self._connect()
                return question(self._connection)
        except Exception:
            self.close()
            raise


def ignored_column_reasons(positions: Mapping[str, str]) -> dict[str, Reason]:
    """By name, tables that got columns which the lake's tables do not take.

    Args:
        positions: where in the log, as text.
    """
    code = ReasonCode.COLUMNS_CHANGED_AT_SOURCE
    return {name: Reason.of(code, relation=name, position=at) for name, at in positions.items()}
