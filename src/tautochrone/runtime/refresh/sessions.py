"""The sessions of a run and what they show at the open checkpoint: tables of the lake, views of the pipeline.

There is one session per dataset, kept for the whole run: settings and temporary views of one dataset never
meet another's. From checkpoint to checkpoint only the versions change that the sessions show.

A view that is not materialized is no table: Spark evaluates it again in each query that reads it. Two
evaluations may give different rows: a Python function asks for the time, `uuid()` and `rand()` give new
values, LIMIT takes other rows. So that every dataset sees the same rows, a view's function runs once per
checkpoint, and the rows of a view that Spark might compute differently are stored for as long as the
checkpoint is open.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from itertools import count
from typing import Protocol

from py4j.java_gateway import JavaObject
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from tautochrone.iceberg.sessions.spark_sessions import count_without_metadata, reader_session
from tautochrone.model.catalog import NEWEST, Lookup, ReadPointServer, Unwritten, Widened
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.project.definitions import Definitions, is_view
from tautochrone.project.graph import Graph
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, determinism
from tautochrone.spark.analysis.current_time import with_fixed_time
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.session.factory import use_database
from tautochrone.spark.translate.from_catalyst import plan_of

__all__ = ["CheckpointViews", "SessionPool", "Sessions", "session_at"]


class CheckpointViews:
    """Safe to use from the threads of one run. Its sessions all show the lake at the open checkpoint."""

    def __init__(self, definitions: Definitions, graph: Graph) -> None:
        self._definitions = definitions
        self._graph = graph
        # Held while a view is computed: its other readers need the same rows.
        self._lock = threading.RLock()
        self._checkpoint: CheckpointNumber | None = None
        self._plans: dict[TableName, JavaObject] = {}
        self._stored: dict[TableName, JavaObject] = {}
        self._repeatable: dict[TableName, bool] = {}

    def start(self, checkpoint: CheckpointNumber) -> None:
        """Forget the rows of other checkpoints."""
        with self._lock:
            if checkpoint == self._checkpoint:
                return
            self._checkpoint = checkpoint
            self._plans.clear()
            for plan in self._stored.values():
                plan.rdd().unpersist(False)
            self._stored.clear()

    def prepare(
        self,
        session: SparkSession,
        views: Collection[TableName],
        versions: Mapping[TableName, Version] | None = None,
    ) -> None:
        """Register views as temporary views of `session`.

        Args:
            session: shows the lake at the open checkpoint.
            views: with the views that they read.
            versions: of the clocks at the checkpoint; None when the session will only analyse queries.

        Raises:
            DefinitionError: a view cannot be evaluated.
        """

        def evaluate(view: TableName) -> DataFrame:
            plan = self._plans.get(view)
            if plan is None:
                frame = self._definitions.flows_of(view)[0].evaluate(session)
                if frame.isStreaming:
                    # A stream belongs to the query that reads it.
                    return frame
                plan = self._plans[view] = analyzed_plan(frame)
            if versions is not None and self._is_stored(view, dataframe_of_plan(session, plan)):
                plan = self._stored.get(view) or self._store(view, plan, session, versions)
            return dataframe_of_plan(session, plan)

        with self._lock:
            self._definitions.prepare(session, views, evaluate)

    def _is_stored(self, view: TableName, frame: DataFrame) -> bool:
        """Whether two readers could see different rows of the view."""
        if self._definitions.datasets[view].kind is not DatasetKind.TEMPORARY_VIEW or self._readers(view) < 2:
            return False
        if view not in self._repeatable:
            always_the_same, _ = determinism(analyzed_plan(frame))
            self._repeatable[view] = always_the_same and not plan_of(frame, view.catalog).nondeterminism
        return not self._repeatable[view]

    def _readers(self, view: TableName) -> int:
        """How many queries read the view, without those of other views."""
        datasets = self._definitions.datasets
        flows = [
            flow
            for flow in self._graph.flows.values()
            if not flow.streaming
            and not (flow.flow.target in datasets and is_view(datasets[flow.flow.target]))
        ]
        queries = [*flows, *(invariant.query for invariant in self._graph.invariants)]
        return sum(view in query.views for query in queries)

    def _store(
        self,
        view: TableName,
        plan: JavaObject,
        session: SparkSession,
        versions: Mapping[TableName, Version],
    ) -> JavaObject:
        frame = with_fixed_time(dataframe_of_plan(session, plan), versions)
        rows = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
        self._stored[view] = analyzed_plan(rows)
        return self._stored[view]


class Sessions(Protocol):
    """Gives each dataset the session in which its query is planned."""

    def session(self, name: str, conf: Mapping[str, str]) -> SparkSession:
        """The session of this name, with these Spark settings."""


class SessionPool:
    """Safe to use from the threads of one run.

    Args:
        base: of which the sessions are made.
        server: serves the lake at the checkpoint as a catalog.
        read_point: the name under which it is served, unique among the jobs of the process.
        catalog: the lake's catalog.
        database: current in every session.
        own_tables: a table of these without a version at the checkpoint does not exist there. Any other
            one is shown at its newest version.
    """

    def __init__(
        self,
        base: SparkSession,
        server: ReadPointServer,
        read_point: str,
        catalog: str,
        database: str,
        own_tables: Collection[TableName],
    ) -> None:
        self._base = base
        self._server = server
        self._read_point = read_point
        self._catalog = catalog
        self._database = database
        self._own_tables = own_tables
        self._lock = threading.Lock()
        self._versions: dict[TableName, Version] = {}
        self._empty: set[TableName] = set()
        self._columns: dict[TableName, str] = {}
        self._unwritten: dict[TableName, Unwritten] = {}
        self._sessions: dict[str, SparkSession] = {}
        self._numbers = count(1)
        server.show(read_point, self._shown)

    def show(self, versions: Mapping[TableName, Version]) -> None:
        """Show these versions from now on, and no others."""
        with self._lock:
            self._versions = dict(versions)

    def add(self, table: TableName, version: Version) -> None:
        """Show one more version, of a dataset that was just refreshed."""
        with self._lock:
            self._versions[table] = version

    @property
    def versions(self) -> dict[TableName, Version]:
        """A copy of the versions that are shown."""
        with self._lock:
            return dict(self._versions)

    def show_as_empty(self, table: TableName, *, is_empty: bool) -> None:
        """Show a table as one without any version, or show its version again."""
        with self._lock:
            if is_empty:
                self._empty.add(table)
            else:
                self._empty.discard(table)

    def show_columns(self, table: TableName, columns: str) -> None:
        """Show a table with columns that it lacks; see `Widened`."""
        with self._lock:
            self._columns[table] = columns

    def show_unwritten(self, table: TableName, metadata: str) -> None:
        """Show a table that does not exist yet; see `Unwritten`."""
        with self._lock:
            self._versions[table] = NO_VERSION
            self._unwritten[table] = Unwritten(metadata)

    def lookup(self, table: TableName) -> Version | str | None:
        """The version to show of a table; None: it does not exist at the checkpoint."""
        with self._lock:
            version = NO_VERSION if table in self._empty else self._versions.get(table)
        is_versioned = version is not None or table in self._own_tables
        return version if is_versioned else NEWEST

    def _shown(self, table: TableName) -> Version | str | Widened | Unwritten | None:
        version = self.lookup(table)
        with self._lock:
            columns, unwritten = self._columns.get(table), self._unwritten.get(table)
        if unwritten is not None:
            return unwritten
        return version if version is None or columns is None else Widened(Version(version), columns)

    def session(self, name: str, conf: Mapping[str, str], lookup: Lookup | None = None) -> SparkSession:
        """The session of this name; the first call makes it.

        Args:
            name: unique in the pool.
            conf: Spark settings of the session.
            lookup: what it shows if not the versions of the pool, under a read point of its own.
        """
        if name not in self._sessions:
            read_point = self._read_point
            if lookup is not None:
                read_point = f"{self._read_point}-{next(self._numbers)}"
                self._server.show(read_point, lookup)
            session = session_at(self._base, self._server, read_point, self._catalog, self._database, conf)
            count_without_metadata(session)
            self._sessions[name] = session
        return self._sessions[name]


def session_at(
    base: SparkSession,
    server: ReadPointServer,
    read_point: str,
    catalog: str,
    database: str,
    conf: Mapping[str, str],
) -> SparkSession:
    """A session that shows a read point of `server` as `catalog`.

    Args:
        base: of which it is made.
        database: the current one.
        conf: Spark settings.
    """
    session = reader_session(base, catalog, server.uri, read_point)
    use_database(session, catalog, database, create=False)
    for key, value in conf.items():
        session.conf.set(key, value)
    return session
