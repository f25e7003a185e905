"""The flows that read from outside, kept running.

A flow that fails in a continuous run is started again, after a longer time for each failure without progress.
That is done for every error: the cause may be temporary even if it does not look so, and a new start skips
no rows. A one-shot run tries once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from pyspark.sql import SparkSession

from tautochrone.errors import (
    DefinitionsOutdatedError,
    FencedError,
    SourceLoginRefusedError,
    TautochroneError,
)
from tautochrone.ingest.running_flow import RunningFlow
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["Ingestion"]

_NEEDS_NEW_DEFINITIONS = (DefinitionsOutdatedError, SourceLoginRefusedError)
"""Definitions that are loaded anew have the tables as they are, and what the files of passwords hold."""
_BACKOFF = Backoff(first_s=1.0, longest_s=60.0)
_LOOK_S = 0.2


@dataclass(slots=True)
class _Flow:
    """A flow, its session, and how often it failed since it last made progress.

    `problem` stays after a restart until the flow has made progress.
    """

    query: RunningFlow
    open_session: Callable[[], SparkSession]
    session: SparkSession | None = None
    running: bool = False
    problem: TautochroneError | None = None
    failures: int = 0
    restart_at: float | None = None

    @property
    def wait_s(self) -> float:
        return _BACKOFF.wait_s(self.failures)


class Ingestion:
    """Starts flows, watches them, and starts again those that failed."""

    def __init__(
        self,
        emit: events.Emit,
        clock: Callable[[], float] = time.monotonic,
        on_progress: Callable[[str], None] = lambda _flow: None,
    ) -> None:
        """
        Args:
            on_progress: called with the name of each flow that read its source since it was started.
        """
        self._emit = emit
        self._clock = clock
        self._on_progress = on_progress
        self._flows: list[_Flow] = []
        self._trigger: dict[str, object] = {}
        self._outdated: TautochroneError | None = None
        self._deferred: list[events.FlowFailed] = []

    def report_deferred(self) -> None:
        """Report the failures of a continuous run that new definitions might have ended, and did not."""
        deferred, self._deferred = self._deferred, []
        for failure in deferred:
            self._emit(failure)

    def take_outdated(self) -> TautochroneError | None:
        """The last failure that loading definitions anew may end. Each is returned once."""
        outdated, self._outdated = self._outdated, None
        return outdated

    @property
    def problems(self) -> dict[str, str]:
        """What is broken now: flow → error."""
        return {flow.query.name: str(flow.problem) for flow in self._flows if flow.problem}

    @property
    def outdated_flows(self) -> frozenset[str]:
        """Those of `problems` that end once definitions can be loaded anew."""
        return frozenset(
            flow.query.name for flow in self._flows if isinstance(flow.problem, _NEEDS_NEW_DEFINITIONS)
        )

    @property
    def flows_before_first_batch(self) -> tuple[str, ...]:
        """The names of the flows that neither read their source since they were started nor failed."""
        flows = (flow for flow in self._flows if flow.problem is None)
        return tuple(flow.query.name for flow in flows if not flow.query.has_completed_once)

    def wait(self, stopping: Event) -> None:
        """Until no flow is at work, or `stopping` is set."""
        for flow in self._flows:
            while not stopping.is_set() and not flow.query.ends_within(_LOOK_S):
                pass

    def start(
        self, flows: list[tuple[RunningFlow, Callable[[], SparkSession]]], store_ms: int, **trigger: object
    ) -> None:
        """Start all, with the trigger of `DataStreamWriter.trigger`; those that fail become `problems`.

        Args:
            flows: each with what makes the session that it is evaluated in.
            store_ms: as of `observe`.
            trigger: `availableNow=True`, or `processingTime=…` for flows that are started again.

        Raises:
            FencedError: a newer owner exists.
            SparkDiedError: Spark is gone; no flow is to blame.
        """
        self._trigger = trigger
        self._flows = [_Flow(query, session) for query, session in flows]
        for flow in self._flows:
            flow.query.store_time_is(store_ms)
        for flow in self._flows:
            self._start(flow)

    def watch(self) -> None:
        """Report flows that failed or recovered, and start again those whose waiting time is over.

        Raises:
            FencedError: a newer owner exists.
        """
        for flow in self._flows:
            if flow.running:
                self._inspect(flow)
            elif flow.restart_at is not None and self._clock() >= flow.restart_at:
                reason = Reason.of(ReasonCode.RESTART_WAIT_OVER, wait_s=flow.wait_s)
                self._emit(
                    events.FlowRestarted(
                        flow=flow.query.name,
                        dataset=str(flow.query.table),
                        attempt=flow.failures,
                        reason=reason,
                    )
                )
                self._start(flow)

    def observe(self, store_ms: int) -> None:
        """Let all flows observe their sources; call it just before a cut.

        Args:
            store_ms: the time by the store's clock. Later observations are of this time or of a later one.
        """
        for flow in self._flows:
            flow.query.observe()
            flow.query.store_time_is(store_ms)

    def committed_up_to_ms(self) -> dict[TableName, int]:
        """For each table that flows write: all that their sources held at this time, by the store's clock,
        is in its reported version, as far as `observe` knows. Tables of which that is not known of every flow
        are left out."""
        times: dict[TableName, list[int | None]] = {}
        for flow in self._flows:
            times.setdefault(flow.query.table, []).append(flow.query.committed_up_to_ms)
        reported = {table: [ms for ms in flows if ms is not None] for table, flows in times.items()}
        return {table: min(flows) for table, flows in reported.items() if len(flows) == len(times[table])}

    def stop(self) -> None:
        """End all after their running batches; nothing is started again.

        Raises:
            FencedError: a newer owner exists; all are ended all the same.
        """
        for flow in self._flows:
            flow.query.stop()
            flow.restart_at = None
        for flow in self._flows:
            if flow.running:
                flow.running = False
                self._inspect(flow, last=True)

    def _start(self, flow: _Flow) -> None:
        flow.running = True
        try:
            flow.session = flow.session or flow.open_session()
            flow.query.start(flow.session, **self._trigger)
        except TautochroneError as error:
            self._on_failure(flow, error)

    def _inspect(self, flow: _Flow, *, last: bool = False) -> None:
        flow.query.inspect(at_once=last)
        error = flow.query.failure()
        if error is not None:
            self._on_failure(flow, error)
        elif flow.query.has_completed_once:
            self._on_progress(flow.query.name)
            if flow.problem is not None:
                self._emit(
                    events.FlowRecovered(
                        flow=flow.query.name, dataset=str(flow.query.table), attempts=flow.failures
                    )
                )
                flow.problem, flow.failures = None, 0

    def _on_failure(self, flow: _Flow, error: TautochroneError) -> None:
        if isinstance(error, FencedError):
            raise error
        require_live_jvm()
        if isinstance(error, _NEEDS_NEW_DEFINITIONS):
            self._outdated = error
        # After progress this failure is the first of a new series.
        flow.failures = 1 if flow.query.has_completed_once else flow.failures + 1
        again = "processingTime" in self._trigger
        flow.running, flow.problem = False, error
        flow.restart_at = self._clock() + flow.wait_s if again else None
        failure = events.FlowFailed(
            flow=flow.query.name,
            dataset=str(flow.query.table),
            error=str(error),
            hint=error.hint,
            again_in_s=flow.wait_s if again else None,
        )
        if again and isinstance(error, _NEEDS_NEW_DEFINITIONS):
            # If new definitions load, the run says that alone.
            self._deferred.append(failure)
        else:
            self._emit(failure)
