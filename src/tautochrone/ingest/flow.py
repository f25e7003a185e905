"""One streaming flow: a Structured Streaming query whose batches are committed to the lake.

start:   1. an owner's first start takes over what older owners' folders have, see `ingest.folder_decision`
         2. compare the table's position with Spark's folder; write the folder anew if they differ
         3. delete the folders of older owners   4. start the query
batch b: 5. the table already has b with the same offsets: skip it
         6. read its positions from the folder
         7. stage its rows; if that fails on the data, look for the records on which it does; stage those
            that do not parse apart
         8. its sources are those of before and the folder still says the same: commit both together
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakMethod

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import IngestError, TautochroneError
from tautochrone.ingest.bad_records import BatchSplitter, SetAside, SplitBatch, ranges_of
from tautochrone.ingest.checkpoint_folder import CheckpointFolder, FlowCheckpointFolders, Planned
from tautochrone.ingest.committer import TableCommitter
from tautochrone.ingest.folder_decision import (
    FolderAction,
    FolderDecision,
    compare_folder,
    same_offsets,
    take_over_folder,
)
from tautochrone.ingest.malformed_records import MalformedRecords, counted_violations
from tautochrone.ingest.source_checks import SourceChecks
from tautochrone.ingest.source_observations import SourceObservations, position_of
from tautochrone.ingest.spark_query import SparkQuery
from tautochrone.ingest.staging import align, expectation_counts, stage_expected
from tautochrone.ingest.stream_errors import batch_error, diverged_error, explain, state_lost_error
from tautochrone.model import events
from tautochrone.model.definitions import Expectation, ExpectationCount
from tautochrone.model.effects import Step
from tautochrone.model.lake import CommitMetadata, Staged
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import BadRecords
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.jvm.catalyst import start_callback_server
from tautochrone.spark.session.gateway import call_sites
from tautochrone.spark.sources.batch_shares import grouped_rows
from tautochrone.spark.sources.malformed import CountedRecords
from tautochrone.spark.sources.registry import sources_of
from tautochrone.spark.sources.spark_source import SparkSource

__all__ = ["FlowQuery", "spark_position"]


def spark_position(
    commit_metadata: CommitMetadata | None, flow: str, table: TableName
) -> SparkPosition | None:
    """Where a table says that a flow run by Spark stands: see `position_of`."""
    return position_of(commit_metadata, flow, SparkPosition, "a stream of Spark", str(table))


def _called_weakly(method: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """The method, without a reference to its flow.

    The JVM keeps what it calls as long as the query exists, and Python keeps the query as long as the flow
    exists. No garbage collector sees such a circle through both processes, so neither would ever be freed,
    nor the job, its sessions and their settings.
    """
    reference = WeakMethod(method)

    def on_batch(rows: DataFrame, batch_id: int) -> None:
        call = reference()
        if call is None:
            raise RuntimeError("The flow of this query was dropped while the query ran")
        call(rows, batch_id)

    return on_batch


@dataclass(slots=True, kw_only=True)
class FlowQuery(SparkQuery):
    """A flow bound to its table's committer and its folder.

    `position` is what the table knows of this flow; it is kept up to date while the query runs.
    """

    stateful: bool
    schema: StructType
    committer: TableCommitter
    folder: CheckpointFolder
    position: SparkPosition | None
    bad_records: BadRecords = BadRecords.FAIL
    expectations: tuple[Expectation, ...] = ()
    """Of the table. The flow's query gives the rows that they drop too: they are counted."""
    report_expectations: Callable[[Sequence[ExpectationCount]], None] = lambda _: None
    """Told how many rows violate them, as the table's commits say."""
    checks: SourceChecks = field(default_factory=SourceChecks)
    folders: FlowCheckpointFolders | None = None
    """`folder` and those of older owners; None: there are none."""
    rows: int = 0
    observations: SourceObservations = field(default_factory=SourceObservations)
    _commit_metadata: CommitMetadata | None = None
    _began_ms: int = 0
    _sources: Sequence[SparkSource] = ()
    _evaluated: tuple[SparkSession, DataFrame] | None = None
    _error: TautochroneError | None = None
    _endless: bool = False
    _malformed: MalformedRecords = field(init=False)
    _counted: CountedRecords = field(default_factory=CountedRecords)

    def start(
        self, session: SparkSession, commit_metadata: CommitMetadata | None = None, **trigger: Any
    ) -> None:
        """Make the folder agree with the table, then start.

        Args:
            session: where the flow's query is evaluated.
            commit_metadata: see `TableCommitter.submit`.
            trigger: as of `DataStreamWriter.trigger`: `availableNow=True` or `processingTime="5 seconds"`.

        Raises:
            StateLostError: the flow keeps state, and what is left of it does not fit the table.
            IngestError: the source cannot be read.
        """
        self.committer.settle_quarantine_table()
        self._read_position()
        self._reconcile()
        self._error, self._stopped, self._query = None, False, None
        self._commit_metadata = commit_metadata
        self._endless = "availableNow" not in trigger and "once" not in trigger
        # Py4J logs what a batch raises, with a Python and a Java stack; people get it as our error.
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL + 1)
        try:
            rows, position = self.checks.begin(session, self._evaluate(session), self.position)
            if position is not None:
                self._move_to(position)
            self._evaluated = session, rows
            self._sources = sources_of(rows)
            self._began_ms = now_ms()
            start_callback_server(session)
            self._malformed = self._malformed_records()
            counted = self._malformed.begin(session, rows)
            named = counted.writeStream.queryName(f"{self._target}/{self.flow.name}")
            query = self._launch(
                session, named.foreachBatch(_called_weakly(self._on_batch)), self.folder, trigger
            )
            self.checks.started(session, rows, query, self.folder)
        except PySparkException as error:
            raise explain(error, self.flow.name) from error

    @property
    def table(self) -> TableName:
        return self.committer.table.name

    @property
    def committed_up_to_ms(self) -> int | None:
        """All that the sources held at this time, by the store's clock, is in the table. None: not known."""
        return self.observations.committed_up_to_ms

    def observe(self) -> None:
        """See `RunningFlow`. The query ends if a source is not the one of before."""
        query = self._query
        if query is None or self._stopped:
            return
        if self._endless:
            progress = query.lastProgress
            if self.checks.trigger_ended(progress):
                self.observations.note_trigger(progress, self._sources)
            elif self.checks.problem is not None:
                query.stop()
        elif not query.isActive and self.failure() is None and self.checks.trigger_ended(query.lastProgress):
            # It ends when all is taken that was there when it began; its triggers don't look again.
            self.observations.took_all_since(self._began_ms)

    def store_time_is(self, store_ms: int) -> None:
        """It is `store_ms` now, or was a moment ago, by the store's clock."""
        self.observations.store_time_is(store_ms)

    def inspect(self, *, at_once: bool = False) -> None:
        """Report what the sources leave out; from time to time, or `at_once`."""
        self.checks.inspect(at_once=at_once)

    def wait(self) -> None:
        """Until the query ends.

        Raises:
            TautochroneError: why it failed.
        """
        if self._query is None:
            return
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            raise self.failure() or explain(error, self.flow.name) from error
        self.check()
        self.checks.inspect(at_once=True)
        self.checks.close()

    def failure(self) -> TautochroneError | None:
        known = None if self._stopped else self._error or self.checks.problem
        return known or SparkQuery.failure(self)

    def _died_silently(self) -> TautochroneError | None:
        if not self._endless:
            return None
        # A thread that dies of a Java Error may not even leave an exception behind.
        return IngestError("FLOW_FAILED", f"Flow {self.flow.name} ended by itself; Spark does not say why")

    def check(self) -> None:
        """Raise what killed the query, if something did."""
        problem = self.failure()
        if problem is not None:
            raise problem

    def stop(self) -> None:
        """End the query after the batch that runs."""
        self._end()
        if self._query is not None and not self._stopped:
            # The last trigger of a query that ended by itself is checked while the connection is open.
            self.checks.trigger_ended(self._query.lastProgress)
        self.checks.close()

    @property
    def _target(self) -> str:
        return str(self.committer.table.name)

    def _malformed_records(self) -> MalformedRecords:
        is_set_aside = self.bad_records is BadRecords.QUARANTINE
        quarantine = self.committer.quarantine_table if is_set_aside else None
        return MalformedRecords(self.flow.name, self._target, self.emit, quarantine)

    def _read_position(self) -> None:
        """From the table: an earlier start of this query may have failed after its commit."""
        commit_metadata = self.committer.table.fork().commit_metadata
        self.position = spark_position(commit_metadata, self.flow.name, self.table)
        if commit_metadata is not None and (self.expectations or commit_metadata.violations):
            # An earlier start may have died after its commit, before it told.
            known = commit_metadata.violations
            self.report_expectations(expectation_counts(self.expectations, known, known))

    def _reconcile(self) -> None:
        older = [] if self.folders is None else self.folders.older()
        if older and self.folder.query_id is None:
            takeover = take_over_folder(self.folder, older, self.position, stateful=self.stateful)
            if takeover.lost:
                raise state_lost_error(self.flow.name, self._target, older[0].path, takeover.decision.reason)
            self._report_folder(takeover.decision)
            if takeover.make is not None:
                self.step(Step.INGEST_FOLDER, takeover.make)
        self._compare()
        if self.folders is not None and self.folders.has_leftovers:
            self.step(Step.INGEST_CLEAN, self.folders.delete_leftovers)

    def _compare(self) -> None:
        """Make the flow's own folder agree with the table."""
        planned = None if self.position is None else self.folder.offsets(self.position.batch_id)
        decision = compare_folder(self.position, self.folder.state(), planned)
        self._report_folder(decision)
        if decision.action is FolderAction.WIPE:
            self.step(Step.INGEST_FOLDER, self.folder.wipe)
        elif decision.action is FolderAction.SWEEP:
            self.step(Step.INGEST_FOLDER, self.folder.sweep)
        elif decision.action is FolderAction.REWRITE and self.position is not None:
            position = self.position
            if self.stateful and not self.folder.holds_state_of(position):
                raise state_lost_error(self.flow.name, self._target, self.folder.path, decision.reason)
            self.step(Step.INGEST_FOLDER, lambda: self.folder.rewrite(position))

    def _report_folder(self, decision: FolderDecision) -> None:
        if decision.reason is not None:
            self.emit(
                events.FlowFolder(
                    flow=self.flow.name,
                    dataset=self._target,
                    action=str(decision.action),
                    reason=decision.reason,
                )
            )

    def _move_to(self, position: SparkPosition) -> None:
        """Commit the position to the table, then write it into the folder."""
        nothing = Staged(table=self.committer.table.name, files=(), rows=0, at_ms=self._began_ms)
        self.committer.submit(self.flow.name, nothing, position, commit_metadata=self._commit_metadata)
        self.position = position
        self._reconcile()

    def _evaluate(self, session: SparkSession) -> DataFrame:
        offsets = None if self.position is None else self.position.offsets
        rows, initial_offsets = self._rows(session, self.folder, offsets)
        if initial_offsets:
            self._set_initial_offsets(initial_offsets)
        return rows

    def _set_initial_offsets(self, offsets: Mapping[int, str]) -> None:
        """Let the sources remember initial offsets that are still there."""
        if self.position is None:
            self.emit(
                events.FlowFromSnapshot(
                    flow=self.flow.name,
                    dataset=self._target,
                    sources=[str(number) for number in offsets],
                    reason=Reason.of(ReasonCode.STREAM_FROM_NEWEST_VERSION),
                )
            )
            # A batch that was planned from the older beginning cannot be read any more.
            self.step(Step.INGEST_FOLDER, self.folder.wipe)
        self.step(Step.INGEST_FOLDER, lambda: self.folder.set_iceberg_initial_offsets(offsets))

    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        try:
            with call_sites(noted=False):
                self._batch(rows, batch_id)
        except Exception as error:
            self._error = batch_error(error, self.flow.name)
            # Spark keeps only a text of it, made of the whole chain of causes. With Java's stacks in
            # there, a regular expression of Spark's overflowed and the query died without a word.
            raise RuntimeError(str(self._error)) from None

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        previous = self.position
        if previous is not None and batch_id <= previous.batch_id:
            self._skip_batch(rows, batch_id, previous)
            return
        planned = self._planned(batch_id)
        self.checks.before_batch(batch_id, previous)
        split, violations = self._stage(rows, batch_id)
        position = self.step(
            Step.INGEST_SOURCE_FILES,
            lambda: self.folder.position(planned, previous, stateful=self.stateful),
        )
        position = self.checks.after_batch(previous, position)
        if self._planned(batch_id) != planned:
            raise self._diverged_error(batch_id, "is planned otherwise than when its rows were read")
        self.committer.submit(
            self.flow.name, split.good, position, split.bad, violations, self._commit_metadata
        )
        self.folder.mark_committed()
        self.position = position
        self.rows += split.good.rows
        self._report_batch(split, violations, batch_id)

    def _skip_batch(self, rows: DataFrame, batch_id: int, previous: SparkPosition) -> None:
        """The table has the batch already."""
        if batch_id != previous.batch_id or not same_offsets(self.folder.offsets(batch_id), previous.offsets):
            raise self._diverged_error(
                batch_id, f"differs from batch {previous.batch_id} that {self._target} holds"
            )
        self.emit(
            events.BatchSkipped(
                flow=self.flow.name,
                dataset=self._target,
                batch=batch_id,
                reason=Reason.of(ReasonCode.POSITIONS_PROVE_BATCH),
            )
        )
        if self.stateful:
            # The state of this batch must be there for the next one.
            rows.write.format("noop").mode("append").save()

    def _report_batch(self, split: SplitBatch, violations: Mapping[str, int], batch_id: int) -> None:
        met = {expectation.name: violations.get(expectation.name, 0) for expectation in self.expectations}
        counted = expectation_counts(self.expectations, {}, met)
        self.emit(
            events.Batch(
                flow=self.flow.name,
                dataset=self._target,
                batch=batch_id,
                rows=split.good.rows,
                expectations=counted,
            )
        )
        if violations:
            self.report_expectations(self._totals(violations))
        self._malformed.report(self._counted, batch_id)
        if split.set_aside is not None:
            self._report_quarantined(split.set_aside, batch_id)

    def _planned(self, batch_id: int) -> Planned:
        try:
            return self.folder.plan(batch_id)
        except FileNotFoundError as error:
            raise self._diverged_error(batch_id, "is no longer in the folder") from error

    def _diverged_error(self, batch_id: int, how: str) -> IngestError:
        return diverged_error(self.flow.name, f"batch {batch_id} in {self.folder.path} {how}")

    def _totals(self, violations: Mapping[str, int]) -> tuple[ExpectationCount, ...]:
        """What the table counts after the commit of a batch with these violations."""
        commit_metadata = self.committer.table.fork().commit_metadata
        after = {} if commit_metadata is None else commit_metadata.violations
        before = {name: count - violations.get(name, 0) for name, count in after.items()}
        return expectation_counts(self.expectations, before, after)

    def _stage(self, rows: DataFrame, batch_id: int) -> tuple[SplitBatch, Mapping[str, int]]:
        """The batch, staged, and its violations of expectations."""
        table, violations = self.committer.table, dict[str, int]()
        fork, self._counted = table.fork(), CountedRecords()

        def stage(aligned: DataFrame) -> Staged:
            flagged = self.flow.with_flags(aligned)
            counts = self._malformed.counts_records
            staged, counted = stage_expected(table, fork, flagged, self.expectations, is_observed=counts)
            violations.update(counted)
            return staged

        try:
            good = stage(self._align(self._with_tasks(rows)))
            violations.update(self._count_malformed())
            return self._split_malformed(good, batch_id), violations
        except TautochroneError:
            raise
        except Exception as error:
            assert self._evaluated is not None
            splitter = BatchSplitter(
                self.flow.name, self.bad_records, self.committer.quarantine_table, self._align
            )
            ranges = partial(ranges_of, self.folder, self.position, batch_id)
            return splitter.split(error, *self._evaluated, stage, batch_id, ranges), violations

    def _count_malformed(self) -> Mapping[str, int]:
        """How many records of the staged batch did not parse, as the table counts them."""
        if self._malformed.counts_records:
            self.checks.await_start()
            assert self._query is not None
            self._counted = self._malformed.counts(self._query)
        return counted_violations(self._counted)

    def _split_malformed(self, good: Staged, batch_id: int) -> SplitBatch:
        if not self._counted.set_aside:
            return SplitBatch(good)
        assert self._query is not None
        try:
            bad, set_aside, files = self._malformed.set_aside(self._query, self._counted, batch_id)
            self._counted = replace(self._counted, files=files)
            return SplitBatch(good, bad, set_aside)
        except Exception:
            self.committer.table.discard(good)
            raise

    def _with_tasks(self, rows: DataFrame) -> DataFrame:
        """The rows of a batch in as many tasks, and so in as many files, as are worthwhile."""
        if self.stateful or not any(source.shares_batches() for source in self._sources):
            return rows
        return grouped_rows(rows)

    def _align(self, rows: DataFrame) -> DataFrame:
        return align(rows, self.schema, self.flow.name)

    def _report_quarantined(self, set_aside: SetAside, batch_id: int) -> None:
        assert self.committer.quarantine_table is not None
        self.emit(
            events.Quarantined(
                flow=self.flow.name,
                dataset=self._target,
                batch=batch_id,
                records=set_aside.records,
                quarantine_table=str(self.committer.quarantine_table.name),
                reason=set_aside.reason,
                first=set_aside.first,
                no_line=set_aside.no_line,
            )
        )
