"""Brings the tables that hold the rows of files into agreement with the files, before a cut is taken."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as sf

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, IngestError, TautochroneError
from tautochrone.model import events
from tautochrone.model.lake import (
    FILE_COLUMN,
    NO_VERSION,
    POSITION_COLUMN,
    Fork,
    LakeTable,
    Staged,
    TableDefinition,
)
from tautochrone.model.names import FILE_PATH, FILE_STAMP, TableName, describe_files
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.job.job import Job
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.file_relations import (
    FileRelation,
    file_relations,
    table_of_several_sources,
    table_schema,
)
from tautochrone.spark.analysis.session_context import session_settings
from tautochrone.spark.execute.expectations import observed_counts
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["FileTables"]

_MIN_INTERVAL_S, _SHARE_OF_TIME = 10.0, 20


@dataclass(slots=True)
class FileTables:
    """The tables of files that one job's views read.

    Attributes:
        full: datasets that a user asked to compute anew; files of views among them are read again, once.
        unfollowed: tables that do not agree with the files, with the reason. A cut takes no version of them,
            and the views above read the files themselves.
    """

    job: Job
    full: frozenset[TableName] = frozenset()
    unfollowed: dict[TableName, Reason] = field(default_factory=dict)
    _listings: dict[TableName, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    _tables: dict[TableName, LakeTable] = field(default_factory=dict)
    _stale: set[TableName] = field(init=False)
    _next_at: float = 0.0

    def __post_init__(self) -> None:
        flows = [flow for view in self.full if self._is_view(view) for flow in self.job.topology.flows(view)]
        self._stale = {table for flow in flows for table in flow.file_tables}

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
            if self._is_view(name):
                (flow,) = self.job.topology.flows(name)
                if flow.file_tables - done:
                    self._follow(flow, sorted(flow.file_tables - done))
                    done |= flow.file_tables
        duration = time.monotonic() - started
        self._next_at = time.monotonic() + max(_MIN_INTERVAL_S, _SHARE_OF_TIME * duration)

    def _is_view(self, name: TableName) -> bool:
        topology = self.job.topology
        return name in topology.derived_tables and topology.is_view(name)

    def _follow(self, flow: ResolvedFlow, tables: Sequence[TableName]) -> None:
        try:
            forks = self._forks(flow, tables)
            relations = self._relations(flow)
        except (TautochroneError, PySparkException, Py4JError) as error:
            self._fall_back_to_direct_reads(tables, error)
            return
        for table in tables:
            if table not in relations or table not in forks:
                self._read_directly(
                    table, Reason.of(ReasonCode.FILE_COLUMNS_CHANGED, input=describe_files(table))
                )
                continue
            try:
                self._take_in_or_repeat(flow, relations[table], forks[table])
            except (TautochroneError, PySparkException, Py4JError) as error:
                self._fall_back_to_direct_reads([table], error)

    def _forks(self, flow: ResolvedFlow, tables: Sequence[TableName]) -> Mapping[TableName, Fork]:
        """The tables as they are before the files are listed.

        So a commit of another job that lists later makes this job's commit fail, and no older listing
        replaces a newer one.
        """
        lake = self.job.lake
        for name in tables:
            if name not in self._tables and lake.exists(name):
                table = lake.load(name)
                # A process may have ended while it created the table.
                if table.fork().version != NO_VERSION:
                    self._tables[name] = table
        if not self._tables.keys() >= {*tables}:
            # This listing tells the columns alone.
            relations = self._relations(flow)
            for name in relations.keys() & tables - self._tables.keys():
                self._tables[name] = self._create(relations[name])
        return {name: self._tables[name].fork() for name in tables if name in self._tables}

    def _create(self, relation: FileRelation) -> LakeTable:
        definition = TableDefinition(
            name=relation.table,
            schema=table_schema(relation.schema),
            comment="rows of files that views read",
        )
        return self.job.lake.create(definition, self.job.file_table_metadata())

    def _relations(self, flow: ResolvedFlow) -> Mapping[TableName, FileRelation]:
        """The query's relations over files, listed now."""
        session = self.job.graph.analysis_session
        assert session is not None
        self.job.definitions.prepare(session, flow.views)
        frame, reads = flow.evaluate_over_files(session)
        relations = file_relations(analyzed_plan(frame), reads)
        if (text := table_of_several_sources(relations)) is not None:
            raise IngestError(
                "FILE_PATHS_UNCLEAR",
                f"Flow {flow.flow.name} cannot follow its files: {text}",
                hint="let spark.read.load, one path for each call, read what a glob in the SQL text reads",
            )
        return {relation.table: relation for relation in relations}

    def _fall_back_to_direct_reads(self, tables: Sequence[TableName], error: Exception) -> None:
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
        self.job.emit(events.FilesNotTakenIn(files=describe_files(table), reason=reason))

    def _take_in_or_repeat(self, flow: ResolvedFlow, relation: FileRelation, fork: Fork) -> None:
        session = self.job.graph.analysis_session
        assert session is not None
        with session_settings(session, flow.flow.conf):
            try:
                self._take_in(session, relation, fork)
                return
            except (ConflictError, CommitOutcomeUnknownError):
                # Another job took files in, or it is unknown whether this one did: the table tells.
                self._listings.pop(relation.table, None)
        fork = self._tables[relation.table].fork()
        listed_again = self._relations(flow).get(relation.table)
        if listed_again is None:
            reason = Reason.of(ReasonCode.FILE_COLUMNS_CHANGED, input=describe_files(relation.table))
            self._read_directly(relation.table, reason)
            return
        with session_settings(session, flow.flow.conf):
            self._take_in(session, listed_again, fork)

    def _take_in(self, session: SparkSession, relation: FileRelation, fork: Fork) -> None:
        """Bring a table from `fork` into agreement with a listing that was made after it."""
        table = self._tables[relation.table]
        is_stale = table.name in self._stale
        old, new = self._known(table, fork), relation.listing(session)
        gone = {path for path, stamp in old.items() if is_stale or new.get(path) != stamp}
        added = {path for path, stamp in new.items() if is_stale or old.get(path) != stamp}
        if not gone and not added:
            self._listings[table.name] = (fork.version, new)
            return
        metadata = self.job.file_table_metadata()
        staged, malformed = [], Observation()
        if added:
            # The stamps were taken before the rows are read: a file that is changed meanwhile is read again.
            stamps = {path: new[path] for path in added}
            paths = None if len(added) == len(new) else added
            staged.append(table.stage(fork, relation.rows(session, paths, stamps, malformed)))
        removed = self._positions(table, fork, None if len(gone) == len(old) else gone) if gone else {}
        version = fork.version
        if removed:
            version = table.apply(fork, staged, removed, metadata).version
        elif any(part.rows for part in staged):
            version = table.commit_staged(fork, staged, metadata).version
        self._listings[table.name] = (version, new)
        self._stale.discard(table.name)
        self.job.emit(
            events.FilesTakenIn(
                files=describe_files(table.name),
                added=len(added - gone),
                changed=len(added & gone),
                removed=len(gone - added),
                rows_inserted=sum(part.rows for part in staged),
                rows_deleted=sum(len(positions) for positions in removed.values()),
                malformed=_observed(relation, malformed, staged),
            )
        )

    def _known(self, table: LakeTable, fork: Fork) -> Mapping[str, str]:
        """The files whose rows the table holds. A file without rows is only known within a run."""
        cached = self._listings.get(table.name)
        if cached is not None and cached[0] == fork.version:
            return cached[1]
        rows = table.read(self.job.base, fork.version).select(FILE_PATH, FILE_STAMP).distinct().collect()
        return {row[0]: row[1] for row in rows}

    def _positions(self, table: LakeTable, fork: Fork, paths: set[str] | None) -> Mapping[str, Sequence[int]]:
        """Where the rows of some files are, or of all (None): data file → positions."""
        rows = table.read(self.job.base, fork.version)
        if paths is not None:
            rows = rows.where(sf.col(FILE_PATH).isin(sorted(paths)))
        grouped = rows.groupBy(FILE_COLUMN).agg(sf.collect_list(POSITION_COLUMN)).collect()
        return {row[0]: row[1] for row in grouped}


def _observed(relation: FileRelation, malformed: Observation, staged: Sequence[Staged]) -> int:
    """How many records of the staged files did not parse."""
    if not relation.may_be_malformed or not any(part.rows for part in staged):
        return 0
    counts = observed_counts(malformed, 1, was_read=True)
    return 0 if counts is None else counts[0]
