"""Bringing the streaming table of AUTO CDC flows to a checkpoint.

    1. the rows that each flow's input got since the version that the table has merged, as events
    2. of the events that count, the keys   3. the state of these keys   4. the merge
    5. one commit of the state's table, then one of the table: old rows out, new rows in

The table's commit names the version of each input and of its state. So what is merged follows from (table,
old versions, new versions) alone: a refresh that was interrupted is done again, over the state that the table
names.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.errors import RefreshError
from tautochrone.ingest.staging import align, expectation_counts
from tautochrone.model.auto_cdc import (
    EVENTS_SET_ASIDE,
    TOMBSTONE_RETENTION,
    AutoCdc,
    Restart,
    position_restarts,
    restarts_text,
    tombstone_retention_ms,
)
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.definitions import ExpectationCount, ViolationAction
from tautochrone.model.events import EventsSetAside
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.merges.event_merges import (
    EventKeys,
    EventOrder,
    aligned_events,
    checked_events,
    input_of,
    lacks_key_or_sequence,
    merge_of,
    merged_events,
)
from tautochrone.runtime.merges.keyed_apply import added_rows, require_no_rows
from tautochrone.runtime.merges.keyed_merge import commit_change
from tautochrone.runtime.merges.snapshot_events import (
    SnapshotChange,
    after_known,
    require_unknown,
    snapshot_change,
)
from tautochrone.runtime.refresh.sessions import SessionPool
from tautochrone.runtime.refresh.states import RUN, STATE_NAMESPACE, StateLayout, States
from tautochrone.runtime.refresh.task import (
    RefreshContext,
    Refreshed,
    RefreshTask,
    no_data_refresh,
    recovered_refresh,
)
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session, tuned_session
from tautochrone.spark.execute.change_order import ChangeOrder, is_change_order
from tautochrone.spark.execute.materialize import first_row, fits_on_driver, materialize
from tautochrone.spark.execute.merge_events import COUNT, EventMerge, Horizon, Merged, horizon_of
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = ["AutoCdcRefresher", "require_never_merged"]

_STATE = 0
"""The number of the only state."""

_FORMAT = 1
"""Must be raised when this release would misread stored states."""


class AutoCdcRefresher:
    """Refreshes the streaming tables of one job that AUTO CDC flows write."""

    def __init__(self, context: RefreshContext, sessions: SessionPool) -> None:
        self._context = context
        self._sessions = sessions

    def refresh(self, task: RefreshTask, auto_cdc: AutoCdc) -> Refreshed:
        """Merge what the inputs of the table's flows got since the last time.

        Raises:
            RefreshError: `STREAM_INPUT_CHANGED`, `AUTO_CDC_EVENT_INVALID`, `AUTO_CDC_CHANGED`,
                `AUTO_CDC_STATE_LOST`, `MERGED_INPUT_UNKNOWN`.
            ExpectationError: an event violates an expectation that fails.
            ConflictError: somebody else moved the table.
        """
        inputs = _inputs(task)
        last_commit = task.fork.commit_metadata
        committed = recovered_refresh(task)
        if committed is not None:
            return _with_counts(committed, task, task.violations_before)
        is_first = last_commit is None or last_commit.mode is None
        if is_first:
            require_no_rows(task)
        session = self._session(task)
        set_active_session(session)
        merged = {} if last_commit is None or is_first else last_commit.inputs
        changed, set_aside = None, list[EventsSetAside]()
        if auto_cdc.snapshots_of is not None:
            changed = self._snapshot_change(task, auto_cdc, merged, session)
            parts = [] if changed is None else [changed.events]
        else:
            parts = []
            for flow, name in inputs:
                events = self._events(task, flow, name, merged.get(str(name)), session)
                if events is not None:
                    set_aside += _set_aside(task, flow, name, events)
                    parts.append(merged_events(flow, events) if flow.flow.sets_aside else events)
        rows = sum(self._row_bound(name, merged.get(str(name)), task.inputs[name]) for _, name in inputs)
        if changed is not None:
            rows = changed.count
        mode = RefreshMode.FULL if is_first else RefreshMode.INCREMENTAL
        before = {} if is_first else task.violations_before
        with tuned_session(session, delta_rows=rows):
            checked = checked_events(parts, task.name, task.expectations, before)
            violations = {**checked.violations, **self._late_so_far(task, before)}
            violations |= _set_aside_so_far(before, set_aside)
            if parts:
                merged_before = partial(self._merged_events, task, merged, session)
                refresh = _Merging(task, self._context, auto_cdc, session, mode, violations, merged_before)
                result = refresh.run(checked.parts, rows, None if changed is None else changed.new_keys)
                violations = refresh.violations
            else:
                result = _no_events(task, mode, ReasonCode.NO_NEW_ROWS, violations)
        result = replace(result, set_aside=tuple(set_aside))
        return _with_counts(result, task, violations)

    def _late_so_far(self, task: RefreshTask, before: Mapping[str, int]) -> dict[str, int]:
        """How many events were refused since the last full refresh; nothing if the table refuses none."""
        properties = self._context.definitions.datasets[task.name].properties
        return (
            {TOMBSTONE_RETENTION: before.get(TOMBSTONE_RETENTION, 0)}
            if TOMBSTONE_RETENTION in properties
            else {}
        )

    def _row_bound(self, name: TableName, merged: str | None, new: Version) -> int:
        """How many rows a table got since a version, at most."""
        source = self._context.load_table(name)
        after, before = source.row_count(new), 0 if merged is None else source.row_count(Version(merged))
        return sys.maxsize if after is None or before is None else max(0, after - before)

    def _events(
        self,
        task: RefreshTask,
        flow: ResolvedFlow,
        name: TableName,
        merged: str | None,
        session: SparkSession,
    ) -> DataFrame | None:
        source = self._context.load_table(name)
        old = None if merged is None else Version(merged)
        added = added_rows(task.name, source, self._context, old, task.inputs[name])
        if added is None:
            return None
        self._context.views.prepare(session, flow.views, task.inputs)
        plan = analyzed_plan(flow.evaluate(session, with_dropped=True))
        return flow.flow.with_flags(stream_as_batch(session, plan, added))

    def _merged_events(
        self, task: RefreshTask, merged: Mapping[str, str], session: SparkSession
    ) -> list[DataFrame]:
        """The events of each flow that are merged already."""
        parts = []
        for flow, name in _inputs(task):
            if str(name) in merged:
                self._context.views.prepare(session, flow.views, task.inputs)
                rows = self._context.load_table(name).read(self._context.base, Version(merged[str(name)]))
                events = stream_as_batch(session, analyzed_plan(flow.evaluate(session)), rows)
                parts.append(merged_events(flow, events))
        return parts

    def _snapshot_change(
        self, task: RefreshTask, auto_cdc: AutoCdc, merged: Mapping[str, str], session: SparkSession
    ) -> SnapshotChange | None:
        (flow,) = task.flows
        source = self._context.load_table(input_of(flow))
        old = merged.get(str(source.name))
        self._context.views.prepare(session, flow.views, task.inputs)
        version = None if old is None else Version(old)
        return snapshot_change(task, flow, auto_cdc, source, version, self._context.base, session)

    def _session(self, task: RefreshTask) -> SparkSession:
        conf = {key: value for flow in task.flows for key, value in flow.flow.conf.items()}
        return self._sessions.session(str(task.name), conf)


def require_never_merged(task: RefreshTask) -> None:
    """Refuse a table whose flows are none of AUTO CDC any more.

    Raises:
        RefreshError: `AUTO_CDC_CHANGED`.
    """
    metadata = task.fork.commit_metadata
    companions = {} if metadata is None else metadata.companions
    if any(TableName.parse(name).namespace == STATE_NAMESPACE for name in companions):
        raise _input_changed_error(task)


def _input_changed_error(task: RefreshTask) -> RefreshError:
    return RefreshError(
        "AUTO_CDC_CHANGED",
        f"The flows of {task.name} merge otherwise than those that made its rows",
        hint=f"merge all events again with --full-refresh {task.name.table}, or take the change of keys, "
        "types, tracked columns, flows, or the properties of the table back",
        location=task.location,
        sqlstate="55000",
    )


@dataclass(slots=True)
class _Merging:
    """One refresh with new events."""

    task: RefreshTask
    context: RefreshContext
    auto_cdc: AutoCdc
    session: SparkSession
    mode: RefreshMode
    violations: dict[str, int]
    """Of expectations, and under the name of the retention events that came too late."""
    merged_before: Callable[[], Sequence[DataFrame]]
    """Gives the events that are merged already."""
    horizon: Horizon | None = None
    order: EventOrder | None = None
    """Of events that came through Kafka."""

    def run(
        self, parts: Sequence[DataFrame], max_events: int, new_keys: DataFrame | None = None
    ) -> Refreshed:
        """Merge the events of several flows, of which there are at most `max_events`.

        Args:
            new_keys: of a snapshot, the keys that the one before must not have.
        """
        schema = self.context.schemas[self.task.name]
        restarts = self._restarts
        events = aligned_events(parts, schema, self.task.name, restarts)
        merge = merge_of(self.task.flows, schema, events.schema, self.task.location)
        layouts = {_STATE: self._layout(merge)}
        states = States(self.context.base, self.context.lake, self.task.name, layouts, self.task.fork)
        late = self._late_events(merge, events, states)
        if self.horizon is not None:
            events = events.where(~self.horizon.is_late())
        renamed = merge.renamed(events)
        if is_change_order(merge.sequence_type):
            order = EventOrder(self.task, ChangeOrder(merge, is_one_flow=len(self.task.flows) == 1), restarts)
            if self.mode is RefreshMode.FULL:
                renamed = order.of_all(renamed)
            else:
                renamed = order.of_new(
                    renamed,
                    max_events,
                    partial(self._state_of_keys, states),
                    partial(self._merged_before, merge),
                )
            self.order = order
        result = self._merge(merge, merge.fold(renamed), max_events, states, new_keys)
        if late is None:
            return result
        reason = joined_reasons([result.refresh.reason, late])
        return replace(result, refresh=replace(result.refresh, reason=reason))

    def _late_events(self, merge: EventMerge, events: DataFrame, states: States) -> Reason | None:
        """Why events are refused; None: none are. Sets the horizon."""
        if self._retention_ms is None or self.mode is RefreshMode.FULL:
            return None
        self._require_state(states)
        self.horizon = horizon_of(merge, states.stored_rows(_STATE), self._retention_ms)
        count = 0 if self.horizon is None else events.where(self.horizon.is_late()).count()
        if self.horizon is None or not count:
            return None
        self.violations[TOMBSTONE_RETENTION] += count
        return Reason.of(ReasonCode.LATE_EVENTS_REFUSED, events=count, horizon=self.horizon.text)

    @property
    def _restarts(self) -> tuple[Restart, ...]:
        dataset = self.context.definitions.datasets[self.task.name]
        return position_restarts(dataset.properties, str(dataset.location))

    def _merged_before(self, merge: EventMerge, keys: EventKeys) -> DataFrame:
        """Events that are merged already, without files that have none of the keys."""
        schema = self.context.schemas[self.task.name]
        events = aligned_events(self.merged_before(), schema, self.task.name)
        return keys.pruned(events, names=merge.row_keys)

    @property
    def _retention_ms(self) -> int | None:
        dataset = self.context.definitions.datasets[self.task.name]
        return tombstone_retention_ms(dataset.properties, str(dataset.location))

    def _merge(
        self,
        merge: EventMerge,
        folded: DataFrame,
        max_events: int,
        states: States,
        new_keys: DataFrame | None,
    ) -> Refreshed:
        task, is_first = self.task, self.mode is RefreshMode.FULL
        folded, count = materialize(folded, max_rows=max_events)
        self._require_valid(merge, folded)
        if count == 0 and not is_first:
            return _no_events(task, self.mode, ReasonCode.NO_EVENTS_OF_KEYS, self.violations)
        truncates = merge.is_truncating and bool(merge.truncations(folded).take(1))
        keys = EventKeys(merge, folded, count, is_all=truncates)
        if is_first:
            known = 0
            state = self.session.createDataFrame([], StructType(merge.state_schema(RUN).fields[:-1]))
        else:
            rows = self._state_of_keys(states, keys)
            has_one_row_each = merge.state_keys == merge.keys and not truncates
            max_rows = count + 1 if has_one_row_each else sys.maxsize
            state, known = materialize(rows, max_rows=max_rows)
            if new_keys is not None:
                require_unknown(merge, new_keys, state, self.task)
                folded = after_known(folded, state)
        merged = merge.merge(folded, state)
        is_local = fits_on_driver(count + known)
        if is_local:
            frames = (merged.state, merged.added, merged.removed)
            merged = Merged(*(materialize(frame, max_rows=count + known)[0] for frame in frames))
        return self._commit(merge, merged, states, keys, is_local=is_local)

    def _layout(self, merge: EventMerge) -> StateLayout:
        schema = merge.state_schema(RUN)
        tracked = None if self.auto_cdc.tracked is None else repr(self.auto_cdc.tracked).lower()
        null_ignoring = self.auto_cdc.null_ignoring
        # Further columns may come: the types of those that are there are compared when the state is widened.
        lasting = [field.jsonValue() for field in schema.fields if field.name not in merge.values]
        signed = json.dumps(
            [
                _FORMAT,
                self.auto_cdc.scd_type,
                self.auto_cdc.is_ignoring_nulls,
                merge.columns.keys,
                tracked,
                lasting,
                *([] if null_ignoring is None else [repr(null_ignoring).lower()]),
                # After a longer retention than before, events would be late by one that is past.
                *([] if self._retention_ms is None else ["tombstones", self._retention_ms]),
                *(["restarts", restarts_text(self._restarts)] if self._restarts else []),
            ]
        )
        return StateLayout(
            keys=merge.state_keys,
            values=tuple(name for name, _ in merge.state_types),
            schema=schema,
            signature=hashlib.sha256(signed.encode()).hexdigest()[:16],
        )

    def _state_of_keys(self, states: States, keys: EventKeys) -> DataFrame:
        """The state of some keys."""
        self._require_state(states)
        schema = states.layouts[_STATE].schema

        def of_keys(stored: DataFrame) -> DataFrame:
            # A version of the state from before a column came, or its type was widened.
            older = {field.name: field.dataType for field in stored.schema.fields}
            for field in schema.fields:
                if older.get(field.name) != field.dataType:
                    value = sf.col(field.name) if field.name in older else sf.lit(None)
                    stored = stored.withColumn(field.name, value.cast(field.dataType))
            return keys.matching(self._in_session(stored))

        return self._in_session(states.rows(_STATE, of_keys)).where(sf.col(COUNT) > 0)

    @property
    def _flow_name(self) -> str:
        """As settings know the flow, or the first of several."""
        return self.task.flows[0].flow.name.removesuffix("__merge")

    def _require_valid(self, merge: EventMerge, folded: DataFrame) -> None:
        invalid = first_row(merge.invalid(folded).select(*merge.keys))
        if invalid is not None:
            if self.order is not None:
                self.order.require_order()
            key = dict(zip(merge.columns.keys, invalid, strict=True))
            raise RefreshError(
                "AUTO_CDC_EVENT_INVALID",
                f"An event of {self.task.name} has no key or no sequence value: its key is {key}",
                hint="leave such events out in a view as the flow's source, WHERE … IS NOT NULL, or set them "
                f'aside: bad_records = "quarantine" below [flows.{self._flow_name}] in tautochrone.toml',
                location=self.task.location,
                sqlstate="22004",
            )

    def _require_state(self, states: States) -> None:
        missing = states.missing_reason()
        if missing is None:
            return
        table = self.task.name.table
        if missing.code in (ReasonCode.STATE_FORMAT_DIFFERS, ReasonCode.STATE_MISSING):
            raise _input_changed_error(self.task)
        raise RefreshError(
            "AUTO_CDC_STATE_LOST",
            f"What is known of earlier events of {self.task.name} is lost: {missing}",
            hint=f"merge all events again with --full-refresh {table}",
            location=self.task.location,
            sqlstate="55000",
        )

    def _commit(
        self,
        merge: EventMerge,
        merged: Merged,
        states: States,
        keys: EventKeys,
        *,
        is_local: bool,
    ) -> Refreshed:
        task, is_first = self.task, self.mode is RefreshMode.FULL
        schema = self.context.schemas[task.name]
        metadata = replace(task.metadata_with(self.mode), violations=self.violations)
        staged = task.table.stage(task.fork, align(merged.added, schema, str(task.name)), local=is_local)
        old_rows = {} if is_first else self._positions(merge, merged.removed, keys)
        if is_first:
            companions = states.companions({_STATE: states.build(_STATE, merged.state, task.metadata)})
        else:
            states.widen(_STATE, task.metadata)
            forgets = "false" if self.horizon is None else self.horizon.forgets
            local = (_STATE,) if is_local else ()
            companions = states.write({_STATE: merged.state}, task.metadata, local, forgets)
        committed = commit_change(
            task.table, task.fork, staged, old_rows, replace(metadata, companions=companions)
        )
        if committed is None:
            return no_data_refresh(task, ReasonCode.NO_EVENTS_OF_KEYS)
        code = ReasonCode.EVENTS_MERGED
        if is_first:
            code = ReasonCode.FULL_REFRESH_REQUESTED if task.is_full_requested else ReasonCode.FIRST_BUILD
        reason = Reason.of(code)
        refresh = Refresh(
            mode=self.mode,
            reason=reason,
            rows_inserted=staged.rows,
            rows_deleted=sum(len(positions) for positions in old_rows.values()),
            nodes=(NodeRefresh(node="auto_cdc", mode=self.mode, reason=reason),),
        )
        return Refreshed(committed.version, refresh)

    def _positions(
        self, merge: EventMerge, removed: DataFrame, keys: EventKeys
    ) -> Mapping[str, Sequence[int]]:
        """Where the rows are that the table loses: data file → positions."""
        names = merge.row_keys
        stored = self.task.table.read(self.context.base, self.task.fork.version)
        stored = stored.select(
            *(sf.col(quoted(column)).alias(f"s_{name}") for column, name in names.items()),
            FILE_COLUMN,
            POSITION_COLUMN,
        )
        stored = self._in_session(keys.pruned(stored, "s_"))
        equal = reduce(
            lambda left, right: left & right,
            (sf.col(f"s_{name}").eqNullSafe(sf.col(name)) for name in names.values()),
        )
        positions_by_file: dict[str, list[int]] = {}
        for row in stored.join(removed, equal, "left_semi").select(FILE_COLUMN, POSITION_COLUMN).collect():
            positions_by_file.setdefault(row[FILE_COLUMN], []).append(row[POSITION_COLUMN])
        return {file: sorted(positions) for file, positions in positions_by_file.items()}

    def _in_session(self, rows: DataFrame) -> DataFrame:
        return dataframe_of_plan(self.session, analyzed_plan(rows))


def _inputs(task: RefreshTask) -> list[tuple[ResolvedFlow, TableName]]:
    """Each flow with the lake table whose events it takes. No two of them take those of one table: the
    analysis gave each of them a table of events."""
    return [(flow, input_of(flow)) for flow in task.flows]


def _set_aside(
    task: RefreshTask, flow: ResolvedFlow, name: TableName, events: DataFrame
) -> list[EventsSetAside]:
    """What is said of new events that a flow sets aside; nothing where there are none. One Spark job."""
    count = events.where(lacks_key_or_sequence(flow)).count() if flow.flow.sets_aside else 0
    if not count:
        return []
    reason = Reason.of(ReasonCode.EVENTS_SET_ASIDE, events=count, table=str(name))
    return [
        EventsSetAside(
            flow=flow.flow.name, dataset=str(task.name), records=count, input=str(name), reason=reason
        )
    ]


def _set_aside_so_far(before: Mapping[str, int], new: Sequence[EventsSetAside]) -> dict[str, int]:
    """How many events were set aside since the last full refresh; nothing if none was."""
    count = before.get(EVENTS_SET_ASIDE, 0) + sum(event.records for event in new)
    return {EVENTS_SET_ASIDE: count} if count else {}


def _no_events(
    task: RefreshTask, mode: RefreshMode, code: ReasonCode, violations: Mapping[str, int]
) -> Refreshed:
    """Record the versions of the inputs and the violations; the state stays."""
    last_commit = task.fork.commit_metadata
    companions = {} if last_commit is None else last_commit.companions
    metadata = replace(task.metadata_with(mode), companions=companions, violations=violations)
    task.table.commit_metadata_only(task.fork, metadata)
    return no_data_refresh(task, code)


def _with_counts(result: Refreshed, task: RefreshTask, violations: Mapping[str, int]) -> Refreshed:
    """The result of a refresh, with the violations of the table's expectations and the late events."""
    before = {} if task.is_full_requested else task.violations_before
    counted = expectation_counts(task.expectations, before, violations)
    if TOMBSTONE_RETENTION in violations:
        late = violations[TOMBSTONE_RETENTION]
        change = late - before.get(TOMBSTONE_RETENTION, 0)
        counted += (ExpectationCount(TOMBSTONE_RETENTION, ViolationAction.DROP, late, change),)
    return replace(result, refresh=replace(result.refresh, expectations=counted))
