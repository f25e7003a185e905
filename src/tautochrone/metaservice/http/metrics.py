"""`/metrics` for Prometheus: gauges from the store, and counters since this service started.

Counters start at 0 with the service, as Prometheus expects. A request to `/metrics` counts the rows that the
refresh history has got since the last one, so each of two services on one store counts all refreshes. The
number of a checkpoint is never a label, because each value would be a new time series.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from threading import Lock

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tautochrone.meta import DatasetState, Store
from tautochrone.metaservice.http.problems import PROBLEMS
from tautochrone.model.jobs import Liveness

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
                    self._rows.labels(dataset, "insert").inc(refresh.rows_inserted)
                    self._rows.labels(dataset, "delete").inc(refresh.rows_deleted)
                rows = self._store.history.refreshes_after(self._last_row, _BATCH)
        return generate_latest(self._registry)


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
            "For how long there may be news that a dataset lacks; it grows while its job is not running",
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
        now_ms = self._store.now_ms()
        for job in self._store.jobs.states():
            for each in Liveness:
                liveness.add_metric([job.name, each.value], int(job.liveness is each))
            if job.heartbeat_ms is not None:
                heartbeat.add_metric([job.name], max(0, now_ms - job.heartbeat_ms) / 1000)
        yield from (liveness, heartbeat)

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
