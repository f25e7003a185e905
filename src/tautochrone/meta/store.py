"""`MetaStore`: the store in a database, made of its parts.

One per process and store; safe to share between threads. It must never know Spark or the lake.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from sqlalchemy import insert, select

from tautochrone.meta import protocols
from tautochrone.meta.database import StoreDatabase
from tautochrone.meta.database import tables as t
from tautochrone.meta.sql.alarms import SqlAlarms
from tautochrone.meta.sql.builds import SqlBuilds
from tautochrone.meta.sql.checkpoints import SqlCheckpoints, SqlInvariants, SqlRoots
from tautochrone.meta.sql.datasets import SqlDatasets, SqlHistory
from tautochrone.meta.sql.deliveries import SqlDeliveries
from tautochrone.meta.sql.jobs import SqlJobs, SqlRegistrations, require_no_run
from tautochrone.meta.sql.reads import SqlPins, SqlReads
from tautochrone.meta.sql.recovery import SqlRecovery
from tautochrone.meta.sql.revisions import SqlRevisions
from tautochrone.meta.sql.transactions import SqlTransactions
from tautochrone.model.closeable import Closeable
from tautochrone.model.jobs import RunProcess
from tautochrone.model.moments import now_ms

__all__ = ["MetaStore"]


class MetaStore(Closeable):
    """The `Store` in a database. Open it with `MetaStore.open(url)`.

    >>> with MetaStore.open("sqlite:///meta.db") as store:
    ...     newest = store.checkpoints.latest_published()
    """

    @classmethod
    def open(
        cls,
        url: str,
        *,
        clock: Callable[[], int] = now_ms,
        migrate: bool = True,
        is_over: Callable[[str, RunProcess | None], bool] | None = None,
    ) -> MetaStore:
        """Open a store, creating or migrating it.

        Args:
            url: a SQLAlchemy URL, such as `sqlite:////path/meta.db`.
            clock: epoch milliseconds.
            migrate: if not, a store that this release has not made or migrated is refused.
            is_over: whether the run of a job, with its process if that is known, counts as ended although its
                lease has not. A store of an earlier release is not migrated while other jobs run; None: it
                is, whatever runs.

        Raises:
            MetaError: `META_STORE_FAILED`, `META_STORE_BUSY`, `META_STORE_TOO_NEW`; with `is_over`
                `JOB_RUNNING`; without `migrate` `META_STORE_MISSING`, `META_STORE_OTHER_RELEASE`.
        """
        database = StoreDatabase(url)
        try:
            if migrate and is_over is not None:
                database.migrate(lambda connection: require_no_run(connection, clock(), is_over))
            elif migrate:
                database.migrate()
            else:
                database.require_migrated()
            return cls(database, clock)
        except Exception:
            database.close()
            raise

    def __init__(self, database: StoreDatabase, clock: Callable[[], int] = now_ms) -> None:
        self._database = database
        self._clock = clock
        shared: tuple[StoreDatabase, Callable[[], int], dict[str, str]] = (database, clock, {})
        self.alarms: protocols.Alarms = SqlAlarms(*shared)
        self.builds: protocols.Builds = SqlBuilds(*shared)
        self.checkpoints: protocols.Checkpoints = SqlCheckpoints(*shared)
        self.datasets: protocols.Datasets = SqlDatasets(*shared)
        self.deliveries: protocols.Deliveries = SqlDeliveries(*shared)
        self.history: protocols.History = SqlHistory(*shared)
        self.invariants: protocols.Invariants = SqlInvariants(*shared)
        self.jobs: protocols.Jobs = SqlJobs(*shared)
        self.pins: protocols.Pins = SqlPins(*shared)
        self.reads: protocols.Reads = SqlReads(*shared)
        self.recovery: protocols.Recovery = SqlRecovery(*shared)
        self.registrations: protocols.Registrations = SqlRegistrations(*shared)
        self.revisions: protocols.Revisions = SqlRevisions(*shared)
        self.roots: protocols.Roots = SqlRoots(*shared)
        self.transactions: protocols.Transactions = SqlTransactions(*shared)
        self._identify()

    @property
    def incarnation(self) -> str:
        """See `Store.incarnation`."""
        with self._database.read() as connection:
            return str(connection.execute(select(t.stores.c.incarnation)).scalar_one())

    def schema_revision(self) -> str:
        """The newest migration that the store has had."""
        return str(self._database.revision())

    def now_ms(self) -> int:
        """The store's clock: epoch milliseconds."""
        return self._clock()

    def close(self) -> None:
        """Close this process's connections."""
        self._database.close()

    def _identify(self) -> None:
        query = select(t.stores.c.incarnation)
        with self._database.read() as connection:
            incarnation = connection.execute(query).scalar()
        if incarnation is None:
            with self._database.write() as connection:
                incarnation = connection.execute(query).scalar()
                if incarnation is None:
                    incarnation = str(uuid4())
                    row = {"id": 1, "incarnation": incarnation, "last_number": 0}
                    connection.execute(insert(t.stores).values(row))
