"""What a query that gives rows of a unit test may not do: read tables, and give values that lose digits."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from tautochrone.model.names import quoted
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, inputs_of
from tautochrone.spark.jvm.catalyst import items, kind, plan_and_subqueries

__all__ = ["loss_sql", "tables_of"]

_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range", "CTERelationRef", "UnionLoopRef"})
"""Leaves of plans that read nothing."""
_NOT_EXACT = (StringType, BinaryType, VariantType, FloatType, DoubleType)
"""Types that hold any text, or numbers by approximation."""


def tables_of(frame: DataFrame) -> list[str]:
    """What a query reads, in subqueries too; empty when it has all its rows in itself."""
    plan = analyzed_plan(frame)
    leaves = [leaf for root in plan_and_subqueries(plan) for leaf in items(root.collectLeaves())]
    if {kind(leaf) for leaf in leaves} <= _CONSTANT:
        return []
    return list(inputs_of(plan, catalog="").unversioned) or ["a stream"]


def loss_sql(value: str, source: DataType, target: DataType, sql_of: Callable[[DataType], str]) -> str | None:
    """The condition under which a value is another one after `CAST`, as SQL; None: under none.

    Args:
        value: an expression.
        source: its type.
        target: of the cast.
        sql_of: a type as Spark's parser takes it.

    Example:
        >>> loss_sql("a", DoubleType(), DecimalType(9, 2), lambda kind: kind.simpleString())
        'NOT (TRY_CAST(CAST(a AS decimal(9,2)) AS double) <=> a)'
    """
    if source == target or isinstance(source, NullType | VariantType) or isinstance(target, _NOT_EXACT):
        return None
    if isinstance(target, ArrayType | MapType | StructType):
        return _nested_loss(value, source, target, sql_of)
    if isinstance(source, StringType):
        if not isinstance(target, DecimalType):
            return None
        # ANSI refuses other texts than numbers, and those of whole numbers with decimal places.
        return f"length(regexp_extract(trim({value}), '[.]([0-9]*?)0*$', 1)) > {target.scale}"
    return f"NOT (TRY_CAST(CAST({value} AS {sql_of(target)}) AS {sql_of(source)}) <=> {value})"


def _nested_loss(
    value: str, source: DataType, target: DataType, sql_of: Callable[[DataType], str]
) -> str | None:
    """The condition for any part of a value with several parts."""

    def of_elements(elements: str, inner: DataType, of_target: DataType) -> str | None:
        # Of nested arrays each has a variable of its own.
        name = f"element{value.count('element')}"
        loss = loss_sql(name, inner, of_target, sql_of)
        return None if loss is None else f"exists({elements}, {name} -> {loss})"

    losses: list[str | None] = []
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        losses.append(of_elements(value, source.elementType, target.elementType))
    elif isinstance(source, MapType) and isinstance(target, MapType):
        losses.append(of_elements(f"map_keys({value})", source.keyType, target.keyType))
        losses.append(of_elements(f"map_values({value})", source.valueType, target.valueType))
    elif isinstance(source, StructType) and isinstance(target, StructType):
        # A cast takes fields by their position.
        for part, of_target in zip(source.fields, target.fields, strict=False):
            losses.append(loss_sql(f"{value}.{quoted(part.name)}", part.dataType, of_target.dataType, sql_of))
    conditions = [f"coalesce({loss}, false)" for loss in losses if loss is not None]
    return f"({' OR '.join(conditions)})" if conditions else None
