"""What a sink holds, compared with what was sent, and with the lake.

What was staged is compared by a hash of each row, or by counting rows. The hash costs more than the insert:
both sides compute it from every value. An insert that was answered has all its rows, so counting the rows of
each chunk finds what was lost, doubled or sent late. Chunks are only counted where nothing else can differ:

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

By chunk `Digest.hash` is that of the rows, or `COUNTED` where they are only counted. By partition it is
`COUNTED` as soon as one of its chunks is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tautochrone.errors import SinkContentError, SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import Digest, RowDifference, SentChunk
from tautochrone.sinks.clickhouse.engines import Engine, ServerRun
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.rows import AUDIT_PARTS, COUNTED, Batch, batches, digests
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.clickhouse.types import MirroredColumn
from tautochrone.sinks.common.steps import require_same_content

__all__ = [
    "AuditedServer",
    "ChunkCheck",
    "ComparisonPolicy",
    "Partitions",
    "move_partitions",
    "row_differences",
    "staged_content",
]

_LEAST_UPTIME_S = 4
"""One that ran for less could have been restarted, and its start be the same to the second."""


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


class ComparisonPolicy:
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

    def observe_run(self, run: ServerRun) -> bool:
        """Whether the server has run since it was seen last. If not, what was proven is forgotten."""
        if self._options.folder:
            # The engine ends with this process.
            return True
        has_run = self._run is not None and self._run.is_same(run)
        if not has_run:
            self._proven.clear()
        self._run = run if run.uptime_s >= _LEAST_UPTIME_S else None
        return has_run

    def require_no_restart(self, run: ServerRun) -> None:
        """Refuse to publish counted rows of a server that was restarted since the transaction began.

        Raises:
            SinkError: `SINK_SERVER_RESTARTED`.
        """
        if not self.observe_run(run):
            raise SinkError(
                "SINK_SERVER_RESTARTED",
                f"Sink {self._name}: the server {self._options.address} was restarted while rows were "
                "staged; they are sent again and compared by content",
                parameters={"sink": self._name, "server": self._options.address},
                retryable=True,
            )

    def record_proven(self, table: TableName, columns: Sequence[MirroredColumn]) -> None:
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
            return _hashed_check(ReasonCode.SINK_ROWS_HASHED_BY_OPTION)
        if not is_new:
            return _hashed_check(ReasonCode.SINK_ROWS_HASHED_AGAIN)
        if composites:
            return _hashed_check(ReasonCode.SINK_ROWS_HASHED_COMPOSITES, columns=", ".join(composites))
        if way != "count" and not self._options.folder and not self._options.is_encrypted:
            return _hashed_check(ReasonCode.SINK_ROWS_HASHED_WITHOUT_TLS)
        if not self._is_watched:
            return _hashed_check(ReasonCode.SINK_ROWS_HASHED_FIRST)
        if self._proven.get(table) == _types(columns):
            return ChunkCheck(counts=True, hashes_first=False), Reason.of(ReasonCode.SINK_ROWS_COUNTED)
        return ChunkCheck(counts=True, hashes_first=True), Reason.of(ReasonCode.SINK_ROWS_HASHED_FIRST)


def _hashed_check(code: ReasonCode, **params: str) -> tuple[ChunkCheck, Reason]:
    return ChunkCheck(counts=False, hashes_first=False), Reason.of(code, **params)


def _types(columns: Sequence[MirroredColumn]) -> list[tuple[str, str]]:
    return [(column.name, column.type.sql) for column in columns]


Partitions = Mapping[str, tuple[int, str]]
"""By partition of ClickHouse: rows and hash."""
_NO_ROWS = Digest(0, "0")


def staged_content(
    sink: str,
    tables: ClickHouseTables,
    stagings: Mapping[TableName, str],
    chunks: Sequence[SentChunk],
    comparison: ComparisonPolicy,
) -> dict[str, Partitions]:
    """Compare what is staged with what was sent; by table and partition what is staged.

    Args:
        stagings: by table the name of its staging table.

    Raises:
        SinkContentError: they differ.
        SinkError: `SINK_SERVER_RESTARTED`.
    """
    arrived: dict[tuple[TableName, int], Digest] = {}
    content: dict[str, Partitions] = {}
    for table, staging in stagings.items():
        sent = [chunk for chunk in chunks if chunk.table == table]
        hashed = {chunk.number for chunk in sent if chunk.digest.hash != COUNTED}
        if len(hashed) == len(sent):
            digests = tables.staged_digests(staging, table)
        else:
            run, digests = tables.counted_digests(staging, table, hashed)
            if run is not None:
                comparison.require_no_restart(run)
        partitions: dict[str, tuple[int, str]] = {}
        for number, partition, digest in digests:
            arrived[table, number] = _sum(arrived.get((table, number), _NO_ROWS), digest)
            total = _sum(Digest(*partitions.get(partition, (0, "0"))), digest)
            partitions[partition] = total.rows, total.hash
        content[str(table)] = partitions
    require_same_content(sink, chunks, arrived)
    return content


def move_partitions(
    sink: str,
    tables: ClickHouseTables,
    table: TableName,
    staging: str,
    partitions: Partitions,
    publication: int,
    *,
    may_have_moved: bool,
) -> None:
    """Move what is staged into the table of rows, and compare what arrived.

    Args:
        partitions: what is staged.
        may_have_moved: some partitions may have been moved before. They are recognised by what they hold.

    Raises:
        SinkContentError: something else arrived; `SINK_STAGING_LOST`.
    """
    with_hash = may_have_moved and all(text != COUNTED for _, text in partitions.values())

    def arrived() -> dict[str, tuple[int, str]]:
        return tables.partition_digests(tables.rows(table), table, publication, with_hash=with_hash)

    # Who goes on with a commit finds partitions that were moved; nothing moved before it.
    before = arrived() if may_have_moved else {}
    waiting = [partition for partition in partitions if partition not in before]
    if may_have_moved and waiting and staging not in tables.staging_tables():
        raise SinkContentError(
            "SINK_STAGING_LOST",
            f"Sink {sink}: somebody dropped {staging}, the staging table of a transaction that is decided; "
            f"{len(waiting)} partitions of {table} were not moved out of it",
            hint="Drop the sink's database on all its servers and run "
            f"`taut sinks --forget {sink}`: the next run delivers all rows.",
            parameters={"sink": sink, "table": str(table)},
        )
    for partition in waiting:
        tables.move(staging, partition, table)
    expected = partitions if with_hash else {key: (rows, COUNTED) for key, (rows, _) in partitions.items()}
    after = arrived()
    if after != expected:
        raise SinkContentError(
            "SINK_CONTENT_DIFFERS",
            f"Sink {sink}, publication {publication} of {table}: staged {expected}, arrived {after}",
            hint="Somebody else writes into the sink's tables. Drop its database and run "
            f"`taut sinks --forget {sink}`: the next run delivers all rows.",
            parameters={"sink": sink, "table": str(table)},
        )


def _sum(first: Digest, second: Digest) -> Digest:
    if COUNTED in (first.hash, second.hash):
        return Digest(first.rows + second.rows, COUNTED)
    total = (int(first.hash, 16) + int(second.hash, 16)) % 2**64
    return Digest(first.rows + second.rows, f"{total:016x}")


@dataclass(frozen=True, slots=True)
class AuditedServer:
    """One server of a sink at a publication."""

    engine: Engine
    tables: ClickHouseTables
    publication: int


def row_differences(
    servers: Sequence[AuditedServer], table: TableName, rows: Rows, chunk_rows: int, limit: int
) -> list[RowDifference]:
    """Rows of which the lake and the sink have different numbers of copies, `limit` at most.

    Args:
        rows: of the lake; read twice or three times.
    """
    columns = servers[0].tables.columns(table)
    in_lake = digests(batches(rows, columns, chunk_rows))
    in_sink: Counter[str] = Counter()
    for server in servers:
        for part, digest in server.tables.audit(table, server.publication).items():
            in_sink[part] += int(digest.hash, 16)
    parts = {
        int(part)
        for part in in_sink.keys() | in_lake.keys()
        if f"{in_sink[part] % 2**64:016x}" != in_lake.get(part, Digest(0, f"{0:016x}")).hash
    }
    if not parts:
        return []
    sink_copies: Counter[bytes] = Counter()
    for server in servers:
        sink_copies.update(_sink_copies(server, table, parts))
    lake_copies: Counter[bytes] = Counter()
    for batch in batches(rows, columns, chunk_rows):
        lake_copies.update(row_hash for row_hash in batch.hashes if row_hash[8] % AUDIT_PARTS in parts)
    keys = sorted(
        key for key in sink_copies.keys() | lake_copies.keys() if sink_copies[key] != lake_copies[key]
    )
    keys = keys[:limit]
    texts: dict[bytes, str] = {}
    for server in servers:
        texts |= _sink_texts(server, table, keys)
    lacking = {key for key in keys if key not in texts}
    for batch in batches(rows, columns, chunk_rows) if lacking else ():
        for index, row_hash in enumerate(batch.hashes):
            if row_hash in lacking:
                values = [array[index].as_py() for array in batch.arrays]
                texts[row_hash] = _row_text([column.name for column in columns], values)
    return [RowDifference(row=texts[key], in_sink=sink_copies[key], in_lake=lake_copies[key]) for key in keys]


def _sink_copies(server: AuditedServer, table: TableName, parts: set[int]) -> Counter[bytes]:
    listed = ", ".join(map(str, sorted(parts)))
    hashed = server.tables.row_hashes_sql(table, server.publication)
    copies = server.engine.rows(
        f"SELECT hex(_taut_hash), toString(sum(_taut_sign)) FROM ({hashed}) "
        f"WHERE reinterpretAsUInt8(substring(_taut_hash, 9, 1)) % {AUDIT_PARTS} IN ({listed}) "
        "GROUP BY _taut_hash HAVING sum(_taut_sign) != 0"
    )
    return Counter({bytes.fromhex(key): int(count) for key, count in copies})


def _sink_texts(server: AuditedServer, table: TableName, keys: Sequence[bytes]) -> dict[bytes, str]:
    names = [column.name for column in server.tables.columns(table)]
    hashed = server.tables.row_hashes_sql(table, server.publication, with_columns=True)
    listed = ", ".join(f"'{key.hex().upper()}'" for key in keys)
    rows = server.engine.rows(
        f"SELECT DISTINCT hex(_taut_hash), * EXCEPT (_taut_hash, _taut_sign) "
        f"FROM ({hashed}) WHERE hex(_taut_hash) IN ({listed})"
    )
    return {bytes.fromhex(key): _row_text(names, values) for key, *values in rows}


def _row_text(names: Sequence[str], values: Sequence[object]) -> str:
    return json.dumps(dict(zip(names, values, strict=True)), default=str, ensure_ascii=False)
