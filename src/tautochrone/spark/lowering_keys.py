"""Restricting a relation to keys: as literals while they are few, so that files without them are not read.

A join of a large table with few keys reads all of the table; literals are held against its files' statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject

from tautochrone.algebra.plan import ColumnId, Kept, Matching, Node, Touched
from tautochrone.spark.catalyst import kind
from tautochrone.spark.evaluate import dataframe_of_plan
from tautochrone.spark.literals import LITERALS, literals, suits

if TYPE_CHECKING:
    from tautochrone.spark.lowering import Lowering

__all__ = ["literal_filter", "lower_matching", "lower_touched"]


def lower_matching(lowering: Lowering, node: Matching) -> JavaObject:
    """The child's rows whose key occurs in the keys, or does not."""
    plan = lowering.plan(node.child)
    whole = False
    if not node.absent and isinstance(node.keys, Kept) and kind(node.keys.handle) == "LocalRelation":
        for column, source in node.on:
            condition = literal_filter(lowering, column, node.keys, source, null_safe=node.null_safe)
            if condition is not None:
                plan = lowering.catalyst.logical("Filter")(condition, plan)
                whole = len(node.on) == 1
    if whole or not node.exact:
        return plan
    return _joined(lowering, node, plan)


def lower_touched(lowering: Lowering, node: Touched) -> JavaObject:
    """The child's rows that meet any of several sets of keys, read once."""
    catalyst = lowering.catalyst
    plan = lowering.plan(node.child)
    wanted: list[JavaObject] = []
    for keys, on, null_safe in zip(node.keys, node.on, node.null_safe, strict=True):
        found = _literals(lowering, keys, on, null_safe=null_safe)
        if found is None:
            flag = lowering.columns.named(lowering.columns.fresh(), catalyst.literal(True)).toAttribute()
            how = catalyst.find("catalyst.plans.ExistenceJoin")(flag)
            plan = _met(lowering, plan, keys, on, how, null_safe=null_safe, few=lowering.few(node))
            found = flag
        wanted.append(found)
    any_of = wanted[0]
    for other in wanted[1:]:
        any_of = catalyst.expression("Or")(any_of, other)
    return lowering.selected(catalyst.logical("Filter")(any_of, plan), node.columns)


def _literals(
    lowering: Lowering, keys: Kept, on: Sequence[tuple[ColumnId, ColumnId]], *, null_safe: bool
) -> JavaObject | None:
    """A condition on each column of a key; None when one of them has no such form."""
    if kind(keys.handle) != "LocalRelation":
        return None
    whole: JavaObject | None = None
    for column, source in on:
        part = literal_filter(lowering, column, keys, source, null_safe=null_safe)
        if part is None:
            return None
        whole = part if whole is None else lowering.catalyst.expression("And")(whole, part)
    return whole


def literal_filter(
    lowering: Lowering, column: ColumnId, keys: Kept, source: ColumnId, *, null_safe: bool
) -> JavaObject | None:
    """`column IN (…)` over the values of `source` in local rows; None when it has no such form."""
    catalyst = lowering.catalyst
    attribute = lowering.columns.attribute(column)
    type_name = str(attribute.dataType().catalogString())
    if not suits(type_name):
        return None
    place = keys.columns.index(source)
    values = _values(lowering, keys, place, type_name)
    if len(values) > LITERALS:
        return None
    texts = literals(values, type_name)
    parts: list[JavaObject] = []
    if texts:
        session_state = catalyst.session._jsparkSession.sessionState()  # noqa: SLF001
        parsed = session_state.sqlParser().parseExpression(f"x IN ({texts})")
        parts.append(catalyst.expression("In")(attribute, parsed.list()))
    if null_safe and None in values:
        parts.append(catalyst.expression("IsNull")(attribute))
    if not parts:
        return catalyst.literal(False)
    return parts[0] if len(parts) == 1 else catalyst.expression("Or")(parts[0], parts[1])


def _values(lowering: Lowering, keys: Kept, place: int, type_name: str) -> set[Any]:
    """Distinct values of one column of local rows, as `literals` takes them; no Spark job."""
    catalyst = lowering.catalyst
    value = keys.handle.output().apply(place)
    if type_name.startswith("timestamp"):
        text = catalyst.find("types.StringType$")
        value = catalyst.cast(value, text, catalyst.some("UTC"))
    frame = dataframe_of_plan(catalyst.session, keys.handle)
    return {row[0] for row in frame.select(lowering.of(value).alias("value")).collect()}


def _joined(lowering: Lowering, node: Matching, plan: JavaObject) -> JavaObject:
    """A semi or anti join with the keys."""
    how = lowering.join_type("LeftAnti" if node.absent else "LeftSemi")
    few = lowering.few(node)
    made = _met(lowering, plan, node.keys, node.on, how, null_safe=node.null_safe, few=few)
    return lowering.arranged(made, node.child.columns, node.columns)


def _met(
    lowering: Lowering,
    plan: JavaObject,
    keys: Node,
    on: Sequence[tuple[ColumnId, ColumnId]],
    how: JavaObject,
    *,
    null_safe: bool,
    few: bool,
) -> JavaObject:
    """`plan` joined with the keys under ids of their own; in one task when there are few rows."""
    catalyst = lowering.catalyst
    ids = tuple(lowering.columns.fresh() for _ in on)
    columns = lowering.columns
    renamed = lowering.projected(
        [columns.named(new, columns.attribute(source)) for new, (_, source) in zip(ids, on, strict=True)],
        lowering.plan(keys),
    )
    conditions = [
        lowering.equal(columns.attribute(column), columns.attribute(new), null_safe=null_safe)
        for (column, _), new in zip(on, ids, strict=True)
    ]
    hint = catalyst.no_hint
    if few:
        plan, renamed, hint = lowering.one_task(plan), lowering.one_task(renamed), catalyst.hash_hint
    return catalyst.logical("Join")(plan, renamed, how, lowering.conjunction(conditions), hint)
