"""Large changes are inserted by Spark's tasks: none of a lost attempt's rows is published."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from tests.sinks.clickhouse.test_server import Server

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Digest, Intent, Recovered, SentChunk, Sink, TransactionId, TransactionState
from tautochrone.sinks import open_sink
from tautochrone.sinks.clickhouse import task_insert
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.sink import ClickHouseSink
from tautochrone.sinks.clickhouse.staging import _answers, _by_value
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.clickhouse.task_insert import FAILED, InsertTarget, task_function
from tautochrone.testing.sink_conformance import begin
from tautochrone.testing.sqlite_sink import ListRows

TABLE = TableName("lake", ("default",), "orders")
SCHEMA = spark_types.StructType(
    [
        spark_types.StructField("id", spark_types.LongType()),
        spark_types.StructField("word", spark_types.StringType()),
        spark_types.StructField("amount", spark_types.DecimalType(12, 2)),
        spark_types.StructField("tags", spark_types.ArrayType(spark_types.StringType())),
    ]
)
COLUMNS = (
    "id",
    "concat('w', id % 7) AS word",
    "CAST(id AS DECIMAL(12, 2)) AS amount",
    "array('a', NULL) AS tags",
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("servers")
    servers = [Server(folder / name) for name in ("one", "two")]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "_", request.node.name)


def opened(servers: Sequence[Server], database: str, fence: int = 1, **options: str) -> Sink:
    url = ", ".join(f"clickhouse://127.0.0.1:{server.port}/{database}" for server in servers)
    sink = open_sink("mirror", "clickhouse", {"url": url, "task_rows": "1", "chunk_rows": "300", **options})
    sink.fence(Fence(fence))
    sink.ensure(TABLE, SCHEMA, (), Fence(fence))
    return sink


def intent(checkpoint: int, fence: int = 1) -> Intent:
    transaction = TransactionId(
        incarnation="store", sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=Fence(fence)
    )
    return Intent(transaction=transaction, versions={TABLE: Version(str(checkpoint))})


def deliver(sink: Sink, checkpoint: int, change: RowChange) -> Sequence[SentChunk]:
    transaction = intent(checkpoint).transaction
    begin(sink, intent(checkpoint))
    chunks = sink.write(transaction, TABLE, change)
    sink.prepare(transaction, chunks)
    sink.commit(transaction, Fence(1))
    return chunks


def frame(spark: SparkSession, first: int, count: int) -> DataFrame:
    return spark.range(first, first + count, 1, 3).selectExpr(*COLUMNS)


@pytest.mark.spark
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_tasks_insert_what_the_driver_would(
    servers: list[Server], database: str, spark: SparkSession, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(servers[:count], database)
    rows = frame(spark, 0, 1500)
    chunks = deliver(sink, 1, RowChange(added=rows, rows=1500))
    assert sum(chunk.digest.rows for chunk in chunks) == 1500
    assert len({chunk.server for chunk in chunks}) == count
    assert sink.audit(TABLE, CheckpointNumber(1)) == sink.digest(TABLE, rows)
    # Answers of inserts get lost: the rows are sent again, and are there once.
    for server in servers[:count]:
        server.plan("lose", f"INSERT INTO `{database}`.`taut_")
    gone = rows.where("id % 3 = 0")
    came = gone.withColumn("word", gone.word.substr(1, 1))
    chunks = deliver(sink, 2, RowChange(added=came, removed=gone, rows=1000))
    assert not any(server.is_planned() for server in servers[:count])
    shown = rows.where("id % 3 != 0").union(came)
    assert sink.audit(TABLE, CheckpointNumber(2)) == sink.digest(TABLE, shown)
    # Few rows of a known number go through the driver.
    monkeypatch.setattr(task_insert, "_post", None)
    few = opened(servers[:count], database, task_rows="1000")
    deliver(few, 3, RowChange(removed=came, rows=500))
    assert few.audit(TABLE, CheckpointNumber(3)) == few.digest(TABLE, rows.where("id % 3 != 0"))


def record_batches(first: int, count: int) -> Iterator[pa.RecordBatch]:
    """One partition, as Spark gives it to a task."""
    ids = list(range(first, first + count))
    yield pa.RecordBatch.from_pydict(
        {"id": ids, "word": ["w"] * count, "amount": [None] * count, "tags": [[]] * count}
    )


class Attempts:
    """Attempts of tasks in this process, with the numbers that Spark would give them."""

    def __init__(self, sink: Sink, transaction: TransactionId, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(sink, ClickHouseSink)
        self.staging = sink._first.open_task_staging(transaction, TABLE)
        self._insert = task_function(
            [self.staging.target],
            self.staging.columns,
            (),
            sign=1,
            publication=self.staging.publication,
            chunk_rows=2,
            chunk_bytes=1000,
            check=self.staging.check,
        )
        self._attempt = 0
        monkeypatch.setattr(task_insert, "_chunk_numbers", self._numbers)

    def _numbers(self) -> Iterator[int]:
        self._attempt += 1
        yield from range(self._attempt * 1000, self._attempt * 1000 + 1000)

    def run(self, first: int, count: int) -> dict[int, Digest]:
        answers = [row for batch in self._insert(record_batches(first, count)) for row in batch.to_pylist()]
        return {answer["number"]: Digest(answer["rows"], answer["hash"]) for answer in answers}


def lake(*numbers: int) -> ListRows:
    return ListRows(SCHEMA.names, [(number, "w", None, []) for number in numbers])


def test_rows_of_lost_attempts_are_not_published(
    servers: list[Server], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, sink = servers[0], opened(servers[:1], database)
    first = intent(1)
    begin(sink, first)
    attempts = Attempts(sink, first.transaction, monkeypatch)
    # An executor that the driver gave up: its first insert comes after all others.
    late = server.folder.with_suffix(".late")
    late.touch()
    server.plan("late", "INSERT INTO")
    failures: list[str] = []

    def zombie() -> None:
        try:
            attempts.run(0, 5)
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=zombie)
    thread.start()
    while server.is_planned():
        thread.join(0.01)
    # An attempt that inserted its rows and died before it answered, and the one that succeeds.
    attempts.run(0, 5)
    digests = attempts.run(0, 5) | attempts.run(10, 3)
    chunks = attempts.staging.seal(digests)
    sink.prepare(first.transaction, chunks)
    late.unlink()
    thread.join(30)
    assert len(failures) == 1
    assert "UNKNOWN_TABLE" in failures[0]
    sink.commit(first.transaction, Fence(1))
    assert sink.audit(TABLE, CheckpointNumber(1)) == sink.digest(TABLE, lake(*range(5), *range(10, 13)))


@pytest.mark.parametrize("statement", ["CREATE TABLE", "RENAME TABLE", "DELETE WHERE"])
def test_rows_are_there_once_when_an_answer_to_the_driver_is_lost(
    servers: list[Server], database: str, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    server, sink = servers[0], opened(servers[:1], database)
    first = intent(1)
    begin(sink, first)

    def stage() -> Sequence[SentChunk]:
        attempts = Attempts(sink, first.transaction, monkeypatch)
        attempts.run(0, 5)  # of a task that died before it answered
        return attempts.staging.seal(attempts.run(0, 5))

    server.plan("lose", statement)
    with pytest.raises(Exception, match=r"\w"):
        stage()
    assert not server.is_planned()
    sink.prepare(first.transaction, stage())
    sink.commit(first.transaction, Fence(1))
    assert sink.audit(TABLE, CheckpointNumber(1)) == sink.digest(TABLE, lake(*range(5)))


@pytest.mark.parametrize("moment", ["open", "sealed", "prepared"])
def test_tasks_of_an_older_owner_reach_nothing(
    servers: list[Server], database: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    sink = opened(servers[:1], database)
    first = intent(1)
    begin(sink, first)
    attempts = Attempts(sink, first.transaction, monkeypatch)
    digests = attempts.run(0, 3)
    chunks = attempts.staging.seal(digests) if moment != "open" else []
    if moment == "prepared":
        sink.prepare(first.transaction, chunks)
        first = Intent(transaction=first.transaction, versions=first.versions, chunks=tuple(chunks))
    owner = opened(servers[:1], database, fence=2)
    (recovered,) = owner.recover([first], Fence(2))
    is_committed = moment == "prepared"
    expected = TransactionState.COMMITTED if is_committed else TransactionState.ABORTED
    assert recovered == Recovered(first.transaction, expected)
    with pytest.raises(RuntimeError, match="UNKNOWN_TABLE"):
        attempts.run(20, 3)
    if moment == "open":
        with pytest.raises(SinkError, match="UNKNOWN_TABLE"):
            attempts.staging.seal(digests)
    second = intent(2, fence=2)
    begin(owner, second)
    owner.prepare(
        second.transaction, owner.write(second.transaction, TABLE, RowChange(added=lake(7), rows=1))
    )
    owner.commit(second.transaction, Fence(2))
    shown = lake(*range(3), 7) if is_committed else lake(7)
    assert owner.audit(TABLE, CheckpointNumber(2)) == owner.digest(TABLE, shown)


def test_a_task_waits_for_a_busy_server_and_ends_at_a_refusal(
    servers: list[Server], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(servers[:1], database)
    begin(sink, intent(1))
    attempts = Attempts(sink, intent(1).transaction, monkeypatch)
    post: Callable[..., tuple[int, str, str]] = task_insert._post
    answers = [(500, "202", "TOO_MANY_SIMULTANEOUS_QUERIES"), (500, "252", "TOO_MANY_PARTS")]
    monkeypatch.setattr(task_insert, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(task_insert, "_post", lambda *sent: answers.pop() if answers else post(*sent))
    assert sum(digest.rows for digest in attempts.run(0, 2).values()) == 2
    answers.append((500, "27", "CANNOT_PARSE_INPUT"))
    with pytest.raises(RuntimeError, match=f"{task_insert.FAILED}.*CANNOT_PARSE"):
        attempts.run(2, 2)


def target_of(port: int, **values: str) -> InsertTarget:
    return InsertTarget(
        table="t",
        settings={},
        host="127.0.0.1",
        port=port,
        is_encrypted=False,
        **{"user": "bärbel", "password": "", **values},
    )


@pytest.mark.parametrize("password", ["", "grün€", "with\nline"])
def test_a_task_says_who_it_is_as_the_driver_does(password: str) -> None:
    requests: list[Any] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.headers)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Recorder) as recorder:
        thread = threading.Thread(target=recorder.handle_request)
        thread.start()
        rows = pa.table({"id": [1]})
        assert task_insert._post(target_of(recorder.server_port, password=password), rows)[0] == 200
        thread.join()
    (headers,) = requests
    scheme, _, credentials = headers["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(credentials).decode()) == ("Basic", f"bärbel:{password}")


def test_a_task_with_a_certificate_sends_no_password() -> None:
    # The client of the driver does the same: see `clickhouse_connect`'s `client_cert`.
    assert task_insert._identification(target_of(1, tls_certificate="client.pem", password="p")) == {
        "X-ClickHouse-User": "bärbel".encode(),
        "X-ClickHouse-SSL-Certificate-Auth": "on",
    }


def test_many_lost_chunks_are_deleted_by_statements_that_the_server_takes() -> None:
    statements: list[str] = []
    engine: Any = SimpleNamespace(run=statements.append)
    numbers = range(2**31, 2**31 + 50_000)
    ClickHouseTables("mirror", engine, ClickHouseOptions(host="ch")).delete_chunks("staging", numbers)
    assert max(map(len, statements)) < 256 * 1024
    listed = [int(number) for statement in statements for number in re.findall(r"\d{10}", statement)]
    assert listed == list(numbers)


@pytest.mark.spark
def test_executors_that_do_not_reach_the_server(
    servers: list[Server], database: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(servers[:1], database)
    assert isinstance(sink, ClickHouseSink)
    monkeypatch.setattr(task_insert, "_TRIES", 1)
    monkeypatch.setattr(
        sink._first, "options", ClickHouseOptions(host="127.0.0.1", port=9, database=database, task_rows=1)
    )
    begin(sink, intent(1))
    change = RowChange(added=frame(spark, 0, 10), rows=10)
    with pytest.raises(SinkError) as failed:
        sink.write(intent(1).transaction, TABLE, change)
    assert (failed.value.error_class, failed.value.retryable) == ("SINK_TASKS_FAILED", True)
    assert "127.0.0.1:9: ConnectionRefusedError" in str(failed.value)


@pytest.mark.parametrize(
    ("answer", "error_class"),
    [
        (
            "Code: 195. DB::Exception: the address is not allowed (IP_ADDRESS_NOT_ALLOWED)",
            "SINK_LOGIN_REFUSED",
        ),
        ("Code: 497. DB::Exception: Not enough privileges (ACCESS_DENIED)", "SINK_RIGHTS_MISSING"),
        ("Code: 241. DB::Exception: memory limit exceeded", "SINK_TASKS_FAILED"),
    ],
)
def test_a_task_that_the_server_does_not_let_in(answer: str, error_class: str) -> None:
    class Tasks:
        def mapInArrow(self, *_: object) -> Tasks:  # noqa: N802
            return self

        def collect(self) -> None:
            # Spark's error has the traceback of the executor.
            raise RuntimeError(f"Job aborted\n  RuntimeError: {FAILED} at ch:8123: {answer}\n  at java")

    with pytest.raises(SinkError, match=error_class) as failed:
        _answers("mirror", Tasks(), b"", {})
    assert failed.value.retryable == (error_class == "SINK_TASKS_FAILED")


WITHOUT_PACKAGE = """
import json, pickle, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tautochrone", "clickhouse_connect"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import pyarrow as pa
insert = pickle.loads(sys.stdin.buffer.read())
others = {"word": ["a", None], "amount": [None] * 2, "tags": [["x"], None]}
rows = pa.RecordBatch.from_pydict({"id": [1, 2], **others})
print(json.dumps([batch.to_pylist() for batch in insert(iter([rows]))]))
"""


def test_executors_need_nothing_of_this_package(servers: list[Server], database: str) -> None:
    sink = opened(servers[:1], database)
    assert isinstance(sink, ClickHouseSink)
    begin(sink, intent(1))
    staging = sink._first.open_task_staging(intent(1).transaction, TABLE)
    insert = task_function(
        [staging.target],
        staging.columns,
        (),
        sign=1,
        publication=1,
        chunk_rows=10,
        chunk_bytes=1000,
        check=staging.check,
    )
    arguments = [sys.executable, "-c", WITHOUT_PACKAGE]
    ran = subprocess.run(arguments, input=_by_value(insert), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    (((answer,),),) = [json.loads(ran.stdout)]
    chunks = staging.seal({answer["number"]: Digest(answer["rows"], answer["hash"])})
    sink.prepare(intent(1).transaction, chunks)
    sink.commit(intent(1).transaction, Fence(1))
    rows: list[tuple[Any, ...]] = [(1, "a", None, ["x"]), (2, None, None, None)]
    assert sink.audit(TABLE, CheckpointNumber(1)) == sink.digest(TABLE, ListRows(SCHEMA.names, rows))


KILLED_WORKERS = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.sinks.clickhouse.test_server import Server
from tests.sinks.clickhouse.test_tasks import TABLE, deliver, frame, opened
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber
from tautochrone.testing.sink_conformance import begin

folder = Path(sys.argv[1])
# Tasks are tried four times.
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100").getOrCreate()
marks = str(folder / "killed")
os.mkdir(marks)


def kills(batches):
    from pyspark import TaskContext
    import signal

    context = TaskContext.get()
    for number, batch in enumerate(batches):
        mark = f"{marks}/{context.partitionId()}"
        if number == 3 and not os.path.exists(mark):
            Path(mark).touch()
            # The other worker of the task has inserted rows by then.
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


server = Server(folder / "engine")
try:
    sink = opened([server], "killed", chunk_rows="50")
    rows = frame(spark, 0, 2000)
    chunks = deliver(sink, 1, RowChange(added=rows.mapInArrow(kills, rows.schema), rows=2000))
    assert sink.audit(TABLE, CheckpointNumber(1)) == sink.digest(TABLE, rows)
    print(len(os.listdir(marks)), sum(chunk.digest.rows for chunk in chunks))
finally:
    server.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_killed_workers_of_tasks_double_nothing(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", KILLED_WORKERS, str(tmp_path)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == ["3", "2000"]
