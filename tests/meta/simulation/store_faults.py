"""What may happen to the store itself inside the simulated protocol: a copy that is put back, the store of
another pipeline in its place, nothing in its place."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.database import StoreDatabase
from tautochrone.meta.database import tables as t
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import unclassified

if TYPE_CHECKING:
    from tests.meta.simulation.simulation import Simulation

__all__ = ["FULL", "StoreFaults", "Stores"]

FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("simulated"))
_Rows = frozenset[tuple[object, ...]]


class Stores:
    """One database file that serves as the store of one schedule after the other, and what it may begin as.

    The engine is kept: what it has learned of statements is worth more than the file.
    """

    def __init__(self, folder: str) -> None:
        self.database = StoreDatabase(f"sqlite:///{folder}/meta.db")
        self.database.migrate()
        self.blank = self.copy()
        self.others = [self._another(names, numbers) for names in ("k{}", "j{}") for numbers in (1, 900)]
        self.rows = [self.dump(other) for other in self.others]

    def live(self) -> sqlite3.Connection:
        with self.database.engine.connect() as connection:
            driver_connection = connection.connection.driver_connection
        assert isinstance(driver_connection, sqlite3.Connection)
        return driver_connection

    def copy(self) -> sqlite3.Connection:
        """The store as it is now."""
        copy = sqlite3.connect(":memory:")
        self.live().backup(copy)
        return copy

    def put(self, copy: sqlite3.Connection) -> None:
        """What was copied takes the store's place; connections stay open."""
        copy.backup(self.live())

    def dump(self, copy: sqlite3.Connection | None = None) -> _Rows:
        """All rows, but for the one from which numbers come."""
        connection = copy or self.live()
        names = [table.name for table in t.metadata.sorted_tables if table is not t.stores]
        return frozenset(
            (name, *row) for name in names for row in connection.execute(f"SELECT * FROM {name}").fetchall()
        )

    def close(self) -> None:
        self.database.close()

    def _another(self, job_names: str, number: int) -> sqlite3.Connection:
        """The store of a pipeline that nobody runs here."""
        self.put(self.blank)
        store = MetaStore(self.database, lambda: 1_000)
        tables = "s{}" if job_names.startswith("k") else "t{}"
        for index in range(4):
            job = job_names.format(index)
            own_tables = [TableName("lake", ("db",), tables.format(number)) for number in (index, index + 4)]
            root = DatasetEntry(own_tables[0], "streaming table", "o", frozenset(), is_root=True)
            view = DatasetEntry(own_tables[1], "materialized view", "o", frozenset(own_tables[:1]))
            store.jobs.start_run("another", job, [root, view])
            fence = store.jobs.take_over(job)
            store.roots.report(job, fence, {own_tables[0]: Version("o1")})
            roots = {own_tables[0]: Version("o1")}
            opened = store.checkpoints.open(job, fence, NewCheckpoint(roots, 1_000, at_least=number))
            store.checkpoints.record_version(job, fence, opened.number, own_tables[1], Version("o2"), FULL)
            store.checkpoints.publish(job, fence, opened.number, 1_000)
            store.jobs.end_run(job, fence)
        return self.copy()


@dataclass
class StoreFaults:
    """What happens to the store of one schedule.

    `count` is how often it was replaced; `behind` are the jobs that have not taken over since. While `wrong`
    holds the store that was in its place before, nobody may be let in.
    """

    stores: Stores
    count: int = 0
    behind: set[str] = field(default_factory=set)
    wrong: sqlite3.Connection | None = None
    neighbours: _Rows = frozenset()
    _copies: list[sqlite3.Connection] = field(default_factory=list)

    def begin(self, pick: Random) -> None:
        """An empty store, or that of another pipeline which is shared with it."""
        self._put(pick.choice(self.stores.others[:2]) if pick.random() < 0.3 else self.stores.blank)

    def strike(self, simulation: Simulation) -> None:
        pick = simulation.random
        chance = pick.random()
        if self.wrong is not None:
            right = self.wrong
            self.wrong = None
            self._replace(simulation, pick.choice([right, right, *self._copies, self.stores.blank]))
        elif chance < 0.4 or not self._copies:
            self._copies = [*self._copies[-2:], self.stores.copy()]
        elif chance < 0.75:
            self._replace(simulation, pick.choice(self._copies))
        elif chance < 0.83:
            self._replace(simulation, self.stores.blank)
        elif chance < 0.92:
            self._replace(simulation, pick.choice(self.stores.others[:2]))
        else:
            self.wrong = self.stores.copy()
            self._replace(simulation, pick.choice(self.stores.others[2:]))

    def calm(self, simulation: Simulation) -> None:
        """The right store is back."""
        if self.wrong is not None:
            self._replace(simulation, self.wrong)
            self.wrong = None

    def check(self) -> None:
        """What other pipelines have in the store is theirs."""
        assert self.neighbours <= self.stores.dump(), "another pipeline's rows changed"

    def _replace(self, simulation: Simulation, copy: sqlite3.Connection) -> None:
        self._put(copy)
        self.count += 1
        self.behind = set(simulation.entries)
        simulation.store_replaced()

    def _put(self, copy: sqlite3.Connection) -> None:
        self.stores.put(copy)
        MetaStore(self.stores.database)  # somebody opens it
        now = self.stores.dump()
        self.neighbours = next((rows for rows in self.stores.rows if rows <= now), frozenset())
