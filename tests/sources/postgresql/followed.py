"""Tables as a reader of the log has them, without a lake: what a continuous run or the next one does with the
change log, and the rows of the log table folded by key and by the snapshots of copied rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tautochrone.errors import DefinitionsOutdatedError, TautochroneError
from tautochrone.model.reason import Reason
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.postgresql.change_log import PostgreSQLChangeLog

__all__ = ["Followed", "Rows"]

captures = importlib.import_module("tautochrone.sources.postgresql.capture")
Rows = dict[tuple[str | None, ...], dict[str, str | None]]
"""By key."""
_ROUNDS = 30


def _has_seen(snapshot: str, transaction: int) -> bool:
    """Whether a transaction was visible to a snapshot."""
    lowest, next_one, running = snapshot.split(":")
    return transaction < int(lowest) or (
        transaction < int(next_one) and str(transaction) not in running.split(",")
    )


@dataclass
class Followed:
    """A capture of some tables with keys, by a reader of its own.

    Attributes:
        events: the rows of the log table.
        problem: why the run stopped.
        aside: by name, tables that are not captured as they were when definitions were loaded last.
    """

    url: str
    slot: str
    tables: Sequence[str]
    publication: str = "followed"
    options: Mapping[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    problem: TautochroneError | None = None
    aside: Mapping[str, Reason] = field(default_factory=dict)
    log: PostgreSQLChangeLog | None = None
    position: LogPosition | None = None

    @staticmethod
    def without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
        """`capture` defines none: there is no Spark."""
        monkeypatch.setattr(captures, "define_log", lambda *_: None)
        monkeypatch.setattr(captures, "define_table", lambda *_, **__: None)

    def load(self) -> None:
        """Definitions, as a new process does."""
        self.close()
        captures.capture(
            "followed",
            url=self.url,
            tables=self.tables,
            publication=self.publication,
            slot=self.slot,
            **self.options,
        )
        captured = captures._captures["followed"]
        self.log, self.aside = PostgreSQLChangeLog(captured), captured.aside

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None

    def run(self, *, anew: bool = False) -> None:
        """Until all is taken, or there is a problem.

        Args:
            anew: in a new process; otherwise the run goes on, as a continuous one does.
        """
        self.problem = None
        try:
            if anew or self.log is None:
                self._start()
            for _ in range(_ROUNDS):
                try:
                    if self._round():
                        return
                except DefinitionsOutdatedError:
                    self._start()
            raise AssertionError("there is no end")
        except TautochroneError as error:
            self.problem = error

    def full_refresh(self) -> None:
        """`--full-refresh` of the log table and of the captured tables."""
        self.position, self.events = None, []
        self.run(anew=True)

    def _start(self) -> None:
        self.load()
        assert self.log is not None
        if self.position is None:
            self.position = self.log.begin("reader")
        else:
            self.log.acknowledge(self.position)
            self.position = self.log.resume(self.position)

    def _round(self) -> bool:
        """As `LogFlow` does."""
        log, position = self.log, self.position
        assert log is not None
        assert position is not None
        while chunks := position.bulk.next_chunks(1):
            position = self._copy(position, chunks[0])
        batch = log.read(position, 100)
        if batch.copied_again:
            self.position = log.resume(batch.position)
            return False
        self._take(batch.rows)
        bulk = batch.position.bulk.at(batch.position.point)
        after = replace(batch.position, bulk=bulk)
        completed = sorted(position.bulk.waiting - bulk.waiting)
        if completed:
            self._take(log.completed_rows(completed, after))
        self.position = after
        log.acknowledge(after)
        return batch.caught_up and not bulk.pending and not bulk.waiting

    def _copy(self, position: LogPosition, chunk: tuple[str, str]) -> LogPosition:
        assert self.log is not None
        rows, pass_at = self.log.read_chunk(*chunk)
        self._take(rows)
        self.position = replace(position, bulk=position.bulk.copied(*chunk, pass_at))
        return self.position

    def begin(self) -> None:
        """The capture begins; nothing is copied yet."""
        self.load()
        assert self.log is not None
        self.position = self.log.begin("reader")

    def copy_first_chunk(self, before: Callable[[], None]) -> None:
        """The capture begins, something happens, a chunk is copied, and the run ends."""
        self.begin()
        self.close()
        before()
        self.load()
        position = self.position
        assert position is not None
        chunk = position.bulk.next_chunks(1)[0]
        self._copy(position, chunk)
        self.close()

    def _take(self, rows: pa.Table) -> None:
        self.events += rows.to_pylist()

    def rows(self, relation: str, keys: Sequence[str]) -> Rows:
        """What the lake's table shows."""
        events = [event for event in self.events if event["relation"] == relation]
        changes = sorted(
            (event for event in events if event["operation"] in ("insert", "update", "delete", "truncate")),
            key=lambda event: (event["point"], event["sequence"]),
        )
        copies = [event for event in events if event["operation"] == "copy"]
        placed: list[tuple[int, int, dict[str, Any]]] = [(n, 0, event) for n, event in enumerate(changes)]
        for copy in copies:
            unseen = (
                number
                for number, event in enumerate(changes)
                if not _has_seen(copy["snapshot"], event["transaction"])
            )
            # A copied row stands before the first change that it has not seen.
            placed.append((next(unseen, len(changes)), -1, copy))
        rows: Rows = {}
        for _, _, event in sorted(placed, key=lambda each: each[:2]):
            if event["operation"] == "truncate":
                rows.clear()
                continue
            columns = dict(event["columns"])
            key = tuple(columns.get(name) for name in keys)
            before = rows.pop(key, {})
            if event["operation"] != "delete":
                rows[key] = columns | {name: before.get(name) for name in event["unchanged"] or ()}
        return rows

    def difference(self, connection: psycopg.Connection) -> str:
        """Empty: all tables that are captured have what the source has."""
        assert self.log is not None
        for relation, keys in self.log._keys.items():
            shown, there = self.rows(relation, keys), _source_rows(connection, relation, keys)
            if shown != there:
                return f"{relation}: {shown} instead of {there}"
        return ""


def _source_rows(connection: psycopg.Connection, relation: str, keys: Sequence[str]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {relation}".encode())
        names = [column.name for column in cursor.description or ()]
        rows = [
            {name: None if value is None else str(value) for name, value in zip(names, row, strict=True)}
            for row in cursor.fetchall()
        ]
    return {tuple(row[name] for name in keys): row for row in rows}
