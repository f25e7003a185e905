"""Restricting a relation to keys: as literals while they are few, so that files without them are not read.

A join of a large table with few keys reads all of the table; literals are held against its files' statistics.
Many keys are joined; the ranges in which they lie are held against the statistics then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import items

if TYPE_CHECKING:
    from tautochrone.spark.translate.to_catalyst import Lowering

__all__ = ["lower_key_semi_join", "lower_multi_key_semi_join", "lower_superset", "should_broadcast"]


def should_broadcast(node: Node, width: int) -> bool:
    """Whether `width` columns of a side of a join are known to be little enough to be broadcast. Spark does
    not know: what it keeps for us counts as large as what it was computed from."""
    return isinstance(node, Materialized) and node.rows * width <= limits.MAX_BROADCAST_VALUES


def lower_key_semi_join(lowering: Lowering, node: KeySemiJoin) -> JavaObject:
    """The child's rows whose key occurs in the keys, or does not."""
    if node.anti:
        attributes = lowering.attributes(tuple(column for column, _ in node.on))
        how = lowering.join_type("LeftAnti")
        return _met(
            lowering, lowering.plan(node.child), attributes, node, how, is_small=lowering.is_small(node)
        )
    conditions, exact = _conditions(lowering, node)
    if isinstance(node.child, StateScan):
        plan = _of_state(lowering, node, node.child, joined=not exact)
        return _where(lowering, conditions, plan)
    plan = _where(lowering, conditions, _child(lowering, node))
    if exact:
        return plan
    attributes = lowering.attributes(tuple(column for column, _ in node.on))
    how = lowering.join_type("LeftSemi")
    return _met(lowering, plan, attributes, node, how, is_small=lowering.is_small(node))


def lower_superset(lowering: Lowering, node: KeySemiJoin) -> JavaObject:
    """Rows of the child, all of those whose key occurs in the keys: a join above asks again."""
    conditions, _ = _conditions(lowering, node)
    return _where(lowering, conditions, _child(lowering, node))


def lower_multi_key_semi_join(lowering: Lowering, node: MultiKeySemiJoin) -> JavaObject:
    """The child's rows that meet any of several sets of keys, read once."""
    catalyst = lowering.catalyst
    plan = lowering.plan(node.child)
    wanted: list[JavaObject] = []
    for keys, on, null_safe in zip(node.keys, node.on, node.null_safe, strict=True):
        one = KeySemiJoin(columns=node.columns, child=node.child, keys=keys, on=on, null_safe=null_safe)
        found = _all_of(lowering, one)
        if found is None:
            flag = lowering.columns.named(lowering.columns.fresh(), catalyst.literal(True)).toAttribute()
            how = catalyst.java_object("catalyst.plans.ExistenceJoin")(flag)
            attributes = lowering.attributes(tuple(column for column, _ in on))
            plan = _met(lowering, plan, attributes, one, how, is_small=lowering.is_small(node))
            found = flag
        wanted.append(found)
    any_of = wanted[0]
    for other in wanted[1:]:
        any_of = catalyst.expression("Or")(any_of, other)
    return lowering.selected(catalyst.logical("Filter")(any_of, plan), node.columns)


def _child(lowering: Lowering, node: KeySemiJoin) -> JavaObject:
    """The child's rows, or only those with one of the keys where another look-up has found them."""
    found = lowering.rows.lookup(node, node.child) if isinstance(node.child, ScanAtCut) else None
    return lowering.plan(node.child) if found is None else found


def _conditions(lowering: Lowering, node: KeySemiJoin) -> tuple[list[JavaObject], bool]:
    """Conditions that all rows with a key meet, and whether no others do."""
    if not isinstance(node.keys, Materialized):
        return [], False
    fetch = lowering.rows.many(node.child)
    found = [
        lowering.keys.condition(column, node.keys, source, null_safe=node.null_safe, fetch=fetch)
        for column, source in node.on
    ]
    exact = len(found) == 1 and found[0][1]
    return [condition for condition, _ in found if condition is not None], exact


def _all_of(lowering: Lowering, node: KeySemiJoin) -> JavaObject | None:
    """A condition on each column of a key; None when one of them cannot be written out."""
    assert isinstance(node.keys, Materialized)
    whole: JavaObject | None = None
    for column, source in node.on:
        part, exact = lowering.keys.condition(column, node.keys, source, null_safe=node.null_safe)
        if part is None or not exact:
            return None
        whole = part if whole is None else lowering.catalyst.expression("And")(whole, part)
    return whole


def _where(lowering: Lowering, conditions: Sequence[JavaObject], plan: JavaObject) -> JavaObject:
    for condition in conditions:
        plan = lowering.catalyst.logical("Filter")(condition, plan)
    return plan


def _of_state(lowering: Lowering, node: KeySemiJoin, state: StateScan, *, joined: bool) -> JavaObject:
    """Rows of a state. Keys are asked for below its grouping, or all of its log would be grouped; conditions
    go there by themselves."""

    def only(log: DataFrame) -> DataFrame:
        plan = log._jdf.queryExecution().analyzed()  # noqa: SLF001
        output = list(items(plan.output()))
        places = [state.columns.index(column) for column, _ in node.on]
        keys = [lowering.cast_as_planned(state.columns[place], output[place]) for place in places]
        how = lowering.join_type("LeftSemi")
        made = _met(lowering, plan, keys, node, how, is_small=lowering.is_small(node))
        return dataframe_of_plan(lowering.catalyst.session, made)

    return lowering.rows.stored(state, only if joined else None)


def _met(
    lowering: Lowering,
    plan: JavaObject,
    values: Sequence[JavaObject],
    node: KeySemiJoin,
    how: JavaObject,
    *,
    is_small: bool,
) -> JavaObject:
    """`plan` with `values` of its columns joined with the keys under ids of their own; in one task when there
    are few rows."""
    catalyst, columns = lowering.catalyst, lowering.columns
    ids: list[ColumnId] = [columns.fresh() for _ in node.on]
    sources = [columns.attribute(source) for _, source in node.on]
    named = [columns.named(new, source) for new, source in zip(ids, sources, strict=True)]
    renamed = lowering.project(named, lowering.plan(node.keys))
    conditions = [
        lowering.equal(value, columns.attribute(new), null_safe=node.null_safe)
        for value, new in zip(values, ids, strict=True)
    ]
    hint = catalyst.broadcast_right_hint if should_broadcast(node.keys, len(ids)) else catalyst.no_hint
    if is_small:
        plan, renamed, hint = lowering.coalesce(plan), lowering.coalesce(renamed), catalyst.shuffle_hash_hint
    return catalyst.logical("Join")(plan, renamed, how, lowering.conjunction(conditions), hint)
