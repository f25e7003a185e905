"""The algebra's engine on Spark: computes plans, holds small results on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.algebra.delta import NO_CHANGE, Change, zset_columns
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
    walk,
)
from tautochrone.algebra.row_wise import row_wise_parts
from tautochrone.model import limits
from tautochrone.model.names import TableName, quoted
from tautochrone.spark.execute.key_lookups import LookupRequest
from tautochrone.spark.execute.materialize import checkpointed, fits_on_driver, local_relation, unpersist
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind, known_row_count
from tautochrone.spark.translate.to_catalyst import Columns, LeafPlans, Lowering, RowFilter

__all__ = ["Inputs", "SparkEngine", "TableDelta", "are_few"]


def are_few(rows: int | None) -> bool:
    """Whether what reads so many rows is done in one task; None: nobody knows how many."""
    return rows is not None and rows <= limits.MAX_SINGLE_TASK_ROWS


@dataclass(frozen=True, slots=True)
class TableDelta:
    """What was added to and removed from a table, each None when nothing was.

    Attributes:
        rows: at most so many.
        held: they are computed, and were counted.
    """

    added: DataFrame | None
    removed: DataFrame | None
    rows: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class _Delta:
    """A table's change: `plan` computes the Z-set, `sides` are the inserted and the deleted rows."""

    plan: Node
    sides: tuple[Materialized, ...]
    insert_only: bool

    def values(self, of: Callable[[Materialized], frozenset[Any] | None]) -> frozenset[Any] | None:
        """All that `of` answers for the sides; None where it answers None."""
        found = [of(side) for side in self.sides]
        return None if None in found else frozenset().union(*(values or () for values in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """How an engine reads tables and states.

    Attributes:
        read: all rows of a table at a cut.
        delta: its change between the cuts with these columns at least; None when it did not move.
        rows: how many rows a table has at the newer cut; None when nobody knows.
        stored_rows: how many rows the state of a stateful node has, likewise.
        stored: the state of a stateful node: its rows with the state's columns in order, one per group.
            What it is given is done to its log, where these columns come first, before that is grouped.
        lookup: rows of a table at a cut whose key is among some, and maybe others; see `Lookups`.
    """

    read: Callable[[TableName, CutSide], DataFrame]
    delta: Callable[[TableName, Sequence[str]], TableDelta | None]
    rows: Callable[[TableName], int | None]
    stored_rows: Callable[[int], int | None]
    stored: Callable[[int, RowFilter | None], DataFrame]
    lookup: Callable[
        [TableName, CutSide, LookupRequest, Callable[[], LookupRequest | None]], DataFrame | None
    ]


@dataclass(slots=True)
class SparkEngine:
    """One refresh. See `algebra.delta.Engine`.

    `delta_rows` counts the rows that the inputs' changes hold.
    """

    catalyst: Catalyst
    attributes: Mapping[ColumnId, JavaObject]
    inputs: Inputs
    scans: tuple[Scan, ...]
    delta_rows: int = 0
    columns: Columns = field(init=False)
    lowering: Lowering = field(init=False)
    _deltas: dict[TableName, _Delta | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.columns = Columns(self.catalyst, self.attributes)
        self.lowering = Lowering(
            self.catalyst,
            self.columns,
            LeafPlans(self._rows_at, self._stored, self._looked_up, self.is_small, self._many),
        )

    # -- the protocol -----------------------------------------------------------------------------

    def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
        if may_be_large or not self._surely_few(plan):
            handle, rows = self._hold_fitting(plan.columns, self.lowering.frame(plan))
        else:
            # Each piece is computed on the driver; a union of them would be a job.
            parts = row_wise_parts(plan) or (plan,)
            handle, rows = self._hold_here(plan.columns, *(self.lowering.frame(part) for part in parts))
        return Materialized(columns=plan.columns, handle=handle, rows=rows)

    def change_of(self, scan: Scan) -> Change:
        found = self._delta(scan.table)
        if found is None:
            return NO_CHANGE
        names = self._names_of(scan.table)
        used = tuple(column for column in scan.columns if column in scan.handle)
        sources = tuple(found.plan.columns[names.index(self._name(column))] for column in used)
        # A row may be there with both signs once columns are left out that another occurrence reads.
        consolidated = {*found.plan.columns} <= {*zset_columns(sources)}
        plan: Node = Rename(columns=zset_columns(used), child=found.plan, sources=zset_columns(sources))
        if used != scan.columns:
            nulls = tuple(column for column in scan.columns if column not in scan.handle)
            plan = NullExtend(columns=zset_columns(scan.columns), child=plan, nulls=nulls, like=scan)
        return Change(plan, found.insert_only, consolidated)

    def fresh(self) -> ColumnId:
        return self.columns.fresh()

    def is_small(self, node: Node) -> bool:
        """Whether all rows that a node reads fit into one task."""
        return all(are_few(self._leaf_rows(leaf)) for leaf in walk(node) if not leaf.children)

    def _many(self, node: Node) -> bool:
        """Like `is_large`, of a plan at a cut."""
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
                # All that went was there before.
                return rows if rows is None or leaf.side is CutSide.AFTER else rows + self.delta_rows
            case StateScan():
                return self.inputs.stored_rows(leaf.operator.number)
            case Constant():
                return known_row_count(leaf.handle)
            case _:
                return None

    def is_large(self, node: Node) -> bool:
        counts = [self.inputs.rows(leaf.table) for leaf in walk(node) if isinstance(leaf, Scan)]
        return any(count is None or count > limits.LARGE_RELATION_ROWS for count in counts)

    def _surely_few(self, plan: Node) -> bool:
        """Whether a plan's result may be held on the driver without being counted before.

        What follows from few changed rows is small, unless it is made of a materialized result that is not.
        """
        results = [leaf for leaf in walk(plan) if isinstance(leaf, Materialized)]
        if fits_on_driver(self.delta_rows) and all(fits_on_driver(result.rows) for result in results):
            return True
        rows = plan.max_rows(self._leaf_rows)
        return rows is not None and fits_on_driver(rows)

    # -- inputs -----------------------------------------------------------------------------------

    def _name(self, column: ColumnId) -> str:
        return str(self.columns.attribute(column).name())

    def _names_of(self, table: TableName) -> list[str]:
        """Names of the columns that any occurrence of a table uses."""
        used = (self._name(c) for scan in self.scans if scan.table == table for c in sorted(scan.handle))
        return list(dict.fromkeys(used))

    def _delta(self, table: TableName) -> _Delta | None:
        """A table's change, read once for all its occurrences."""
        if table not in self._deltas:
            found = self.inputs.delta(table, self._names_of(table))
            self._deltas[table] = None if found is None else self._read_delta(table, found)
        return self._deltas[table]

    def read_changes(self) -> None:
        """Read the changes of all inputs. Only upper bounds were known before; `delta_rows` is exact then."""
        for scan in self.scans:
            self._delta(scan.table)

    def _read_delta(self, table: TableName, found: TableDelta) -> _Delta | None:
        names = self._names_of(table)
        ids = tuple(self.fresh() for _ in names)
        sides: list[Materialized] = []
        parts: list[Node] = []
        for frame, sign in ((found.added, 1), (found.removed, -1)):
            if frame is None:
                continue
            chosen = self._typed(table, frame.select(*map(quoted, names)), ids)
            sides.append(Materialized(columns=ids, handle=chosen, rows=found.rows))
            parts.append(WithWeight(columns=zset_columns(ids), child=sides[-1], sign=sign))
        if not parts:
            return None
        whole = parts[0] if len(parts) == 1 else Union(columns=zset_columns(ids), inputs=tuple(parts))
        insert_only = found.removed is None
        plan = whole if insert_only else Consolidate(columns=whole.columns, child=whole)
        once = sum(scan.table == table for scan in self.scans) == 1
        if found.held and once and not fits_on_driver(found.rows):
            # Whoever asks for it computes it together with what the query does to it.
            self.delta_rows += found.rows
            return _Delta(plan, tuple(sides), insert_only)
        kept = self._kept_delta(plan, most=found.rows)
        self.delta_rows += kept.rows
        return _Delta(kept, (kept,), insert_only) if kept.rows else None

    def _kept_delta(self, plan: Node, most: int) -> Materialized:
        """A change of at most `most` rows, held. A rewritten file holds mostly what it held before, so only
        the change itself tells whether the driver can hold it."""
        hold = self._hold_here if fits_on_driver(most) else self._hold_fitting
        handle, rows = hold(plan.columns, self.lowering.frame(plan))
        return Materialized(columns=plan.columns, handle=handle, rows=rows)

    def _looked_up(self, node: KeySemiJoin, at: ScanAtCut) -> JavaObject | None:
        """Rows of an input that are held, all those with one of the keys; None: not worth it or too many."""
        keys, scan = node.keys, at.scan
        if not isinstance(keys, Materialized) or not self._many(at):
            return None
        found = []
        for column, source in node.on:
            values = self.lowering.keys.values(column, keys, source, fetch=True)
            # A NULL would have to be asked for otherwise than a value.
            if values is not None and column in scan.handle and not (node.null_safe and None in values):
                found.append((len(values), column, source, values - {None}))
        if not found:
            return None
        # Of several columns the one that tells rows apart best; by another there would be more of them.
        _, column, source, values = max(found, key=lambda each: each[0])
        type_name = str(self.columns.attribute(column).dataType().catalogString())
        wanted = LookupRequest(self._name(column), type_name, values, self._names_of(scan.table))
        wider = partial(self._wider, column, source, wanted)
        rows = self.inputs.lookup(scan.table, at.side, wanted, wider)
        return None if rows is None else self._of_scan(scan, rows)

    def _wider(self, column: ColumnId, source: ColumnId, wanted: LookupRequest) -> LookupRequest | None:
        """All keys of the change that some were chosen from, by a filter of this view; None when there are no
        others."""
        scan = next((scan for scan in self.scans if source in scan.handle), None)
        changed = None if scan is None else self._delta(scan.table)
        if scan is None or changed is None:
            return None
        place = self._names_of(scan.table).index(self._name(source))
        keys = self.lowering.keys
        more = changed.values(lambda side: keys.values(column, side, side.columns[place], fetch=True))
        return replace(wanted, values=more - {None}) if more is not None and wanted.values < more else None

    def _rows_at(self, node: ScanAtCut) -> JavaObject:
        return self._of_scan(node.scan, self.inputs.read(node.scan.table, node.side))

    def _of_scan(self, scan: Scan, frame: DataFrame) -> JavaObject:
        """Rows of a table as a scan gives them."""
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        output = dict(zip(frame.columns, items(plan.output()), strict=True))
        named = []
        for column in scan.columns:
            attribute = output.get(self._name(column)) if column in scan.handle else None
            if attribute is None:
                named.append(self.columns.named(column, self.lowering.null_like(column)))
                continue
            named.append(self.columns.named(column, self.lowering.cast_as_planned(column, attribute)))
        return self.lowering.project(named, plan)

    def _typed(self, table: TableName, frame: DataFrame, ids: tuple[ColumnId, ...]) -> JavaObject:
        """Changed rows, with the types that the plan knows of the table: a view below may just have told
        narrower ones than it stores."""
        planned = {self._name(c): c for scan in self.scans if scan.table == table for c in scan.handle}
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        named = [
            self.columns.named(column, self.lowering.cast_as_planned(planned[name], attribute))
            for name, column, attribute in zip(frame.columns, ids, items(plan.output()), strict=True)
        ]
        return self.lowering.project(named, plan)

    def _stored(self, node: StateScan, only: RowFilter | None) -> JavaObject:
        plan = self.inputs.stored(node.operator.number, only)._jdf.queryExecution().analyzed()  # noqa: SLF001
        pairs = zip(node.columns, items(plan.output()), strict=True)
        named = [
            self.columns.named(column, self.lowering.cast_as_planned(column, entry))
            for column, entry in pairs
        ]
        return self.lowering.project(named, plan)

    # -- results ----------------------------------------------------------------------------------

    def is_on_driver(self, plan: Node) -> bool:
        """Whether all that a plan is made of is held on the driver."""
        leaves = (leaf for leaf in walk(plan) if not leaf.children)
        return all(isinstance(leaf, Materialized) and kind(leaf.handle) == "LocalRelation" for leaf in leaves)

    def frame(self, plan: Node) -> DataFrame:
        """A plan's rows as a DataFrame, columns in order; over held results it needs no Spark job."""
        return self.lowering.frame(plan)

    def _hold_here(self, columns: tuple[ColumnId, ...], *frames: DataFrame) -> tuple[JavaObject, int]:
        """A local relation of the computed rows, with `columns`, and how many there are."""
        return local_relation(
            *frames, identify=lambda output: self.columns.with_expected_ids(output, columns)
        )

    def _hold_fitting(self, columns: tuple[ColumnId, ...], frame: DataFrame) -> tuple[JavaObject, int]:
        """The same for rows that nobody counted yet: many stay where they were computed."""
        held, rows = checkpointed(frame)
        if fits_on_driver(rows):
            here = self._hold_here(columns, held)
            unpersist(held)
            return here
        return self.lowering.with_column_ids(held, columns), rows
