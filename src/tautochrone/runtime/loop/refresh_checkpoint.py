"""Refreshing all derived datasets of a job to one open checkpoint, each after its inputs.

Independent datasets are refreshed in parallel. Those that read tables of other jobs wait until these have
recorded their versions for the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from tautochrone.errors import DefinitionsOutdatedError, FencedError, TautochroneError
from tautochrone.meta import Store
from tautochrone.meta.protocols.builds import Builds
from tautochrone.model import events, limits
from tautochrone.model.catalog import job_read_point
from tautochrone.model.checkpoint import Checkpoint, CheckpointState, RefreshMode
from tautochrone.model.jobs import Part
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.project_build import ProjectBuild
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.run_report import WorkPhase
from tautochrone.project.evaluations import require_same_query
from tautochrone.project.table_properties import policy_of
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.invariants import Checked, check_invariants
from tautochrone.runtime.merges.auto_cdc import AutoCdcRefresher, require_never_merged
from tautochrone.runtime.merges.event_merges import auto_cdc_of
from tautochrone.runtime.merges.keyed_apply import KeyedRefresher, WaitingForBulkLoad
from tautochrone.runtime.refresh.history import RefreshHistory
from tautochrone.runtime.refresh.sessions import CheckpointViews, SessionPool
from tautochrone.runtime.refresh.task import RefreshContext, Refreshed, RefreshTask, unchanged_refresh
from tautochrone.runtime.streams.stream_refresher import StreamRefresher
from tautochrone.runtime.streams.streams import Streams
from tautochrone.runtime.views.built_rows import BuiltRows, is_taken_over
from tautochrone.runtime.views.changes import Changes
from tautochrone.runtime.views.plans import Plans
from tautochrone.runtime.views.refresh_view import ViewRefresher
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.cpu_usage import metered_jobs
from tautochrone.spark.session.gateway import call_sites
from tautochrone.spark.session.jvm_liveness import require_live_jvm
from tautochrone.traces import is_defect, trace_of

__all__ = [
    "CheckpointRefresher",
    "RefreshProgress",
    "UpstreamTables",
    "last_complete_versions",
    "poll_upstream_jobs",
    "refresh_context",
    "refresh_in_order",
    "refresh_task",
    "upstream_of",
]

Refresher: TypeAlias = Callable[[RefreshTask], Refreshed | WaitingForBulkLoad]
"""Refreshes one dataset."""


def refresh_in_order(
    inputs: Mapping[TableName, Collection[TableName]],
    failures: dict[TableName, Reason],
    refresh: Callable[[TableName], Reason | None],
    skip: Callable[[TableName, TableName], Reason],
    parallelism: int,
) -> None:
    """Refresh the keys of `inputs`; returns when all of them were refreshed or skipped.

    Args:
        inputs: for each dataset to refresh, what it reads, whether that is to be refreshed too or not.
        failures: tables without a version at the checkpoint, with the reason. Failed and skipped datasets
            are added.
        refresh: refreshes a dataset, in a thread of its own; answers the failure, or None.
        skip: called for a dataset and the failed input that it needs; answers its failure.
        parallelism: how many refreshes run at a time.
    """
    todo = list(inputs)
    running: dict[Future[Reason | None], TableName] = {}
    with ThreadPoolExecutor(parallelism, thread_name_prefix="refresh") as threads:
        while todo or running:
            unfinished = {*todo, *running.values()}
            for table in [table for table in todo if unfinished.isdisjoint(inputs[table])]:
                todo.remove(table)
                failed = sorted(failures.keys() & set(inputs[table]))
                if failed:
                    failures[table] = skip(table, failed[0])
                else:
                    running[threads.submit(refresh, table)] = table
            if not running:
                continue
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                table, failure = running.pop(future), future.result()
                if failure is not None:
                    failures[table] = failure


def upstream_of(table: TableName, inputs: Mapping[TableName, Collection[TableName]]) -> frozenset[TableName]:
    """All tables that a dataset depends on, directly or through the keys of `inputs`."""
    upstream = set[TableName]()
    todo = list(inputs.get(table, ()))
    while todo:
        name = todo.pop()
        if name not in upstream:
            upstream.add(name)
            todo += inputs.get(name, ())
    return frozenset(upstream)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTables:
    """Tables of other jobs that have no version at a checkpoint.

    Attributes:
        waiting: not recorded yet, with the job that will (its name is empty when it never ran).
        failed: there will be no version, with the reason.
        lost: a job that will never do this checkpoint.
    """

    waiting: Mapping[TableName, str] = field(default_factory=dict)
    failed: Mapping[TableName, Reason] = field(default_factory=dict)
    lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshProgress:
    """How far a job is with a checkpoint.

    Attributes:
        failed: own datasets that get no version at the checkpoint, with the reason.
        waiting: tables of other jobs that something here waits for, with the job that writes them.
        lost: a job that will never do the checkpoint, so that it cannot be finished here either.
        waiting_for_bulk: own datasets that get no version because the bulk of a database is not
            complete. That is no error.
    """

    failed: Mapping[TableName, Reason]
    waiting: Mapping[TableName, str]
    lost: str | None
    waiting_for_bulk: frozenset[TableName] = frozenset()


def poll_upstream_jobs(store: Store, owners: Mapping[TableName, str], number: int) -> UpstreamTables:
    """What other jobs have recorded for checkpoint `number` by now.

    Args:
        owners: the tables to ask for, each with the job that writes it.
    """
    if not owners:
        return UpstreamTables()
    # The parts are read first: a version that is recorded between the two reads only counts as waiting.
    parts = {progress.job: progress.part for progress in store.checkpoints.progress(number)}
    versions, failures = store.checkpoints.versions_at(number), store.checkpoints.failures_at(number)
    waiting: dict[TableName, str] = {}
    failed: dict[TableName, Reason] = {}
    lost: str | None = None
    for table, owner in sorted(owners.items()):
        part = parts.get(owner)
        if part is Part.SKIPPED or (part is None and owner):
            # It went on to a newer one, or came when this one was already open.
            waiting[table], lost = owner, owner
        elif table in versions:
            continue
        elif table in failures:
            failed[table] = failures[table]
        elif part is Part.DONE:
            failed[table] = Reason.of(ReasonCode.UPSTREAM_HAS_NO_VERSION, job=owner)
        else:
            waiting[table] = owner
    return UpstreamTables(waiting=waiting, failed=failed, lost=lost)


class CheckpointRefresher:
    """Refreshes a job's derived datasets to its open checkpoint.

    One instance serves all checkpoints of a run.

    Args:
        full: datasets that a user asked to compute anew; each is, once.
        unfollowed: tables of files that do not agree with the files, with the reason.
    """

    def __init__(
        self,
        job: Job,
        streams: Streams,
        full: frozenset[TableName] = frozenset(),
        unfollowed: Mapping[TableName, Reason] = MappingProxyType({}),
    ) -> None:
        self._job = job
        self._unfollowed = unfollowed
        self._topology = job.topology
        self._full = set(full)
        self._compared_definitions: set[TableName] = set()
        self._number: int | None = None
        self._finished: set[TableName] = set()
        self._failures: dict[TableName, Reason] = {}
        self._waiting_for_bulk: set[TableName] = set()
        self._outdated: DefinitionsOutdatedError | None = None
        self.outdated_tables: set[TableName] = set()
        """Those whose last refresh failed because definitions are to be loaded anew."""
        self._few_rows_explained = False
        self._sessions = SessionPool(
            job.base,
            job.read_points,
            job_read_point("refresh", job.name),
            job.settings.catalog.name,
            job.definitions.scope.namespace[0],
            job.tables,
        )
        self._pipeline_views = CheckpointViews(job.definitions, job.graph)
        self._history = RefreshHistory(job.store.history.refreshes)
        context = refresh_context(job, self._pipeline_views, self._history)
        plans = Plans(self._pipeline_views, job.graph)
        self._changes = Changes(job.base, job.input_table, self._is_shared, plans.columns)
        self._built = BuiltRows(
            context, partial(job.store.builds.of_job, job.name), job.topology.fingerprints
        )
        self._taken_over: dict[str, CheckpointNumber] = {}
        """By build the first checkpoint with its rows, while readers wait for other jobs to publish it."""
        self._views = ViewRefresher(
            context, self._sessions, plans, self._changes, unfollowed, self._readers, self._built
        )
        self._streams = StreamRefresher(context, self._sessions, streams)
        self._keyed = KeyedRefresher(context, self._sessions)
        self._auto_cdc = AutoCdcRefresher(context, self._sessions)
        self._refreshers: dict[TableName, Refresher] = {}

    def refresh_to(
        self,
        checkpoint: Checkpoint,
        last_versions: Mapping[TableName, Mapping[TableName, Version]],
        unreadable: Mapping[TableName, Reason],
    ) -> RefreshProgress:
        """Refresh every derived dataset that can be; call again while some wait for other jobs.

        Args:
            checkpoint: the open checkpoint.
            last_versions: for each dataset the versions of all tables at its last complete checkpoint.
            unreadable: roots that could not be read, with the reason.
        """
        job = self._job
        if self._number != checkpoint.number:
            self._number, self._finished = checkpoint.number, set()
            self._failures, self._waiting_for_bulk = dict(unreadable), set()
        self._pipeline_views.start(checkpoint.number)
        upstream = poll_upstream_jobs(job.store, job.tables_of_other_jobs(), checkpoint.number)
        self._failures |= upstream.failed
        self._sessions.show({**checkpoint.roots, **job.store.checkpoints.versions_at(checkpoint.number)})
        inputs = {table: self._topology.inputs(table) for table in self._topology.derived_tables}
        todo = [table for table in inputs if table not in self._finished]
        job.monitor.works(WorkPhase.REFRESHING, int(checkpoint.number), len(inputs), self._done)
        waiting = {table for table in todo if upstream_of(table, inputs) & upstream.waiting.keys()}
        refresh_in_order(
            {table: inputs[table] for table in todo if table not in waiting},
            self._failures,
            lambda table: self._refresh(checkpoint, table, last_versions.get(table, {})),
            lambda table, failed_input: self._skip(checkpoint, table, failed_input),
            job.settings.parallelism,
        )
        self._changes.forget()
        self._keyed.forget()
        # Invariants over tables of other jobs wait for them, after all that this job can do.
        checked = frozenset[TableName]().union(*(invariant.tables for invariant in job.graph.invariants))
        return RefreshProgress(
            failed={
                table: failure
                for table, failure in self._failures.items()
                if table in inputs and table not in self._waiting_for_bulk
            },
            waiting_for_bulk=frozenset(self._waiting_for_bulk),
            waiting={
                table: owner for table, owner in upstream.waiting.items() if waiting or table in checked
            },
            lost=upstream.lost,
        )

    def take_outdated(self) -> DefinitionsOutdatedError | None:
        """The last failure that loading definitions anew ends. It is returned once."""
        outdated, self._outdated = self._outdated, None
        return outdated

    def complete_builds(self, number: CheckpointNumber, state: CheckpointState) -> None:
        """Record that the builds are applied which a published checkpoint shows.

        One of which a dataset failed is left to the next checkpoint, and one that only other jobs keep from
        readers until they have published it.

        Args:
            number: the checkpoint of which the job has done its part.
            state: its state now.
        """
        left = []
        for build in self._built.decided:
            if self._is_shown(build, number, state):
                self._job.journal.record(Builds.complete, build.id)
            else:
                left.append(build)
        self._built.keep(left)

    def _is_shown(self, build: ProjectBuild, number: CheckpointNumber, state: CheckpointState) -> bool:
        if build.versions.keys() & self._failures.keys() or not is_taken_over(self._job.lake, build):
            return False
        if state is CheckpointState.PUBLISHED:
            return True
        first = self._taken_over.setdefault(build.id, number)
        state_of_first = self._job.store.checkpoints.get(first).state
        if state_of_first not in (CheckpointState.OPEN, CheckpointState.PUBLISHED):
            self._taken_over[build.id] = number
        return state_of_first is CheckpointState.PUBLISHED

    @property
    def full_refreshes_left(self) -> frozenset[TableName]:
        """The datasets that are to be computed anew and were not yet."""
        return frozenset(self._full)

    def check_invariants(self) -> Checked:
        """Whether the job's invariants hold at the open checkpoint, to which everything was refreshed."""
        job = self._job
        if not job.graph.invariants:
            return Checked()
        # All invariants have the same settings, and only read.
        session = self._sessions.session("invariants", job.spec.configuration)
        versions = self._sessions.versions
        readable = {table: version for table, version in versions.items() if table not in self._failures}
        return check_invariants(
            job.graph.invariants, self._pipeline_views, job.store, job.name, session, readable
        )

    def needs_refresh(self, table: TableName, last: Version) -> bool:
        """Whether a dataset must be refreshed although none of its inputs changed: a user asked for it, it
        reads something without versions, another definition made its rows, or it has columns that its
        version `last` lacks."""
        if table in self._full:
            return True
        if not self._topology.is_view(table):
            return self._is_widened(table, last)
        unversioned = self._views.unversioned_reason(table, self._topology.flows(table)[0]) is not None
        return unversioned or self.reads_other_files(table) or self._is_redefined(table)

    def reads_other_files(self, table: TableName) -> bool:
        """See `ViewRefresher.reads_other_files`."""
        if not self._topology.is_view(table):
            return False
        return self._views.reads_other_files(table, self._topology.flows(table)[0])

    def _is_widened(self, table: TableName, last: Version) -> bool:
        """Whether a streaming table got columns since a version. Only the takeover adds some."""
        if table in self._compared_definitions:
            return False
        self._compared_definitions.add(table)
        stored = self._job.tables[table]
        change = stored.change_between(last, stored.current_version())
        return change.reason.code is ReasonCode.COLUMNS_ADDED

    def _is_redefined(self, view: TableName) -> bool:
        """Whether another definition made the rows, or they were read from the files themselves.

        Asked once per run: a definition does not change while it runs.
        """
        if view in self._compared_definitions:
            return False
        self._compared_definitions.add(view)
        metadata = self._job.tables[view].fork().commit_metadata
        if metadata is None:
            return False
        (flow,) = self._topology.flows(view)
        follows_files = flow.follows_files([TableName.parse(name) for name in metadata.inputs])
        return not follows_files or metadata.definition != self._topology.fingerprint(view)

    def _is_shared(self, table: TableName) -> bool:
        """Whether several views of the job read a table."""
        return self._readers(table) > 1

    def _readers(self, table: TableName) -> int:
        """How many views of the job read a table."""
        topology = self._topology
        readers = [name for name in topology.derived_tables if table in topology.inputs(name)]
        return sum(map(topology.is_view, readers))

    # -- one dataset ------------------------------------------------------------------------------

    def _refresh(
        self, checkpoint: Checkpoint, table: TableName, last_versions: Mapping[TableName, Version]
    ) -> Reason | None:
        """Refresh a dataset and record the outcome; answers the failure, or None."""
        self._job.monitor.refreshes(str(table))
        try:
            return self._refresh_and_record(checkpoint, table, last_versions)
        finally:
            self._job.monitor.refreshed(str(table), self._done)

    def _refresh_and_record(
        self, checkpoint: Checkpoint, table: TableName, last_versions: Mapping[TableName, Version]
    ) -> Reason | None:
        started = time.monotonic()
        self.outdated_tables.discard(table)
        try:
            with metered_jobs(self._job.base) as used, call_sites(noted=False):
                result = self._refresher(table)(self._task(checkpoint, table, last_versions))
            if isinstance(result, WaitingForBulkLoad):
                return self._wait(checkpoint, table, result.reason)
        except FencedError:
            raise
        except Exception as error:
            if isinstance(error, DefinitionsOutdatedError):
                self._outdated = error
                self.outdated_tables.add(table)
            hint = error.hint if isinstance(error, TautochroneError) else None
            return self._fail(checkpoint, table, _failure_of(error, f"refresh {table}"), hint)
        if not result.is_recovered:
            self._full.discard(table)
        duration_ms = round((time.monotonic() - started) * 1000)
        spent_ms = 0 if result.refresh.mode is RefreshMode.NO_DATA else used.tasks_ms()
        refresh = replace(result.refresh, duration_ms=duration_ms, cpu_ms=spent_ms)
        self._record(checkpoint, table, replace(result, refresh=refresh))
        self._finished.add(table)
        return None

    def _task(
        self, checkpoint: Checkpoint, table: TableName, last_versions: Mapping[TableName, Version]
    ) -> RefreshTask:
        versions = self._sessions.versions
        # An older listing must not stand in for files that could not be taken in.
        known = {name: version for name, version in versions.items() if name not in self._unfollowed}
        is_full = table in self._full
        return refresh_task(
            self._job, table, known, last_versions, checkpoint.number, checkpoint.cut_at_ms, is_full=is_full
        )

    def _refresher(self, table: TableName) -> Refresher:
        """What refreshes the dataset, chosen once: a definition does not change while it runs.

        Raises:
            DefinitionError: `KEYED_APPLY_INCOMPLETE`.
        """
        if table not in self._refreshers:
            self._refreshers[table] = self._choose_refresher(table)
        return self._refreshers[table]

    def _choose_refresher(self, table: TableName) -> Refresher:
        if self._topology.is_view(table):
            return self._refresh_view
        auto_cdc = auto_cdc_of(self._topology.derived_flows(table))
        if auto_cdc is not None:
            return partial(self._auto_cdc.refresh, auto_cdc=auto_cdc)
        if table in self._job.set_aside:
            # Without a commit: what its input got stays to be merged.
            return partial(
                _refresh_never_merged, partial(unchanged_refresh, reason=self._job.set_aside[table])
            )
        apply = self._keyed.keyed_apply(table)
        refresh = self._streams.refresh if apply is None else partial(self._keyed.refresh, apply=apply)
        return partial(_refresh_never_merged, refresh)

    def _refresh_view(self, task: RefreshTask) -> Refreshed:
        if not task.has_rows_of_inputs:
            require_same_query(self._job.graph, task.flow)
        return self._views.refresh(task)

    def _record(self, checkpoint: Checkpoint, table: TableName, result: Refreshed) -> None:
        job, refresh = self._job, result.refresh
        job.journal.record_version(checkpoint.number, table, result.version, refresh)
        self._history.add(table, refresh)
        self._sessions.add(table, result.version)
        for event in result.set_aside:
            job.emit(event)
        if refresh.reason.code is ReasonCode.FEW_INPUT_ROWS and not self._few_rows_explained:
            self._few_rows_explained = True
            job.emit(events.FewInputRows(rows=limits.TINY_INPUT_ROWS))
        job.emit(
            events.Refresh(
                dataset=str(table),
                checkpoint=checkpoint.number,
                mode=refresh.mode,
                nodes=refresh.nodes,
                reason=refresh.reason,
                rows_inserted=refresh.rows_inserted,
                rows_deleted=refresh.rows_deleted,
                duration_ms=refresh.duration_ms,
                cpu_ms=refresh.cpu_ms,
                estimate_ms=refresh.estimate_ms,
                delta_rows=refresh.delta_rows,
                expectations=refresh.expectations,
            )
        )

    @property
    def _done(self) -> int:
        """How many datasets have their outcome for the checkpoint; none that wait for a bulk load."""
        return max(0, len(self._finished) - len(self._waiting_for_bulk))

    def _skip(self, checkpoint: Checkpoint, table: TableName, failed_input: TableName) -> Reason:
        try:
            return self._record_skip(checkpoint, table, failed_input)
        finally:
            self._job.monitor.refreshed(str(table), self._done)

    def _record_skip(self, checkpoint: Checkpoint, table: TableName, failed_input: TableName) -> Reason:
        cause = str(self._failures[failed_input])
        reason = Reason.of(ReasonCode.WAITS_FOR_INPUT, input=str(failed_input), cause=cause)
        if failed_input in self._waiting_for_bulk:
            return self._wait(checkpoint, table, reason)
        return self._fail(checkpoint, table, reason)

    def _wait(self, checkpoint: Checkpoint, table: TableName, reason: Reason) -> Reason:
        """The dataset has no version for the checkpoint, which is no error: a source is not complete yet."""
        self._job.journal.record_failure(checkpoint.number, table, reason, RefreshMode.WAITING)
        self._job.emit(events.RefreshWaiting(dataset=str(table), checkpoint=checkpoint.number, reason=reason))
        self._waiting_for_bulk.add(table)
        self._finished.add(table)
        return reason

    def _fail(
        self, checkpoint: Checkpoint, table: TableName, failure: Reason, hint: str | None = None
    ) -> Reason:
        # Not the dataset's failure when Spark is gone: then everything fails, each with its own error.
        require_live_jvm()
        self._job.journal.record_failure(checkpoint.number, table, failure)
        self._job.emit(
            events.RefreshFailed(
                dataset=str(table),
                checkpoint=checkpoint.number,
                error=failure,
                hint=hint,
            )
        )
        self._finished.add(table)
        return failure


def _failure_of(error: Exception, where: str) -> Reason:
    """An error in `where` as the history keeps it.

    Its text has no stack: that of a defect is written to a file, which the text names.

    Raises:
        SparkDiedError: Spark is gone, which is the cause of the error.
    """
    require_live_jvm()
    if isinstance(error, TautochroneError):
        error_class, text = error.error_class, str(error)
    else:
        problem = problem_of(error)
        error_class, text = problem.error_class, f"[{problem.error_class}] {problem.message}"
    if is_defect(error):
        text = f"{text} ({trace_of(error, where)})"
    return Reason.of(ReasonCode.REFRESH_FAILED, error_class=error_class, text=text)


def refresh_task(
    job: Job,
    table: TableName,
    versions: Mapping[TableName, Version],
    last_versions: Mapping[TableName, Version],
    checkpoint: CheckpointNumber,
    cut_at_ms: int,
    *,
    is_full: bool,
) -> RefreshTask:
    """What is to be done for a derived dataset at a checkpoint.

    Args:
        table: the dataset; its table is one of `job.tables`.
        versions: of tables and clocks at the checkpoint. An input without one is left out.
        last_versions: see `RefreshTask`.
        is_full: see `RefreshTask.is_full_requested`.
    """
    topology, dataset = job.topology, job.definitions.datasets[table]
    inputs = {name: versions[name] for name in topology.inputs(table) if name in versions}
    return RefreshTask(
        table=job.tables[table],
        fork=job.tables[table].fork(),
        flows=tuple(topology.flows(table) if topology.is_view(table) else topology.derived_flows(table)),
        checkpoint=checkpoint,
        cut_at_ms=cut_at_ms,
        inputs=inputs,
        last_versions=last_versions,
        policy=policy_of(dataset, job.settings.refresh_policy),
        is_full_requested=is_full,
        metadata=job.commit_metadata(
            checkpoint=checkpoint,
            definition=topology.fingerprint(table),
            inputs={str(name): version for name, version in inputs.items()},
        ),
        location=str(dataset.location),
    )


def last_complete_versions(
    job: Job, last: Mapping[TableName, Version]
) -> dict[TableName, Mapping[TableName, Version]]:
    """For each dataset of the job the versions of all tables at its last complete checkpoint.

    Args:
        last: the versions at the last checkpoint of which the job did its part. Nearly all datasets are
            complete there.
    """
    if last.keys() >= job.tables.keys():
        return dict.fromkeys(job.tables, last)
    store = job.store
    complete = {
        status.dataset: status.checkpoint
        for status in store.datasets.statuses()
        if status.checkpoint is not None and status.dataset in job.tables
    }
    versions = {number: store.checkpoints.versions_at(number) for number in set(complete.values())}
    return {dataset: versions[number] for dataset, number in complete.items()}


def refresh_context(job: Job, views: CheckpointViews, history: RefreshHistory) -> RefreshContext:
    """What all refreshes of a job share."""
    return RefreshContext(
        base=job.base,
        lake=job.lake,
        definitions=job.definitions,
        views=views,
        schemas=job.graph.schemas,
        load_table=job.lake_table,
        load_input=job.input_table,
        table_definition=job.topology.table_definition,
        history=history.newest,
        streams_from=job.topology.streams_from,
    )


def _refresh_never_merged(refresh: Refresher, task: RefreshTask) -> Refreshed | WaitingForBulkLoad:
    require_never_merged(task)
    return refresh(task)
