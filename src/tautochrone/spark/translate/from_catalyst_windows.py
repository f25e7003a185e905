"""From Catalyst's windows and limits to the algebra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import Node, Select, TopK, Window
from tautochrone.spark.analysis.nondeterminism import (
    is_first_of_partition,
    range_window_nondeterminism,
    unordered_rows_window_nondeterminism,
)
from tautochrone.spark.analysis.row_bound import most_rows
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind

if TYPE_CHECKING:
    from tautochrone.spark.translate.from_catalyst import Translator

__all__ = ["translate_limit", "translate_window"]

_RANKS = frozenset({"Rank", "DenseRank", "PercentRank"})
_UNORDERABLE = ("map", "variant", "interval")


def translate_window(translator: Translator, plan: JavaObject) -> Node:
    """The nodes of window functions.

    Functions over ROWS frames get a total order, otherwise ties would be broken at random. Ranks give ties
    the same number, so their order stays as it is in the query.
    """
    catalyst = translator.catalyst
    child = translator.node(plan.child())
    partition = list(items(plan.partitionSpec()))
    keyed = all(kind(entry) == "AttributeReference" for entry in partition)
    keys = tuple(translator.register(entry) for entry in partition) if keyed else ()
    order = list(items(plan.orderSpec()))
    tie_breakers = _tie_breakers(translator, child, order)
    by_rows: list[JavaObject] = []
    by_range: list[JavaObject] = []
    for entry in items(plan.windowExpressions()):
        window = entry.child()
        if _depends_on_row_order(window):
            by_rows.append(entry)
            continue
        reason = range_window_nondeterminism(window) if tie_breakers else None
        if reason is not None and is_first_of_partition(window):
            # The first row is the same wherever the frame ends.
            by_rows.append(entry)
            continue
        if reason is not None:
            translator.add_nondeterminism(reason)
        by_range.append(entry)
    if not order and (reason := next(filter(None, map(unordered_rows_window_nondeterminism, by_rows)), None)):
        # Spark makes such window functions of a LIMIT in a LATERAL subquery.
        translator.add_nondeterminism(reason)
        return translator.unsupported(plan, reason)
    for entries, is_ordered in ((by_range, False), (by_rows, bool(order))):
        if not entries:
            continue
        sort = [*order, *tie_breakers] if is_ordered else order
        handle = catalyst.logical("Window")(
            catalyst.seq(entries), plan.partitionSpec(), catalyst.seq(sort), plan.child(), plan.hint()
        )
        outputs = tuple(translator.register(entry.toAttribute()) for entry in entries)
        child = Window(columns=(*child.columns, *outputs), child=child, handle=handle, partition=keys)
    columns = tuple(dict.fromkeys(translator.register_all(plan.output())))
    return child if child.columns == columns else Select(columns=columns, child=child)


def _tie_breakers(translator: Translator, child: Node, order: list[JavaObject]) -> list[JavaObject]:
    """Sort orders over the columns that `order` does not contain."""
    catalyst = translator.catalyst
    named = {
        catalyst.column_id(entry.child()) for entry in order if kind(entry.child()) == "AttributeReference"
    }
    orders = []
    for column in child.columns:
        attribute = translator.attributes[column]
        if column in named or str(attribute.dataType().catalogString()).startswith(_UNORDERABLE):
            continue
        orders.append(catalyst.ascending(attribute))
    return orders


def translate_limit(translator: Translator, plan: JavaObject) -> Node:
    """The node of ORDER BY … LIMIT … OFFSET.

    A limit without an order has no rule, except where it removes no row, and LIMIT 1 of equal rows.
    """
    local = plan.child()
    source = local.child() if kind(local) == "LocalLimit" else local
    if kind(plan.limitExpr()) == "Literal":
        limit, bound = int(plan.limitExpr().value()), most_rows(source)
        if bound is not None and bound <= limit:
            return translator.node(source)
        if limit == 1 and _has_equal_rows(source):
            return translator.node(_one_of_equal_rows(translator.catalyst, source))
    offset = 0
    if kind(source) == "Offset":
        offset = int(source.offsetExpr().value())
        source = source.child()
    projects = []
    while kind(source) == "Project":
        projects.append(source)
        source = source.child()
    if kind(source) != "Sort" or kind(plan.limitExpr()) != "Literal":
        reason = "LIMIT without ORDER BY picks arbitrary rows"
        translator.add_nondeterminism(reason)
        return translator.unsupported(plan, reason)
    child = translator.node(source.child())
    order = list(items(source.order()))
    top_k = TopK(
        columns=child.columns,
        child=child,
        order=[*order, *_tie_breakers(translator, child, order)],
        limit=int(plan.limitExpr().value()),
        offset=offset,
        number=translator.next_state_number(),
        complete=translator.typed_column("boolean"),
    )
    node: Node = top_k
    for project in reversed(projects):
        node = translator.project(node, list(items(project.projectList())))
    return node


def _has_equal_rows(plan: JavaObject) -> bool:
    """Whether all rows of a plan are the same constants."""
    if kind(plan) != "Project":
        return False
    return all(kind(entry) == "Alias" and entry.child().foldable() for entry in items(plan.projectList()))


def _one_of_equal_rows(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """A plan with one of the rows of a plan whose rows are all the same, and none if it has none."""
    output = plan.output()
    if not output.isEmpty():
        return catalyst.logical("Aggregate")(output, output, plan, catalyst.none)
    # Without a grouping expression an aggregate has a row over an empty input too.
    true = catalyst.literal(True)
    _, expr_id = catalyst.new_expr_id()
    row = catalyst.seq([catalyst.alias(true, "row", expr_id)])
    group = catalyst.logical("Aggregate")(catalyst.seq([true]), row, plan, catalyst.none)
    return catalyst.logical("Project")(output, group)


def _depends_on_row_order(window: JavaObject) -> bool:
    """Whether the order of tied rows changes a window function. For ranks it does not: ties get the same
    number."""
    frame = kind(window.windowSpec().frameSpecification().frameType())
    return frame == "RowFrame" and kind(window.windowFunction()) not in _RANKS
