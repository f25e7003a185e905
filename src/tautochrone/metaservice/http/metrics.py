"""`/metrics` for Prometheus: what the store says now, and what was seen since this service started.

Counters begin at 0 with the service, as Prometheus expects. They are moved when somebody asks, by the rows of
the history that came since, so two services on one store count the same refreshes each. A checkpoint's number
is never a label.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from threading import Lock

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tautochrone.meta import Store
from tautochrone.metaservice.http.problems import PROBLEMS

__all__ = ["CONTENT_TYPE", "Metrics", "add_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_AT_ONCE = 1_000
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_HTTP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """The metrics of one service over one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._last = store.history.newest_refresh_id()
        self._registry = CollectorRegistry()
        self._refreshes = Counter(
            "tautochrone_refresh_total",
            "Refreshes that changed something or failed (mode failed)",
            ["dataset", "mode"],
            registry=self._registry,
        )
        self._took = Histogram(
            "tautochrone_refresh_duration_seconds",
            "Wall time of refreshes that changed something",
            ["dataset"],
            buckets=_SECONDS,
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
            buckets=_HTTP_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_State(store))

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        with self._lock:
            rows = self._store.history.refreshes_after(self._last, _AT_ONCE)
            while rows:
                for number, record in rows:
                    self._last, dataset, refresh = number, str(record.dataset), record.refresh
                    if record.error is not None or refresh is None:
                        self._refreshes.labels(dataset, "failed").inc()
                        continue
                    self._refreshes.labels(dataset, refresh.mode.value).inc()
                    self._took.labels(dataset).observe(refresh.duration_ms / 1000)
                    self._rows.labels(dataset, "insert").inc(refresh.rows_inserted)
                    self._rows.labels(dataset, "delete").inc(refresh.rows_deleted)
                rows = self._store.history.refreshes_after(self._last, _AT_ONCE)
        return generate_latest(self._registry)


class _State:
    """Gauges that are read from the store at each look."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("tautochrone_build_info", "Always 1", labels=["version"])
        build.add_metric([version("tautochrone")], 1)
        yield build
        lag = GaugeMetricFamily(
            "tautochrone_dataset_lag_seconds",
            "How much older a dataset's newest readable cut is than its job's newest cut",
            labels=["dataset", "job"],
        )
        failing = GaugeMetricFamily(
            "tautochrone_dataset_failing",
            "1 while a dataset's newest refresh failed",
            labels=["dataset", "job"],
        )
        for status in self._store.datasets.statuses():
            labels = [str(status.dataset), status.job]
            if status.lag_ms is not None:
                lag.add_metric(labels, status.lag_ms / 1000)
            failing.add_metric(labels, 0 if status.error is None else 1)
        yield from (lag, failing)
        yield from self._checkpoints()
        pins = GaugeMetricFamily("tautochrone_pins", "Leases of readers that are alive")
        pins.add_metric([], len(self._store.pins.live()))
        yield pins

    def _checkpoints(self) -> Iterator[Metric]:
        committed = GaugeMetricFamily(
            "tautochrone_checkpoint_published", "The number of a job's newest checkpoint", labels=["job"]
        )
        age = GaugeMetricFamily(
            "tautochrone_checkpoint_age_seconds",
            "Time since the cut of a job's newest published checkpoint",
            labels=["job"],
        )
        for job in self._store.jobs.entries():
            newest = self._store.checkpoints.latest_published(job.name)
            if newest is not None:
                committed.add_metric([job.name], newest.number)
                age.add_metric([job.name], max(0.0, time.time() - newest.cut_at_ms / 1000))
        yield from (committed, age)


def add_metrics(app: FastAPI, store: Store) -> Metrics:
    """Put `/metrics` on `app`; the answer counts what the application answers."""
    metrics = Metrics(store)

    @app.get(
        "/metrics",
        tags=["service"],
        response_class=Response,
        responses={**PROBLEMS, 200: {"content": {"text/plain": {}}}},
    )
    def scrape() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return metrics
