"""Lowering of the buffer behind ORDER BY … LIMIT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from tautochrone.algebra.nodes import Materialized, MergeTopK, TopK
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import kind

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

    from tautochrone.spark.translate.to_catalyst import Lowering

__all__ = ["lower_merge_top_k"]

_STORED, _CHANGE, _COUNTED = "__taut_top_stored", "__taut_top_change", "__taut_top_counted"


def lower_merge_top_k(low: Lowering, node: MergeTopK) -> JavaObject:
    """See the node. A row behind the last kept one says nothing about rows that were never kept."""
    top_k, names = node.top_k, [f"r{place}" for place in range(len(node.top_k.columns))]
    change = low.named_frame(node.change).toDF(*names, "weight")
    stored = None
    if not (isinstance(node.stored, Materialized) and node.stored.handle is None):
        stored = low.named_frame(node.stored).toDF(*names, "complete")
    whole = stored is None or bool(stored.where("NOT complete").isEmpty())
    session = low.catalyst.session
    with _views(session, {_CHANGE: change, _STORED: stored}):
        counted = session.sql(_counted(names, from_stored=stored is not None))
    ordered, order = _ordered(low, top_k, counted)
    with _views(session, {_COUNTED: ordered}):
        merged = session.sql(_first(names, order, top_k.buffer, whole=whole))
    return low.with_column_ids(merged, node.columns)


@contextmanager
def _views(session: SparkSession, frames: Mapping[str, DataFrame | None]) -> Iterator[None]:
    """Names for DataFrames, for as long as a text is analysed. As one text: built from DataFrames, each part
    would be analysed anew with all that is below it."""
    try:
        for name, frame in frames.items():
            if frame is not None:
                frame.createOrReplaceTempView(name)
        yield
    finally:
        for name in frames:
            session.catalog.dropTempView(name)


def _counted(names: Sequence[str], *, from_stored: bool) -> str:
    """How often each row is there after the change, and whether it was kept."""
    rows = ", ".join(names)
    stored = f"SELECT {rows}, 1 AS weight, 1 AS mine FROM {_STORED} UNION ALL" if from_stored else ""
    return f"""
        SELECT {rows}, sum(weight) AS copies, max(mine) AS mine
        FROM ({stored} SELECT {rows}, weight, 0 AS mine FROM {_CHANGE}) GROUP BY {rows}
    """


def _ordered(low: Lowering, top_k: TopK, counted: DataFrame) -> tuple[DataFrame, str]:
    """The counted rows with what orders them beside, and the order as SQL."""
    columns = low.columns
    beside = (columns.fresh(), columns.fresh())
    plan = low.with_column_ids(counted, (*top_k.columns, *beside))
    place = {column: f"r{at}" for at, column in enumerate(top_k.columns)}
    named, texts = [], []
    for at, entry in enumerate(top_k.order):
        value = entry.child()
        name = place.get(low.catalyst.column_id(value)) if kind(value) == "AttributeReference" else None
        if name is None:
            name = f"o{at}"
            named.append(low.catalyst.alias(value, name, low.catalyst.new_expr_id()[1]))
        texts.append(f"{name} {_direction(entry)}")
    plan = low.project([*low.attributes((*top_k.columns, *beside)), *named], plan)
    frame = dataframe_of_plan(low.catalyst.session, plan)
    return frame.toDF(*place.values(), "copies", "mine", *frame.columns[len(place) + 2 :]), ", ".join(texts)


def _first(names: Sequence[str], order: str, buffer: int, *, whole: bool) -> str:
    """The first rows, as many as the buffer holds, and whether there are others."""
    rows = ", ".join(names)
    seen = "" if whole else "WHERE place <= (SELECT max(place) FROM placed WHERE mine = 1)"
    # One more than fits tells that there are more.
    return f"""
        WITH placed AS (
            SELECT *, row_number() OVER (ORDER BY {order}) AS place FROM {_COUNTED}
        ), alive AS (
            SELECT {rows}, place, explode(sequence(1, CAST(copies AS INT))) AS copy
            FROM (SELECT * FROM placed {seen}) WHERE copies > 0
        )
        SELECT {rows}, complete FROM (
            SELECT *, row_number() OVER (ORDER BY place, copy) AS at,
                {str(whole).lower()} AND count(1) OVER () <= {buffer} AS complete
            FROM (SELECT * FROM alive ORDER BY place, copy LIMIT {buffer + 1})
        ) WHERE at <= {buffer}
    """


def _direction(entry: JavaObject) -> str:
    """Of a Catalyst `SortOrder`."""
    ascending = "ASC" if kind(entry.direction()) == "Ascending" else "DESC"
    return f"{ascending} NULLS {'FIRST' if kind(entry.nullOrdering()) == 'NullsFirst' else 'LAST'}"
