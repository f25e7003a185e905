"""A refresh that follows the change: the delta of the inputs, through the query's plan, into the view.

    1. differentiate the plan     2. hold the nodes against the policy     3. find the rows to remove
    4. commit the states          5. commit the view, whose commit metadata names the states' versions

A crash before 5 leaves the view as it was; the next refresh rolls the states back to what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from tautochrone.algebra.delta import Change, Differentiator
from tautochrone.algebra.nodes import CutSide, Materialized, Scan, walk
from tautochrone.algebra.rules import RULES
from tautochrone.errors import RefreshError
from tautochrone.ingest.staging import expectation_counts, require_expectations_met
from tautochrone.model import limits
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode, RefreshPolicy, worst_mode
from tautochrone.model.counts import counted
from tautochrone.model.lake import FILE_COLUMN, POSITION_COLUMN, CommitMetadata, Staged
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.project_build import BuiltState
from tautochrone.model.reason import ReasonCode
from tautochrone.runtime.refresh.states import States
from tautochrone.runtime.refresh.task import (
    Choice,
    RefreshContext,
    Refreshed,
    RefreshTask,
    version_with_same_rows,
)
from tautochrone.runtime.views.changes import Changes
from tautochrone.runtime.views.choose_mode import node_needs_mode, require_incremental
from tautochrone.runtime.views.plans import Planned
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session, tuned_session
from tautochrone.spark.execute.driver_scan import (
    JobReasons,
    job_reasons,
    note_job,
    note_many_rows,
    stored_positions,
)
from tautochrone.spark.execute.engine import Inputs, SparkEngine, TableDelta, are_few
from tautochrone.spark.execute.expectations import flag_names, violations, without_flags
from tautochrone.spark.execute.key_lookups import (
    KeyValues,
    LookupRequest,
    OtherVersion,
    collected_values,
)
from tautochrone.spark.execute.materialize import fits_on_driver
from tautochrone.spark.execute.multiset_diff import FLOAT_TOLERANCE, has_floats
from tautochrone.spark.execute.repeated_plans import side_of_change
from tautochrone.spark.jvm.catalyst import Catalyst
from tautochrone.spark.jvm.driver_calls import select_expressions
from tautochrone.spark.translate.lowering_context import RowFilter

__all__ = ["IncrementalRefresh", "Positions", "find_rows"]


_ROW, _COPIES, _EXACT = "__taut_row", "__taut_copies", "__taut_exact"
_STORED, _REMOVED = "__taut_stored", "__taut_removed"


@dataclass(frozen=True, slots=True)
class Positions:
    """Where rows of a view are stored.

    Attributes:
        by_file: data file → positions, one per copy.
        exact: each stored row is the row that was searched, also in the last bits of its floats.
    """

    by_file: Mapping[str, Sequence[int]]
    exact: bool


def find_rows(
    stored: DataFrame, table: TableName, deletes: DataFrame, *, stored_rows: int | None, few: bool
) -> Positions:
    """Where the rows to remove are, one position per copy.

    A row is found by all of its values, as in `GROUP BY`, floats also when they are off by rounding. Values
    of a few columns go into the read as literals, so that files without them are not opened.

    Args:
        stored: the view's rows with file and position.
        deletes: rows of the view, one per copy.
        stored_rows: how many rows the view has; None when nobody knows.
        few: the rows to remove are on the driver; they are compared there and sent to every task.

    Raises:
        RefreshError: `REFRESH_INCONSISTENT`, the view does not hold a row that it should lose.
    """
    one_task = few and are_few(stored_rows)
    positions = stored_positions(deletes, stored) if one_task else None
    if positions is not None:
        return Positions(positions, exact=True)
    if few and not one_task:
        note_many_rows(str(table), stored_rows)
    values, count = collected_values(deletes, deletes.columns) if few else ({}, None)
    if count == 0:
        return Positions({}, exact=True)
    session = stored.sparkSession
    stored.createOrReplaceTempView(_STORED)
    deletes.createOrReplaceTempView(_REMOVED)
    try:
        matches = session.sql(_matches_query(deletes.dtypes, values, few=few, one_task=one_task)).collect()
    finally:
        session.catalog.dropTempView(_STORED)
        session.catalog.dropTempView(_REMOVED)
    positions_by_file = _assigned_positions(matches)
    matched_count = sum(len(positions) for positions in positions_by_file.values())
    count = deletes.count() if count is None else count
    if matched_count != count:
        raise RefreshError(
            "REFRESH_INCONSISTENT",
            f"{table} should lose {counted(count, 'row')} and holds only {matched_count} of them",
            hint=f"its old version stays; rebuild it once with --full-refresh {table.table}, or allow "
            f"comparison with the policy {RefreshPolicy.INCREMENTAL}",
            sqlstate="XX000",
            parameters={"rows": str(count), "stored": str(matched_count)},
        )
    return Positions(positions_by_file, exact=not has_floats(deletes.schema))


def _matches_query(
    kinds: Sequence[tuple[str, str]], values: Mapping[str, KeyValues], *, few: bool, one_task: bool
) -> str:
    """The query that finds the rows, as one text: with DataFrames Spark would analyse every step."""
    indexes = range(len(kinds))
    names = [quoted(name) for name, _ in kinds]
    floats = [kind in ("double", "float") for _, kind in kinds]
    conditions = [f"({condition})" for condition in _literals(values)] or ["true"]
    coalesce = "/*+ COALESCE(1) */" if one_task else ""
    join = "/*+ SHUFFLE_HASH(w) */" if one_task and not all(floats) else "/*+ BROADCAST(w) */" if few else ""
    equal = [f"s.h{i} <=> w.k{i}" for i in indexes]
    same = [_close_sql(f"s.h{i}", f"w.k{i}") if floats[i] else equal[i] for i in indexes]
    stored = ", ".join(f"{name} AS h{i}" for i, name in enumerate(names))
    key_columns = ", ".join(f"k{i}" for i in indexes)
    removed = ", ".join(f"{name} AS k{i}" for i, name in enumerate(names))
    return f"""
        SELECT {join} {_ROW}, {_COPIES}, {" AND ".join(equal)} AS {_EXACT}, {FILE_COLUMN}, {POSITION_COLUMN}
        FROM (
            SELECT {coalesce} {stored}, {FILE_COLUMN}, {POSITION_COLUMN}
            FROM {_STORED} WHERE {" AND ".join(conditions)}
        ) s
        JOIN (
            SELECT *, monotonically_increasing_id() AS {_ROW} FROM (
                SELECT {key_columns}, count(1) AS {_COPIES}
                FROM (SELECT {coalesce} {removed} FROM {_REMOVED}) GROUP BY {key_columns}
            )
        ) w ON {" AND ".join(same)}
    """


def _close_sql(left: str, right: str) -> str:
    """Equal, or as near as sums of floats in another order may be."""
    near = f"abs({left} - {right}) <= {FLOAT_TOLERANCE}D * greatest(abs({left}), abs({right}))"
    return f"({left} <=> {right} OR coalesce({near}, false))"


_Position = tuple[str, int]


def _assigned_positions(matches: Sequence[Row]) -> dict[str, list[int]]:
    """A stored copy of its own for each row to remove, exact ones first."""
    missing_copies: dict[int, int] = {}
    candidates: dict[int, list[_Position]] = {}
    owners: dict[_Position, int] = {}
    for row in sorted(matches, key=lambda row: (not row[_EXACT], row[FILE_COLUMN], row[POSITION_COLUMN])):
        position = row[FILE_COLUMN], row[POSITION_COLUMN]
        candidates.setdefault(row[_ROW], []).append(position)
        missing = missing_copies.setdefault(row[_ROW], row[_COPIES])
        if missing and position not in owners:
            missing_copies[row[_ROW]] = missing - 1
            owners[position] = row[_ROW]
    for number, missing in missing_copies.items():
        while missing and _reassign(number, candidates, owners):
            missing -= 1
    positions_by_file: dict[str, list[int]] = {}
    for file, index in owners:
        positions_by_file.setdefault(file, []).append(index)
    return positions_by_file


def _reassign(
    start: int, candidates: Mapping[int, Sequence[_Position]], owners: dict[_Position, int]
) -> bool:
    """Let a row have one more position, where others can take others instead: floats may be near several.

    It follows an augmenting path of a bipartite matching, the shortest first.
    """
    given_up: dict[int, _Position] = {}
    taken_by: dict[_Position, int] = {}
    queue = [start]
    for number in queue:
        for position in candidates[number]:
            if position in taken_by:
                continue
            taken_by[position] = number
            owner = owners.get(position)
            if owner is None:
                while (taker := taken_by[position]) != start:
                    owners[position] = taker
                    position = given_up[taker]
                owners[position] = start
                return True
            if owner != start and owner not in given_up:
                given_up[owner] = position
                queue.append(owner)
    return False


def _literals(values: Mapping[str, KeyValues]) -> list[str]:
    """Conditions `column IN (…)` for the columns that tell the rows apart best."""
    few = [name for name, column in values.items() if len(column.values) <= limits.MAX_IN_LIST_VALUES]
    few.sort(key=lambda name: len(values[name].values), reverse=True)
    return [
        values[name].condition(quoted(name), or_null=None in values[name].values)
        for name in few[: limits.MAX_PRUNING_COLUMNS]
    ]


_SIGN = "__taut_sign"
_JOB = "Spark job"
"""A step of a refresh that the driver did not do itself."""


@dataclass(slots=True)
class IncrementalRefresh:
    """Takes one view from the input versions that its newest commit names to those of its task.

    `metadata` is what the commit will say; `session` is the view's own.
    """

    context: RefreshContext
    task: RefreshTask
    planned: Planned
    metadata: CommitMetadata
    changes: Changes
    session: SparkSession
    _counts: dict[TableName, int | None] = field(default_factory=dict)

    def refresh(self, choice: Choice) -> Refreshed:
        """Follow the change.

        Raises:
            RefreshError: the policy forbids a node's mode; the view lacks a row that it should lose.
        """
        set_active_session(self.session)
        states = self._states()
        engine = self._engine(states, states.rows, states.row_count)
        with job_reasons() as reasons:
            with tuned_session(self.session, delta_rows=choice.delta_rows):
                engine.read_changes()
            counts = [self._row_count(table) for table in self.planned.view.tables]
            rows = None if None in counts else sum(count or 0 for count in counts)
            with tuned_session(self.session, delta_rows=engine.delta_rows, input_rows=rows):
                return self._refresh(choice, engine, states, reasons)

    def _refresh(self, choice: Choice, engine: SparkEngine, states: States, reasons: JobReasons) -> Refreshed:
        differentiator = Differentiator(engine, RULES, states=states.numbers())
        change = differentiator.materialized_change(self.planned.view.plan, consolidated=True)
        nodes = tuple(dict.fromkeys(differentiator.nodes))
        require_incremental(self.task, nodes)
        local_updates = {
            number for number, update in differentiator.state_updates.items() if engine.is_on_driver(update)
        }
        updates = {
            # Local rows are computed by a plan that is made once for its shape.
            number: engine.frame(engine.materialized(update) if number in local_updates else update)
            for number, update in differentiator.state_updates.items()
        }
        delta, violations = self._delta(engine, change)
        local = change.plan is not None and engine.is_on_driver(change.plan)
        removed = Positions({}, exact=True)
        if delta.removed is not None:
            stored = self._stored_rows(delta.removed.columns)
            whole = self.task.table.row_count(self.task.fork.version)
            few = local and fits_on_driver(delta.rows)
            if not few:
                note_job(ReasonCode.MANY_ROWS_CHANGED, rows=delta.rows, limit=limits.MAX_DRIVER_ROWS)
            removed = find_rows(stored, self.task.name, delta.removed, stored_rows=whole, few=few)
        staged = (
            [self.task.table.stage(self.task.fork, delta.added, local=local)]
            if delta.added is not None
            else []
        )
        companions = states.write(updates, self.metadata, local_updates)
        metadata = replace(self.metadata, companions=companions, violations=violations)
        version = self._commit(staged, removed.by_file, metadata)
        rows_in = sum(part.rows for part in staged)
        rows_out = sum(len(positions) for positions in removed.by_file.values())
        if (rows_in or rows_out) and removed.exact:
            # Views above must see the rows that this one lost, whose floats may differ from the computed ones
            # in their last bits: then they read them from the files.
            # A side without rows is left out: views above save much where nothing was removed.
            view_delta = TableDelta(
                delta.added if rows_in else None,
                delta.removed if rows_out else None,
                rows_in + rows_out,
                materialized=True,
            )
            self.changes.add_view_delta(
                self.task.name, version_with_same_rows(self.task), version, view_delta
            )
        refresh = self._record(choice, nodes, engine.delta_rows, rows_in, rows_out)
        jobs = (NodeRefresh(node=_JOB, mode=refresh.mode, reason=reason) for reason in reasons.take())
        refresh = replace(refresh, nodes=(*refresh.nodes, *jobs))
        counted = expectation_counts(self.task.expectations, self.task.violations_before, violations)
        return Refreshed(version, replace(refresh, expectations=counted))

    def build(self) -> tuple[DataFrame, Mapping[str, str]]:
        """All rows of the view's query at the target, flags of expectations included, and its states, for a
        build as a whole.

        Each state is computed from those below it and the rows from all of them. Sums of floats depend on
        their order: rows and states must come from the same sums, to the bit, or a refresh would later look
        for old rows that are not quite there.
        """
        states = self._states()
        frame, built = self._build(states, lambda number, rows: states.build(number, rows, self.metadata))
        return frame, states.companions(built)

    def build_beside(self, branch: str) -> tuple[DataFrame, Mapping[TableName, BuiltState]]:
        """The same for rows that are built beside the view's: its states are on a branch of their tables."""
        states = self._states()
        frame, built = self._build(
            states, lambda number, rows: states.build_beside(number, rows, self.metadata, branch)
        )
        return frame, states.beside(built)

    def _build(
        self, states: States, store: Callable[[int, DataFrame], Version]
    ) -> tuple[DataFrame, Mapping[int, Version]]:
        set_active_session(self.session)
        built: dict[int, Version] = {}
        engine = self._engine(
            states,
            lambda number, only: states.rows_at(number, built[number], only),
            lambda _number: None,
            lambda _table, _columns: None,
        )
        for layout in self.planned.layouts.values():
            node = layout.node
            differentiator = Differentiator(engine, RULES, states=frozenset(built))
            plan = differentiator.first_state(node)
            built[node.number] = store(node.number, engine.lowering.frame(plan))
        differentiator = Differentiator(engine, RULES, states=frozenset(built))
        frame = engine.lowering.frame(differentiator.rows_after(self.planned.view.plan)).toDF(*self._names())
        return frame, built

    def _states(self) -> States:
        context = self.context
        return States(
            context.base,
            context.lake,
            self.task.name,
            self.planned.layouts,
            self.task.fork,
            self.changes.small_tables,
        )

    def _stored_rows(self, names: Sequence[str]) -> DataFrame:
        rows = self.task.table.read(self.context.base, self.task.fork.version)
        chosen = select_expressions(rows, [*map(quoted, names), FILE_COLUMN, POSITION_COLUMN])
        # In the view's own session, whose settings suit the size of the change.
        return dataframe_of_plan(self.session, analyzed_plan(chosen))

    def _names(self) -> list[str]:
        columns = [field.name for field in self.context.schemas[self.task.name].fields]
        return [*columns, *flag_names(self.task.expectations)]

    def _engine(
        self,
        states: States,
        stored: Callable[[int, RowFilter | None], DataFrame],
        stored_rows: Callable[[int], int | None],
        delta: Callable[[TableName, Sequence[str]], TableDelta | None] | None = None,
    ) -> SparkEngine:
        old = {} if self.task.fork.commit_metadata is None else self.task.fork.commit_metadata.inputs
        frames: dict[tuple[TableName, CutSide], DataFrame] = {}

        def version(table: TableName, side: CutSide) -> Version:
            return Version(old[str(table)]) if side is CutSide.BEFORE else self.task.inputs[table]

        def read(table: TableName, side: CutSide) -> DataFrame:
            input_version = version(table, side)
            if (table, side) not in frames:
                loaded = self.context.load_input(table)
                frames[table, side] = self.changes.small_table(
                    table, input_version, lambda: loaded.read(self.context.base, input_version)
                )
            return frames[table, side]

        def change(table: TableName, columns: Sequence[str]) -> TableDelta | None:
            old, new = version(table, CutSide.BEFORE), version(table, CutSide.AFTER)
            return self.changes.delta(table, old, new, columns)

        def looked_up(
            table: TableName, side: CutSide, request: LookupRequest, wider: Callable[[], LookupRequest | None]
        ) -> DataFrame | None:
            def difference() -> tuple[DataFrame | None, DataFrame | None] | None:
                before, after = version(table, CutSide.BEFORE), version(table, CutSide.AFTER)
                delta = self.changes.stored_delta(table, before, after, request.columns)
                if delta is None:
                    return None
                sides = delta.added, delta.removed
                return sides if side is CutSide.BEFORE else sides[::-1]

            other = None
            if str(table) in old:
                other_side = CutSide.AFTER if side is CutSide.BEFORE else CutSide.BEFORE
                other = OtherVersion(version(table, other_side), difference)
            return self.changes.lookups.candidate_rows(
                table, version(table, side), request, wider, lambda: read(table, side), other
            )

        inputs = Inputs(
            read=read,
            lookup=looked_up,
            delta=delta or change,
            rows=self._row_count,
            stored_rows=stored_rows,
            stored=stored,
            log=states.log,
            newest=states.newest,
        )
        # A node that occurs twice in the plan is scanned once.
        nodes = dict.fromkeys(walk(self.planned.view.plan))
        scans = tuple(node for node in nodes if isinstance(node, Scan))
        return SparkEngine(
            Catalyst(self.session),
            self.planned.view.attributes,
            inputs,
            scans,
            plans=self.planned.repeated,
            query=self.planned.view.plan,
        )

    def _row_count(self, table: TableName) -> int | None:
        """How many rows an input has at the target; None when it does not tell. Asked of a table once."""
        if table not in self._counts:
            self._counts[table] = self.context.load_input(table).row_count(self.task.inputs[table])
        return self._counts[table]

    def _delta(self, engine: SparkEngine, change: Change) -> tuple[TableDelta, Mapping[str, int]]:
        """Rows to add and rows to remove, with the view's column names, and the violations of expectations.

        Raises:
            ExpectationError: an added row violates an expectation that fails.
        """
        expectations, before = self.task.expectations, self.task.violations_before
        if change.plan is None:
            return TableDelta(None, None, 0), before
        assert isinstance(change.plan, Materialized)
        if not expectations and engine.is_on_driver(change.plan):
            added, removed = (
                side_of_change(self.session, change.plan.handle, weight, self._names()) for weight in (1, -1)
            )
            return TableDelta(added, None if change.insert_only else removed, change.plan.rows), before
        frame = engine.frame(change.plan).toDF(*self._names(), _SIGN)
        moved = violations(frame, expectations, sf.col(_SIGN))
        after = {name: before.get(name, 0) + count for name, count in moved.items()}
        require_expectations_met(self.task.name, frame.where(f"{_SIGN} = 1").drop(_SIGN), expectations, after)
        rows = without_flags(frame, expectations)
        added, removed = (rows.where(f"{_SIGN} = {sign}").drop(_SIGN) for sign in (1, -1))
        return TableDelta(added, None if change.insert_only else removed, change.plan.rows), after

    def _commit(
        self,
        staged: Sequence[Staged],
        removed_positions: Mapping[str, Sequence[int]],
        metadata: CommitMetadata,
    ) -> Version:
        if removed_positions:
            return self.task.table.apply(self.task.fork, staged, removed_positions, metadata).version
        if any(part.rows for part in staged):
            return self.task.table.commit_staged(self.task.fork, staged, metadata).version
        # A lost store is rebuilt from commit metadata, so it must name the new inputs of unchanged rows.
        self.task.table.commit_metadata_only(self.task.fork, metadata)
        return self.task.fork.version

    def _record(
        self, choice: Choice, nodes: tuple[NodeRefresh, ...], delta_rows: int, rows_in: int, rows_out: int
    ) -> Refresh:
        mode = worst_mode(
            [RefreshMode.APPEND if rows_out == 0 else RefreshMode.INCREMENTAL, *(n.mode for n in nodes)]
        )
        # Following the change was expected to be cheapest, but a node may have been computed in full.
        deciding = mode in (RefreshMode.DIFF, RefreshMode.FULL)
        reason = next(
            (node_needs_mode(node) for node in nodes if deciding and node.mode is mode), choice.reason
        )
        return Refresh(
            mode=mode,
            reason=reason,
            rows_inserted=rows_in,
            rows_deleted=rows_out,
            nodes=nodes,
            estimate_ms=choice.estimate_ms,
            delta_rows=choice.delta_rows or delta_rows,
        )
