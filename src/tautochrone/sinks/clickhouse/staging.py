"""What one transaction stages of a table: rows that the driver sends, or that Spark's tasks insert.

Large changes are inserted by tasks, so that their rows do not pass through the driver:

1. The driver creates an *open* staging table in each server, under a name that nobody used before, and checks
   the fence.
2. Each task inserts the rows of its partition in chunks, and answers which chunks the server has: see
   `task_insert`.
3. The driver *seals* the table: it gives it the name of the transaction's staging table, and waits for
   statements that still use the open one. What a task of a lost attempt sends later finds no table.
4. Chunks that no successful task named are deleted: those of attempts that failed, and those of which the
   answer was lost.

The content of what is left is compared by `prepare`, as that of any staging table. A new owner renames open
tables like all others, so tasks of an older driver reach nothing either.
"""

from __future__ import annotations

import pickle
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tautochrone.errors import SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.model.sink import Digest, SentChunk
from tautochrone.sinks.clickhouse.comparison import ChunkCheck
from tautochrone.sinks.clickhouse.engines import known_refusal_error
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.rows import Batch
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.clickhouse.task_insert import ANSWER_SCHEMA, FAILED, InsertTarget, task_function
from tautochrone.sinks.clickhouse.types import MirroredColumn

__all__ = ["OpenStaging", "Staging", "is_for_tasks", "stage_by_tasks"]

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


_by_value_lock = threading.Lock()


def is_for_tasks(options: ClickHouseOptions, rows: Rows, known_rows: int | None) -> bool:
    """Whether tasks insert rows: a server can be reached from elsewhere, and there are many rows, or an
    unknown number."""
    if not options.host or not options.task_rows or not hasattr(rows, "mapInArrow"):
        return False
    return known_rows is None or known_rows > options.task_rows


class OpenStaging:
    """The open staging table of one server.

    Args:
        staging: the name that the table gets when it is sealed.
        server: what its chunks are said to be in.
        check: how its chunks are compared.
        await_quiet: waits until no statement uses these tables.
    """

    def __init__(
        self,
        tables: ClickHouseTables,
        options: ClickHouseOptions,
        staging: str,
        table: TableName,
        publication: int,
        server: str,
        check: ChunkCheck,
        await_quiet: Callable[[Sequence[str]], None],
    ) -> None:
        self._tables = tables
        self._options = options
        self._staging = staging
        self._table = table
        self.publication = publication
        self._server = server
        self.check = check
        self._await_quiet = await_quiet
        transaction, _, fence = staging.rsplit("__", 2)
        self.open_name = f"{transaction}__{uuid.uuid4().hex[:8]}__{fence}"

    def create(self) -> None:
        self._tables.create_staging(self.open_name, self._table, is_new=True)

    @property
    def columns(self) -> Sequence[MirroredColumn]:
        return self._tables.columns(self._table)

    @property
    def target(self) -> InsertTarget:
        options = self._options
        return InsertTarget(
            table=self._tables.qualified_staging(self.open_name),
            settings=dict(self._tables.settings),
            host=options.host,
            port=options.port,
            is_encrypted=options.is_encrypted,
            user=options.user,
            password=options.password,
            tls_ca=options.tls_ca,
            tls_certificate=options.tls_certificate,
            tls_key=options.tls_key,
        )

    def seal(self, digests: dict[int, Digest]) -> list[SentChunk]:
        """See the steps 3 and 4 of the module docstring.

        Args:
            digests: by number the chunks that successful tasks named.
        """
        self._tables.drop(self._staging)
        self._tables.rename(self.open_name, self._staging)
        self._await_quiet([self.open_name])
        unnamed = self._tables.staged_chunks(self._staging) - digests.keys()
        self._tables.delete_chunks(self._staging, sorted(unnamed))
        return [
            SentChunk(table=self._table, number=number, digest=digest, server=self._server)
            for number, digest in sorted(digests.items())
        ]


def stage_by_tasks(
    sink: str,
    stagings: Sequence[OpenStaging],
    signed_rows: Sequence[tuple[Rows, int]],
    shard_key: Sequence[str],
    options: ClickHouseOptions,
) -> list[SentChunk]:
    """Insert rows into open staging tables, one of each server, and seal them.

    Raises:
        SinkError: `SINK_TASKS_FAILED`, the server refused the rows of a task, or does not answer it.
    """
    digests: list[dict[int, Digest]] = [{} for _ in stagings]
    check = ChunkCheck(
        counts=all(staging.check.counts for staging in stagings),
        hashes_first=any(staging.check.hashes_first for staging in stagings),
    )
    for rows, sign in signed_rows:
        insert = task_function(
            [staging.target for staging in stagings],
            stagings[0].columns,
            shard_key,
            sign=sign,
            publication=stagings[0].publication,
            chunk_rows=options.chunk_rows,
            chunk_bytes=options.chunk_bytes,
            check=check,
        )
        for answer in _answers(sink, rows, _by_value(insert), stagings[0].target.settings):
            digests[answer.server][answer.number] = Digest(answer.rows, answer.hash)
    return [chunk for staging, named in zip(stagings, digests, strict=True) for chunk in staging.seal(named)]


def _answers(sink: str, rows: Any, payload: bytes, settings: Mapping[str, str]) -> Sequence[Any]:
    # Nested, so that executors need nothing of this package.
    def insert(record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pickle.loads(payload)(record_batches)  # type: ignore[no-any-return]

    try:
        answers: Sequence[Any] = rows.mapInArrow(insert, ANSWER_SCHEMA).collect()
    except Exception as error:
        text = str(error)
        if FAILED not in text:
            raise
        reason = text[text.index(FAILED) + len(FAILED) :].splitlines()[0].strip(" :")
        refusal = known_refusal_error(f"Sink {sink}", reason, settings)
        if refusal is not None:
            raise refusal from error
        raise SinkError(
            "SINK_TASKS_FAILED",
            f"Sink {sink}: a Spark task could not insert its rows: {reason}",
            hint="Spark's executors must reach the server. The option task_rows = 0 sends all rows "
            "through the driver.",
            parameters={"sink": sink},
            retryable=True,
        ) from error
    return answers


def _by_value(function: Callable[..., object]) -> bytes:
    """A function with all code of this package that it uses."""
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    package = sys.modules[__name__.partition(".")[0]]
    with _by_value_lock:
        cloudpickle.register_pickle_by_value(package)
        try:
            return bytes(cloudpickle.dumps(function))
        finally:
            cloudpickle.unregister_pickle_by_value(package)
