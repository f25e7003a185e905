"""The attributes of the columns of a lowered plan."""

from __future__ import annotations

import re
from collections.abc import Mapping

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import WEIGHT, ColumnId
from tautochrone.spark.jvm.catalyst import Catalyst, items

__all__ = ["Columns"]


class Columns:
    """The attribute of each column id, both for the query's columns and for those that delta rules create."""

    def __init__(self, catalyst: Catalyst, attributes: Mapping[ColumnId, JavaObject]) -> None:
        self._catalyst = catalyst
        self._attributes = dict(attributes)
        self._expr_ids: dict[ColumnId, JavaObject] = {}
        self._weight_id, self._expr_ids[WEIGHT] = catalyst.new_expr_id()
        self.named(WEIGHT, catalyst.literal(1))

    def fresh(self) -> ColumnId:
        column, expr_id = self._catalyst.new_expr_id()
        self._expr_ids[column] = expr_id
        return column

    def attribute(self, column: ColumnId) -> JavaObject:
        return self._attributes[column]

    def expr_id(self, column: ColumnId) -> JavaObject:
        if column not in self._expr_ids:
            self._expr_ids[column] = self._attributes[column].exprId()
        return self._expr_ids[column]

    def with_expected_ids(self, output: JavaObject, columns: tuple[ColumnId, ...]) -> JavaObject:
        """Attributes with the ids of `columns`. Most have them already; Spark gives new ids to duplicates."""
        expected = [self._weight_id if column == WEIGHT else column for column in columns]
        if [f"c{number}" for number in re.findall(r"#(\d+)", str(output.toString()))] == expected:
            return output
        pairs = zip(columns, items(output), strict=True)
        return self._catalyst.seq(entry.withExprId(self.expr_id(column)) for column, entry in pairs)

    def named(self, column: ColumnId, expression: JavaObject) -> JavaObject:
        """An alias of `expression` with the id of `column`. Defines the attribute of a new column."""
        alias = self._catalyst.alias(expression, str(column), self.expr_id(column))
        if column not in self._attributes:
            self._attributes[column] = alias.toAttribute()
        return alias
