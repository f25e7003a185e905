"""Lowering of semi joins with keys: as literals if there are few, so that files without them are pruned.

A join of a large table with few keys would read the whole table; literals are compared with the statistics of
its files. Many keys are joined, and only their ranges are compared with the statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.algebra.nodes import (
    ColumnId,
    KeySemiJoin,
    Materialized,
    MultiKeySemiJoin,
    Node,
    ScanAtCut,
    StateScan,
)
from tautochrone.model import limits
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import items
from tautochrone.spark.translate.lowering_context import LoweringContext

__all__ = ["lower_key_semi_join", "lower_multi_key_semi_join", "lower_superset", "should_broadcast"]


def should_broadcast(node: Node, width: int) -> bool:
    """Whether a join side with `width` columns is small enough to be broadcast.

    Spark cannot decide it: its estimate for a materialized result is the size of the inputs.
    """
    return isinstance(node, Materialized) and node.rows * width <= limits.MAX_BROADCAST_VALUES


def lower_key_semi_join(lowering: LoweringContext, node: KeySemiJoin) -> JavaObject:
    """A semi join of the child with the keys, or an anti join if `anti`."""
    if node.anti:
        attributes = lowering.attributes(tuple(column for column, _ in node.on))
        join_type = lowering.join_type("LeftAnti")
        return _join_keys(
            lowering,
            lowering.plan(node.child),
            attributes,
            node,
            join_type,
            in_one_task=lowering.reads_few_rows(node),
        )
    conditions, exact = _conditions(lowering, node)
    if isinstance(node.child, StateScan):
        plan = _state_rows(lowering, node, node.child, joined=not exact)
        return _filtered(lowering, conditions, plan)
    plan = _filtered(lowering, conditions, _child(lowering, node))
    if exact:
        return plan
    attributes = lowering.attributes(tuple(column for column, _ in node.on))
    join_type = lowering.join_type("LeftSemi")
    return _join_keys(lowering, plan, attributes, node, join_type, in_one_task=lowering.reads_few_rows(node))


def lower_superset(lowering: LoweringContext, node: KeySemiJoin) -> JavaObject:
    """The child's rows with one of the keys, and maybe others: a join above compares the keys again."""
    conditions, _ = _conditions(lowering, node)
    return _filtered(lowering, conditions, _child(lowering, node))


def lower_multi_key_semi_join(lowering: LoweringContext, node: MultiKeySemiJoin) -> JavaObject:
    """The child's rows whose key is in any of several sets, by one read of the child."""
    catalyst = lowering.catalyst
    plan = lowering.plan(node.child)
    conditions: list[JavaObject] = []
    for keys, on, null_safe in zip(node.keys, node.on, node.null_safe, strict=True):
        semi_join = KeySemiJoin(columns=node.columns, child=node.child, keys=keys, on=on, null_safe=null_safe)
        condition = _key_condition(lowering, semi_join)
        if condition is None:
            flag = lowering.columns.named(lowering.columns.fresh(), catalyst.literal(True)).toAttribute()
            join_type = catalyst.spark_sql_class("catalyst.plans.ExistenceJoin")(flag)
            attributes = lowering.attributes(tuple(column for column, _ in on))
            plan = _join_keys(
                lowering, plan, attributes, semi_join, join_type, in_one_task=lowering.reads_few_rows(node)
            )
            condition = flag
        conditions.append(condition)
    any_condition = conditions[0]
    for condition in conditions[1:]:
        any_condition = catalyst.expression("Or")(any_condition, condition)
    return lowering.selected(catalyst.logical("Filter")(any_condition, plan), node.columns)


def _child(lowering: LoweringContext, node: KeySemiJoin) -> JavaObject:
    """The child's plan; for a table, only the rows with one of the keys if a key lookup is cached."""
    rows = lowering.leaves.lookup(node, node.child) if isinstance(node.child, ScanAtCut) else None
    return lowering.plan(node.child) if rows is None else rows


def _conditions(lowering: LoweringContext, node: KeySemiJoin) -> tuple[list[JavaObject], bool]:
    """Conditions that are true for all rows with one of the keys, and whether they are true only for
    those."""
    if not isinstance(node.keys, Materialized):
        return [], False
    fetch = lowering.leaves.reads_many_rows(node.child)
    conditions = [
        lowering.keys.condition(column, node.keys, source, null_safe=node.null_safe, fetch=fetch)
        for column, source in node.on
    ]
    exact = len(conditions) == 1 and conditions[0][1]
    return [condition for condition, _ in conditions if condition is not None], exact


def _key_condition(lowering: LoweringContext, node: KeySemiJoin) -> JavaObject | None:
    """One condition of literals for all columns of a key; None when a column has no exact one."""
    assert isinstance(node.keys, Materialized)
    conjunction: JavaObject | None = None
    for column, source in node.on:
        part, exact = lowering.keys.condition(column, node.keys, source, null_safe=node.null_safe)
        if part is None or not exact:
            return None
        conjunction = part if conjunction is None else lowering.catalyst.expression("And")(conjunction, part)
    return conjunction


def _filtered(lowering: LoweringContext, conditions: Sequence[JavaObject], plan: JavaObject) -> JavaObject:
    for condition in conditions:
        plan = lowering.catalyst.logical("Filter")(condition, plan)
    return plan


def _state_rows(
    lowering: LoweringContext, node: KeySemiJoin, state: StateScan, *, joined: bool
) -> JavaObject:
    """Rows of a state. The keys are joined below its grouping: otherwise its whole log would be grouped,
    because Spark pushes conditions below a grouping but not joins."""

    def with_keys(log: DataFrame) -> DataFrame:
        plan = analyzed_plan(log)
        output = list(items(plan.output()))
        positions = [state.columns.index(column) for column, _ in node.on]
        keys = lowering.cast_as_planned([state.columns[i] for i in positions], [output[i] for i in positions])
        join_type = lowering.join_type("LeftSemi")
        joined_plan = _join_keys(
            lowering, plan, keys, node, join_type, in_one_task=lowering.reads_few_rows(node)
        )
        return dataframe_of_plan(lowering.catalyst.session, joined_plan)

    return lowering.leaves.state(state, with_keys if joined else None)


def _join_keys(
    lowering: LoweringContext,
    plan: JavaObject,
    values: Sequence[JavaObject],
    node: KeySemiJoin,
    join_type: JavaObject,
    *,
    in_one_task: bool,
) -> JavaObject:
    """`plan` joined with the keys by equality with `values`. The keys get new column ids.

    With `in_one_task` the join runs in one task.
    """
    catalyst, columns = lowering.catalyst, lowering.columns
    ids: list[ColumnId] = [columns.fresh() for _ in node.on]
    sources = [columns.attribute(source) for _, source in node.on]
    named = [columns.named(new, source) for new, source in zip(ids, sources, strict=True)]
    keys_plan = lowering.project(named, lowering.plan(node.keys))
    conditions = [
        lowering.equal(value, columns.attribute(new), null_safe=node.null_safe)
        for value, new in zip(values, ids, strict=True)
    ]
    hint = catalyst.broadcast_right_hint if should_broadcast(node.keys, len(ids)) else catalyst.no_hint
    if in_one_task:
        plan, keys_plan, hint = (
            lowering.coalesce(plan),
            lowering.coalesce(keys_plan),
            catalyst.shuffle_hash_hint,
        )
    return catalyst.logical("Join")(plan, keys_plan, join_type, lowering.conjunction(conditions), hint)
