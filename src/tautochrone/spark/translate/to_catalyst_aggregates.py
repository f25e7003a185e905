"""Lowering of aggregates and of the nodes that delta rules build around their state.

The query's own expressions stay Catalyst expressions; those of the rules are SQL over columns named by their
ids. An exact sum handles deletes by subtraction. Its state also has the number of summed values, because the
SUM of no values is NULL and not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

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
)
from tautochrone.model.names import quoted
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.jvm.driver_calls import select_expressions, with_names
from tautochrone.spark.translate.exact_variance import argument_type, sum_terms, variance_sql
from tautochrone.spark.translate.lowering_context import LoweringContext

__all__ = ["AggregateLowering"]

_BITS = {AggregateFunction.BIT_AND: "&", AggregateFunction.BIT_OR: "|", AggregateFunction.BIT_XOR: "^"}


class AggregateLowering:
    """The part of a `LoweringContext` for nodes whose output depends on several rows."""

    def __init__(self, lowering: LoweringContext) -> None:
        self._lowering = lowering
        self.rules: Mapping[type[Node], Callable[[Any], JavaObject]] = {
            Aggregate: self._aggregate,
            Consolidate: self._consolidate,
            PredicateChange: self._predicate_change,
            PartialAggregate: self._partial_aggregate,
            MergeGroups: self._merge_groups,
            FinalAggregate: self._final_aggregate,
            ChangedGroups: self._changed_groups,
        }

    def _aggregate(self, node: Aggregate) -> JavaObject:
        lowering = self._lowering
        catalyst = lowering.catalyst
        child = lowering.coalesced(node.child)
        keys = lowering.attributes(node.keys)
        calls = [lowering.columns.named(call.output, call.handle) for call in node.calls]
        return catalyst.logical("Aggregate")(
            catalyst.seq(keys), catalyst.seq([*keys, *calls]), child, catalyst.none
        )

    # -- Z-sets -----------------------------------------------------------------------------------

    def _consolidate(self, node: Consolidate) -> JavaObject:
        """Equal rows with opposite weights cancel; the remaining ones occur once per copy, with weight ±1.

        GROUP BY takes -0.0 for 0.0, but functions of the two differ: these do not cancel.
        """
        lowering = self._lowering
        frame = lowering.coalesced_frame_named_by_ids(node.child)
        keys, aggregates, rows = _zset_grouping(frame.schema)
        sums = (f"sum({WEIGHT}) AS taut_sum", *aggregates)
        summed = frame.groupBy(*map(sf.expr, keys)).agg(*map(sf.expr, sums))
        copies = "explode(array_repeat(CAST(signum(taut_sum) AS INT), CAST(abs(taut_sum) AS INT)))"
        return lowering.with_column_ids(
            select_expressions(summed.where("taut_sum <> 0"), [*rows, copies]), node.columns
        )

    def _predicate_change(self, node: PredicateChange) -> JavaObject:
        lowering = self._lowering
        before, after = lowering.columns.fresh(), lowering.columns.fresh()
        rows = node.columns[:-1]
        plan = lowering.join_scalars(node.child, node.before)
        plan = lowering.project(
            [*lowering.attributes(rows), lowering.columns.named(before, node.condition.handle)], plan
        )
        plan = lowering.with_scalars(plan, node.child, node.after)
        plan = lowering.project(
            [*lowering.attributes((*rows, before)), lowering.columns.named(after, node.condition.handle)],
            plan,
        )
        frame = self._named(plan, (*rows, before, after))
        changed = frame.where(f"coalesce({before}, false) <> coalesce({after}, false)")
        weight = f"CASE WHEN {after} THEN 1 ELSE -1 END"
        return lowering.with_column_ids(
            select_expressions(changed, [*map(quoted, rows), weight]), node.columns
        )

    # -- state ------------------------------------------------------------------------------------

    def _partial_aggregate(self, node: PartialAggregate) -> JavaObject:
        lowering = self._lowering
        aggregate = node.aggregate
        names: dict[int, ColumnId] = {}
        frame = self._with_expressions(node.child, (*aggregate.keys, WEIGHT), _expressions(aggregate), names)
        sums = [f"sum(CAST({WEIGHT} AS BIGINT))"]
        for call in aggregate.calls:
            sums.extend(self._sums(call, names))
        sums.extend(self._removed(call, names) for call in aggregate.calls)
        # Several functions of one argument need the same sums: each is computed once.
        aliases = {sql: f"v{i}" for i, sql in enumerate(dict.fromkeys(sums))}
        grouped = frame.groupBy(*map(quoted, aggregate.keys)).agg(
            *(sf.expr(f"{sql} AS {alias}") for sql, alias in aliases.items())
        )
        if not aggregate.keys:
            # Without rows an aggregate without keys would return one empty group; here it must return none.
            grouped = grouped.where("v0 IS NOT NULL")
        if len(aliases) < len(sums):
            columns = [f"{aliases[sql]} AS w{i}" for i, sql in enumerate(sums)]
            grouped = select_expressions(grouped, [*map(quoted, aggregate.keys), *columns])
        return lowering.with_column_ids(grouped, node.columns)

    def _sums(self, call: AggregateCall, names: Mapping[int, ColumnId]) -> list[str]:
        """SQL of the sums that the rows of a group add to the accumulators of a call."""
        counts, value = _counting_condition(call, names)
        count = f"coalesce(sum({_if_true(counts, f'CAST({WEIGHT} AS BIGINT)')}), 0L)"
        if call.function is AggregateFunction.COUNT:
            return [count]
        if call.function in (AggregateFunction.SUM, AggregateFunction.AVERAGE):
            summand = f"CAST({value} AS {self._type(call.accumulators[0])})"
            signed = _if_true(counts, f"CASE WHEN {WEIGHT} > 0 THEN {summand} ELSE -{summand} END")
            return [f"CAST(sum({signed}) AS {self._type(call.accumulators[0])})", count]
        if call.function is AggregateFunction.VARIANCE:
            terms = zip(sum_terms(str(value), argument_type(call)), call.accumulators[:-1], strict=True)
            sums = [
                f"CAST(sum({_if_true(counts, f'{term} * {WEIGHT}')}) AS {self._type(column)})"
                for term, column in terms
            ]
            return [*sums, count]
        return [f"{call.function}({value}) FILTER (WHERE {counts} AND {WEIGHT} > 0)"]

    def _removed(self, call: AggregateCall, names: Mapping[int, ColumnId]) -> str:
        """SQL of the extremum or the number of removed values, or the number of all values of a sum that may
        overflow. `_merge` decides by it whether a group must be
        recomputed."""
        counts, value = _counting_condition(call, names)
        if call.function in (AggregateFunction.MIN, AggregateFunction.MAX):
            return f"{call.function}({value}) FILTER (WHERE {counts} AND {WEIGHT} < 0)"
        if call.may_overflow:
            return f"count_if({counts})"
        if call.exact and call.function not in MERGE_FUNCTIONS:
            return "0L"
        return f"count_if({counts} AND {WEIGHT} < 0)"

    def _merge_groups(self, node: MergeGroups) -> JavaObject:
        lowering = self._lowering
        aggregate = node.aggregate
        # Both sides have one row per changed group, so the hint needs no statistics.
        added = lowering.coalesced_frame_named_by_ids(node.partial).alias("new")
        stored = lowering.coalesced_frame_named_by_ids(node.stored).alias("old")
        in_one_task = lowering.reads_few_rows(node.partial) and lowering.reads_few_rows(node.stored)
        same_key = " AND ".join(f"new.{key} <=> old.{key}" for key in aggregate.keys)
        if not same_key:
            # See `always_equal`.
            count = aggregate.count
            same_key = f"hash(new.{count}) & 0 = hash(old.{count}) & 0" if in_one_task else "true"
        joined = added.join(
            stored.hint("shuffle_hash" if in_one_task else "broadcast"), sf.expr(same_key), "left"
        )
        removed = dict(
            zip((call.output for call in aggregate.calls), node.partial_aggregate.removed, strict=True)
        )
        exists = f"({_plus(aggregate.count)}) > 0"
        after, recompute = [_plus(aggregate.count)], ["false"]
        for call in aggregate.calls:
            merged, stale = self._merge(call, removed[call.output])
            # A group without rows has no accumulators, so that it starts anew when it comes back.
            after.extend(f"CASE WHEN {exists} THEN {sql} END" for sql in merged)
            recompute.append(f"coalesce({stale}, false)")
        needs_recompute = f"{exists} AND ({' OR '.join(recompute)})"
        keys = [f"new.{key}" for key in aggregate.keys]
        before = [f"old.{column}" for column in aggregate.accumulators]
        rows = select_expressions(joined, [*keys, *before, *after, needs_recompute])
        return lowering.with_column_ids(rows, node.columns)

    def _merge(self, call: AggregateCall, removed: ColumnId) -> tuple[list[str], str]:
        """SQL of a call's accumulators after the change, and of whether the group must be recomputed
        instead."""
        first = call.accumulators[0]
        before, add = f"old.{first}", f"new.{first}"
        if call.function is AggregateFunction.COUNT:
            return [_plus(first)], "false"
        if call.function in (AggregateFunction.SUM, AggregateFunction.AVERAGE, AggregateFunction.VARIANCE):
            *sums, count = call.accumulators
            merged_count = _plus(count)
            merged = [f"CASE WHEN ({merged_count}) > 0 THEN {self._total(column)} END" for column in sums]
            if call.may_overflow:
                # A sum of values that is NULL has overflowed, before, in the change, or now.
                stale = f"{before} IS NULL AND old.{count} > 0 OR {add} IS NULL AND new.{removed} > 0"
                return [*merged, merged_count], f"{stale} OR ({merged_count}) > 0 AND {merged[0]} IS NULL"
            return [*merged, merged_count], "false" if call.exact else f"new.{removed} > 0"
        if call.function in _BITS:
            combined = f"CAST({before} {_BITS[call.function]} {add} AS {self._type(first)})"
            return [f"coalesce({combined}, {before}, {add})"], f"new.{removed} > 0"
        better, reached = ("<", "<=") if call.function is AggregateFunction.MIN else (">", ">=")
        extremum = f"CASE WHEN {before} IS NULL OR {add} {better} {before} THEN {add} ELSE {before} END"
        return [extremum], f"new.{removed} {reached} ({extremum})"

    def _total(self, column: ColumnId) -> str:
        before, add = f"old.{column}", f"new.{column}"
        sum_of_both = f"CAST({before} + {add} AS {self._type(column)})"
        return (
            f"CASE WHEN {before} IS NULL THEN {add} WHEN {add} IS NULL THEN {before} ELSE {sum_of_both} END"
        )

    def _final_aggregate(self, node: FinalAggregate) -> JavaObject:
        lowering = self._lowering
        aggregate = node.aggregate
        source = dict(zip(aggregate.accumulators, node.sources, strict=True))
        if aggregate.keys:
            frame = lowering.frame_named_by_ids(node.child).where(f"{source[aggregate.count]} > 0")
        else:
            # The only row, or a row of NULLs.
            only = [f"max({column}) AS {column}" for column in node.sources]
            frame = lowering.coalesced_frame_named_by_ids(node.child).groupBy().agg(*map(sf.expr, only))
        rows = frame.select(*map(quoted, aggregate.keys), *map(self._column, self._values(aggregate, source)))
        return lowering.with_column_ids(rows, node.columns)

    def _changed_groups(self, node: ChangedGroups) -> JavaObject:
        lowering = self._lowering
        aggregate = node.aggregate
        sides = [
            dict(zip(aggregate.accumulators, columns, strict=True))
            for columns in (node.before, aggregate.accumulators)
        ]
        existed, exists = (f"coalesce({source[aggregate.count]} > 0, false)" for source in sides)
        differences = [f"{existed} <> {exists}"]
        column_differences = []
        for before, after in zip(*(self._values(aggregate, source) for source in sides), strict=True):
            if isinstance(before, str) and isinstance(after, str):
                differences.append(f"NOT ({before} <=> {after})")
            else:
                column_differences.append(~self._column(before).eqNullSafe(self._column(after)))
        # As one SQL text where possible: each operator on PySpark columns is a round trip to the JVM.
        changed = sf.expr(" OR ".join(differences))
        for difference in column_differences:
            changed = changed | difference
        return lowering.with_column_ids(lowering.frame_named_by_ids(node.child).where(changed), node.columns)

    def _column(self, value: str | JavaObject) -> Column:
        return sf.expr(value) if isinstance(value, str) else self._lowering.catalyst.pyspark_column(value)

    def _values(self, aggregate: Aggregate, source: Mapping[ColumnId, ColumnId]) -> list[str | JavaObject]:
        return [
            self._value(call, [source[column] for column in call.accumulators]) for call in aggregate.calls
        ]

    def _value(self, call: AggregateCall, sources: Sequence[ColumnId]) -> str | JavaObject:
        result_type = self._type(call.output)
        if call.function is AggregateFunction.COUNT:
            return f"CAST(coalesce({sources[0]}, 0) AS {result_type})"
        if call.function in MERGE_FUNCTIONS:
            return str(sources[0])
        if call.function is AggregateFunction.VARIANCE:
            return variance_sql(call.handle.aggregateFunction(), argument_type(call), *map(str, sources))
        total, count = sources
        if call.function is AggregateFunction.SUM:
            return f"CASE WHEN {count} > 0 THEN CAST({total} AS {result_type}) END"
        if not result_type.startswith("decimal"):
            return f"CASE WHEN {count} > 0 THEN CAST({total} AS DOUBLE) / CAST({count} AS DOUBLE) END"
        return self._exact_average(call, total, count)

    def _exact_average(self, call: AggregateCall, total: ColumnId, count: ColumnId) -> JavaObject:
        """Sum divided by count exactly as Spark's own AVG does it; 0 divided by 0 is NULL."""
        lowering = self._lowering
        function = call.handle.aggregateFunction()
        unresolved = lowering.catalyst.spark_sql_class("catalyst.analysis.UnresolvedAttribute")
        buffers = [
            (function.aggBufferAttributes().apply(i).exprId().id(), sql)
            for i, sql in enumerate((total, f"coalesce({count}, 0L)"))
        ]
        parser = lowering.catalyst.session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        buffer_values = {
            buffers[0][0]: unresolved.quoted(str(total)),
            buffers[1][0]: parser.parseExpression(str(buffers[1][1])),
        }

        def replace(expression: JavaObject) -> JavaObject | None:
            if kind(expression) != "AttributeReference":
                return None
            return buffer_values.get(expression.exprId().id())

        return lowering.catalyst.transform_down(function.evaluateExpression(), replace)

    # -- inside -----------------------------------------------------------------------------------

    def _named(self, plan: JavaObject, columns: Sequence[ColumnId]) -> DataFrame:
        return with_names(dataframe_of_plan(self._lowering.catalyst.session, plan), columns)

    def _with_expressions(
        self,
        node: Node,
        columns: tuple[ColumnId, ...],
        expressions: Sequence[Expression],
        names: dict[int, ColumnId],
    ) -> DataFrame:
        """Columns of a node and expressions over it. Adds the new column id of each expression to `names`."""
        lowering = self._lowering
        plan = lowering.coalesced(node)
        distinct: list[Expression] = []
        for expression in expressions:
            equal = next((e for e in distinct if e.handle.semanticEquals(expression.handle)), None)
            if equal is None:
                distinct.append(expression)
            names[id(expression)] = lowering.columns.fresh() if equal is None else names[id(equal)]
        named = [lowering.columns.named(names[id(e)], e.handle) for e in distinct]
        output = (*columns, *(names[id(expression)] for expression in distinct))
        return self._named(lowering.project([*lowering.attributes(columns), *named], plan), output)

    def _type(self, column: ColumnId) -> str:
        return str(self._lowering.columns.attribute(column).dataType().sql()).lower()


def _zset_grouping(schema: StructType) -> tuple[list[str], list[str], list[str]]:
    """SQL by which equal rows of a Z-set are grouped, whose last column is the weight: the keys, and more
    aggregates; and the columns of the rows from both."""
    keys, aggregates, columns = list[str](), list[str](), list[str]()
    for position, column in enumerate(schema.fields[:-1]):
        name, kind_of_column = quoted(column.name), column.dataType.simpleString()
        keys.append(name)
        if kind_of_column in ("float", "double"):
            is_negative = f"taut_zero{position}"
            keys.append(f"{name} = 0 AND CAST({name} AS STRING) = '-0.0' AS {is_negative}")
            columns.append(f"CASE WHEN {is_negative} THEN -{name} ELSE {name} END")
        elif "float" in kind_of_column or "double" in kind_of_column:
            keys.append(f"CAST({name} AS STRING) AS taut_text{position}")
            aggregates.append(f"first({name}) AS taut_row{position}")
            columns.append(f"taut_row{position}")
        else:
            columns.append(name)
    return keys, aggregates, columns


def _expressions(aggregate: Aggregate) -> list[Expression]:
    expressions = [expression for call in aggregate.calls for expression in (call.argument, call.condition)]
    return [expression for expression in expressions if expression is not None]


def _counting_condition(call: AggregateCall, names: Mapping[int, ColumnId]) -> tuple[str, ColumnId | None]:
    """SQL of whether a row counts for a call, and the column of the argument."""
    conditions = []
    if call.condition is not None:
        conditions.append(f"coalesce({names[id(call.condition)]}, false)")
    value = None if call.argument is None else names[id(call.argument)]
    if value is not None:
        conditions.append(f"{value} IS NOT NULL")
    return " AND ".join(conditions) or "true", value


def _if_true(condition: str, value: str) -> str:
    """A value where a condition is true, else NULL, which sums ignore. FILTER would compile to more code."""
    return value if condition == "true" else f"CASE WHEN {condition} THEN {value} END"


def _plus(column: ColumnId) -> str:
    return f"coalesce(old.{column}, 0L) + coalesce(new.{column}, 0L)"
