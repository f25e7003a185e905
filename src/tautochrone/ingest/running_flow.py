"""What a job does with a flow that reads from outside, whoever reads: Spark (`flow`) or this
program (`polled_flow`)."""

from __future__ import annotations

from typing import Any, Protocol

from pyspark.sql import SparkSession

from tautochrone.errors import TautochroneError
from tautochrone.model.names import TableName

__all__ = ["RunningFlow"]


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
