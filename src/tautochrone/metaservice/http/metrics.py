"""`/metrics` for Prometheus: gauges from the store, and counters since this service started.

Counters start at 0 with the service, as Prometheus expects. A request to `/metrics` counts the rows that the
refresh history has got since the last one, so each of two services on one store counts all refreshes. The
number of a checkpoint is never a label, because each value would be a new time series.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from threading import Lock

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tautochrone.meta import DatasetState, Store
from tautochrone.metaservice.http.problems import PROBLEMS
from tautochrone.model.jobs import Liveness
from tautochrone.model.run_report import RunReport
from tautochrone.model.sink import DeliveryState

__all__ = ["CONTENT_TYPE", "Metrics", "add_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BATCH = 1_000
_REFRESH_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_HTTP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """The metrics of one service over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._last_row = store.history.newest_refresh_id()
        self._registry = CollectorRegistry()
        self._refreshes = Counter(
            "tautochrone_refresh_total",
            "Refreshes that changed something or failed (mode failed)",
            ["dataset", "mode"],
            registry=self._registry,
        )
        self._durations = Histogram(
            "tautochrone_refresh_duration_seconds",
            "Wall time of refreshes that changed something",
            ["dataset"],
            buckets=_REFRESH_BUCKETS,
            registry=self._registry,
        )
        self._cpu = Counter(
            "tautochrone_refresh_cpu_seconds_total",
            "CPU time of the Spark tasks of refreshes that changed something, on all executors",
            ["dataset"],
            registry=self._registry,
        )
        self._rows = Counter(
            "tautochrone_rows_changed_total",
            "Rows that refreshes changed",
            ["dataset", "change_type"],
            registry=self._registry,
        )
        self.requests = Counter(
            "tautochrone_http_requests_total",
            "Requests answered",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self.request_seconds = Histogram(
            "tautochrone_http_request_duration_seconds",
            "Time until an answer began",
            ["route"],
            buckets=_HTTP_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_StoreGauges(store))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        with self._lock:
            rows = self._store.history.refreshes_after(self._last_row, _BATCH)
            while rows:
                for row, record in rows:
                    self._last_row, dataset, refresh = row, str(record.dataset), record.refresh
                    if record.error is not None or refresh is None:
                        self._refreshes.labels(dataset, "failed").inc()
                        continue
                    self._refreshes.labels(dataset, refresh.mode.value).inc()
                    self._durations.labels(dataset).observe(refresh.duration_ms / 1000)
                    self._cpu.labels(dataset).inc((refresh.cpu_ms or 0) / 1000)
                    self._rows.labels(dataset, "insert").inc(refresh.rows_inserted)
                    self._rows.labels(dataset, "delete").inc(refresh.rows_deleted)
                rows = self._store.history.refreshes_after(self._last_row, _BATCH)
        return generate_latest(self._registry)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tautochrone_{name}", text, labels=labels)


class _StoreGauges:
    """Gauges that are read from the store at each request."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("tautochrone_build_info", "Always 1", labels=["version"])
        build.add_metric([version("tautochrone")], 1)
        yield build
        lag = GaugeMetricFamily(
            "tautochrone_dataset_lag_seconds",
            "For how long there may be news that a dataset lacks; it grows while its job does not run, or "
            "does not read its sources",
            labels=["dataset", "job"],
        )
        state = GaugeMetricFamily(
            "tautochrone_dataset_state",
            "1 for the state that a dataset is in",
            labels=["dataset", "job", "state"],
        )
        failing = GaugeMetricFamily(
            "tautochrone_dataset_failing",
            "1 while a dataset's newest refresh failed",
            labels=["dataset", "job"],
        )
        violations = GaugeMetricFamily(
            "tautochrone_expectation_violations",
            "Rows that violate an expectation of a dataset",
            labels=["dataset", "job", "expectation", "action"],
        )
        for status in self._store.datasets.statuses():
            labels = [str(status.dataset), status.job]
            if status.lag_ms is not None:
                lag.add_metric(labels, status.lag_ms / 1000)
            for each in DatasetState:
                state.add_metric([*labels, each.value], int(status.state is each))
            failing.add_metric(labels, 0 if status.error is None else 1)
            for count in status.expectations:
                violations.add_metric([*labels, count.name, str(count.action)], count.violations)
        yield from (lag, state, failing, violations)
        yield from self._jobs()
        yield from self._checkpoints()
        yield from self._sinks()
        yield from self._alarms()
        pins = GaugeMetricFamily("tautochrone_pins", "Leases of readers that are alive")
        pins.add_metric([], len(self._store.pins.live()))
        yield pins
        attention = GaugeMetricFamily(
            "tautochrone_transactions_needing_attention",
            "Transactions of programs whose decision could not be carried out, 1,000 at most",
        )
        attention.add_metric([], len(self._store.transactions.find(attention=True, limit=1_000)))
        yield attention

    def _jobs(self) -> Iterator[Metric]:
        liveness = GaugeMetricFamily(
            "tautochrone_job_liveness",
            "1 for what can be said of a job's process; `not running`: it ended without saying so",
            labels=["job", "liveness"],
        )
        heartbeat = GaugeMetricFamily(
            "tautochrone_job_heartbeat_age_seconds", "Time since a job's last sign of life", labels=["job"]
        )
        now_ms, jobs = self._store.now_ms(), self._store.jobs.states()
        for job in jobs:
            for each in Liveness:
                liveness.add_metric([job.name, each.value], int(job.liveness is each))
            if job.heartbeat_ms is not None:
                heartbeat.add_metric([job.name], max(0, now_ms - job.heartbeat_ms) / 1000)
        yield from (liveness, heartbeat)
        yield from self._reports([(job.name, job.report) for job in jobs if job.report is not None])

    def _reports(self, reports: Sequence[tuple[str, RunReport]]) -> Iterator[Metric]:
        """What runs say of themselves: as they said it last, be it long ago."""
        flow = _gauge("flow_failing", "1 for a flow that fails", "flow", "dataset", "job")
        lag = _gauge("capture_lag_seconds", "By so much a capture is behind its database", "source", "job")
        log = _gauge(
            "capture_retained_log_bytes", "Log that a database keeps for a reader", "source", "reader", "job"
        )
        lost = _gauge(
            "capture_log_lost",
            "1 when the database removed what a reader needs",
            "source",
            "reader",
            "job",
        )
        expires = _gauge(
            "capture_log_expires_timestamp_seconds",
            "From when on the database may remove log that a reader needs",
            "source",
            "reader",
            "job",
        )
        at = _gauge("capture_measured_timestamp_seconds", "When a capture was last asked", "source", "job")
        bad = _gauge("quarantined_rows", "Bad records that were set aside", "dataset", "job")
        free = _gauge("storage_free_bytes", "Free space where the storage of a job is", "job")
        size = _gauge("storage_size_bytes", "The size of the disk where the storage of a job is", "job")
        for job, report in reports:
            for name, failure in report.flows.items():
                flow.add_metric([name, failure.dataset, job], 1)
            for capture in report.captures.values():
                at.add_metric([capture.source, job], capture.at_ms / 1000)
                if capture.lag_ms is not None:
                    lag.add_metric([capture.source, job], capture.lag_ms / 1000)
                for kept in capture.kept:
                    retained = kept.kept_bytes if kept.kept_bytes is not None else kept.distance_bytes
                    if retained is not None:
                        log.add_metric([capture.source, kept.name, job], retained)
                    lost.add_metric([capture.source, kept.name, job], int(kept.is_lost))
                    if kept.expires_ms is not None:
                        expires.add_metric([capture.source, kept.name, job], kept.expires_ms / 1000)
            for dataset, quarantine in report.quarantines.items():
                bad.add_metric([dataset, job], quarantine.records)
            if report.disk is not None:
                free.add_metric([job], report.disk.free_bytes)
                size.add_metric([job], report.disk.total_bytes)
        yield from (flow, lag, log, lost, expires, at, bad, free, size)

    def _sinks(self) -> Iterator[Metric]:
        state = _gauge("sink_state", "1 for the state that a sink is in", "sink", "job", "state")
        lag = _gauge("sink_lag_seconds", "For how long a sink lacks a published checkpoint", "sink", "job")
        failures = _gauge("sink_failures", "Failed tries since a sink took something", "sink", "job")
        shown = _gauge("sink_checkpoint", "The checkpoint that a sink shows", "sink", "job")
        now_ms = self._store.now_ms()
        for sink in self._store.deliveries.sinks():
            if sink.state is DeliveryState.RETIRED:
                continue
            labels = [sink.name, sink.job]
            for each in DeliveryState:
                state.add_metric([*labels, each.value], int(sink.state is each))
            behind_ms = 0 if sink.behind_since_ms is None else max(0, now_ms - sink.behind_since_ms)
            lag.add_metric(labels, behind_ms / 1000)
            failures.add_metric(labels, sink.failures)
            if sink.delivered is not None:
                shown.add_metric(labels, sink.delivered.checkpoint)
        yield from (state, lag, failures, shown)

    def _alarms(self) -> Iterator[Metric]:
        names = ("rule", "subject", "job")
        alarms = _gauge("alarm", "1 for an open alarm", *names, "level", "acknowledged")
        since = _gauge("alarm_since_timestamp_seconds", "Since when an alarm is open", *names)
        unsent = _gauge("alarm_messages_failing", "Messages that a target did not take yet", "target")
        failing: dict[str, int] = {}
        for alarm in self._store.alarms.current():
            labels = [alarm.rule.value, alarm.subject, alarm.job]
            acknowledged = str(alarm.acknowledged_by is not None).lower()
            alarms.add_metric([*labels, alarm.level.value, acknowledged], 1)
            since.add_metric(labels, alarm.since_ms / 1000)
            for target, sent in alarm.notified.items():
                failing[target] = failing.get(target, 0) + int(sent.error is not None)
        for target, messages in failing.items():
            unsent.add_metric([target], messages)
        yield from (alarms, since, unsent)

    def _checkpoints(self) -> Iterator[Metric]:
        published = GaugeMetricFamily(
            "tautochrone_checkpoint_published", "The number of a job's newest checkpoint", labels=["job"]
        )
        age = GaugeMetricFamily(
            "tautochrone_checkpoint_age_seconds",
            "Time since the cut of a job's newest published checkpoint",
            labels=["job"],
        )
        for job in self._store.jobs.registered():
            newest = self._store.checkpoints.latest_published(job.name)
            if newest is not None:
                published.add_metric([job.name], newest.number)
                age.add_metric([job.name], max(0.0, time.time() - newest.cut_at_ms / 1000))
        yield from (published, age)


def add_metrics(app: FastAPI, store: Store) -> Metrics:
    """Add `/metrics` to `app`. The result counts the requests that the application answers."""
    metrics = Metrics(store)

    @app.get(
        "/metrics",
        tags=["service"],
        response_class=Response,
        responses={**PROBLEMS, 200: {"content": {"text/plain": {}}}},
    )
    def scrape() -> Response:
        """All metrics in Prometheus' text format."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return metrics
