"""A change log is read by whole transactions, and acknowledged only when the table has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tautochrone.errors import FencedError, IngestError
from tautochrone.ingest import log_flow
from tautochrone.ingest.log_flow import LogFlow
from tautochrone.model.effects import Step
from tautochrone.model.events import BulkComplete, CopyWaits, Event, LogKept, LogWrittenBySpark
from tautochrone.model.lake import Staged, TaskStage
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import KeptLog, LogBatch
from tautochrone.model.source_position import BulkProgress, LogPosition, SparkPosition
from tautochrone.testing.toy_database import RELATIONS, Change, ToyChangeLog, ToyDatabase, _table

T = TypeVar("T")
TABLE = TableName.parse("lake.default.bank_log")
STAGE = LogFlow._stage


class Table:
    """Remembers what was committed, and what was acknowledged by then."""

    def __init__(self, database: ToyDatabase) -> None:
        self.name = TABLE
        self.table = self
        self.commit_metadata = SimpleNamespace(store="store", pipeline="bank")
        self.database = database
        self.positions: dict[str, Any] = {}
        self.commits: list[tuple[int, LogPosition]] = []
        self.staged: list[list[dict[str, Any]]] = []
        self.fails: Exception | None = None

    def fork(self) -> Any:
        return SimpleNamespace(commit_metadata=SimpleNamespace(positions=self.positions))

    def settle_quarantine_table(self) -> None:
        """Nothing is left to settle."""

    def submit(self, flow: str, staged: Staged, position: LogPosition) -> None:
        if self.fails is not None:
            raise self.fails
        assert all(point <= position.point for point in self.database.points_acknowledged_by_reader)
        self.commits.append((staged.rows, position))
        self.positions[flow] = position


class Steps:
    """Performs each step and records it."""

    def __init__(self) -> None:
        self.taken: list[Step] = []

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        assert subject == str(TABLE)
        self.taken.append(step)
        return action()


class Bench:
    """A flow over a toy database, without Spark."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = ToyDatabase(folder / "bank.db")
        self.table = Table(self.database)
        self.steps = Steps()
        self.events: list[Event] = []
        self.fenced: FencedError | None = None
        self._monkeypatch = monkeypatch
        self.flow = self.new_flow()

    def new_flow(self, max_events: int = 1_000) -> LogFlow:
        """The flow of a new process."""
        flow: Any = LogFlow(
            name="bank",
            log=ToyChangeLog(self.database),
            schema=ToyChangeLog(self.database).schema(),
            committer=self.table,  # type: ignore[arg-type]
            effects=self.steps,
            emit=self.events.append,
            require_fence=self.require_fence,
            max_events=max_events,
        )

        def stage(_flow: LogFlow, rows: Any) -> Staged:
            self.table.staged.append(rows.to_pylist())
            return Staged(table=TABLE, files=(), rows=rows.num_rows, at_ms=0)

        self._monkeypatch.setattr(LogFlow, "_stage", stage)
        return flow  # type: ignore[no-any-return]

    def require_fence(self) -> None:
        if self.fenced is not None:
            raise self.fenced

    def run(self, max_events: int = 1_000) -> LogFlow:
        """Take in all that is there, as a new process."""
        flow = self.new_flow(max_events)
        flow.start(SimpleNamespace(), availableNow=True)  # type: ignore[arg-type]
        assert flow._thread is not None
        flow._thread.join(30)
        assert not flow.active
        return flow

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.table.staged for row in batch]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def deposit(bench: Bench, key: int, amount: int) -> int:
    return bench.database.transaction(Change("accounts", key, amount), Change("savings", key, -amount))


def test_bulk_then_tail(bench: Bench) -> None:
    deposit(bench, 1, 10)
    deposit(bench, 60, 20)
    assert bench.run().failure() is None
    assert {(row["relation"], row["id"]) for row in bench.rows if row["operation"] == "copy"} == {
        ("accounts", 1), ("accounts", 60), ("savings", 1), ("savings", 60),
    }  # fmt: skip
    completed = [event.relations for event in bench.events if isinstance(event, BulkComplete)]
    assert sorted(relation for relations in completed for relation in relations) == sorted(RELATIONS)
    assert bench.table.commits[-1][1].bulk == BulkProgress()
    point = deposit(bench, 1, 11)
    assert bench.run().failure() is None
    assert [row["operation"] for row in bench.table.staged[-1]] == ["update", "update"]
    assert bench.database.points_acknowledged_by_reader[-1] == bench.table.commits[-1][1].point == point


class _Waiting(ToyChangeLog):
    """It begins when an event has said what it waits for."""

    events: list[Event]

    def begin(self, reader: str) -> LogPosition:
        deadline = time.monotonic() + 30
        while not self.events:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return super().begin(reader)

    def open_transactions(self) -> list[Reason]:
        params = {"transaction": "transaction 7", "session": "process 12", "seconds": 90}
        return [Reason.of(ReasonCode.COPY_WAITS_FOR_TRANSACTION, **params)]


def test_events_say_what_a_copy_waits_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_flow, "WAIT_S", 0.01)
    bench.flow.log = waiting = _Waiting(bench.database)
    waiting.events = bench.events
    bench.flow.start(SimpleNamespace(), availableNow=True)  # type: ignore[arg-type]
    assert bench.flow._thread is not None
    bench.flow._thread.join(30)
    assert bench.flow.failure() is None
    event = bench.events[0]
    assert isinstance(event, CopyWaits)
    assert event.reason.params["session"] == "process 12"
    assert "open for 90 s" in str(event.reason)


def test_a_log_that_spark_writes_says_why_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Reason.of(ReasonCode.TABLE_PARTITIONED)
    stage_without_spark = LogFlow._stage
    written: list[bool] = []

    def stage_frame(flow: LogFlow, frame: Any, *, local: bool = False) -> Staged:
        written.append(local)
        return stage_without_spark(flow, frame)

    monkeypatch.setattr(LogFlow, "_stage", STAGE)
    monkeypatch.setattr(LogFlow, "_stage_frame", stage_frame)
    monkeypatch.setattr(Table, "stage_arrow", lambda _table, _fork, _rows: reason, raising=False)
    flow = bench.flow
    flow.start(
        SimpleNamespace(createDataFrame=lambda rows, schema: rows),  # type: ignore[arg-type]
        availableNow=True,
    )
    assert flow._thread is not None
    flow._thread.join(30)
    assert flow.failure() is None
    assert len(written) > 1
    assert all(written)
    assert [event.reason for event in bench.events if isinstance(event, LogWrittenBySpark)] == [reason]


class _CopiedByTasks(ToyChangeLog):
    """Chunks are read by a job that gets how rows are staged."""

    stages: list[Any]

    def next_chunks(self, bulk: BulkProgress) -> Sequence[tuple[str, str]]:
        return bulk.next_chunks(1)

    def copy_chunks(
        self, _session: Any, chunks: Sequence[tuple[str, str]], stage: Callable[[Any], Any]
    ) -> tuple[Any, int]:
        self.stages.append(stage)
        rows, point = self.read_chunk(*chunks[0])
        return stage(rows), point


@pytest.mark.parametrize("reason", [None, Reason.of(ReasonCode.TABLE_SORTED)], ids=str)
def test_tasks_write_what_they_copy_or_it_is_said_why_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reason: Reason | None
) -> None:
    written: list[int] = []
    writer = object()

    def stage_rows(rows: Any) -> Staged:
        written.append(rows.num_rows)
        return Staged(table=TABLE, files=(), rows=rows.num_rows, at_ms=0)

    monkeypatch.setattr(Table, "task_writer", lambda _table, _fork, columns: reason or writer, raising=False)
    monkeypatch.setattr(Table, "stage_task_files", lambda *args: stage_rows(args[-1]), raising=False)
    monkeypatch.setattr(LogFlow, "_stage_frame", lambda _flow, rows: stage_rows(rows))
    deposit(bench, 1, 10)
    bench.flow.log = log = _CopiedByTasks(bench.database)
    log.stages = []
    bench.flow.start(SimpleNamespace(), availableNow=True)  # type: ignore[arg-type]
    assert bench.flow._thread is not None
    bench.flow._thread.join(30)
    assert bench.flow.failure() is None
    assert len(log.stages) == len(written) > 1
    assert sum(written) == 2
    writers = [stage.writer if isinstance(stage, TaskStage) else None for stage in log.stages]
    assert writers == [None if reason else writer] * len(written)
    said = [event.reason for event in bench.events if isinstance(event, LogWrittenBySpark)]
    assert said == ([reason] if reason else [])


def test_relations_wait_until_the_log_has_passed_their_bulk() -> None:
    bulk = BulkProgress(pending={"a": ("1", "2"), "b": ("1",)})
    assert bulk.next_chunks(1) == (("a", "1"),)
    bulk = bulk.copied("a", "1", 5).copied("b", "1", 3)
    assert bulk.at(4).waiting == {"a"}
    bulk = bulk.copied("a", "2", 4)
    assert bulk.next_chunks(1) == ()
    assert bulk.at(4).waiting == {"a"}
    assert bulk.at(5).waiting == set()


def test_copy_is_complete_only_after_the_source_was_checked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read checks whether relations are what they were when they were copied, also without new events."""
    changed = IngestError("CAPTURED_TABLE_CHANGED", "a table was changed since it is captured")

    def read(_log: ToyChangeLog, after: LogPosition, _max_events: int) -> LogBatch:
        if after.bulk.pending:
            return LogBatch(rows=_table([]), position=after, caught_up=True)
        raise changed

    with monkeypatch.context() as patched:
        patched.setattr(ToyChangeLog, "read", read)
        assert bench.run().failure() is changed
    assert bench.table.commits[-1][1].bulk.waiting
    assert not any(row["operation"] == "completed" and row["relation"] == "transfers" for row in bench.rows)
    assert bench.run().failure() is None
    assert not bench.table.commits[-1][1].bulk.waiting


def test_batches_end_at_transactions(bench: Bench) -> None:
    assert bench.run().failure() is None
    done = len(bench.table.staged)
    points = [deposit(bench, key, key) for key in range(5)]
    big = bench.database.transaction(*(Change("transfers", key, 1) for key in range(9)))
    assert bench.run(max_events=3).failure() is None
    batches = [sorted({row["point"] for row in batch}) for batch in bench.table.staged[done:]]
    assert batches == [points[:2], points[2:4], [points[4], big]]
    assert [len(batch) for batch in bench.table.staged[done:]] == [4, 4, 11]


def test_nothing_is_acknowledged_when_the_commit_fails(bench: Bench) -> None:
    assert bench.run().failure() is None
    deposit(bench, 1, 1)
    before = bench.database.points_acknowledged_by_reader
    bench.table.fails = IngestError("FLOW_FAILED", "the catalog does not answer")
    assert bench.run().failure() is bench.table.fails
    assert max(bench.database.points_acknowledged_by_reader) == max(before)
    bench.table.fails = None
    assert bench.run().failure() is None
    assert len([row for row in bench.rows if row["operation"] != "completed"]) == 4


def test_a_start_acknowledges_what_the_table_has(bench: Bench) -> None:
    """The last owner died between its commit and the acknowledgement."""
    assert bench.run().failure() is None
    point = deposit(bench, 1, 1)
    position = bench.table.positions["bank"]
    bench.table.positions["bank"] = LogPosition(log=position.log, point=point)
    bench.steps.taken.clear()
    staged = len(bench.table.staged)
    assert bench.run().failure() is None
    assert bench.database.points_acknowledged_by_reader[-1] == point
    # Then the source may begin to copy what its definition has got since.
    assert bench.steps.taken == [Step.SOURCE_ACKNOWLEDGE, Step.SOURCE_BEGIN]
    assert len(bench.table.staged) == staged


def test_an_owner_without_the_fence_acknowledges_nothing(bench: Bench) -> None:
    assert bench.run().failure() is None
    point = deposit(bench, 1, 1)
    bench.fenced = FencedError("JOB_FENCED", "a newer owner exists")
    assert bench.run().failure() is bench.fenced
    assert point not in bench.database.points_acknowledged_by_reader


def test_an_older_position_acknowledges_nothing_back(bench: Bench) -> None:
    assert bench.run().failure() is None
    old = bench.table.positions["bank"]
    deposit(bench, 1, 1)
    assert bench.run().failure() is None
    log = ToyChangeLog(bench.database)
    log.acknowledge(old)
    assert log.read(bench.table.positions["bank"], 10).caught_up


def test_a_lost_log_is_an_error(bench: Bench) -> None:
    assert bench.run().failure() is None
    bench.database.lose_log()
    deposit(bench, 1, 1)
    failure = bench.run().failure()
    assert isinstance(failure, IngestError)
    assert failure.error_class == "SOURCE_LOG_LOST"
    assert isinstance(bench.events[-1], LogKept)


def test_a_flow_is_behind_until_the_table_has_all(bench: Bench) -> None:
    bench.run()
    for amount in range(1, 5):
        deposit(bench, 1, amount)
    bench.events.clear()

    bench.table.fails = IngestError("DISK_FULL", "no space is left")
    assert bench.run(max_events=1).failure() is not None
    assert not [event for event in bench.events if isinstance(event, LogKept) and event.lag_ms == 0]
    bench.table.fails = None
    bench.run(max_events=1)
    *behind, last = [event.lag_ms for event in bench.events if isinstance(event, LogKept)]
    assert last == 0, "the last round of a run says so, however soon it comes"
    assert behind
    assert 0 not in behind


def test_a_position_of_spark_is_refused(bench: Bench) -> None:
    bench.table.positions["bank"] = SparkPosition(query_id="q", batch_id=0, offsets="", commit="")
    with pytest.raises(IngestError, match="read a stream of Spark before, and reads the change log"):
        bench.run()


def test_an_idle_source_takes_no_commit(bench: Bench) -> None:
    assert bench.run().failure() is None
    commits = len(bench.table.commits)
    assert bench.run().failure() is None
    assert len(bench.table.commits) == commits


def test_what_a_database_keeps_is_said_and_why_it_is_not_known(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptLog(
        name="reader", is_own=True, distance_bytes=9, kept_bytes=9, is_lost=False, last_read=None, drop=""
    )
    monkeypatch.setattr(ToyChangeLog, "kept_logs", lambda _log, _position: [kept], raising=False)
    deposit(bench, 1, 10)
    bench.run()
    *_, event = [event for event in bench.events if isinstance(event, LogKept)]
    assert (event.flow, event.kept, event.problem) == ("bank", [kept], None)
    assert event.lag_ms == 0, "it has read all that the log held"
    assert event.source == ToyChangeLog(bench.database).name

    def refuse(_log: ToyChangeLog, _position: object) -> list[KeptLog]:
        raise IngestError("SOURCE_RIGHTS_MISSING", "this user may not see it")

    monkeypatch.setattr(ToyChangeLog, "kept_logs", refuse, raising=False)
    bench.events.clear()
    # The flow needs no such right.
    assert bench.run().failure() is None
    *_, event = [event for event in bench.events if isinstance(event, LogKept)]
    assert (event.kept, event.problem) == ([], "[SOURCE_RIGHTS_MISSING] this user may not see it")
