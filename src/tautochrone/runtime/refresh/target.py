"""Bringing all derived datasets to one target checkpoint, independent ones in parallel."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from pyspark.sql import SparkSession

from tautochrone.errors import FencedError, RefreshError
from tautochrone.model import limits
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.lake import NO_VERSION, ChangeKind, Fork
from tautochrone.model.names import TableName, Version
from tautochrone.model.read_points import NEWEST, Streamed
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode, RefreshPolicy
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.refresh.changes import Changes
from tautochrone.runtime.refresh.check_invariants import Checked, check
from tautochrone.runtime.refresh.choose_mode import (
    Choice,
    choose,
    follows,
    is_committed,
    policy_for,
    sizes_of,
)
from tautochrone.runtime.refresh.plans import Plans
from tautochrone.runtime.refresh.refresh_view import Refreshed, as_text, refresh_view
from tautochrone.runtime.refresh.upstream_jobs import Brought, look_elsewhere
from tautochrone.runtime.streams.streams import Streams
from tautochrone.spark.session.cpu_usage import metered_jobs
from tautochrone.spark.session.factory import reader_session, use_database
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["Target"]

_AT_NO_VERSION = re.compile(r'"snapshot_id"\s*:\s*-1\b')
"""In the offsets of a stream that has met no version of a table yet."""


class Target:
    """The open checkpoint of a job and the versions recorded for it so far.

    One instance serves all checkpoints of a run: sessions are kept, only the versions that they show
    change from target to target.
    """

    def __init__(self, job: Job, streams: Streams, full: frozenset[TableName] = frozenset()) -> None:
        self._job = job
        self._streams = streams
        self._lock = threading.Lock()
        self._shown: dict[TableName, Version] = {}
        self._sessions: dict[TableName, SparkSession] = {}
        self._flowing: dict[TableName, str] = {}
        self._checking: SparkSession | None = None
        self._compared: set[TableName] = set()
        self._full = set(full)
        self.settled: set[TableName] = set()
        self._plans = Plans(job)
        self._changes = Changes(job, self._plans.columns)
        self._read_point = f"refresh-{job.name}"
        self._number: int | None = None
        self._done: set[TableName] = set()
        self._failures: dict[TableName, str] = {}
        self._without_rows: set[TableName] = set()
        job.read_points.show(self._read_point, self._lookup)

    def bring(
        self,
        checkpoint: Checkpoint,
        last: Mapping[TableName, Mapping[TableName, Version]],
        missing: Mapping[TableName, str],
    ) -> Brought:
        """Refresh every derived dataset that can be; call again while some wait for other jobs.

        Args:
            checkpoint: the open target.
            last: for each dataset the versions of all tables at its last complete checkpoint.
            missing: roots that could not be read, with the reason.
        """
        job = self._job
        if self._number != checkpoint.number:
            self._number, self._done, self._failures = checkpoint.number, set(), dict(missing)
        elsewhere = look_elsewhere(job, checkpoint.number)
        with self._lock:
            self._shown = {**checkpoint.roots, **job.store.versions_at(checkpoint.number)}
        failures = self._failures
        failures |= elsewhere.failed
        todo = [table for table in job.derived_tables if table not in self._done]
        held = [table for table in todo if self._above(table) & elsewhere.waiting.keys()]
        todo = [table for table in todo if table not in held]
        running: dict[Future[str | None], TableName] = {}
        with ThreadPoolExecutor(job.settings.parallelism, thread_name_prefix="refresh") as pool:
            while todo or running:
                waiting = {*todo, *running.values()}
                for table in [t for t in todo if not job.inputs(t) & waiting]:
                    todo.remove(table)
                    blocked = sorted(job.inputs(table) & failures.keys())
                    if blocked:
                        failures[table] = self._fail(
                            checkpoint, table, f"waits for {blocked[0]}", failures[blocked[0]]
                        )
                        self._done.add(table)
                        continue
                    running[pool.submit(self._one, checkpoint, table, last.get(table))] = table
                if not running:
                    continue
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    table = running.pop(future)
                    problem = future.result()
                    self._done.add(table)
                    if problem is not None:
                        failures[table] = problem
        self._changes.forget()
        own = set(job.derived_tables)
        # What is checked over tables of other jobs waits for them, after all that this job can do.
        checked = frozenset[TableName]().union(*(one.tables for one in job.graph.invariants))
        return Brought(
            failed={table: text for table, text in failures.items() if table in own},
            waiting={table: job_ for table, job_ in elsewhere.waiting.items() if held or table in checked},
            lost=elsewhere.lost,
        )

    def check(self) -> Checked:
        """Whether the job's invariants hold at the target, of which everything was brought."""
        with self._lock:
            shown = dict(self._shown)
        if not self._job.graph.invariants:
            return Checked()
        return check(self._job, self._reader(), {t: v for t, v in shown.items() if t not in self._failures})

    def _above(self, table: TableName) -> set[TableName]:
        """All tables that a dataset depends on, directly or through tables of this job."""
        own, found = set(self._job.derived_tables), set[TableName]()
        todo = list(self._job.inputs(table))
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self._job.inputs(name) if name in own else ()
        return found

    def wants_comparison(self, table: TableName) -> bool:
        """Whether a view must be compared although no lake table moved."""
        return table in self._full or (self._job.is_view(table) and self._unversioned(table) is not None)

    def _lookup(self, table: TableName) -> Version | str | None:
        with self._lock:
            version = NO_VERSION if table in self._without_rows else self._shown.get(table)
        known = version is not None or table in self._job.tables
        return version if known else NEWEST

    def _one(
        self, checkpoint: Checkpoint, table: TableName, last: Mapping[TableName, Version] | None
    ) -> str | None:
        job = self._job
        started = time.monotonic()
        try:
            with metered_jobs(job.base) as used:
                if job.is_view(table):
                    found = self._view(checkpoint, table, last)
                else:
                    found = self._stream(checkpoint, table, last)
        except FencedError:
            raise
        except Exception as error:
            return self._fail(checkpoint, table, as_text(error, f"refresh {table}"), None)
        duration_ms = round((time.monotonic() - started) * 1000)
        spent_ms = 0 if found.refresh.mode is RefreshMode.NO_DATA else used.tasks_ms()
        refresh = replace(found.refresh, duration_ms=duration_ms, cpu_ms=spent_ms)
        job.journal.version(checkpoint.number, table, found.version, refresh)
        with self._lock:
            self._shown[table] = found.version
        job.emit(
            "refresh",
            dataset=str(table),
            checkpoint=int(checkpoint.number),
            mode=str(refresh.mode),
            nodes=[{"node": n.node, "mode": str(n.mode), "reason": n.reason} for n in refresh.nodes],
            reason=refresh.reason,
            rows_inserted=refresh.rows_inserted,
            rows_deleted=refresh.rows_deleted,
            duration_ms=refresh.duration_ms,
            cpu_ms=refresh.cpu_ms,
            estimate_ms=refresh.estimate_ms,
            delta_rows=refresh.delta_rows,
        )
        return None

    def _fail(self, checkpoint: Checkpoint, table: TableName, text: str, because: str | None) -> str:
        # Not the dataset's failure when Spark is gone: then everything fails, each in its own words.
        require_live_jvm()
        full = text if because is None else f"{text}: {because}"
        self._job.journal.failure(checkpoint.number, table, full)
        self._job.emit("refresh_failed", dataset=str(table), checkpoint=int(checkpoint.number), error=full)
        return full

    def _view(
        self, checkpoint: Checkpoint, table: TableName, last: Mapping[TableName, Version] | None
    ) -> Refreshed:
        job = self._job
        fork = job.tables[table].fork()
        inputs = self._inputs(table)
        if fork.commit_metadata is not None and is_committed(
            job, fork.commit_metadata, table, checkpoint.number, inputs
        ):
            # Before a crash, and not yet recorded.
            mode = RefreshMode(fork.commit_metadata.mode or RefreshMode.NO_DATA)
            return _without_rows(fork.version, mode, "committed by the run before")
        if table in self._full:
            choice = Choice(RefreshMode.FULL, "a full refresh was asked for", policy=policy_for(job, table))
        else:
            choice = self._choice(table, fork, inputs)
        if choice.mode is RefreshMode.NO_DATA:
            return _without_rows(self._same_rows(table, last, fork.version), choice.mode, choice.reason)
        planned = None
        stateless = choice.stateless or choice.mode is RefreshMode.APPEND
        if not stateless and follows(job, choice.policy, inputs):
            planned = self._plans.of(table, self._session)
        found = refresh_view(
            job,
            table,
            checkpoint.number,
            choice,
            fork,
            inputs,
            self._session(table),
            planned,
            self._changes,
        )
        self._compared.add(table)
        self._full.discard(table)
        return found

    def _choice(self, table: TableName, fork: Fork, inputs: Mapping[TableName, Version]) -> Choice:
        job = self._job

        def obstacles() -> Sequence[str]:
            # A plan is only made where it will be used.
            planned = follows(job, policy_for(job, table), inputs)
            return self._plans.obstacles(table, self._session) if planned else ()

        choice = choose(
            job,
            table,
            fork,
            inputs,
            forced=self._unversioned(table),
            obstacles=obstacles,
            steps=lambda: self._plans.steps(table, self._session),
            sizes=sizes_of(job, self._changes.size),
            bounds=sizes_of(job, self._changes.bound),
        )
        weighed = choice.policy is RefreshPolicy.AUTO and choice.estimate_ms is not None
        if weighed and choice.mode is not RefreshMode.DIFF and not follows(job, choice.policy, inputs):
            # What so few rows take is noise: measured or estimated, it must not decide.
            reason = (
                f"its inputs hold at most {limits.TINY_INPUT_ROWS} rows: "
                "comparing is cheaper than following the change"
            )
            return replace(choice, mode=RefreshMode.DIFF, reason=reason)
        if choice.mode is not RefreshMode.INCREMENTAL:
            return choice
        lost = self._plans.lost_state(table, fork)
        # Like a first build: there is nothing to go on from.
        return choice if lost is None else replace(choice, mode=RefreshMode.FULL, reason=lost)

    def _same_rows(
        self, table: TableName, last: Mapping[TableName, Version] | None, main: Version
    ) -> Version:
        """The version that readers know already, when main only carries fences on top of it."""
        known = (last or {}).get(table)
        if known is None or self._job.tables[table].change_between(known, main).kind is not ChangeKind.NONE:
            return main
        return known

    def _stream(
        self, checkpoint: Checkpoint, table: TableName, last: Mapping[TableName, Version] | None
    ) -> Refreshed:
        """Let a derived streaming table consume its inputs up to the target, no more and no less."""
        job = self._job
        lake_table = job.tables[table]
        inputs = self._inputs(table)
        flows = job.derived_flows(table)
        for flow in self._going_on(table, flows):
            for name in sorted(flow.inputs.stream):
                self._require_appends(table, name, (last or {}).get(name), inputs[name])
        commit_metadata = job.commit_metadata(
            checkpoint=checkpoint.number,
            mode=str(RefreshMode.APPEND),
            definition=job.fingerprint(table),
            inputs={str(name): version for name, version in inputs.items()},
        )
        self._streams.set_commit_metadata(table, commit_metadata)
        session = self._session(table)
        rows = 0
        for flow in flows:
            self._flowing[table] = flow.flow.name
            query = self._streams.query(table, flow)
            if query.position is None or _AT_NO_VERSION.search(query.position.offsets):
                for name in sorted(flow.inputs.stream):
                    self._show_emptiness(name, inputs[name])
            before = query.rows
            query.start(session, availableNow=True)
            query.wait()
            rows += query.rows - before
        version = lake_table.current_version()
        known = (last or {}).get(table)
        mode, reason = RefreshMode.APPEND, "first build" if known is None else "its inputs were appended to"
        if table in self._full:
            self._full.discard(table)
            mode, reason = RefreshMode.FULL, "a full refresh was asked for"
        elif known is not None and lake_table.change_between(known, version).kind is ChangeKind.NONE:
            return _without_rows(known, RefreshMode.NO_DATA, "its inputs brought no rows")
        node = NodeRefresh(node="stream", mode=mode, reason=reason)
        return Refreshed(version, Refresh(mode=mode, reason=reason, rows_inserted=rows, nodes=(node,)))

    def _going_on(self, table: TableName, flows: Sequence[ResolvedFlow]) -> list[ResolvedFlow]:
        """Flows that have consumed something: others take their inputs as they are."""
        commit_metadata = self._job.tables[table].fork().commit_metadata
        known = {} if commit_metadata is None or table in self._full else commit_metadata.positions
        return [flow for flow in flows if flow.flow.name in known]

    def _show_emptiness(self, name: TableName, version: Version) -> None:
        """Iceberg's source fails where it should begin at a version without rows. It is shown a table without
        versions instead, at which it waits."""
        table = self._job.lake_table(name)
        kind = table.change_between(NO_VERSION, version).kind
        with self._lock:
            self._without_rows.discard(name)
            if kind is ChangeKind.NONE or table.row_count(version) == 0:
                self._without_rows.add(name)

    def _require_appends(self, table: TableName, name: TableName, old: Version | None, new: Version) -> None:
        if old is None:
            return
        source = self._job.lake_table(name)
        change = source.change_between(old, new)
        if change.kind in (ChangeKind.CHANGED, ChangeKind.UNKNOWN) and not change.appended:
            raise RefreshError(
                "STREAM_INPUT_CHANGED",
                f"The streaming table {table} reads {name} as a stream, and {change.reason}",
                hint=f"a stream only takes appended rows; rebuild it with --full-refresh {table.table}",
                sqlstate="55000",
            )

    def _inputs(self, table: TableName) -> dict[TableName, Version]:
        with self._lock:
            return {name: self._shown[name] for name in self._job.inputs(table) if name in self._shown}

    def _unversioned(self, table: TableName) -> str | None:
        """Why a view must be compared although no lake table tells: once per run."""
        flow = self._job.flows(table)[0]
        if not flow.inputs.unversioned or table in self._compared:
            return None
        return f"it reads {', '.join(flow.inputs.unversioned)}, which has no versions"

    def _session(self, table: TableName) -> SparkSession:
        """One session per dataset: settings and temporary views of one view never meet another's."""
        if table not in self._sessions:
            read_point = self._read_point if self._job.is_view(table) else self._read_point_of_stream(table)
            session = self._new_session(read_point)
            for flow in self._job.flows(table):
                for key, value in flow.flow.conf.items():
                    session.conf.set(key, value)
            self._sessions[table] = session
        return self._sessions[table]

    def _reader(self) -> SparkSession:
        """The session of all invariants: they have the same settings, and only read."""
        if self._checking is None:
            self._checking = self._new_session(self._read_point)
            for key, value in self._job.spec.configuration.items():
                self._checking.conf.set(key, value)
        return self._checking

    def _read_point_of_stream(self, table: TableName) -> str:
        """Streams are shown some versions otherwise than everybody else is, each flow its own."""
        read_point = f"{self._read_point}-stream-{self._job.derived_tables.index(table)}"

        def lookup(name: TableName) -> Version | str | Streamed | None:
            version = self._lookup(name)
            return version if version is None else self._streams.shown(table, self._flowing[table], version)

        self._job.read_points.show(read_point, lookup)
        return read_point

    def _new_session(self, read_point: str) -> SparkSession:
        job = self._job
        catalog = job.settings.catalog.name
        session = reader_session(job.base, catalog, job.read_points.uri, read_point)
        use_database(session, catalog, job.definitions.scope.namespace[0], create=False)
        # A count that Iceberg answers from metadata comes back as nullable, and Spark then
        # refuses its own plan when the target column is NOT NULL.
        session.conf.set("spark.sql.iceberg.aggregate-push-down.enabled", "false")
        return session


def _without_rows(version: Version, mode: RefreshMode, reason: str) -> Refreshed:
    node = NodeRefresh(node="query", mode=mode, reason=reason)
    return Refreshed(version, Refresh(mode=mode, reason=reason, nodes=(node,)))
