"""Lowering of the buffer behind ORDER BY … LIMIT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.java_gateway import JavaObject
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.window import Window as Over

from tautochrone.algebra.plan import Kept, MergeTop, Top
from tautochrone.spark.catalyst import kind

if TYPE_CHECKING:
    from tautochrone.spark.lowering import Lowering

__all__ = ["merge_top"]


def merge_top(low: Lowering, node: MergeTop) -> JavaObject:
    """See the node. A row behind the last kept one says nothing about rows that were never kept."""
    of = node.of
    names = [f"r{place}" for place in range(len(of.columns))]
    both = low.named_frame(node.change).toDF(*names, "weight").withColumn("mine", sf.lit(0))
    whole = True
    if not (isinstance(node.stored, Kept) and node.stored.handle is None):
        stored = low.named_frame(node.stored).toDF(*names, "complete")
        whole = bool(stored.where("NOT complete").isEmpty())
        kept = stored.drop("complete").withColumn("weight", sf.lit(1)).withColumn("mine", sf.lit(1))
        both = kept.unionAll(both)
    counted = both.groupBy(*names).agg(sf.sum("weight").alias("copies"), sf.max("mine").alias("mine"))
    placed = counted.withColumn("place", sf.row_number().over(Over.orderBy(*_order(low, of, names))))
    if not whole:
        last = placed.where("mine = 1").agg(sf.max("place").alias("last"))
        placed = placed.join(sf.broadcast(last), sf.col("place") <= sf.col("last")).drop("last")
    copies = sf.explode(sf.sequence(sf.lit(1), sf.col("copies").cast("int")))
    alive = placed.where("copies > 0").withColumn("copy", copies)
    # One more than fits tells that there are more.
    first = alive.orderBy("place", "copy").limit(of.buffer + 1)
    numbered = first.withColumn("at", sf.row_number().over(Over.orderBy("place", "copy")))
    total = sf.count(sf.lit(1)).over(Over.partitionBy(sf.lit(1)))
    complete = sf.lit(whole) & (total <= of.buffer)
    marked = numbered.withColumn("complete", complete).where(sf.col("at") <= of.buffer)
    return low.bound(marked.select(*names, "complete"), node.columns)


def _order(low: Lowering, node: Top, names: list[str]) -> list[Column]:
    catalyst = low.catalyst
    place = dict(zip(node.columns, names, strict=True))
    unresolved = catalyst.find("catalyst.analysis.UnresolvedAttribute")

    def replace(expression: JavaObject) -> JavaObject | None:
        if kind(expression) != "AttributeReference":
            return None
        return unresolved.quoted(place[catalyst.id_of(expression)])

    return [
        _sorted(
            low.of(catalyst.rebuilt(entry.child(), replace)),
            ascending=kind(entry.direction()) == "Ascending",
            nulls_first=kind(entry.nullOrdering()) == "NullsFirst",
        )
        for entry in node.order
    ]


def _sorted(column: Column, *, ascending: bool, nulls_first: bool) -> Column:
    if ascending:
        return column.asc_nulls_first() if nulls_first else column.asc_nulls_last()
    return column.desc_nulls_first() if nulls_first else column.desc_nulls_last()
