"""`MetaStore`: the MetaService's store as one object, made of its repositories.

One per process and store; safe to share between threads. It must never know Spark or the lake.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from uuid import uuid4

from sqlalchemy import insert, select

from tautochrone.meta import tables as t
from tautochrone.meta.alignment import Alignments
from tautochrone.meta.change_feed import Watch
from tautochrone.meta.coordinator import Coordinator
from tautochrone.meta.database import Database
from tautochrone.meta.deliveries import Deliveries
from tautochrone.meta.details import Details
from tautochrone.meta.expiry import Expiry
from tautochrone.meta.history import History
from tautochrone.meta.invariants import Invariants
from tautochrone.meta.job_ownership import Ownership
from tautochrone.meta.pins import Pins
from tautochrone.meta.read_versions import Reads
from tautochrone.meta.readability import Readability
from tautochrone.meta.rebuild import Rebuild
from tautochrone.meta.reconcile import Reconcile
from tautochrone.meta.registration import Registration
from tautochrone.meta.repository import now_ms
from tautochrone.meta.revisions import Revisions
from tautochrone.meta.skipped_files import Skipped
from tautochrone.meta.table_owners import Belonging
from tautochrone.meta.timeline import Timeline

__all__ = ["MetaStore"]


class MetaStore(
    Registration,
    Coordinator,
    History,
    Reads,
    Pins,
    Expiry,
    Rebuild,
    Reconcile,
    Revisions,
    Details,
    Timeline,
    Watch,
    Invariants,
    Alignments,
    Skipped,
    Ownership,
    Readability,
    Belonging,
    Deliveries,
):
    """Everything that the MetaService remembers. Open with `MetaStore.open(url)`.

    Every method is one transaction and may be called again with the same arguments when its answer was
    lost. Most then find what they wanted already there. A repeated `take_over` gives a higher fence (nobody
    holds the lost one), a repeated `resolve` one more pin (the lost one ends with its lease), a repeated
    `forget_expired` counts what the first one left: none.
    """

    @classmethod
    def open(cls, url: str, *, clock: Callable[[], int] = now_ms) -> MetaStore:
        """Open a store, creating or migrating it.

        Args:
            url: a SQLAlchemy URL, such as `sqlite:////path/meta.db`.
            clock: epoch milliseconds.

        Raises:
            MetaError: `META_STORE_FAILED`, `META_STORE_BUSY`, `META_STORE_TOO_NEW`.
        """
        database = Database(url)
        database.migrate()
        return cls(database, clock)

    def __init__(self, database: Database, clock: Callable[[], int] = now_ms) -> None:
        super().__init__(database, clock)
        self._identify()

    @property
    def incarnation(self) -> str:
        """The id of this store, read anew each time: the file behind an open store may be replaced. A store
        that was created anew, rebuilt from the lake or found to be an older copy has another id."""
        with self._read() as connection:
            return str(connection.execute(select(t.stores.c.incarnation)).scalar_one())

    def schema_revision(self) -> str:
        """The newest migration that the store has had."""
        return str(self._database.revision())

    def close(self) -> None:
        """Close this process's connections."""
        self._database.close()

    def __enter__(self) -> MetaStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _identify(self) -> None:
        query = select(t.stores.c.incarnation)
        with self._read() as connection:
            found = connection.execute(query).scalar()
        if found is None:
            with self._write() as connection:
                found = connection.execute(query).scalar()
                if found is None:
                    found = str(uuid4())
                    row = {"id": 1, "incarnation": found, "last_number": 0}
                    connection.execute(insert(t.stores).values(row))
