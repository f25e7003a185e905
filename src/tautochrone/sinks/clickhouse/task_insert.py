"""What one Spark task does: it encodes the rows of its partition and inserts them into staging tables.

The code is sent to executors by value, and uses HTTP of the standard library: executors need neither this
package nor a client of ClickHouse.

Every insert is a chunk with a number that no other insert has: the task attempt and a counter. A chunk of
which the answer was lost is sent again under a new number, to the same server. So rows can be staged twice,
by two numbers, but the task names only the chunks that were answered, and only the attempt that succeeded
names any. `staging` deletes all others before they can be published.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

import pyarrow as pa

from tautochrone.sinks.clickhouse.comparison import ChunkCheck
from tautochrone.sinks.clickhouse.rows import Batch, arrow_stream
from tautochrone.sinks.clickhouse.statements import name_sql
from tautochrone.sinks.clickhouse.types import MirroredColumn

__all__ = ["ANSWER_SCHEMA", "FAILED", "InsertTarget", "task_function"]

ANSWER_SCHEMA = "server int, number bigint, rows bigint, hash string"
"""What a task answers: one row for each chunk."""
FAILED = "TautochroneInsertFailed"
"""Marks the message of a failed insert within Spark's."""

_COUNTER_BITS = 12
_ATTEMPT_BITS = 20
_TRIES = 4
_FIRST_PAUSE_S = 0.5
_TIMEOUT_S = 300.0
_REFUSED_FOR_NOW = frozenset({"202", "252"})
"""Codes of ClickHouse: too many queries at once, too many parts. The insert was not done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertTarget:
    """The staging table of one server, and how to reach it.

    Attributes:
        table: as SQL, with its database.
        settings: that are sent with every insert: see `statements`.
    """

    table: str
    settings: Mapping[str, str]
    host: str
    port: int
    is_encrypted: bool
    user: str
    password: str = field(repr=False)
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""


def task_function(
    targets: Sequence[InsertTarget],
    columns: Sequence[MirroredColumn],
    shard_key: Sequence[str],
    *,
    sign: int,
    publication: int,
    chunk_rows: int,
    chunk_bytes: int,
    check: ChunkCheck,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `DataFrame.mapInArrow` that inserts all rows and answers `ANSWER_SCHEMA`."""
    # The SQL of a value's text is only used by the driver.
    sent_columns = [
        MirroredColumn(
            column.name,
            replace(column.type, text=str),
            column.spark_type,
        )
        for column in columns
    ]

    def insert_partition(record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writers = [
            _ChunkWriter(target, number, sent_columns, sign, publication, check)
            for number, target in enumerate(targets)
        ]
        counter = _chunk_numbers()
        for record_batch in record_batches:
            if not record_batch.num_rows:
                continue
            batch = Batch.of(sent_columns, record_batch.schema.names, record_batch.columns)
            for writer, part in zip(writers, batch.split(len(writers), shard_key), strict=True):
                writer.add(part)
                writer.flush(counter, chunk_rows, chunk_bytes, at_least=(chunk_rows, chunk_bytes))
        for writer in writers:
            writer.flush(counter, chunk_rows, chunk_bytes, at_least=(1, 0))
        answers = [answer for writer in writers for answer in writer.answers]
        if answers:
            servers, numbers, rows, hashes = zip(*answers, strict=True)
            arrays = [
                pa.array(servers, pa.int32()),
                pa.array(numbers, pa.int64()),
                pa.array(rows, pa.int64()),
                pa.array(hashes, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=["server", "number", "rows", "hash"])

    return insert_partition


class _ChunkWriter:
    """Gathers the rows of one task for one server. `answers` has what is staged."""

    def __init__(
        self,
        target: InsertTarget,
        server: int,
        columns: Sequence[MirroredColumn],
        sign: int,
        publication: int,
        check: ChunkCheck,
    ) -> None:
        self._check = check
        self._target = target
        self._server = server
        self._columns = columns
        self._sign = sign
        self._publication = publication
        self._batches: list[Batch] = []
        self.answers: list[tuple[int, int, int, str]] = []

    def add(self, batch: Batch) -> None:
        if len(batch):
            self._batches.append(batch)

    def flush(
        self, counter: Iterator[int], chunk_rows: int, chunk_bytes: int, at_least: tuple[int, int]
    ) -> None:
        """Insert what is gathered if it has so many rows or bytes."""
        rows = sum(map(len, self._batches))
        size = sum(batch.size for batch in self._batches)
        if not rows or (rows < at_least[0] and size < at_least[1]):
            return
        gathered = Batch.joined(self._batches)
        self._batches = []
        for piece in gathered.pieces(chunk_bytes, chunk_rows):
            number = self._insert(piece, counter)
            is_hashed = self._check.is_hashed(piece, is_first=not self.answers)
            digest = piece.digest(self._sign, is_hashed=is_hashed)
            self.answers.append((self._server, number, digest.rows, digest.hash))

    def _insert(self, piece: Batch, counter: Iterator[int]) -> int:
        """Insert some rows; the number of the chunk that was answered."""
        failure = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            number = next(counter)
            table = piece.table(self._columns, self._sign, self._publication, number)
            try:
                status, code, text = _post(self._target, table)
            except (OSError, http.client.HTTPException) as error:
                # Whether it was done is unknown: the rows of this number will be deleted.
                failure = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                return number
            failure = text
            if code not in _REFUSED_FOR_NOW:
                break
        raise RuntimeError(f"{FAILED} at {self._target.host}:{self._target.port}: {failure[:1000]}")


def _chunk_numbers() -> Iterator[int]:
    """Numbers that no other attempt of a task of this job uses.

    Spark counts the attempts of all tasks of an application in one row, so a number comes twice only within a
    million attempts; the comparison of contents would find it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    first = (attempt % 2**_ATTEMPT_BITS) << _COUNTER_BITS
    yield from range(first, first + 2**_COUNTER_BITS)
    raise RuntimeError(
        f"{FAILED}: one task has more than {2**_COUNTER_BITS} chunks; raise chunk_rows and chunk_bytes"
    )


def _post(target: InsertTarget, rows: pa.Table) -> tuple[int, str, str]:
    """The status, ClickHouse's code of an error, and the text of an answer."""
    names = ", ".join(map(name_sql, rows.column_names))
    query = f"INSERT INTO {target.table} ({names}) FORMAT ArrowStream"
    arguments = urlencode({"query": query, **target.settings})
    connection = _connection(target)
    try:
        headers = _identification(target)
        connection.request("POST", f"/?{arguments}", body=arrow_stream(rows), headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        return answer.status, answer.getheader("X-ClickHouse-Exception-Code") or "", text
    finally:
        connection.close()


def _identification(target: InsertTarget) -> dict[str, str | bytes]:
    """How a task says who it is: as the driver's client does, so that the server lets both in or neither."""
    if target.tls_certificate:
        return {"X-ClickHouse-User": target.user.encode(), "X-ClickHouse-SSL-Certificate-Auth": "on"}
    # A password as a header of its own could only have characters of Latin-1, and an error would show it.
    credentials = base64.b64encode(f"{target.user}:{target.password}".encode()).decode()
    return {"Authorization": f"Basic {credentials}"}


def _connection(target: InsertTarget) -> http.client.HTTPConnection:
    if not target.is_encrypted:
        return http.client.HTTPConnection(target.host, target.port, timeout=_TIMEOUT_S)
    context = ssl.create_default_context(cafile=target.tls_ca or None)
    if target.tls_certificate:
        context.load_cert_chain(target.tls_certificate, target.tls_key or None)
    return http.client.HTTPSConnection(target.host, target.port, timeout=_TIMEOUT_S, context=context)
