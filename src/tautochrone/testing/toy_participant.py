"""A participant over one SQLite file, for tests, and a service that has it registered as `toy`.

Rows are staged in `staged`, and readers see `rows`. `ToyTarget` is what a program writes with.

`python -m tautochrone.testing.toy_participant STORE_URL PORT TARGET_FILE [CRASH]` is a service that kills
itself at the point `CRASH`, such as `before commit`, unless the file `TARGET_FILE.crashed` exists.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import CoordinatedTransaction, TransactionChunk

__all__ = ["CRASH_POINTS", "ToyTarget"]

CRASH_POINTS = tuple(
    f"{when} {step}" for step in ("prepare", "commit", "rollback") for when in ("before", "after")
)


class ToyTarget:
    """The target, as program and participant see it. Every method may be repeated.

    Args:
        path: of the SQLite file.
        reached: called at each of `CRASH_POINTS`; what it raises is the participant's error.
    """

    def __init__(self, path: Path, reached: Callable[[str], None] = lambda _: None) -> None:
        self._path, self._reached = path, reached
        with closing(self._connect()) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rows (value)")
            connection.execute("CREATE TABLE IF NOT EXISTS staged (id, chunk, value)")
            connection.execute("CREATE TABLE IF NOT EXISTS shown (id PRIMARY KEY)")

    def stage(self, transaction: str, chunk: str, values: Iterable[int]) -> TransactionChunk:
        """Write rows that readers do not see yet."""
        values = list(values)
        with closing(self._connect()) as connection, connection:
            connection.execute("DELETE FROM staged WHERE (id, chunk) = (?, ?)", (transaction, chunk))
            staged = [(transaction, chunk, value) for value in values]
            connection.executemany("INSERT INTO staged VALUES (?, ?, ?)", staged)
        return TransactionChunk(id=chunk, table="rows", rows=len(values), hash=_hash(values))

    def prepare(self, transaction: CoordinatedTransaction, chunks: Sequence[TransactionChunk]) -> None:
        self._reached("before prepare")
        query = "SELECT value FROM staged WHERE (id, chunk) = (?, ?) ORDER BY rowid"
        with closing(self._connect()) as connection:
            for chunk in chunks:
                values = [row[0] for row in connection.execute(query, (transaction.id, chunk.id))]
                if (len(values), _hash(values)) != (chunk.rows, chunk.hash):
                    raise ValueError(f"chunk {chunk.id} differs from what is staged")
        self._reached("after prepare")

    def commit(self, transaction: CoordinatedTransaction, _chunks: Sequence[TransactionChunk] = ()) -> None:
        assert transaction.state is TransactionState.COMMITTING
        self._reached("before commit")
        self.show(transaction.id)
        self._reached("after commit")

    def rollback(self, transaction: CoordinatedTransaction, _chunks: Sequence[TransactionChunk] = ()) -> None:
        assert transaction.state is TransactionState.ABORTING
        self._reached("before rollback")
        self.drop(transaction.id)
        self._reached("after rollback")

    def show(self, transaction: str) -> None:
        """Let readers see what is staged. A repeat shows nothing twice."""
        with closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("INSERT OR IGNORE INTO shown VALUES (?)", (transaction,)).rowcount:
                connection.execute("INSERT INTO rows SELECT value FROM staged WHERE id = ?", (transaction,))
            connection.execute("DELETE FROM staged WHERE id = ?", (transaction,))

    def drop(self, transaction: str) -> None:
        """Delete what is staged."""
        with closing(self._connect()) as connection, connection:
            connection.execute("DELETE FROM staged WHERE id = ?", (transaction,))

    def rows(self) -> list[int]:
        """What readers see."""
        with closing(self._connect()) as connection:
            return [row[0] for row in connection.execute("SELECT value FROM rows ORDER BY value")]

    def staged(self) -> list[int]:
        """What no reader sees."""
        with closing(self._connect()) as connection:
            return [row[0] for row in connection.execute("SELECT value FROM staged ORDER BY value")]

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)


def _hash(values: list[int]) -> str:
    return sha256(repr(values).encode()).hexdigest()


def _serve(store_url: str, port: str, target: str, crash: str = "") -> None:
    import uvicorn

    from tautochrone.meta import MetaStore
    from tautochrone.metaservice.app import create_app
    from tautochrone.metaservice.coordinator import CoordinatorLoop, TransactionCoordinator
    from tautochrone.metaservice.http.access import Access, Role

    crashed = Path(f"{target}.crashed")

    def reached(point: str) -> None:
        if point == crash and not crashed.exists():
            crashed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    with MetaStore.open(store_url) as store:
        coordinator = TransactionCoordinator(store, {"toy": ToyTarget(Path(target), reached)})
        app = create_app(access=Access.on_loopback(Role.OPERATE), store=store, coordinator=coordinator)
        with CoordinatorLoop(coordinator, interval_s=0.05):
            uvicorn.run(app, port=int(port), log_level="warning", access_log=False, lifespan="off")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
