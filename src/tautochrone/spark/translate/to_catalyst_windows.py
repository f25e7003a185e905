"""Lowering of what depends on the order of rows: ORDER BY … LIMIT with its state (buffer), the rows from a
bound on, and totals of those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.algebra.nodes import Materialized, MergeTopK, Node, OrderedFrom, TopK, Totals
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.translate.lowering_context import LoweringContext

__all__ = ["LOWER_BY_ORDER"]

_STORED, _CHANGE, _COUNTED = "__taut_top_stored", "__taut_top_change", "__taut_top_counted"


def _lower_top_k(lowering: LoweringContext, node: TopK) -> JavaObject:
    """The plan of ORDER BY … LIMIT … OFFSET."""
    catalyst = lowering.catalyst
    plan = catalyst.logical("Sort")(
        catalyst.seq(node.order), True, lowering.coalesced(node.child), catalyst.none
    )
    if node.offset:
        plan = catalyst.logical("Offset")(catalyst.literal(node.offset), plan)
    limit = catalyst.literal(node.limit)
    return catalyst.logical("GlobalLimit")(limit, catalyst.logical("LocalLimit")(limit, plan))


def _lower_merge_top_k(lowering: LoweringContext, node: MergeTopK) -> JavaObject:
    """See `MergeTopK`. Rows after the last stored one are ignored unless the stored ones are all rows."""
    top_k, names = node.top_k, [f"r{i}" for i in range(len(node.top_k.columns))]
    change = lowering.frame_named_by_ids(node.change).toDF(*names, "weight")
    stored = None
    if not (isinstance(node.stored, Materialized) and node.stored.handle is None):
        stored = lowering.frame_named_by_ids(node.stored).toDF(*names, "complete")
    is_complete = stored is None or bool(stored.where("NOT complete").isEmpty())
    session = lowering.catalyst.session
    with _views(session, {_CHANGE: change, _STORED: stored}):
        copies = session.sql(_copies_sql(names, from_stored=stored is not None))
    ordered, order = _with_order_columns(lowering, top_k, copies)
    with _views(session, {_COUNTED: ordered}):
        merged = session.sql(_first_rows_sql(names, order, top_k.buffer, is_complete=is_complete))
    return lowering.with_column_ids(merged, node.columns)


@contextmanager
def _views(session: SparkSession, frames: Mapping[str, DataFrame | None]) -> Iterator[None]:
    """Temporary views of DataFrames while an SQL text is analyzed.

    One SQL text is analyzed once; with DataFrame methods each step would analyze the whole plan below it
    again.
    """
    try:
        for name, frame in frames.items():
            if frame is not None:
                frame.createOrReplaceTempView(name)
        yield
    finally:
        for name in frames:
            session.catalog.dropTempView(name)


def _copies_sql(names: Sequence[str], *, from_stored: bool) -> str:
    """SQL of the number of copies of each row after the change, and of whether it was stored."""
    rows = ", ".join(names)
    stored = f"SELECT {rows}, 1 AS weight, 1 AS is_stored FROM {_STORED} UNION ALL" if from_stored else ""
    return f"""
        SELECT {rows}, sum(weight) AS copies, max(is_stored) AS is_stored
        FROM ({stored} SELECT {rows}, weight, 0 AS is_stored FROM {_CHANGE}) GROUP BY {rows}
    """


def _with_order_columns(lowering: LoweringContext, top_k: TopK, copies: DataFrame) -> tuple[DataFrame, str]:
    """The rows with a column for each computed sort expression, and the ORDER BY clause as SQL."""
    columns = lowering.columns
    extra = (columns.fresh(), columns.fresh())
    plan = lowering.with_column_ids(copies, (*top_k.columns, *extra))
    names = {column: f"r{i}" for i, column in enumerate(top_k.columns)}
    computed, order = [], []
    for i, entry in enumerate(top_k.order):
        value = entry.child()
        name = names.get(lowering.catalyst.column_id(value)) if kind(value) == "AttributeReference" else None
        if name is None:
            name = f"o{i}"
            computed.append(lowering.catalyst.alias(value, name, lowering.catalyst.new_expr_id()[1]))
        order.append(f"{name} {_direction(entry)}")
    plan = lowering.project([*lowering.attributes((*top_k.columns, *extra)), *computed], plan)
    frame = dataframe_of_plan(lowering.catalyst.session, plan)
    return frame.toDF(*names.values(), "copies", "is_stored", *frame.columns[len(names) + 2 :]), ", ".join(
        order
    )


def _first_rows_sql(names: Sequence[str], order: str, buffer: int, *, is_complete: bool) -> str:
    """SQL of the first `buffer` rows, and of whether these are all rows."""
    rows = ", ".join(names)
    up_to_last_stored = (
        "" if is_complete else "WHERE rank <= (SELECT max(rank) FROM ranked WHERE is_stored = 1)"
    )
    # One row more than the buffer tells whether the buffer has all rows.
    return f"""
        WITH ranked AS (
            SELECT *, row_number() OVER (ORDER BY {order}) AS rank FROM {_COUNTED}
        ), alive AS (
            SELECT {rows}, rank, explode(sequence(1, CAST(copies AS INT))) AS copy
            FROM (SELECT * FROM ranked {up_to_last_stored}) WHERE copies > 0
        )
        SELECT {rows}, complete FROM (
            SELECT *, row_number() OVER (ORDER BY rank, copy) AS row_position,
                {str(is_complete).lower()} AND count(1) OVER () <= {buffer} AS complete
            FROM (SELECT * FROM alive ORDER BY rank, copy LIMIT {buffer + 1})
        ) WHERE row_position <= {buffer}
    """


def _direction(entry: JavaObject) -> str:
    """The direction and null ordering of a Catalyst `SortOrder`, as SQL."""
    ascending = "ASC" if kind(entry.direction()) == "Ascending" else "DESC"
    return f"{ascending} NULLS {'FIRST' if kind(entry.nullOrdering()) == 'NullsFirst' else 'LAST'}"


def _lower_ordered_from(lowering: LoweringContext, node: OrderedFrom) -> JavaObject:
    """The plan of the rows from a bound on, or of those before it."""
    catalyst = lowering.catalyst
    key, bound = lowering.columns.attribute(node.key), lowering.columns.attribute(node.bound_key)
    (order,) = node.order
    descending = str(order.direction().sql()) == "DESC"
    name = "LessThanOrEqual" if descending else "GreaterThanOrEqual"
    reached = catalyst.expression("Coalesce")(
        catalyst.seq([catalyst.expression(name)(key, bound), catalyst.literal(False)])
    )
    nulls_first = str(order.nullOrdering().sql()) == "NULLS FIRST"
    # NULL as the bound: every row if NULL comes first, and else only those that are NULL too.
    is_null = catalyst.expression("IsNull")(bound if nulls_first else key)
    condition = catalyst.expression("Or")(is_null, reached)
    if node.before:
        condition = catalyst.expression("Not")(condition)
    plan = lowering.join_scalars(node.child, (node.bound,))
    return lowering.selected(catalyst.logical("Filter")(condition, plan), node.columns)


def _lower_totals(lowering: LoweringContext, node: Totals) -> JavaObject:
    """The plan of one row with aggregate functions over all rows."""
    catalyst = lowering.catalyst
    child = lowering.coalesced(node.child)
    return catalyst.logical("Aggregate")(catalyst.seq(), catalyst.seq(node.handle), child, catalyst.none)


LOWER_BY_ORDER: Mapping[type[Node], Callable[[LoweringContext, Any], JavaObject]] = {
    TopK: _lower_top_k,
    MergeTopK: _lower_merge_top_k,
    OrderedFrom: _lower_ordered_from,
    Totals: _lower_totals,
}
