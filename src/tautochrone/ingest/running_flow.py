"""What a job does with a flow that reads from outside, and the flows whose rounds this program runs itself.

Spark runs the queries of `ingest.flow`. A `PolledFlow` asks its source for more until it has all:

start:   1. the table says where the flow stands   2. a thread begins
thread:  3. rounds, until the source has no more   4. a pause and rounds again, or the end
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import TautochroneError
from tautochrone.ingest.committer import TableCommitter
from tautochrone.ingest.source_observations import SourceObservations
from tautochrone.ingest.stream_errors import batch_error
from tautochrone.model.events import Emit
from tautochrone.model.lake import Staged
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName

__all__ = ["PolledFlow", "RunningFlow"]


class RunningFlow(Protocol):
    """A flow bound to its table. It may be started again after it ended."""

    @property
    def name(self) -> str: ...

    @property
    def table(self) -> TableName:
        """The table that it writes."""

    def start(self, session: SparkSession, **trigger: Any) -> None:
        """Begin to read where the table says, in threads of its own.

        Args:
            session: where the flow's query is evaluated.
            trigger: as of `DataStreamWriter.trigger`: `availableNow=True` or `processingTime="5 seconds"`.

        Raises:
            TautochroneError: it cannot be started.
        """

    def ends_within(self, timeout_s: float) -> bool:
        """Wait until it is no longer at work, for `timeout_s` at most."""

    @property
    def has_completed_once(self) -> bool:
        """Whether a batch, or a trigger without new rows, succeeded since the last start."""

    @property
    def committed_up_to_ms(self) -> int | None:
        """All that the source held at this time, by the store's clock, is in the table. None: not known."""

    def observe(self) -> None:
        """Ask whether all that the source held is in the table, as `committed_up_to_ms` tells afterwards."""

    def store_time_is(self, store_ms: int) -> None:
        """It is `store_ms` now, or was a moment ago, by the store's clock."""

    def inspect(self, *, at_once: bool = False) -> None:
        """Report what the source leaves out; from time to time, or `at_once`."""

    def failure(self) -> TautochroneError | None:
        """Why it is dead, if it died by itself."""

    def stop(self) -> None:
        """End it after the batch that runs."""


_INTERVAL_S = 1.0
_STOP_TIMEOUT_S = 60.0


@dataclass(slots=True, kw_only=True)
class PolledFlow(ABC):
    """What such flows share. It is a `RunningFlow`.

    Args:
        name: of the flow.
        schema: the table's columns.
        require_fence: raises FencedError when a newer owner of the job exists.
    """

    name: str
    schema: StructType
    committer: TableCommitter
    emit: Emit
    require_fence: Callable[[], object] = lambda: None
    rows: int = 0
    observations: SourceObservations = field(default_factory=SourceObservations)
    _session: SparkSession = field(init=False, repr=False)
    _rounds: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: TautochroneError | None = None

    @abstractmethod
    def _read_position(self) -> None:
        """From the table. That in memory may be older: an earlier start may have failed after its commit.

        Raises:
            IngestError: the table's position is of another source.
        """

    def _before_first_round(self) -> None:  # noqa: B027
        """Before the first round, in the thread."""

    @abstractmethod
    def _round(self) -> bool:
        """Take in what the source has next; whether that was all."""

    def _close(self) -> None:  # noqa: B027
        """Let go of the source. It may be called more than once."""

    def start(self, session: SparkSession, **trigger: Any) -> None:
        """See `RunningFlow`.

        Raises:
            IngestError: the table's position is of another source.
        """
        self.committer.settle_quarantine_table()
        self._session = session
        self._error, self._rounds = None, 0
        self._read_position()
        self._stopping = threading.Event()
        until_end = "processingTime" not in trigger
        interval_s = _seconds(trigger.get("processingTime"))
        self._thread = threading.Thread(
            target=self._run,
            args=(self._stopping, interval_s, until_end),
            name=f"flow-{self.name}",
            daemon=True,
        )
        self._thread.start()

    @property
    def table(self) -> TableName:
        return self.committer.table.name

    @property
    def active(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def ends_within(self, timeout_s: float) -> bool:
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.active

    @property
    def has_completed_once(self) -> bool:
        return self._rounds > 0

    @property
    def committed_up_to_ms(self) -> int | None:
        return self.observations.committed_up_to_ms

    def observe(self) -> None:  # noqa: B027
        """Each round does."""

    def store_time_is(self, store_ms: int) -> None:
        self.observations.store_time_is(store_ms)

    def inspect(self, *, at_once: bool = False) -> None:  # noqa: B027
        """Such a source leaves nothing out."""

    def failure(self) -> TautochroneError | None:
        return self._error

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        self._close()

    def _run(self, stopping: threading.Event, interval_s: float, until_end: bool) -> None:
        try:
            self._before_first_round()
            while not stopping.is_set():
                began_ms = now_ms()
                took_all = self._round()
                self._rounds += 1
                if took_all:
                    self.observations.took_all_since(began_ms)
                    if until_end:
                        return
                    stopping.wait(interval_s)
        except Exception as error:
            self._error = batch_error(error, self.name)
        finally:
            self._close()

    def _staged_nothing(self) -> Staged:
        return Staged(table=self.table, files=(), rows=0, at_ms=now_ms())


def _seconds(processing_time: object) -> float:
    """From Spark's text of a trigger's interval, as far as runs write it.

    >>> _seconds("500 milliseconds"), _seconds("5 seconds"), _seconds(None)
    (0.5, 5.0, 1.0)
    """
    number, _, unit = str(processing_time or "").partition(" ")
    if not number.replace(".", "", 1).isdigit():
        return _INTERVAL_S
    return float(number) / (1000 if unit.startswith("milli") else 1)
