"""Reading few rows of a table in the driver: a read by a plan and a job takes three times as long.

`DriverScan.java` reads them by the readers that Spark's own tasks use, so values, deleted rows, defaults and
partition columns are the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.model import limits
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.reason import Reason
from tautochrone.model.reason_codes import ReasonCode
from tautochrone.spark.jvm.driver_calls import select_expressions, singleton, split_texts

__all__ = [
    "DRIVER_SCAN",
    "JobReasons",
    "SmallTables",
    "collect",
    "held_in_driver",
    "job_reasons",
    "note_job",
    "note_many_rows",
    "stored_positions",
]

DRIVER_SCAN = Path(__file__).with_name("DriverScan.java")
_noted: ContextVar[list[Reason] | None] = ContextVar("noted", default=None)


class JobReasons:
    """Why steps of one piece of work were left to Spark jobs."""

    def __init__(self, noted: Sequence[Reason]) -> None:
        self._noted = noted

    def take(self) -> list[Reason]:
        """Each reason once; those of the JVM are gone then."""
        return list(dict.fromkeys([*self._noted, *_reasons_of_jvm()]))


@contextmanager
def job_reasons() -> Iterator[JobReasons]:
    """The reasons of what this thread does in the block."""
    _reasons_of_jvm()  # Those of earlier work.
    noted: list[Reason] = []
    token = _noted.set(noted)
    try:
        yield JobReasons(noted)
    finally:
        _noted.reset(token)


def note_job(code: ReasonCode, **params: Any) -> None:
    """Something is left to a job, for this reason."""
    noted = _noted.get()
    if noted is not None:
        noted.append(Reason.of(code, **params))


def note_many_rows(table: str, rows: int | None) -> None:
    """A table is left to a job, since the driver does not read so many rows. None: nobody knows how many."""
    if rows is None:
        note_job(ReasonCode.ROWS_NOT_COUNTED, table=table)
    else:
        note_job(ReasonCode.READ_MANY_ROWS, table=table, limit=limits.MAX_SINGLE_TASK_ROWS)


def collect(frame: DataFrame) -> JavaObject:
    """All rows of a DataFrame, as a Java array of `InternalRow`."""
    query = frame._jdf.queryExecution()  # noqa: SLF001
    max_rows, max_bytes = limits.MAX_SINGLE_TASK_ROWS, limits.MAX_DRIVER_BYTES
    return _driver_scan().collect(_java_session(frame), query, max_rows, max_bytes)


def held_in_driver(frame: DataFrame, max_bytes: int = limits.MAX_DRIVER_BYTES) -> DataFrame | None:
    """A DataFrame of the same rows, read now and held by the driver.

    None: it does more than to filter one table's rows and to pick columns, reads more than
    `MAX_SINGLE_TASK_ROWS`, or is larger than `max_bytes` in memory; then Spark has to read it, and
    `job_reasons` has the reason.
    """
    max_rows = limits.MAX_SINGLE_TASK_ROWS
    rows = _driver_scan().held(_java_session(frame), frame._jdf, max_rows, max_bytes)  # noqa: SLF001
    return None if rows is None else DataFrame(rows, frame.sparkSession)


class SmallTables:
    """Rows of small tables at a version, held by the driver for all views that read them, until others are
    used more. Larger ones are read by the driver each time. Safe to use from the threads of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[TableName, Version], tuple[frozenset[str], DataFrame]] = OrderedDict()

    def rows(
        self, table: TableName, version: Version, columns: Collection[str], read_all: Callable[[], DataFrame]
    ) -> DataFrame:
        """All rows of a version with at least these columns that it has; as `read_all` gives them if they
        are not read here."""
        key = table, version
        with self._lock:
            entry = self._held.get(key)
            if entry is not None and entry[0].issuperset(columns):
                self._held.move_to_end(key)
                return _with_new_ids(entry[1])
        frame = read_all()
        read_columns = frozenset(columns) if entry is None else entry[0].union(columns)
        # An older version may lack columns; a reader that needs them takes them as NULL.
        available = [name for name in frame.columns if name in read_columns]
        if not available:
            return frame
        rows = held_in_driver(select_expressions(frame, map(quoted, available)))
        if rows is None:
            return frame
        if _driver_scan().heldBytes(rows._jdf) <= limits.MAX_SMALL_TABLE_BYTES:  # noqa: SLF001
            self._hold(key, read_columns, rows)
        return rows

    def extend(self, table: TableName, old: Version, new: Version, appended: DataFrame) -> None:
        """Hold the rows of a version that has those of an older one and these, if the older ones are held.

        Args:
            table: the table.
            old: the version before.
            new: the version that a commit made of it which only appended rows.
            appended: these rows, held by the driver.
        """
        with self._lock:
            entry = self._held.get((table, old))
        if entry is None:
            return
        columns, before = entry
        both = _driver_scan().union(
            _java_session(before),
            before._jdf,  # noqa: SLF001
            appended._jdf,  # noqa: SLF001
            limits.MAX_SMALL_TABLE_ROWS,
            limits.MAX_SMALL_TABLE_BYTES,
        )
        if both is not None:
            self._hold((table, new), columns, DataFrame(both, before.sparkSession))

    def _hold(self, key: tuple[TableName, Version], columns: frozenset[str], rows: DataFrame) -> None:
        with self._lock:
            self._held[key] = columns, rows
            while len(self._held) > limits.MAX_SMALL_TABLES:
                self._held.popitem(last=False)


def _with_new_ids(rows: DataFrame) -> DataFrame:
    """The same rows with other ids of columns: above a leaf that occurs twice Spark changes ids itself."""
    renewed = _driver_scan().withNewIds(_java_session(rows), rows._jdf)  # noqa: SLF001
    return DataFrame(renewed, rows.sparkSession)


def stored_positions(rows: DataFrame, stored: DataFrame) -> Mapping[str, Sequence[int]] | None:
    """By file the positions of one stored copy of each of some rows.

    None: a row is not stored with the same bytes, or `stored` is not read here (see `held_in_driver`).

    Args:
        rows: few rows that the driver holds.
        stored: the same columns, then the file's name and the position in it.
    """
    java_session, max_rows = _java_session(stored), limits.MAX_SINGLE_TASK_ROWS
    answer = _driver_scan().positions(java_session, rows._jdf, stored._jdf, max_rows)  # noqa: SLF001
    if answer is None:
        return None
    texts = split_texts(str(answer))
    return {
        file: [int(position) for position in positions.split(",")]
        for file, positions in zip(texts[::2], texts[1::2], strict=True)
    }


def _driver_scan() -> Any:
    return singleton(DRIVER_SCAN)


_NUMBERS = frozenset({"limit", "rows", "splits", "tasks"})


def _reasons_of_jvm() -> list[Reason]:
    """Why `DriverScan` left something of this thread to jobs since the last call."""
    reasons = []
    for entry in filter(None, str(_driver_scan().takeReasons()).split("\1")):
        code, *params = entry.split("\0")
        pairs = zip(params[::2], params[1::2], strict=True)
        numbers = {name: int(value) if name in _NUMBERS else value for name, value in pairs}
        reasons.append(Reason(ReasonCode(code), numbers))
    return reasons


def _java_session(frame: DataFrame) -> JavaObject:
    return frame.sparkSession._jsparkSession  # noqa: SLF001
