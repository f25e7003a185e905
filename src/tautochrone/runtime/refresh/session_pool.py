"""Spark sessions that show the lake at the open checkpoint.

One session per dataset, kept for the whole run: settings and temporary views of one dataset never meet
another's. From checkpoint to checkpoint only the versions change that the sessions show.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from itertools import count

from pyspark.sql import SparkSession

from tautochrone.iceberg.sessions.spark_sessions import count_without_metadata, reader_session
from tautochrone.model.catalog import NEWEST, Lookup, ReadPointServer
from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import TableName, Version
from tautochrone.spark.session.factory import use_database

__all__ = ["SessionPool"]


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
        self._sessions: dict[str, SparkSession] = {}
        self._numbers = count(1)
        server.show(read_point, self.lookup)

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

    def lookup(self, table: TableName) -> Version | str | None:
        """The version to show of a table; None: it does not exist at the checkpoint."""
        with self._lock:
            version = NO_VERSION if table in self._empty else self._versions.get(table)
        is_versioned = version is not None or table in self._own_tables
        return version if is_versioned else NEWEST

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
            session = reader_session(self._base, self._catalog, self._server.uri, read_point)
            use_database(session, self._catalog, self._database, create=False)
            count_without_metadata(session)
            for key, value in conf.items():
                session.conf.set(key, value)
            self._sessions[name] = session
        return self._sessions[name]
