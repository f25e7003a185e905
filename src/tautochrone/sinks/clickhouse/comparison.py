"""Whether what was staged is compared with what was sent by a hash of each row, or by counting rows.

The hash costs more than the insert: both sides compute it from every value. An insert that was answered has
all its rows, so counting the rows of each chunk finds what was lost, doubled or sent late. Chunks are only
counted where nothing else can differ:

- This object began the transaction, and every statement on the staging table was answered. After any error,
  and for a table that is staged again, rows are hashed: an earlier statement may still come.
- Nothing on the way changes bytes: the connection has TLS, or the engine is in this process. The option
  `compare = count` says that the network is trusted without TLS, and `compare = hash` hashes always.
- The server stores values of these types as they are sent. The first chunk of a table that this object sends
  (and each of Spark's tasks, then) is hashed, which proves it for this server, its version and its settings.
  Composite values, and dates that versions treat differently, are always hashed.
- It is still the server of that proof. One that was restarted since, with other settings or after it lost
  what was not on its disk, says that it started later.

Another owner does not publish rows that were only counted: what is not decided is dropped and sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.rows import Batch
from tautochrone.sinks.clickhouse.types import MirroredColumn

__all__ = ["SERVER_RUN_SQL", "ChunkCheck", "Comparison", "ServerRun"]

SERVER_RUN_SQL = "toInt64(toUnixTimestamp(now())) - toInt64(uptime()), uptime()"
"""The values of a `ServerRun`."""

_LEAST_UPTIME_S = 4
"""One that ran for less could have been restarted, and its start be the same to the second."""


class ServerRun(NamedTuple):
    """What a server says of its process, in whole seconds.

    The clock of this process does not count: it may stand still while this machine does.

    Attributes:
        started_s: of the epoch, by the server's clock.
    """

    started_s: int
    uptime_s: int

    def is_same(self, later: ServerRun) -> bool:
        """Whether the server was not restarted between two answers. Each is right to a second."""
        return abs(later.started_s - self.started_s) <= 1


@dataclass(frozen=True, slots=True)
class ChunkCheck:
    """How the chunks of one write are compared. Sent to executors by value.

    Attributes:
        counts: they are counted; else hashed.
        hashes_first: but the first chunk is hashed.
    """

    counts: bool
    hashes_first: bool

    def is_hashed(self, rows: Batch, *, is_first: bool) -> bool:
        return not self.counts or (self.hashes_first and is_first) or rows.has_far_times


class Comparison:
    """See the module docstring. One for each server."""

    def __init__(self, name: str, options: ClickHouseOptions) -> None:
        self._name = name
        self._options = options
        self._proven: dict[TableName, list[tuple[str, str]]] = {}
        self._run: ServerRun | None = None
        """The server as it was seen last; None if a restart would not be noticed."""

    def forget(self) -> None:
        """Something went wrong: the next chunks are hashed."""
        self._proven.clear()
        self._run = None

    def seen(self, run: ServerRun) -> bool:
        """Whether the server has run since it was seen last. If not, what was proven is forgotten."""
        if self._options.folder:
            # The engine ends with this process.
            return True
        has_run = self._run is not None and self._run.is_same(run)
        if not has_run:
            self._proven.clear()
        self._run = run if run.uptime_s >= _LEAST_UPTIME_S else None
        return has_run

    def require_seen(self, run: ServerRun) -> None:
        """Refuse to publish counted rows of a server that was restarted since the transaction began.

        Raises:
            SinkError: `SINK_SERVER_RESTARTED`.
        """
        if not self.seen(run):
            raise SinkError(
                "SINK_SERVER_RESTARTED",
                f"Sink {self._name}: the server {self._options.address} was restarted while rows were "
                "staged; they are sent again and compared by content",
                parameters={"sink": self._name, "server": self._options.address},
                retryable=True,
            )

    def proven(self, table: TableName, columns: Sequence[MirroredColumn]) -> None:
        """Hashed rows of a table arrived as they were sent."""
        if self._is_watched:
            self._proven[table] = _types(columns)

    @property
    def _is_watched(self) -> bool:
        """Whether a restart of the server would be noticed."""
        return bool(self._options.folder) or self._run is not None

    def of(
        self, table: TableName, columns: Sequence[MirroredColumn], *, is_new: bool
    ) -> tuple[ChunkCheck, Reason]:
        """How chunks are compared, and why.

        Args:
            is_new: whether no statement on the staging table may still be under way.
        """
        way = self._options.compare
        composites = [column.name for column in columns if column.type.encode_array is None]
        if way == "hash":
            return _hashed(ReasonCode.SINK_ROWS_HASHED_BY_OPTION)
        if not is_new:
            return _hashed(ReasonCode.SINK_ROWS_HASHED_AGAIN)
        if composites:
            return _hashed(ReasonCode.SINK_ROWS_HASHED_COMPOSITES, columns=", ".join(composites))
        if way != "count" and not self._options.folder and not self._options.is_encrypted:
            return _hashed(ReasonCode.SINK_ROWS_HASHED_WITHOUT_TLS)
        if not self._is_watched:
            return _hashed(ReasonCode.SINK_ROWS_HASHED_FIRST)
        if self._proven.get(table) == _types(columns):
            return ChunkCheck(counts=True, hashes_first=False), Reason.of(ReasonCode.SINK_ROWS_COUNTED)
        return ChunkCheck(counts=True, hashes_first=True), Reason.of(ReasonCode.SINK_ROWS_HASHED_FIRST)


def _hashed(code: ReasonCode, **params: str) -> tuple[ChunkCheck, Reason]:
    return ChunkCheck(counts=False, hashes_first=False), Reason.of(code, **params)


def _types(columns: Sequence[MirroredColumn]) -> list[tuple[str, str]]:
    return [(column.name, column.type.sql) for column in columns]
