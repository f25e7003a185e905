"""Brings the tables that hold the rows of files into agreement with the files, before a cut is taken."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, TautochroneError
from tautochrone.model.file_tables import FILE_PATH, FILE_STAMP, describe_files
from tautochrone.model.lake import (
    FILE_COLUMN,
    POSITION_COLUMN,
    CommitMetadata,
    Fork,
    LakeTable,
    TableDefinition,
)
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.job.job import Job
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.file_relations import FileRelation, file_relations, table_schema
from tautochrone.spark.analysis.session_context import session_settings
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["FileTables"]

_MIN_INTERVAL_S, _SHARE_OF_TIME = 10.0, 20
_SHARED = Fence(1)
"""Several jobs may write the same table: each commit only follows the version that it was made from."""


@dataclass(slots=True)
class FileTables:
    """The tables of files that one job's views read.

    Attributes:
        unfollowed: tables that do not agree with the files, with the reason. A cut takes no version of them,
            and the views above read the files themselves.
    """

    job: Job
    unfollowed: dict[TableName, Reason] = field(default_factory=dict)
    _listings: dict[TableName, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    _tables: dict[TableName, LakeTable] = field(default_factory=dict)
    _next_at: float = 0.0

    def synchronize(self) -> None:
        """List the files, unless that was done a moment ago, and take in what differs.

        A listing may take long, and its cost must stay small beside the run's.
        """
        started = time.monotonic()
        if started < self._next_at:
            return
        self.unfollowed.clear()
        done: set[TableName] = set()
        for name in self.job.topology.derived_tables:
            if self.job.topology.is_view(name):
                (flow,) = self.job.topology.flows(name)
                if flow.file_tables - done:
                    self._follow(flow, done)
        duration = time.monotonic() - started
        self._next_at = time.monotonic() + max(_MIN_INTERVAL_S, _SHARE_OF_TIME * duration)

    def _follow(self, flow: ResolvedFlow, done: set[TableName]) -> None:
        session = self.job.graph.analysis_session
        assert session is not None
        try:
            relations = {relation.table: relation for relation in self._relations(flow)}
        except (TautochroneError, PySparkException, Py4JError) as error:
            self._give_up(flow.file_tables - done, error)
            return
        for table in sorted(flow.file_tables - done):
            done.add(table)
            if table not in relations:
                self._read_directly(
                    table, Reason.of(ReasonCode.FILE_COLUMNS_CHANGED, input=describe_files(table))
                )
                continue
            try:
                with session_settings(session, flow.flow.conf):
                    self._take_in_or_repeat(relations[table])
                self.unfollowed.pop(table, None)
            except (TautochroneError, PySparkException, Py4JError) as error:
                self._give_up([table], error)

    def _relations(self, flow: ResolvedFlow) -> Sequence[FileRelation]:
        """The query's relations over files, listed now."""
        session = self.job.graph.analysis_session
        assert session is not None
        self.job.definitions.prepare(session, flow.views)
        frame, reads = flow.evaluate_over_files(session)
        return file_relations(analyzed_plan(frame), reads)

    def _give_up(self, tables: Sequence[TableName] | frozenset[TableName], error: Exception) -> None:
        require_live_jvm()
        if isinstance(error, TautochroneError):
            error_class, text = error.error_class, str(error)
        else:
            problem = problem_of(error)
            error_class, text = problem.error_class, problem.message
        for table in tables:
            reason = Reason.of(
                ReasonCode.FILES_NOT_TAKEN_IN,
                input=describe_files(table),
                error_class=error_class,
                text=text,
            )
            self._read_directly(table, reason)

    def _read_directly(self, table: TableName, reason: Reason) -> None:
        """Let views read the files themselves until the next listing."""
        self._listings.pop(table, None)
        self.unfollowed[table] = reason
        self.job.emit("files_not_taken_in", files=describe_files(table), reason=reason)

    def _take_in_or_repeat(self, relation: FileRelation) -> None:
        try:
            self._take_in(relation)
        except (ConflictError, CommitOutcomeUnknownError):
            # Another job took the same files in, or it is unknown whether this one did: the table tells.
            self._listings.pop(relation.table, None)
            self._take_in(relation)

    def _take_in(self, relation: FileRelation) -> None:
        session = self.job.graph.analysis_session
        assert session is not None
        table = self._table(relation)
        fork = table.fork()
        old, new = self._known(table, fork), relation.listing(session)
        gone = {path for path, stamp in old.items() if new.get(path) != stamp}
        added = {path for path, stamp in new.items() if old.get(path) != stamp}
        if not gone and not added:
            return
        metadata = self._metadata()
        staged = []
        if added:
            # The stamps were taken before the rows are read: a file that is changed meanwhile is read again.
            stamps = {path: new[path] for path in added}
            staged.append(table.stage(fork, relation.rows(session, added if old else None, stamps)))
        removed = self._positions(table, fork, gone) if gone else {}
        version = fork.version
        if removed:
            version = table.apply(fork, staged, removed, metadata).version
        elif any(part.rows for part in staged):
            version = table.commit_staged(fork, staged, metadata).version
        self._listings[table.name] = (version, new)
        self.job.emit(
            "files_taken_in",
            files=describe_files(table.name),
            added=len(added - gone),
            changed=len(added & gone),
            removed=len(gone - added),
            rows_inserted=sum(part.rows for part in staged),
            rows_deleted=sum(len(positions) for positions in removed.values()),
        )

    def _table(self, relation: FileRelation) -> LakeTable:
        if relation.table not in self._tables:
            definition = TableDefinition(
                name=relation.table,
                schema=table_schema(relation.schema),
                comment="rows of files that views read",
            )
            # An existing table is only completed, in case a process ended while it was created.
            self._tables[relation.table] = self.job.lake.create(definition, self._metadata())
        return self._tables[relation.table]

    def _metadata(self) -> CommitMetadata:
        job = self.job
        return CommitMetadata(pipeline=job.spec.name, job=job.name, fence=_SHARED, store=job.incarnation)

    def _known(self, table: LakeTable, fork: Fork) -> Mapping[str, str]:
        """The files whose rows the table holds. A file without rows is only known within a run."""
        cached = self._listings.get(table.name)
        if cached is not None and cached[0] == fork.version:
            return cached[1]
        rows = table.read(self.job.base, fork.version).select(FILE_PATH, FILE_STAMP).distinct().collect()
        return {row[0]: row[1] for row in rows}

    def _positions(self, table: LakeTable, fork: Fork, paths: set[str]) -> Mapping[str, Sequence[int]]:
        """Where the rows of some files are: data file → positions."""
        rows = table.read(self.job.base, fork.version).where(sf.col(FILE_PATH).isin(sorted(paths)))
        grouped = rows.groupBy(FILE_COLUMN).agg(sf.collect_list(POSITION_COLUMN)).collect()
        return {row[0]: row[1] for row in grouped}
