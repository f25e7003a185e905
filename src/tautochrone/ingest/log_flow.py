"""The flow that reads a database's change log into one table.

start:   1. the table says where it stands; without a position the source begins to keep its log
         2. what the table holds is acknowledged again: the last owner may have died before it did
round:   3. read whole transactions up to a bound, and the next chunks of the bulk, if there are any
         4. stage their rows   5. one commit: rows and position   6. report it   7. acknowledge

A crash behind 1 leaves a log that is kept for nobody, and the next start continues it. Behind 4 the rows are
orphans and are read again. Behind 5 the table decides: nothing of it is read again. A position is
acknowledged only when the table holds it durably, and only by the owner of the job.

In a light capture changes go into data files of the captured tables, and the log table takes one row for
each file. The commit that has this row and the position of its batch makes the file count; a file of a batch
that was not committed belongs to nobody and is removed as an orphan. Changes that cannot be in files stay
rows of the log table, as in a full capture.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tautochrone.errors import TautochroneError
from tautochrone.ingest.running_flow import PolledFlow
from tautochrone.ingest.source_observations import position_of
from tautochrone.ingest.staging import align
from tautochrone.model import events
from tautochrone.model.effects import Effects, Step
from tautochrone.model.lake import Fork, LakeTable, Staged, TaskStage, TaskWriter
from tautochrone.model.log_table import CHANGE_FILE, ChangeFile, KeyedTable
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.model.source import (
    AwaitsTransactions,
    BulkOnExecutors,
    ChangeLog,
    KeepsLogs,
    KeptLog,
    LogBatch,
    NetsChanges,
    RaisesAlarms,
    SetsTablesAside,
    SourceRows,
)
from tautochrone.model.source_position import LogPosition

__all__ = ["DEFAULT_MAX_EVENTS", "ChangeFileWriter", "LogFlow", "WrittenChanges"]


T = TypeVar("T")
DEFAULT_MAX_EVENTS = 100_000
_LOCAL_ROWS = 10_000
"""So many rows are written without a Spark job, which would take longer than the write."""
_ALARMS_INTERVAL_S = 60.0
WAIT_S = 2.0
"""So long a source may take to begin before it is said what it waits for."""


@dataclass(slots=True, kw_only=True)
class LogFlow(PolledFlow):
    """A change log bound to the table that takes it.

    Args:
        log: the source.
        to_copy: relations of which the table's rows are not enough to build a table from them.
        max_events: a batch ends with the transaction that brings it to this many events.
        tables_of_copied_files: by relation, the tables that are not built yet and take the files that tasks
            write of their first copy.
        tables_of_change_files: of some relations, the tables that take change files once they are built.
    """

    log: ChangeLog
    effects: Effects
    max_events: int = DEFAULT_MAX_EVENTS
    to_copy: Callable[[], Collection[str]] = frozenset
    tables_of_copied_files: Callable[[], Mapping[str, LakeTable]] = dict
    tables_of_change_files: Callable[[Collection[str]], Mapping[str, KeyedTable]] = lambda _: {}
    position: LogPosition | None = None
    """The table's."""
    _reached: LogPosition = field(init=False, repr=False)
    """Where the next round begins: the table's position, or that which the next commit gives it."""
    _acknowledged: int | None = None
    _next_alarms: float = 0.0
    _is_behind: bool = False
    _left_to_spark: Reason | None = None
    """Why Spark wrote the last batch, if an event has said it."""
    _through_log: dict[str, Reason] = field(default_factory=dict)
    """Why copied rows of relations went through the log table, as far as events have said it."""
    _aside: dict[str, Reason] = field(default_factory=dict)
    """Of tables that are set aside, as far as events have said it."""
    _files: ChangeFileWriter = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._files = ChangeFileWriter(
            self.log, self.table, self.tables_of_change_files, self._report_changes_not_in_files
        )

    def _read_position(self) -> None:
        self.position = position_of(
            self.committer.table.fork().commit_metadata,
            self.name,
            LogPosition,
            f"the change log {self.log.name}",
            str(self.table),
        )

    def _before_first_round(self) -> None:
        """The table's position, acknowledged, with what must be copied again; or where the source begins to
        keep its log."""
        self._acknowledged, self._aside = None, {}
        self._report_set_aside()
        if self.position is None:
            with self._reporting_waits():
                begun = self._step(Step.SOURCE_BEGIN, lambda: self.log.begin(self._reader()))
            self._report_set_aside()
            self._reached = self._with_files(begun, begun.bulk.pending)
        else:
            self._acknowledge(self.position)
            anew = sorted({*self.to_copy()} - self.position.bulk.waiting)
            reasons = {name: Reason.of(ReasonCode.LOG_LACKS_ROWS, relation=name) for name in anew}
            resumed = self._resume(self.position, reasons, anew)
            self._reached = self._with_files(resumed, resumed.bulk.pending.keys() - self.position.marker)

    def _report_set_aside(self) -> None:
        """Those that were not set aside before."""
        aside = self.log.set_aside() if isinstance(self.log, SetsTablesAside) else {}
        new = {relation: reason for relation, reason in aside.items() if relation not in self._aside}
        self._aside.update(new)
        for relation, reason in new.items():
            self.emit(
                events.TableSetAside(
                    flow=self.name,
                    dataset=str(self.table),
                    relation=relation,
                    reason=reason,
                )
            )

    def _with_files(self, position: LogPosition, relations: Collection[str]) -> LogPosition:
        """When the first copy of these relations begins: where it may go into files of their tables."""
        tables = self.tables_of_copied_files() if relations else {}
        began = {name: now_ms() for name in sorted(relations) if name in tables}
        bulk = replace(position.bulk, in_files={**position.bulk.in_files, **began})
        return replace(position, bulk=bulk)

    def _close(self) -> None:
        self.log.close()

    def _resume(
        self, position: LogPosition, reasons: Mapping[str, Reason], anew: Collection[str] = ()
    ) -> LogPosition:
        """With what must be copied again. It counts once the table holds the position.

        Args:
            reasons: why, by relation, where it is known.
            anew: what is copied in any case.
        """
        with self._reporting_waits():
            resumed = self._step(Step.SOURCE_BEGIN, lambda: self.log.resume(position, anew))
        self._report_set_aside()
        copied_again = sorted(
            relation
            for relation, chunks in resumed.bulk.pending.items()
            if relation in reasons or chunks != position.bulk.pending.get(relation)
        )
        if copied_again:
            reason = Reason.of(ReasonCode.TABLES_COPIED_AGAIN, relations=copied_again)
            self.emit(
                events.BulkAgain(
                    flow=self.name,
                    dataset=str(self.table),
                    relations=copied_again,
                    reason=joined_reasons([*reasons.values(), reason]),
                )
            )
        return resumed

    @contextmanager
    def _reporting_waits(self) -> Iterator[None]:
        """While the source waits for transactions that are open there, events say for which."""
        log = self.log
        if not isinstance(log, AwaitsTransactions):
            yield
            return
        ended = threading.Event()

        def report() -> None:
            pause_s = WAIT_S
            while not ended.wait(pause_s):
                pause_s = _ALARMS_INTERVAL_S
                try:
                    reasons = log.open_transactions()
                except TautochroneError as error:
                    # What waits has the same server, and fails by itself if it is gone.
                    reasons = [Reason.of(ReasonCode.UNKNOWN, text=f"{error.error_class}: {error.message}")]
                if reasons and not ended.is_set():
                    self.emit(
                        events.CopyWaits(
                            flow=self.name, dataset=str(self.table), reason=joined_reasons(reasons)
                        )
                    )

        thread = threading.Thread(target=report, name=f"waits-{self.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _reader(self) -> str:
        """Identifies the table: another lake's table of the same name is another reader."""
        metadata = self.committer.commit_metadata
        named = f"{metadata.store}\n{metadata.pipeline}\n{self.table}"
        return hashlib.sha256(named.encode()).hexdigest()

    def _round(self) -> bool:
        """Chunks of the bulk, if any are left, then one batch of the log."""
        position = self._reached
        if position.bulk.pending:
            position = self._copy(position)
        try:
            batch = self.log.read(position, self.max_events)
        except TautochroneError:
            # What the database keeps may say why. Where it does not answer, the failed read says more.
            with suppress(TautochroneError):
                self._raise_alarms(position)
            raise
        if batch.copied_again:
            self._reached = self._resume(batch.position, batch.copied_again)
            self._report_source(batch)
            self._raise_alarms(self._reached)
            return False
        bulk = batch.position.bulk.at(batch.position.point)
        source_ms = position.source_ms if batch.source_ms is None else batch.source_ms
        reached = replace(batch.position, bulk=bulk, source_ms=source_ms)
        if reached != self.position or batch.rows.num_rows:
            changes = self._files.write(batch.rows, position.bulk.waiting)
            bulk = replace(bulk, in_files={**changes.begun, **bulk.in_files})
            position = self._commit(
                changes.rows,
                position,
                replace(reached, bulk=bulk),
                source_ms=batch.source_ms,
                netted=batch.rows.num_rows - changes.rows.num_rows,
            )
        self._report_source(batch)
        self._acknowledge(position)
        self._reached = position
        caught_up = batch.caught_up and not position.bulk.pending
        self._raise_alarms(position, caught_up=caught_up)
        return caught_up

    def _report_source(self, batch: LogBatch) -> None:
        """After a crash the batch is read again, and so the events come again."""
        if batch.moved is not None:
            self.emit(events.SourceMoved(flow=self.name, dataset=str(self.table), reason=batch.moved))
        for relation, reason in batch.ignored.items():
            self.emit(
                events.SchemaChangeIgnored(
                    flow=self.name,
                    dataset=str(self.table),
                    relation=relation,
                    reason=reason,
                )
            )

    def _raise_alarms(self, position: LogPosition, *, caught_up: bool = False) -> None:
        """Now and then, and when a flow that was behind is so no more. Each alarm is repeated as long as its
        cause lasts.

        Args:
            position: up to which the table has everything.
            caught_up: everything that the log held a moment ago is up to the position, or is about nothing
                that is captured.
        """
        now = time.monotonic()
        if now < self._next_alarms and not (caught_up and self._is_behind):
            return
        self._is_behind = not caught_up
        self._next_alarms = now + _ALARMS_INTERVAL_S
        warnings = self.log.alarms(position) if isinstance(self.log, RaisesAlarms) else ()
        for reason in warnings:
            self.emit(events.SourceAlarm(flow=self.name, dataset=str(self.table), reason=reason))
        self._report_kept(position, warnings, caught_up=caught_up)

    def _report_kept(self, position: LogPosition, warnings: Sequence[Reason], *, caught_up: bool) -> None:
        lag: Mapping[str, int] = {}
        kept: Sequence[KeptLog] = ()
        problem = None
        try:
            lag = self.log.lag(position)
            kept = self.log.kept_logs(position) if isinstance(self.log, KeepsLogs) else ()
        except TautochroneError as error:
            # The user of a flow may not be allowed to see it. A database that is gone fails the next read.
            problem = f"[{error.error_class}] {error.message}"
        lag_ms = None if problem else position.lag_ms(lag, now_ms())
        self.emit(
            events.LogKept(
                flow=self.name,
                dataset=str(self.table),
                source=self.log.name,
                phase=position.phase,
                lag=dict(lag),
                lag_ms=0 if caught_up else lag_ms,
                kept=list(kept),
                warnings=list(warnings),
                problem=problem,
            )
        )

    def _copy(self, position: LogPosition) -> LogPosition:
        """The next chunks of the bulk: several by executors, or one by the driver."""
        rows, staged = None, None
        chunks = self.log.next_chunks(position.bulk) if isinstance(self.log, BulkOnExecutors) else ()
        if chunks and isinstance(self.log, BulkOnExecutors):
            stage = self._stage_of_tasks()
            if isinstance(stage, TaskStage):
                stage = replace(stage, copies=self._writers_of_files(position, {name for name, _ in chunks}))
            staged, pass_at = self.log.copy_chunks(self._session, chunks, stage)
        else:
            chunks = position.bulk.next_chunks(1)
            rows, pass_at = self.log.read_chunk(*chunks[0])
        bulk = position.bulk
        for relation, chunk in chunks:
            bulk = bulk.copied(relation, chunk, pass_at)
        # Complete only after the next read, which checks that the relations are still those that were copied.
        return self._commit(rows, position, replace(position, bulk=bulk), staged=staged)

    def _commit(
        self,
        rows: SourceRows | None,
        before: LogPosition,
        position: LogPosition,
        *,
        source_ms: int | None = None,
        staged: Staged | None = None,
        netted: int = 0,
    ) -> LogPosition:
        """`rows`, and what is `staged` already, with their position.

        Args:
            netted: so many more changes than rows: files have them.
        """
        completed = sorted(before.bulk.waiting - position.bulk.waiting)
        if completed:
            # Without rows the table would get no version that says so.
            marks = self.log.completed_rows(completed, position)
            # In one piece: Spark takes no rows behind an empty chunk.
            rows = pa.concat_tables([*([] if rows is None else [rows]), marks]).combine_chunks()
        # Asked before the commit: a source that does not answer then must not hide what was committed.
        lag = dict(self.log.lag(position))
        parts = [*([] if staged is None else [staged]), *([] if rows is None else [self._stage(rows)])]
        batch = parts[0] if len(parts) == 1 else _joined_stages(*parts)
        self.committer.submit(self.name, batch, position)
        self.position = position
        self.rows += batch.rows + netted
        self._report_batch(position, batch.rows + netted, source_ms, lag)
        # A table that only got columns is complete without a copy.
        copied = [relation for relation in completed if relation in before.bulk.done]
        if copied:
            self.emit(events.BulkComplete(flow=self.name, dataset=str(self.table), relations=copied))
        return position

    def _report_batch(
        self, position: LogPosition, rows: int, source_ms: int | None, lag: Mapping[str, int]
    ) -> None:
        self.emit(
            events.Batch(
                flow=self.name,
                dataset=str(self.table),
                batch=position.point,
                rows=rows,
                source_ms=source_ms,
                chunks_left=position.bulk.chunks_left,
                chunks_done=position.bulk.chunks_done,
                waiting=sorted(position.bulk.waiting),
                lag=lag,
            )
        )

    def _stage(self, rows: SourceRows) -> Staged:
        table = self.committer.table
        if not rows.num_rows:
            return self._staged_nothing()
        staged = table.stage_arrow(table.fork(), rows)
        if not isinstance(staged, Reason):
            return staged
        self._report_left_to_spark(staged)
        frame = self._session.createDataFrame(rows, schema=self.log.schema())
        return self._stage_frame(frame, local=rows.num_rows <= _LOCAL_ROWS)

    def _stage_frame(self, frame: DataFrame, *, local: bool = False) -> Staged:
        table = self.committer.table
        return table.stage(table.fork(), align(frame, self.schema, self.name), local=local)

    def _stage_of_tasks(self) -> Callable[[DataFrame], Staged]:
        table = self.committer.table
        fork = table.fork()
        writer = table.task_writer(fork, self.log.schema().names)
        if isinstance(writer, Reason):
            self._report_left_to_spark(writer)
            return self._stage_frame
        return TaskStage(table, fork, writer)

    def _writers_of_files(self, position: LogPosition, relations: Collection[str]) -> dict[str, TaskWriter]:
        """By relation what writes its copied rows into files of its table; others go through the log."""
        taken = {*relations} & position.bulk.in_files.keys()
        tables = self.tables_of_copied_files() if taken else {}
        writers: dict[str, TaskWriter] = {}
        for relation in sorted(taken & tables.keys()):
            table = tables[relation]
            writer = table.task_writer(table.fork())
            if not isinstance(writer, Reason):
                writers[relation] = writer
            elif writer != self._through_log.get(relation):
                self._through_log[relation] = writer
                self.emit(
                    events.CopiedThroughLog(
                        flow=self.name,
                        dataset=str(self.table),
                        relation=relation,
                        reason=writer,
                    )
                )
        return writers

    def _report_changes_not_in_files(self, relation: str, reason: Reason) -> None:
        self.emit(
            events.ChangesThroughLog(
                flow=self.name,
                dataset=str(self.table),
                relation=relation,
                reason=reason,
            )
        )

    def _report_left_to_spark(self, reason: Reason) -> None:
        """Once, until it is another reason."""
        if reason != self._left_to_spark:
            self._left_to_spark = reason
            self.emit(events.LogWrittenBySpark(flow=self.name, dataset=str(self.table), reason=reason))

    def _acknowledge(self, position: LogPosition) -> None:
        """Only what the table holds; once for each point of the log."""
        if position.point == self._acknowledged or position != self.position:
            return
        self._step(Step.SOURCE_ACKNOWLEDGE, lambda: self.log.acknowledge(position))
        self._acknowledged = position.point

    def _step(self, step: Step, action: Callable[[], T]) -> T:
        """One durable step at the source, only while this run holds the fence."""

        def fenced() -> T:
            # Checked immediately before the step, so that a run that was paused until now is refused.
            self.require_fence()
            return action()

        return self.effects.perform(step, str(self.table), fenced)


def _joined_stages(first: Staged, second: Staged) -> Staged:
    """Two parts of one batch."""
    return replace(
        first,
        files=(*first.files, *second.files),
        rows=first.rows + second.rows,
        at_ms=min(first.at_ms, second.at_ms),
    )


@dataclass(frozen=True, slots=True)
class WrittenChanges:
    """The rows of a batch for the log table, after changes went into files.

    Attributes:
        begun: by relation with a file, when it was begun (epoch ms).
    """

    rows: SourceRows
    begun: Mapping[str, int]


@dataclass(slots=True)
class ChangeFileWriter:
    """
    Args:
        log_table: where the log's rows go.
        tables: those of some relations that take files once they are built.
        report: gets a relation and why its changes go through the log table, when the reason is another one.
    """

    log: ChangeLog
    log_table: TableName
    tables: Callable[[Collection[str]], Mapping[str, KeyedTable]]
    report: Callable[[str, Reason], None]
    _reported: dict[str, Reason] = field(default_factory=dict)

    def write(self, rows: SourceRows, waiting: Collection[str]) -> WrittenChanges:
        """
        Args:
            rows: of a batch, as rows of the log table.
            waiting: relations that are being copied: their changes are compared with copied rows.
        """
        if not rows.num_rows or not isinstance(self.log, NetsChanges):
            return WrittenChanges(rows, {})
        changed = {*pc.unique(rows["relation"]).to_pylist()} - {*waiting}
        parts, begun = [], {}
        for relation, table in self.tables(changed).items():
            fork = table.table.fork()
            if fork.commit_metadata is None or str(self.log_table) not in fork.commit_metadata.inputs:
                continue
            begun_ms = now_ms()
            named = _log_row_of_file(self.log, rows.filter(pc.equal(rows["relation"], relation)), table, fork)
            if isinstance(named, Reason):
                self._report(relation, named)
                continue
            parts.append(named)
            begun[relation] = begun_ms
        if not parts:
            return WrittenChanges(rows, {})
        others = rows.filter(pc.invert(pc.is_in(rows["relation"], pa.array(begun, pa.string()))))
        # In one piece: Spark takes no rows behind an empty chunk.
        return WrittenChanges(pa.concat_tables([others, *parts]).combine_chunks(), begun)

    def _report(self, relation: str, reason: Reason) -> None:
        if self._reported.get(relation) != reason:
            self._reported[relation] = reason
            self.report(relation, reason)


def _log_row_of_file(log: NetsChanges, events: pa.Table, table: KeyedTable, fork: Fork) -> pa.Table | Reason:
    """The row of the log table that stands for events of one relation, which are in a file now; or why they
    cannot be."""
    lake_table = table.table
    writer = lake_table.task_writer(fork)
    if isinstance(writer, Reason):
        return writer
    net = log.net_rows(events, writer.schema, table.keys)
    if isinstance(net, Reason):
        return net
    staged = lake_table.stage_arrow(fork, net.rows)
    if isinstance(staged, Reason):
        return staged
    (data_file,) = staged.files
    last = events.slice(events.num_rows - 1)
    (point,), (sequence,) = last["point"].to_pylist(), last["sequence"].to_pylist()
    name = str(data_file.location()).rpartition("/")[2]
    file = ChangeFile(point, sequence, name, net.rows.num_rows, net.kept)
    values = {"operation": CHANGE_FILE, "columns": [*file.columns().items()], "unchanged": None}
    return pa.table(
        [
            pa.array([values[name]], column.type) if name in values else column
            for name, column in zip(last.column_names, last.columns, strict=True)
        ],
        last.schema,
    )
