"""The pages that only read. They work without JavaScript; with it they refresh themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, FastAPI, Query, Request
from starlette.responses import Response

from tautochrone.errors import MetaError, QueryError, TautochroneError
from tautochrone.meta import DatasetState, Store
from tautochrone.meta.queries.refresh_records import KEPT_PER_DATASET
from tautochrone.metaservice.checkpoint_changes import RowsBetween, changes_at
from tautochrone.metaservice.flow_sources import flow_sources
from tautochrone.metaservice.last_words import last_words
from tautochrone.metaservice.pages.charts import (
    checkpoint_chart,
    delay_chart,
    duration_chart,
    rows_chart,
)
from tautochrone.metaservice.pages.forms import Forms, add_forms
from tautochrone.metaservice.pages.graph import BOX_HEIGHT, BOX_WIDTH, STATE_SHAPES, draw, neighbourhood
from tautochrone.metaservice.pages.rendering import ASSETS, PageRoute, asset, render
from tautochrone.metaservice.pages.safety import protect
from tautochrone.metaservice.pages.status import (
    Progress,
    datasets_by_job,
    datasets_of_jobs,
    progress_of,
    read_topology,
    stuck_checkpoints,
)
from tautochrone.model.alarms import AlarmRule
from tautochrone.model.checkpoint import Checkpoint, CheckpointState
from tautochrone.model.jobs import JobStatus, Liveness, quarantines_of
from tautochrone.model.names import TableName
from tautochrone.model.near_names import matching_tables, near_names_hint
from tautochrone.model.reason import Reason
from tautochrone.model.what_if import what_if
from tautochrone.rest_catalog.metadata import MetadataSource

__all__ = ["add_pages"]

_TIMELINE, _HISTORY, _RECENT, _ROWS, _DAY_ROWS = 60, 100, 15, 20, 30
_DAY_MS, _PATIENCE_S = 24 * 3_600_000, 0.3
_TOTALS_MS, _TOTALS_SHOWN_MS = 60_000, 5 * 60_000
"""The totals of a day are counted again when they are older than the first, and not shown when they are older
than the second."""
_T = TypeVar("_T")
_FOR_EVER = "public, max-age=31536000, immutable"

Number = Annotated[int, Query(ge=0, lt=2**63)]
Zoom = Annotated[int, Query(ge=10, le=200)]


def add_pages(
    app: FastAPI,
    store: Store,
    forms: Forms,
    since_last_run: Callable[[JobStatus], Reason | None] = lambda _job: None,
    rows_between: RowsBetween = lambda _table, _before, _version: None,
    lake: MetadataSource | None = None,
) -> None:
    """Add the pages to `app`.

    Args:
        app: its middleware authenticates callers.
        store: what the pages show.
        forms: what runs queries and revisions.
        since_last_run: what came since the last run of a job that ended, as far as that is known.
        rows_between: how many rows of a table changed between two versions.
        lake: the tables that a built plan is checked against before it is decided.
    """
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    _add_static(router)
    _add_overview(router, store, since_last_run)
    _add_datasets(router, store, forms)
    _add_checkpoints(router, store, forms, rows_between)
    add_forms(router, store, forms, lake)
    app.include_router(router)


def _add_static(router: APIRouter) -> None:
    @router.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in ASSETS:
            raise QueryError("PAGE_NOT_FOUND", f"There is no file {name}")
        return protect(Response(asset(name)[0], media_type=ASSETS[name]), cache=_FOR_EVER)


def _add_overview(
    router: APIRouter, store: Store, since_last_run: Callable[[JobStatus], Reason | None]
) -> None:
    totals = _Counted(
        lambda: store.history.totals(store.now_ms() - _DAY_MS), _TOTALS_MS, _TOTALS_SHOWN_MS, store.now_ms
    )

    @router.get("/")
    def overview(request: Request) -> Response:
        topology, lines = read_topology(store), store.history.timeline(_TIMELINE)
        alarms = store.alarms.current()
        stuck = stuck_checkpoints(alarms)
        datasets = datasets_by_job(topology.lines.values())
        day, day_problem = totals(), None
        if isinstance(day, TautochroneError):
            day, day_problem = None, day
        open_lines = [line for line in lines if line.state == "open"]
        open_checkpoints = [progress_of(store, line, stuck, datasets, topology.jobs) for line in open_lines]
        shown = {AlarmRule.JOB_NOT_RUNNING, AlarmRule.CHECKPOINT_STUCK, AlarmRule.DATASET_FAILING}
        counts = {state: len(topology.of(state)) for state in DatasetState}
        return render(
            request,
            "overview.html",
            topology=topology,
            counts=counts,
            stopped=[(job, last_words(job)) for job in topology.stopped_jobs],
            ended=[
                (job, since_last_run(job))
                for job in topology.jobs
                if job.liveness is Liveness.ENDED and job.datasets
            ],
            # What is not a problem of a job, a checkpoint or a dataset, which are shown as such.
            alarms=[alarm for alarm in alarms if alarm.rule not in shown],
            open_alarms=len(alarms),
            failing=topology.of(DatasetState.FAILING),
            held=topology.of(DatasetState.WAITING),
            late=topology.of(DatasetState.NEVER, DatasetState.BEHIND),
            newest=store.checkpoints.latest_published(),
            stuck=[progress for progress in open_checkpoints if progress.stuck],
            under_way=[progress for progress in open_checkpoints if not progress.stuck],
            chart=checkpoint_chart(lines),
            recent=store.history.recent_refreshes(_RECENT),
            day_rows=_DAY_ROWS,
            kept_refreshes=KEPT_PER_DATASET,
            day=None
            if day is None
            else sorted(day.value, key=lambda entry: (-entry.duration_ms, str(entry.dataset))),
            day_at_ms=None if day is None else day.at_ms,
            day_problem=day_problem,
        )

    @router.get("/graph")
    def graph(request: Request, focus: str | None = None, zoom: Zoom = 100) -> Response:
        topology = read_topology(store, with_newest=True)
        centre = None if not focus else _table_by_name(focus, {*topology.lines, *topology.outside})
        only = None if centre is None else neighbourhood(topology, centre)
        return render(
            request,
            "graph.html",
            topology=topology,
            drawing=draw(topology, only),
            focus=centre,
            zoom=zoom,
            box=(BOX_WIDTH, BOX_HEIGHT),
            marks=STATE_SHAPES,
        )

    @router.get("/jobs")
    def jobs(request: Request) -> Response:
        lines = {line.number: line for line in store.history.timeline(_TIMELINE)}
        jobs = store.jobs.states()
        stuck = stuck_checkpoints(store.alarms.current())
        datasets = datasets_of_jobs(store) if jobs else {}
        progress = {
            number: progress_of(store, lines[number], stuck, datasets, jobs)
            for number in {job.target for job in jobs if job.target is not None and job.target in lines}
        }
        targets = {job.name: progress[job.target] for job in jobs if job.target in progress}
        sinks = store.deliveries.sinks()
        running = {job.name for job in jobs if job.liveness is Liveness.RUNNING}
        deliveries = [(sink, sink.work(is_running=sink.job in running)) for sink in sinks]
        words = {job.name: last_words(job) for job in jobs}
        return render(request, "jobs.html", jobs=jobs, targets=targets, sinks=deliveries, words=words)

    @router.get("/sources")
    def sources(request: Request) -> Response:
        topology = read_topology(store)
        reports = {report.table: report for report in store.roots.report_times()}
        read = [entry for job in topology.jobs for entry in flow_sources(job)]
        captures = [
            (job.name, capture)
            for job in topology.jobs
            if job.report is not None
            for capture in job.report.captures.values()
        ]
        return render(
            request,
            "sources.html",
            topology=topology,
            tables={str(name): name for name in topology.lines},
            reports=reports,
            captures=captures,
            read=read,
        )


def _add_datasets(router: APIRouter, store: Store, forms: Forms) -> None:
    @router.get("/datasets")
    def datasets(request: Request, q: str = "") -> Response:
        topology = read_topology(store)
        text = q.strip().lower()
        lines = [line for line in topology.worst_first if text in str(line.name).lower()]
        return render(request, "datasets.html", lines=lines, total=len(topology.lines), q=q)

    @router.get("/dataset")
    def dataset(request: Request, name: str, all: bool = False) -> Response:  # noqa: A002
        topology = read_topology(store)
        table = _table_by_name(name, {*topology.lines, *topology.outside})
        shown: dict[str, Any] = {
            "topology": topology,
            "can_preview": forms.runner is not None,
            "unavailable_reason": forms.unavailable_reason,
            "rows": _HISTORY if all else _ROWS,
        }
        return render(request, "dataset.html", **_dataset(table, topology.jobs), **shown)

    @router.get("/dataset/summary")
    def summary(request: Request, name: str) -> Response:
        topology = read_topology(store)
        table = _table_by_name(name, {*topology.lines, *topology.outside})
        values: dict[str, Any] = {
            "table": table,
            "line": topology.lines.get(table),
            "details": store.datasets.details(table),
        }
        return render(request, "_summary.html", **values, topology=topology)

    def _dataset(table: TableName, jobs: Sequence[JobStatus]) -> dict[str, Any]:
        records = store.history.refreshes(table, _HISTORY)
        cuts = store.checkpoints.cut_times(record.checkpoint for record in records)
        charts = (delay_chart(records, cuts), rows_chart(records), duration_chart(records))
        published = [line for line in store.history.timeline(_TIMELINE) if line.state == "published"]
        return {
            "table": table,
            "details": store.datasets.details(table),
            "lineage": store.datasets.lineage(table),
            "records": records,
            "charts": [chart for chart in charts if chart is not None],
            "what_if": what_if([each.refresh for each in records if each.refresh and not each.error]),
            "published": published,
            "quarantine": quarantines_of(jobs).get(str(table)),
        }


def _add_checkpoints(router: APIRouter, store: Store, forms: Forms, rows_between: RowsBetween) -> None:
    @router.get("/checkpoints")
    def checkpoints(request: Request) -> Response:
        lines = store.history.timeline(_TIMELINE)
        stuck = stuck_checkpoints(store.alarms.current())
        open_lines = [line for line in lines if line.state == "open"]
        datasets = datasets_of_jobs(store) if open_lines else {}
        jobs = store.jobs.states() if open_lines else ()
        progress = {line.number: progress_of(store, line, stuck, datasets, jobs) for line in open_lines}
        return render(
            request,
            "checkpoints.html",
            lines=lines,
            progress=progress,
            chart=checkpoint_chart(lines),
            pinned=store.pins.pinned_checkpoints(),
        )

    @router.get("/checkpoint")
    def checkpoint(request: Request, number: Number) -> Response:
        changes = changes_at(store, number, rows_between)
        return render(
            request,
            "checkpoint.html",
            checkpoint=changes.checkpoint,
            changes=changes,
            progress=_progress(store, changes.checkpoint),
            readable=changes.checkpoint.state in (CheckpointState.PUBLISHED, CheckpointState.PARTIAL),
            can_query=forms.runner is not None,
            failures=dict(sorted(store.checkpoints.failures_at(number).items())),
            records=store.history.refreshes_at(number),
            parts=store.checkpoints.progress(number),
        )


@dataclass(frozen=True, slots=True)
class _Count(Generic[_T]):
    """A counted value; `at_ms` is when its counting began."""

    value: _T
    at_ms: int


class _Counted(Generic[_T]):
    """A value that takes long to count, and may be some seconds old.

    It is counted in a thread of its own: a page waits for it for a moment only, and shows it when it is
    asked for again.
    """

    def __init__(
        self, count: Callable[[], _T], again_after_ms: int, shown_for_ms: int, now_ms: Callable[[], int]
    ) -> None:
        self._count, self._now_ms = count, now_ms
        self._again_after_ms, self._shown_for_ms = again_after_ms, shown_for_ms
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="tautochrone-count")
        self._lock = Lock()
        self._known: _Count[_T] | None = None
        self._counting: tuple[int, Future[_T]] | None = None

    def __call__(self) -> _Count[_T] | TautochroneError | None:
        """The newest known value; None before the first one is counted, and when it is too old to be shown
        and the next one is still being counted. An error when counting ended with one."""
        now_ms = self._now_ms()
        with self._lock:
            is_old = self._known is None or now_ms - self._known.at_ms > self._again_after_ms
            if is_old and self._counting is None:
                self._counting = now_ms, self._threads.submit(self._count)
            counting = self._counting
        if counting is not None:
            wait([counting[1]], _PATIENCE_S)
            if counting[1].done():
                problem = self._counted(counting)
                if problem is not None:
                    return problem
        known = self._known
        return None if known is None or now_ms - known.at_ms > self._shown_for_ms else known

    def _counted(self, counting: tuple[int, Future[_T]]) -> TautochroneError | None:
        at_ms, future = counting
        with self._lock:
            # Several pages wait for one count.
            if self._counting is counting:
                self._counting = None
            try:
                count = _Count(future.result(), at_ms)
            except TautochroneError as error:
                return error
            if self._known is None or self._known.at_ms < at_ms:
                self._known = count
            return None


def _progress(store: Store, checkpoint: Checkpoint) -> Progress | None:
    """How far an open checkpoint is; None: it is not open, or many newer ones are there."""
    if checkpoint.state is not CheckpointState.OPEN:
        return None
    lines = {line.number: line for line in store.history.timeline(_TIMELINE)}
    if checkpoint.number not in lines:
        return None
    stuck = stuck_checkpoints(store.alarms.current())
    line = lines[checkpoint.number]
    return progress_of(store, line, stuck, datasets_of_jobs(store), store.jobs.states())


def _table_by_name(text: str, names: set[TableName]) -> TableName:
    matches = matching_tables(text, names)
    if len(matches) == 1:
        return matches[0]
    raise MetaError(
        "DATASET_NOT_FOUND",
        f"No job of this store writes or reads {text}",
        hint=near_names_hint(text, names, "names are written catalog.database.table:"),
    )
