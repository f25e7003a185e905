"""The algebra's engine on Spark: computes plans and keeps small results on the driver. By it a query gets the
one result, of several that Spark may give, that a followed view has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.algebra.delta import NO_CHANGE, Change, Differentiator, zset_columns
from tautochrone.algebra.nodes import (
    ColumnId,
    Consolidate,
    Constant,
    CutSide,
    KeySemiJoin,
    Materialized,
    Node,
    NullExtend,
    Rename,
    Scan,
    ScanAtCut,
    StateScan,
    Union,
    WithWeight,
    row_wise_parts,
    walk,
)
from tautochrone.algebra.rules import RULES
from tautochrone.model import limits
from tautochrone.model.names import TableName, quoted
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.key_lookups import LookupRequest
from tautochrone.spark.execute.materialize import (
    computed_on_executors,
    few_rows,
    fits_on_driver,
    local_relation,
    rows_up_to,
    unpersist,
)
from tautochrone.spark.execute.repeated_plans import (
    RepeatedPlans,
    is_repeatable,
    leaf_of_rows,
    repeated_plan,
    run_again,
    shape_of,
)
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind, known_row_count, name_of
from tautochrone.spark.jvm.driver_calls import output_and_size, select_expressions
from tautochrone.spark.jvm.driver_rows import rows_with_keys
from tautochrone.spark.translate.from_catalyst import plan_of
from tautochrone.spark.translate.lowering_context import Columns, LeafPlans, RowFilter
from tautochrone.spark.translate.to_catalyst import Leaf, Lowering

__all__ = ["Inputs", "SparkEngine", "TableDelta", "are_few", "with_total_order"]


def are_few(rows: int | None) -> bool:
    """Whether a node that reads this many rows is computed in one task. None: the number is unknown."""
    return rows is not None and rows <= limits.MAX_SINGLE_TASK_ROWS


@dataclass(frozen=True, slots=True)
class TableDelta:
    """The rows added to and removed from a table; None where no row was.

    Attributes:
        rows: upper bound of the number of rows of both.
        materialized: the rows are computed, and `rows` is their exact number.
    """

    added: DataFrame | None
    removed: DataFrame | None
    rows: int
    materialized: bool = False


@dataclass(frozen=True, slots=True)
class _Delta:
    """A table's change: `plan` computes the Z-set, `sides` are the inserted and the deleted rows."""

    plan: Node
    sides: tuple[Materialized, ...]
    insert_only: bool

    def values(self, values_of: Callable[[Materialized], frozenset[Any] | None]) -> frozenset[Any] | None:
        """The values of both sides together; None if `values_of` returns None for one of them."""
        by_side = [values_of(side) for side in self.sides]
        return None if None in by_side else frozenset().union(*(values or () for values in by_side))


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What a leaf of a plan reads.

    Attributes:
        rows: a local relation.
        over: makes the leaf's plan of a plan of these rows.
        is_of_table: whether `over` takes the rows' columns by their names.
    """

    rows: JavaObject
    over: Callable[[JavaObject], JavaObject]
    is_of_table: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """How an engine reads tables and states.

    Attributes:
        read: all rows of a table at a cut.
        delta: its change between the cuts, with these columns at least; None when no row changed.
        rows: number of rows of a table at the newer cut; None when it is unknown.
        stored_rows: number of rows of the state of a stateful node; None when it is unknown.
        log: the rows of a state's log, all of them.
        newest: of the rows of a state's log the newest of each key, as `stored` has them.
        stored: the state of a stateful node: its rows with the state's columns in order, one per group. The
            filter is applied to the state's log, whose first columns are these, before that is grouped.
        lookup: rows of a table at a cut that contain all rows with one of the keys; see
            `KeyLookups.candidate_rows`.
    """

    read: Callable[[TableName, CutSide], DataFrame]
    delta: Callable[[TableName, Sequence[str]], TableDelta | None]
    rows: Callable[[TableName], int | None]
    stored_rows: Callable[[int], int | None]
    stored: Callable[[int, RowFilter | None], DataFrame]
    log: Callable[[int], DataFrame]
    newest: Callable[[int, DataFrame], DataFrame]
    lookup: Callable[
        [TableName, CutSide, LookupRequest, Callable[[], LookupRequest | None]], DataFrame | None
    ]


@dataclass(slots=True)
class SparkEngine:
    """One refresh. See `algebra.delta.Engine`.

    Attributes:
        plans: of earlier refreshes of the same view.
        query: the view's.
        delta_rows: number of changed rows of the inputs whose changes were read so far.
    """

    catalyst: Catalyst
    attributes: Mapping[ColumnId, JavaObject]
    inputs: Inputs
    scans: tuple[Scan, ...]
    plans: RepeatedPlans | None = None
    query: Node | None = None
    delta_rows: int = 0
    columns: Columns = field(init=False)
    lowering: Lowering = field(init=False)
    _of_query: frozenset[int] = field(init=False)
    _deltas: dict[TableName, _Delta | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_query = frozenset() if self.query is None else frozenset(map(id, walk(self.query)))
        self.columns = Columns(self.catalyst, self.attributes)
        self.lowering = Lowering(
            self.catalyst,
            self.columns,
            LeafPlans(
                self._rows_at,
                self._state_rows,
                self._lookup,
                self.reads_few_rows,
                self._reads_many_rows_at_cut,
            ),
        )

    # -- the protocol -----------------------------------------------------------------------------

    def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
        fits = not may_be_large and self._is_known_to_fit_on_driver(plan)
        repeated = self._materialize_repeated(plan) if fits else None
        if repeated is not None:
            return repeated
        result = self._materialize_few(plan) if fits else None
        if result is None:
            result = self._materialize_uncounted(plan.columns, self.lowering.frame(plan))
        handle, rows = result
        return Materialized(columns=plan.columns, handle=handle, rows=rows)

    def _materialize_few(self, plan: Node) -> tuple[JavaObject, int] | None:
        """A local relation of rows that should be few; None when they are too many."""
        # Each part is computed on the driver; a union of them would need a Spark job.
        frames = [self.lowering.frame(part) for part in row_wise_parts(plan) or (plan,)]
        if not self._may_multiply(plan):
            return self._materialize_on_driver(plan.columns, *frames)
        limited = [rows_up_to(frame, limits.MAX_DRIVER_ROWS) for frame in frames]
        handle, rows = self._materialize_on_driver(plan.columns, *limited)
        return (handle, rows) if fits_on_driver(rows) else None

    def _materialize_repeated(self, plan: Node) -> Materialized | None:
        """The same by a plan that an earlier refresh made of the same shape; None if that is not possible."""
        plans = self.plans
        if plans is None or not plans.are_met_again:
            return None
        shape = shape_of(plan, self._of_query, self.attributes)
        if shape is None or not shape.leaves or plans.cannot_be_made(shape.key):
            return None
        large = [leaf for leaf in shape.leaves if not self.reads_few_rows(leaf)]
        # To gather takes time, so what needs no rows is tested first.
        if not all(map(self._may_have_few_rows, large)) or not self._reads_few_rows_besides(
            plan, set(map(id, shape.leaves))
        ):
            return None
        gathered = self._all_gathered(shape.leaves, large)
        plans.note_gathered(shape.key, are_few=gathered is not None)
        if gathered is None:
            return None
        rows = [each.rows for each in gathered]
        session = self.catalyst.session

        def make() -> JavaObject | None:
            leaves = [leaf_of_rows(session, each) for each in rows]
            over = (each.over for each in gathered)
            replacements = zip(shape.leaves, map(Leaf, leaves, over), strict=True)
            frame = self.lowering.repeatable_frame(plan, list(replacements))
            if not is_repeatable(frame):
                return None
            return repeated_plan(frame, leaves, [each.is_of_table for each in gathered])

        # Rows of a table, which a plan takes by their names, are no leaf for a plan that takes them by order.
        key = shape.key, tuple(each.is_of_table for each in gathered)
        physical = plans.of(key, make)
        if physical is None:
            plans.refuse(shape.key)
            return None
        relation = run_again(session, physical, rows, list(map(self.columns.number, plan.columns)))
        if relation is None:
            plans.drop(key)
            return None
        output, size = output_and_size(relation)
        self.columns.define(plan.columns, output)
        return Materialized(columns=plan.columns, handle=relation, rows=size)

    def _all_gathered(self, leaves: Sequence[Node], large: Sequence[Node]) -> list[_Gathered] | None:
        """What each of these leaves of a plan reads; None if it is too much for one task.

        Args:
            leaves: all of them.
            large: those of large tables and states.
        """
        looked_up: dict[int, _Gathered] = {}
        for leaf in large:
            rows = self._gathered_by_keys(leaf)
            if rows is None:
                return None
            looked_up[id(leaf)] = rows
        return [looked_up.get(id(leaf)) or self._gathered(leaf) for leaf in leaves]

    def _reads_few_rows_besides(self, plan: Node, leaves: Collection[int]) -> bool:
        if id(plan) in leaves:
            return True
        if not plan.children:
            return self.reads_few_rows(plan)
        return all(self._reads_few_rows_besides(child, leaves) for child in plan.children)

    def _may_have_few_rows(self, leaf: Node) -> bool:
        """Whether a leaf may read few rows of a large table or state: those with some keys."""
        if not isinstance(leaf, KeySemiJoin) or leaf.anti or not self._is_held(leaf.keys):
            return False
        if isinstance(leaf.child, ScanAtCut):
            return all(column in leaf.child.scan.handle for column, _ in leaf.on)
        return isinstance(leaf.child, StateScan)

    def _gathered_by_keys(self, leaf: Node) -> _Gathered | None:
        """The rows of a leaf that `_may_have_few_rows`; None if they cannot be looked up or are not few."""
        assert isinstance(leaf, KeySemiJoin)
        if isinstance(leaf.child, StateScan):
            rows = few_rows(
                self.lowering.frame(leaf),
                limits.MAX_SINGLE_TASK_ROWS,
                lambda output: self.columns.with_expected_ids(output, leaf.columns),
            )
            return None if rows is None else _Gathered(rows, lambda plan: plan, False)
        assert isinstance(leaf.child, ScanAtCut)
        scan, keys = leaf.child.scan, leaf.keys
        assert isinstance(keys, Materialized)
        candidates = self._looked_up(leaf, leaf.child)
        if candidates is None or kind(analyzed_plan(candidates)) != "LocalRelation":
            return None
        names = candidates.columns
        columns = [self._name(column) for column, _ in leaf.on]
        if not set(columns) <= set(names):
            return None
        selected = rows_with_keys(
            analyzed_plan(candidates),
            [names.index(name) for name in columns],
            keys.handle,
            [keys.columns.index(source) for _, source in leaf.on],
            null_safe=leaf.null_safe,
            # A look-up has columns for other views, too: a plan must not depend on them.
            output=[names.index(name) for name in sorted(self._scanned(scan).intersection(names))],
        )
        if selected is None or not are_few(int(selected.data().size())):
            return None
        session = self.catalyst.session
        return _Gathered(
            selected, lambda plan: self._scan_output(scan, dataframe_of_plan(session, plan)), True
        )

    def _scanned(self, scan: Scan) -> set[str]:
        """The names of the columns that a scan reads."""
        return {self._name(column) for column in scan.columns if column in scan.handle}

    @staticmethod
    def _is_held(node: Node) -> bool:
        """Whether a node is a result of few rows that the driver holds."""
        return isinstance(node, Materialized) and are_few(node.rows) and kind(node.handle) == "LocalRelation"

    def _gathered(self, leaf: Node) -> _Gathered:
        """What a leaf reads. Rows of small tables and states are as they are stored: what a leaf makes of
        them is part of the plan."""
        session = self.catalyst.session
        if isinstance(leaf, ScanAtCut):
            rows = analyzed_plan(self.inputs.read(leaf.scan.table, leaf.side))
            if kind(rows) == "LocalRelation":
                return _Gathered(
                    rows, lambda plan: self._scan_output(leaf.scan, dataframe_of_plan(session, plan)), True
                )
        elif isinstance(leaf, StateScan):
            rows = analyzed_plan(self.inputs.log(leaf.operator.number))
            if kind(rows) == "LocalRelation":
                return _Gathered(
                    rows,
                    lambda plan: self._state_output(
                        leaf, self.inputs.newest(leaf.operator.number, dataframe_of_plan(session, plan))
                    ),
                    True,
                )
        elif isinstance(leaf, Materialized) and kind(leaf.handle) == "LocalRelation":
            return _Gathered(leaf.handle, lambda plan: plan, False)
        rows, _ = self._materialize_on_driver(leaf.columns, self.lowering.frame(leaf))
        return _Gathered(rows, lambda plan: plan, False)

    def change_of(self, scan: Scan) -> Change:
        delta = self._delta(scan.table)
        if delta is None:
            return NO_CHANGE
        names = self._column_names(scan.table)
        used = tuple(column for column in scan.columns if column in scan.handle)
        sources = tuple(delta.plan.columns[names.index(self._name(column))] for column in used)
        # Without the columns that only other occurrences read, a row may occur with both weights.
        consolidated = {*delta.plan.columns} <= {*zset_columns(sources)}
        plan: Node = Rename(columns=zset_columns(used), child=delta.plan, sources=zset_columns(sources))
        if used != scan.columns:
            nulls = tuple(column for column in scan.columns if column not in scan.handle)
            plan = NullExtend(columns=zset_columns(scan.columns), child=plan, nulls=nulls, like=scan)
        return Change(plan, delta.insert_only, consolidated)

    def fresh(self) -> ColumnId:
        return self.columns.fresh()

    def reads_few_rows(self, node: Node) -> bool:
        """Whether all rows that a node reads fit into one task."""
        return all(are_few(self._leaf_rows(leaf)) for leaf in walk(node) if not leaf.children)

    def _reads_many_rows_at_cut(self, node: Node) -> bool:
        """Like `reads_many_rows`, for a plan at a cut."""
        counts = [self._leaf_rows(leaf) for leaf in walk(node) if isinstance(leaf, ScanAtCut | StateScan)]
        return any(count is None or count > limits.LARGE_RELATION_ROWS for count in counts)

    def _leaf_rows(self, leaf: Node) -> int | None:
        match leaf:
            case Materialized():
                return leaf.rows
            case Scan():
                return self.inputs.rows(leaf.table)
            case ScanAtCut():
                rows = self.inputs.rows(leaf.scan.table)
                # The rows that were deleted since are in the older version.
                return rows if rows is None or leaf.side is CutSide.AFTER else rows + self.delta_rows
            case StateScan():
                return self.inputs.stored_rows(leaf.operator.number)
            case Constant():
                return known_row_count(leaf.handle)
            case _:
                return None

    def reads_many_rows(self, node: Node) -> bool:
        counts = [self.inputs.rows(leaf.table) for leaf in walk(node) if isinstance(leaf, Scan)]
        return any(count is None or count > limits.LARGE_RELATION_ROWS for count in counts)

    def _is_known_to_fit_on_driver(self, plan: Node) -> bool:
        """Whether a plan's result may be collected to the driver without counting its rows first.

        A plan over few changed rows gives few rows, unless it reads a large materialized result, or each may
        meet many rows of a large input.
        """
        results = [leaf for leaf in walk(plan) if isinstance(leaf, Materialized)]
        if fits_on_driver(self.delta_rows) and all(fits_on_driver(result.rows) for result in results):
            return True
        rows = plan.max_rows(self._leaf_rows)
        return rows is not None and fits_on_driver(rows)

    def _may_multiply(self, plan: Node) -> bool:
        return plan.may_multiply(lambda leaf: are_few(self._leaf_rows(leaf)))

    # -- inputs -----------------------------------------------------------------------------------

    def _name(self, column: ColumnId) -> str:
        return name_of(self.columns.attribute(column))

    def _column_names(self, table: TableName) -> list[str]:
        """Names of the columns that any occurrence of a table reads."""
        used = (self._name(c) for scan in self.scans if scan.table == table for c in sorted(scan.handle))
        return list(dict.fromkeys(used))

    def _delta(self, table: TableName) -> _Delta | None:
        """A table's change, read once for all its occurrences."""
        if table not in self._deltas:
            delta = self.inputs.delta(table, self._column_names(table))
            self._deltas[table] = None if delta is None else self._read_delta(table, delta)
        return self._deltas[table]

    def read_changes(self) -> None:
        """Read the changes of all inputs. Afterwards `delta_rows` counts them all."""
        for scan in self.scans:
            self._delta(scan.table)

    def _read_delta(self, table: TableName, delta: TableDelta) -> _Delta | None:
        names = self._column_names(table)
        ids = tuple(self.fresh() for _ in names)
        sides: list[Materialized] = []
        parts: list[Node] = []
        for frame, sign in ((delta.added, 1), (delta.removed, -1)):
            if frame is None:
                continue
            rows_plan = self._with_planned_types(table, select_expressions(frame, map(quoted, names)), ids)
            sides.append(Materialized(columns=ids, handle=rows_plan, rows=delta.rows))
            parts.append(WithWeight(columns=zset_columns(ids), child=sides[-1], sign=sign))
        if not parts:
            return None
        zset = parts[0] if len(parts) == 1 else Union(columns=zset_columns(ids), inputs=tuple(parts))
        insert_only = delta.removed is None
        plan = zset if insert_only else Consolidate(columns=zset.columns, child=zset)
        occurs_once = sum(scan.table == table for scan in self.scans) == 1
        if delta.materialized and occurs_once and not fits_on_driver(delta.rows):
            # Its only reader computes it in one Spark job with the operators above it.
            self.delta_rows += delta.rows
            return _Delta(plan, tuple(sides), insert_only)
        result = self._materialized_delta(plan, max_rows=delta.rows)
        self.delta_rows += result.rows
        return _Delta(result, (result,), insert_only) if result.rows else None

    def _materialized_delta(self, plan: Node, max_rows: int) -> Materialized:
        """A change of at most `max_rows` rows, materialized.

        The bound counts all rows of rewritten files, most of which are unchanged. So above the driver's limit
        the changed rows are counted.
        """
        fits = fits_on_driver(max_rows)
        materialize = self._materialize_on_driver if fits else self._materialize_uncounted
        handle, rows = materialize(plan.columns, self.lowering.frame(plan))
        return Materialized(columns=plan.columns, handle=handle, rows=rows)

    def _lookup(self, node: KeySemiJoin, scan_at_cut: ScanAtCut) -> JavaObject | None:
        """The plan of `_looked_up`."""
        rows = self._looked_up(node, scan_at_cut)
        return None if rows is None else self._scan_output(scan_at_cut.scan, rows)

    def _looked_up(self, node: KeySemiJoin, scan_at_cut: ScanAtCut) -> DataFrame | None:
        """Cached rows of an input, at least those with one of the keys. None: there are too many, or the
        input is so small that it is read whole."""
        keys, scan = node.keys, scan_at_cut.scan
        many = self._reads_many_rows_at_cut(scan_at_cut)
        if not isinstance(keys, Materialized) or not (many or not self.reads_few_rows(scan_at_cut)):
            return None
        candidates = []
        for column, source in node.on:
            values = self.lowering.keys.values(column, keys, source, fetch=many)
            # The lookup compares by `=`, which finds no NULL.
            if values is not None and column in scan.handle and not (node.null_safe and None in values):
                candidates.append((len(values), column, source, values - {None}))
        if not candidates:
            return None
        # The column with the most distinct keys is the most selective one.
        _, column, source, values = max(candidates, key=lambda candidate: candidate[0])
        type_name = str(self.columns.attribute(column).dataType().catalogString())
        request = LookupRequest(self._name(column), type_name, values, self._column_names(scan.table))
        wider = partial(self._wider_request, column, source, request)
        return self.inputs.lookup(scan.table, scan_at_cut.side, request, wider)

    def _wider_request(
        self, column: ColumnId, source: ColumnId, request: LookupRequest
    ) -> LookupRequest | None:
        """The same request with all keys of the change, of which this view's filters passed only some. Other
        views may need the others. None: the request has them all."""
        scan = next((scan for scan in self.scans if source in scan.handle), None)
        delta = None if scan is None else self._delta(scan.table)
        if scan is None or delta is None:
            return None
        position = self._column_names(scan.table).index(self._name(source))
        keys = self.lowering.keys
        values = delta.values(lambda side: keys.values(column, side, side.columns[position], fetch=True))
        if values is None or not request.values < values:
            return None
        return replace(request, values=values - {None})

    def _rows_at(self, node: ScanAtCut) -> JavaObject:
        return self._scan_output(node.scan, self.inputs.read(node.scan.table, node.side))

    def _scan_output(self, scan: Scan, frame: DataFrame) -> JavaObject:
        """A plan of a table's rows with the output of a scan."""
        plan = analyzed_plan(frame)
        output = dict(zip(frame.columns, items(plan.output()), strict=True))
        stored = {
            column: output[name]
            for column in scan.columns
            if column in scan.handle and (name := self._name(column)) in output
        }
        cast = dict(zip(stored, self.lowering.cast_as_planned([*stored], [*stored.values()]), strict=True))
        named = [
            self.columns.named(column, cast.get(column) or self.lowering.null_like(column))
            for column in scan.columns
        ]
        return self.lowering.project(named, plan)

    def _with_planned_types(
        self, table: TableName, frame: DataFrame, ids: tuple[ColumnId, ...]
    ) -> JavaObject:
        """Changed rows with the types that the table has in the plan. The change of a view below may have
        narrower types than the view's table."""
        planned = {self._name(c): c for scan in self.scans if scan.table == table for c in scan.handle}
        plan = analyzed_plan(frame)
        columns = [planned[name] for name in frame.columns]
        named = self.lowering.named_as_planned(ids, columns, list(items(plan.output())))
        return self.lowering.project(named, plan)

    def _state_rows(self, node: StateScan, row_filter: RowFilter | None) -> JavaObject:
        return self._state_output(node, self.inputs.stored(node.operator.number, row_filter))

    def _state_output(self, node: StateScan, rows: DataFrame) -> JavaObject:
        plan = analyzed_plan(rows)
        output = list(items(plan.output()))
        return self.lowering.project(self.lowering.named_as_planned(node.columns, node.columns, output), plan)

    # -- results ----------------------------------------------------------------------------------

    def is_on_driver(self, plan: Node) -> bool:
        """Whether all leaves of a plan are results on the driver."""
        leaves = (leaf for leaf in walk(plan) if not leaf.children)
        return all(isinstance(leaf, Materialized) and kind(leaf.handle) == "LocalRelation" for leaf in leaves)

    def materialized(self, plan: Node) -> Materialized:
        """The result of a plan, which may be one already."""
        return plan if isinstance(plan, Materialized) else self.materialize(plan)

    def frame(self, plan: Node) -> DataFrame:
        """A DataFrame of a plan, columns in order. It needs no Spark job if the plan `is_on_driver`."""
        return self.lowering.frame(plan)

    def _materialize_on_driver(
        self, columns: tuple[ColumnId, ...], *frames: DataFrame
    ) -> tuple[JavaObject, int]:
        """A local relation of the rows of DataFrames, with `columns`, and the number of rows."""
        return local_relation(
            *frames, with_ids=lambda output: self.columns.with_expected_ids(output, columns)
        )

    def _materialize_uncounted(
        self, columns: tuple[ColumnId, ...], frame: DataFrame
    ) -> tuple[JavaObject, int]:
        """The same for a number of rows that is not known yet: many rows stay on the executors."""
        cached, rows = computed_on_executors(frame)
        if fits_on_driver(rows):
            result = self._materialize_on_driver(columns, cached)
            unpersist(cached)
            return result
        return self.lowering.with_column_ids(cached, columns), rows


# -- queries as a whole ----------------------------------------------------------------------------


def with_total_order(frame: DataFrame, catalog: str) -> DataFrame | None:
    """The rows of a query whose ROW_NUMBER, LAG or LIMIT take tied rows in the order of all columns.

    None if the query has no such place, or cannot be followed.

    Args:
        frame: the query; its tables are read as its session shows them.
        catalog: the lake's.
    """
    view = plan_of(frame, catalog)
    if view.obstacles != view.float_uses or not view.breaks_ties:
        return None
    session = frame.sparkSession

    def read(table: TableName, _side: CutSide) -> DataFrame:
        return session.table(table.sql)

    def no_lookup(
        _table: TableName,
        _side: CutSide,
        _request: LookupRequest,
        _wider: Callable[[], LookupRequest | None],
    ) -> None:
        return None

    def no_state(*_: object) -> NoReturn:
        raise AssertionError("a query that is computed as a whole has no states")

    inputs = Inputs(
        read=read,
        delta=lambda _table, _columns: None,
        rows=lambda _table: None,
        stored_rows=lambda _number: None,
        stored=no_state,
        log=no_state,
        newest=no_state,
        lookup=no_lookup,
    )
    nodes = dict.fromkeys(walk(view.plan))
    scans = tuple(node for node in nodes if isinstance(node, Scan))
    engine = SparkEngine(Catalyst(session), view.attributes, inputs, scans)
    plan = Differentiator(engine, RULES, states=frozenset()).rows_after(view.plan)
    return engine.lowering.frame(plan).toDF(*frame.columns)
