"""Lowering of aggregates and of what rules build around their state.

What the query says stays Catalyst's own expressions; what is ours is SQL over columns called by their ids.
An exact sum follows deletes by subtraction; how many values it counted is kept beside it, because SUM of
nothing is NULL and not 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from tautochrone.algebra.nodes import (
    MERGE_FUNCTIONS,
    WEIGHT,
    Aggregate,
    AggregateCall,
    AggregateFunction,
    ChangedGroups,
    ColumnId,
    Consolidate,
    Expression,
    FinalAggregate,
    MergeGroups,
    Node,
    PartialAggregate,
    PredicateChange,
    TopK,
)
from tautochrone.model.names import quoted
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.translate.exact_variance import argument_type, sum_terms, variance_sql

if TYPE_CHECKING:
    from tautochrone.spark.translate.to_catalyst import Lowering

__all__ = ["GroupLowering"]

_BITS = {AggregateFunction.BIT_AND: "&", AggregateFunction.BIT_OR: "|", AggregateFunction.BIT_XOR: "^"}


class GroupLowering:
    """The part of a `Lowering` for nodes that look at many rows at once."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    # -- nodes of the query -----------------------------------------------------------------------

    def aggregate(self, node: Aggregate) -> JavaObject:
        low = self._lowering
        catalyst = low.catalyst
        child = low.coalesced(node.child)
        keys = low.attributes(node.keys)
        calls = [low.columns.named(call.output, call.handle) for call in node.calls]
        return catalyst.logical("Aggregate")(
            catalyst.seq(keys), catalyst.seq([*keys, *calls]), child, catalyst.none
        )

    def top_k(self, node: TopK) -> JavaObject:
        low = self._lowering
        catalyst = low.catalyst
        plan = catalyst.logical("Sort")(
            catalyst.seq(node.order), True, low.coalesced(node.child), catalyst.none
        )
        if node.offset:
            plan = catalyst.logical("Offset")(catalyst.literal(node.offset), plan)
        limit = catalyst.literal(node.limit)
        return catalyst.logical("GlobalLimit")(limit, catalyst.logical("LocalLimit")(limit, plan))

    # -- Z-sets ------------------------------------------------------------------------------------

    def consolidate(self, node: Consolidate) -> JavaObject:
        """Equal rows of both signs cancel; what is left stands once per copy."""
        low = self._lowering
        rows = [quoted(column) for column in node.columns[:-1]]
        summed = low.coalesced_frame(node.child).groupBy(*rows).agg(sf.expr(f"sum({WEIGHT}) AS taut_sum"))
        copies = "explode(array_repeat(CAST(signum(taut_sum) AS INT), CAST(abs(taut_sum) AS INT)))"
        return low.with_column_ids(summed.where("taut_sum <> 0").selectExpr(*rows, copies), node.columns)

    def predicate_change(self, node: PredicateChange) -> JavaObject:
        low = self._lowering
        was, now = low.columns.fresh(), low.columns.fresh()
        rows = node.columns[:-1]
        plan = low.join_scalars(low.plan(node.child), node.before)
        plan = low.project([*low.attributes(rows), low.columns.named(was, node.condition.handle)], plan)
        plan = low.join_scalars(plan, node.after)
        plan = low.project(
            [*low.attributes((*rows, was)), low.columns.named(now, node.condition.handle)], plan
        )
        frame = self._named(plan, (*rows, was, now))
        turned = frame.where(f"coalesce({was}, false) <> coalesce({now}, false)")
        sign = f"CASE WHEN {now} THEN 1 ELSE -1 END"
        return low.with_column_ids(turned.selectExpr(*map(quoted, rows), sign), node.columns)

    # -- state ------------------------------------------------------------------------------------

    def partial_aggregate(self, node: PartialAggregate) -> JavaObject:
        low = self._lowering
        aggregate = node.aggregate
        names: dict[int, ColumnId] = {}
        frame = self._with(node.child, (*aggregate.keys, WEIGHT), _expressions(aggregate), names)
        texts = [f"sum(CAST({WEIGHT} AS BIGINT))"]
        for call in aggregate.calls:
            texts.extend(self._sums(call, names))
        texts.extend(self._removed(call, names) for call in aggregate.calls)
        # Several functions of one value keep much of the same.
        made = {text: f"v{place}" for place, text in enumerate(dict.fromkeys(texts))}
        grouped = frame.groupBy(*map(quoted, aggregate.keys)).agg(
            *(sf.expr(f"{text} AS {name}") for text, name in made.items())
        )
        if not aggregate.keys:
            # Without rows there is nothing to add, not a group of nothing.
            grouped = grouped.where("v0 IS NOT NULL")
        if len(made) < len(texts):
            chosen = [f"{made[text]} AS w{place}" for place, text in enumerate(texts)]
            grouped = grouped.selectExpr(*map(quoted, aggregate.keys), *chosen)
        return low.with_column_ids(grouped, node.columns)

    def _sums(self, call: AggregateCall, names: Mapping[int, ColumnId]) -> list[str]:
        """What rows add to the accumulators of a call."""
        there, value = _counted(call, names)
        number = f"coalesce(sum({_where(there, f'CAST({WEIGHT} AS BIGINT)')}), 0L)"
        if call.function is AggregateFunction.COUNT:
            return [number]
        if call.function in (AggregateFunction.SUM, AggregateFunction.AVERAGE):
            wide = f"CAST({value} AS {self._type(call.accumulators[0])})"
            moved = _where(there, f"CASE WHEN {WEIGHT} > 0 THEN {wide} ELSE -{wide} END")
            return [f"CAST(sum({moved}) AS {self._type(call.accumulators[0])})", number]
        if call.function is AggregateFunction.VARIANCE:
            both = zip(sum_terms(str(value), argument_type(call)), call.accumulators[:-1], strict=True)
            sums = [
                f"CAST(sum({_where(there, f'{power} * {WEIGHT}')}) AS {self._type(column)})"
                for power, column in both
            ]
            return [*sums, number]
        return [f"{call.function}({value}) FILTER (WHERE {there} AND {WEIGHT} > 0)"]

    def _removed(self, call: AggregateCall, names: Mapping[int, ColumnId]) -> str:
        """What tells that a call must look again: the extremum, or the number, of the values taken out."""
        there, value = _counted(call, names)
        if call.function in (AggregateFunction.MIN, AggregateFunction.MAX):
            return f"{call.function}({value}) FILTER (WHERE {there} AND {WEIGHT} < 0)"
        if call.exact and call.function not in MERGE_FUNCTIONS:
            return "0L"
        return f"count_if({there} AND {WEIGHT} < 0)"

    def merge_groups(self, node: MergeGroups) -> JavaObject:
        low = self._lowering
        aggregate = node.aggregate
        # The rows to merge are few, and so are those of their groups: no statistics needed.
        added = low.coalesced_frame(node.partial).alias("new")
        stored = low.coalesced_frame(node.stored).alias("old")
        same = " AND ".join(f"new.{key} <=> old.{key}" for key in aggregate.keys) or "true"
        here = bool(aggregate.keys) and low.is_small(node.partial) and low.is_small(node.stored)
        joined = added.join(stored.hint("shuffle_hash" if here else "broadcast"), sf.expr(same), "left")
        removed = dict(
            zip((call.output for call in aggregate.calls), node.partial_aggregate.removed, strict=True)
        )
        alive = f"({_plus(aggregate.count)}) > 0"
        after, unsure = [_plus(aggregate.count)], ["false"]
        for call in aggregate.calls:
            merged, unknown = self._merge(call, removed[call.output])
            # A group that vanished comes back without its past.
            after.extend(f"CASE WHEN {alive} THEN {text} END" for text in merged)
            unsure.append(f"coalesce({unknown}, false)")
        recompute = f"{alive} AND ({' OR '.join(unsure)})"
        chosen = joined.selectExpr(
            *(f"new.{key}" for key in aggregate.keys),
            *(f"old.{column}" for column in aggregate.accumulators),
            *after,
            recompute,
        )
        return low.with_column_ids(chosen, node.columns)

    def _merge(self, call: AggregateCall, removed: ColumnId) -> tuple[list[str], str]:
        """A call's accumulators after the change, and whether they may be wrong."""
        first = call.accumulators[0]
        before, add = f"old.{first}", f"new.{first}"
        if call.function is AggregateFunction.COUNT:
            return [_plus(first)], "false"
        if call.function in (AggregateFunction.SUM, AggregateFunction.AVERAGE, AggregateFunction.VARIANCE):
            *sums, count = call.accumulators
            number = _plus(count)
            kept = [f"CASE WHEN ({number}) > 0 THEN {self._total(column)} END" for column in sums]
            return [*kept, number], "false" if call.exact else f"new.{removed} > 0"
        if call.function in _BITS:
            both = f"CAST({before} {_BITS[call.function]} {add} AS {self._type(first)})"
            return [f"coalesce({both}, {before}, {add})"], f"new.{removed} > 0"
        ahead, reached = ("<", "<=") if call.function is AggregateFunction.MIN else (">", ">=")
        extremum = f"CASE WHEN {before} IS NULL OR {add} {ahead} {before} THEN {add} ELSE {before} END"
        return [extremum], f"new.{removed} {reached} ({extremum})"

    def _total(self, column: ColumnId) -> str:
        before, add = f"old.{column}", f"new.{column}"
        both = f"CAST({before} + {add} AS {self._type(column)})"
        return f"CASE WHEN {before} IS NULL THEN {add} WHEN {add} IS NULL THEN {before} ELSE {both} END"

    def final_aggregate(self, node: FinalAggregate) -> JavaObject:
        low = self._lowering
        aggregate = node.aggregate
        source = dict(zip(aggregate.accumulators, node.sources, strict=True))
        if aggregate.keys:
            frame = low.named_frame(node.child).where(f"{source[aggregate.count]} > 0")
        else:
            catalyst = low.catalyst
            one = catalyst.logical("OneRowRelation")()
            plan = catalyst.logical("Join")(
                one, low.plan(node.child), low.join_type("LeftOuter"), catalyst.none, catalyst.no_hint
            )
            frame = self._named(plan, node.child.columns)
        chosen = frame.select(
            *map(quoted, aggregate.keys), *map(self._column, self._values(aggregate, source))
        )
        return low.with_column_ids(chosen, node.columns)

    def changed_groups(self, node: ChangedGroups) -> JavaObject:
        low = self._lowering
        aggregate = node.aggregate
        sides = [
            dict(zip(aggregate.accumulators, columns, strict=True))
            for columns in (node.before, aggregate.accumulators)
        ]
        was, now = (f"coalesce({source[aggregate.count]} > 0, false)" for source in sides)
        texts = [f"{was} <> {now}"]
        computed = []
        for before, after in zip(*(self._values(aggregate, source) for source in sides), strict=True):
            if isinstance(before, str) and isinstance(after, str):
                texts.append(f"NOT ({before} <=> {after})")
            else:
                computed.append(~self._column(before).eqNullSafe(self._column(after)))
        # One text where it can be: each operator on columns is a message to the JVM and back.
        other = sf.expr(" OR ".join(texts))
        for condition in computed:
            other = other | condition
        return low.with_column_ids(low.named_frame(node.child).where(other), node.columns)

    def _column(self, value: str | JavaObject) -> Column:
        return sf.expr(value) if isinstance(value, str) else self._lowering.of(value)

    def _values(self, aggregate: Aggregate, source: Mapping[ColumnId, ColumnId]) -> list[str | JavaObject]:
        return [
            self._value(call, [source[column] for column in call.accumulators]) for call in aggregate.calls
        ]

    def _value(self, call: AggregateCall, sources: Sequence[ColumnId]) -> str | JavaObject:
        wanted = self._type(call.output)
        if call.function is AggregateFunction.COUNT:
            return f"CAST(coalesce({sources[0]}, 0) AS {wanted})"
        if call.function in MERGE_FUNCTIONS:
            return str(sources[0])
        if call.function is AggregateFunction.VARIANCE:
            return variance_sql(call.handle.aggregateFunction(), argument_type(call), *map(str, sources))
        total, number = sources
        if call.function is AggregateFunction.SUM:
            return f"CASE WHEN {number} > 0 THEN CAST({total} AS {wanted}) END"
        if not wanted.startswith("decimal"):
            return f"CASE WHEN {number} > 0 THEN CAST({total} AS DOUBLE) / CAST({number} AS DOUBLE) END"
        return self._exact_average(call, total, number)

    def _exact_average(self, call: AggregateCall, total: ColumnId, number: ColumnId) -> JavaObject:
        """Sum by number as Spark's own function divides them, to the last digit; 0 by 0 is NULL there."""
        low = self._lowering
        function = call.handle.aggregateFunction()
        unresolved = low.catalyst.java_object("catalyst.analysis.UnresolvedAttribute")
        buffers = [
            (function.aggBufferAttributes().apply(place).exprId().id(), name)
            for place, name in enumerate((total, f"coalesce({number}, 0L)"))
        ]
        parser = low.catalyst.session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        ours = {
            buffers[0][0]: unresolved.quoted(str(total)),
            buffers[1][0]: parser.parseExpression(str(buffers[1][1])),
        }

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) != "AttributeReference":
                return None
            return ours.get(expression.exprId().id())

        return low.catalyst.transform_down(function.evaluateExpression(), replace)

    # -- inside -----------------------------------------------------------------------------------

    def _named(self, plan: JavaObject, columns: Sequence[ColumnId]) -> DataFrame:
        return dataframe_of_plan(self._lowering.catalyst.session, plan).toDF(*columns)

    def _with(
        self,
        node: Node,
        columns: tuple[ColumnId, ...],
        expressions: Sequence[Expression],
        names: dict[int, ColumnId],
    ) -> DataFrame:
        """Columns of a node and expressions of the query over it, whose names go into `names`."""
        low = self._lowering
        plan = low.coalesced(node)
        distinct: list[Expression] = []
        for expression in expressions:
            same = next((e for e in distinct if e.handle.semanticEquals(expression.handle)), None)
            if same is None:
                distinct.append(expression)
            names[id(expression)] = low.columns.fresh() if same is None else names[id(same)]
        named = [low.columns.named(names[id(e)], e.handle) for e in distinct]
        whole = (*columns, *(names[id(expression)] for expression in distinct))
        return self._named(low.project([*low.attributes(columns), *named], plan), whole)

    def _type(self, column: ColumnId) -> str:
        return str(self._lowering.columns.attribute(column).dataType().sql()).lower()


def _expressions(aggregate: Aggregate) -> list[Expression]:
    found = [expression for call in aggregate.calls for expression in (call.argument, call.condition)]
    return [expression for expression in found if expression is not None]


def _counted(call: AggregateCall, names: Mapping[int, ColumnId]) -> tuple[str, ColumnId | None]:
    """Whether a row counts for a call, as SQL, and the column of its value."""
    parts = []
    if call.condition is not None:
        parts.append(f"coalesce({names[id(call.condition)]}, false)")
    value = None if call.argument is None else names[id(call.argument)]
    if value is not None:
        parts.append(f"{value} IS NOT NULL")
    return " AND ".join(parts) or "true", value


def _where(condition: str, value: str) -> str:
    """A value where a condition holds, else NULL, which a sum leaves out: FILTER is compiled to more code."""
    return value if condition == "true" else f"CASE WHEN {condition} THEN {value} END"


def _plus(column: ColumnId) -> str:
    return f"coalesce(old.{column}, 0L) + coalesce(new.{column}, 0L)"
